//! Hadamard transforms against products with the matrix in f64.

use crate::common::{KV, Rng, embed, program, run};
use octavo_kernels::{Executor, Isa, Op, Phase, Pool};

/// Half a unit in the last place: relative error of one rounding.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// Transforms rows of `x` by the kernels.
pub(crate) fn transformed(
    isa: Isa,
    x: &[f32],
    width: usize,
    order: usize,
    threads: usize,
) -> Vec<f32> {
    let m = x.len() / width;
    let ops = vec![embed(m, width, x, 0), Op::Hadamard { x: 0, order }.to(1)];
    let pool = Pool::new(threads).expect("threads");
    let mut executor = Executor::new(isa, program(ops, &[width; 2], KV), Vec::new(), pool);
    run(&mut executor, KV, Phase::Prefill, m)
}

/// Returns one value of a product with the matrix, and its error bound for pairwise sums and one
/// factor: the sign is the parity of the one bits that row and column share.
fn exact(group: &[f32], row: usize) -> (f64, f64) {
    let signed = |(column, x): (usize, &f32)| match (row & column).count_ones() % 2 {
        0 => f64::from(*x),
        _ => -f64::from(*x),
    };
    let root = (group.len() as f64).sqrt();
    let sum: f64 = group.iter().enumerate().map(signed).sum();
    let size: f64 = group.iter().map(|x| f64::from(x.abs())).sum();
    let roundings = f64::from(group.len().ilog2() + 2);
    (sum / root, 1.01 * roundings * U * size / root)
}

/// Rows, width and order: one head, several, and orders below the width.
pub(crate) const SIZES: [[usize; 3]; 6] = [
    [1, 2, 2],
    [3, 64, 64],
    [5, 192, 64],
    [2, 96, 32],
    [4, 256, 256],
    [37, 512, 128],
];

#[test]
fn transforms_are_products_with_the_matrix() {
    for [m, width, order] in SIZES {
        let x = Rng(31).floats(m * width);
        for isa in Isa::available() {
            let got = transformed(isa, &x, width, order, 1);
            for (group, got) in x.chunks(order).zip(got.chunks(order)) {
                for (row, got) in got.iter().enumerate() {
                    let (y, allowed) = exact(group, row);
                    let error = (f64::from(*got) - y).abs();
                    assert!(error <= allowed, "{isa} {width} by {order}: {y}, {got}");
                }
            }
            let again = transformed(isa, &x, width, order, 2);
            assert!(again == got, "{isa} {width} by {order}: threads");
        }
    }
}

#[test]
#[should_panic(expected = "order of a Hadamard transform: expected 64, got 48")]
fn orders_are_powers_of_two() {
    transformed(Isa::Scalar, &Rng(1).floats(96), 96, 48, 1);
}
