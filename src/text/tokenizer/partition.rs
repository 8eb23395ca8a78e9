//! Finds special tokens in text: every occurrence of the longest texts first, then shorter ones in
//! the rest.

use std::collections::HashMap;
use std::ops::Range;

use super::vocab::{CONTROL, LSTRIP, RSTRIP, UNKNOWN, USER_DEFINED, Vocab};

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// A special token.
    Token(u32),
    /// Bytes to tokenize.
    Text(Range<usize>),
}

/// Search index of special tokens.
#[derive(Debug, Default)]
pub(super) struct Partitioner {
    /// Tokens, longest first, equal lengths by id.
    tokens: Vec<Special>,
    /// Indices in `tokens`, ordered by text.
    by_text: Vec<usize>,
    /// For each first byte, the range of `by_text` that starts with it.
    by_first: Vec<Range<usize>>,
}

#[derive(Debug)]
struct Special {
    id: u32,
    text: Vec<u8>,
    attrs: u16,
}

/// Occurrences of one special token in the text.
enum Found {
    Nowhere,
    At(Vec<usize>),
    /// Too many: a list would be larger than the text.
    Everywhere,
}

impl Partitioner {
    /// Indexes all special tokens (`parse_special`), or only those that are parsed in any text.
    pub(super) fn new(vocab: &Vocab, parse_special: bool) -> Partitioner {
        let is_parsed = |attrs: u16| {
            attrs & (UNKNOWN | CONTROL | USER_DEFINED) != 0
                && (parse_special || attrs & (UNKNOWN | CONTROL) == 0)
        };
        let special = |id: u32| Special {
            id,
            text: vocab.texts.text(id).to_vec(),
            attrs: vocab.attrs(id),
        };
        let ids = vocab
            .ids()
            .filter(|id| is_parsed(vocab.attrs(*id)) && !vocab.texts.text(*id).is_empty());
        // the last of equal texts counts, as everywhere
        let last: HashMap<&[u8], u32> = ids.clone().map(|id| (vocab.texts.text(id), id)).collect();
        let ids = ids.filter(|id| last.get(vocab.texts.text(*id)) == Some(id));
        let mut tokens: Vec<Special> = ids.map(special).collect();
        tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        let mut by_text: Vec<usize> = (0..tokens.len()).collect();
        by_text.sort_by(|a, b| tokens[*a].text.cmp(&tokens[*b].text));
        let first = |rank: &usize| tokens[*rank].text[0];
        let by_first = (0..=u8::MAX).map(|byte| {
            by_text.partition_point(|rank| first(rank) < byte)
                ..by_text.partition_point(|rank| first(rank) <= byte)
        });
        let by_first = by_first.collect();
        Partitioner {
            tokens,
            by_text,
            by_first,
        }
    }

    /// Splits `text` into special tokens and the text between them.
    pub(super) fn split(&self, text: &[u8]) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        let mut owner = vec![
            FREE;
            if self.tokens.is_empty() {
                0
            } else {
                text.len()
            }
        ];
        if !owner.is_empty() {
            for (token, found) in self.tokens.iter().zip(self.find(text)) {
                match found {
                    Found::Nowhere => {}
                    Found::At(places) => places
                        .into_iter()
                        .for_each(|at| take(token, at, text, &mut owner)),
                    Found::Everywhere => {
                        let places =
                            (0..text.len()).filter(|at| text[*at..].starts_with(&token.text));
                        places.for_each(|at| take(token, at, text, &mut owner));
                    }
                }
            }
        }
        let mut at = 0;
        while at < text.len() {
            let start = at;
            match owner.get(at).copied().unwrap_or(FREE) {
                FREE => {
                    at += owner
                        .get(at..)
                        .unwrap_or_default()
                        .iter()
                        .take_while(|o| **o == FREE)
                        .count();
                    at = if owner.is_empty() { text.len() } else { at };
                    fragments.push(Fragment::Text(start..at));
                }
                STRIPPED | INSIDE => at += 1,
                id => {
                    fragments.push(Fragment::Token(id));
                    at += 1;
                }
            }
        }
        fragments
    }

    /// Finds the occurrences of each token, overlaps included.
    fn find(&self, text: &[u8]) -> Vec<Found> {
        let mut counts = vec![0_usize; self.tokens.len()];
        self.each_match(text, |rank, _| counts[rank] += 1);
        // Only few tokens can occur this often, so searching for each of them again is still linear
        // and needs no lists.
        let often = text.len() / 64 + 64;
        let mut found: Vec<Found> = counts
            .into_iter()
            .map(|count| match count {
                0 => Found::Nowhere,
                n if n > often => Found::Everywhere,
                n => Found::At(Vec::with_capacity(n)),
            })
            .collect();
        self.each_match(text, |rank, at| {
            if let Found::At(places) = &mut found[rank] {
                places.push(at);
            }
        });
        found
    }

    /// Calls `each(rank, place)` for every occurrence, in ascending order of place.
    fn each_match(&self, text: &[u8], mut each: impl FnMut(usize, usize)) {
        for (at, first) in text.iter().enumerate() {
            let mut range = self.by_first[usize::from(*first)].clone();
            let mut depth = 1;
            // `range` = tokens that match the text for `depth` bytes, ordered by text: the shortest
            // comes first.
            while let Some(rank) = self.by_text.get(range.clone()).and_then(<[usize]>::first) {
                if self.tokens[*rank].text.len() == depth {
                    each(*rank, at);
                    range.start += 1;
                    continue;
                }
                let Some(byte) = text.get(at + depth) else {
                    break;
                };
                let agreeing = &self.by_text[range.clone()];
                let from = agreeing.partition_point(|rank| self.tokens[*rank].text[depth] < *byte);
                let to = agreeing.partition_point(|rank| self.tokens[*rank].text[depth] <= *byte);
                range = range.start + from..range.start + to;
                depth += 1;
            }
        }
    }
}

/// Mark of a byte in no special token. Marks are above every id.
const FREE: u32 = u32::MAX;
/// Mark of white space stripped by a special token.
const STRIPPED: u32 = u32::MAX - 1;
/// Mark of the second and later bytes of a special token.
const INSIDE: u32 = u32::MAX - 2;

/// Claims `text[at..]` for a token if it is still free. Earlier claims are at least as long as this
/// token, so an overlapping one covers one of its ends: checking both ends is enough.
fn take(token: &Special, at: usize, text: &[u8], owner: &mut [u32]) {
    let end = at + token.text.len();
    if owner[at] != FREE || owner[end - 1] != FREE {
        return;
    }
    owner[at..end].fill(INSIDE);
    owner[at] = token.id;
    let is_space = |byte: u8| matches!(byte, 9..=13 | b' ');
    if token.attrs & LSTRIP != 0 {
        for i in (0..at).rev().take_while(|i| is_space(text[*i])) {
            if owner[i] != FREE {
                break;
            }
            owner[i] = STRIPPED;
        }
    }
    if token.attrs & RSTRIP != 0 {
        for i in (end..text.len()).take_while(|i| is_space(text[*i])) {
            if owner[i] != FREE {
                break;
            }
            owner[i] = STRIPPED;
        }
    }
}
