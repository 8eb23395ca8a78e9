//! Weights bound once to typed fields: names, shapes and element types are checked here and never
//! looked up again.
//!
//! Matrices stay in the file (a [`WeightRef`] locates them); norms, biases and `rope_freqs` are
//! small and are read.

mod bind;
mod classifier;
mod mtp;
mod per_layer;
mod recurrent;
mod rope;
mod tensors;

use std::sync::Arc;

pub use bind::TensorBinder;
pub(crate) use bind::{Binder, EmbeddingsAndHead, bind, blk};
pub use classifier::Classifier;
pub use mtp::{AssistantProjections, MtpInput};
pub use per_layer::{PerLayer, PerLayerInputs};
pub use recurrent::{
    BiasedLowRank, ChannelMix, DeltaInputs, DeltaNet, DeltaRates, GroupNorm, KimiDelta, Mamba1,
    Mamba2, Plamo2, Recurrence, ShortConv, TimeMix,
};
pub use rope::RopeDivisors;
pub use tensors::{Pieces, Tensors, VecId, Vector, WeightId, WeightRef};

/// A norm's weights, and llama.cpp's name for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormWeights {
    /// `(n)`, for the values that are normed together
    pub weight: VecId,
    /// (n)
    pub bias: Option<VecId>,
    /// Name of the result, if it has one.
    pub tap: Option<&'static str>,
    /// Whether the name carries the layer's number.
    pub numbered: bool,
    /// (group width), all 1, where the values of a row are normed in groups, each with weights of
    /// its own.
    pub ones: Option<VecId>,
}

impl NormWeights {
    /// Creates weights without a bias.
    pub fn plain(weight: VecId, tap: &'static str) -> NormWeights {
        NormWeights {
            weight,
            bias: None,
            tap: Some(tap),
            numbered: true,
            ones: None,
        }
    }
}

/// A feed-forward block; without a gate, `down(act(up(x)))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForward {
    /// (n_ff, n_embd)
    pub gate: Option<WeightId>,
    /// (n_ff)
    pub gate_bias: Option<VecId>,
    /// (n_ff, n_embd)
    pub up: WeightId,
    /// (n_ff)
    pub up_bias: Option<VecId>,
    /// Norm before the last projection.
    pub sub_norm: Option<NormWeights>,
    /// (n_embd, n_ff)
    pub down: WeightId,
    /// (n_embd)
    pub down_bias: Option<VecId>,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a few hundred bytes a layer")]
pub enum Ffn {
    /// One dense block for all tokens.
    Dense(FeedForward),
    /// A mixture of experts.
    Experts(Experts),
    /// Both, in parallel.
    Both(DenseAndExperts),
    /// RWKV's, which also reads the row before.
    ChannelMix(ChannelMix),
    /// None: the layer ends with attention or its recurrence.
    Absent,
}

impl Ffn {
    /// Returns the dense block, if there is one.
    pub fn dense(&self) -> Option<&FeedForward> {
        match self {
            Ffn::Dense(dense) | Ffn::Both(DenseAndExperts { dense, .. }) => Some(dense),
            Ffn::Experts(_) | Ffn::ChannelMix(_) | Ffn::Absent => None,
        }
    }

    /// Returns the experts, if there are any.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Ffn::Experts(experts) | Ffn::Both(DenseAndExperts { experts, .. }) => Some(experts),
            Ffn::Dense(_) | Ffn::ChannelMix(_) | Ffn::Absent => None,
        }
    }
}

/// A dense feed-forward block and experts in parallel, each with norms of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseAndExperts {
    /// Dense block.
    pub dense: FeedForward,
    /// Norm of its result.
    pub dense_post_norm: NormWeights,
    /// Experts.
    pub experts: Experts,
    /// Norm of the router's input.
    pub router_norm: VecId,
    /// Norm of the experts' input.
    pub experts_norm: NormWeights,
    /// Norm of their result.
    pub experts_post_norm: NormWeights,
}

/// A mixture of experts: each token uses a few of many feed-forward blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// (n_expert, n_embd): yields each expert's score of a token.
    pub router: WeightId,
    /// (n_expert)
    pub router_bias: Option<VecId>,
    /// (n_expert): added to scores when experts are chosen, not when they are weighted.
    pub selection_bias: Option<VecId>,
    /// (latent, n_embd) and (n_embd, latent): projections before and after the experts, which then
    /// read and yield `latent` values instead of `n_embd`.
    pub latent: Option<[WeightId; 2]>,
    /// Gate and up projections.
    pub input: ExpertInputs,
    /// (n_embd, n_ff) each
    pub down: ExpertBank,
    /// (used), all 1: the weights multiply the experts' inputs, and their results are summed by
    /// these.
    pub ones: Option<VecId>,
    /// Name of the experts' weighted sum.
    pub tap: &'static str,
    /// Shared expert.
    pub shared: Option<FeedForward>,
    /// Name of its result.
    pub shared_tap: &'static str,
    /// Name of the sum of both.
    pub merged_tap: &'static str,
    /// (1, n_embd): yields the score of its gate, before a sigmoid.
    pub shared_gate: Option<WeightId>,
}

/// Gate and up projections of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInputs {
    /// Two banks (n_ff, n_embd).
    Apart {
        /// Gate projections.
        gate: ExpertBank,
        /// Up projections.
        up: ExpertBank,
    },
    /// One bank (2 n_ff, n_embd): an expert's gate rows, then its up rows.
    Together(ExpertBank),
    /// One bank (n_ff, n_embd): up projections, without gates.
    Plain(ExpertBank),
}

/// Matrices of all experts, stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBank {
    /// (n_expert * rows, cols)
    pub weight: WeightId,
    /// Factors of the products, which an NVFP4 file stores beside the matrix.
    pub scale: Option<ExpertScale>,
    /// (n_expert * rows)
    pub bias: Option<VecId>,
}

/// Factors of the products with an [`ExpertBank`], before a bias is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScale {
    /// (n_expert): applied to the weights of the final sum.
    OfExperts(VecId),
    /// (n_expert * rows): each expert's factor, repeated for each row of its matrix.
    OfRows(VecId),
}

/// Attention; weights an architecture does not have are `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// (n_head * head_dim, n_embd); twice as many rows if `gated`
    pub wq: WeightId,
    /// Each head's query rows are followed by those of a gate of its result.
    pub gated: bool,
    /// (n_head_kv * head_dim, n_embd); none where the layer reads another layer's keys and values
    pub wk: Option<WeightId>,
    /// (n_head_kv * value_dim, n_embd); without it, values are the product with `wk`
    pub wv: Option<WeightId>,
    /// (n_head * head_dim)
    pub bq: Option<VecId>,
    /// (n_head_kv * head_dim)
    pub bk: Option<VecId>,
    /// (n_head_kv * value_dim)
    pub bv: Option<VecId>,
    /// Norm of queries: as wide as a head, or as all of them.
    pub q_norm: Option<NormWeights>,
    /// Norm of keys, likewise.
    pub k_norm: Option<NormWeights>,
    /// Norm of values.
    pub v_norm: Option<NormWeights>,
    /// (n_head): attention sinks, added to softmax's denominators.
    pub sinks: Option<VecId>,
    /// (n_head * value_dim, n_embd), or (n_head, n_embd): yields a gate of each value of the
    /// result, or of each head's.
    pub gate: Option<WeightId>,
    /// Zeros that pad the narrower of key and value heads.
    pub padding: Option<VecId>,
    /// Norm before the last projection.
    pub sub_norm: Option<NormWeights>,
    /// (n_embd, n_head * value_dim)
    pub wo: WeightId,
    /// (n_embd)
    pub bo: Option<VecId>,
}

impl Attention {
    /// Creates attention with the two matrices that are always there.
    pub(crate) fn new(wq: WeightId, wo: WeightId) -> Attention {
        Attention {
            wq,
            gated: false,
            wk: None,
            wv: None,
            bq: None,
            bk: None,
            bv: None,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            sinks: None,
            gate: None,
            padding: None,
            sub_norm: None,
            wo,
            bo: None,
        }
    }
}

/// Multi-head latent attention (MLA); widths are those of
/// [`LatentHparams`](crate::hparams::LatentHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query projection.
    pub query: LatentQuery,
    /// (rank + rotated, n_embd): yields the latent row, and the rotated part of keys.
    pub low_rank: WeightId,
    /// Norm of the latent row.
    pub norm: NormWeights,
    /// Projections of keys and values.
    pub heads: LatentHeads,
    /// Choice of the keys that are seen, where the layer makes one.
    pub indexer: Option<Indexer>,
    /// (n_embd, n_head * value)
    pub wo: WeightId,
}

/// Indexer of a layer; widths are those of
/// [`IndexerHparams`](crate::hparams::IndexerHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Indexer {
    /// (n_head * key_dim, query_rank)
    pub queries: WeightId,
    /// (key_dim, n_embd)
    pub keys: WeightId,
    /// Norm of keys, with a bias.
    pub norm: NormWeights,
    /// (n_head, n_embd): weights of the heads.
    pub weights: WeightId,
}

/// Query projection of a [`LatentAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentQuery {
    /// (n_head * query, n_embd)
    Whole(WeightId),
    /// A low-rank projection.
    LowRank {
        /// (query_rank, n_embd)
        down: WeightId,
        /// Norm of the low-rank row.
        norm: NormWeights,
        /// (n_head * query, query_rank)
        up: WeightId,
    },
}

/// Key and value projections of a [`LatentAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentHeads {
    /// Absorbed: heads read the latent row itself; one matrix per head projects its query, another
    /// its result.
    Absorbed {
        /// (rank, plain) for each head
        keys: WeightId,
        /// (value, rank) for each head
        values: WeightId,
        /// (n_head): head indices.
        all: VecId,
    },
    /// (n_head * (plain + value), rank): expands the latent row into each head's key and value.
    Materialised(WeightId),
}

/// One layer's weights; those an architecture does not have are `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Norm of the layer's input.
    pub attn_norm: Option<NormWeights>,
    /// Attention.
    pub attention: Option<Attention>,
    /// Multi-head latent attention.
    pub latent: Option<LatentAttention>,
    /// Recurrent block, alone or parallel to attention.
    pub recurrence: Option<Recurrence>,
    /// Norm of their result, before it is added; or of the sum ([`crate::Arch`] decides).
    pub attn_post_norm: Option<NormWeights>,
    /// Norm of the feed-forward block's input.
    pub ffn_norm: Option<NormWeights>,
    /// Feed-forward block, experts or both.
    pub ffn: Ffn,
    /// Norm of the feed-forward block's result, likewise.
    pub ffn_post_norm: Option<NormWeights>,
    /// Use of the layer's part of [`PerLayerInputs`].
    pub per_layer: Option<PerLayer>,
    /// Factor on the layer's output.
    pub output_scale: Option<f32>,
}

impl Layer {
    /// Creates a layer with this feed-forward block, and nothing else.
    pub(crate) fn new(ffn: Ffn) -> Layer {
        Layer {
            attn_norm: None,
            attention: None,
            latent: None,
            recurrence: None,
            attn_post_norm: None,
            ffn_norm: None,
            ffn,
            ffn_post_norm: None,
            per_layer: None,
            output_scale: None,
        }
    }

    /// Replaces the layer's attention, where it has one.
    pub(crate) fn attending<E>(
        self,
        with: impl FnOnce(Attention) -> Result<Attention, E>,
    ) -> Result<Layer, E> {
        Ok(Layer {
            attention: self.attention.map(with).transpose()?,
            ..self
        })
    }
}

/// All weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Every matrix and vector.
    pub tensors: Tensors,
    /// (n_vocab, n_embd)
    pub token_embd: WeightId,
    /// (n_ctx_train, n_embd): added to token embeddings.
    pub positions: Option<WeightId>,
    /// (n_embd): likewise, for every token.
    pub token_type: Option<VecId>,
    /// Norm of the sum of these.
    pub embd_norm: Option<NormWeights>,
    /// Norm of the last layer's output.
    pub output_norm: Option<NormWeights>,
    /// Successive products that follow, in models without logits.
    pub dense: Vec<WeightId>,
    /// (n_vocab, n_embd); `token_embd` itself when tied; none where a model gives no logits
    pub output: Option<WeightId>,
    /// (n_vocab)
    pub output_bias: Option<VecId>,
    /// Divisors of the rotary angles.
    pub rope_divisors: RopeDivisors,
    /// Per-layer inputs of tokens.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The layers in order.
    pub layers: Vec<Layer>,
    /// Input of an MTP layer, where the model is one.
    pub mtp: Option<MtpInput>,
    /// Projections of an assistant, where the model is one.
    pub assistant: Option<AssistantProjections>,
    /// Scores of a text, if the model is a reranker.
    pub classifier: Option<Arc<Classifier>>,
}

impl Weights {
    /// Returns a matrix.
    pub fn matrix(&self, id: WeightId) -> &WeightRef {
        self.tensors.matrix(id)
    }

    /// Returns a vector's values.
    pub fn vector(&self, id: VecId) -> &[f32] {
        self.tensors.vector(id)
    }

    /// Returns whether the output matrix is the token embedding.
    pub fn is_tied(&self) -> bool {
        self.output == Some(self.token_embd)
    }
}
