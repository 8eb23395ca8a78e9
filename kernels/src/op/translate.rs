//! Translation of operations between vocabularies: the same operation, with operands named
//! differently.

use super::{CacheLayer, Op};

/// Translates the operands of one vocabulary to another.
pub trait Translate<V, M, C, T> {
    /// Values in the other vocabulary.
    type Value;
    /// Matrices in the other vocabulary.
    type Matrix;
    /// Vectors in the other vocabulary.
    type Vector;
    /// Tables in the other vocabulary.
    type Table;

    /// A value.
    fn value(&mut self, value: V) -> Self::Value;
    /// A matrix.
    fn matrix(&mut self, matrix: M) -> Self::Matrix;
    /// A vector.
    fn vector(&mut self, vector: C) -> Self::Vector;
    /// A table of embeddings.
    fn table(&mut self, table: T) -> Self::Table;
    /// A layer of the cache.
    fn cache(&mut self, cache: CacheLayer) -> CacheLayer;
    /// A part of a sequence's state.
    fn state(&mut self, state: usize) -> usize;
}

/// An operation in the vocabulary of `X`.
pub type Translated<X, V, M, C, T> = Op<
    <X as Translate<V, M, C, T>>::Value,
    <X as Translate<V, M, C, T>>::Matrix,
    <X as Translate<V, M, C, T>>::Vector,
    <X as Translate<V, M, C, T>>::Table,
>;

/// Translates a field according to the kind of operand that it names.
macro_rules! word {
    ($to:ident, as_is, $field:expr) => {
        $field
    };
    ($to:ident, any_vector, $field:expr) => {
        $field.map(|vector| $to.vector(vector))
    };
    ($to:ident, any_value, $field:expr) => {
        $field.map(|value| $to.value(value))
    };
    ($to:ident, $kind:ident, $field:expr) => {
        $to.$kind($field)
    };
}

/// A `match` with an arm for each operation, from a list of their fields and the kind of operand
/// that each names.
macro_rules! translate {
    ($op:expr, $to:ident, $($name:ident { $($field:ident: $kind:ident),* })*) => {
        match $op {
            $(Op::$name { $($field),* } => Op::$name {
                $($field: word!($to, $kind, $field)),*
            },)*
        }
    };
}

impl<V: Copy, M, C, T> Op<V, M, C, T> {
    /// The same operation in another vocabulary.
    pub fn map<X: Translate<V, M, C, T>>(self, to: &mut X) -> Translated<X, V, M, C, T> {
        translate! { self, to,
            Embed { table: table, placeholder: as_is }
            Constant { values: vector }
            EmbedPositions { table: table }
            AddEmbeddings { x: value, from: as_is }
            Input {}
            RmsNorm { x: value, weight: vector, eps: as_is }
            LayerNorm { x: value, weight: vector, eps: as_is }
            MatMul { x: value, w: matrix }
            AddBias { x: value, bias: vector }
            Rope { x: value, head_dim: as_is, rope: as_is }
            Hadamard { x: value, order: as_is }
            KvWrite { k: value, v: value, cache: cache }
            Attention {
                q: value, seen: any_value, cache: cache, scores: as_is, sinks: any_vector
            }
            SelectKeys { q: value, weights: value, cache: cache, n: as_is }
            Gate { gate: value, up: value, act: as_is }
            Unary { x: value, f: as_is }
            ScaleByPosition { x: value, rate: as_is, step: as_is, offset: as_is }
            Add { a: value, b: value }
            Mul { a: value, b: value }
            MulVector { x: value, by: vector }
            SelectRows { x: value }
            Merge { x: value, rows: as_is }
            Slice { x: value, each: as_is, from: as_is, width: as_is }
            Concat { a: value, b: value, each: as_is }
            CausalConv { x: value, weight: vector, state: state }
            LinearAttention {
                q: value, k: value, v: value, decay: value, rate: value, how: as_is, state: state
            }
            SelectiveScan { x: value, steps: value, b: value, c: value, a: vector, state: state }
            Wkv7 {
                r: value, decay: value, k: value, v: value, removed: value, replaced: value,
                key_dim: as_is, state: state
            }
            Softmax { x: value }
            TopK { x: value, n: as_is, groups: as_is }
            Gather { x: value, ids: value }
            Normalize { x: value, least: as_is }
            ScaleRows { x: value, by: value }
            ExpertMatMul { x: value, w: matrix, ids: value, experts: as_is }
            ExpertBias { x: value, bias: vector, ids: value }
            ExpertSum { x: value, weights: value }
            AllGather { x: value, cut: as_is }
            LoraDown { x: any_value, ids: any_value, site: as_is, width: as_is }
            LoraUp { y: value, h: value, ids: any_value, site: as_is }
        }
    }
}
