//! Per-layer inputs: an additional embedding of each token for every layer.

use super::{NormWeights, WeightId};

/// A layer's use of its per-layer input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayer {
    /// (n_embd_per_layer, n_embd): gate.
    pub gate: WeightId,
    /// (n_embd, n_embd_per_layer)
    pub projection: WeightId,
    /// Norm of the projection.
    pub norm: NormWeights,
}

/// Per-layer inputs: an additional embedding of each token for every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// (n_vocab, n_layer * n_embd_per_layer)
    pub table: WeightId,
    /// (n_layer * n_embd_per_layer, n_embd)
    pub projection: WeightId,
    /// Norm of each layer's part of the projection.
    pub norm: NormWeights,
}
