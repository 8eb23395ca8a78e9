//! Merges neighbours until no pair may be merged: SentencePiece merges by the score of the result,
//! BPE merges by the rank of the pair.

use super::agenda::Agenda;
use super::unicode::announced_len;

/// A part of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub(super) at: usize,
    /// Length in bytes; 0 = merged into the one before.
    pub(super) len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Splits `text` into characters, by the lengths that first bytes announce (invalid bytes are
/// symbols too), and merges the pair with the lowest key, the leftmost on ties, until no pair has
/// one. `key` receives the merged text of two neighbours and the length of the left one, and
/// `joined` receives the same for every merge.
pub(super) fn join(
    text: &[u8],
    key: impl Fn(&[u8], usize) -> Option<u32>,
    mut joined: impl FnMut(&[u8], usize),
) -> Vec<Symbol> {
    let mut symbols = characters(text);
    let mut agenda = Agenda::default();
    let consider = |symbols: &[Symbol], left: usize, right: usize, agenda: &mut Agenda| {
        let (a, len) = (symbols[left], symbols[left].len + symbols[right].len);
        if let Some(key) = text.get(a.at..a.at + len).and_then(|part| key(part, a.len)) {
            agenda.push(key, (narrow(left), narrow(len)));
        }
    };
    for right in 1..symbols.len() {
        consider(&symbols, right - 1, right, &mut agenda);
    }
    while let Some((_, (left, len))) = agenda.pop() {
        let left = left as usize;
        let a = symbols[left];
        let Some(right) = a.next else { continue };
        let b = symbols[right];
        // Outdated: one of the two has been merged with another since.
        if a.len == 0 || a.len + b.len != len as usize {
            continue;
        }
        joined(
            text.get(a.at..a.at + a.len + b.len).unwrap_or_default(),
            a.len,
        );
        symbols[left] = Symbol {
            len: a.len + b.len,
            next: b.next,
            ..a
        };
        symbols[right].len = 0;
        if let Some(next) = b.next {
            symbols[next].prev = Some(left);
            consider(&symbols, left, next, &mut agenda);
        }
        if let Some(prev) = a.prev {
            consider(&symbols, prev, left, &mut agenda);
        }
    }
    symbols.retain(|symbol| symbol.len > 0);
    symbols
}

/// Returns the last merge of a text that becomes one symbol, as the length of the left part. `None`
/// if it does not become one symbol, or is a single character.
///
/// While two symbols are neighbours, nothing was merged across their ends, so each was merged as it
/// would be alone: wherever a token is made, in any text, it is made from the same two parts as
/// here.
pub fn last_join(text: &[u8], key: impl Fn(&[u8], usize) -> Option<u32>) -> Option<usize> {
    let mut last = None;
    let symbols = join(text, key, |part, left| {
        last = (part.len() == text.len()).then_some(left)
    });
    last.filter(|_| symbols.len() == 1)
}

fn characters(text: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text.get(at) {
        let len = announced_len(*first).min(text.len() - at);
        let index = symbols.len();
        let next = (at + len < text.len()).then_some(index + 1);
        symbols.push(Symbol {
            at,
            len,
            prev: index.checked_sub(1),
            next,
        });
        at += len;
    }
    symbols
}

/// Converts a length; texts are shorter than 2^32 bytes, escaped spaces included.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
fn narrow(n: usize) -> u32 {
    n as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_join_is_the_one_that_makes_the_whole() {
        let ranks = [("b", "c"), ("a", "b"), ("a", "bc"), ("bc", "d")];
        let key = |part: &[u8], left: usize| {
            let two = part.split_at(left);
            ranks
                .iter()
                .position(|r| (r.0.as_bytes(), r.1.as_bytes()) == two)
                .map(|rank| rank as u32)
        };
        assert_eq!(last_join(b"abc", key), Some(1));
        assert_eq!(last_join(b"bcd", key), Some(2));
        assert_eq!(last_join(b"abcd", key), None, "a and bc are joined first");
        assert_eq!(last_join(b"a", key), None);
        assert_eq!(last_join(b"", key), None);
    }
}
