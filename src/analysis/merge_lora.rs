//! Merges LoRA adapters into a model's weights: a new GGUF file with the same keys.
//!
//! Tensors that an adapter changes become F16, as llama-export-lora writes them; those of F32 and
//! BF16 keep their type. All others are copied as they are.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorData, TensorInfo, TensorType, Writer};
use octavo_model::{Adapter, AdapterPair};
use octavo_quant::{dequantize, quantize};

/// Values that are merged at a time.
const PIECE: usize = 1 << 20;

/// Reason why a model cannot be merged.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// Reading the model or writing the new one failed.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A weight that the adapters move beyond the numbers of its type.
    #[error("tensor {tensor}: {value} does not fit {ty}: expected a smaller scale")]
    TooLarge {
        tensor: String,
        value: f32,
        ty: TensorType,
    },
}

/// An adapter's part in a tensor, with its values.
struct Part<'a> {
    pair: &'a AdapterPair,
    a: Vec<f32>,
    b: Vec<f32>,
    scale: f32,
}

/// Returns the type of a merged tensor.
fn merged_type(ty: TensorType) -> TensorType {
    match ty {
        TensorType::F32 | TensorType::BF16 => ty,
        _ => TensorType::F16,
    }
}

/// Writes a model with adapters, each with its scale, merged into its weights; returns the size of
/// the file. `progress` receives the name of each tensor when it is written, and whether it is
/// changed.
///
/// # Errors
/// [`enum@Error`]; the file does not exist then.
pub fn merge(
    gguf: &Gguf,
    adapters: &[(Adapter, f32)],
    path: &Path,
    progress: &mut dyn FnMut(&TensorInfo, Option<TensorType>),
) -> Result<u64, Error> {
    let failure = RefCell::new(None);
    let progress = RefCell::new(progress);
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for (index, tensor) in gguf.tensors().iter().enumerate() {
        let parts: Vec<(&Adapter, &AdapterPair, f32)> = adapters
            .iter()
            .filter_map(|(adapter, scale)| {
                let pair = adapter.pairs.iter().find(|pair| pair.tensor == index);
                pair.map(|pair| (adapter, pair, *scale))
            })
            .collect();
        let (progress, failure) = (&progress, &failure);
        let ty = match parts.is_empty() {
            true => tensor.ty,
            false => merged_type(tensor.ty),
        };
        let data = TensorData::stream(move |out| {
            let changed = (!parts.is_empty()).then_some(ty);
            (progress.borrow_mut())(tensor, changed);
            if parts.is_empty() {
                return copy(gguf, tensor, out);
            }
            let values = |(adapter, pair, scale): &(&Adapter, &'_ AdapterPair, f32)| {
                let [a, b] = pair.halves.map(|half| adapter.values(half));
                (a, b, scale * pair.scale)
            };
            let parts: Vec<Part<'_>> = parts
                .iter()
                .map(|part| {
                    let (a, b, scale) = values(part);
                    Part {
                        pair: part.1,
                        a,
                        b,
                        scale,
                    }
                })
                .collect();
            write_merged(gguf, tensor, &parts, out).map_err(|error| match error {
                Failure::Io(error) => error,
                Failure::Merge(error) => {
                    *failure.borrow_mut() = Some(error);
                    io::Error::other("a weight that does not fit")
                }
            })
        });
        writer.tensor(&tensor.name, &tensor.dims, ty, data);
    }
    let written = writer.write_file(path);
    match failure.take() {
        Some(error) => Err(error),
        None => Ok(written?),
    }
}

enum Failure {
    Io(io::Error),
    Merge(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

/// Copies a tensor, whose rows may be made on request.
fn copy(gguf: &Gguf, tensor: &TensorInfo, out: &mut dyn io::Write) -> io::Result<()> {
    gguf.check(tensor).map_err(io::Error::other)?;
    let (row, all) = (row_bytes(tensor), tensor.bytes as usize);
    let step = (PIECE / row.max(1)).max(1) * row.max(1);
    let mut bytes = Vec::new();
    for at in (0..all).step_by(step) {
        bytes.resize(step.min(all - at), 0);
        gguf.read(tensor, at, &mut bytes);
        out.write_all(&bytes)?;
    }
    gguf.release(tensor);
    Ok(())
}

/// Returns the bytes of a row.
fn row_bytes(tensor: &TensorInfo) -> usize {
    let cols = tensor.dims.first().copied().unwrap_or(1);
    tensor.ty.row_bytes(cols).unwrap_or(0) as usize
}

/// Writes a tensor with the parts of its adapters added.
fn write_merged(
    gguf: &Gguf,
    tensor: &TensorInfo,
    parts: &[Part<'_>],
    out: &mut dyn io::Write,
) -> Result<(), Failure> {
    gguf.check(tensor).map_err(io::Error::other)?;
    let cols = tensor.dims.first().map_or(1, |n| *n as usize);
    let rows = tensor.dims.iter().skip(1).product::<u64>() as usize;
    let (each, ty) = (row_bytes(tensor), merged_type(tensor.ty));
    let step = (PIECE / cols).max(1);
    let (mut raw, mut values) = (Vec::new(), Vec::new());
    for first in (0..rows).step_by(step) {
        let n = step.min(rows - first);
        raw.resize(n * each, 0);
        values.resize(n * cols, 0.0);
        gguf.read(tensor, first * each, &mut raw);
        dequantize(tensor.ty, &raw, &mut values).map_err(io::Error::other)?;
        for (row, values) in (first..).zip(values.chunks_exact_mut(cols)) {
            parts.iter().for_each(|part| part.add(row, rows, values));
        }
        let limit = match ty {
            TensorType::F16 => 65504.0,
            _ => f32::MAX,
        };
        let fits = |x: &&f32| !(x.is_finite() && x.abs() <= limit);
        if let Some(value) = values.iter().find(fits) {
            return Err(Failure::Merge(Error::TooLarge {
                tensor: tensor.name.clone(),
                value: *value,
                ty,
            }));
        }
        let mut bytes = Vec::new();
        quantize(ty, &values, cols, None, &mut bytes).map_err(io::Error::other)?;
        out.write_all(&bytes)?;
    }
    gguf.release(tensor);
    Ok(())
}

impl Part<'_> {
    /// Adds to a row of the tensor, of `rows` in all.
    fn add(&self, row: usize, rows: usize, values: &mut [f32]) {
        let (rank, cols) = (self.pair.rank, values.len());
        if self.pair.is_table {
            // A has a row for each token, B one for each value
            let of_token = &self.a[row * rank..(row + 1) * rank];
            for (value, b) in values.iter_mut().zip(self.b.chunks_exact(rank)) {
                let sum: f32 = of_token.iter().zip(b).map(|(a, b)| a * b).sum();
                *value += self.scale * sum;
            }
            return;
        }
        let expert = row / (rows / self.pair.experts).max(1);
        let a = &self.a[expert * rank * cols..(expert + 1) * rank * cols];
        let b = &self.b[row * rank..(row + 1) * rank];
        for (b, a) in b.iter().zip(a.chunks_exact(cols)) {
            let factor = self.scale * b;
            for (value, a) in values.iter_mut().zip(a) {
                *value += factor * a;
            }
        }
    }
}
