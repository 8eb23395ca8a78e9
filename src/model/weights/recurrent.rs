//! Weights of recurrent blocks.

use super::{NormWeights, VecId, WeightId};

/// A recurrent block. `kernel`, `inner`, heads and groups are those of
/// [`RecurrentHparams`](crate::hparams::RecurrentHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recurrence {
    /// A gated delta net.
    DeltaNet(DeltaNet),
    /// One with a decay for each dimension of keys.
    KimiDelta(KimiDelta),
    /// Mamba 1.
    Mamba1(Mamba1),
    /// Mamba 2.
    Mamba2(Mamba2),
    /// PLaMo 2's Mamba.
    Plamo2(Plamo2),
    /// RWKV 7.
    TimeMix(TimeMix),
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

/// Mamba 1: each value has a state of its own, which decays, is written to and is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba1 {
    /// (2 inner, n_embd): values, then their gate.
    pub input: WeightId,
    /// `[kernel][inner]`
    pub conv: VecId,
    /// (inner)
    pub conv_bias: VecId,
    /// (rank + 2 state_size, inner): what time steps are projected from, keys and queries.
    pub mixed: WeightId,
    /// Norms of these three, if there are any.
    pub norms: Option<[VecId; 3]>,
    /// (inner, rank): time steps.
    pub steps: WeightId,
    /// (inner): added to time steps.
    pub dt_bias: VecId,
    /// `[state_size][inner]`: decay rates; negative.
    pub a: VecId,
    /// (inner): skip connection, a factor on values added to the result.
    pub d: VecId,
    /// (n_embd, inner)
    pub out: WeightId,
}

/// PLaMo 2's Mamba: the state of a head, as in Mamba 2, of inputs as in Mamba 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plamo2 {
    /// (2 inner, n_embd): each head's gate, then its values.
    pub input: WeightId,
    /// `[kernel][inner]`
    pub conv: VecId,
    /// (2 state_size + rank, inner): keys, queries, and what time steps are projected from.
    pub mixed: WeightId,
    /// Norms of these three.
    pub norms: [NormWeights; 3],
    /// (heads, rank): time steps.
    pub steps: WeightId,
    /// (heads): added to time steps.
    pub dt_bias: VecId,
    /// (heads): decay rate of the state; negative.
    pub a: VecId,
    /// (heads): skip connection.
    pub d: VecId,
    /// (n_embd, inner)
    pub out: WeightId,
}

/// A low-rank projection that a bias is added to: (rank, n_embd), (n_embd, rank), (n_embd).
pub type BiasedLowRank = ([WeightId; 2], VecId);

/// Time mixing of RWKV 7. Each of its inputs is a row plus a share of its difference to the row
/// before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeMix {
    /// `[2][n_embd]`: 1, then -1: the convolution that yields the difference.
    pub shift: VecId,
    /// (n_embd) each: the shares of receptance, decay, key, value, rate and gate.
    pub shares: [VecId; 6],
    /// (n_embd, n_embd) each: receptance, key and value.
    pub rkv: [WeightId; 3],
    /// Decay.
    pub decay: BiasedLowRank,
    /// Rate at which keys are replaced.
    pub rate: BiasedLowRank,
    /// Share of the first layer's values; none in that layer.
    pub value: Option<BiasedLowRank>,
    /// (rank, n_embd) and (n_embd, rank): gate of the result.
    pub gate: [WeightId; 2],
    /// (n_embd): factors of keys to be removed.
    pub k_k: VecId,
    /// (n_embd): how much of the rate keys follow.
    pub k_a: VecId,
    /// (heads, n_embd): each head's factors of its own values, zeros elsewhere.
    pub r_k: WeightId,
    /// (state_size), all `1 / sqrt(state_size)`, as in [`DeltaNet`].
    pub unit: VecId,
    /// Norm of each head's result.
    pub norm: NormWeights,
    /// (n_embd, n_embd)
    pub out: WeightId,
}

/// Channel mixing of RWKV 7: a feed-forward block that also reads the row before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelMix {
    /// See [`TimeMix::shift`].
    pub shift: VecId,
    /// (n_embd): share of the row's difference to the one before.
    pub share: VecId,
    /// (n_ff, n_embd)
    pub key: WeightId,
    /// (n_embd, n_ff)
    pub value: WeightId,
}
