//! SentencePiece-style encoding: the adjacent pair whose concatenation is the token with the highest score is joined
//! first; what remains unknown becomes byte tokens.

use super::agenda::Agenda;
use super::error::Error;
use super::unicode::announced_len;
use super::vocab::{Vocab, byte_text};

/// An SPM model.
pub(super) struct Spm {
    /// The token for each byte: `<0x0A>`, or else the byte itself as a text.
    byte_tokens: Vec<Option<u32>>,
    /// Used for a byte without a token.
    unknown: Option<u32>,
    /// No concatenation longer than this is a token.
    longest: usize,
}

impl Spm {
    /// Prepares the vocabulary's byte tokens.
    pub(super) fn new(vocab: &Vocab, unknown: Option<u32>) -> Spm {
        let token = |byte: u8| vocab.id(byte_text(byte).as_bytes()).or_else(|| vocab.id(&[byte]));
        Spm {
            byte_tokens: (0..=u8::MAX).map(token).collect(),
            unknown,
            longest: vocab.ids().map(|id| vocab.texts.text(id).len()).max().unwrap_or(0),
        }
    }

    /// Tokenizes text in which spaces are U+2581 already.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) -> Result<(), Error> {
        let mut symbols = characters(text);
        let mut agenda = Agenda::default();
        for right in 1..symbols.len() {
            self.consider(vocab, text, &symbols, (right - 1, right), &mut agenda);
        }
        while let Some((_, (left, len))) = agenda.pop() {
            let left = left as usize;
            let a = symbols[left];
            let Some(right) = a.next else { continue };
            let b = symbols[right];
            // Out of date: one of the two has been joined with another since.
            if a.len == 0 || a.len + b.len != len as usize {
                continue;
            }
            symbols[left] = Symbol { len: a.len + b.len, next: b.next, ..a };
            symbols[right].len = 0;
            if let Some(next) = b.next {
                symbols[next].prev = Some(left);
                self.consider(vocab, text, &symbols, (left, next), &mut agenda);
            }
            if let Some(prev) = a.prev {
                self.consider(vocab, text, &symbols, (prev, left), &mut agenda);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let part = text.get(symbol.at..symbol.at + symbol.len).unwrap_or_default();
            match vocab.id(part) {
                Some(id) => out.push(id),
                None => self.bytes(vocab, part, out)?,
            }
        }
        Ok(())
    }

    fn bytes(&self, vocab: &Vocab, part: &[u8], out: &mut Vec<u32>) -> Result<(), Error> {
        for byte in part {
            let token = self.byte_tokens.get(usize::from(*byte)).copied().flatten().or(self.unknown);
            out.push(token.ok_or_else(|| Error::NoByteToken { file: vocab.file.clone(), byte: *byte })?);
        }
        Ok(())
    }

    /// Queues a pair if its concatenation is a token.
    fn consider(
        &self,
        vocab: &Vocab,
        text: &[u8],
        symbols: &[Symbol],
        (left, right): (usize, usize),
        agenda: &mut Agenda,
    ) {
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return;
        }
        let at = symbols[left].at;
        if let Some(id) = text.get(at..at + len).and_then(|part| vocab.id(part)) {
            let score = vocab.scores.get(id as usize).copied().unwrap_or(0.0);
            agenda.push(descending(score), (narrow(left), narrow(len)));
        }
    }
}

/// Splits by the lengths that first bytes announce; invalid bytes are symbols too.
fn characters(text: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text.get(at) {
        let len = announced_len(*first).min(text.len() - at);
        let index = symbols.len();
        let next = (at + len < text.len()).then_some(index + 1);
        symbols.push(Symbol { at, len, prev: index.checked_sub(1), next });
        at += len;
    }
    symbols
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    at: usize,
    /// Bytes; 0 = joined into the one before.
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// A key that orders as the scores do, the highest first; the two zeros are one.
fn descending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    // Negative numbers order backwards by their bits, positive ones forwards and above them.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Texts are shorter than 2^32 bytes, escaped spaces included.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
fn narrow(n: usize) -> u32 {
    n as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_scores_do() {
        let falling = [f32::INFINITY, 3.5, 1.0, f32::MIN_POSITIVE, 0.0, -1e-40, -1.0, -31_999.0, f32::NEG_INFINITY];
        assert!(falling.windows(2).all(|w| descending(w[0]) < descending(w[1])));
        assert_eq!(descending(0.0), descending(-0.0));
    }
}
