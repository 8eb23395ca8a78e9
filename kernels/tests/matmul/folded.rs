//! Prompts in 13 bits, whose products are added up in integers over up to 256 weights.

use std::ops::Range;

use octavo_kernels::{Phase, PromptBits};
use octavo_quant::TensorType as T;

use super::instruction_sets;
use crate::common::product_in;

/// Formats, and where their blocks have halves.
const FORMATS: [(T, Range<usize>); 13] = [
    (T::Q2_K, 80..84),
    (T::Q3_K, 108..110),
    (T::Q4_K, 0..4),
    (T::Q5_K, 0..4),
    (T::Q6_K, 208..210),
    (T::IQ4_XS, 0..2),
    (T::IQ2_XXS, 0..2),
    (T::IQ2_XS, 0..2),
    (T::IQ2_S, 0..2),
    (T::IQ3_XXS, 0..2),
    (T::IQ3_S, 0..2),
    (T::IQ1_S, 0..2),
    (T::TQ2_0, 64..66),
];

/// The largest activations of both signs, times the outermost codes and scales, fill 32 bits as far
/// as a format can. As whole numbers they are not rounded, so that only the sums of floats are.
#[test]
fn sums_of_the_largest_products_are_exact() {
    let (rows, cols) = (17, 512);
    let mut x = vec![4095.0; cols];
    x.extend(vec![-4095.0; cols]);
    x.extend((0..cols).map(|i| if i % 3 == 0 { -4095.0 } else { 4095.0 }));
    x.extend((0..cols).map(|i| [4095.0, -4095.0, 17.0, -2048.0][i % 4]));
    for (ty, halves) in FORMATS {
        for fill in [0xff, 0x00, 0x7f, 0x80, 0x55, 0xaa] {
            let mut raw = vec![fill; rows * cols / ty.block_len() * ty.block_bytes()];
            for block in raw.chunks_exact_mut(ty.block_bytes()) {
                for half in block[halves.clone()].chunks_exact_mut(2) {
                    half.copy_from_slice(&0x3c00_u16.to_le_bytes()); // 1
                }
            }
            let mut w = vec![0.0; rows * cols];
            octavo_quant::dequantize(ty, &raw, &mut w).expect("whole rows");
            for isa in instruction_sets() {
                let shape = (ty, rows, cols);
                let bits = PromptBits::Thirteen;
                let (y, kernel) = product_in(bits, isa, shape, &raw, &x, Phase::Prefill, true, 1);
                if !kernel.contains("int13 panels") {
                    continue;
                }
                let tokens = x.chunks_exact(cols);
                let pairs = tokens.flat_map(|x| w.chunks_exact(cols).map(move |w| (w, x)));
                for (i, (y, (w, x))) in y.iter().zip(pairs).enumerate() {
                    let products = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let dot: f64 = products.clone().sum();
                    // a minimum is subtracted from up to four times the weight
                    let all: f64 = products.map(|product| 4.0 * product.abs()).sum();
                    let bound = 8.0 * f64::from(f32::EPSILON) * all;
                    let error = (f64::from(*y) - dot).abs();
                    assert!(
                        error <= bound,
                        "{kernel}, {fill:#x}, {i}: {y}, expected {dot}"
                    );
                }
            }
        }
    }
}
