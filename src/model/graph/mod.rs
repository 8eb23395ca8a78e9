//! The forward pass as data: a list of coarse named ops that every backend executes.
//!
//! Values are matrices of one row per token; their width is fixed, their row count is that of the
//! batch until `Op::SelectRows` keeps the rows whose logits are wanted. A node's tap says what
//! llama.cpp calls the same tensor.

mod check;
mod nodes;

use octavo_kernels::{Activation, Function, Rope, ValueShape};

pub use nodes::{Named, Nodes, Norm, at, once};

use super::hparams::CacheGroup;
use super::taps::Tap;
use super::weights::{Tensors, VecId, WeightId};

/// A value of the graph, by its place in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The place in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation on values of the graph.
pub type Op = octavo_kernels::Op<ValueId, WeightId, VecId, WeightId>;

/// An op, where its result goes, and the result's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Where to; every value is written by exactly one node.
    pub out: ValueId,
    /// Which named value the result is, if it has a name, or which input of a product.
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
    /// Values of a row that comes with a step and that the graph begins with, in the place of token
    /// ids; 0 if it begins with these.
    pub input: usize,
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
    /// Keys and values of a layer of the cache are read before they are written, or they are
    /// written twice or never.
    #[error(
        "node {node}: layer {layer} of the cache: keys and values must be written once, before \
         they are read"
    )]
    Cache { node: usize, layer: usize },
    /// A part of the state that does not exist, that two nodes have, or none.
    #[error("node {node}: state {state}: expected one node that keeps it")]
    State { node: usize, state: usize },
    /// A node takes rows that come with a step, and none do.
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

    /// All values that llama.cpp names, in order, with the nodes that make them.
    pub fn taps(&self) -> impl Iterator<Item = (Tap, &Node)> {
        let taps = self.nodes.iter().filter_map(|n| Some((n.tap?, n)));
        taps.filter(|(tap, _)| tap.is_named())
    }

    /// Whether no row sees a later one.
    pub fn is_causal(&self) -> bool {
        !self.nodes.iter().any(|node| node.op.sees_later())
    }

    /// Checks that every value is written once and before it is read, that widths and rows fit the
    /// ops and weights, and that each layer's keys and values are written before they are read:
    /// once, or again where a whole sequence is one step, so that what was read is over.
    ///
    /// # Errors
    /// What is wrong with which node.
    pub fn validate(
        &self,
        tensors: &Tensors,
        ropes: &[Rope],
        caches: &[CacheGroup],
    ) -> Result<(), GraphError> {
        check::all(self, tensors, ropes, caches)
    }
}
