//! Expert products against products with each expert's matrix alone.

use std::sync::Arc;

use super::{all, bits, run};
use crate::common::{KV, Rng, embed, f32_bytes, product, program, random_blocks};
use octavo_kernels::{Executor, Isa, Matrix, Op, Phase, Pool};
use octavo_quant::TensorType as T;

/// Sizes and options of expert products.
#[derive(Clone, Copy, Debug)]
struct Case {
    ty: T,
    experts: usize,
    /// Experts per row.
    used: usize,
    /// Rows per expert.
    n: usize,
    cols: usize,
    /// Tokens.
    m: usize,
    /// Whether each expert of a row has its own input.
    apart: bool,
}

/// Returns random expert ids, `used` different ones for each of `m` rows.
fn choices(rng: &mut Rng, case: &Case) -> Vec<f32> {
    let mut ids = Vec::new();
    for _ in 0..case.m {
        let mut left: Vec<usize> = (0..case.experts).collect();
        for _ in 0..case.used {
            let at = rng.bits() as usize % left.len();
            ids.push(left.swap_remove(at) as f32);
        }
    }
    ids
}

impl Case {
    fn executor(
        &self,
        isa: Isa,
        pool: Pool,
        repack: bool,
        raw: &[u8],
        x: &[f32],
        ids: &[f32],
    ) -> Executor {
        let mut pool = pool;
        let &Case {
            ty,
            experts,
            used,
            n,
            cols,
            m,
            apart,
        } = self;
        let source = Arc::new(raw.to_vec());
        let shape = (ty, experts * n, cols);
        let matrix = Matrix::of_experts(isa, shape, experts, source, repack, &mut pool);
        let width = if apart { used * cols } else { cols };
        let product = Op::ExpertMatMul {
            x: 0,
            w: 0,
            ids: 1,
            experts,
        };
        let ops = vec![embed(m, width, x, 0), embed(m, used, ids, 1), product.to(2)];
        let program = program(ops, &[width, used, used * n], KV);
        Executor::new(isa, program, vec![matrix.expect("a matrix")], pool)
    }

    /// Computes the same by products with each expert's matrix alone.
    fn one_by_one(
        &self,
        isa: Isa,
        phase: Phase,
        repack: bool,
        raw: &[u8],
        x: &[f32],
        expert_of: &[usize],
    ) -> Vec<f32> {
        let &Case {
            ty,
            experts,
            n,
            cols,
            ..
        } = self;
        let mut y = vec![0.0; expert_of.len() * n];
        let bytes = raw.len() / experts;
        for expert in 0..experts {
            let of_expert = |choice: &usize| expert_of[*choice] == expert;
            let mine: Vec<usize> = (0..expert_of.len()).filter(of_expert).collect();
            let input = |choice: &usize| {
                let row = if self.apart {
                    *choice
                } else {
                    choice / self.used
                };
                x[row * cols..(row + 1) * cols].to_vec()
            };
            let inputs: Vec<f32> = mine.iter().flat_map(input).collect();
            if inputs.is_empty() {
                continue;
            }
            let raw = &raw[expert * bytes..(expert + 1) * bytes];
            let (of_all, _) = product(isa, (ty, n, cols), raw, &inputs, phase, repack, 1);
            for (choice, of_one) in mine.iter().zip(of_all.chunks_exact(n)) {
                y[choice * n..(choice + 1) * n].copy_from_slice(of_one);
            }
        }
        y
    }
}

/// One format of every class: integer formats with scales per 16 and per 32, with and without
/// minima, with a table; floats; and formats without a packed form.
const TYPES: [T; 12] = [
    T::Q4_K,
    T::Q6_K,
    T::Q2_K,
    T::Q8_0,
    T::Q5_1,
    T::IQ4_NL,
    T::MXFP4,
    T::F32,
    T::F16,
    T::BF16,
    T::IQ2_XS,
    T::TQ1_0,
];

/// Experts, experts per row, rows per expert, tokens.
const SIZES: [(usize, usize, usize, usize); 8] = [
    (4, 1, 17, 1),
    (4, 2, 33, 3),
    (8, 8, 7, 1),
    (8, 2, 40, 2),
    (64, 8, 24, 3),
    (64, 8, 19, 40),
    (8, 2, 48, 40),
    (4, 4, 81, 40),
];

#[test]
fn rows_get_the_bits_of_their_experts_alone() {
    for ty in TYPES {
        let mut rng = Rng(ty.id().into());
        let cols = if ty.block_len() == 1 {
            77
        } else {
            256 + ty.block_len().max(32)
        };
        for (i, (experts, used, n, m)) in SIZES.into_iter().enumerate() {
            let apart = i % 2 == 1;
            let case = Case {
                ty,
                experts,
                used,
                n,
                cols,
                m,
                apart,
            };
            let raw = random_blocks(&mut rng, ty, experts * n * cols);
            let x = rng.floats(m * cols * if apart { used } else { 1 });
            let ids = choices(&mut rng, &case);
            let expert_of: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
            for isa in Isa::available() {
                for (phase, repack) in [
                    (Phase::Prefill, true),
                    (Phase::Prefill, false),
                    (Phase::Decode, true),
                    (Phase::Decode, false),
                ] {
                    let expected = case.one_by_one(isa, phase, repack, &raw, &x, &expert_of);
                    for threads in [1, 2] {
                        let pool = Pool::new(threads).expect("threads");
                        let mut executor = case.executor(isa, pool, repack, &raw, &x, &ids);
                        let got = run(&mut executor, phase, &all(m), None);
                        assert!(got.iter().all(|y| y.is_finite()));
                        assert!(
                            bits(&got) == bits(&expected),
                            "{isa} {phase:?}, repacked {repack}, {threads} threads: {case:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Many rows of few experts, so that several pairs of strips share a slice of activations.
#[test]
fn long_prompts_too() {
    let mut rng = Rng(31);
    let case = Case {
        ty: T::Q4_K,
        experts: 2,
        used: 1,
        n: 400,
        cols: 1024,
        m: 300,
        apart: false,
    };
    let raw = random_blocks(&mut rng, case.ty, case.experts * case.n * case.cols);
    let x = rng.floats(case.m * case.cols);
    let ids = choices(&mut rng, &case);
    let expert_of: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
    for isa in Isa::available()
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar)
    {
        let expected = case.one_by_one(isa, Phase::Prefill, true, &raw, &x, &expert_of);
        for threads in [1, 3] {
            let pool = Pool::new(threads).expect("threads");
            let mut executor = case.executor(isa, pool, true, &raw, &x, &ids);
            let got = run(&mut executor, Phase::Prefill, &all(case.m), None);
            assert!(bits(&got) == bits(&expected), "{isa}, {threads} threads");
        }
    }
}

/// Invalid and repeated expert ids: the nearest valid expert is used, and nothing else is read.
#[test]
fn no_number_of_an_expert_reads_beyond_them() {
    let mut rng = Rng(8);
    let ids = [
        f32::NAN,
        -1.0,
        1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        3.0,
        3.0,
        4.0,
        3.9,
    ];
    let expert_of = [0, 0, 3, 3, 0, 3, 3, 3, 3];
    for ty in [T::Q4_0, T::F32, T::IQ2_XS] {
        let case = Case {
            ty,
            experts: 4,
            used: 3,
            n: 21,
            cols: 256,
            m: 3,
            apart: true,
        };
        let raw = random_blocks(&mut rng, ty, 4 * 21 * 256);
        let x = rng.floats(9 * 256);
        for isa in Isa::available() {
            for phase in [Phase::Prefill, Phase::Decode] {
                let expected = case.one_by_one(isa, phase, true, &raw, &x, &expert_of);
                let pool = Pool::new(2).expect("threads");
                let mut executor = case.executor(isa, pool, true, &raw, &x, &ids);
                let got = run(&mut executor, phase, &all(3), None);
                assert!(bits(&got) == bits(&expected), "{isa} {ty} {phase:?}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "matrix 0: experts")]
fn an_ordinary_matrix_is_not_experts() {
    let mut pool = Pool::new(1).expect("a thread");
    let raw = Arc::new(f32_bytes(&[0.0; 32]));
    let matrix = Matrix::new(Isa::Scalar, (T::F32, 8, 4), raw, true, &mut pool).expect("a matrix");
    let product = Op::ExpertMatMul {
        x: 0,
        w: 0,
        ids: 1,
        experts: 2,
    };
    let ops = vec![
        embed(1, 4, &[0.0; 4], 0),
        embed(1, 1, &[0.0], 1),
        product.to(2),
    ];
    Executor::new(
        Isa::Scalar,
        program(ops, &[4, 1, 4], KV),
        vec![matrix],
        pool,
    );
}
