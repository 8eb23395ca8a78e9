//! Weights of rotary position embeddings.

use super::VecId;

/// Divisors of the rotary angles, one for each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RopeDivisors {
    /// (n_rot / 2): for every context length.
    pub all: Option<VecId>,
    /// (n_rot / 2): for contexts up to the original length.
    pub short: Option<VecId>,
    /// (n_rot / 2): for longer ones.
    pub long: Option<VecId>,
}
