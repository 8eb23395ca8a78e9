//! Which operands fit an operation, and what shape its result has.

use super::{
    CacheLayer, CacheShape, MERGED_ROWS, MatrixShape, Op, Recurrence, RowSet, TopGroups,
    ValueShape, matrix_state,
};

/// What the shape of a result follows from; `None` for what does not exist.
pub trait Shapes<V, M, C, T> {
    /// A value that was written before.
    fn value(&self, value: V) -> ValueShape;
    /// A matrix.
    fn matrix(&self, matrix: &M) -> Option<MatrixShape>;
    /// How many values a vector has.
    fn vector(&self, vector: &C) -> Option<usize>;
    /// A table of embeddings.
    fn table(&self, table: &T) -> Option<MatrixShape>;
    /// The width of the rows that come with a step.
    fn input(&self) -> Option<usize>;
    /// The width of rows that come in the place of embeddings; 0 if none can.
    fn given(&self) -> usize;
    /// How many pairs of a head the table of angles turns.
    fn rope(&self, rope: usize) -> Option<usize>;
    /// A group of the cache's layers.
    fn cache(&self, group: usize) -> Option<CacheShape>;
    /// How many values a part of a sequence's state has.
    fn state(&self, state: usize) -> Option<usize>;
}

/// What is wrong with an operation's operands.
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
    /// Two operands, or an operand and the operation, are about different rows.
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
        Ok(match *self {
            Op::Embed { ref table } | Op::EmbedPositions { ref table } => ValueShape {
                width: of.table(table).ok_or(ShapeError::NoWeight)?.cols,
                rows: RowSet::All,
            },
            Op::Constant { ref values } => ValueShape {
                width: of.vector(values).ok_or(ShapeError::NoWeight)?,
                rows: RowSet::All,
            },
            Op::Input => ValueShape {
                width: of.input().ok_or(ShapeError::NoInput)?,
                rows: RowSet::All,
            },
            Op::RmsNorm { x, ref weight, .. } | Op::LayerNorm { x, ref weight, .. } => {
                let group = of.vector(weight).ok_or(ShapeError::NoWeight)?;
                whole("normalised width", group, value(x).width)?;
                value(x)
            }
            Op::MatMul { x, ref w } => {
                let matrix = of.matrix(w).ok_or(ShapeError::NoWeight)?;
                same("matrix input", matrix.cols, value(x).width)?;
                ValueShape {
                    width: matrix.rows,
                    ..value(x)
                }
            }
            Op::AddBias { x, ref bias } => {
                let bias = of.vector(bias).ok_or(ShapeError::NoWeight)?;
                same("bias", value(x).width, bias)?;
                value(x)
            }
            Op::AddGiven { x, from } => {
                at_most("given values of a row", of.given(), from + value(x).width)?;
                of_all(value(x))?
            }
            Op::Rope { x, head_dim, rope } => {
                let pairs = of.rope(rope).ok_or(ShapeError::NoRope { rope })?;
                if 2 * pairs > head_dim {
                    return Err(ShapeError::Width {
                        what: "pairs of a head that turn",
                        expected: head_dim / 2,
                        got: pairs,
                    });
                }
                whole("heads", head_dim, value(x).width)?;
                value(x)
            }
            Op::KvWrite { k, v, cache } => {
                let cache = shape_of(cache, of)?;
                same("keys", cache.width, value(k).width)?;
                same("values", cache.width, value(v).width)?;
                ValueShape {
                    width: 0,
                    rows: same_rows(value(k), value(v))?,
                }
            }
            Op::Attention {
                q,
                cache,
                ref sinks,
                ..
            } => {
                let cache = shape_of(cache, of)?;
                whole("queries", cache.width, value(q).width)?;
                if let Some(sinks) = sinks {
                    whole("query heads", cache.head_dim, value(q).width)?;
                    let sinks = of.vector(sinks).ok_or(ShapeError::NoWeight)?;
                    same("sinks", value(q).width / cache.head_dim, sinks)?;
                }
                value(q)
            }
            Op::Gate { gate: a, up: b, .. } | Op::Add { a, b } | Op::Mul { a, b } => {
                same("second operand", value(a).width, value(b).width)?;
                ValueShape {
                    rows: same_rows(value(a), value(b))?,
                    ..value(a)
                }
            }
            Op::Unary { x, .. } => value(x),
            Op::ScaleByPosition { x, .. } if value(x).rows != RowSet::All => {
                return Err(ShapeError::RowsDiffer);
            }
            Op::ScaleByPosition { x, step, .. } => {
                whole("positions of a step of the scale", step, step)?;
                value(x)
            }
            Op::SelectRows { x } if value(x).rows != RowSet::All => {
                return Err(ShapeError::RowsDiffer);
            }
            Op::SelectRows { x } => ValueShape {
                rows: RowSet::Wanted,
                ..value(x)
            },
            Op::Merge { x } => ValueShape {
                width: MERGED_ROWS * of_all(value(x))?.width,
                rows: RowSet::Merged,
            },
            Op::MulVector { x, ref by } => {
                let by = of.vector(by).ok_or(ShapeError::NoWeight)?;
                whole("factors", by, value(x).width)?;
                value(x)
            }
            Op::Slice {
                x,
                each,
                from,
                width,
            } => {
                some("values of a part", width)?;
                whole("values that are cut", each, value(x).width)?;
                at_most("values of a row", each, from.saturating_add(width))?;
                ValueShape {
                    width: value(x).width / each * width,
                    ..value(x)
                }
            }
            Op::Concat { a, b, each } => {
                whole("pieces of a row", each[0], value(a).width)?;
                let pieces = value(a).width / each[0];
                if value(b).width != each[1] {
                    let all = pieces.saturating_mul(each[1]);
                    same("pieces of the second row", all, value(b).width)?;
                }
                some("values of a piece", each[1])?;
                ValueShape {
                    width: pieces * (each[0] + each[1]),
                    rows: same_rows(value(a), value(b))?,
                }
            }
            Op::CausalConv {
                x,
                ref weight,
                state,
            } => {
                let weight = of.vector(weight).ok_or(ShapeError::NoWeight)?;
                whole("weights of a convolution", value(x).width, weight)?;
                let before = weight - value(x).width;
                let kept = of.state(state).ok_or(ShapeError::NoState { state })?;
                same("values of the state", before, kept)?;
                of_all(value(x))?
            }
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                ref how,
                state,
            } => {
                let [q, k, v, decay, rate] = [q, k, v, decay, rate].map(value);
                let kept = of.state(state).ok_or(ShapeError::NoState { state })?;
                linear_attention(how, [q, k, v, decay, rate], kept)?;
                of_all(v)?
            }
            Op::Softmax { x } | Op::Normalize { x, .. } => {
                some("values of a row", value(x).width)?;
                value(x)
            }
            Op::TopK { x, n, groups } => ValueShape {
                width: top(value(x).width, n, groups)?,
                ..value(x)
            },
            Op::Gather { x, ids } => {
                some("values of a row", value(x).width)?;
                some("places", value(ids).width)?;
                ValueShape {
                    rows: same_rows(value(x), value(ids))?,
                    ..value(ids)
                }
            }
            Op::ScaleRows { x, by } => {
                same("factors of a row", 1, value(by).width)?;
                ValueShape {
                    rows: same_rows(value(x), value(by))?,
                    ..value(x)
                }
            }
            Op::ExpertMatMul {
                x,
                ref w,
                ids,
                experts,
            } => {
                let matrix = of.matrix(w).ok_or(ShapeError::NoWeight)?;
                whole("rows of an expert", experts, matrix.rows)?;
                let used = value(ids).width;
                at_most("experts of a row", experts, used)?;
                if value(x).width != matrix.cols {
                    let all = used.saturating_mul(matrix.cols);
                    same("inputs of experts", all, value(x).width)?;
                }
                ValueShape {
                    width: used.saturating_mul(matrix.rows / experts),
                    rows: same_rows(value(x), value(ids))?,
                }
            }
            Op::ExpertBias { x, ref bias, ids } => {
                let bias = of.vector(bias).ok_or(ShapeError::NoWeight)?;
                let used = value(ids).width;
                whole("results of experts", used, value(x).width)?;
                let n = value(x).width / used;
                whole("biases of experts", n, bias)?;
                at_most("experts of a row", bias / n, used)?;
                ValueShape {
                    rows: same_rows(value(x), value(ids))?,
                    ..value(x)
                }
            }
            Op::ExpertSum { x, weights } => {
                let used = value(weights).width;
                whole("results of experts", used, value(x).width)?;
                ValueShape {
                    width: value(x).width / used,
                    rows: same_rows(value(x), value(weights))?,
                }
            }
        })
    }
}

impl ValueShape {
    /// That `got` is this.
    ///
    /// # Errors
    /// Which of the two is another.
    pub fn expect(self, got: ValueShape) -> Result<(), ShapeError> {
        same("result", self.width, got.width)?;
        same_rows(self, got).map(|_| ())
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

/// What states are made of: rows of all tokens.
fn of_all(x: ValueShape) -> Result<ValueShape, ShapeError> {
    match x.rows {
        RowSet::All => Ok(x),
        RowSet::Wanted | RowSet::Merged => Err(ShapeError::RowsDiffer),
    }
}

/// Whether queries, keys, values, decays and rates fit each other and a state of so many values.
fn linear_attention(
    how: &Recurrence,
    [q, k, v, decay, rate]: [ValueShape; 5],
    kept: usize,
) -> Result<(), ShapeError> {
    let heads = decay.width;
    same("rates", heads, rate.width)?;
    whole("heads of values", heads, v.width)?;
    whole("queries", how.key_dim, q.width)?;
    same("keys", q.width, k.width)?;
    whole("heads of keys", q.width / how.key_dim, heads)?;
    let state = matrix_state(heads, how.key_dim, v.width / heads).unwrap_or(usize::MAX);
    same("values of the state", state, kept)?;
    for other in [q, k, decay, rate] {
        same_rows(v, other)?;
    }
    Ok(())
}

fn same_rows(a: ValueShape, b: ValueShape) -> Result<RowSet, ShapeError> {
    if a.rows == b.rows {
        Ok(a.rows)
    } else {
        Err(ShapeError::RowsDiffer)
    }
}

fn same(what: &'static str, expected: usize, got: usize) -> Result<(), ShapeError> {
    if expected == got {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            expected,
            got,
        })
    }
}

/// There must be some.
fn some(what: &'static str, got: usize) -> Result<(), ShapeError> {
    at_most(what, usize::MAX, got)
}

/// There must be some, and no more than there are.
fn at_most(what: &'static str, expected: usize, got: usize) -> Result<(), ShapeError> {
    if (1..=expected).contains(&got) {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            // of none, one is the least that was expected
            expected: if got == 0 { 1 } else { expected },
            got,
        })
    }
}

/// The width of [`Op::TopK`] of rows of so many values.
fn top(width: usize, n: usize, groups: Option<TopGroups>) -> Result<usize, ShapeError> {
    // places are told as floats
    at_most("values of a row", 1 << f32::MANTISSA_DIGITS, width)?;
    let mut candidates = width;
    if let Some(TopGroups { count, used }) = groups {
        whole("groups of a row", count, width)?;
        if width / count < 2 {
            return Err(ShapeError::Width {
                what: "values of a group",
                expected: 2,
                got: width / count,
            });
        }
        at_most("groups used", count, used)?;
        candidates = width / count * used;
    }
    at_most("places", candidates, n)?;
    Ok(n)
}

/// `got` must be a whole number of groups.
fn whole(what: &'static str, group: usize, got: usize) -> Result<(), ShapeError> {
    if group > 0 && got > 0 && got.is_multiple_of(group) {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            expected: group,
            got,
        })
    }
}
