//! A grammar's state while text is generated.

use std::fmt;

use llguidance::Matcher;
use octavo_engine::sample::{Constraint, ConstraintError, TokenSet};

use crate::error::shorten;

/// A grammar's state while text is generated.
pub(crate) struct Restriction(pub(crate) Matcher);

impl fmt::Debug for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restriction")
    }
}

impl Constraint for Restriction {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        Ok(Some(TokenSet::from_words(mask(&mut self.0)?)))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        consume(&mut self.0, id)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Restriction(self.0.deep_clone()))
    }
}

/// Returns the allowed next tokens as a bit mask.
pub(crate) fn mask(matcher: &mut Matcher) -> Result<Vec<u32>, ConstraintError> {
    let mask = matcher.compute_mask_or_eos().map_err(error)?;
    Ok(mask.as_slice().to_vec())
}

/// Accepts a token, unless the text is already complete.
pub(crate) fn consume(matcher: &mut Matcher, id: u32) -> Result<(), ConstraintError> {
    if matcher.is_stopped() {
        return Ok(());
    }
    matcher.consume_token(id).map_err(error)
}

pub(crate) fn error(error: impl fmt::Display) -> ConstraintError {
    ConstraintError(shorten(&error.to_string()))
}
