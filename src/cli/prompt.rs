//! Source of a text: an argument taken literally, or a file or stdin byte for byte. And the prompt
//! that is made of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use octavo_engine::sample::Constraint;
use octavo_text::chat::answer::AnswerParser;
use octavo_text::tokenizer::MAX_TEXT_BYTES;

use super::failure::Failure;
use super::terminal;

/// Error message if there is no text.
pub(super) const NO_TEXT: &str = "no text: expected -p TEXT, -f FILE or a pipe to stdin";

/// The prompt of a text.
pub(super) struct Prompt {
    /// The text; a message as rendered by the chat template.
    pub(super) text: Vec<u8>,
    /// Its tokens.
    pub(super) ids: Vec<u32>,
    /// Separates the reasoning of the answer, if the text is a message.
    pub(super) parser: Option<AnswerParser>,
    /// Constraint of the answer.
    pub(super) constraint: Option<Box<dyn Constraint>>,
}

/// Options of the text. A command that takes something else instead says so with
/// `required_unless_present`.
#[derive(Debug, Args)]
pub(super) struct TextArgs {
    /// Text, taken literally (see -e)
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub(super) prompt: Option<OsString>,
    /// Read the text from FILE, byte for byte; - is stdin, and so is a pipe without -p and -f
    #[arg(
        short,
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        value_hint = clap::ValueHint::FilePath,
    )]
    pub(super) file: Option<PathBuf>,
    /// Process the escapes \n, \r, \t, \", \', \\ and \xHH in TEXT
    #[arg(short, long)]
    pub(super) escape: bool,
}

impl TextArgs {
    /// Returns whether a text is given by an option.
    pub(super) fn is_set(&self) -> bool {
        self.prompt.is_some() || self.file.is_some()
    }

    /// Returns whether the text comes from a pipe or a file on stdin, because no option gives one.
    pub(super) fn reads_stdin(&self) -> bool {
        !self.is_set() && !terminal::stdin_is_terminal()
    }

    /// Returns the text's bytes, or `None` if neither option is given.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.read_beside(false)
    }

    /// Does the same as [`TextArgs::read`]; `beside` says that the command has another string in
    /// which -e processes escapes.
    fn read_beside(&self, beside: bool) -> Result<Option<Vec<u8>>, Failure> {
        self.refuse_useless_escape(beside)?;
        match (&self.prompt, &self.file) {
            (Some(text), _) if self.escape => Ok(Some(unescape(text.as_encoded_bytes()))),
            (Some(text), _) => Ok(Some(text.as_encoded_bytes().to_vec())),
            (None, Some(path)) => read(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Refuses -e if there is no string in which it could process escapes.
    pub(super) fn refuse_useless_escape(&self, beside: bool) -> Result<(), Failure> {
        match self.escape && self.prompt.is_none() && !beside {
            true => Err(Failure::Usage(
                "-e (--escape) has no effect: expected -p TEXT with it".to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Returns the text's bytes: from one of the two options, or from stdin if that is not a
    /// terminal.
    pub(super) fn require(&self) -> Result<Vec<u8>, Failure> {
        self.require_beside(false)
    }

    /// Does the same as [`TextArgs::require`]; the error also names `other`, an alternative to a
    /// text.
    pub(super) fn require_or(&self, other: &str) -> Result<Vec<u8>, Failure> {
        self.require().map_err(|failure| match failure {
            Failure::Usage(message) if message == NO_TEXT => {
                Failure::Usage(format!("{NO_TEXT}, or {other}"))
            }
            failure => failure,
        })
    }

    /// Does the same as [`TextArgs::require`]; `beside` says that the command has another string in
    /// which -e processes escapes.
    pub(super) fn require_beside(&self, beside: bool) -> Result<Vec<u8>, Failure> {
        let text = match self.read_beside(beside)? {
            None if self.reads_stdin() => {
                Some(read(Path::new("-"))?).filter(|text| !text.is_empty())
            }
            text => text,
        };
        text.ok_or_else(|| Failure::Usage(NO_TEXT.to_owned()))
    }
}

/// Reads a text to be scored: a line feed at its end is dropped, as by llama-perplexity's `-f`.
pub(super) fn read_scored(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = read(path)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(text)
}

/// Reads a file, or stdin for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::Input(format!("{}: {error}", path.display()));
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    source
        .take(MAX_TEXT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(Failure::Input(format!(
            "{}: expected at most {MAX_TEXT_BYTES} bytes of text",
            path.display()
        )));
    }
    Ok(bytes)
}

/// Processes llama.cpp's escapes; a backslash before anything else stays.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = if byte == b'\\' { escaped(after) } else { None };
        let (byte, used) = escape.unwrap_or((byte, 0));
        out.push(byte);
        rest = &after[used..];
    }
    out
}

/// Returns the byte that the characters after a backslash stand for, and their number.
fn escaped(after: &[u8]) -> Option<(u8, usize)> {
    let hex = |b: u8| {
        char::from(b)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    Some(match after {
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [c @ (b'\\' | b'"' | b'\''), ..] => (*c, 1),
        [b'x', high, low, ..] => (hex(*high)? * 16 + hex(*low)?, 3),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let cases: [(&[u8], &[u8]); 9] = [
            (b"", b""),
            (br"a\nb\tc\r", b"a\nb\tc\r"),
            (br#"\\n \" \'"#, br#"\n " '"#),
            (br"\x41\xff\x0a", b"A\xff\n"),
            (br"\x4", br"\x4"),
            (br"\xzz", br"\xzz"),
            (br"\q", br"\q"),
            (b"end\\", b"end\\"),
            ("\\né".as_bytes(), "\né".as_bytes()),
        ];
        for (text, expected) in cases {
            assert_eq!(
                unescape(text),
                expected,
                "{:?}",
                String::from_utf8_lossy(text)
            );
        }
    }
}
