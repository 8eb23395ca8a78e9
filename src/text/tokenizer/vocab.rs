//! Tokens of a file: texts, attributes, scores and decoded pieces, validated before use.

use gguf_rs_lite::{Array, Gguf};

use super::error::{Error, printable};
use super::texts::Texts;
use super::unicode::{byte_alphabet, decode};

/// Attributes of a token, as bits.
pub(super) type Attrs = u16;

/// Type 2 in the file.
pub(super) const UNKNOWN: Attrs = 1;
/// Type 5 in the file.
pub(super) const UNUSED: Attrs = 1 << 1;
/// Type 1 in the file.
pub(super) const NORMAL: Attrs = 1 << 2;
/// Type 3 in the file: matched in text only on request, not printed.
pub(super) const CONTROL: Attrs = 1 << 3;
/// Type 4 in the file: always matched in text, always printed.
pub(super) const USER_DEFINED: Attrs = 1 << 4;
/// Type 6 in the file: `<0x0A>` stands for a byte.
pub(super) const BYTE: Attrs = 1 << 5;
/// Strips the white space before it.
pub(super) const LSTRIP: Attrs = 1 << 6;
/// Strips the white space after it.
pub(super) const RSTRIP: Attrs = 1 << 7;

/// Largest number of tokens in a vocabulary; ids stay far from the marks used internally.
const MAX_TOKENS: usize = 1 << 28;

/// The vocabulary of a file.
pub(super) struct Vocab {
    /// Name of the file, for messages.
    pub(super) file: String,
    /// Texts; the first `n` are the tokens, and a BPE model appends texts that only occur in
    /// merges.
    pub(super) texts: Texts,
    /// Number of tokens.
    pub(super) n: usize,
    /// Tokens with the text of an earlier one: (earlier id, later id). Look-ups find the last.
    repeated: Vec<(u32, u32)>,
    /// Attributes of each token.
    pub(super) attrs: Vec<Attrs>,
    /// Score of each token; empty if the file has none.
    pub(super) scores: Vec<f32>,
}

/// Reads an array that must have a given element type.
pub(super) fn typed_array<'a, T>(
    gguf: &'a Gguf,
    key: &'static str,
    expected: &'static str,
    convert: impl FnOnce(&Array<'a>) -> Option<T>,
) -> Result<Option<T>, Error> {
    let Some(array) = gguf.array(key)? else {
        return Ok(None);
    };
    let got = || array.elem_type().name().to_owned();
    let file = || gguf.name().to_owned();
    convert(&array).map(Some).ok_or_else(|| Error::ArrayType {
        file: file(),
        key,
        expected,
        got: got(),
    })
}

/// Checks an array with a value for each token. Elements beyond the tokens are ignored, as in
/// llama.cpp.
fn parallel<T>(
    gguf: &Gguf,
    key: &'static str,
    n: usize,
    mut values: Vec<T>,
) -> Result<Vec<T>, Error> {
    if values.len() >= n {
        values.truncate(n);
        return Ok(values);
    }
    Err(Error::ArrayLength {
        file: gguf.name().to_owned(),
        key,
        expected: n,
        got: values.len(),
    })
}

impl Vocab {
    /// Reads tokens, types and scores. `room` = number of texts that will be added later.
    pub(super) fn read(gguf: &Gguf, room: usize) -> Result<Vocab, Error> {
        let file = gguf.name().to_owned();
        let key = "tokenizer.ggml.tokens";
        let tokens = typed_array(gguf, key, "string", Array::strings)?;
        let Some(tokens) = tokens else {
            return Err(Error::MissingKey { file, key });
        };
        let n = tokens.len();
        if n == 0 || n > MAX_TOKENS {
            return Err(Error::TokenCount {
                file,
                got: n,
                limit: MAX_TOKENS,
            });
        }
        let mut texts = Texts::with_capacity(n + room);
        let mut repeated = Vec::new();
        for text in tokens {
            if text.is_empty() {
                texts.push_hidden(text);
                continue;
            }
            let id = u32::try_from(texts.len()).unwrap_or(u32::MAX);
            if let Some(earlier) = texts.insert_again(text) {
                repeated.push((earlier, id));
            }
        }
        let vocab = Vocab {
            file,
            texts,
            n,
            repeated,
            attrs: read_attrs(gguf, n)?,
            scores: read_scores(gguf, n)?,
        };
        vocab.check_byte_tokens()?;
        Ok(vocab)
    }

    /// Returns a warning about tokens with equal texts, in one line.
    pub(super) fn warnings(&self) -> Option<String> {
        let (earlier, later) = *self.repeated.first()?;
        let text = printable(self.texts.text(later));
        let more = match self.repeated.len() - 1 {
            0 => String::new(),
            n => format!(" ({n} more such tokens)"),
        };
        Some(format!(
            "tokens {earlier} and {later} have the same text '{text}': it stands for the \
             latter{more}"
        ))
    }

    /// Returns all ids.
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.n).unwrap_or(u32::MAX)
    }

    /// Returns the attributes of a token; none for an id out of range.
    pub(super) fn attrs(&self, id: u32) -> Attrs {
        self.attrs.get(id as usize).copied().unwrap_or(0)
    }

    /// Returns the token with exactly this text.
    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        self.texts.get(text).filter(|id| (*id as usize) < self.n)
    }

    fn check_byte_tokens(&self) -> Result<(), Error> {
        for id in self.ids().filter(|id| self.attrs(*id) & BYTE != 0) {
            let text = self.texts.text(id);
            if !text.is_empty() && byte_of(text).is_none() {
                return Err(Error::ByteToken {
                    file: self.file.clone(),
                    id,
                    text: printable(text),
                });
            }
        }
        Ok(())
    }

    /// Computes the decoded bytes of each token. `escaped` = U+2581 means a space, else texts are
    /// in GPT-2's byte alphabet.
    pub(super) fn pieces(&self, escaped: bool) -> Pieces {
        let mut pieces = Pieces {
            bytes: Vec::with_capacity(self.n * 6),
            ends: Vec::with_capacity(self.n),
        };
        let mut cps = Vec::new();
        for id in self.ids() {
            let (text, attrs) = (self.texts.text(id), self.attrs(id));
            if attrs & (UNKNOWN | CONTROL | USER_DEFINED) != 0 {
                pieces.bytes.extend_from_slice(text);
            } else if attrs & NORMAL != 0 && escaped {
                unescape_spaces(text, &mut pieces.bytes);
            } else if attrs & NORMAL != 0 {
                decode_byte_text(text, &mut cps, &mut pieces.bytes);
            } else if attrs & BYTE != 0 {
                pieces.bytes.extend(byte_of(text));
            }
            pieces.ends.push(pieces.bytes.len());
        }
        pieces
    }
}

fn read_attrs(gguf: &Gguf, n: usize) -> Result<Vec<Attrs>, Error> {
    let key = "tokenizer.ggml.token_type";
    let Some(types) = typed_array(gguf, key, "i32", Array::i32s)? else {
        return Ok(vec![NORMAL; n]);
    };
    let attrs = types.map(|kind| match kind {
        1 => NORMAL,
        2 => UNKNOWN,
        3 => CONTROL,
        4 => USER_DEFINED,
        5 => UNUSED,
        6 => BYTE,
        _ => 0,
    });
    parallel(gguf, key, n, attrs.collect())
}

fn read_scores(gguf: &Gguf, n: usize) -> Result<Vec<f32>, Error> {
    let key = "tokenizer.ggml.scores";
    #[expect(
        clippy::cast_precision_loss,
        reason = "whole scores beyond 2^24 lose digits in llama.cpp too"
    )]
    let read = |array: &Array<'_>| {
        let floats = array.f32s().map(Iterator::collect::<Vec<f32>>);
        floats.or_else(|| {
            array
                .i32s()
                .map(|values| values.map(|v| v as f32).collect())
        })
    };
    let Some(scores) = typed_array(gguf, key, "f32 or i32", read)? else {
        return Ok(Vec::new());
    };
    let scores = parallel(gguf, key, n, scores)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(at) => Err(Error::NanScore {
            file: gguf.name().to_owned(),
            id: u32::try_from(at).unwrap_or(u32::MAX),
        }),
        None => Ok(scores),
    }
}

/// Parses a text of the form `<0x0A>` as a byte; `None` for any other text.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = text else {
        return None;
    };
    let digit = |c: u8| {
        char::from(c)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// Returns the text of the token for a byte.
pub(super) fn byte_text(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// Decoded bytes of every token.
#[derive(Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// Appends the decoded bytes of the next token.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Returns the decoded bytes of one token.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { *self.ends.get(id - 1)? };
        self.bytes.get(start..end)
    }
}

/// U+2581 in UTF-8.
const ESCAPED_SPACE: [u8; 3] = [0xE2, 0x96, 0x81];

/// Appends `text` with U+2581 for every space.
pub(super) fn escape_spaces(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        if *byte == b' ' {
            out.extend(ESCAPED_SPACE);
        } else {
            out.push(*byte);
        }
    }
}

fn unescape_spaces(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if let Some(after) = rest.strip_prefix(&ESCAPED_SPACE) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
}

/// Appends the bytes of a text in the byte alphabet. A character outside the alphabet cannot be
/// decoded; it is shown as in llama.cpp.
fn decode_byte_text(text: &[u8], cps: &mut Vec<u32>, out: &mut Vec<u8>) {
    decode(text, cps);
    for cp in cps {
        if let Some(byte) = byte_alphabet().byte(*cp) {
            out.push(byte);
            continue;
        }
        let mut utf8 = Vec::with_capacity(4);
        super::unicode::push_utf8(*cp, &mut utf8);
        out.extend_from_slice(b"[UNK_BYTE_0x");
        for byte in utf8 {
            out.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        out.extend_from_slice(text);
        out.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_are_read_strictly() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        for bad in [
            "<0x-1>", "<0x+1>", "<0x1>", "<0x001>", "<0xG0>", "<0X00>", "0x00", "", "<0x 1>",
            "<0x0A> ",
        ] {
            assert_eq!(byte_of(bad.as_bytes()), None, "{bad}");
        }
        assert!((0..=255).all(|byte| byte_of(byte_text(byte).as_bytes()) == Some(byte)));
    }

    #[test]
    fn spaces_are_escaped_and_back() {
        let mut escaped = Vec::new();
        escape_spaces(b" a  b", &mut escaped);
        assert_eq!(escaped, "▁a▁▁b".as_bytes());
        let mut back = Vec::new();
        unescape_spaces(&escaped, &mut back);
        assert_eq!(back, b" a  b");
        back.clear();
        unescape_spaces(b"\xE2\x96", &mut back);
        assert_eq!(back, b"\xE2\x96", "half a U+2581");
    }

    #[test]
    fn byte_text_with_a_foreign_character() {
        let (mut cps, mut out) = (Vec::new(), Vec::new());
        decode_byte_text("Ġa▁".as_bytes(), &mut cps, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), " a[UNK_BYTE_0xe29681Ġa▁]");
    }
}
