//! Rows of logits: the same bits on every instruction set, and near the plain sums.

use crate::common::Rng;
use octavo_kernels::{ExpSums, Isa, LOGIT_BLOCK, LogitKernels, exp_f64};

/// Lengths: edges of vectors and of blocks.
const LENGTHS: [usize; 11] = [
    0,
    1,
    7,
    8,
    9,
    LOGIT_BLOCK - 1,
    LOGIT_BLOCK,
    LOGIT_BLOCK + 1,
    2 * LOGIT_BLOCK + 13,
    5 * LOGIT_BLOCK,
    10_007,
];

fn logits(n: usize, scale: f32) -> Vec<f32> {
    let mut rng = Rng(n as u64 + 3);
    let mut x: Vec<f32> = (0..n).map(|_| scale * rng.unit()).collect();
    if let Some(first) = x.first_mut() {
        *first = -0.0;
    }
    x
}

#[test]
fn logits_are_widened_and_the_largest_of_each_block_is_found() {
    for isa in Isa::available() {
        let kernels = LogitKernels::of(isa);
        for n in LENGTHS {
            let x = logits(n, 30.0);
            // old contents must not show
            let (mut y, mut maxima) = (vec![f64::NAN; 700], vec![f64::NAN; 3]);
            assert!(kernels.widen(&x, &mut y, &mut maxima), "{isa}, {n}");
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x) + 0.0).collect();
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&y), bits(&wide), "{isa}, {n}");
            let max = |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let expected: Vec<f64> = wide.chunks(LOGIT_BLOCK).map(max).collect();
            assert_eq!(maxima, expected, "{isa}, {n}");
            let mut again = vec![f64::NAN; 5];
            kernels.maxima(&y, &mut again);
            assert_eq!(again, expected, "{isa}, {n}");
        }
    }
}

#[test]
fn one_logit_that_is_not_finite_is_seen() {
    for isa in Isa::available() {
        let kernels = LogitKernels::of(isa);
        for n in LENGTHS {
            for at in [0, n / 2, n.saturating_sub(1)]
                .into_iter()
                .filter(|at| *at < n)
            {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = logits(n, 30.0);
                    x[at] = bad;
                    let (mut y, mut maxima) = (Vec::new(), Vec::new());
                    let is_finite = kernels.widen(&x, &mut y, &mut maxima);
                    assert!(!is_finite, "{isa}, {bad} at {at} of {n}");
                }
            }
        }
    }
}

/// Sums in the order that kernels have: eight lanes, and a tree.
fn sums(x: &[f64], max: f64) -> Vec<[u64; 2]> {
    let one = |block: &[f64]| {
        let mut lanes = [[0.0f64; 8]; 2];
        for (i, x) in block.iter().enumerate() {
            let d = (x - max).max(-709.09);
            lanes[0][i % 8] += exp_f64(d);
            lanes[1][i % 8] += d * exp_f64(d);
        }
        let tree = |v: [f64; 8]| {
            let pair = |i: usize| (v[i] + v[i + 4]) + (v[i + 2] + v[i + 6]);
            pair(0) + pair(1)
        };
        lanes.map(|v| (tree(v) + 0.0).to_bits())
    };
    x.chunks(LOGIT_BLOCK).map(one).collect()
}

#[test]
fn sums_of_exponentials_have_the_same_bits_everywhere() {
    for isa in Isa::available() {
        let kernels = LogitKernels::of(isa);
        for (n, scale) in LENGTHS
            .into_iter()
            .flat_map(|n| [(n, 0.0), (n, 20.0), (n, 900.0)])
        {
            let x = logits(n, scale);
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let max = wide.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let bits = |sums: Vec<ExpSums>| -> Vec<[u64; 2]> {
                let one = |s: &ExpSums| [s.powers, s.products].map(|x| (x + 0.0).to_bits());
                sums.iter().map(one).collect()
            };
            let expected = sums(&wide, max);
            assert!(bits(kernels.exp_sums(&wide, max)) == expected, "{isa}, {n}");
            assert!(
                bits(kernels.exp_sums_f32(&x, max)) == expected,
                "{isa}, {n}"
            );
            let mut powers = wide.clone();
            kernels.exps(&mut powers, max);
            let same = |(x, power): (&f64, &f64)| exp_f64(x - max).to_bits() == power.to_bits();
            assert!(wide.iter().zip(&powers).all(same), "{isa}, {n}");
        }
    }
}

/// Each term has an error of 3 roundings of its power, and adding up all terms one for each that a
/// lane and the blocks have.
#[test]
fn sums_of_exponentials_match_the_standard_library() {
    let kernels = LogitKernels::of(Isa::best());
    for n in LENGTHS {
        let x: Vec<f64> = logits(n, 20.0).iter().map(|x| f64::from(*x)).collect();
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let all = kernels.exp_sums(&x, max);
        let powers: f64 = all.iter().map(|sums| sums.powers).sum();
        let products: f64 = all.iter().map(|sums| sums.products).sum();
        let expected: f64 = x.iter().map(|x| (x - max).exp()).sum();
        let of_products: f64 = x.iter().map(|x| (x - max) * (x - max).exp()).sum();
        let roundings = 3.0 + (LOGIT_BLOCK / 8) as f64 + n as f64;
        let bound = roundings * f64::EPSILON;
        assert!(
            (powers - expected).abs() <= bound * expected,
            "{n}: {powers}"
        );
        let error = (products - of_products).abs();
        assert!(error <= bound * of_products.abs(), "{n}: {products}");
    }
}
