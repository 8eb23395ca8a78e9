//! The forward pass as data: a list of coarse named ops that every backend executes.
//!
//! Values are matrices of one row per token; their width is fixed, their row count is that of the
//! batch until `Op::SelectRows` keeps the rows whose logits are wanted. A node's tap says what
//! llama.cpp calls the same tensor.

use octavo_kernels::{
    Activation, CacheLayer, CacheShape, Function, MatrixShape, ShapeError, Shapes, ValueShape,
};

use super::hparams::{Hparams, LayerHparams};
use super::taps::Tap;
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

/// One operation on values of the graph. Never [`Op::Input`](octavo_kernels::Op::Input): a graph is
/// a whole model and begins with token ids; a part of its layers that begins with another's rows is
/// a program, which an engine makes of it.
pub type Op = octavo_kernels::Op<ValueId, WeightId, VecId, WeightId>;

/// An op, where its result goes, and the result's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Where to; every value is written by exactly one node.
    pub out: ValueId,
    /// Which named value the result is, if it has a name.
    pub tap: Option<Tap>,
}

/// The forward pass of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The ops in order of execution.
    pub nodes: Vec<Node>,
    /// The values' shapes.
    pub values: Vec<ValueShape>,
    /// How many values each part of a sequence's state has; ops name them by number.
    pub states: Vec<usize>,
    /// Layers.
    pub n_layer: usize,
    /// Values of a row that may stand in the place of a token's embedding; 0 if none may.
    pub given: usize,
    /// What each layer hands on, (rows, n_embd).
    pub layers: Vec<ValueId>,
    /// The final norm's result, or what a model without logits gives, (wanted rows, n_embd).
    pub hidden: ValueId,
    /// The logits, (wanted rows, n_vocab); [`Graph::hidden`] where a model gives none.
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
    /// A table of angles that the model does not have.
    #[error("node {node}: no table {rope} of angles")]
    Rope { node: usize, rope: usize },
    /// A layer attends before writing its keys and values, or writes them twice or never.
    #[error(
        "node {node}: layer {layer}: keys and values must be written once, before they are read"
    )]
    Cache { node: usize, layer: usize },
    /// A part of the state that does not exist, that two nodes have, or none.
    #[error("node {node}: state {state}: expected one node that keeps it")]
    State { node: usize, state: usize },
    /// A node takes rows that come with a step: graphs begin with token ids.
    #[error("node {node} takes rows that nobody gives")]
    Given { node: usize },
    /// A value that nobody wrote is a result.
    #[error("value {value} is a result but is never written")]
    NoResult { value: u32 },
}

impl Graph {
    /// Whether its last rows become logits; otherwise they are the result.
    pub fn has_logits(&self) -> bool {
        self.logits != self.hidden
    }

    /// What [`Graph::hidden`] is called.
    ///
    /// # Panics
    /// If it has no name, which builders give it.
    pub fn hidden_tap(&self) -> Tap {
        let node = self.nodes.iter().find(|node| node.out == self.hidden);
        let tap = node.and_then(|node| node.tap);
        tap.expect("builders name the rows that a model ends with")
    }

    /// Numbers of a row of the result: as many as tokens, or as an embedding is wide.
    pub fn output_width(&self) -> usize {
        self.values[self.logits.index()].width
    }

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

    /// Whether a gate or a function of values is GELU, which not all programs compute alike.
    pub fn uses_gelu(&self) -> bool {
        let gelu = |op: &Op| match op {
            Op::Gate { act, .. } => *act == Activation::Gelu,
            Op::Unary { f, .. } => *f == Function::Gelu,
            _ => false,
        };
        self.nodes.iter().any(|node| gelu(&node.op))
    }

    /// All named values, in order, with the nodes that make them.
    pub fn taps(&self) -> impl Iterator<Item = (Tap, &Node)> {
        self.nodes.iter().filter_map(|n| Some((n.tap?, n)))
    }

    /// Checks that every value is written once and before it is read, that widths and rows fit the
    /// ops and weights, and that each layer writes its cache once before attending.
    pub fn validate(&self, w: &Weights, h: &Hparams) -> Result<(), GraphError> {
        let mut check = Check {
            graph: self,
            w,
            h,
            written: vec![false; self.values.len()],
            cached: h.caches.iter().map(|c| vec![false; c.n_layer]).collect(),
            seen: vec![false; self.states.len()],
        };
        for (i, node) in self.nodes.iter().enumerate() {
            check.node(i, node)?;
        }
        if let Some(state) = check.seen.iter().position(|seen| !seen) {
            let node = self.nodes.len();
            return Err(GraphError::State { node, state });
        }
        let is_cached =
            |l: &LayerHparams| !l.attends() || check.cached[l.cache.group][l.cache.layer];
        if let Some(layer) = h.layers.iter().position(|l| !is_cached(l)) {
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
    /// By group and layer of the cache.
    cached: Vec<Vec<bool>>,
    /// Which parts of the state a node has.
    seen: Vec<bool>,
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
        let shape = node.op.shape(self);
        shape
            .and_then(|shape| shape.expect(got))
            .map_err(|error| at_node(i, error, self.h))?;
        self.see_cache(i, &node.op)?;
        self.written[node.out.index()] = true;
        Ok(())
    }

    /// That each layer's cache is written once, before it is read, and that each part of the state
    /// is one node's.
    fn see_cache(&mut self, node: usize, op: &Op) -> Result<(), GraphError> {
        let (cache, written) = match *op {
            Op::KvWrite { cache, .. } => (cache, false),
            Op::Attention { cache, .. } => (cache, true),
            Op::CausalConv { state, .. } | Op::LinearAttention { state, .. } => {
                let before = std::mem::replace(&mut self.seen[state], true);
                return match before {
                    false => Ok(()),
                    true => Err(GraphError::State { node, state }),
                };
            }
            _ => return Ok(()),
        };
        let cached = &mut self.cached[cache.group][cache.layer];
        if *cached != written {
            let layer = layer_of(self.h, cache);
            return Err(GraphError::Cache { node, layer });
        }
        *cached = true;
        Ok(())
    }
}

/// The layer that is cached there, or its number in the group where none is.
fn layer_of(h: &Hparams, cache: CacheLayer) -> usize {
    h.layer_of(cache).unwrap_or(cache.layer)
}

/// What is wrong with the operands of a node.
fn at_node(node: usize, error: ShapeError, h: &Hparams) -> GraphError {
    match error {
        ShapeError::Width {
            what,
            expected,
            got,
        } => GraphError::Width {
            node,
            what,
            expected,
            got,
        },
        ShapeError::RowsDiffer => GraphError::RowsDiffer { node },
        ShapeError::NoWeight => GraphError::NoWeight { node },
        ShapeError::NoLayer(cache) => GraphError::Cache {
            node,
            layer: layer_of(h, cache),
        },
        ShapeError::NoState { state } => GraphError::State { node, state },
        ShapeError::NoRope { rope } => GraphError::Rope { node, rope },
        ShapeError::NoInput => GraphError::Given { node },
    }
}

impl Shapes<ValueId, WeightId, VecId, WeightId> for Check<'_> {
    fn value(&self, v: ValueId) -> ValueShape {
        self.graph.values[v.index()]
    }

    fn matrix(&self, id: &WeightId) -> Option<MatrixShape> {
        let m = self.w.matrices.get(id.0 as usize)?;
        Some(MatrixShape {
            rows: m.rows as usize,
            cols: m.cols as usize,
        })
    }

    fn vector(&self, id: &VecId) -> Option<usize> {
        Some(self.w.vectors.get(id.0 as usize)?.data.len())
    }

    fn table(&self, id: &WeightId) -> Option<MatrixShape> {
        self.matrix(id)
    }

    fn input(&self) -> Option<usize> {
        None
    }

    fn given(&self) -> usize {
        self.graph.given
    }

    fn rope(&self, rope: usize) -> Option<usize> {
        Some(self.h.ropes.get(rope)?.n_rot.value / 2)
    }

    fn state(&self, state: usize) -> Option<usize> {
        self.graph.states.get(state).copied()
    }

    fn cache(&self, group: usize) -> Option<CacheShape> {
        let group = self.h.caches.get(group)?;
        Some(CacheShape {
            layers: group.n_layer,
            head_dim: group.head_dim,
            width: group.n_head_kv * group.head_dim,
        })
    }
}
