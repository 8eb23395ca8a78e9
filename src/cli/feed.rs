//! Source of texts: one text, or its lines as they come.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use octavo_text::tokenizer::MAX_TEXT_BYTES;

use super::failure::Failure;
use super::prompt::{NO_TEXT, TextArgs};

/// Maximum number of lines to read ahead.
const AHEAD: usize = 64;

/// Time between two checks of whether to stop waiting for a line.
const GLANCE: Duration = Duration::from_millis(50);

/// A text and the number of its line, from 0.
pub(super) type Numbered = (usize, Vec<u8>);

/// Texts of a run, in order. Empty lines are left out, but count in the numbers of the others.
pub(super) enum Feed {
    /// Texts of the command line.
    Texts(VecDeque<Numbered>),
    /// Texts that a thread reads from a file or from stdin.
    Read(Receiver<Result<Numbered, Failure>>),
}

/// Result of asking for the next text.
pub(super) enum Fed {
    Text(Numbered),
    /// No text yet; more may come.
    NotYet,
    End,
}

impl Feed {
    /// Creates a feed of one text.
    pub(super) fn of(text: Vec<u8>) -> Feed {
        Feed::Texts(VecDeque::from([(0, text)]))
    }

    /// Creates a feed of every line of the text that the arguments give; `beside` says that the
    /// command has another string in which -e processes escapes.
    pub(super) fn lines(args: &TextArgs, beside: bool) -> Result<Feed, Failure> {
        let path = match &args.file {
            Some(path) => path.as_path(),
            None if args.reads_stdin() => Path::new("-"),
            None => {
                let text = args.require_beside(beside)?;
                let lines = text.split(|byte| *byte == b'\n').map(trimmed).enumerate();
                let texts = lines.filter(|(_, line)| !line.is_empty());
                return Ok(Feed::Texts(
                    texts.map(|(i, line)| (i, line.to_vec())).collect(),
                ));
            }
        };
        args.refuse_useless_escape(beside)?;
        let source: Box<dyn Read + Send> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(path).map_err(|error| at(path, &error))?),
        };
        let (sender, receiver) = sync_channel(AHEAD);
        let (name, is_named) = (path.to_owned(), args.is_set());
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || {
                // sending fails when the run has ended
                let _ = read(source, &name, is_named, &sender);
            })?;
        Ok(Feed::Read(receiver))
    }

    /// Returns the next text. With `wait` it blocks until there is one, unless the run is
    /// `interrupted`.
    pub(super) fn next(
        &mut self,
        wait: bool,
        interrupted: impl Fn() -> bool,
    ) -> Result<Fed, Failure> {
        let receiver = match self {
            Feed::Texts(texts) => return Ok(texts.pop_front().map_or(Fed::End, Fed::Text)),
            Feed::Read(receiver) => receiver,
        };
        loop {
            let read = match wait {
                false => match receiver.try_recv() {
                    Err(TryRecvError::Empty) => return Ok(Fed::NotYet),
                    Err(TryRecvError::Disconnected) => return Ok(Fed::End),
                    Ok(read) => read,
                },
                true => match receiver.recv_timeout(GLANCE) {
                    Err(RecvTimeoutError::Timeout) if interrupted() => return Ok(Fed::NotYet),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Ok(Fed::End),
                    Ok(read) => read,
                },
            };
            return read.map(Fed::Text);
        }
    }
}

/// Returns a line without its line end.
fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Input(format!("{}: {error}", path.display()))
}

/// Sends every line that is not empty, or the error that ends reading; `is_named` says that an
/// option names the source.
fn read(
    source: impl Read,
    name: &Path,
    is_named: bool,
    sender: &SyncSender<Result<Numbered, Failure>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut source = BufReader::new(source);
    let mut nothing = true;
    for number in 0.. {
        let mut line = Vec::new();
        let mut bounded = source.by_ref().take(MAX_TEXT_BYTES as u64 + 1);
        match bounded.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) if line.len() > MAX_TEXT_BYTES => {
                let most = format!("expected at most {MAX_TEXT_BYTES} bytes of text in a line");
                return Ok(sender.send(Err(at(name, &most)))?);
            }
            Ok(_) => nothing = false,
            Err(error) => return Ok(sender.send(Err(at(name, &error)))?),
        }
        let text = trimmed(&line);
        if !text.is_empty() {
            sender.send(Ok((number, text.to_vec())))?;
        }
    }
    if nothing && !is_named {
        sender.send(Err(Failure::Usage(NO_TEXT.to_owned())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_left_out_and_counted() {
        let (sender, receiver) = sync_channel(AHEAD);
        let text = b"a\n\nb c\r\n\r\nlast".as_slice();
        read(text, Path::new("-"), true, &sender).expect("read");
        drop(sender);
        let lines: Vec<Numbered> = receiver.into_iter().map(|l| l.expect("a line")).collect();
        let expected = [(0, "a"), (2, "b c"), (4, "last")];
        assert_eq!(
            lines,
            expected.map(|(i, line)| (i, line.as_bytes().to_vec()))
        );
    }
}
