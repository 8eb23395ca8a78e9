//! Definition of a format: one table entry, at the end of its family's file.

use crate::{TensorType, awq, fp4, iquants, kquants, legacy, low_bit, plain};

/// Decodes whole blocks into exactly the values they hold.
pub(crate) type Dequantize = fn(&[u8], &mut [f32]);
/// Appends the blocks of one row, with one importance weight per value.
pub(crate) type QuantizeRow = fn(&[f32], Option<&[f32]>, &mut Vec<u8>);
/// Returns the index of the first bad block.
pub(crate) type FirstBad = fn(&[u8]) -> Option<usize>;

/// Number of values in the longest block.
pub(crate) const MAX_BLOCK_LEN: usize = 256;

pub(crate) struct Format {
    pub(crate) ty: TensorType,
    pub(crate) block_len: usize,
    pub(crate) block_bytes: usize,
    pub(crate) dequantize: Dequantize,
    pub(crate) quantize: Option<QuantizeRow>,
    /// Finds the first block that llama.cpp would refuse.
    pub(crate) first_bad: FirstBad,
    /// Offsets of the f16 numbers that scale a block: the scale first, then that of minima. None
    /// where scales have another form.
    pub(crate) scales: &'static [usize],
}

/// Builds an entry whose block shape comes from the decoder's own signature.
pub(crate) const fn row<const B: usize, const N: usize>(
    ty: TensorType,
    _decoder: fn(&[u8; B], &mut [f32; N]),
    dequantize: Dequantize,
    quantize: Option<QuantizeRow>,
    first_bad: FirstBad,
    scales: &'static [usize],
) -> Format {
    assert!(N <= MAX_BLOCK_LEN);
    Format {
        ty,
        block_len: N,
        block_bytes: B,
        dequantize,
        quantize,
        first_bad,
        scales,
    }
}

/// Builds the entry of a type from its block decoder, the test for bad blocks, and the row
/// quantizer if it can be written. A block is `good` by a closure, or if the f16 at each of these
/// bytes is `finite`.
macro_rules! block_format {
    ($ty:ident, $decode:path, finite($($at:literal),*)) => {
        block_format!(
            row $ty,
            $decode,
            |_block| true $(&& $crate::check::finite16(_block, $at))*,
            None,
            [$($at),*]
        )
    };
    ($ty:ident, $decode:path, finite($($at:literal),*), $quantize:path) => {
        block_format!(
            row $ty,
            $decode,
            |_block| true $(&& $crate::check::finite16(_block, $at))*,
            Some($quantize),
            [$($at),*]
        )
    };
    ($ty:ident, $decode:path, good($is_good:expr)) => {
        block_format!(row $ty, $decode, $is_good, None, [])
    };
    ($ty:ident, $decode:path, good($is_good:expr), $quantize:path) => {
        block_format!(row $ty, $decode, $is_good, Some($quantize), [])
    };
    (row $ty:ident, $decode:path, $is_good:expr, $quantize:expr, $scales:expr) => {
        $crate::format::row(
            $crate::TensorType::$ty,
            $decode,
            |blocks, values| $crate::bits::decode_blocks(blocks, values, $decode),
            $quantize,
            |blocks| $crate::check::first_bad($crate::TensorType::$ty, blocks, $is_good),
            &$scales,
        )
    };
}
pub(crate) use block_format;

/// The families with their format tables.
static FAMILIES: [&[Format]; 7] = [
    plain::FORMATS,
    legacy::FORMATS,
    kquants::FORMATS,
    iquants::FORMATS,
    low_bit::FORMATS,
    fp4::FORMATS,
    awq::FORMATS,
];

/// Iterates over all formats.
fn formats() -> impl Iterator<Item = &'static Format> {
    FAMILIES.into_iter().flatten()
}

/// Returns the format of a type, `None` for the plain integers and F64.
pub(crate) fn format(ty: TensorType) -> Option<&'static Format> {
    formats().find(|f| f.ty == ty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TensorType as T;

    #[test]
    fn block_shapes_are_those_of_the_file_format() {
        for f in formats() {
            assert_eq!(
                (f.block_len, f.block_bytes),
                (f.ty.block_len(), f.ty.block_bytes()),
                "{}",
                f.ty
            );
        }
    }

    #[test]
    fn only_plain_integers_and_f64_have_no_row() {
        let without: Vec<_> = TensorType::all().filter(|&t| format(t).is_none()).collect();
        assert_eq!(without, [T::I8, T::I16, T::I32, T::I64, T::F64]);
        assert_eq!(
            formats().count() + without.len(),
            TensorType::all().count() + TensorType::AWQ.len()
        );
    }
}
