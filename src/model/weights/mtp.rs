//! Weights that MTP layers have beside those of any layer.

use super::{NormWeights, WeightId};

/// Input of an MTP layer: `projection [norm(embedding); norm(hidden state)]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtpInput {
    /// Norm of the token's embedding.
    pub embedding_norm: NormWeights,
    /// Norm of the hidden state before the token.
    pub hidden_norm: NormWeights,
    /// (n_embd, 2 n_embd)
    pub projection: WeightId,
}
