//! An operation in other words: the same one, about values and weights that are named differently.

use super::{CacheLayer, Op};

/// Says what the operands of one vocabulary are in another.
pub trait Translate<V, M, C, T> {
    /// Values there.
    type Value;
    /// Matrices there.
    type Matrix;
    /// Vectors there.
    type Vector;
    /// Tables there.
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

/// An operation in the words of `X`.
pub type Translated<X, V, M, C, T> = Op<
    <X as Translate<V, M, C, T>>::Value,
    <X as Translate<V, M, C, T>>::Matrix,
    <X as Translate<V, M, C, T>>::Vector,
    <X as Translate<V, M, C, T>>::Table,
>;

impl<V: Copy, M, C, T> Op<V, M, C, T> {
    /// The same operation in another vocabulary.
    pub fn map<X: Translate<V, M, C, T>>(self, to: &mut X) -> Translated<X, V, M, C, T> {
        match self {
            Op::Embed { table } => Op::Embed {
                table: to.table(table),
            },
            Op::Constant { values } => Op::Constant {
                values: to.vector(values),
            },
            Op::EmbedPositions { table } => Op::EmbedPositions {
                table: to.table(table),
            },
            Op::AddGiven { x, from } => Op::AddGiven {
                x: to.value(x),
                from,
            },
            Op::Input => Op::Input,
            Op::RmsNorm { x, weight, eps } => Op::RmsNorm {
                x: to.value(x),
                weight: to.vector(weight),
                eps,
            },
            Op::LayerNorm { x, weight, eps } => Op::LayerNorm {
                x: to.value(x),
                weight: to.vector(weight),
                eps,
            },
            Op::MatMul { x, w } => Op::MatMul {
                x: to.value(x),
                w: to.matrix(w),
            },
            Op::AddBias { x, bias } => Op::AddBias {
                x: to.value(x),
                bias: to.vector(bias),
            },
            Op::Rope { x, head_dim, rope } => Op::Rope {
                x: to.value(x),
                head_dim,
                rope,
            },
            Op::KvWrite { k, v, cache } => Op::KvWrite {
                k: to.value(k),
                v: to.value(v),
                cache: to.cache(cache),
            },
            Op::Attention {
                q,
                cache,
                scores,
                sinks,
            } => Op::Attention {
                q: to.value(q),
                cache: to.cache(cache),
                scores,
                sinks: sinks.map(|sinks| to.vector(sinks)),
            },
            Op::Gate { gate, up, act } => Op::Gate {
                gate: to.value(gate),
                up: to.value(up),
                act,
            },
            Op::Unary { x, f } => Op::Unary { x: to.value(x), f },
            Op::ScaleByPosition { x, rate, step } => Op::ScaleByPosition {
                x: to.value(x),
                rate,
                step,
            },
            Op::Add { a, b } => Op::Add {
                a: to.value(a),
                b: to.value(b),
            },
            Op::Mul { a, b } => Op::Mul {
                a: to.value(a),
                b: to.value(b),
            },
            Op::MulVector { x, by } => Op::MulVector {
                x: to.value(x),
                by: to.vector(by),
            },
            Op::SelectRows { x } => Op::SelectRows { x: to.value(x) },
            Op::Merge { x } => Op::Merge { x: to.value(x) },
            Op::Slice {
                x,
                each,
                from,
                width,
            } => Op::Slice {
                x: to.value(x),
                each,
                from,
                width,
            },
            Op::Concat { a, b, each } => Op::Concat {
                a: to.value(a),
                b: to.value(b),
                each,
            },
            Op::CausalConv { x, weight, state } => Op::CausalConv {
                x: to.value(x),
                weight: to.vector(weight),
                state: to.state(state),
            },
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                how,
                state,
            } => Op::LinearAttention {
                q: to.value(q),
                k: to.value(k),
                v: to.value(v),
                decay: to.value(decay),
                rate: to.value(rate),
                how,
                state: to.state(state),
            },
            Op::Softmax { x } => Op::Softmax { x: to.value(x) },
            Op::TopK { x, n, groups } => Op::TopK {
                x: to.value(x),
                n,
                groups,
            },
            Op::Gather { x, ids } => Op::Gather {
                x: to.value(x),
                ids: to.value(ids),
            },
            Op::Normalize { x, least } => Op::Normalize {
                x: to.value(x),
                least,
            },
            Op::ScaleRows { x, by } => Op::ScaleRows {
                x: to.value(x),
                by: to.value(by),
            },
            Op::ExpertMatMul { x, w, ids, experts } => Op::ExpertMatMul {
                x: to.value(x),
                w: to.matrix(w),
                ids: to.value(ids),
                experts,
            },
            Op::ExpertBias { x, bias, ids } => Op::ExpertBias {
                x: to.value(x),
                bias: to.vector(bias),
                ids: to.value(ids),
            },
            Op::ExpertSum { x, weights } => Op::ExpertSum {
                x: to.value(x),
                weights: to.value(weights),
            },
        }
    }
}
