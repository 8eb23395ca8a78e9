//! The operations of a forward pass, once for all who speak of them: a model's graph, the programs
//! that executors run, and whoever looks at either. What they are about is a parameter: a graph
//! names values and weights, a program has buffers and numbers.
//!
//! Where the result goes stands outside an operation, in a graph's node or an [`Instruction`].
//!
//! [`Instruction`]: crate::Instruction

/// One operation on values `V`, with matrices `M`, vectors `C` and tables of embeddings `T`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are the formulas' letters
pub enum Op<V, M, C, T> {
    /// Rows of the table, one per token id of the step.
    Embed { table: T },
    /// Rows that come with the step, where another program computed what is before this one.
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
    /// table `rope`; values behind the last pair pass unchanged.
    Rope { x: V, head_dim: usize, rope: usize },
    /// Appends keys and values to the cache. No result.
    KvWrite { k: V, v: V, cache: CacheLayer },
    /// Causal attention over what is cached there: `softmax(scores) V` per head; query head `h`
    /// reads key head `h / (n_head / n_head_kv)`. The softmax's denominator gains `e^sink` of the
    /// query head, where there are sinks: one more score, of a value that is zero.
    Attention {
        q: V,
        cache: CacheLayer,
        scores: Scores,
        sinks: Option<C>,
    },
    /// `act(gate) * up`.
    Gate { gate: V, up: V, act: Activation },
    /// `f(x)`, value by value.
    Unary { x: V, f: Function },
    /// Every row times `1 + rate * ln(1 + floor(position / step))`: what keeps the scores of
    /// attention apart in long contexts.
    ScaleByPosition { x: V, rate: f32, step: usize },
    /// `a + b`.
    Add { a: V, b: V },
    /// The rows whose outputs are wanted.
    SelectRows { x: V },
    /// So many values of every row, from one on.
    Slice { x: V, from: usize, width: usize },
    /// Softmax of every row.
    Softmax { x: V },
    /// Places of the `n` largest values of every row, the largest first and of equal ones the lower
    /// place; as floats. What is not a number counts as the largest, so that it stays to be seen.
    /// With groups, only values of the best groups count.
    TopK {
        x: V,
        n: usize,
        groups: Option<TopGroups>,
    },
    /// The values of `x` at the places `ids`.
    Gather { x: V, ids: V },
    /// Every row divided by its sum, or by `least` if that is more.
    Normalize { x: V, least: f32 },
    /// Every row of `x` times the one value of the row in `by`.
    ScaleRows { x: V, by: V },
    /// Products with the experts that `ids` names: `w` holds `experts` matrices one below the
    /// other. `x` is one row for all, or one for each of them, side by side like the results.
    ExpertMatMul { x: V, w: M, ids: V, experts: usize },
    /// Adds to each part of `x` the bias of its expert; `bias` has one below the other.
    ExpertBias { x: V, bias: C, ids: V },
    /// Sum of the parts of `x`, each times its weight, in order.
    ExpertSum { x: V, weights: V },
}

/// Which values [`Op::TopK`] chooses from: a row is cut into `count` groups of equally many values,
/// the sum of a group's two best values is its score, and those of the `used` best groups count, of
/// equal ones those of the lower group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopGroups {
    /// Groups of a row.
    pub count: usize,
    /// Groups whose values count.
    pub used: usize,
}

/// A layer of the cache. Layers are grouped: those of a group have one shape, and a sequence has
/// one block table for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayer {
    /// Which group.
    pub group: usize,
    /// Which of the group's layers.
    pub layer: usize,
}

/// How a gate and what it gates come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `gate / (1 + e^-gate) * up`.
    Silu,
    /// `gelu(gate) * up`, see [`Function::Gelu`].
    Gelu,
    /// `g / (1 + e^(-1.702 g)) * (u + 1)`, with `g` the gate, at most 7, and `u` between -7 and 7:
    /// gpt-oss.
    SwigluOai,
}

/// A function of single values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `cap * tanh(x / cap)`: about `x` where that is small, and never beyond `cap`, which is
    /// positive.
    SoftCap(f32),
    /// `factor * x`.
    Scale(f32),
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    Gelu,
    /// `max(x, 0)^2`.
    SquaredRelu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
}

/// How attention's scores come about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Multiplies `q k`.
    pub scale: f32,
    /// `cap * tanh(score / cap)` of every scaled score; positive.
    pub cap: Option<f32>,
    /// A query at position `q` sees the keys at positions above `q - window`: so many with its own.
    /// At least 1.
    pub window: Option<usize>,
}

impl Scores {
    /// Scaled, and nothing else.
    pub fn plain(scale: f32) -> Scores {
        Scores {
            scale,
            cap: None,
            window: None,
        }
    }

    /// The first position that a query at `position` sees.
    pub(crate) fn first(self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }
}

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// One per token of the step.
    All,
    /// One per token whose outputs are wanted.
    Wanted,
}

/// A value's shape: (rows, width) f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueShape {
    /// Numbers per row; 0 for the result of [`Op::KvWrite`], which has no storage.
    pub width: usize,
    /// Which rows.
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
    /// Values of a token's keys, and of its values.
    pub width: usize,
}

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
    /// How many pairs of a head the table of angles turns.
    fn rope(&self, rope: usize) -> Option<usize>;
    /// A group of the cache's layers.
    fn cache(&self, group: usize) -> Option<CacheShape>;
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
    /// A table of angles that does not exist.
    #[error("no table {rope} of angles")]
    NoRope { rope: usize },
    /// [`Op::Input`] where steps bring no rows.
    #[error("no rows come with a step")]
    NoInput,
}

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
}

/// An operation in the words of `X`.
pub type Translated<X, V, M, C, T> = Op<
    <X as Translate<V, M, C, T>>::Value,
    <X as Translate<V, M, C, T>>::Matrix,
    <X as Translate<V, M, C, T>>::Vector,
    <X as Translate<V, M, C, T>>::Table,
>;

impl<V: Copy, M, C, T> Op<V, M, C, T> {
    /// The values read, in order.
    pub fn inputs(&self) -> impl Iterator<Item = V> + use<V, M, C, T> {
        let (first, second) = match *self {
            Op::Embed { .. } | Op::Input => (None, None),
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::MatMul { x, .. }
            | Op::AddBias { x, .. }
            | Op::Rope { x, .. }
            | Op::Unary { x, .. }
            | Op::ScaleByPosition { x, .. }
            | Op::SelectRows { x }
            | Op::Slice { x, .. }
            | Op::Softmax { x }
            | Op::TopK { x, .. }
            | Op::Normalize { x, .. } => (Some(x), None),
            Op::Gather { x, ids }
            | Op::ExpertMatMul { x, ids, .. }
            | Op::ExpertBias { x, ids, .. } => (Some(x), Some(ids)),
            Op::ScaleRows { x, by } => (Some(x), Some(by)),
            Op::ExpertSum { x, weights } => (Some(x), Some(weights)),
            Op::Attention { q, .. } => (Some(q), None),
            Op::KvWrite { k, v, .. } => (Some(k), Some(v)),
            Op::Gate { gate, up, .. } => (Some(gate), Some(up)),
            Op::Add { a, b } => (Some(a), Some(b)),
        };
        first.into_iter().chain(second)
    }

    /// The vector read, if there is one.
    pub fn vector(&self) -> Option<&C> {
        match self {
            Op::RmsNorm { weight: vector, .. }
            | Op::LayerNorm { weight: vector, .. }
            | Op::AddBias { bias: vector, .. }
            | Op::ExpertBias { bias: vector, .. } => Some(vector),
            Op::Attention { sinks, .. } => sinks.as_ref(),
            Op::Embed { .. }
            | Op::Input
            | Op::MatMul { .. }
            | Op::Rope { .. }
            | Op::Unary { .. }
            | Op::ScaleByPosition { .. }
            | Op::SelectRows { .. }
            | Op::Slice { .. }
            | Op::Softmax { .. }
            | Op::TopK { .. }
            | Op::Normalize { .. }
            | Op::Gather { .. }
            | Op::ExpertMatMul { .. }
            | Op::ScaleRows { .. }
            | Op::ExpertSum { .. }
            | Op::KvWrite { .. }
            | Op::Gate { .. }
            | Op::Add { .. } => None,
        }
    }

    /// Whether each value of the result is made of values at the same place alone, so that it may
    /// be written over them.
    pub(crate) fn is_by_element(&self) -> bool {
        matches!(
            self,
            Op::AddBias { .. } | Op::Gate { .. } | Op::Unary { .. } | Op::Add { .. }
        )
    }

    /// The same operation in another vocabulary.
    pub fn map<X: Translate<V, M, C, T>>(self, to: &mut X) -> Translated<X, V, M, C, T> {
        match self {
            Op::Embed { table } => Op::Embed {
                table: to.table(table),
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
            Op::SelectRows { x } => Op::SelectRows { x: to.value(x) },
            Op::Slice { x, from, width } => Op::Slice {
                x: to.value(x),
                from,
                width,
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

    /// The shape of the result.
    ///
    /// # Errors
    /// If the operands do not fit the operation, or each other.
    pub fn shape(&self, of: &impl Shapes<V, M, C, T>) -> Result<ValueShape, ShapeError> {
        let value = |v: V| of.value(v);
        Ok(match *self {
            Op::Embed { ref table } => ValueShape {
                width: of.table(table).ok_or(ShapeError::NoWeight)?.cols,
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
            Op::Gate { gate: a, up: b, .. } | Op::Add { a, b } => {
                same("second operand", value(a).width, value(b).width)?;
                ValueShape {
                    rows: same_rows(value(a), value(b))?,
                    ..value(a)
                }
            }
            Op::Unary { x, .. } => value(x),
            Op::ScaleByPosition { x, .. } if value(x).rows == RowSet::Wanted => {
                return Err(ShapeError::RowsDiffer);
            }
            Op::ScaleByPosition { x, step, .. } => {
                whole("positions of a step of the scale", step, step)?;
                value(x)
            }
            Op::SelectRows { x } if value(x).rows == RowSet::Wanted => {
                return Err(ShapeError::RowsDiffer);
            }
            Op::SelectRows { x } => ValueShape {
                rows: RowSet::Wanted,
                ..value(x)
            },
            Op::Slice { x, from, width } => {
                some("values of a part", width)?;
                let end = from.saturating_add(width);
                at_most("values of a row", value(x).width, end)?;
                ValueShape { width, ..value(x) }
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

/// What [`Op::ScaleByPosition`] multiplies a position with.
pub(crate) fn scale_at(position: usize, rate: f32, step: usize) -> f32 {
    (1.0 + f64::from(rate) * ((1 + position / step) as f64).ln()) as f32
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
