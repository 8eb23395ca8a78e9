//! The forward pass as data: a list of coarse named ops that every backend executes.
//!
//! Values are matrices of one row per token; their width is fixed, their row count is that of the
//! batch until [`Op::SelectRows`] keeps the rows whose logits are wanted. A node's tap is
//! llama.cpp's name for the same tensor; names repeat (`Qcur-0` is the product, then the biased
//! product, then the rotated one), so a key is name + occurrence.

use super::hparams::Hparams;
use super::weights::{VecId, WeightId, Weights};

/// A value of the graph, by its place in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The place in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One per token of the batch.
    All,
    /// One per token whose logits are wanted.
    Wanted,
}

/// A value's shape: (rows, width) f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Numbers per row; 0 for the result of [`Op::KvWrite`], which has no storage.
    pub width: usize,
    /// Which rows.
    pub rows: Rows,
}

/// A tap's name: `Qcur-3`, or `result_norm` without a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap {
    /// llama.cpp's name.
    pub name: &'static str,
    /// The layer, for what repeats per layer.
    pub layer: Option<usize>,
}

impl std::fmt::Display for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{}-{layer}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// One operation. Operands are values unless their type says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are the formulas' letters
pub enum Op {
    /// Rows of the embedding table, one per token id of the batch.
    Embed { table: WeightId },
    /// `x * weight / sqrt(mean(x^2) + eps)` over each `group` neighbours: the whole row, or each
    /// head.
    RmsNorm {
        x: ValueId,
        weight: VecId,
        eps: f32,
        group: usize,
    },
    /// `x W^T`.
    MatMul { x: ValueId, w: WeightId },
    /// `x + bias` in every row.
    AddBias { x: ValueId, bias: VecId },
    /// Rotates the pairs of each head of width `head_dim` by the token's position, per the model's
    /// `RopeTable`; dimensions from `n_rot` on pass unchanged.
    Rope { x: ValueId, head_dim: usize },
    /// Appends keys and values of this layer to the cache. No result.
    KvWrite {
        k: ValueId,
        v: ValueId,
        layer: usize,
    },
    /// Causal attention over everything cached for the layer: `softmax(scale * q K^T) V` per head;
    /// query head `h` reads key head `h / (n_head / n_head_kv)`.
    Attention {
        q: ValueId,
        layer: usize,
        scale: f32,
    },
    /// `gate / (1 + exp(-gate)) * up`.
    SwiGlu { gate: ValueId, up: ValueId },
    /// `a + b`.
    Add { a: ValueId, b: ValueId },
    /// The rows whose logits are wanted.
    SelectRows { x: ValueId },
}

impl Op {
    /// The values read, in order.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> + use<> {
        let (first, second) = match *self {
            Op::Embed { .. } => (None, None),
            Op::RmsNorm { x, .. }
            | Op::MatMul { x, .. }
            | Op::AddBias { x, .. }
            | Op::Rope { x, .. }
            | Op::SelectRows { x } => (Some(x), None),
            Op::Attention { q, .. } => (Some(q), None),
            Op::KvWrite { k, v, .. } => (Some(k), Some(v)),
            Op::SwiGlu { gate, up } => (Some(gate), Some(up)),
            Op::Add { a, b } => (Some(a), Some(b)),
        };
        first.into_iter().chain(second)
    }
}

/// An op, where its result goes, and the result's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Where to; every value is written by exactly one node.
    pub out: ValueId,
    /// llama.cpp's name of the result, if it has one.
    pub tap: Option<Tap>,
}

/// The forward pass of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The ops in order of execution.
    pub nodes: Vec<Node>,
    /// The values' shapes.
    pub values: Vec<ValueInfo>,
    /// Layers.
    pub n_layer: usize,
    /// What each layer hands on, (rows, n_embd).
    pub layers: Vec<ValueId>,
    /// The final norm's result, (wanted rows, n_embd).
    pub hidden: ValueId,
    /// The logits, (wanted rows, n_vocab).
    pub logits: ValueId,
}

/// What is wrong with a graph; node numbers count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum GraphError {
    /// A node reads a value that no earlier node wrote.
    #[error("node {node} reads value {value} before it is written")]
    Undefined { node: usize, value: u32 },
    /// Two nodes write one value, or the value does not exist.
    #[error("node {node} cannot write value {value}")]
    BadOutput { node: usize, value: u32 },
    /// A node names a matrix or vector that does not exist.
    #[error("node {node} uses a weight that does not exist")]
    NoWeight { node: usize },
    /// Widths do not fit the op.
    #[error("node {node}: {what}: expected {expected}, got {got}")]
    Width {
        node: usize,
        what: &'static str,
        expected: usize,
        got: usize,
    },
    /// Rows do not fit the op.
    #[error("node {node}: operands have different rows")]
    RowsDiffer { node: usize },
    /// A layer attends before writing its keys and values, or writes them twice or never.
    #[error(
        "node {node}: layer {layer}: keys and values must be written once, before they are read"
    )]
    Cache { node: usize, layer: usize },
    /// A value that nobody wrote is a result.
    #[error("value {value} is a result but is never written")]
    NoResult { value: u32 },
}

impl Graph {
    /// For every value the index of the last node that reads it (of the node that writes it, if
    /// none does): after that node its storage can be reused. Results live on: their entry is
    /// `nodes.len()`.
    pub fn liveness(&self) -> Vec<usize> {
        let mut last = vec![0; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            last[node.out.index()] = i;
            for v in node.op.inputs() {
                last[v.index()] = i;
            }
        }
        for v in [self.hidden, self.logits] {
            last[v.index()] = self.nodes.len();
        }
        last
    }

    /// The names of all taps in order, as `name-layer`.
    pub fn tap_names(&self) -> impl Iterator<Item = String> + '_ {
        self.nodes
            .iter()
            .filter_map(|n| n.tap)
            .map(|t| t.to_string())
    }

    /// Checks that every value is written once and before it is read, that widths and rows fit the
    /// ops and weights, and that each layer writes its cache once before attending.
    pub fn validate(&self, w: &Weights, h: &Hparams) -> Result<(), GraphError> {
        let mut check = Check {
            graph: self,
            w,
            h,
            written: vec![false; self.values.len()],
            cached: vec![false; self.n_layer],
        };
        for (i, node) in self.nodes.iter().enumerate() {
            check.node(i, node)?;
        }
        if let Some(layer) = check.cached.iter().position(|c| !c) {
            return Err(GraphError::Cache {
                node: self.nodes.len(),
                layer,
            });
        }
        let results = [self.hidden, self.logits];
        match self
            .layers
            .iter()
            .chain(&results)
            .find(|v| check.written.get(v.index()) != Some(&true))
        {
            Some(v) => Err(GraphError::NoResult { value: v.0 }),
            None => Ok(()),
        }
    }
}

/// The state of [`Graph::validate`].
struct Check<'a> {
    graph: &'a Graph,
    w: &'a Weights,
    h: &'a Hparams,
    written: Vec<bool>,
    cached: Vec<bool>,
}

impl Check<'_> {
    fn node(&mut self, i: usize, node: &Node) -> Result<(), GraphError> {
        for v in node.op.inputs() {
            if self.written.get(v.index()) != Some(&true) {
                return Err(GraphError::Undefined {
                    node: i,
                    value: v.0,
                });
            }
        }
        if self.written.get(node.out.index()) != Some(&false) {
            return Err(GraphError::BadOutput {
                node: i,
                value: node.out.0,
            });
        }
        let got = self.graph.values[node.out.index()];
        let want = self.result(i, &node.op)?;
        same(i, "result", want.width, got.width)?;
        if want.rows != got.rows {
            return Err(GraphError::RowsDiffer { node: i });
        }
        self.written[node.out.index()] = true;
        Ok(())
    }

    /// The shape of an op's result; an error if its operands do not fit.
    fn result(&mut self, i: usize, op: &Op) -> Result<ValueInfo, GraphError> {
        let info = |v: ValueId| self.graph.values[v.index()];
        Ok(match *op {
            Op::Embed { table } => ValueInfo {
                width: self.matrix(i, table)?.1,
                rows: Rows::All,
            },
            Op::RmsNorm {
                x, weight, group, ..
            } => {
                same(i, "norm weight", group, self.vector(i, weight)?)?;
                whole(i, "normalised width", group, info(x).width)?;
                info(x)
            }
            Op::MatMul { x, w } => {
                let (rows, cols) = self.matrix(i, w)?;
                same(i, "matrix input", cols, info(x).width)?;
                ValueInfo {
                    width: rows,
                    ..info(x)
                }
            }
            Op::AddBias { x, bias } => {
                same(i, "bias", info(x).width, self.vector(i, bias)?)?;
                info(x)
            }
            Op::Rope { x, head_dim } => {
                same(i, "head", self.h.head_dim(), head_dim)?;
                whole(i, "heads", head_dim, info(x).width)?;
                info(x)
            }
            Op::KvWrite { k, v, layer } => {
                same(i, "keys", self.h.kv_width(), info(k).width)?;
                same(i, "values", self.h.kv_width(), info(v).width)?;
                if self.cached.get(layer) != Some(&false) {
                    return Err(GraphError::Cache { node: i, layer });
                }
                self.cached[layer] = true;
                self.same_rows(i, k, v)?;
                ValueInfo {
                    width: 0,
                    ..info(k)
                }
            }
            Op::Attention { q, layer, .. } => {
                same(i, "queries", self.h.q_width(), info(q).width)?;
                if self.cached.get(layer) != Some(&true) {
                    return Err(GraphError::Cache { node: i, layer });
                }
                info(q)
            }
            Op::SwiGlu { gate: a, up: b } | Op::Add { a, b } => {
                same(i, "second operand", info(a).width, info(b).width)?;
                self.same_rows(i, a, b)?;
                info(a)
            }
            Op::SelectRows { x } if info(x).rows == Rows::Wanted => {
                return Err(GraphError::RowsDiffer { node: i });
            }
            Op::SelectRows { x } => ValueInfo {
                rows: Rows::Wanted,
                ..info(x)
            },
        })
    }

    fn matrix(&self, node: usize, id: WeightId) -> Result<(usize, usize), GraphError> {
        let m = self
            .w
            .matrices
            .get(id.0 as usize)
            .ok_or(GraphError::NoWeight { node })?;
        Ok((m.rows as usize, m.cols as usize))
    }

    fn vector(&self, node: usize, id: VecId) -> Result<usize, GraphError> {
        self.w
            .vectors
            .get(id.0 as usize)
            .map(|v| v.data.len())
            .ok_or(GraphError::NoWeight { node })
    }

    fn same_rows(&self, node: usize, a: ValueId, b: ValueId) -> Result<(), GraphError> {
        let rows = |v: ValueId| self.graph.values[v.index()].rows;
        if rows(a) == rows(b) {
            Ok(())
        } else {
            Err(GraphError::RowsDiffer { node })
        }
    }
}

fn same(node: usize, what: &'static str, expected: usize, got: usize) -> Result<(), GraphError> {
    if expected == got {
        Ok(())
    } else {
        Err(GraphError::Width {
            node,
            what,
            expected,
            got,
        })
    }
}

/// `got` must be a whole number of groups.
fn whole(node: usize, what: &'static str, group: usize, got: usize) -> Result<(), GraphError> {
    if group > 0 && got > 0 && got.is_multiple_of(group) {
        return Ok(());
    }
    Err(GraphError::Width {
        node,
        what,
        expected: group,
        got,
    })
}
