//! Weights of recurrent blocks.

use super::{VecId, WeightId};

/// A recurrent block. `kernel`, `inner`, heads and groups are those of
/// [`RecurrentHparams`](crate::hparams::RecurrentHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recurrence {
    /// A gated delta net.
    DeltaNet(DeltaNet),
    /// One with a decay for each dimension of keys.
    KimiDelta(KimiDelta),
    /// Mamba 2.
    Mamba2(Mamba2),
    /// A convolution between two gates.
    ShortConv(ShortConv),
}

/// A gated delta net: each head's state is a matrix that decays, and is corrected by the error of
/// its prediction for each key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet {
    /// Projections of queries, keys, values and the gate of the result.
    pub inputs: DeltaInputs,
    /// Projections of the decay and the learning rate.
    pub rates: DeltaRates,
    /// (heads): added to the decay's projection.
    pub dt_bias: VecId,
    /// (heads): factor on the decay after softplus; yields the decay's logarithm.
    pub a: VecId,
    /// (state_size), all `1 / sqrt(state_size)`: turns an RMS norm into an L2 norm for queries and
    /// keys.
    pub unit: VecId,
    /// (state_size): norm of each head's result.
    pub norm: VecId,
    /// (n_embd, inner)
    pub out: WeightId,
}

/// A gated delta net with a decay for each dimension of keys (Kimi Delta Attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KimiDelta {
    /// (inner, n_embd) each: queries, keys and values.
    pub qkv: [WeightId; 3],
    /// `[kernel][inner]`: their convolutions.
    pub convs: [VecId; 3],
    /// (state_size, n_embd) and (inner, state_size): successive projections of the decay.
    pub decay: [WeightId; 2],
    /// (inner): added to the decay's projection.
    pub dt_bias: VecId,
    /// (heads): factor on the decay after softplus; yields the decay's logarithm.
    pub a: VecId,
    /// (heads, n_embd): learning rate.
    pub beta: WeightId,
    /// (state_size, n_embd) and (inner, state_size): successive projections of the result's gate.
    pub gate: [WeightId; 2],
    /// (state_size), all `1 / sqrt(state_size)`, as in [`DeltaNet`].
    pub unit: VecId,
    /// (state_size): norm of each head's result.
    pub norm: VecId,
    /// (n_embd, inner)
    pub out: WeightId,
}

/// Input projections of a [`DeltaNet`]; convolutions are `[kernel][width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeltaInputs {
    /// Queries, keys and values in one matrix (2 groups * state_size + inner, n_embd).
    Apart {
        /// Projection of all three.
        qkv: WeightId,
        /// Convolution of all three.
        conv: VecId,
        /// (inner, n_embd): gate of the result.
        gate: WeightId,
    },
    /// All four in one matrix, with rows grouped by key head.
    ByHeads {
        /// (2 groups * state_size + 2 inner, n_embd)
        all: WeightId,
        /// Convolutions of queries, keys and values.
        convs: [VecId; 3],
    },
}

/// Projections of the rates of a [`DeltaNet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeltaRates {
    /// Two matrices, (heads, n_embd) each.
    Apart {
        /// Decay.
        alpha: WeightId,
        /// Learning rate.
        beta: WeightId,
    },
    /// (2 heads, n_embd): both, with rows grouped by key head, the learning rates first.
    ByHeads(WeightId),
}

/// Mamba 2: values are written to a decaying state, and read from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2 {
    /// (2 inner + 2 groups * state_size + heads, n_embd): gate, values, keys, queries, time steps.
    pub input: WeightId,
    /// `[kernel][inner + 2 groups * state_size]`
    pub conv: VecId,
    /// (inner + 2 groups * state_size)
    pub conv_bias: Option<VecId>,
    /// (heads): added to time steps.
    pub dt_bias: VecId,
    /// (heads): decay rate of the state; negative.
    pub a: VecId,
    /// (heads): skip connection, a factor on values added to the result.
    pub d: VecId,
    /// Norm of each group of the result.
    pub norm: Option<GroupNorm>,
    /// (n_embd, inner)
    pub out: WeightId,
    /// Name of the result.
    pub tap: &'static str,
}

/// A norm over groups of a row, each with its own weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// (group width), all 1.
    pub ones: VecId,
    /// (row width)
    pub weight: VecId,
}

/// `out (c * convolution(b * x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv {
    /// (3 n_embd, n_embd): b, c and x.
    pub input: WeightId,
    /// `[kernel][n_embd]`
    pub conv: VecId,
    /// (n_embd, n_embd)
    pub out: WeightId,
}
