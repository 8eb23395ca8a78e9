//! Constraints on the next token, such as a grammar.

use std::fmt;

/// A set of token ids below the size of a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// Builds a set from its bits: bit `i % 32` of word `i / 32` is token `i`.
    pub fn from_words(words: Vec<u32>) -> TokenSet {
        TokenSet(words)
    }

    /// Builds the set of these tokens.
    pub fn of(ids: impl IntoIterator<Item = u32>) -> TokenSet {
        let mut words = Vec::new();
        for id in ids {
            let word = id as usize / 32;
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << (id % 32);
        }
        TokenSet(words)
    }

    /// Adds a token.
    pub fn insert(&mut self, id: u32) {
        let word = id as usize / 32;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (id % 32);
    }

    /// Returns whether a token is in the set.
    pub fn contains(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / 32).copied().unwrap_or(0);
        word >> (id % 32) & 1 == 1
    }
}

/// The tokens to choose from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Among<'a> {
    /// Allowed tokens; `None` allows all.
    pub allowed: Option<&'a TokenSet>,
    /// Tokens that are excluded even so.
    pub banned: &'a [u32],
}

impl Among<'_> {
    /// Returns whether every token may be chosen.
    pub fn is_all(&self) -> bool {
        self.allowed.is_none() && self.banned.is_empty()
    }

    /// Returns whether a token may be chosen.
    pub fn contains(&self, id: u32) -> bool {
        self.allowed.is_none_or(|set| set.contains(id)) && !self.banned.contains(&id)
    }
}

/// A constraint that cannot say what may come next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// Restricts which tokens may be chosen, step by step.
pub trait Constraint: Send + fmt::Debug {
    /// Returns the tokens that may come next, including those that end the text where it may end;
    /// `None` for all.
    ///
    /// # Errors
    /// If it cannot say.
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError>;

    /// Advances by the chosen token.
    ///
    /// # Errors
    /// If the token may not come here.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// Returns whether any token may come next, so that [`Constraint::allowed`] need not be called.
    fn allows_all(&self) -> bool {
        false
    }

    /// Returns whether a token that ends the text may be chosen although the text may not end: it
    /// closes an open section, such as a thought.
    fn closes_at_end(&self) -> bool {
        false
    }

    /// Closes the open section after a token that ends the text; returns the token to take instead.
    fn close(&mut self) -> Option<u32> {
        None
    }

    /// Returns a copy that has accepted the same tokens.
    fn fork(&self) -> Box<dyn Constraint>;
}
