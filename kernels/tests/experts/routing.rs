//! Operations around expert products, checked against f64 or exactly.

use super::{applied, bits};
use crate::common::Rng;
use octavo_kernels::{Isa, Op, TopGroups};

/// Relative error of one rounding.
const U: f64 = 1.0 / 16_777_216.0;

#[test]
fn softmax_matches_f64() {
    let mut rng = Rng(1);
    for (m, n) in [(1, 1), (3, 7), (2, 16), (5, 60), (9, 128), (2, 333)] {
        for spread in [1.0f32, 20.0, 200.0] {
            let x: Vec<f32> = rng.floats(m * n).iter().map(|x| x * spread).collect();
            for isa in Isa::available() {
                let of = |threads| applied(isa, &[(&x, n)], || Op::Softmax { x: 0 }, n, threads);
                let got = of(1);
                for (x, got) in x.chunks_exact(n).zip(got.chunks_exact(n)) {
                    check_softmax(isa.name(), x, got);
                }
                assert!(bits(&of(3)) == bits(&got), "{isa}: three threads");
            }
        }
    }
}

/// Checks a softmax. Rounding the argument changes the power in proportion to the argument; a power
/// is off by two units in the last place (four roundings); their sum by the average of their
/// errors, and by a rounding for each; then there is a quotient. Powers are never smaller than
/// `e^-87.3`.
pub(crate) fn check_softmax(what: &str, x: &[f32], got: &[f32]) {
    let largest = x.iter().fold(f64::NEG_INFINITY, |a, x| a.max((*x).into()));
    let powers: Vec<f64> = x.iter().map(|x| (f64::from(*x) - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    let less = |x: &f32| largest - f64::from(*x);
    let of_sum: f64 = x.iter().zip(&powers).map(|(x, p)| less(x) * p / sum).sum();
    for (i, x) in x.iter().enumerate() {
        let exact = powers[i] / sum;
        let roundings = less(x) + of_sum + 8.0 + powers.len() as f64 + 1.0;
        let (error, bound) = (
            (f64::from(got[i]) - exact).abs(),
            exact * roundings * U + 2e-38,
        );
        assert!(
            error <= bound,
            "{what}: {x}, {i}: expected {exact}, got {}, {error:e} > {bound:e}",
            got[i]
        );
    }
}

#[test]
fn what_is_not_a_number_stays_to_be_seen() {
    for odd in [f32::NAN, f32::INFINITY] {
        for isa in Isa::available() {
            let mut x = vec![0.5; 40];
            x[25] = odd;
            let y = applied(isa, &[(&x, 20)], || Op::Softmax { x: 0 }, 20, 1);
            assert!(y[..20].iter().all(|y| *y == 0.05), "{isa}: {y:?}");
            assert!(y[20..].iter().all(|y| y.is_nan()), "{isa}: {y:?}");
        }
    }
    let x = [1.0, f32::NAN, 2.0];
    let y = applied(
        Isa::Scalar,
        &[(&x, 3)],
        || Op::Normalize { x: 0, least: 1.0 },
        3,
        1,
    );
    assert!(y.iter().all(|y| y.is_nan()), "{y:?}");
}

/// Computes top-k indices by sorting.
pub(crate) fn sorted(x: &[f32], n: usize, groups: Option<TopGroups>) -> Vec<f32> {
    // larger first, NaN before all; of equal ones, the lower index
    let descending = |values: &[f32]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (values[*a], values[*b]);
            let of_numbers = b.partial_cmp(&a);
            of_numbers.unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
        });
        order
    };
    let mut kept = vec![true; x.len()];
    if let Some(TopGroups { count, used }) = groups {
        let len = x.len() / count;
        let score = |group: &[f32]| {
            let order = descending(group);
            group[order[0]] + group[order[1]]
        };
        let scores: Vec<f32> = x.chunks_exact(len).map(score).collect();
        for group in &descending(&scores)[used..] {
            kept[group * len..(group + 1) * len].fill(false);
        }
    }
    let order = descending(x).into_iter().filter(|at| kept[*at]);
    order.take(n).map(|at| at as f32).collect()
}

/// Returns rows for top-k: ordinary ones, with many equal values, with both zeros, with infinities
/// and with NaN.
pub(crate) fn rows_to_choose_from(rng: &mut Rng, width: usize) -> Vec<Vec<f32>> {
    let ordinary = rng.floats(width);
    let equal = (0..width).map(|_| (rng.bits() % 3) as f32).collect();
    let zeros = (0..width)
        .map(|_| [0.0, -0.0][rng.bits() as usize % 2])
        .collect();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, -f32::NAN];
    let odd = (0..width).map(|_| odd[rng.bits() as usize % 5]).collect();
    let mut one = rng.floats(width);
    one[width / 2] = f32::NAN;
    let least = vec![f32::NEG_INFINITY; width];
    vec![
        ordinary,
        equal,
        zeros,
        odd,
        one,
        vec![f32::NAN; width],
        least,
    ]
}

/// Width, k, groups.
pub(crate) const TOPS: [(usize, usize, Option<TopGroups>); 10] = [
    (1, 1, None),
    (4, 4, None),
    (8, 2, None),
    (60, 4, None),
    (128, 8, None),
    (300, 33, None),
    (8, 3, Some(TopGroups { count: 4, used: 2 })),
    (64, 8, Some(TopGroups { count: 8, used: 4 })),
    (256, 8, Some(TopGroups { count: 8, used: 4 })),
    (90, 6, Some(TopGroups { count: 45, used: 3 })),
];

#[test]
fn the_largest_are_found_in_order() {
    let mut rng = Rng(2);
    for (width, n, groups) in TOPS {
        let rows = rows_to_choose_from(&mut rng, width);
        let expected: Vec<f32> = rows.iter().flat_map(|row| sorted(row, n, groups)).collect();
        let x = rows.concat();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let got = applied(
                    isa,
                    &[(&x, width)],
                    || Op::TopK { x: 0, n, groups },
                    n,
                    threads,
                );
                assert_eq!(got, expected, "{isa}: {n} of {width}, {groups:?}");
            }
        }
    }
}

#[test]
fn values_are_gathered_by_place() {
    let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
    let ids = [3.0, 0.0, 9.0, f32::NAN, 1e9, -2.0];
    for isa in Isa::available() {
        for threads in [1, 2] {
            let inputs = [(&x[..], 10), (&ids[..], 3)];
            let got = applied(isa, &inputs, || Op::Gather { x: 0, ids: 1 }, 3, threads);
            assert_eq!(got, [3.0, 0.0, 9.0, 10.0, 19.0, 10.0], "{isa}");
        }
    }
}

#[test]
fn rows_are_normalized_scaled_and_summed() {
    let mut rng = Rng(3);
    for (m, count, n) in [(1, 1, 1), (3, 8, 64), (2, 2, 333), (5, 6, 31)] {
        let x = rng.floats(m * count * n);
        let weights: Vec<f32> = rng.floats(m * count).iter().map(|w| w.abs()).collect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                for least in [1e-5, 10.0f32] {
                    let normalize = || Op::Normalize { x: 0, least };
                    let got = applied(isa, &[(&weights, count)], normalize, count, threads);
                    for (w, got) in weights.chunks_exact(count).zip(got.chunks_exact(count)) {
                        let sum: f64 = w.iter().map(|w| f64::from(*w)).sum();
                        for (w, got) in w.iter().zip(got) {
                            let exact = f64::from(*w) / sum.max(least.into());
                            // one rounding per value added, and that of the quotient
                            let bound = exact * U * (count as f64 + 1.0) + 1e-44;
                            assert!((f64::from(*got) - exact).abs() <= bound, "{isa} {w}");
                        }
                    }
                }
                let inputs = [(&x[..], count * n), (&weights[..], count)];
                let sum = || Op::ExpertSum { x: 0, weights: 1 };
                let got = applied(isa, &inputs, sum, n, threads);
                for r in 0..m {
                    for i in 0..n {
                        let part = |p: usize| {
                            let at = r * count + p;
                            f64::from(x[at * n + i]) * f64::from(weights[at])
                        };
                        let exact: f64 = (0..count).map(part).sum();
                        let size: f64 = (0..count).map(|p| part(p).abs()).sum();
                        let error = (f64::from(got[r * n + i]) - exact).abs();
                        // at most two roundings per part
                        assert!(
                            error <= size * U * 2.0 * count as f64 + 1e-44,
                            "{isa} {r} {i}"
                        );
                    }
                }
                let by = &weights[..m];
                let inputs = [(&x[..m * n], n), (by, 1)];
                let got = applied(isa, &inputs, || Op::ScaleRows { x: 0, by: 1 }, n, threads);
                let rows = x.chunks_exact(n).zip(by);
                let expected: Vec<f32> = rows
                    .flat_map(|(x, by)| x.iter().map(move |x| x * by))
                    .collect();
                assert_eq!(got, expected, "{isa}");
                // a factor for each part of a row
                let inputs = [(&x[..], count * n), (&weights[..], count)];
                let scale = || Op::ScaleRows { x: 0, by: 1 };
                let got = applied(isa, &inputs, scale, count * n, threads);
                let parts = x.chunks_exact(n).zip(&weights);
                let expected: Vec<f32> = parts
                    .flat_map(|(x, by)| x.iter().map(move |x| x * by))
                    .collect();
                assert_eq!(got, expected, "{isa}");
            }
        }
    }
}

#[test]
fn parts_get_the_bias_of_their_expert() {
    let mut rng = Rng(4);
    let (m, used, n, experts) = (3, 2, 37, 5);
    let (x, bias) = (rng.floats(m * used * n), rng.floats(experts * n));
    let ids = [4.0, 0.0, 2.0, 3.0, f32::NAN, 99.0];
    let expert_of = [4, 0, 2, 3, 0, 4];
    let with_bias = |(i, x): (usize, &f32)| x + bias[expert_of[i / n] * n + i % n];
    let expected: Vec<f32> = x.iter().enumerate().map(with_bias).collect();
    for isa in Isa::available() {
        for threads in [1, 2] {
            let op = || Op::ExpertBias {
                x: 0,
                bias: bias.clone().into(),
                ids: 1,
            };
            let inputs = [(&x[..], used * n), (&ids[..], used)];
            let got = applied(isa, &inputs, op, used * n, threads);
            assert_eq!(got, expected, "{isa}");
        }
    }
}
