//! Texts that constraints wait for.
//!
//! Any tokens may spell a marker. One that ends it and goes on is taken only if what is behind the
//! marker may follow it.

use std::sync::Arc;

use llguidance::Matcher;

use crate::vocabulary::Vocabulary;

/// A text that a constraint waits for.
pub(crate) struct Marker {
    pub(crate) text: Vec<u8>,
    /// Tokens that may not come where so many bytes of the marker are missing, for they go on with
    /// what may not follow it. The first list holds everywhere.
    banned: Vec<Vec<u32>>,
}

impl Marker {
    /// `follows` says what may stand behind the marker in the token that ends it.
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

    /// The tokens that may not come after a text.
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
    /// Whether it opens one only where the answer begins.
    pub(crate) at_start: bool,
    /// What a call is from there on.
    pub(crate) matcher: Matcher,
}

impl Trigger {
    /// A call is opened by a text, and goes on as the matcher says.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        opener: &str,
        at_start: bool,
        mut matcher: Matcher,
    ) -> Trigger {
        let mut marker = Marker::new(&vocabulary.words, opener, |rest| {
            takes(&mut matcher, &vocabulary.spell(rest))
        });
        // what is no call may be anything, also a token that opens one and goes on otherwise
        marker.banned[0].clear();
        Trigger {
            marker: Arc::new(marker),
            at_start,
            matcher,
        }
    }

    /// A second one, which shares what this one has in store.
    pub(crate) fn dormant(&self) -> Trigger {
        Trigger {
            marker: Arc::clone(&self.marker),
            at_start: self.at_start,
            matcher: self.matcher.clone(),
        }
    }
}

/// Whether a grammar takes all of these tokens.
pub(crate) fn takes(matcher: &mut Matcher, tokens: &[u32]) -> bool {
    matcher
        .validate_tokens(tokens)
        .is_ok_and(|n| n == tokens.len())
}

/// Where some bytes stand in others.
pub(crate) fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    if what.is_empty() {
        return None;
    }
    text.windows(what.len()).position(|window| window == what)
}
