//! Makes AWQ weights: activation-aware scaling, then rounding to 4-bit groups (Lin et al., "AWQ:
//! Activation-aware Weight Quantization", 2023).
//!
//! A few input channels carry most of what a matrix multiplies. Scaling their weights up before
//! rounding, and scaling the inputs down by the same factor, makes their rounding errors smaller
//! and the other channels' larger; the division is free where it can be folded into an earlier
//! weight. Per group of matrices with the same input, the scales are `magnitude ^ ratio`, and the
//! ratio is chosen by a search for the one that changes the outputs least on calibration inputs.

mod activations;
mod search;

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, RowSource, TensorInfo, TensorType, View};
use octavo_quant::{dequantize, quantize};

pub use activations::{Activations, Inputs};
use octavo_engine::Engine;
use octavo_hf as hf;
use octavo_model::Hparams;
use search::{Linear, best_scales};

/// Quantization options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Weights per quantization group: 32, 64 or 128.
    pub group: usize,
    /// Number of threads.
    pub threads: usize,
}

/// Reasons a model cannot be quantized.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the message above them says
pub enum Error {
    #[error("group of {got}: expected 32, 64 or 128")]
    Group { got: usize },
    #[error("tensor {tensor}: rows of {got} weights, expected whole groups of {group}")]
    Rows {
        tensor: String,
        group: usize,
        got: u64,
    },
    #[error("tensor {tensor}: {got} rows, expected a multiple of 8, which AWQ packs in words")]
    Columns { tensor: String, got: u64 },
    #[error("calibration text: {got} tokens, expected at least {expected}")]
    TooShort { got: usize, expected: usize },
    #[error(transparent)]
    Quant(#[from] octavo_quant::Error),
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    #[error(transparent)]
    Folder(#[from] octavo_hf::Error),
}

/// Result of scaling the matrices that share one input.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Names of the matrices.
    pub tensors: Vec<String>,
    /// Exponent of the magnitudes that gives the scales; 0 where rounding to the nearest is best,
    /// or where no search was made.
    pub ratio: f32,
    /// Error of the outputs on the calibration inputs, relative to the outputs, with scales.
    pub error: f64,
    /// The same error without scales.
    pub unscaled: f64,
}

/// Matrices with the same input, and the tensor that produces it.
struct Group {
    /// Tensor whose rows (or values) are divided by the scales.
    before: String,
    /// Matrices whose columns are multiplied by the scales.
    matrices: Vec<String>,
}

/// Lists the groups of a layer, in the order in which they are scaled.
fn groups(layer: usize, gqa: bool) -> Vec<Group> {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let group = |before: &str, matrices: &[&str]| Group {
        before: name(before),
        matrices: matrices.iter().map(|m| name(m)).collect(),
    };
    let mut all = vec![group("attn_norm", &["attn_q", "attn_k", "attn_v"])];
    // with GQA, several query heads share a V head: its output cannot be scaled for each of them
    if !gqa {
        all.push(group("attn_v", &["attn_output"]));
    }
    all.push(group("ffn_norm", &["ffn_gate", "ffn_up"]));
    all.push(group("ffn_up", &["ffn_down"]));
    all
}

/// Dequantizes a tensor to f32.
fn values(gguf: &Gguf, t: &TensorInfo) -> Result<Vec<f32>, Error> {
    let mut values = vec![0.0; t.n_elements() as usize];
    dequantize(t.ty, gguf.data(t), &mut values)?;
    gguf.release(t);
    Ok(values)
}

/// Returns the tensor, or Q, K and V if it is fused QKV: HF folders store the three separately.
fn apart(t: &TensorInfo, h: &Hparams) -> Vec<TensorInfo> {
    let Some((stem, end)) = t.name.split_once(".attn_qkv.") else {
        return vec![t.clone()];
    };
    let layer = stem
        .strip_prefix("blk.")
        .and_then(|l| l.parse::<usize>().ok());
    let Some(layer) = layer.and_then(|l| h.layers.get(l)) else {
        return vec![t.clone()];
    };
    let part = |(name, rows): (&str, usize)| {
        let mut part = t.clone();
        part.name = format!("{stem}.{name}.{end}");
        if let Some(all) = part.dims.last_mut() {
            *all = rows as u64;
        }
        part
    };
    [
        ("attn_q", layer.q_width()),
        ("attn_k", layer.kv_width()),
        ("attn_v", layer.v_width()),
    ]
    .map(part)
    .into()
}

/// Weights of one layer as floats, by name.
struct Layer {
    tensors: Vec<(TensorInfo, Vec<f32>)>,
}

impl Layer {
    fn read(gguf: &Gguf, layer: usize, h: &Hparams) -> Result<Layer, Error> {
        let prefix = format!("blk.{layer}.");
        let mut tensors = Vec::new();
        for t in gguf
            .tensors()
            .iter()
            .filter(|t| t.name.starts_with(&prefix))
        {
            let mut all = values(gguf, t)?;
            for part in apart(t, h).into_iter().rev() {
                let values = all.split_off(all.len() - part.n_elements() as usize);
                tensors.push((part, values));
            }
        }
        Ok(Layer { tensors })
    }

    fn get(&mut self, name: &str) -> Option<&mut (TensorInfo, Vec<f32>)> {
        self.tensors.iter_mut().find(|t| t.0.name == name)
    }

    /// Multiplies the input columns of `matrices` by `scales` and divides the tensor before them.
    fn scale(&mut self, group: &Group, scales: &[f32]) {
        for name in &group.matrices {
            let Some((_, values)) = self.get(name) else {
                continue;
            };
            values
                .chunks_exact_mut(scales.len())
                .for_each(|row| row.iter_mut().zip(scales).for_each(|(w, s)| *w *= s));
        }
        let bias = group
            .before
            .strip_suffix(".weight")
            .map(|stem| format!("{stem}.bias"));
        for name in [Some(group.before.clone()), bias].into_iter().flatten() {
            let Some((_, values)) = self.get(&name) else {
                continue;
            };
            let row = values.len() / scales.len();
            values
                .chunks_exact_mut(row.max(1))
                .zip(scales)
                .for_each(|(row, s)| row.iter_mut().for_each(|w| *w /= s));
        }
    }
}

/// Serialized tensor rows.
struct Held {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl RowSource for Held {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let at = first as usize * self.row_bytes;
        out.copy_from_slice(&self.bytes[at..at + out.len()]);
    }
}

/// Checks whether [`quantized`] can run, before any calibration is spent on it; returns the type
/// that the layers' matrices will get.
///
/// # Errors
/// As [`quantized`].
pub fn check(engine: &Engine, options: Options) -> Result<TensorType, Error> {
    let (gguf, h) = (engine.gguf(), engine.hparams());
    let ty = TensorType::AWQ
        .into_iter()
        .find(|ty| ty.block_len() == options.group);
    let ty = ty.ok_or(Error::Group { got: options.group })?;
    // scales are folded into norms and products that only some architectures have
    hf::check_writable(gguf, h)?;
    check_shapes(gguf, h, options.group)?;
    Ok(ty)
}

/// Returns the model with the matrices of its layers in AWQ groups, its other matrices as F16 and
/// its vectors as F32. With `activations`, scales are searched for; without, weights are rounded as
/// they are. `done` is called after each group.
///
/// # Errors
/// [`Error::Folder`], [`Error::Group`], [`Error::Rows`], [`Error::Columns`].
pub fn quantized(
    engine: &Engine,
    activations: Option<&Activations>,
    options: Options,
    done: &mut dyn FnMut(&Scaled),
) -> Result<Gguf, Error> {
    let ty = check(engine, options)?;
    let (gguf, h) = (engine.gguf(), engine.hparams());
    let mut view = View::new(Path::new(gguf.name()));
    for (key, value) in gguf.keys() {
        view.set(key, value);
    }
    let target = |t: &TensorInfo| match t.dims.len() {
        2 if is_layer_matrix(t) => ty,
        2 => TensorType::F16,
        _ => TensorType::F32,
    };
    let mut put = |t: &TensorInfo, bytes: Vec<u8>| -> Result<(), Error> {
        let to = target(t);
        let row_bytes = to.row_bytes(t.dims[0]).map_or(0, |n| n as usize);
        view.made(
            &t.name,
            &t.dims,
            to,
            gguf.name(),
            Arc::new(Held { bytes, row_bytes }),
        )?;
        Ok(())
    };
    let rounded = |t: &TensorInfo, values: &[f32]| -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        quantize(target(t), values, t.dims[0] as usize, None, &mut bytes)?;
        Ok(bytes)
    };
    for t in gguf
        .tensors()
        .iter()
        .filter(|t| !t.name.starts_with("blk."))
    {
        // embeddings are large: skip the detour over f32 if they already have the target type
        let bytes = if t.ty == target(t) {
            gguf.data(t).to_vec()
        } else {
            rounded(t, &values(gguf, t)?)?
        };
        put(t, bytes)?;
    }
    for l in 0..h.n_layer() {
        let mut layer = Layer::read(gguf, l, h)?;
        if let Some(activations) = activations {
            let all = groups(l, h.layers[l].n_head != h.layers[l].n_head_kv);
            scale_groups(&mut layer, &all, ty, activations, options.threads, done)?;
        }
        for (t, values) in &layer.tensors {
            put(t, rounded(t, values)?)?;
        }
    }
    Ok(view.open()?)
}

/// Returns whether AWQ quantizes this tensor: a matrix inside a layer.
fn is_layer_matrix(t: &TensorInfo) -> bool {
    t.name.starts_with("blk.") && t.dims.len() == 2
}

/// Refuses matrices that AWQ's packing cannot hold: rows must consist of whole groups, and eight
/// columns share a 32-bit word.
fn check_shapes(gguf: &Gguf, h: &Hparams, group: usize) -> Result<(), Error> {
    let matrices = gguf.tensors().iter().filter(|t| is_layer_matrix(t));
    for t in matrices.flat_map(|t| apart(t, h)) {
        let tensor = t.name.clone();
        if !t.dims[0].is_multiple_of(group as u64) {
            return Err(Error::Rows {
                tensor,
                group,
                got: t.dims[0],
            });
        }
        if !t.dims[1].is_multiple_of(8) {
            return Err(Error::Columns {
                tensor,
                got: t.dims[1],
            });
        }
    }
    Ok(())
}

/// Scales each of a layer's groups by the best scales for its inputs. Groups whose inputs were not
/// recorded stay as they are. `done` is called after each scaled group.
fn scale_groups(
    layer: &mut Layer,
    groups: &[Group],
    ty: TensorType,
    activations: &Activations,
    threads: usize,
    done: &mut dyn FnMut(&Scaled),
) -> Result<(), Error> {
    for group in groups {
        let first = &group.matrices[0];
        let fused = || first.replace(".attn_q.", ".attn_qkv.");
        let Some(inputs) = activations.of(first).or_else(|| activations.of(&fused())) else {
            continue;
        };
        let linears: Vec<Linear<'_>> = layer
            .tensors
            .iter()
            .filter(|t| group.matrices.contains(&t.0.name))
            .map(|t| Linear { weights: &t.1, ty })
            .collect();
        let found = best_scales(&linears, inputs, threads)?;
        done(&Scaled {
            tensors: group.matrices.clone(),
            ratio: found.ratio,
            error: found.error,
            unscaled: found.unscaled,
        });
        layer.scale(group, &found.scales);
    }
    Ok(())
}
