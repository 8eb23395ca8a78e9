//! Kinds of parts that architectures differ in.

use octavo_kernels::KeyHeads;

/// Kinds of classifiers: which row they score, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classifier {
    /// BERT's: the first row; tanh after the hidden product.
    Tanh,
    /// ModernBERT's: the mean of the rows; GELU and a norm after the hidden product.
    Gelu,
    /// Qwen 3's: the last row; the softmax of the values.
    Softmax,
}

/// Place of the query and key norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum QkNorm {
    BeforeRope,
    AfterRope,
}

/// Tap names of the gate of attention's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct GateTaps {
    /// The result before it.
    pub(in super::super) before: &'static str,
    /// The gate.
    pub(in super::super) gate: &'static str,
    /// Its sigmoid.
    pub(in super::super) sigmoid: &'static str,
    /// The result after it.
    pub(in super::super) after: &'static str,
}

/// Kinds of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Recurrent {
    /// Gated delta net, in all layers the file's keys do not mark for attention.
    DeltaNet(KeyHeads),
    /// Gated delta net with a decay for each dimension of keys (Kimi Delta Attention), in layers
    /// without KV heads.
    KimiDelta,
    /// Short convolution between two gates, in layers without KV heads.
    ShortConv,
    /// Mamba 1, in layers without KV heads.
    Mamba1,
    /// PLaMo 2's Mamba: heads as in Mamba 2, and projections as in Mamba 1; in layers without KV
    /// heads.
    Plamo2,
    /// RWKV 7, in every layer.
    Rwkv7,
    /// Mamba 2, in layers without KV heads.
    Mamba2,
    /// Mamba 2 parallel to attention in every layer.
    Mamba2Beside,
}
