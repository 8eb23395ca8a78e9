//! Digests of ggml's own results for pseudo-random input, for cases no golden file covers: formats
//! that no model uses, scales that are NaN, infinite or subnormal, and importance weights in every
//! quantizer.
//!
//! The digests were made by linking a small C program with ggml-base (llama.cpp of October 2026)
//! and giving it the bytes that the functions below generate: `ggml_get_type_traits(ty)->to_float`
//! (`dequantize_row_q8_K` for Q8_K) for the first table, `ggml_quantize_chunk` for the second.

use octavo_quant::{
    Error, TensorType, can_dequantize, can_quantize, dequantize, needs_importance, quantize,
};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns the sum of four uniform integers (a bell curve over -2^17 .. 2^17): exact in f32,
    /// the same on every machine.
    fn bell(&mut self) -> f32 {
        let z = self.next();
        (0..4)
            .map(|i| (z >> (16 * i) & 0xffff) as i32 - 0x8000)
            .sum::<i32>() as f32
    }
}

/// FNV-1a over 32-bit words.
fn digest(words: impl Iterator<Item = u32>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |h, w| {
        (h ^ u64::from(w)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Maps every NaN to the same word: the NaN an operation returns depends on the CPU.
fn bits(v: f32) -> u32 {
    if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }
}

const BLOCKS: usize = 20_000;

fn random_blocks(ty: TensorType) -> Vec<u8> {
    let mut random = Random(u64::from(ty.id()));
    let n = BLOCKS * ty.block_bytes();
    (0..n.div_ceil(8))
        .flat_map(|_| random.next().to_le_bytes())
        .take(n)
        .collect()
}

const ROW: usize = 512;

/// Returns 32 rows of 512 values, each with its own magnitude; every fifth row is sparse, every
/// seventh has outliers.
fn random_rows(ty: TensorType) -> (Vec<f32>, Vec<f32>) {
    let mut random = Random(1000 + u64::from(ty.id()));
    let mut x = Vec::new();
    for row in 0..32 {
        let unit = 2f32.powi((random.next() % 40) as i32 - 36);
        for _ in 0..ROW {
            let v = random.bell() * unit;
            let dice = random.next() % 16;
            x.push(match (row % 5, row % 7, dice) {
                (4, _, 0..12) => 0.0,
                (_, 6, 0) => 64.0 * v,
                _ => v,
            });
        }
    }
    let importance = (0..ROW)
        .map(|_| random.bell().abs() * 2f32.powi((random.next() % 12) as i32 - 20))
        .collect();
    (x, importance)
}

#[test]
fn random_blocks_dequantize_as_in_ggml() {
    for (name, want) in DEQUANTIZED {
        let ty = TensorType::from_name(name).unwrap();
        let mut y = vec![0.0; BLOCKS * ty.block_len()];
        dequantize(ty, &random_blocks(ty), &mut y).unwrap();
        assert_eq!(digest(y.into_iter().map(bits)), want, "{ty}");
    }
    // ggml has no decoder for Q8_1
    assert_eq!(
        DEQUANTIZED.len() + 1,
        TensorType::all().filter(|&t| can_dequantize(t)).count()
    );
}

#[test]
fn random_rows_quantize_as_in_ggml() {
    for (name, plain, weighted) in QUANTIZED {
        let ty = TensorType::from_name(name).unwrap();
        let (x, importance) = random_rows(ty);
        for (importance, want) in [(None, plain), (Some(&importance[..]), weighted)] {
            let mut out = Vec::new();
            if importance.is_none() && needs_importance(ty) {
                assert_eq!(
                    quantize(ty, &x, ROW, None, &mut out),
                    Err(Error::NoImportance { ty })
                );
                continue;
            }
            quantize(ty, &x, ROW, importance, &mut out).unwrap();
            let got = digest(out.into_iter().map(u32::from));
            assert_eq!(got, want, "{ty}, importance: {}", importance.is_some());
        }
    }
    assert_eq!(
        QUANTIZED.len(),
        TensorType::all().filter(|&t| can_quantize(t)).count()
    );
}

const DEQUANTIZED: [(&str, u64); 29] = [
    ("F32", 0xca05_9f68_56da_b169),
    ("F16", 0xaa8f_7157_7d3a_6da5),
    ("Q4_0", 0x91ac_bab7_498f_d725),
    ("Q4_1", 0x074e_6a2c_a60f_a61c),
    ("Q5_0", 0x6013_d061_3007_6525),
    ("Q5_1", 0xd108_a48c_1529_4b55),
    ("Q8_0", 0x0808_6f0e_b32e_3865),
    ("Q2_K", 0xfe84_5efc_8aa8_e65b),
    ("Q3_K", 0xd2b7_314b_270a_76a5),
    ("Q4_K", 0x8919_7267_47d6_16d0),
    ("Q5_K", 0xf254_ebd4_ce54_f6b7),
    ("Q6_K", 0x33d8_a4f7_172a_4a5b),
    ("Q8_K", 0xe5bd_87c2_a473_2ebe),
    ("IQ2_XXS", 0x1c2a_86d4_95ea_dc51),
    ("IQ2_XS", 0xac5b_f3d1_5a16_c52d),
    ("IQ3_XXS", 0xb926_9868_8d85_6805),
    ("IQ1_S", 0x0c89_d0e8_296a_b9e5),
    ("IQ4_NL", 0x10ef_8bd9_9124_4765),
    ("IQ3_S", 0xf020_c448_0508_ebf5),
    ("IQ2_S", 0x7628_9862_c0d4_b0b5),
    ("IQ4_XS", 0xbcef_496a_c776_3399),
    ("IQ1_M", 0x0d3b_26f5_3d6a_5be5),
    ("BF16", 0x8d1c_11b9_a21d_0da5),
    ("TQ1_0", 0x7846_4a2d_227b_4325),
    ("TQ2_0", 0x449b_e81d_4d07_8325),
    ("MXFP4", 0xcc2b_d87e_800b_7325),
    ("NVFP4", 0x6514_4533_5404_c325),
    ("Q1_0", 0xfafa_fb6d_9737_e325),
    ("Q2_0", 0xbd2c_0493_0470_4325),
];

/// Type, digests without and with importance weights; 0 where ggml requires them.
const QUANTIZED: [(&str, u64, u64); 28] = [
    ("F32", 0x490b_8714_4b86_c538, 0x490b_8714_4b86_c538),
    ("F16", 0xae99_31db_84bf_6e70, 0xae99_31db_84bf_6e70),
    ("Q4_0", 0x5e0f_4a11_4fde_0b67, 0xd3c2_6d23_d6eb_0241),
    ("Q4_1", 0x2b74_f2b3_9ee1_72e4, 0x9584_35f1_e1cb_2be3),
    ("Q5_0", 0xe9c8_a4b6_ea83_d5af, 0xddd7_b6de_5fd1_8504),
    ("Q5_1", 0xc73c_4870_f293_a324, 0x76b3_98ea_2116_5229),
    ("Q8_0", 0x41c9_4ba7_ca34_a6be, 0x41c9_4ba7_ca34_a6be),
    ("Q2_K", 0xce09_3d81_2c72_2354, 0xbcf4_1f2d_04be_28ac),
    ("Q3_K", 0xb5e2_8b80_ad90_249f, 0xf9c8_85ee_727c_e21a),
    ("Q4_K", 0xf150_7fd5_ce9d_149c, 0xc7e5_03dc_1997_b08c),
    ("Q5_K", 0xf944_faad_9144_6445, 0x0dcc_8882_4d67_bee0),
    ("Q6_K", 0xcf4a_67e1_48d3_34ef, 0x3609_039e_0bfc_2725),
    ("IQ2_XXS", 0x0000_0000_0000_0000, 0x358c_f19b_e3f9_512a),
    ("IQ2_XS", 0x0000_0000_0000_0000, 0xad45_5b73_8ef2_f6a0),
    ("IQ3_XXS", 0xf3f9_74be_7e23_1f9e, 0xb5b6_24b7_e642_2fb0),
    ("IQ1_S", 0x0000_0000_0000_0000, 0x00c6_08bf_f4fd_ff8e),
    ("IQ4_NL", 0x1c1e_7862_1e0e_46a5, 0xa63c_c7b0_5f63_b3ba),
    ("IQ3_S", 0x8b1a_d0ff_c239_60e6, 0x2938_7c57_484b_cd8c),
    ("IQ2_S", 0x2e92_02c6_5358_f838, 0x8265_5877_3268_d267),
    ("IQ4_XS", 0xd0e1_c7d3_2484_93d3, 0x1688_ba3b_07b4_b77a),
    ("IQ1_M", 0x4019_b8b6_a51c_4608, 0x73a0_4f53_b501_98b8),
    ("BF16", 0x5d7d_e0f5_428d_cedc, 0x5d7d_e0f5_428d_cedc),
    ("TQ1_0", 0x3e6c_b6da_f704_3bee, 0x3e6c_b6da_f704_3bee),
    ("TQ2_0", 0x679f_9c18_ded8_d4d3, 0x679f_9c18_ded8_d4d3),
    ("MXFP4", 0x26ed_997a_8517_36c7, 0x26ed_997a_8517_36c7),
    ("NVFP4", 0xa569_b3a4_8f96_2da6, 0xa569_b3a4_8f96_2da6),
    ("Q1_0", 0xc0d1_8222_d615_20df, 0xc0d1_8222_d615_20df),
    ("Q2_0", 0xcc7c_2ae1_c66a_abcf, 0xcc7c_2ae1_c66a_abcf),
];
