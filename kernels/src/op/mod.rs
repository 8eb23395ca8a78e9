//! The operations of a forward pass, defined once for a model's graph, for the programs that
//! executors run, and for code that inspects either. Operand types are parameters: a graph names
//! values and weights, a program has buffers and numbers.
//!
//! The result is not part of an operation: it is named in a graph's node or an [`Instruction`].
//!
//! [`Instruction`]: crate::Instruction

mod cut;
mod scores;
mod shape;
mod translate;

pub use cut::Cut;
pub use scores::{Alibi, Scores};
pub use shape::{ShapeError, Shapes};
pub use translate::{Translate, Translated};

use octavo_simd::function::{Activation, Function};
use octavo_simd::generic::recurrence::STATE_LANES;
use octavo_simd::generic::routing::TopGroups;

/// One operation on values `V`, with matrices `M`, vectors `C` and tables of embeddings `T`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are the formulas' letters
pub enum Op<V, M, C, T> {
    /// Rows of the table, one per token id of the step. A row with an embedding input is that
    /// input, or, with a placeholder, the table's row of that token.
    Embed { table: T, placeholder: Option<u32> },
    /// The same row for every token.
    Constant { values: C },
    /// Rows of the table, one per position of the step's tokens.
    EmbedPositions { table: T },
    /// `x`, plus, in rows with an embedding input, its values from `from` on, as many as `x` is
    /// wide.
    AddEmbeddings { x: V, from: usize },
    /// Rows that come with the step, where another program has computed the operations before this
    /// one.
    Input,
    /// `x * weight / sqrt(mean(x^2) + eps)` over as many neighbours as `weight` has values: the
    /// whole row, or each head.
    RmsNorm { x: V, weight: C, eps: f32 },
    /// `(x - mean) * weight / sqrt(mean((x - mean)^2) + eps)` over as many neighbours as `weight`
    /// has values.
    LayerNorm { x: V, weight: C, eps: f32 },
    /// `x W^T`.
    MatMul { x: V, w: M },
    /// `x + bias` in every row.
    AddBias { x: V, bias: C },
    /// Rotates the pairs of each head of width `head_dim` by the token's position and the angles of
    /// table `rope`; values after the last pair pass unchanged.
    Rope { x: V, head_dim: usize, rope: usize },
    /// Every `order` neighbours times the Hadamard matrix of that order, divided by the square root
    /// of `order`: a rotation, and its own inverse. A value that is much larger than its neighbours
    /// becomes a little of each of them.
    Hadamard { x: V, order: usize },
    /// Appends keys and values to the cache. No result.
    KvWrite { k: V, v: V, cache: CacheLayer },
    /// Attention over the cached keys and values: `softmax(scores) V` per head; query head `h`
    /// reads key head `h / (n_head / n_head_kv)`. The softmax's denominator gains `e^sink` of the
    /// query head, where there are sinks: one more score, of a value that is zero. With `seen`, a
    /// row attends to those positions only, a result of [`Op::SelectKeys`].
    Attention {
        q: V,
        seen: Option<V>,
        cache: CacheLayer,
        scores: Scores,
        sinks: Option<C>,
    },
    /// Positions of the `n` cached keys that score highest, of those up to a row's own, in
    /// ascending order; the last one is repeated where there are fewer than `n`. A key's score is
    /// the sum over query heads of `weights * max(q k, 0)`, with one key for all heads and one
    /// weight for each (DeepSeek V3.2's indexer). Of equal scores at the edge, those are chosen
    /// that llama.cpp chooses on a CPU.
    SelectKeys {
        q: V,
        weights: V,
        cache: CacheLayer,
        n: usize,
    },
    /// `act(gate) * up`.
    Gate { gate: V, up: V, act: Activation },
    /// `f(x)`, value by value.
    Unary { x: V, f: Function },
    /// Every row times `1 + rate * ln(1 + floor((position + offset) / step))`, which keeps
    /// attention scores distinct in long contexts.
    ScaleByPosition {
        x: V,
        rate: f32,
        step: usize,
        offset: usize,
    },
    /// `a + b`.
    Add { a: V, b: V },
    /// `a * b`, value by value.
    Mul { a: V, b: V },
    /// `x * by` in every row; where `x` is wider, each value of `by` is for equally many
    /// neighbours.
    MulVector { x: V, by: C },
    /// The rows with outputs.
    SelectRows { x: V },
    /// Joins this many neighbouring rows to one row; rows after the last whole group are dropped.
    Merge { x: V, rows: usize },
    /// Out of every `each` values of a row, the `width` values from `from` on, side by side.
    Slice {
        x: V,
        each: usize,
        from: usize,
        width: usize,
    },
    /// Pieces of `a` and of `b` alternately, `each` values of either: `a` is whole pieces, and `b`
    /// has as many, or one that follows each of them.
    Concat { a: V, b: V, each: [usize; 2] },
    /// Causal convolution: every value with those of the same column in the rows of the sequence's
    /// tokens before it, weighted and summed. `weight` has a row for each token that counts, the
    /// oldest first and the value's own last; its rows are as wide as those of `x`. The state holds
    /// the rows before the next token.
    CausalConv { x: V, weight: C, state: usize },
    /// Linear attention, which keeps a state in place of a cache: the matrix `M` of each head, from
    /// keys to values, decays, is written to and is read, token by token: `M = decay M`, `M = M +
    /// rate (v - a) k^T`, and the result is `scale M q`. See [`Recurrence`] for `a` and the heads.
    /// The state holds the matrices.
    LinearAttention {
        q: V,
        k: V,
        v: V,
        decay: V,
        rate: V,
        how: Recurrence,
        state: usize,
    },
    /// Selective scan (Mamba 1): each value of `x` has a vector `h` of as many numbers as `b` has,
    /// which goes from token to token: `h = e^(step a) h + step x b`, and the result is `h c`, with
    /// `step` the value's own in `steps`. `a` has a row, as wide as `x`, for each value of `b`. The
    /// state holds the vectors.
    SelectiveScan {
        x: V,
        steps: V,
        b: V,
        c: V,
        a: C,
        state: usize,
    },
    /// Time mixing of RWKV 7: the matrix `M` of each head, from keys to values, goes from token to
    /// token: `M = M diag(decay) - (M removed) replaced^T + v k^T`, and the result is `M r`. All
    /// but `v` have `key_dim` values for each head. The state holds the matrices.
    Wkv7 {
        r: V,
        decay: V,
        k: V,
        v: V,
        removed: V,
        replaced: V,
        key_dim: usize,
        state: usize,
    },
    /// Softmax of every row.
    Softmax { x: V },
    /// Indices of the `n` largest values of every row, the largest first and of equal ones the
    /// lower index; as floats. NaN counts as the largest, so that it stays visible. With groups,
    /// only values of the best groups count.
    TopK {
        x: V,
        n: usize,
        groups: Option<TopGroups>,
    },
    /// The values of `x` at the indices `ids`.
    Gather { x: V, ids: V },
    /// Every row divided by its sum, or by `least` if that is more.
    Normalize { x: V, least: f32 },
    /// Every row of `x` times the values of the row in `by`, each for equally many neighbours.
    ScaleRows { x: V, by: V },
    /// Products with the experts that `ids` names: `w` holds `experts` matrices one below the
    /// other. `x` is one row for all, or one for each of them, side by side like the results.
    ExpertMatMul { x: V, w: M, ids: V, experts: usize },
    /// Adds to each part of `x` the bias of its expert; `bias` has one below the other.
    ExpertBias { x: V, bias: C, ids: V },
    /// Sum of the parts of `x`, each times its weight, in order.
    ExpertSum { x: V, weights: V },
    /// The whole rows of which each rank has a part, this one `x`.
    AllGather { x: V, cut: Cut },
    /// `A x` of the low-rank adapters that the row's sequence uses, side by side, `width` values in
    /// all; places of other adapters are left as they are. `site` numbers the adapted matrix. With
    /// `ids`, of each chosen expert, with inputs as in [`Op::ExpertMatMul`]; without `x`, the rows
    /// of `A` of the step's tokens.
    LoraDown {
        x: Option<V>,
        ids: Option<V>,
        site: usize,
        width: usize,
    },
    /// `y`, plus `B h` of each adapter that the row's sequence uses, times its scale, in order of
    /// the adapters; `h` is the result of [`Op::LoraDown`] for the same `site` and `ids`. Rows of
    /// sequences without adapters are copied.
    LoraUp {
        y: V,
        h: V,
        ids: Option<V>,
        site: usize,
    },
}

/// Variants of [`Op::LinearAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recurrence {
    /// Values of a query or key.
    pub key_dim: usize,
    /// Mapping of value heads to query and key heads.
    pub heads: KeyHeads,
    /// The delta rule: `a` is the value that the decayed matrix already holds for the key, so that
    /// the new value replaces it. Otherwise `a` is zero.
    pub delta: bool,
    /// Each head has a decay for each dimension of its key, instead of one.
    pub decay_by_key: bool,
    /// Multiplies the result.
    pub scale: f32,
}

/// Mapping of value heads to fewer query and key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyHeads {
    /// Neighbours share one: head `h` of `n` has key `h / (n / keys)`.
    Grouped,
    /// Keys alternate: head `h` has key `h % keys`.
    Tiled,
}

impl KeyHeads {
    /// The key of head `h` of `heads`, out of `keys` keys.
    pub fn key_of(self, h: usize, heads: usize, keys: usize) -> usize {
        match self {
            KeyHeads::Grouped => h / (heads / keys),
            KeyHeads::Tiled => h % keys,
        }
    }
}

/// Floats of the state of [`Op::LinearAttention`]: `heads` matrices from keys to values of these
/// lengths.
pub fn matrix_state(heads: usize, key_dim: usize, value_dim: usize) -> Option<usize> {
    let values = value_dim.checked_next_multiple_of(STATE_LANES)?;
    heads.checked_mul(values)?.checked_mul(key_dim)
}

/// A layer of the cache. Layers are grouped: those of a group have one shape, and a sequence has
/// one block table for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayer {
    /// Index of the group.
    pub group: usize,
    /// Index of the layer in its group.
    pub layer: usize,
}

/// Rows that a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// One per token of the step.
    All,
    /// One per token with outputs.
    Outputs,
    /// One for every so many neighbouring tokens.
    Merged(usize),
}

impl RowSet {
    /// Number of rows, for `tokens` tokens, `n_outputs` of them with outputs.
    pub fn count(self, tokens: usize, n_outputs: usize) -> usize {
        match self {
            RowSet::All => tokens,
            RowSet::Outputs => n_outputs,
            RowSet::Merged(n) => tokens / n,
        }
    }
}

/// A value's shape: (rows, width) f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueShape {
    /// Numbers per row; 0 for the result of [`Op::KvWrite`], which has no storage.
    pub width: usize,
    /// Rows that it has.
    pub rows: RowSet,
}

/// Rows and columns of a matrix, or of a table of embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs, or tokens.
    pub rows: usize,
    /// Inputs, or the width of an embedding.
    pub cols: usize,
}

/// A group of a cache's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub layers: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Values of a token's keys, and of its values, over all heads.
    pub width: usize,
}

impl<V: Copy, M, C, T> Op<V, M, C, T> {
    /// The values read, in order.
    pub fn inputs(&self) -> impl Iterator<Item = V> + use<V, M, C, T> {
        let some = |n: [Option<V>; 2]| [n[0], n[1], None, None, None, None];
        let one = |x| some([Some(x), None]);
        let two = |a, b| some([Some(a), Some(b)]);
        let inputs = match *self {
            Op::Embed { .. } | Op::EmbedPositions { .. } | Op::Constant { .. } | Op::Input => {
                [None; 6]
            }
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::MatMul { x, .. }
            | Op::AddBias { x, .. }
            | Op::AddEmbeddings { x, .. }
            | Op::Rope { x, .. }
            | Op::Hadamard { x, .. }
            | Op::Unary { x, .. }
            | Op::ScaleByPosition { x, .. }
            | Op::MulVector { x, .. }
            | Op::SelectRows { x }
            | Op::Merge { x, .. }
            | Op::Slice { x, .. }
            | Op::CausalConv { x, .. }
            | Op::Softmax { x }
            | Op::TopK { x, .. }
            | Op::AllGather { x, .. }
            | Op::Normalize { x, .. } => one(x),
            Op::Gather { x, ids }
            | Op::ExpertMatMul { x, ids, .. }
            | Op::ExpertBias { x, ids, .. } => two(x, ids),
            Op::ScaleRows { x, by } => two(x, by),
            Op::ExpertSum { x, weights } => two(x, weights),
            Op::Attention { q, seen, .. } => some([Some(q), seen]),
            Op::SelectKeys { q, weights, .. } => two(q, weights),
            Op::KvWrite { k, v, .. } => two(k, v),
            Op::Gate { gate, up, .. } => two(gate, up),
            Op::Add { a, b } | Op::Mul { a, b } | Op::Concat { a, b, .. } => two(a, b),
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                ..
            } => [Some(q), Some(k), Some(v), Some(decay), Some(rate), None],
            Op::LoraDown { x, ids, .. } => [x, ids, None, None, None, None],
            Op::LoraUp { y, h, ids, .. } => [Some(y), Some(h), ids, None, None, None],
            Op::SelectiveScan { x, steps, b, c, .. } => {
                [Some(x), Some(steps), Some(b), Some(c), None, None]
            }
            Op::Wkv7 {
                r,
                decay,
                k,
                v,
                removed,
                replaced,
                ..
            } => [r, decay, k, v, removed, replaced].map(Some),
        };
        inputs.into_iter().flatten()
    }

    /// The part of the sequences' states that goes from token to token, if there is one.
    pub fn state(&self) -> Option<usize> {
        match *self {
            Op::CausalConv { state, .. }
            | Op::LinearAttention { state, .. }
            | Op::SelectiveScan { state, .. }
            | Op::Wkv7 { state, .. } => Some(state),
            _ => None,
        }
    }

    /// Whether it lets rows see later ones.
    pub fn sees_later(&self) -> bool {
        matches!(self, Op::Attention { scores, .. } if !scores.causal)
    }

    /// The vector read, if there is one.
    pub fn vector(&self) -> Option<&C> {
        match self {
            Op::RmsNorm { weight: vector, .. }
            | Op::LayerNorm { weight: vector, .. }
            | Op::AddBias { bias: vector, .. }
            | Op::ExpertBias { bias: vector, .. }
            | Op::MulVector { by: vector, .. }
            | Op::Constant { values: vector }
            | Op::CausalConv { weight: vector, .. }
            | Op::SelectiveScan { a: vector, .. } => Some(vector),
            Op::Attention { sinks, .. } => sinks.as_ref(),
            Op::Embed { .. }
            | Op::EmbedPositions { .. }
            | Op::Input
            | Op::MatMul { .. }
            | Op::AddEmbeddings { .. }
            | Op::Rope { .. }
            | Op::Hadamard { .. }
            | Op::Unary { .. }
            | Op::ScaleByPosition { .. }
            | Op::SelectRows { .. }
            | Op::Merge { .. }
            | Op::Slice { .. }
            | Op::Softmax { .. }
            | Op::TopK { .. }
            | Op::Normalize { .. }
            | Op::Gather { .. }
            | Op::ExpertMatMul { .. }
            | Op::ScaleRows { .. }
            | Op::ExpertSum { .. }
            | Op::AllGather { .. }
            | Op::LoraDown { .. }
            | Op::LoraUp { .. }
            | Op::KvWrite { .. }
            | Op::SelectKeys { .. }
            | Op::Gate { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::Concat { .. }
            | Op::LinearAttention { .. }
            | Op::Wkv7 { .. } => None,
        }
    }

    /// The matrix read, if there is one.
    pub fn matrix(&self) -> Option<&M> {
        match self {
            Op::MatMul { w, .. } | Op::ExpertMatMul { w, .. } => Some(w),
            _ => None,
        }
    }

    /// Whether each value of the result depends only on values at the same place, so that it may
    /// overwrite them.
    pub(crate) fn is_by_element(&self) -> bool {
        matches!(
            self,
            Op::AddBias { .. }
                | Op::AddEmbeddings { .. }
                | Op::Gate { .. }
                | Op::Unary { .. }
                | Op::Add { .. }
                | Op::Mul { .. }
                | Op::MulVector { .. }
        )
    }
}

/// Factor by which [`Op::ScaleByPosition`] scales the values at `position`; 1 for other operations.
pub(crate) fn scale_at<V, M, C, T>(op: &Op<V, M, C, T>, position: usize) -> f32 {
    match *op {
        Op::ScaleByPosition {
            rate, step, offset, ..
        } => (1.0 + f64::from(rate) * ((1 + (position + offset) / step) as f64).ln()) as f32,
        _ => 1.0,
    }
}
