//! Validation of an operation's operands, and the shape of its result.

mod rules;

use super::{CacheLayer, CacheShape, MatrixShape, Op, ValueShape};

/// Shapes of operands, from which a result's shape follows; `None` for operands that do not exist.
pub trait Shapes<V, M, C, T> {
    /// A value that was written before.
    fn value(&self, value: V) -> ValueShape;
    /// A matrix.
    fn matrix(&self, matrix: &M) -> Option<MatrixShape>;
    /// Number of values of a vector.
    fn vector(&self, vector: &C) -> Option<usize>;
    /// A table of embeddings.
    fn table(&self, table: &T) -> Option<MatrixShape>;
    /// The width of the rows that come with a step.
    fn input(&self) -> Option<usize>;
    /// The width of rows that replace embeddings; 0 if none can.
    fn embedding_input_width(&self) -> usize;
    /// Number of pairs of a head that the table of angles rotates.
    fn rope(&self, rope: usize) -> Option<usize>;
    /// A group of the cache's layers.
    fn cache(&self, group: usize) -> Option<CacheShape>;
    /// Number of values of a part of a sequence's state.
    fn state(&self, state: usize) -> Option<usize>;
}

/// Error in an operation's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum ShapeError {
    /// Widths do not fit.
    #[error("{what}: expected {expected}, got {got}")]
    Width {
        what: &'static str,
        expected: usize,
        got: usize,
    },
    /// Two operands, or an operand and the operation, have different rows.
    #[error("operands have different rows")]
    RowsDiffer,
    /// A matrix, a vector or a table that does not exist.
    #[error("a weight that does not exist")]
    NoWeight,
    /// A layer that the cache does not have.
    #[error("layer {} of group {} is not in the cache", .0.layer, .0.group)]
    NoLayer(CacheLayer),
    /// A part of a sequence's state that does not exist.
    #[error("no state {state}")]
    NoState { state: usize },
    /// A table of angles that does not exist.
    #[error("no table {rope} of angles")]
    NoRope { rope: usize },
    /// [`Op::Input`] where steps bring no rows.
    #[error("no rows come with a step")]
    NoInput,
}

impl<V: Copy, M, C, T> Op<V, M, C, T> {
    /// The shape of the result.
    ///
    /// # Errors
    /// If the operands do not fit the operation, or each other.
    pub fn shape(&self, of: &impl Shapes<V, M, C, T>) -> Result<ValueShape, ShapeError> {
        let value = |v: V| of.value(v);
        let vector = |c: &C| of.vector(c).ok_or(ShapeError::NoWeight);
        let matrix = |m: &M| of.matrix(m).ok_or(ShapeError::NoWeight);
        let table = |t: &T| of.table(t).ok_or(ShapeError::NoWeight);
        let input_width = of.embedding_input_width();
        match *self {
            Op::Embed { table: ref t, .. } | Op::EmbedPositions { table: ref t } => {
                Ok(rules::rows_of(table(t)?.cols))
            }
            Op::Constant { ref values } => Ok(rules::rows_of(vector(values)?)),
            Op::Input => Ok(rules::rows_of(of.input().ok_or(ShapeError::NoInput)?)),
            Op::RmsNorm { x, ref weight, .. } | Op::LayerNorm { x, ref weight, .. } => {
                rules::norm(value(x), vector(weight)?)
            }
            Op::MatMul { x, ref w } => rules::product(value(x), matrix(w)?),
            Op::AddBias { x, ref bias } => rules::bias(value(x), vector(bias)?),
            Op::AddEmbeddings { x, from } => rules::add_embeddings(value(x), from, input_width),
            Op::Rope { x, head_dim, rope } => {
                let pairs = of.rope(rope).ok_or(ShapeError::NoRope { rope })?;
                rules::rotation(value(x), head_dim, pairs)
            }
            Op::Hadamard { x, order } => rules::hadamard(value(x), order),
            Op::KvWrite { k, v, cache: c } => rules::kv_write(value(k), value(v), shape_of(c, of)?),
            Op::Attention {
                q,
                seen,
                cache: c,
                ref sinks,
                ..
            } => {
                let sinks = sinks.as_ref().map(vector);
                rules::attention(value(q), seen.map(value), shape_of(c, of)?, sinks)
            }
            Op::SelectKeys {
                q,
                weights,
                cache: c,
                n,
            } => rules::select_keys(value(q), value(weights), shape_of(c, of)?, n),
            Op::Gate { gate: a, up: b, .. } | Op::Add { a, b } | Op::Mul { a, b } => {
                rules::pair(value(a), value(b))
            }
            Op::Unary { x, .. } => Ok(value(x)),
            Op::ScaleByPosition { x, step, .. } => rules::scale_by_position(value(x), step),
            Op::SelectRows { x } => rules::select_rows(value(x)),
            Op::Merge { x, rows } => rules::merge(value(x), rows),
            Op::MulVector { x, ref by } => rules::mul_vector(value(x), vector(by)?),
            Op::Slice {
                x,
                each,
                from,
                width,
            } => rules::slice(value(x), each, from, width),
            Op::Concat { a, b, each } => rules::concat(value(a), value(b), each),
            Op::CausalConv { .. }
            | Op::LinearAttention { .. }
            | Op::SelectiveScan { .. }
            | Op::Wkv7 { .. } => self.recurrent_shape(of),
            Op::Softmax { x } | Op::Normalize { x, .. } => rules::distribution(value(x)),
            Op::TopK { x, n, groups } => rules::top(value(x), n, groups),
            Op::Gather { x, ids } => rules::gather(value(x), value(ids)),
            Op::ScaleRows { x, by } => rules::scale_rows(value(x), value(by)),
            Op::ExpertMatMul {
                x,
                ref w,
                ids,
                experts,
            } => rules::expert_product(value(x), matrix(w)?, value(ids), experts),
            Op::ExpertBias { x, ref bias, ids } => {
                rules::expert_bias(value(x), vector(bias)?, value(ids))
            }
            Op::ExpertSum { x, weights } => rules::expert_sum(value(x), value(weights)),
            Op::AllGather { x, cut } => rules::all_gather(value(x), cut),
            Op::LoraDown { x, ids, width, .. } => {
                rules::lora_down(x.map(value), ids.map(value), width)
            }
            Op::LoraUp { y, h, ids, .. } => rules::lora_up(value(y), value(h), ids.map(value)),
        }
    }

    /// The shape of the result of an operation with a state.
    fn recurrent_shape(&self, of: &impl Shapes<V, M, C, T>) -> Result<ValueShape, ShapeError> {
        let value = |v: V| of.value(v);
        let vector = |c: &C| of.vector(c).ok_or(ShapeError::NoWeight);
        let state = |state: usize| of.state(state).ok_or(ShapeError::NoState { state });
        match *self {
            Op::CausalConv {
                x,
                ref weight,
                state: s,
            } => rules::convolution(value(x), vector(weight)?, state(s)),
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                ref how,
                state: s,
            } => {
                let inputs = [q, k, v, decay, rate].map(value);
                rules::linear_attention(how, inputs, state(s)?)
            }
            Op::SelectiveScan {
                x,
                steps,
                b,
                c,
                ref a,
                state: s,
            } => {
                let inputs = [x, steps, b, c].map(value);
                rules::selective_scan(inputs, vector(a)?, state(s)?)
            }
            Op::Wkv7 {
                r,
                decay,
                k,
                v,
                removed,
                replaced,
                key_dim,
                state: s,
            } => {
                let inputs = [r, decay, k, removed, replaced].map(value);
                rules::wkv7(value(v), inputs, key_dim, state(s)?)
            }
            _ => unreachable!("the caller has seen which operation it is"),
        }
    }
}

impl ValueShape {
    /// Checks that `got` equals this shape.
    ///
    /// # Errors
    /// If the width or the rows differ.
    pub fn expect(self, got: ValueShape) -> Result<(), ShapeError> {
        rules::same("result", self.width, got.width)?;
        rules::same_rows(self, got).map(|_| ())
    }
}

fn shape_of<V, M, C, T>(
    cache: CacheLayer,
    of: &impl Shapes<V, M, C, T>,
) -> Result<CacheShape, ShapeError> {
    let group = of.cache(cache.group);
    group
        .filter(|group| cache.layer < group.layers)
        .ok_or(ShapeError::NoLayer(cache))
}
