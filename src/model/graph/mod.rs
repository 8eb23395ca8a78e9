//! The forward pass as data: a list of coarse named ops that every backend executes.
//!
//! Values are matrices of one row per token; their width is fixed, their row count is that of the
//! batch until `Op::SelectRows` keeps the rows with outputs. A node's tap says what llama.cpp calls
//! the same tensor.

mod check;
mod nodes;

use std::ops::Range;

use octavo_kernels::{Activation, Function, Rope, ValueShape};

pub use nodes::{Named, Nodes, Norm, at, once};

use super::hparams::CacheGroup;
use super::taps::Tap;
use super::weights::{Tensors, VecId, WeightId};

/// A value of the graph, by its index in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Returns the index in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation on values of the graph.
pub type Op = octavo_kernels::Op<ValueId, WeightId, VecId, WeightId>;

/// An op, its output and the output's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Output; every value is written by exactly one node.
    pub out: ValueId,
    /// llama.cpp's name of the result, if it has one; otherwise set if the result is the input of a
    /// product.
    pub tap: Option<Tap>,
}

/// The forward pass of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The ops in order of execution.
    pub nodes: Vec<Node>,
    /// The values' shapes.
    pub values: Vec<ValueShape>,
    /// Values in each part of a sequence's state; ops refer to them by index.
    pub states: Vec<usize>,
    /// Number of layers.
    pub n_layer: usize,
    /// Index in [`Graph::nodes`] of the first layer's first node; those before it embed the tokens.
    pub first_layer: usize,
    /// Width of the rows that come with a step, instead of token ids or beside them; 0 if there
    /// are none.
    pub input: usize,
    /// Width of a row that may replace a token's embedding; 0 if none may.
    pub embedding_input_width: usize,
    /// Keys and values are another model's: the graph reads them and writes none.
    pub borrows_cache: bool,
    /// Output of each layer, (rows, n_embd).
    pub layers: Vec<ValueId>,
    /// Result of the final norm, or the output of a model without logits,
    /// (rows with outputs, n_embd).
    pub hidden: ValueId,
    /// Rows of the final norm that can be read after a step, for an MTP layer: of all
    /// tokens, or in such a layer itself of those with outputs. In an assistant, rows with
    /// outputs in the width of its target.
    pub kept: Option<ValueId>,
    /// Logits, (rows with outputs, n_vocab); the same as [`Graph::hidden`] where a model has none.
    pub logits: ValueId,
}

/// Rows that the last layer and the final norm compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HiddenRows {
    /// Those with outputs.
    #[default]
    Outputs,
    /// All, for an MTP layer to read.
    All,
}

/// Faults of a graph; node numbers count from 0.
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
    /// A node refers to a RoPE table that the model does not have.
    #[error("node {node}: no table {rope} of angles")]
    Rope { node: usize, rope: usize },
    /// Keys and values of a layer of the cache are read before they are written, written twice, or
    /// never written.
    #[error(
        "node {node}: layer {layer} of the cache: keys and values must be written once, before \
         they are read"
    )]
    Cache { node: usize, layer: usize },
    /// A part of the state does not exist, or is not used by exactly one node.
    #[error("node {node}: state {state}: expected one node that keeps it")]
    State { node: usize, state: usize },
    /// A node takes rows that come with a step, and there are none.
    #[error("node {node} takes rows that nobody gives")]
    NoInput { node: usize },
    /// A result is a value that no node writes.
    #[error("value {value} is a result but is never written")]
    NoResult { value: u32 },
}

impl Graph {
    /// Returns the nodes of a layer: those after the previous layer's output, up to its own.
    ///
    /// # Panics
    /// If there is no such layer, or no node writes its output; [`Graph::validate`] checks that.
    pub fn layer_nodes(&self, layer: usize) -> Range<usize> {
        let end = |layer: usize| {
            let is_last = |node: &Node| node.out == self.layers[layer];
            let last = self.nodes.iter().position(is_last);
            1 + last.expect("a sound graph writes every layer's output")
        };
        let start = layer.checked_sub(1).map_or(self.first_layer, end);
        start..end(layer)
    }

    /// Returns the nodes of a layer's experts, if it has any: from the first product with the
    /// chosen experts to their weighted sum, without the choice itself and without a shared expert.
    ///
    /// # Panics
    /// As [`Graph::layer_nodes`].
    pub fn expert_nodes(&self, layer: usize) -> Option<Range<usize>> {
        let nodes = self.layer_nodes(layer);
        let op = |at: usize| self.nodes[at].op;
        let sum = nodes
            .clone()
            .rfind(|at| matches!(op(*at), Op::ExpertSum { .. }))?;
        let chosen = |at: usize| match op(at) {
            Op::ExpertMatMul { ids, .. } => Some(ids),
            _ => None,
        };
        // products by heads are products with experts too, with other ids
        let ids = (nodes.start..sum).rev().find_map(chosen)?;
        let first = nodes.clone().find(|at| chosen(*at) == Some(ids))?;
        Some(first..sum + 1)
    }

    /// Returns whether the last rows become logits; otherwise they are the result.
    pub fn has_logits(&self) -> bool {
        self.logits != self.hidden
    }

    /// Returns the name of [`Graph::hidden`].
    ///
    /// # Panics
    /// If it has no name; builders always give it one.
    pub fn hidden_tap(&self) -> Tap {
        let node = self.nodes.iter().find(|node| node.out == self.hidden);
        let tap = node.and_then(|node| node.tap);
        tap.expect("builders name the rows that a model ends with")
    }

    /// Returns the width of a row of the result: the vocabulary size, or the embedding width.
    pub fn output_width(&self) -> usize {
        self.values[self.logits.index()].width
    }

    /// Returns, for every value, the index of the last node that reads it (of the node that writes
    /// it, if none does): after that node its storage can be reused. Results are never freed: their
    /// entry is `nodes.len()`.
    pub fn liveness(&self) -> Vec<usize> {
        let mut last = vec![0; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            last[node.out.index()] = i;
            for v in node.op.inputs() {
                last[v.index()] = i;
            }
        }
        for v in [self.hidden, self.logits].into_iter().chain(self.kept) {
            last[v.index()] = self.nodes.len();
        }
        last
    }

    /// Returns whether any activation is GELU, which programs compute differently (llama.cpp reads
    /// an f16 table).
    pub fn uses_gelu(&self) -> bool {
        let gelu = |op: &Op| match op {
            Op::Gate { act, .. } => *act == Activation::Gelu,
            Op::Unary { f, .. } => *f == Function::Gelu,
            _ => false,
        };
        self.nodes.iter().any(|node| gelu(&node.op))
    }

    /// Returns all values that llama.cpp names, in order, with the nodes that compute them.
    pub fn taps(&self) -> impl Iterator<Item = (Tap, &Node)> {
        let taps = self.nodes.iter().filter_map(|n| Some((n.tap?, n)));
        taps.filter(|(tap, _)| tap.is_named())
    }

    /// Returns whether attention is causal throughout.
    pub fn is_causal(&self) -> bool {
        !self.nodes.iter().any(|node| node.op.sees_later())
    }

    /// Checks that every value is written once and before it is read, that widths and rows fit the
    /// ops and weights, and that each layer's keys and values are written before they are read:
    /// once, or again where a whole sequence is one step, because earlier contents are then no
    /// longer needed.
    ///
    /// # Errors
    /// The first fault found, with its node.
    pub fn validate(
        &self,
        tensors: &Tensors,
        ropes: &[Rope],
        caches: &[CacheGroup],
    ) -> Result<(), GraphError> {
        check::all(self, tensors, ropes, caches)
    }
}
