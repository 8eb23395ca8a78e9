//! Rows of a tensor that are computed from something else.

use crate::Error;

/// Computes the rows of a tensor from something else.
pub trait RowSource: Send + Sync {
    /// Writes rows from index `first` on to `out`: as many whole rows of the tensor as fit.
    fn fill(&self, first: u64, out: &mut [u8]);

    /// Releases the memory that [`RowSource::fill`] has read, for now.
    fn release(&self) {}

    /// Checks that the source has not changed.
    ///
    /// # Errors
    /// [`Error::Changed`] if it has.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}
