//! RWKV's tokenizer: again and again the longest token that the rest of the text begins with, byte
//! by byte. The file has the tokens as Python writes bytes: `\n`, `\\`, `\xe6`.

use super::error::{Error, printable};
use super::prefix::Prefixes;
use super::vocab::{NORMAL, Pieces, Vocab};

/// Data of RWKV's algorithm.
pub(super) struct Rwkv {
    tokens: Prefixes,
    unknown: Option<u32>,
}

impl Rwkv {
    /// Prepares a vocabulary, and returns the bytes of every token; `unknown` replaces a byte that
    /// no token begins with. The texts of control and unused tokens are text like any other.
    pub(super) fn read(vocab: &Vocab, unknown: Option<u32>) -> Result<(Rwkv, Pieces), Error> {
        let mut pieces = Pieces::default();
        for id in vocab.ids() {
            let text = vocab.texts.text(id);
            let bytes = unescape(text).ok_or_else(|| Error::Escape {
                file: vocab.file.clone(),
                id,
                text: printable(text),
            })?;
            pieces.push(&bytes);
        }
        let piece = |id| pieces.get(id).unwrap_or_default();
        let is_text = |id: &u32| vocab.attrs(*id) & NORMAL != 0 && !piece(*id).is_empty();
        let tokens = Prefixes::new(vocab.ids().filter(is_text).collect(), piece);
        Ok((Rwkv { tokens, unknown }, pieces))
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        pieces: &Pieces,
        text: &[u8],
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let piece = |id| pieces.get(id).unwrap_or_default();
        let mut rest = text;
        while let [byte, after @ ..] = rest {
            if let Some((id, len)) = self.tokens.longest(piece, rest) {
                out.push(id);
                rest = rest.get(len..).unwrap_or_default();
                continue;
            }
            out.push(self.unknown.ok_or_else(|| Error::NoByteToken {
                file: vocab.file.clone(),
                byte: *byte,
            })?);
            rest = after;
        }
        Ok(())
    }
}

/// Returns the bytes of a token's text; `None` if an escape has no end.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                let mut digit = || char::from(*rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            other => *other,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_python() {
        let bytes = |text: &str| unescape(text.as_bytes());
        assert_eq!(bytes(r"\xe6\xb1\x89").as_deref(), Some("汉".as_bytes()));
        assert_eq!(bytes(r"\t\n\r\\\'a").as_deref(), Some(&b"\t\n\r\\'a"[..]));
        assert_eq!(bytes("é").as_deref(), Some("é".as_bytes()));
        for bad in [r"\", r"a\\\", r"\x", r"\x4", r"\xg0", r"\x-1"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }
}
