//! Dequantized blocks equal llama.cpp's, bit for bit (`shared/goldens/dequant.safetensors`).

use octavo_quant::{TensorType, dequantize};
use safetensors::SafeTensors;

/// Fails at the first value whose bits differ. The golden files hold finite values only.
fn assert_bits(ty: TensorType, raw: &[u8], want: &[u8], what: &str) {
    let want: Vec<f32> = want
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let mut got = vec![0.0; want.len()];
    dequantize(ty, raw, &mut got).unwrap_or_else(|e| panic!("{ty} {what}: {e}"));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let block = i / ty.block_len();
        assert_eq!(
            g.to_bits(),
            w.to_bits(),
            "{ty} {what}: value {i} (block {block}): got {g:e}, expected {w:e}"
        );
    }
}

#[test]
fn every_golden_block_is_bit_equal() {
    let Some(path) = octavo_fixtures::shared("goldens/dequant.safetensors") else {
        return;
    };
    let bytes = std::fs::read(path).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let (mut written, mut random) = (Vec::new(), Vec::new());
    for ty in TensorType::all() {
        for (raw, want, seen) in [
            (".raw", ".f32", &mut written),
            (".rnd_raw", ".rnd_f32", &mut random),
        ] {
            if let Ok(blocks) = golden.tensor(&format!("{ty}{raw}")) {
                let want = golden.tensor(&format!("{ty}{want}")).unwrap();
                assert_bits(ty, blocks.data(), want.data(), raw);
                seen.push(ty.name());
            }
        }
    }
    // a renamed or missing tensor would otherwise go unnoticed
    let all = "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS \
               IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M BF16 TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0";
    assert_eq!(written.join(" "), all);
    assert_eq!(random.join(" "), all.replace(" Q1_0", ""));
    assert_eq!(golden.len(), 2 * (written.len() + random.len()));
}
