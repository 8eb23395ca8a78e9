//! Properties of every format: lengths, hostile bits, dot products, and the round-trip error.

use octavo_quant::{
    Error, TensorType, can_dequantize, can_quantize, dequantize, dot, first_bad_block,
    needs_importance, quantize,
};
use proptest::prelude::*;

fn formats() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|&t| can_dequantize(t))
}

fn writable() -> impl Iterator<Item = TensorType> {
    TensorType::all().filter(|&t| can_quantize(t))
}

/// Yields no weights, unless the type needs them, and the given ones.
fn both(ty: TensorType, weights: &[f32]) -> impl Iterator<Item = Option<&[f32]>> {
    [None, Some(weights)]
        .into_iter()
        .filter(move |w| w.is_some() || !needs_importance(ty))
}

#[test]
fn lengths_are_whole_blocks_or_typed_errors() {
    for ty in formats() {
        let (block_bytes, len) = (ty.block_bytes(), ty.block_len());
        for n in 0..4 {
            let bytes = vec![0; n * block_bytes];
            let mut out = vec![f32::NAN; n * len];
            assert_eq!(dequantize(ty, &bytes, &mut out), Ok(()), "{ty}");
            assert!(
                out.iter().all(|v| !v.is_nan()),
                "{ty}: not all of {n} blocks were written"
            );
            assert_eq!(
                dot(ty, &bytes, &out),
                Ok(out.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()),
                "{ty}"
            );
        }
        for got in [1, block_bytes - 1, block_bytes + 1]
            .into_iter()
            .filter(|n| n % block_bytes != 0)
        {
            let error = Err(Error::PartialBlock {
                ty,
                block_bytes,
                got,
            });
            assert_eq!(dequantize(ty, &vec![0; got], &mut vec![0.0; len]), error);
            assert_eq!(dot(ty, &vec![0; got], &vec![0.0; len]).map(|_| ()), error);
        }
        for got in [0, len - 1, len + 1, 2 * len]
            .into_iter()
            .filter(|&n| n != len)
        {
            let error = Err(Error::Values {
                ty,
                expected: len,
                got,
            });
            assert_eq!(
                dequantize(ty, &vec![0; block_bytes], &mut vec![0.0; got]),
                error
            );
            assert_eq!(
                dot(ty, &vec![0; block_bytes], &vec![0.0; got]).map(|_| ()),
                error
            );
        }
    }
}

#[test]
fn quantize_checks_rows_and_importance_and_leaves_the_output_on_errors() {
    for ty in writable() {
        let (block_len, n) = (ty.block_len(), 2 * ty.block_len());
        let x = vec![1.0; 2 * n];
        let mut out = vec![7];
        if needs_importance(ty) {
            assert_eq!(
                quantize(ty, &x, n, None, &mut out),
                Err(Error::NoImportance { ty })
            );
        }
        for got in [0, block_len - 1, block_len + 1]
            .into_iter()
            .filter(|&n| n == 0 || n % block_len != 0)
        {
            assert_eq!(
                quantize(ty, &x, got, None, &mut out),
                Err(Error::RowLength { ty, block_len, got })
            );
        }
        let error = Err(Error::PartialRow {
            ty,
            n_per_row: n,
            got: n + 1,
        });
        assert_eq!(quantize(ty, &x[..n + 1], n, None, &mut out), error);
        let error = Err(Error::Importance {
            ty,
            expected: n,
            got: 2 * n,
        });
        assert_eq!(quantize(ty, &x, n, Some(&x), &mut out), error);
        assert_eq!(out, [7], "{ty}");
        assert_eq!(quantize(ty, &[], n, Some(&x[..n]), &mut out), Ok(()));
        assert_eq!(quantize(ty, &x, n, Some(&x[..n]), &mut out), Ok(()));
        assert_eq!(out.len(), 1 + 4 * ty.block_bytes(), "{ty}");
        assert_eq!(out[0], 7, "{ty}");
    }
}

#[test]
fn types_outside_the_tables_are_named() {
    for ty in TensorType::all().filter(|&t| !can_dequantize(t)) {
        assert_eq!(
            dequantize(ty, &[], &mut []),
            Err(Error::NoDequantizer { ty })
        );
        assert_eq!(dot(ty, &[], &[]), Err(Error::NoDequantizer { ty }));
    }
    for ty in TensorType::all().filter(|&t| !can_quantize(t)) {
        let error = quantize(ty, &[], 256, None, &mut Vec::new()).unwrap_err();
        assert_eq!(error, Error::NoQuantizer { ty });
        assert!(error.to_string().starts_with(ty.name()), "{error}");
    }
    let error = Error::PartialBlock {
        ty: TensorType::Q4_K,
        block_bytes: 144,
        got: 100,
    };
    assert_eq!(
        error.to_string(),
        "Q4_K: expected a multiple of 144 bytes (whole blocks), got 100 bytes"
    );
}

/// Checks the activation formats, which no model file has, with hand-written blocks.
#[test]
fn q8_1_and_q8_k_are_scale_times_integer() {
    let mut q8_1 = vec![0x00, 0x38, 0xff, 0x7f]; // d = 0.5; the sum is ignored
    q8_1.extend((0..32).map(|j| (j * 8) as u8));
    let mut y = [0.0; 32];
    dequantize(TensorType::Q8_1, &q8_1, &mut y).unwrap();
    let want: Vec<f32> = (0..32)
        .map(|j| 0.5 * f32::from((j * 8) as u8 as i8))
        .collect();
    assert_eq!(y[..], want);

    let mut q8_k = (-0.25f32).to_le_bytes().to_vec();
    q8_k.extend(0..=255u8);
    q8_k.extend([0xff; 32]);
    let mut y = [0.0; 256];
    dequantize(TensorType::Q8_K, &q8_k, &mut y).unwrap();
    let want: Vec<f32> = (0..=255u8).map(|q| -0.25 * f32::from(q as i8)).collect();
    assert_eq!(y[..], want);
}

/// Each byte of a block takes all 256 values over three backgrounds, without a panic.
#[test]
fn every_value_of_every_byte_decodes() {
    for ty in formats() {
        let mut y = vec![0.0; ty.block_len()];
        for background in [0x00, 0x5a, 0xff] {
            let mut block = vec![background; ty.block_bytes()];
            for at in 0..block.len() {
                for byte in 0..=255 {
                    block[at] = byte;
                    dequantize(ty, &block, &mut y).unwrap();
                }
                block[at] = background;
            }
        }
    }
}

/// Zeros decode as zeros, with weights of any kind (Q1_0 and MXFP4 have no zero scale but a tiny
/// one).
#[test]
fn zeros_stay_zeros() {
    for ty in writable() {
        for weight in [0.0, 1.0] {
            for importance in both(ty, &[weight; 512]) {
                let (mut out, mut y) = (Vec::new(), vec![1.0; 512]);
                quantize(ty, &[0.0; 512], 512, importance, &mut out).unwrap();
                dequantize(ty, &out, &mut y).unwrap();
                assert!(y.iter().all(|v| v.abs() < 1e-36), "{ty}: {y:?}");
                assert_eq!(first_bad_block(ty, &out), None, "{ty}");
            }
        }
    }
}

/// A float of a block set to NaN or infinity is found in that block, and so is an f16 scale that
/// overflows.
#[test]
fn bad_blocks_are_found_where_they_are() {
    use TensorType as T;
    for ty in [T::F32, T::F16, T::BF16] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1, 63, 64, 200] {
                let mut x = vec![f32::MIN_POSITIVE; 201];
                x[at] = bad;
                let mut out = Vec::new();
                quantize(ty, &x, 201, None, &mut out).unwrap();
                assert_eq!(first_bad_block(ty, &out), Some(at), "{ty} {bad}");
            }
        }
    }
    let (mut x, weights) = (vec![1.0; 1024], [1.0; 1024]);
    x[600] = 1e12;
    let no_f16_scale = [T::F32, T::BF16, T::MXFP4, T::NVFP4];
    for ty in writable().filter(|ty| !no_f16_scale.contains(ty)) {
        for importance in both(ty, &weights) {
            let mut out = Vec::new();
            quantize(ty, &x, 1024, importance, &mut out).unwrap();
            assert_eq!(
                first_bad_block(ty, &out),
                Some(600 / ty.block_len()),
                "{ty}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Random blocks do not panic, each block is decoded alone, and `dot` is the f64 sum of the
    /// decoded products.
    #[test]
    fn dot_is_the_sum_of_decoded_products(
        seed in prop::collection::vec(any::<u8>(), 3 * 292),
        x in prop::collection::vec(-8.0f32..8.0, 768),
    ) {
        for ty in formats() {
            let (raw, x) = (&seed[..3 * ty.block_bytes()], &x[..3 * ty.block_len()]);
            let mut y = vec![0.0; x.len()];
            dequantize(ty, raw, &mut y).unwrap();
            let mut alone = vec![0.0; ty.block_len()];
            for (block, y) in raw.chunks(ty.block_bytes()).zip(y.chunks(ty.block_len())) {
                dequantize(ty, block, &mut alone).unwrap();
                let same = |(a, b): (&f32, &f32)| {
                    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
                };
                prop_assert!(alone.iter().zip(y).all(same), "{}", ty);
            }
            let mut want = 0.0;
            for (w, x) in y.iter().zip(x) {
                want += f64::from(*w) * f64::from(*x);
            }
            let got = dot(ty, raw, x).unwrap();
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            prop_assert!(same, "{}: {} and {}", ty, got, want);
        }
    }

    /// Any float bits, NaNs and infinities among them, give whole blocks with any weights, without
    /// a panic.
    #[test]
    fn any_floats_quantize(
        bits in prop::collection::vec(any::<u32>(), 512),
        weights in prop::collection::vec(any::<u32>(), 256),
        keep in 0..4u32,
    ) {
        // three times out of four exponents are limited to a middle range, so that the searches'
        // sums stay finite
        let mask = if keep == 0 { u32::MAX } else { 0xa3ff_ffff };
        let x: Vec<f32> = bits.iter().map(|b| f32::from_bits(b & mask)).collect();
        let w: Vec<f32> = weights.iter().map(|b| f32::from_bits(b & mask & 0x7fff_ffff)).collect();
        for ty in writable() {
            for importance in both(ty, &w) {
                let mut out = Vec::new();
                quantize(ty, &x, 256, importance, &mut out).unwrap();
                prop_assert_eq!(out.len(), 512 / ty.block_len() * ty.block_bytes());
                dequantize(ty, &out, &mut vec![0.0; 512]).unwrap();
            }
        }
    }
}

/// Uses the data and limits of llama.cpp's test-quantize-fns (its "total error" is `sqrt(sum d^2) /
/// n`), and a limit of our own: the RMSE of rounding uniformly to the format's levels over the
/// data's range, `step / sqrt(12)`, plus a tenth.
#[test]
fn round_trip_error_is_that_of_uniform_rounding() {
    use TensorType as T;
    const N: usize = 4096;
    // (type, llama.cpp's limit, step): the data runs from -1.9 to 2.1
    let limits = [
        (T::Q4_0, 0.002, 2.1 / 8.0),
        (T::Q4_1, 0.002, 4.0 / 15.0),
        (T::Q5_0, 0.002, 2.1 / 16.0),
        (T::Q5_1, 0.002, 4.0 / 31.0),
        (T::Q8_0, 0.002, 2.1 / 127.0),
        (T::Q2_K, 0.0075, 4.0 / 3.0),
        (T::Q3_K, 0.004, 2.1 / 4.0),
        (T::Q4_K, 0.002, 4.0 / 15.0),
        (T::Q5_K, 0.002, 4.0 / 31.0),
        (T::Q6_K, 0.002, 2.1 / 32.0),
        (T::IQ4_NL, 0.002, 2.1 * 24.0 / 127.0),
        (T::IQ4_XS, 0.002, 2.1 * 24.0 / 127.0),
        // grids leave out most points, so their rounding is not uniform: llama.cpp's limits, and
        // four times the lattice's step
        (T::IQ3_S, 0.004, 4.0 * 2.1 * 2.0 / 15.0),
        (T::IQ3_XXS, 0.005, 4.0 * 2.1 * 2.0 / 15.0),
        (T::IQ2_S, 0.0075, 4.0 * 2.1 * 2.0 / 5.0),
        (T::IQ2_XS, 0.0075, 4.0 * 2.1 * 2.0 / 5.0),
        (T::IQ2_XXS, 0.0075, 4.0 * 2.1 * 2.0 / 5.0),
        (T::IQ1_S, 0.01, 4.0 * 2.1),
        // llama.cpp's 0.01 is for weighted fits: without weights it exceeds it too
        (T::IQ1_M, 0.0125, 4.0 * 2.1),
        (T::MXFP4, 0.003, 1.0),
        (T::NVFP4, 0.003, 0.7),
        (T::TQ1_0, 0.01, 2.1),
        (T::TQ2_0, 0.01, 2.1),
        (T::Q2_0, 0.01, 2.1),
        (T::Q1_0, 0.02, 4.0),
        (T::F16, 0.002, 2f64.powi(-10)),
        (T::BF16, 0.002, 2f64.powi(-7)),
        (T::F32, 0.0, 0.0),
    ];
    assert_eq!(limits.len(), writable().count());
    let x: Vec<f32> = (0..N).map(|i| 0.1 + 2.0 * (i as f32).cos()).collect();
    let uniform = vec![1.0; N];
    for (ty, limit, step) in limits {
        for importance in both(ty, &uniform) {
            let (mut raw, mut y) = (Vec::new(), vec![0.0; N]);
            quantize(ty, &x, N, importance, &mut raw).unwrap();
            dequantize(ty, &raw, &mut y).unwrap();
            let squares: f64 = x
                .iter()
                .zip(&y)
                .map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2))
                .sum();
            let total = squares.sqrt() / N as f64;
            let rmse = (squares / N as f64).sqrt();
            let bound = 1.1 * step / 12f64.sqrt();
            println!(
                "{ty} {}: total {total:.6} of {limit}, rmse {rmse:.6} of {bound:.6}",
                importance.is_some()
            );
            assert!(
                total <= limit,
                "{ty}: total error {total}, expected at most {limit}"
            );
            assert!(rmse <= bound, "{ty}: RMSE {rmse}, expected at most {bound}");
        }
    }
}
