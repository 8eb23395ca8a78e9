//! A weight matrix in the layout its kernel reads.

use crate::generic::gemm::KC;
use crate::isa::Isa;
use crate::pack;
use crate::pool::Pool;
use crate::table::{Gemv, Packed, table};
use octavo_quant::TensorType;
use std::sync::{Arc, Mutex};

/// Bytes that somebody else owns: a mapped file, usually.
pub trait Bytes: Send + Sync {
    /// Always the same bytes.
    fn bytes(&self) -> &[u8];
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Why a matrix cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// The bytes are not a matrix of this shape.
    #[error("{rows} x {cols} {ty}: expected {expected} bytes, got {got}")]
    Size {
        /// Element type.
        ty: TensorType,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Bytes of such a matrix.
        expected: String,
        /// Bytes given.
        got: usize,
    },
    /// A type that holds no weights.
    #[error("{0}: no kernel multiplies this type")]
    Type(TensorType),
}

/// 64-byte aligned storage.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

enum Data {
    /// Strips, one after the other.
    Packed(Vec<Line>),
    /// Rows as in the file.
    Rows(Arc<dyn Bytes>),
}

/// `y = W x` with W of `rows` x `cols`, in one of ggml's types.
pub struct Matrix {
    /// Element type in the file.
    pub ty: TensorType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    isa: Isa,
    data: Data,
    kernels: Option<Packed>,
    strip_bytes: usize,
}

/// Which preparation of the activations a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Integers with scales.
    Codes,
    /// The row itself.
    Floats,
    /// Tiles of tokens.
    Tiles,
}

impl Matrix {
    /// Takes a matrix of `rows` x `cols` in type `ty` from `source`. With `repack`, types that have kernels of their
    /// own are copied into strips, by all threads of `pool`; the source's bytes are not needed after that.
    ///
    /// # Errors
    /// [`MatrixError`] if the bytes do not have the shape or the type cannot be multiplied.
    pub fn new(
        isa: Isa,
        (ty, rows, cols): (TensorType, usize, usize),
        source: Arc<dyn Bytes>,
        repack: bool,
        pool: &mut Pool,
    ) -> Result<Matrix, MatrixError> {
        if !octavo_quant::can_dequantize(ty) {
            return Err(MatrixError::Type(ty));
        }
        let row_bytes = ty.row_bytes(cols as u64).and_then(|b| usize::try_from(b).ok());
        let expected = row_bytes.and_then(|b| b.checked_mul(rows));
        let got = source.bytes().len();
        let Some(row_bytes) = row_bytes.filter(|_| expected == Some(got)) else {
            let expected = expected.map_or("a whole number of blocks a row".to_owned(), |b| b.to_string());
            return Err(MatrixError::Size { ty, rows, cols, expected, got });
        };
        let table = table(isa);
        let kernels = (table.packed)(ty).filter(|_| repack);
        let strip_bytes = row_bytes * table.strip;
        let data = match kernels {
            Some(kernels) => Data::Packed(pack_strips(&kernels, ty, source.bytes(), row_bytes, table.strip, pool)),
            None => Data::Rows(source),
        };
        Ok(Matrix { ty, rows, cols, isa, data, kernels, strip_bytes })
    }

    /// Whether the weights were copied, so that the source's pages may be released.
    pub fn is_packed(&self) -> bool {
        matches!(self.data, Data::Packed(_))
    }

    /// Bytes held apart from the source.
    pub fn packed_bytes(&self) -> usize {
        match &self.data {
            Data::Packed(lines) => lines.len() * 64,
            Data::Rows(_) => 0,
        }
    }

    /// The kernels that run for generated and for prompt tokens, for people and tests.
    pub fn kernel(&self) -> String {
        kernel_name(self.isa, self.ty, self.is_packed())
    }

    pub(crate) fn reads(&self, generated: bool) -> Reads {
        match self.kernels {
            Some(Packed { gemv: Gemv::Codes(_), .. }) if generated => Reads::Codes,
            Some(Packed { gemv: Gemv::Float(_), .. }) if generated => Reads::Floats,
            _ => Reads::Tiles,
        }
    }

    /// Strips, the last one perhaps not full.
    pub(crate) fn strips(&self) -> usize {
        self.rows.div_ceil(table(self.isa).strip)
    }

    pub(crate) fn gemv(&self) -> Option<Gemv> {
        self.kernels.map(|k| k.gemv)
    }

    /// Start of strip `s`.
    pub(crate) fn strip(&self, s: usize) -> *const u8 {
        let Data::Packed(lines) = &self.data else { unreachable!("strips are asked for of packed matrices only") };
        assert!(s < self.strips());
        lines.as_ptr().cast::<u8>().wrapping_add(s * self.strip_bytes)
    }

    /// Writes k in `k0..k1` of strip `s` as `[k1 - k0][R]` floats; rows beyond the last are zero.
    pub(crate) fn panel(&self, s: usize, k0: usize, k1: usize, out: &mut [f32]) {
        let r = table(self.isa).strip;
        assert!(k0 <= k1 && k1 <= self.cols && out.len() >= (k1 - k0) * r && k1 - k0 <= KC);
        if let Some(kernels) = &self.kernels {
            // SAFETY: strip `s` is whole (checked by `strip`), k1 <= cols, the slices of k that `exec` takes start at
            // multiples of KC and so of every block, and `out` was checked.
            return unsafe { (kernels.panel)(self.strip(s), k0, k1, out.as_mut_ptr()) };
        }
        let Data::Rows(source) = &self.data else { unreachable!("unpacked") };
        let row_bytes = self.strip_bytes / r;
        let (len, bytes) = (self.ty.block_len(), self.ty.block_bytes());
        let mut row = [0f32; KC];
        out[..(k1 - k0) * r].fill(0.0);
        for i in 0..r.min(self.rows - s * r) {
            let at = (s * r + i) * row_bytes;
            let raw = &source.bytes()[at + k0 / len * bytes..at + k1 / len * bytes];
            octavo_quant::dequantize(self.ty, raw, &mut row[..k1 - k0]).expect("lengths were checked in `new`");
            for (to, w) in out.chunks_exact_mut(r).zip(&row[..k1 - k0]) {
                to[i] = *w;
            }
        }
    }
}

/// The kernels that run for a tensor of type `ty` on `isa`.
pub fn kernel_name(isa: Isa, ty: TensorType, packed: bool) -> String {
    let table = table(isa);
    match (table.packed)(ty).filter(|_| packed) {
        Some(Packed { gemv: Gemv::Codes(_), .. }) => {
            format!("{isa}: {ty} x int16 strips of {}, f32 panels for prompts", table.strip)
        }
        Some(Packed { gemv: Gemv::Float(_), .. }) => {
            format!("{isa}: {ty} x f32 strips of {}, f32 panels for prompts", table.strip)
        }
        None => format!("{isa}: f32 panels from {ty} rows"),
    }
}

fn pack_strips(
    kernels: &Packed,
    ty: TensorType,
    source: &[u8],
    row_bytes: usize,
    r: usize,
    pool: &mut Pool,
) -> Vec<Line> {
    let rows = source.len().checked_div(row_bytes).unwrap_or(0);
    let strip_bytes = row_bytes * r;
    let bytes = rows.div_ceil(r) * strip_bytes;
    let mut lines = vec![Line([0; 64]); bytes.div_ceil(64)];
    // SAFETY: `Line` is 64 plain bytes without padding, so the same memory is `64 * len` initialised bytes.
    let all = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), lines.len() * 64) };
    if strip_bytes > 0 {
        let work = Mutex::new(source.chunks(strip_bytes).zip(all[..bytes].chunks_exact_mut(strip_bytes)));
        pool.run(&|_| {
            loop {
                // a panic in `pack` is a broken invariant that the pool passes on; the lock is not held then
                let Some((from, to)) = work.lock().expect("no panic under the lock").next() else { break };
                let rows: Vec<&[u8]> = from.chunks_exact(row_bytes).collect();
                match kernels.shape {
                    Some(shape) => pack::strip(shape, &rows, r, to),
                    None => pack::strip_float(ty.block_bytes(), &rows, r, to),
                }
            }
        });
    }
    lines
}
