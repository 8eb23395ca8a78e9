//! Weights bound once to typed fields: names, shapes and element types are checked here and never
//! looked up again.
//!
//! Matrices stay in the file (a [`WeightRef`] says where); norms, biases and `rope_freqs` are small
//! and are read.

mod bind;
mod tensors;

pub use bind::TensorBinder;
pub(crate) use bind::{Binder, Ends, bind, blk};
pub use tensors::{Pieces, Tensors, VecId, Vector, WeightId, WeightRef};

/// A norm's weights, and what llama.cpp calls its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormWeights {
    /// (n) of the values that are normed together
    pub weight: VecId,
    /// (n)
    pub bias: Option<VecId>,
    /// The result's name, if it has one.
    pub tap: Option<&'static str>,
    /// Whether the name has the layer's number.
    pub numbered: bool,
}

impl NormWeights {
    /// Without a bias.
    pub(crate) fn plain(weight: VecId, tap: &'static str) -> NormWeights {
        NormWeights {
            weight,
            bias: None,
            tap: Some(tap),
            numbered: true,
        }
    }
}

/// A gated feed-forward block, or one of a single product if there is no gate.
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
    /// (n_embd, n_ff)
    pub down: WeightId,
    /// (n_embd)
    pub down_bias: Option<VecId>,
}

/// What follows attention in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// One feed-forward block for all tokens.
    Dense(FeedForward),
    /// One of many for each token.
    Experts(Experts),
    /// Both.
    Both(DenseAndExperts),
    /// The layer ends before it.
    Absent,
}

impl Ffn {
    /// The block for all tokens, if there is one.
    pub fn dense(&self) -> Option<&FeedForward> {
        match self {
            Ffn::Dense(dense) | Ffn::Both(DenseAndExperts { dense, .. }) => Some(dense),
            Ffn::Experts(_) | Ffn::Absent => None,
        }
    }

    /// The experts, if there are some.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Ffn::Experts(experts) | Ffn::Both(DenseAndExperts { experts, .. }) => Some(experts),
            Ffn::Dense(_) | Ffn::Absent => None,
        }
    }
}

/// A feed-forward block for all tokens and experts beside each other, each with norms of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseAndExperts {
    /// For all tokens.
    pub dense: FeedForward,
    /// Of its result.
    pub dense_post_norm: NormWeights,
    /// The experts.
    pub experts: Experts,
    /// Of what the router reads.
    pub router_norm: VecId,
    /// Of what the experts read.
    pub experts_norm: NormWeights,
    /// Of their result.
    pub experts_post_norm: NormWeights,
}

/// Feed-forward blocks of which every token goes to a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// (n_expert, n_embd): scores a token for each.
    pub router: WeightId,
    /// (n_expert)
    pub router_bias: Option<VecId>,
    /// (n_expert): added where experts are chosen, and not where they are weighed.
    pub selection_bias: Option<VecId>,
    /// What is gated, and by what.
    pub input: ExpertInputs,
    /// (n_embd, n_ff) each
    pub down: ExpertBank,
    /// A block that sees every token.
    pub shared: Option<FeedForward>,
    /// What its result is called.
    pub shared_tap: &'static str,
    /// (1, n_embd): how much of it a token gets, before a sigmoid.
    pub shared_gate: Option<WeightId>,
}

/// Where the gates of experts and what they gate come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInputs {
    /// Two banks (n_ff, n_embd).
    Apart {
        /// The gates.
        gate: ExpertBank,
        /// What they gate.
        up: ExpertBank,
    },
    /// One (2 n_ff, n_embd): an expert's gate, then what it gates.
    Together(ExpertBank),
}

/// Matrices of all experts, one below the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBank {
    /// (n_expert * rows, cols)
    pub weight: WeightId,
    /// Factors of the products, which an NVFP4 file has beside the matrix.
    pub scale: Option<ExpertScale>,
    /// (n_expert * rows)
    pub bias: Option<VecId>,
}

/// Factors of the products with an [`ExpertBank`], before a bias is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScale {
    /// (n_expert): multiply the weights with which the experts' results are added up.
    OfExperts(VecId),
    /// (n_expert * rows): each expert's factor, once for each row of its matrix.
    OfRows(VecId),
}

/// What looks back at earlier tokens; what an architecture does not have is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// (n_head * head_dim, n_embd); twice as many rows if `gated`
    pub wq: WeightId,
    /// Behind each head's query there is a gate of its result.
    pub gated: bool,
    /// (n_head_kv * head_dim, n_embd); none where another layer's keys and values are read
    pub wk: Option<WeightId>,
    /// (n_head_kv * head_dim, n_embd); without it, values are the keys' product
    pub wv: Option<WeightId>,
    /// (n_head * head_dim)
    pub bq: Option<VecId>,
    /// (n_head_kv * head_dim)
    pub bk: Option<VecId>,
    /// (n_head_kv * head_dim)
    pub bv: Option<VecId>,
    /// Of queries: as wide as a head, or as all of them.
    pub q_norm: Option<NormWeights>,
    /// Of keys, likewise.
    pub k_norm: Option<NormWeights>,
    /// Of values.
    pub v_norm: Option<NormWeights>,
    /// (n_head): what softmax's denominators gain beside the scores.
    pub sinks: Option<VecId>,
    /// (n_embd, n_head * head_dim)
    pub wo: WeightId,
    /// (n_embd)
    pub bo: Option<VecId>,
}

impl Attention {
    /// With what every one has, and nothing else.
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
            wo,
            bo: None,
        }
    }
}

/// Attention whose heads read one narrow row for all of them; widths are those of
/// [`LatentHparams`](crate::hparams::LatentHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Queries.
    pub query: LatentQuery,
    /// (rank + rotated, n_embd): the narrow row, and the part of keys that turns.
    pub narrow: WeightId,
    /// Of the narrow row.
    pub norm: NormWeights,
    /// How heads read it.
    pub heads: LatentHeads,
    /// (n_embd, n_head * value)
    pub wo: WeightId,
}

/// Where the queries of a [`LatentAttention`] come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentQuery {
    /// (n_head * query, n_embd)
    Whole(WeightId),
    /// A narrow row of their own.
    Narrow {
        /// (query_rank, n_embd)
        down: WeightId,
        /// Of the row.
        norm: NormWeights,
        /// (n_head * query, query_rank)
        up: WeightId,
    },
}

/// How heads read the narrow row of a [`LatentAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentHeads {
    /// As it is, by a matrix for each head's query and one for what it reads.
    Absorbed {
        /// (rank, plain) each
        keys: WeightId,
        /// (value, rank) each
        values: WeightId,
        /// (n_head): their numbers.
        all: VecId,
    },
    /// (n_head * (plain + value), rank): keys and values are made of it for each head.
    Materialised(WeightId),
}

/// What goes from token to token. `kernel`, `inner`, heads and groups are those of
/// [`RecurrentHparams`](crate::hparams::RecurrentHparams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recurrence {
    /// A gated delta net.
    DeltaNet(DeltaNet),
    /// Mamba 2.
    Mamba2(Mamba2),
    /// A convolution between two gates.
    ShortConv(ShortConv),
}

/// A gated delta net: each head keeps a matrix that fades, and corrects what it says of each key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet {
    /// Queries, keys and values, and what gates the result.
    pub inputs: DeltaInputs,
    /// What says how much fades, and how far the state is corrected.
    pub rates: DeltaRates,
    /// (heads): added to the former.
    pub dt_bias: VecId,
    /// (heads): multiplies it after a softplus; the logarithm of what is left.
    pub a: VecId,
    /// (state_size), all `1 / sqrt(state_size)`: gives queries and keys length 1.
    pub unit: VecId,
    /// (state_size): norms each head's result.
    pub norm: VecId,
    /// (n_embd, inner)
    pub out: WeightId,
}

/// Where queries, keys and values of a [`DeltaNet`] come from; convolutions are `[kernel][width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeltaInputs {
    /// Queries, keys and values in one matrix (2 groups * state_size + inner, n_embd).
    Apart {
        /// All three.
        qkv: WeightId,
        /// Of all three.
        conv: VecId,
        /// (inner, n_embd): what gates the result.
        gate: WeightId,
    },
    /// All four in one matrix, whose rows go by heads of keys.
    ByHeads {
        /// (2 groups * state_size + 2 inner, n_embd)
        all: WeightId,
        /// Of queries, keys and values.
        convs: [VecId; 3],
    },
}

/// Where the rates of a [`DeltaNet`] come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeltaRates {
    /// A matrix (heads, n_embd) for each.
    Apart {
        /// How much fades.
        alpha: WeightId,
        /// How far the state is corrected.
        beta: WeightId,
    },
    /// (2 heads, n_embd): both, whose rows go by heads of keys, the corrections first.
    ByHeads(WeightId),
}

/// Mamba 2: values are written to a state that fades, and read from it.
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
    /// (heads): how fast states fade; negative.
    pub a: VecId,
    /// (heads): how much of the values goes past the state.
    pub d: VecId,
    /// Of each group of the result.
    pub norm: Option<GroupNorm>,
    /// (n_embd, inner)
    pub out: WeightId,
    /// What the result is called.
    pub tap: &'static str,
}

/// A norm of groups of a row, each with weights of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// (width of a group), all 1.
    pub ones: VecId,
    /// (width of the row)
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

/// One layer's weights; what an architecture does not have is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Of the layer's input.
    pub attn_norm: Option<NormWeights>,
    /// What looks back.
    pub attention: Option<Attention>,
    /// What looks back by one narrow row.
    pub latent: Option<LatentAttention>,
    /// What goes from token to token, alone or beside attention.
    pub recurrence: Option<Recurrence>,
    /// Of their result, before it is added; or of the sum ([`crate::Arch`] decides).
    pub attn_post_norm: Option<NormWeights>,
    /// Of the feed-forward block's input.
    pub ffn_norm: Option<NormWeights>,
    /// The feed-forward block, or many.
    pub ffn: Ffn,
    /// Of the feed-forward block's result, likewise.
    pub ffn_post_norm: Option<NormWeights>,
    /// What the layer makes of its part of [`PerLayerInputs`].
    pub per_layer: Option<PerLayer>,
    /// What the layer's output is multiplied with.
    pub output_scale: Option<f32>,
}

/// What a layer makes of what it gets of each token beside its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayer {
    /// (n_embd_per_layer, n_embd): gates it.
    pub gate: WeightId,
    /// (n_embd, n_embd_per_layer)
    pub projection: WeightId,
    /// Of the projection.
    pub norm: NormWeights,
}

/// What every layer gets of each token beside its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// (n_vocab, n_layer * n_embd_per_layer)
    pub table: WeightId,
    /// (n_layer * n_embd_per_layer, n_embd)
    pub projection: WeightId,
    /// Of each layer's part of the projection.
    pub norm: NormWeights,
}

impl Layer {
    /// With this feed-forward block, and nothing else.
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

    /// With something else of its attention, where it has one.
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

/// Divisors of the rotary angles, one for each pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RopeDivisors {
    /// (n_rot / 2): of every context.
    pub all: Option<VecId>,
    /// (n_rot / 2): of contexts up to the one before extension.
    pub short: Option<VecId>,
    /// (n_rot / 2): of longer ones.
    pub long: Option<VecId>,
}

/// All weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Every matrix and vector.
    pub tensors: Tensors,
    /// (n_vocab, n_embd)
    pub token_embd: WeightId,
    /// (n_ctx_train, n_embd): added to embeddings of tokens.
    pub positions: Option<WeightId>,
    /// (n_embd): likewise, of every token.
    pub token_type: Option<VecId>,
    /// Of the sum of these.
    pub embd_norm: Option<NormWeights>,
    /// Of what the last layer hands on.
    pub output_norm: Option<NormWeights>,
    /// Products that follow, one after the other, where a model gives no logits.
    pub dense: Vec<WeightId>,
    /// (n_vocab, n_embd); `token_embd` itself when tied; none where a model gives no logits
    pub output: Option<WeightId>,
    /// (n_vocab)
    pub output_bias: Option<VecId>,
    /// Divisors of the rotary angles.
    pub rope_divisors: RopeDivisors,
    /// What every layer gets of each token beside its input.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The layers in order.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// A matrix.
    pub fn matrix(&self, id: WeightId) -> &WeightRef {
        self.tensors.matrix(id)
    }

    /// A vector's values.
    pub fn vector(&self, id: VecId) -> &[f32] {
        self.tensors.vector(id)
    }

    /// Whether the output matrix is the token embedding.
    pub fn is_tied(&self) -> bool {
        self.output == Some(self.token_embd)
    }
}
