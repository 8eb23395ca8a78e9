//! Control vectors: directions that are added to the outputs of layers, in llama.cpp's format.

use std::collections::BTreeMap;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

use super::{AdapterError, dequantized};
use crate::Model;
use crate::graph::{Graph, Node, Op, ValueId};
use crate::weights::{VecId, Vector};

/// Beginning of the names of the tensors.
const DIRECTION: &str = "direction.";

/// Directions of some layers, summed over files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlVector {
    /// `(n_embd)` for each layer that has one.
    layers: BTreeMap<usize, Vec<f32>>,
}

impl ControlVector {
    /// Adds `strength` times the directions of a file for a model.
    ///
    /// # Errors
    /// [`AdapterError`] for a tensor that is no direction of one of the model's layers.
    pub fn add(&mut self, gguf: &Gguf, model: &Model, strength: f32) -> Result<(), AdapterError> {
        const KEY: &str = "general.architecture";
        let file = || gguf.name().to_owned();
        let arch = gguf.str(KEY)?;
        if arch != Some("controlvector") {
            return Err(AdapterError::Key {
                file: file(),
                key: KEY,
                expected: "\"controlvector\"".to_owned(),
                got: arch.map_or("nothing".to_owned(), |arch| format!("{arch:?}")),
            });
        }
        if !model.graph.has_logits() || !model.hparams.is_causal() {
            let arch = model.hparams.arch.name();
            return Err(AdapterError::NoLayers { file: file(), arch });
        }
        if gguf.tensors().is_empty() {
            let expected = "direction.LAYER";
            return Err(AdapterError::Empty {
                file: file(),
                expected,
            });
        }
        for tensor in gguf.tensors() {
            let layer = layer_of(gguf, tensor, model)?;
            let values = values(gguf, tensor, model.hparams.n_embd())?;
            let own = self.layers.entry(layer);
            let own = own.or_insert_with(|| vec![0.0; values.len()]);
            own.iter_mut()
                .zip(&values)
                .for_each(|(own, value)| *own += strength * value);
        }
        Ok(())
    }

    /// Returns the layers that have a direction, with it.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.layers
            .iter()
            .map(|(layer, values)| (*layer, &values[..]))
    }
}

/// Returns the layer of a direction.
fn layer_of(gguf: &Gguf, tensor: &TensorInfo, model: &Model) -> Result<usize, AdapterError> {
    let number = tensor.name.strip_prefix(DIRECTION);
    let layer = number.and_then(|number| number.parse::<usize>().ok());
    let n_layer = model.hparams.n_layer();
    layer
        .filter(|layer| (1..n_layer).contains(layer))
        .ok_or_else(|| AdapterError::Direction {
            file: gguf.name().to_owned(),
            tensor: tensor.name.clone(),
            last: n_layer.saturating_sub(1),
        })
}

fn values(gguf: &Gguf, tensor: &TensorInfo, n_embd: usize) -> Result<Vec<f32>, AdapterError> {
    let (file, name) = (gguf.name().to_owned(), tensor.name.clone());
    if tensor.ty != TensorType::F32 {
        return Err(AdapterError::Type {
            file,
            tensor: name,
            ty: tensor.ty,
            expected: "F32",
        });
    }
    if tensor.dims != [n_embd as u64] {
        return Err(AdapterError::Shape {
            file,
            tensor: name,
            expected: format!("[{n_embd}]"),
            got: tensor.dims.clone(),
        });
    }
    let values = dequantized(gguf, tensor);
    match values.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(AdapterError::NotFinite {
            file,
            tensor: name,
            index,
            value: values[index],
        }),
        None => Ok(values),
    }
}

impl Model {
    /// Adds the directions of a control vector to the outputs of the layers from `first` to `last`.
    pub fn steer(&mut self, by: &ControlVector, [first, last]: [usize; 2]) {
        for (layer, values) in by.layers() {
            if !(first..=last).contains(&layer) {
                continue;
            }
            let vectors = &mut self.weights.tensors.vectors;
            vectors.push(Vector {
                name: format!("{DIRECTION}{layer}"),
                data: values.to_vec(),
                is_made: true,
            });
            let bias = VecId(vectors.len() as u32 - 1);
            add_to_layer(&mut self.graph, layer, bias);
        }
    }
}

/// Adds a vector to the output of a layer, which keeps its name.
fn add_to_layer(graph: &mut Graph, layer: usize, bias: VecId) {
    let out = graph.layers[layer];
    let at = graph.nodes.iter().position(|node| node.out == out);
    let at = at.expect("a sound graph writes every layer's output");
    let x = ValueId(graph.values.len() as u32);
    graph.values.push(graph.values[out.index()]);
    let sum = Node {
        op: Op::AddBias { x, bias },
        ..graph.nodes[at]
    };
    graph.nodes[at].out = x;
    graph.nodes[at].tap = None;
    graph.nodes.insert(at + 1, sum);
}
