//! SentencePiece-style encoding: the adjacent pair whose concatenation is the token with the highest score is joined
//! first; what remains unknown becomes byte tokens.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

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
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.consider(vocab, text, &symbols, (right - 1, right), &mut queue);
        }
        while let Some(Pair { left: Reverse(left), right, len, .. }) = queue.pop() {
            let (a, b) = (symbols[left], symbols[right]);
            // Out of date: one of the two has been joined with another since.
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            symbols[left] = Symbol { len, next: b.next, ..a };
            symbols[right].len = 0;
            if let Some(next) = b.next {
                symbols[next].prev = Some(left);
                self.consider(vocab, text, &symbols, (left, next), &mut queue);
            }
            if let Some(prev) = a.prev {
                self.consider(vocab, text, &symbols, (prev, left), &mut queue);
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
        queue: &mut BinaryHeap<Pair>,
    ) {
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return;
        }
        let at = symbols[left].at;
        if let Some(id) = text.get(at..at + len).and_then(|part| vocab.id(part)) {
            let score = vocab.scores.get(id as usize).copied().unwrap_or(0.0);
            queue.push(Pair { score, left: Reverse(left), right, len });
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

/// A possible join; the greatest is the next to be done.
struct Pair {
    score: f32,
    left: Reverse<usize>,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        // Scores are no NaN, so only the two zeros need care: equal, then the leftmost first.
        self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal).then_with(|| self.left.cmp(&other.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}
