//! The forward pass as data for reports: every operation of a graph, with the names of its result
//! and of its weights, in the order of execution.

mod groups;
mod operation;
mod parts;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use octavo_kernels::{CacheLayer, RowSet};
use serde::{Serialize, Serializer};

pub use groups::{Group, of_any_layer};

use crate::graph::Op;
use crate::hparams::RopeHparams;
use crate::taps::{Tap, numbered};
use crate::weights::{RopeDivisors, VecId, WeightId, WeightRef};
use crate::{Model, Network};

/// The operations of a graph, in the order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// Operations before the first layer.
    pub embeddings: Vec<Operation>,
    /// Operations of each layer.
    pub layers: Vec<Vec<Operation>>,
    /// Operations after the last layer.
    pub head: Vec<Operation>,
    /// Outputs of the layers, as [`Operation::value`].
    outputs: Vec<u32>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    /// Number of the result among all values of the graph.
    pub value: u32,
    /// llama.cpp's name of the result, if it has one.
    #[serde(serialize_with = "tap_name")]
    pub name: Option<Tap>,
    /// Name of the operation.
    pub op: &'static str,
    /// Numbers of the values read.
    pub inputs: Vec<u32>,
    /// Layer whose keys and values are written or read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<usize>,
    /// Weights read.
    pub weights: Vec<Weight>,
    /// Parameters that determine the result.
    #[serde(serialize_with = "as_map")]
    pub parameters: Vec<Parameter>,
    /// Numbers per row of the result; 0 if there is none.
    pub width: usize,
    /// Heads or experts that a row is divided into; 1 if it is not divided.
    pub parts: usize,
    /// Rows of the result.
    #[serde(serialize_with = "rows_name")]
    pub rows: RowSet,
}

/// A weight that an operation reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// Name of the tensor, or a description of values that are not in the file.
    pub name: String,
    /// Type in the file; none for values that are not in it.
    #[serde(rename = "type")]
    pub ty: Option<&'static str>,
    /// Dimensions, innermost first, as in GGUF: inputs, outputs and, for experts, their number.
    pub shape: Vec<usize>,
    /// First row read, where the operation reads a part of the tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_row: Option<usize>,
}

/// A named number or word.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: Setting,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// A whole number.
    Count(usize),
    /// Several whole numbers.
    Counts(Vec<usize>),
    /// Any number.
    Number(f32),
    /// A word.
    Word(&'static str),
    /// Whether the parameter's name applies.
    Flag(bool),
}

impl Operation {
    /// Returns the parameter of this name, if there is one.
    pub fn parameter(&self, name: &str) -> Option<&Setting> {
        let found = self.parameters.iter().find(|p| p.name == name);
        found.map(|parameter| &parameter.value)
    }
}

impl Outline {
    /// Describes a text model.
    pub fn of_model(model: &Model) -> Outline {
        let angles = Angles {
            ropes: &model.hparams.ropes,
            divisors: model.weights.rope_divisors,
        };
        Outline::new(model, Some(angles))
    }

    /// Describes any other network, without the hyperparameters of its rotary angles.
    pub fn of(network: &dyn Network) -> Outline {
        Outline::new(network, None)
    }

    fn new(network: &dyn Network, angles: Option<Angles<'_>>) -> Outline {
        let graph = network.graph();
        let mut reader = Reader {
            network,
            angles,
            parts: parts::of_values(network),
            first_rows: FirstRows::new(network),
            writers: HashMap::new(),
        };
        let embeddings = reader.operations(0..graph.first_layer, 0);
        let layers: Vec<Vec<Operation>> = (0..graph.n_layer)
            .map(|layer| reader.operations(graph.layer_nodes(layer), layer))
            .collect();
        let end = match graph.n_layer.checked_sub(1) {
            Some(last) => graph.layer_nodes(last).end,
            None => graph.first_layer,
        };
        Outline {
            embeddings,
            layers,
            head: reader.operations(end..graph.nodes.len(), graph.n_layer),
            outputs: graph.layers.iter().map(|value| value.0).collect(),
        }
    }

    /// Returns the input of a layer: the previous layer's output, or the last value before the
    /// layers that layer 0 reads.
    pub fn layer_input(&self, layer: usize) -> Option<u32> {
        match layer.checked_sub(1) {
            Some(before) => self.outputs.get(before).copied(),
            None => {
                let first = self.layers.first()?;
                let is_embedded = |v: &u32| self.embeddings.iter().any(|op| op.value == *v);
                first.first()?.inputs.iter().copied().find(is_embedded)
            }
        }
    }

    /// Returns all operations in order.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        let layers = self.layers.iter().flatten();
        self.embeddings.iter().chain(layers).chain(&self.head)
    }
}

/// Hyperparameters of the rotary angles of a text model.
struct Angles<'a> {
    ropes: &'a [RopeHparams],
    divisors: RopeDivisors,
}

/// First rows of weights that are parts of tensors.
struct FirstRows {
    /// First row of each matrix, and below of each vector; `None` for a whole tensor.
    matrices: Vec<Option<usize>>,
    vectors: Vec<Option<usize>>,
}

impl FirstRows {
    fn new(network: &dyn Network) -> FirstRows {
        let tensors = network.tensors();
        let matrices = &tensors.matrices;
        let divided = matrices.iter().filter(|m| m.row_start > 0);
        let divided: HashSet<usize> = divided.map(|m| m.tensor).collect();
        let first = |m: &WeightRef| divided.contains(&m.tensor).then_some(m.row_start as usize);
        // parts of a vector follow each other
        let mut lengths: HashMap<&str, Vec<usize>> = HashMap::new();
        let in_file = || tensors.vectors.iter().filter(|v| !v.is_made);
        for v in in_file() {
            lengths.entry(&v.name).or_default().push(v.data.len());
        }
        let mut starts: HashMap<&str, usize> = HashMap::new();
        let vectors = tensors.vectors.iter().map(|v| {
            let is_part = !v.is_made && lengths.get(v.name.as_str())?.len() > 1;
            let start = starts.entry(&v.name).or_default();
            let first = *start;
            *start += v.data.len();
            is_part.then_some(first)
        });
        FirstRows {
            matrices: matrices.iter().map(first).collect(),
            vectors: vectors.collect(),
        }
    }

    fn of_matrix(&self, id: WeightId) -> Option<usize> {
        self.matrices[id.0 as usize]
    }

    fn of_vector(&self, id: VecId) -> Option<usize> {
        self.vectors[id.0 as usize]
    }
}

/// Translates nodes to operations.
struct Reader<'a> {
    network: &'a dyn Network,
    angles: Option<Angles<'a>>,
    /// Parts of each value's rows.
    parts: Vec<usize>,
    first_rows: FirstRows,
    /// Layers of the model that wrote the cache's layers most recently.
    writers: HashMap<CacheLayer, usize>,
}

impl Reader<'_> {
    /// Describes nodes of a layer.
    fn operations(&mut self, nodes: Range<usize>, layer: usize) -> Vec<Operation> {
        let graph = self.network.graph();
        let described = graph.nodes[nodes].iter().map(|node| {
            let cache = match node.op {
                Op::KvWrite { cache, .. } => {
                    self.writers.insert(cache, layer);
                    Some(layer)
                }
                Op::Attention { cache, .. } | Op::SelectKeys { cache, .. } => {
                    self.writers.get(&cache).copied()
                }
                _ => None,
            };
            let shape = graph.values[node.out.index()];
            Operation {
                value: node.out.0,
                name: node.tap.filter(Tap::is_named),
                op: operation::name(&node.op),
                inputs: node.op.inputs().map(|value| value.0).collect(),
                cache,
                weights: self.weights(&node.op),
                parameters: self.parameters(node),
                width: shape.width,
                parts: self.parts[node.out.index()],
                rows: shape.rows,
            }
        });
        described.collect()
    }
}

fn tap_name<S: Serializer>(name: &Option<Tap>, to: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(tap) => to.serialize_str(&numbered(tap, tap.nth)),
        None => to.serialize_none(),
    }
}

fn as_map<S: Serializer>(parameters: &[Parameter], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(parameters.iter().map(|p| (p.name, &p.value)))
}

fn rows_name<S: Serializer>(rows: &RowSet, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match rows {
        RowSet::All => "tokens",
        RowSet::Outputs => "outputs",
        RowSet::Merged(_) => "merged",
    })
}
