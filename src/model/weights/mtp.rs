//! Weights that MTP layers and assistants have beside those of any layer.

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

/// Projections of an assistant from its target's rows, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssistantProjections {
    /// (n_embd, 2 n_embd_target): of the target's scaled embedding and its hidden state.
    pub input: WeightId,
    /// (n_embd_target, n_embd): yields the hidden state to draft on from.
    pub output: WeightId,
}
