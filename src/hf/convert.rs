//! A folder as a GGUF file.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorData, TensorInfo, TensorType, Writer};
use half::f16;
use octavo_quant::{dequantize, quantize};

use super::Error;

/// Rows that are converted at a time.
const ROWS: usize = 64;
/// The version of the quantized formats of GGUF files.
const QUANTIZATION_VERSION: u32 = 2;

/// What became of a tensor.
#[derive(Clone, Debug)]
pub struct Converted<'a> {
    /// As it is in the folder.
    pub tensor: &'a TensorInfo,
    /// The type it got.
    pub to: TensorType,
    /// For groups that became Q4_1 blocks, the largest difference that rounding `-zero * scale` to f16 made, in steps of
    /// the group's scale. Scales and codes are the same.
    pub rounding: Option<f32>,
}

/// The type that a tensor gets: `to` for matrices, F32 for vectors. Q4_1 is for AWQ groups; other matrices stay as they
/// are then, and without a `to`.
fn target(tensor: &TensorInfo, to: Option<TensorType>) -> TensorType {
    let groups = TensorType::AWQ.contains(&tensor.ty);
    match to {
        _ if tensor.dims.len() < 2 => TensorType::F32,
        None | Some(TensorType::Q4_1) => {
            if groups {
                TensorType::Q4_1
            } else {
                tensor.ty
            }
        }
        Some(to) => to,
    }
}

/// Writes the folder `gguf` as a GGUF file: metadata and tokenizer as they are, AWQ groups as blocks of Q4_1 unless `to`
/// says F16, BF16 or F32, which all matrices get then. `done` hears of each tensor. Returns the bytes written.
///
/// # Errors
/// Values that do not fit the type, and a failed write.
pub fn convert(
    gguf: &Gguf,
    to: Option<TensorType>,
    path: &Path,
    done: &mut dyn FnMut(&Converted<'_>),
) -> Result<u64, Error> {
    let (failure, done) = (RefCell::new(None), RefCell::new(done));
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    let most = gguf.tensors().iter().max_by_key(|t| t.bytes).map(|t| target(t, to));
    let groups = gguf.tensors().iter().any(|t| target(t, to) == TensorType::Q4_1);
    let file_type = if groups { TensorType::Q4_1 } else { most.unwrap_or(TensorType::F32) };
    if let Some(number) = file_type_number(file_type) {
        writer.set("general.file_type", number);
    }
    writer.set("general.quantization_version", QUANTIZATION_VERSION);
    for tensor in gguf.tensors() {
        let to = target(tensor, to);
        let (failure, done) = (&failure, &done);
        let data = TensorData::stream(move |out| {
            let rounding = write_tensor(gguf, tensor, to, out).map_err(|error| match error {
                Failed::Write(error) => error,
                Failed::Value(error) => {
                    *failure.borrow_mut() = Some(error);
                    io::Error::other("a tensor could not be converted")
                }
            })?;
            (*done.borrow_mut())(&Converted { tensor, to, rounding });
            Ok(())
        });
        writer.tensor(&tensor.name, &tensor.dims, to, data);
    }
    let written = writer.write_file(path);
    match failure.take() {
        Some(error) => Err(error),
        None => Ok(written?),
    }
}

/// llama.cpp's number for files that are mostly of a type.
fn file_type_number(ty: TensorType) -> Option<u32> {
    match ty {
        TensorType::F32 => Some(0),
        TensorType::F16 => Some(1),
        TensorType::Q4_1 => Some(3),
        TensorType::BF16 => Some(32),
        _ => None,
    }
}

enum Failed {
    Write(io::Error),
    Value(Error),
}

fn write_tensor(gguf: &Gguf, tensor: &TensorInfo, to: TensorType, out: &mut dyn Write) -> Result<Option<f32>, Failed> {
    let bad = |expected: &str, got: String| {
        let (file, tensor) = (gguf.name().to_owned(), tensor.name.clone());
        Failed::Value(Error::Tensor { file, tensor, expected: expected.to_owned(), got })
    };
    let rows = tensor.dims.get(1).copied().unwrap_or(1) as usize;
    let row_bytes = tensor.bytes as usize / rows.max(1);
    let cols = tensor.dims.first().copied().unwrap_or(0) as usize;
    let groups = TensorType::AWQ.contains(&tensor.ty);
    let (mut from, mut values, mut blocks, mut rounding) = (Vec::new(), Vec::new(), Vec::new(), None);
    for first in (0..rows).step_by(ROWS) {
        let n = ROWS.min(rows - first);
        from.resize(n * row_bytes, 0);
        gguf.read(tensor, first * row_bytes, &mut from);
        if tensor.ty == to {
            out.write_all(&from).map_err(Failed::Write)?;
            continue;
        }
        blocks.clear();
        if groups && to == TensorType::Q4_1 {
            let most = q4_1(tensor.ty, &from, &mut blocks);
            let most = most.map_err(|m| bad("a zero point times a scale that f16 holds", m.to_string()))?;
            rounding = Some(rounding.map_or(most, |other: f32| other.max(most)));
        } else {
            values.resize(n * cols, 0.0);
            dequantize(tensor.ty, &from, &mut values).map_err(|e| bad("whole blocks", e.to_string()))?;
            quantize(to, &values, cols, None, &mut blocks).map_err(|e| bad("whole blocks", e.to_string()))?;
            if let Some(at) = octavo_quant::first_bad_block(to, &blocks) {
                return Err(bad(&format!("finite values that {to} holds"), values[at].to_string()));
            }
        }
        out.write_all(&blocks).map_err(Failed::Write)?;
    }
    gguf.release(tensor);
    Ok(rounding)
}

/// Groups as blocks of 32 with a minimum; the largest rounding of a minimum in steps, or the one that f16 does not hold.
fn q4_1(ty: TensorType, groups: &[u8], out: &mut Vec<u8>) -> Result<f32, f32> {
    let mut most = 0f32;
    for group in groups.chunks_exact(ty.block_bytes()) {
        let (head, codes) = group.split_at(3);
        let scale = f16::from_le_bytes([head[0], head[1]]).to_f32();
        let exact = -f32::from(head[2] & 15) * scale;
        let min = f16::from_f32(exact);
        if !min.is_finite() {
            return Err(exact);
        }
        if scale != 0.0 {
            most = most.max(((min.to_f32() - exact) / scale).abs());
        }
        for codes in codes.chunks_exact(16) {
            out.extend_from_slice(&head[..2]);
            out.extend_from_slice(&min.to_le_bytes());
            out.extend_from_slice(codes);
        }
    }
    Ok(most)
}
