//! The table of formats: one row each.

use crate::bits::decode_blocks;
use crate::{
    TensorType, awq, fp4, iq1, iq4, iq23, iquants, kquantize, kquants, legacy, low_bit, plain,
};
use TensorType as T;

/// Decodes whole blocks into as many values as they hold.
type Dequantize = fn(&[u8], &mut [f32]);
/// Appends the blocks of one row, weighted by one importance per value.
type QuantizeRow = fn(&[f32], Option<&[f32]>, &mut Vec<u8>);

/// Values in the longest block.
pub(crate) const MAX_BLOCK_LEN: usize = 256;

pub(crate) struct Format {
    pub(crate) ty: TensorType,
    pub(crate) block_len: usize,
    pub(crate) block_bytes: usize,
    pub(crate) dequantize: Dequantize,
    pub(crate) quantize: Option<QuantizeRow>,
}

/// A row whose block shape is read off the decoder's own signature.
const fn row<const B: usize, const N: usize>(
    ty: TensorType,
    _decoder: fn(&[u8; B], &mut [f32; N]),
    dequantize: Dequantize,
    quantize: Option<QuantizeRow>,
) -> Format {
    assert!(N <= MAX_BLOCK_LEN);
    Format {
        ty,
        block_len: N,
        block_bytes: B,
        dequantize,
        quantize,
    }
}

macro_rules! format {
    ($ty:ident, $decode:path) => {
        row(T::$ty, $decode, |b, y| decode_blocks(b, y, $decode), None)
    };
    ($ty:ident, $decode:path, $quantize:path) => {
        row(
            T::$ty,
            $decode,
            |b, y| decode_blocks(b, y, $decode),
            Some($quantize),
        )
    };
}

static FORMATS: [Format; 33] = [
    format!(F32, plain::decode_f32, plain::quantize_f32),
    row(
        T::F16,
        plain::decode_f16,
        plain::decode_f16s,
        Some(plain::quantize_f16),
    ),
    format!(BF16, plain::decode_bf16, plain::quantize_bf16),
    format!(Q4_0, legacy::decode_q4_0, legacy::quantize_q4_0),
    format!(Q4_1, legacy::decode_q4_1, legacy::quantize_q4_1),
    format!(Q5_0, legacy::decode_q5_0, legacy::quantize_q5_0),
    format!(Q5_1, legacy::decode_q5_1, legacy::quantize_q5_1),
    format!(Q8_0, legacy::decode_q8_0, legacy::quantize_q8_0),
    format!(Q8_1, legacy::decode_q8_1),
    format!(Q2_K, kquants::decode_q2_k, kquantize::quantize_q2_k),
    format!(Q3_K, kquants::decode_q3_k, kquantize::quantize_q3_k),
    format!(Q4_K, kquants::decode_q4_k, kquantize::quantize_q4_k),
    format!(Q5_K, kquants::decode_q5_k, kquantize::quantize_q5_k),
    format!(Q6_K, kquants::decode_q6_k, kquantize::quantize_q6_k),
    format!(Q8_K, kquants::decode_q8_k),
    format!(IQ1_S, iquants::decode_iq1_s, iq1::quantize_iq1_s),
    format!(IQ1_M, iquants::decode_iq1_m, iq1::quantize_iq1_m),
    format!(IQ2_XXS, iquants::decode_iq2_xxs, iq23::quantize_iq2_xxs),
    format!(IQ2_XS, iquants::decode_iq2_xs, iq23::quantize_iq2_xs),
    format!(IQ2_S, iquants::decode_iq2_s, iq23::quantize_iq2_s),
    format!(IQ3_XXS, iquants::decode_iq3_xxs, iq23::quantize_iq3_xxs),
    format!(IQ3_S, iquants::decode_iq3_s, iq23::quantize_iq3_s),
    format!(IQ4_NL, iquants::decode_iq4_nl, iq4::quantize_iq4_nl),
    format!(IQ4_XS, iquants::decode_iq4_xs, iq4::quantize_iq4_xs),
    format!(TQ1_0, low_bit::decode_tq1_0, low_bit::quantize_tq1_0),
    format!(TQ2_0, low_bit::decode_tq2_0, low_bit::quantize_tq2_0),
    format!(Q1_0, low_bit::decode_q1_0, low_bit::quantize_q1_0),
    format!(Q2_0, low_bit::decode_q2_0, low_bit::quantize_q2_0),
    format!(MXFP4, fp4::decode_mxfp4, fp4::quantize_mxfp4),
    format!(NVFP4, fp4::decode_nvfp4, fp4::quantize_nvfp4),
    format!(AWQ_G32, awq::decode::<19, 32>, awq::quantize::<19, 32>),
    format!(AWQ_G64, awq::decode::<35, 64>, awq::quantize::<35, 64>),
    format!(AWQ_G128, awq::decode::<67, 128>, awq::quantize::<67, 128>),
];

/// The row of a type, `None` for the plain integers and F64.
pub(crate) fn format(ty: TensorType) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.ty == ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_shapes_are_those_of_the_file_format() {
        for f in &FORMATS {
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
            FORMATS.len() + without.len(),
            TensorType::all().count() + TensorType::AWQ.len()
        );
    }
}
