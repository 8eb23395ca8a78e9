//! Prompt caches of `llama-completion --prompt-cache FILE`: the prompt's ids and every layer's keys
//! (after RoPE) and values, as llama.cpp's cache held them before the last token of the prompt.
//! Version 10 of the format.

use std::io::Read;
use std::path::Path;

use byteorder::{LittleEndian, ReadBytesExt};
use gguf_rs_lite::TensorType;

use super::{bad, whole};
use crate::Error;

/// "ggsn", in the file's byte order.
pub(super) const MAGIC: &[u8] = b"nsgg";
const VERSION: u32 = 10;

/// A prompt's cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Prompt ids; the cache holds all but the last.
    pub tokens: Vec<u32>,
    /// `general.architecture` of the model.
    pub architecture: String,
    /// Positions in the cache.
    pub n_cells: usize,
    /// Per layer: keys and values, `(n_cells, n_head_kv * head_dim)` each.
    pub layers: Vec<(Vec<f32>, Vec<f32>)>,
    /// Width of a row of keys, and of values.
    pub widths: (usize, usize),
}

/// Reads front to back; every length is compared with what is left before it is used.
struct Cursor<'a> {
    path: &'a Path,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn failed(&self, field: &str) -> Error {
        bad(
            self.path,
            field,
            "more bytes",
            format!("{} left", self.rest.len()),
        )
    }

    fn u32(&mut self, field: &str) -> Result<u32, Error> {
        self.rest
            .read_u32::<LittleEndian>()
            .map_err(|_| self.failed(field))
    }

    fn u64(&mut self, field: &str) -> Result<u64, Error> {
        self.rest
            .read_u64::<LittleEndian>()
            .map_err(|_| self.failed(field))
    }

    fn take(&mut self, n: u64, field: &str) -> Result<&'a [u8], Error> {
        let split = usize::try_from(n)
            .ok()
            .and_then(|n| self.rest.split_at_checked(n));
        let (head, rest) = split.ok_or_else(|| self.failed(field))?;
        self.rest = rest;
        Ok(head)
    }

    fn expect(&mut self, field: &str, expected: u32) -> Result<(), Error> {
        let got = self.u32(field)?;
        if got == expected {
            Ok(())
        } else {
            Err(bad(self.path, field, expected.to_string(), got.to_string()))
        }
    }

    /// Reads the element type of one cache.
    fn element(&mut self, field: &str) -> Result<TensorType, Error> {
        let id = self.u32(field)?;
        let ty = TensorType::all().find(|ty| ty.id() == id);
        ty.ok_or_else(|| {
            bad(
                self.path,
                field,
                "the number of a tensor type",
                id.to_string(),
            )
        })
    }
}

/// Reads a prompt cache with one stream of cells in order.
///
/// # Errors
/// Names the file and the field.
pub fn read(path: &Path) -> Result<Session, Error> {
    let bytes = whole(path)?;
    let mut c = Cursor { path, rest: &bytes };
    c.take(MAGIC.len() as u64, "magic")?;
    c.expect("version", VERSION)?;
    let n_tokens = c.u32("number of tokens")?;
    let ids = c.take(u64::from(n_tokens) * 4, "tokens")?;
    let tokens = ids
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    let len = c.u32("length of the architecture")?;
    let architecture = String::from_utf8_lossy(c.take(len.into(), "architecture")?).into_owned();
    c.expect("number of streams", 1)?;
    let n_cells = c.u32("number of cells")?;
    for cell in 0..n_cells {
        c.expect("position of a cell", cell)?;
        let sequences = c.u32("sequences of a cell")?;
        c.take(u64::from(sequences) * 4, "sequences of a cell")?;
    }
    let transposed = match c.u32("whether values are transposed")? {
        0 => false,
        1 => true,
        got => {
            return Err(bad(
                path,
                "whether values are transposed",
                "0 or 1",
                got.to_string(),
            ));
        }
    };
    let n_layer = c.u32("number of layers")?;
    let n_cells = n_cells as usize;
    let mut keys = Vec::new();
    let mut widths = (0, 0);
    for _ in 0..n_layer {
        let (width, values) = rows(&mut c, n_cells, "keys")?;
        widths.0 = width;
        keys.push(values);
    }
    let mut layers = Vec::new();
    for keys in keys {
        let (width, values) = if transposed {
            columns(&mut c, n_cells)?
        } else {
            rows(&mut c, n_cells, "values")?
        };
        widths.1 = width;
        layers.push((keys, values));
    }
    let mut end = [0];
    match c.rest.read(&mut end) {
        Ok(0) => Ok(Session {
            tokens,
            architecture,
            n_cells,
            layers,
            widths,
        }),
        _ => Err(bad(
            path,
            "size",
            "nothing after the last layer",
            format!("{} bytes", c.rest.len() + 1),
        )),
    }
}

fn dequantize(c: &Cursor<'_>, ty: TensorType, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let n = bytes.len() / ty.block_bytes() * ty.block_len();
    let mut out = vec![0.0; n];
    octavo_quant::dequantize(ty, bytes, &mut out).map_err(|error| {
        bad(
            c.path,
            "cells",
            format!("{} rows", ty.name()),
            error.to_string(),
        )
    })?;
    Ok(out)
}

/// Reads a cache stored as rows: type, bytes of a row, rows.
fn rows(c: &mut Cursor<'_>, n_cells: usize, field: &str) -> Result<(usize, Vec<f32>), Error> {
    let ty = c.element(field)?;
    let row = c.u64(field)?;
    let total = row
        .checked_mul(n_cells as u64)
        .ok_or_else(|| c.failed(field))?;
    let bytes = c.take(total, field)?;
    let values = dequantize(c, ty, bytes)?;
    Ok((values.len() / n_cells.max(1), values))
}

/// Reads a transposed cache: type, bytes of an element, rows of the matrix, then the matrix.
fn columns(c: &mut Cursor<'_>, n_cells: usize) -> Result<(usize, Vec<f32>), Error> {
    let ty = c.element("values")?;
    let size = c.u32("bytes of a value")?;
    let width = c.u32("width of the values")?;
    if ty.block_len() != 1 || size as usize != ty.block_bytes() {
        return Err(bad(
            c.path,
            "bytes of a value",
            ty.block_bytes().to_string(),
            size.to_string(),
        ));
    }
    let total = u64::from(size) * u64::from(width) * n_cells as u64;
    let bytes = c.take(total, "values")?;
    let transposed = dequantize(c, ty, bytes)?;
    let width = width as usize;
    let mut values = vec![0.0; transposed.len()];
    for (channel, column) in transposed.chunks_exact(n_cells.max(1)).enumerate() {
        for (cell, value) in column.iter().enumerate() {
            values[cell * width + channel] = *value;
        }
    }
    Ok((width, values))
}
