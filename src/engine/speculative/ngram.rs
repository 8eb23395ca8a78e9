//! N-gram lookup: where the last tokens of a text occurred before, and what followed there.

use std::collections::HashMap;

use crate::image_registry::is_image_token;

/// Whether to draft tokens from the text itself (n-gram lookup).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// Where it has been worth it.
    #[default]
    Auto,
    /// Wherever there is a match.
    On,
    /// Never.
    Off,
}

/// Earlier occurrences of the last two tokens to check, from the latest on.
const MAX_PLACES: usize = 32;
/// Maximum number of tokens to compare at such a place.
const MAX_LENGTH: usize = 32;

/// Tokens of a text, with an index of each pair of them.
#[derive(Debug, Default)]
pub(super) struct NgramIndex {
    tokens: Vec<u32>,
    /// Where each pair of tokens ended last.
    last: HashMap<[u32; 2], usize>,
    /// For each token, where the pair that ends with it ended before.
    before: Vec<Option<usize>>,
}

/// An earlier occurrence of the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NgramMatch {
    /// Index of the token that followed there.
    at: usize,
    /// Number of tokens before it that are as the last ones.
    pub(super) length: usize,
}

impl NgramIndex {
    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a token.
    pub(super) fn push(&mut self, token: u32) {
        let at = self.tokens.len();
        let pair = self.tokens.last().map(|&last| [last, token]);
        self.tokens.push(token);
        self.before
            .push(pair.and_then(|pair| self.last.insert(pair, at)));
    }

    /// Returns the longest earlier occurrence of the last tokens, the latest of equal ones; `None`
    /// if not even two of them occurred before.
    pub(super) fn find(&self) -> Option<NgramMatch> {
        let end = self.tokens.len().checked_sub(1)?;
        let mut best: Option<NgramMatch> = None;
        let mut place = self.before[end];
        for _ in 0..MAX_PLACES {
            let Some(at) = place else { break };
            let length = self.alike(at, end);
            if best.is_none_or(|best| length > best.length) {
                best = Some(NgramMatch { at: at + 1, length });
            }
            if length == MAX_LENGTH {
                break;
            }
            place = self.before[at];
        }
        best.filter(|found| !is_image_token(self.tokens[found.at]))
    }

    /// Returns the token that followed there.
    pub(super) fn next(&self, found: NgramMatch) -> u32 {
        self.tokens[found.at]
    }

    /// Copies `n` tokens that followed there, fewer if an image did. Where that is up to the end of
    /// the text, it goes on as if the copies were part of it.
    pub(super) fn copy(&self, found: NgramMatch, n: usize) -> Vec<u32> {
        let mut copied: Vec<u32> = Vec::with_capacity(n);
        for at in found.at..found.at + n {
            let token = match self.tokens.get(at) {
                Some(&token) => token,
                None => copied[at - self.tokens.len()],
            };
            if is_image_token(token) {
                break;
            }
            copied.push(token);
        }
        copied
    }

    /// Returns how many tokens up to these two places are equal.
    fn alike(&self, at: usize, end: usize) -> usize {
        let (one, other) = (self.tokens[..=at].iter(), self.tokens[..=end].iter());
        let both = one.rev().zip(other.rev()).take(MAX_LENGTH);
        both.take_while(|(a, b)| a == b).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(tokens: &[u32]) -> NgramIndex {
        let mut index = NgramIndex::default();
        tokens.iter().for_each(|&token| index.push(token));
        index
    }

    #[test]
    fn the_longest_match_wins_and_of_equal_ones_the_latest() {
        // "2 3" occurs three times; "1 2 3" once
        let text = index(&[1, 2, 3, 4, 9, 2, 3, 5, 2, 3, 6, 1, 2, 3]);
        let found = text.find().expect("it stood there");
        assert_eq!((found.length, text.next(found)), (3, 4));
        assert_eq!(text.copy(found, 4), [4, 9, 2, 3]);
        let text = index(&[7, 2, 3, 4, 8, 2, 3, 5, 9, 2, 3]);
        let found = text.find().expect("it stood there");
        assert_eq!((found.length, text.next(found)), (2, 5));
    }

    #[test]
    fn what_repeats_goes_on_repeating() {
        let text = index(&[5, 6, 7, 5, 6]);
        let found = text.find().expect("it stood there");
        assert_eq!(text.copy(found, 8), [7, 5, 6, 7, 5, 6, 7, 5]);
        let same = index(&[4, 4, 4]);
        assert_eq!(
            same.copy(same.find().expect("it stood there"), 3),
            [4, 4, 4]
        );
    }

    #[test]
    fn nothing_is_found_where_nothing_stood() {
        for text in [&[][..], &[1], &[1, 2], &[1, 2, 1], &[3, 1, 2, 2, 1]] {
            assert_eq!(index(text).find(), None, "{text:?}");
        }
    }

    #[test]
    fn images_are_not_drafted() {
        let image = crate::image_registry::FIRST_IMAGE_TOKEN;
        let text = index(&[1, 2, image, 1, 2]);
        assert_eq!(text.find(), None);
        let text = index(&[1, 2, 3, image, 1, 2]);
        let found = text.find().expect("it stood there");
        assert_eq!(text.copy(found, 5), [3]);
    }
}
