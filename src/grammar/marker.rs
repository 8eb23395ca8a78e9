//! Texts that activate constraints.
//!
//! Any tokens may spell a marker. A token that extends beyond the end of a marker is allowed only
//! if the rest is valid after the marker.

use std::sync::Arc;

use llguidance::Matcher;

use crate::vocabulary::Vocabulary;

/// A text that a constraint waits for.
pub(crate) struct Marker {
    pub(crate) text: Vec<u8>,
    /// Tokens banned where `n` bytes of the marker are missing, because they complete it with an
    /// invalid continuation. The first list, of tokens with the whole marker, applies everywhere.
    banned: Vec<Vec<u32>>,
}

impl Marker {
    /// Creates a marker; `follows` decides whether the rest of a token is valid after the marker.
    pub(crate) fn new(
        words: &[Vec<u8>],
        text: &str,
        mut follows: impl FnMut(&[u8]) -> bool,
    ) -> Marker {
        let text = text.as_bytes().to_vec();
        let mut banned = vec![Vec::new(); text.len().max(1)];
        for (id, word) in (0..).zip(words) {
            let whole = find(word, &text).map(|at| word.get(at + text.len()..));
            let whole = whole.flatten().filter(|rest| !rest.is_empty());
            if whole.is_some_and(|rest| !follows(rest)) {
                banned[0].push(id);
                continue;
            }
            for (missing, banned) in banned.iter_mut().enumerate().skip(1) {
                let end = &text[text.len() - missing..];
                let rest = word.strip_prefix(end).filter(|rest| !rest.is_empty());
                if rest.is_some_and(|rest| !follows(rest)) {
                    banned.push(id);
                }
            }
        }
        Marker { text, banned }
    }

    /// Returns the tokens that are banned after a text.
    pub(crate) fn banned_after(&self, tail: &[u8]) -> impl Iterator<Item = u32> {
        let missing = (1..self.text.len()).filter(move |missing| {
            let begun = &self.text[..self.text.len() - missing];
            !self.banned[*missing].is_empty() && tail.ends_with(begun)
        });
        let lists = missing.map(move |missing| &self.banned[missing]);
        self.banned
            .first()
            .into_iter()
            .chain(lists)
            .flatten()
            .copied()
    }
}

/// A text that opens a call.
pub(crate) struct Trigger {
    pub(crate) marker: Arc<Marker>,
    /// Whether it counts only at the beginning of an answer.
    pub(crate) at_start: bool,
    /// Grammar of the call from there on.
    pub(crate) matcher: Matcher,
}

impl Trigger {
    /// Creates a trigger from the opening text and the grammar of what follows.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        opener: &str,
        at_start: bool,
        mut matcher: Matcher,
    ) -> Trigger {
        let mut marker = Marker::new(&vocabulary.words, opener, |rest| {
            takes(&mut matcher, &vocabulary.spell(rest))
        });
        // text outside calls is free, including tokens that contain an opener but continue
        // differently
        marker.banned[0].clear();
        Trigger {
            marker: Arc::new(marker),
            at_start,
            matcher,
        }
    }

    /// Returns a copy that shares the matcher's caches.
    pub(crate) fn dormant(&self) -> Trigger {
        Trigger {
            marker: Arc::clone(&self.marker),
            at_start: self.at_start,
            matcher: self.matcher.clone(),
        }
    }
}

/// Returns whether a grammar accepts all of these tokens.
pub(crate) fn takes(matcher: &mut Matcher, tokens: &[u32]) -> bool {
    matcher
        .validate_tokens(tokens)
        .is_ok_and(|n| n == tokens.len())
}

/// Returns the position of `what` in a text.
pub(crate) fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    if what.is_empty() {
        return None;
    }
    text.windows(what.len()).position(|window| window == what)
}
