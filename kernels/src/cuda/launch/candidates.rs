//! Launches that find the largest values of rows.

use super::{Launch, launch};
use crate::cuda::modules::Module;
use crate::cuda::params::Candidates;

/// Values of a row that a block of [`candidates`] sorts.
const CANDIDATES_PART: usize = 4096;

/// Returns the number of parts of a row of `n` values in [`candidates`].
pub fn candidate_parts(n: usize) -> usize {
    n.div_ceil(CANDIDATES_PART)
}

/// Returns how many values [`candidates`] finds in a row of `n`: as many as one block sorts of all
/// parts, at most 256; 0 if `n` is.
pub fn max_candidates(n: usize) -> usize {
    match candidate_parts(n) {
        0 => 0,
        parts => (CANDIDATES_PART / parts).min(256).min(n),
    }
}

/// Finds the `p.most` largest values of each of `rows` rows, in order, in two launches.
pub fn candidates(p: &Candidates, rows: u32) -> [Launch; 2] {
    let parts = candidate_parts(p.n as usize) as u32;
    let (first, then) = ([parts, rows, 1], [rows, 1, 1]);
    [
        launch(Module::Rows, "candidates_parts", first, 256, p),
        launch(Module::Rows, "candidates_merge", then, 256, p),
    ]
}
