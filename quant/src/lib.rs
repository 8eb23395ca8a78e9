//! Every ggml block format in readable scalar Rust: `dequantize`, `quantize`, `dot`.
//!
//! This crate is the oracle of the project, so it is written for readability. Its floats equal
//! ggml's bit for bit: a value is computed with the f32 operations of `ggml-quants.c` in their
//! order (a multiplication, then an addition, each rounded; never fused), and a quantizer produces
//! ggml's bytes. Sums keep their order too, so the quantizers' searches process several groups side
//! by side (`fit`), which the compiler can vectorize. Bad lengths are typed errors, and no input
//! bytes or floats make it panic.
//!
//! Each format is one table entry at the end of its family's file, which documents the layout:
//! `plain` (F32 F16 BF16), `legacy` (Q4_0 .. Q8_1), `kquants` (Q2_K .. Q8_K), `iquants` (IQ1_S ..
//! IQ4_XS), `low_bit` (Q1_0 Q2_0 TQ1_0 TQ2_0), `fp4` (MXFP4 NVFP4), `awq` (the groups of AWQ
//! checkpoints). `kquantize`, `iq4`, `iq23`, `iq1` are the longer quantizers.
#![forbid(unsafe_code)]

pub mod awq;
mod bits;
mod check;
mod fit;
mod format;
mod fp4;
pub mod grids;
mod iq1;
mod iq23;
mod iq4;
mod iq_search;
mod iquants;
mod kquantize;
mod kquants;
mod legacy;
mod low_bit;
mod plain;

pub use fp4::E2M1_DOUBLED;
pub use gguf_rs_lite::TensorType;
pub use iq4::iq4_nl_at_once;
pub use iquants::IQ4_LEVELS;

use format::{Format, format};

/// Reason why a call was refused: always a wrong length or a type outside the tables, never the
/// values themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The type is not a block format of floats (I8 .. I64, F64).
    #[error("{ty}: expected a float or quantized type to read, got {ty}")]
    NoDequantizer {
        /// The type asked for.
        ty: TensorType,
    },
    /// Values can be read from this type but not written to it.
    #[error("{ty}: expected a float or quantized type to write, got {ty}")]
    NoQuantizer {
        /// The type asked for.
        ty: TensorType,
    },
    /// The bytes end inside a block.
    #[error("{ty}: expected a multiple of {block_bytes} bytes (whole blocks), got {got} bytes")]
    PartialBlock {
        /// The type of the blocks.
        ty: TensorType,
        /// Bytes in one block.
        block_bytes: usize,
        /// Bytes given.
        got: usize,
    },
    /// The number of floats differs from the number of values in the blocks.
    #[error("{ty}: expected {expected} floats for the blocks given, got {got}")]
    Values {
        /// The type of the blocks.
        ty: TensorType,
        /// Values in the blocks.
        expected: usize,
        /// Length of the float slice.
        got: usize,
    },
    /// A row is not a whole number of blocks.
    #[error("{ty}: expected rows of a positive multiple of {block_len} values, got rows of {got}")]
    RowLength {
        /// The type to write.
        ty: TensorType,
        /// Values in one block.
        block_len: usize,
        /// Values per row given.
        got: usize,
    },
    /// The floats end inside a row.
    #[error("{ty}: expected a multiple of {n_per_row} values (whole rows), got {got}")]
    PartialRow {
        /// The type to write.
        ty: TensorType,
        /// Values per row.
        n_per_row: usize,
        /// Values given.
        got: usize,
    },
    /// The number of importance weights differs from the number of columns.
    #[error("{ty}: expected {expected} importance weights (one per value of a row), got {got}")]
    Importance {
        /// The type to write.
        ty: TensorType,
        /// Values per row.
        expected: usize,
        /// Weights given.
        got: usize,
    },
    /// Importance weights are missing: this few bits are useless without them, and ggml has no rule
    /// for it.
    #[error("{ty}: expected importance weights, got none")]
    NoImportance {
        /// The type to write.
        ty: TensorType,
    },
}

/// Returns whether [`dequantize`] and [`dot`] support this type.
pub fn can_dequantize(ty: TensorType) -> bool {
    format(ty).is_some()
}

/// Returns whether [`quantize`] supports this type.
pub fn can_quantize(ty: TensorType) -> bool {
    format(ty).is_some_and(|f| f.quantize.is_some())
}

/// Returns whether [`quantize`] refuses to write this type without importance weights, as ggml
/// does.
pub fn needs_importance(ty: TensorType) -> bool {
    matches!(
        ty,
        TensorType::IQ1_S | TensorType::IQ2_XXS | TensorType::IQ2_XS
    )
}

/// Returns the first block with a scale (or, in formats without, a value) that is NaN or infinite,
/// which llama.cpp refuses. Types without floats have none; bytes after the last whole block are
/// ignored.
pub fn first_bad_block(ty: TensorType, blocks: &[u8]) -> Option<usize> {
    match format(ty) {
        Some(format) => (format.first_bad)(blocks),
        None if ty == TensorType::F64 => check::first_bad_f64(blocks),
        None => None,
    }
}

/// Returns the first block whose f16 scale has underflowed, so that its codes mean little: the
/// scale is below 2^-21, where rounding it errs by more than 6 %, or zero although codes differ.
/// Types without f16 scales have none; bytes after the last whole block are ignored.
pub fn first_underflow(ty: TensorType, blocks: &[u8]) -> Option<usize> {
    let format = format(ty).filter(|format| !format.scales.is_empty())?;
    let for_zeros = check::blocks_of_zeros(format);
    blocks
        .chunks_exact(ty.block_bytes())
        .position(|block| check::underflows(block, format.scales, &for_zeros))
}

/// Returns the number of values in `bytes` bytes of whole blocks.
fn values_in(f: &Format, bytes: usize) -> Result<usize, Error> {
    if !bytes.is_multiple_of(f.block_bytes) {
        return Err(Error::PartialBlock {
            ty: f.ty,
            block_bytes: f.block_bytes,
            got: bytes,
        });
    }
    Ok(bytes / f.block_bytes * f.block_len)
}

/// Writes the values of `blocks` (any whole number of blocks) to `out`, which must be exactly as
/// long.
///
/// Bit-equal to ggml's `dequantize_row_*`, except for the payload of NaNs, which depends on the
/// CPU.
///
/// # Errors
/// [`Error::NoDequantizer`], [`Error::PartialBlock`], [`Error::Values`].
pub fn dequantize(ty: TensorType, blocks: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let f = format(ty).ok_or(Error::NoDequantizer { ty })?;
    let expected = values_in(f, blocks.len())?;
    if out.len() != expected {
        return Err(Error::Values {
            ty,
            expected,
            got: out.len(),
        });
    }
    (f.dequantize)(blocks, out);
    Ok(())
}

/// Computes the dot product of a quantized row with `x`: each product and the sum, in order, in
/// f64.
///
/// # Errors
/// [`Error::NoDequantizer`], [`Error::PartialBlock`], [`Error::Values`].
pub fn dot(ty: TensorType, row: &[u8], x: &[f32]) -> Result<f64, Error> {
    let f = format(ty).ok_or(Error::NoDequantizer { ty })?;
    let expected = values_in(f, row.len())?;
    if x.len() != expected {
        return Err(Error::Values {
            ty,
            expected,
            got: x.len(),
        });
    }
    let mut w = [0.0f32; format::MAX_BLOCK_LEN];
    let w = &mut w[..f.block_len];
    let mut sum = 0.0;
    for (block, x) in row
        .chunks_exact(f.block_bytes)
        .zip(x.chunks_exact(f.block_len))
    {
        (f.dequantize)(block, w);
        for (&w, &x) in w.iter().zip(x) {
            sum += f64::from(w) * f64::from(x);
        }
    }
    Ok(sum)
}

/// Appends the blocks of `x` (rows of `n_per_row` values) to `out`; on an error `out` is unchanged.
///
/// `importance` is one weight per column, shared by all rows (llama.cpp's importance matrix);
/// formats that do not use it (F32 F16 BF16 Q1_0 Q2_0 Q8_0 TQ1_0 TQ2_0 MXFP4 NVFP4) only check its
/// length, [`needs_importance`] tells which require it. Bit-equal to ggml's `quantize_*` wherever C
/// defines the result. It does not for blocks with NaNs or infinities, or whose range is subnormal
/// or overflows: there ggml converts infinities to integers, while this function writes some valid
/// block.
///
/// # Errors
/// [`Error::NoQuantizer`], [`Error::RowLength`], [`Error::PartialRow`], [`Error::Importance`],
/// [`Error::NoImportance`].
pub fn quantize(
    ty: TensorType,
    x: &[f32],
    n_per_row: usize,
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let f = format(ty).ok_or(Error::NoQuantizer { ty })?;
    let quantize_row = f.quantize.ok_or(Error::NoQuantizer { ty })?;
    if n_per_row == 0 || !n_per_row.is_multiple_of(f.block_len) {
        return Err(Error::RowLength {
            ty,
            block_len: f.block_len,
            got: n_per_row,
        });
    }
    if !x.len().is_multiple_of(n_per_row) {
        return Err(Error::PartialRow {
            ty,
            n_per_row,
            got: x.len(),
        });
    }
    match importance {
        Some(w) if w.len() != n_per_row => {
            return Err(Error::Importance {
                ty,
                expected: n_per_row,
                got: w.len(),
            });
        }
        None if needs_importance(ty) => return Err(Error::NoImportance { ty }),
        _ => {}
    }
    out.reserve(x.len() / f.block_len * f.block_bytes);
    for row in x.chunks_exact(n_per_row) {
        quantize_row(row, importance, out);
    }
    Ok(())
}
