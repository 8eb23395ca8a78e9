//! SentencePiece-style encoding: the adjacent pair whose concatenation is the token with the
//! highest score is merged first; the unknown rest becomes byte tokens.

use super::error::Error;
use super::joins::join;
use super::vocab::{Vocab, byte_text};

/// An SPM model.
pub(super) struct Spm {
    /// Token for each byte: `<0x0A>`, or else the byte itself as a text.
    byte_tokens: Vec<Option<u32>>,
    /// Token for a byte without one.
    unknown: Option<u32>,
    /// Length of the longest token.
    longest: usize,
}

impl Spm {
    /// Prepares the vocabulary's byte tokens.
    pub(super) fn new(vocab: &Vocab, unknown: Option<u32>) -> Spm {
        let token = |byte: u8| {
            vocab
                .id(byte_text(byte).as_bytes())
                .or_else(|| vocab.id(&[byte]))
        };
        Spm {
            byte_tokens: (0..=u8::MAX).map(token).collect(),
            unknown,
            longest: vocab
                .ids()
                .map(|id| vocab.texts.text(id).len())
                .max()
                .unwrap_or(0),
        }
    }

    /// Tokenizes text in which spaces are already U+2581.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &[u8],
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let key = |part: &[u8], _| {
            let id = if part.len() <= self.longest {
                vocab.id(part)
            } else {
                None
            };
            id.map(|id| descending(vocab.scores.get(id as usize).copied().unwrap_or(0.0)))
        };
        for symbol in join(text, key, |_, _| {}) {
            let part = text
                .get(symbol.at..symbol.at + symbol.len)
                .unwrap_or_default();
            match vocab.id(part) {
                Some(id) => out.push(id),
                None => self.bytes(vocab, part, out)?,
            }
        }
        Ok(())
    }

    fn bytes(&self, vocab: &Vocab, part: &[u8], out: &mut Vec<u32>) -> Result<(), Error> {
        for byte in part {
            let token = self
                .byte_tokens
                .get(usize::from(*byte))
                .copied()
                .flatten()
                .or(self.unknown);
            out.push(token.ok_or_else(|| Error::NoByteToken {
                file: vocab.file.clone(),
                byte: *byte,
            })?);
        }
        Ok(())
    }
}

/// Returns a key that sorts scores in descending order; the two zeros are equal.
fn descending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    // By their bits, negative numbers sort backwards, positive ones forwards and above them.
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_scores_do() {
        let falling = [
            f32::INFINITY,
            3.5,
            1.0,
            f32::MIN_POSITIVE,
            0.0,
            -1e-40,
            -1.0,
            -31_999.0,
            f32::NEG_INFINITY,
        ];
        assert!(
            falling
                .windows(2)
                .all(|w| descending(w[0]) < descending(w[1]))
        );
        assert_eq!(descending(0.0), descending(-0.0));
    }
}
