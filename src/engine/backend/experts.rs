//! Experts that stay in the CPU's memory, and are computed there, in layers that run on a GPU.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_model::{Graph, Network, Op, WeightId};

use crate::error::Error;

/// Layers whose experts stay on the CPU, where these layers run on a GPU.
#[derive(Clone, Debug, Default)]
pub struct CpuExperts {
    /// The experts of this many first layers of the model.
    pub first: usize,
    /// In addition the experts whose tensors one of these names.
    pub tensors: Vec<TensorPattern>,
}

impl fmt::Display for CpuExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            usize::MAX => write!(f, "all layers")?,
            n => write!(f, "the first {n} layers")?,
        }
        let mut patterns = self.tensors.iter();
        patterns.try_for_each(|pattern| write!(f, ", {}", pattern.text))
    }
}

impl CpuExperts {
    /// Returns the choice of all layers.
    pub fn all() -> CpuExperts {
        CpuExperts {
            first: usize::MAX,
            tensors: Vec::new(),
        }
    }

    /// Returns whether it names none.
    pub fn is_empty(&self) -> bool {
        self.first == 0 && self.tensors.is_empty()
    }

    /// Returns the layers that it names and that have experts, in order.
    ///
    /// # Errors
    /// [`Error::CpuTensor`] if a pattern names a tensor that is no expert's, or a part of a layer's
    /// experts, or no tensor at all.
    pub(super) fn layers(&self, gguf: &Gguf, network: &dyn Network) -> Result<Vec<usize>, Error> {
        let experts = experts_of_layers(network);
        let mut chosen: Vec<bool> = (0..experts.len()).map(|layer| layer < self.first).collect();
        for pattern in &self.tensors {
            for layer in pattern.layers(gguf, &experts)? {
                chosen[layer] = true;
            }
        }
        let has_experts = |layer: &usize| chosen[*layer] && !experts[*layer].is_empty();
        Ok((0..experts.len()).filter(has_experts).collect())
    }
}

/// Returns the names of each layer's expert matrices.
fn experts_of_layers(network: &dyn Network) -> Vec<Vec<&str>> {
    let graph = network.graph();
    let names = |layer| {
        let weights = expert_weights(graph, layer).into_iter();
        let name = |w| network.tensors().matrix(w).name.as_str();
        weights.map(name).collect()
    };
    (0..graph.n_layer).map(names).collect()
}

/// Returns the weights of a layer's products with experts.
fn expert_weights(graph: &Graph, layer: usize) -> Vec<WeightId> {
    let nodes = graph.expert_nodes(layer).unwrap_or_default();
    let weight = |at: usize| match graph.nodes[at].op {
        Op::ExpertMatMul { w, .. } => Some(w),
        _ => None,
    };
    nodes.filter_map(weight).collect()
}

/// Returns the bytes of these layers' experts in the file.
pub(super) fn expert_bytes(network: &dyn Network, layers: &[usize]) -> u64 {
    let weights = layers.iter();
    let weights = weights.flat_map(|layer| expert_weights(network.graph(), *layer));
    weights
        .map(|w| network.tensors().matrix(w).n_bytes() as u64)
        .sum()
}

/// Returns the nodes of the experts of those of `layers` that are in a range, in order.
pub(super) fn nodes_of_experts(
    graph: &Graph,
    within: &Range<usize>,
    layers: &[usize],
) -> Vec<Range<usize>> {
    let layers = layers.iter().filter(|layer| within.contains(layer));
    layers
        .filter_map(|layer| graph.expert_nodes(*layer))
        .collect()
}

/// A choice of tensors by their names.
#[derive(Clone)]
pub struct TensorPattern {
    text: String,
    matches: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl fmt::Debug for TensorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TensorPattern").field(&self.text).finish()
    }
}

impl TensorPattern {
    /// Makes one of its text, for messages, and of what it says of a name.
    pub fn new(
        text: impl Into<String>,
        matches: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> TensorPattern {
        TensorPattern {
            text: text.into(),
            matches: Arc::new(matches),
        }
    }

    /// Returns the layers whose experts it names.
    fn layers(&self, gguf: &Gguf, experts: &[Vec<&str>]) -> Result<Vec<usize>, Error> {
        let refused = |got: String| Error::CpuTensor {
            file: gguf.name().to_owned(),
            pattern: self.text.clone(),
            got,
        };
        let tensors = gguf.tensors().iter();
        let named: Vec<&str> = tensors
            .map(|tensor| tensor.name.as_str())
            .filter(|name| (self.matches)(name))
            .collect();
        if named.is_empty() {
            return Err(refused("no tensor".to_owned()));
        }
        if let Some(other) = named.iter().find(|name| !is_of_experts(name)) {
            return Err(refused((*other).to_owned()));
        }
        let mut layers = Vec::new();
        for (layer, weights) in experts.iter().enumerate() {
            let is_named = |name: &&&str| (self.matches)(name);
            let left = weights.iter().find(|name| !is_named(name));
            match (weights.iter().find(is_named), left) {
                (Some(one), Some(left)) => return Err(refused(format!("{one} but not {left}"))),
                (Some(_), None) => layers.push(layer),
                (None, _) => {}
            }
        }
        Ok(layers)
    }
}

/// Whether a tensor is one of experts: a matrix, a bias or scales.
fn is_of_experts(name: &str) -> bool {
    let rest = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    rest.is_some_and(|(layer, part)| {
        layer.parse::<usize>().is_ok() && part.starts_with("ffn_") && part.contains("_exps.")
    })
}
