//! What a grammar, say, leaves to choose from.

use std::fmt;

/// A set of token ids below the size of a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// A set from its bits: bit `i % 32` of word `i / 32` is token `i`.
    pub fn from_words(words: Vec<u32>) -> TokenSet {
        TokenSet(words)
    }

    /// The set of these tokens.
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

    /// Whether a token is in it.
    pub fn contains(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / 32).copied().unwrap_or(0);
        word >> (id % 32) & 1 == 1
    }
}

/// What may be chosen from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Among<'a> {
    /// Only these; all if none is given.
    pub allowed: Option<&'a TokenSet>,
    /// But not these.
    pub banned: &'a [u32],
}

impl Among<'_> {
    /// Whether it is every token.
    pub fn is_all(&self) -> bool {
        self.allowed.is_none() && self.banned.is_empty()
    }

    /// Whether a token may be chosen.
    pub fn contains(&self, id: u32) -> bool {
        self.allowed.is_none_or(|set| set.contains(id)) && !self.banned.contains(&id)
    }
}

/// Why a constraint cannot say what may come next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// Restricts what may be chosen, token by token.
pub trait Constraint: Send + fmt::Debug {
    /// The tokens that may come next, those that end the text among them where it may end; `None`
    /// for all.
    ///
    /// # Errors
    /// If it cannot tell.
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError>;

    /// A token was chosen.
    ///
    /// # Errors
    /// If it may not come here.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// Whether any token may come next, so that nobody needs to ask which.
    fn allows_all(&self) -> bool {
        false
    }

    /// Whether a token that ends the text may be chosen although the text may not end: it closes
    /// what is on its way, a thought, say.
    fn closes_at_end(&self) -> bool {
        false
    }

    /// A token that ends the text was chosen where that closes something; answers the token to take
    /// instead.
    fn close(&mut self) -> Option<u32> {
        None
    }

    /// A second one that has accepted the same.
    fn fork(&self) -> Box<dyn Constraint>;
}
