//! Computes the sizes of tensors, for the whole crate. No operation here wraps.

use crate::{Error, TensorType};

/// Maximum number of dimensions of a tensor.
pub(crate) const MAX_DIMS: u64 = 4;
/// Maximum length of a tensor name in bytes: ggml stores 64 with the terminating zero.
pub(crate) const MAX_NAME: u64 = 63;
/// Maximum length of a key in bytes.
pub(crate) const MAX_KEY: u64 = 65_535;
/// Maximum number of keys in a file.
pub(crate) const MAX_KEYS: u64 = 65_536;
/// Maximum number of tensors in a model, over all its parts.
pub(crate) const MAX_TENSORS: u64 = 131_072;
/// Maximum alignment.
const MAX_ALIGNMENT: u32 = 1 << 20;
/// Alignment of a file that does not state one.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// Key of a file's alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Returns the number of elements; `None` above `i64::MAX`, ggml's limit.
pub(crate) fn elements(dims: &[u64]) -> Option<u64> {
    let limit = i64::MAX.unsigned_abs();
    dims.iter().try_fold(1u64, |n, &dim| {
        n.checked_mul(dim).filter(|&n| n <= limit && dim <= limit)
    })
}

/// Returns the bytes of a tensor, without padding.
pub(crate) fn tensor_bytes(
    file: &str,
    tensor: &str,
    dims: &[u64],
    ty: TensorType,
) -> Result<u64, Error> {
    let too_big = || Error::TensorSize {
        file: file.into(),
        tensor: tensor.into(),
        dims: dims.to_vec(),
        ty,
    };
    let n = elements(dims).ok_or_else(too_big)?;
    let row = dims.first().copied().unwrap_or(1);
    if ty.row_bytes(row % BLOCK_PERIOD).is_none() {
        return Err(Error::TensorRow {
            file: file.into(),
            tensor: tensor.into(),
            ty,
            got: row,
        });
    }
    ty.row_bytes(n).ok_or_else(too_big)
}

/// A multiple of every block length, so that the divisibility check of a row cannot overflow.
const BLOCK_PERIOD: u64 = 256;

/// Rounds `n` up to a multiple of `alignment`; `None` on overflow.
pub(crate) fn pad(n: u64, alignment: u32) -> Option<u64> {
    n.checked_next_multiple_of(alignment.into())
}

/// Checks an alignment that a file declares or a caller of the writer requests.
pub(crate) fn check_alignment(file: &str, alignment: u32) -> Result<u32, Error> {
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment)
    } else {
        Err(Error::Alignment {
            file: file.into(),
            got: alignment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_at_the_edges() {
        let bytes = |dims: &[u64], ty| tensor_bytes("f", "t", dims, ty).ok();
        assert_eq!(bytes(&[], TensorType::F32), Some(4));
        assert_eq!(bytes(&[0], TensorType::Q4_K), Some(0));
        assert_eq!(bytes(&[256, 3], TensorType::Q4_K), Some(432));
        assert_eq!(bytes(&[128], TensorType::Q4_K), None);
        assert_eq!(bytes(&[1 << 63], TensorType::I8), None);
        assert_eq!(bytes(&[0, u64::MAX], TensorType::I8), None);
        assert_eq!(bytes(&[(1 << 63) - 1], TensorType::I8), Some((1 << 63) - 1));
        assert_eq!(bytes(&[1 << 61], TensorType::I64), None);
        assert_eq!(bytes(&[1 << 60], TensorType::I64), Some(1 << 63));
        assert_eq!(
            bytes(&[4, (1 << 30) - 1, (1 << 30) + 1], TensorType::F32),
            Some(u64::MAX - 15)
        );
        assert_eq!(pad(u64::MAX - 15, 32), None);
        assert_eq!(
            (pad(0, 32), pad(1, 32), pad(32, 32), pad(7, 1)),
            (Some(0), Some(32), Some(32), Some(7))
        );
        for ty in TensorType::all() {
            assert_eq!(BLOCK_PERIOD % ty.block_len() as u64, 0, "{ty}");
        }
    }
}
