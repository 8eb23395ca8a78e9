//! A whole mixture of experts: results do not depend on the batch or its division among threads.

use std::sync::Arc;

use super::{all, bits, run, run_tapped};
use crate::common::{KV, Rng, embed, program, random_blocks};
use octavo_kernels::{Activation, Executor, Instruction, Isa, Matrix, Op, Phase, Pool, TopGroups};
use octavo_quant::TensorType as T;

/// A mixture with all its operations. Slots: 0 x, 1 logits, 2 probabilities, 3 experts, 4 their
/// probabilities, 5 their weights, 6 gates, 7 biased, 8 up, 9 gated, 10 down, 11 the sum, 12 its
/// scale, 13 scaled, 14 the output.
pub(crate) struct Mixture {
    /// Weight types of gate, up and down.
    pub(crate) types: [T; 3],
    pub(crate) d: usize,
    pub(crate) ff: usize,
    pub(crate) experts: usize,
    pub(crate) used: usize,
    pub(crate) tokens: usize,
}

impl Mixture {
    /// Returns its operations, with input rows `x` (`[tokens, d]`) and a bias (`[experts, ff]`) on
    /// the gates.
    pub(crate) fn ops(&self, x: &[f32], bias: &[f32]) -> Vec<Instruction> {
        let &Mixture {
            d,
            experts,
            used,
            tokens,
            ..
        } = self;
        let experts_of = |x, w| Op::ExpertMatMul {
            x,
            w,
            ids: 3,
            experts,
        };
        vec![
            embed(tokens, d, x, 0),
            Op::MatMul { x: 0, w: 0 }.to(1),
            Op::Softmax { x: 1 }.to(2),
            Op::TopK {
                x: 2,
                n: used,
                groups: Some(TopGroups { count: 4, used: 2 }),
            }
            .to(3),
            Op::Gather { x: 2, ids: 3 }.to(4),
            Op::Normalize { x: 4, least: 1e-5 }.to(5),
            experts_of(0, 1).to(6),
            Op::ExpertBias {
                x: 6,
                bias: bias.into(),
                ids: 3,
            }
            .to(7),
            experts_of(0, 2).to(8),
            Op::Gate {
                gate: 7,
                up: 8,
                act: Activation::Silu,
            }
            .to(9),
            experts_of(9, 3).to(10),
            Op::ExpertSum { x: 10, weights: 5 }.to(11),
            Op::MatMul { x: 0, w: 4 }.to(12),
            Op::ScaleRows { x: 11, by: 12 }.to(13),
            Op::Add { a: 0, b: 13 }.to(14),
        ]
    }

    /// Returns the values per token of each slot.
    pub(crate) fn widths(&self) -> [usize; 15] {
        let &Mixture {
            d,
            ff,
            experts,
            used,
            ..
        } = self;
        let (inner, outer) = (used * ff, used * d);
        [
            d, experts, experts, used, used, used, inner, inner, inner, inner, outer, d, 1, d, d,
        ]
    }

    /// Returns the type, rows and columns of each matrix, and the number of experts in its rows.
    pub(crate) fn matrices(&self) -> [((T, usize, usize), usize); 5] {
        let &Mixture {
            types: [gate, up, down],
            d,
            ff,
            experts,
            ..
        } = self;
        [
            ((T::F32, experts, d), 1),
            ((gate, experts * ff, d), experts),
            ((up, experts * ff, d), experts),
            ((down, experts * d, ff), experts),
            ((T::F32, 1, d), 1),
        ]
    }

    /// Returns other plausible results of each operation: expert ids where experts are chosen, else
    /// positive numbers.
    pub(crate) fn others(&self, rng: &mut Rng) -> Vec<Vec<f32>> {
        let one = |(op, width): (usize, usize)| {
            let value = |i: usize| match op {
                // consecutive experts, the first one random
                3 => ((rng.bits() as usize % 2 + i % width) % self.experts) as f32,
                _ => rng.floats(1)[0].abs() + 0.1,
            };
            (0..self.tokens * width).map(value).collect()
        };
        self.widths().into_iter().enumerate().map(one).collect()
    }

    fn executor(&self, isa: Isa, repack: bool, pool: Pool) -> Executor {
        self.executor_with(isa, repack, pool, None)
    }

    /// Creates an executor in which one operation may give known values instead of its own.
    fn executor_with(
        &self,
        isa: Isa,
        repack: bool,
        mut pool: Pool,
        known: Option<(usize, &[f32])>,
    ) -> Executor {
        let mut rng = Rng(77);
        let x = rng.floats(self.tokens * self.d);
        let bias = rng.floats(self.experts * self.ff);
        let matrices = self.matrices().map(|(shape, experts)| {
            let (ty, rows, cols) = shape;
            let raw = Arc::new(random_blocks(&mut rng, ty, rows * cols));
            Matrix::of_experts(isa, shape, experts, raw, repack, &mut pool).expect("a matrix")
        });
        let mut ops = self.ops(&x, &bias);
        if let Some((op, values)) = known {
            ops[op] = embed(self.tokens, self.widths()[op], values, op);
        }
        let program = program(ops, &self.widths(), KV);
        Executor::new(isa, program, matrices.into(), pool)
    }
}

fn mixtures() -> [Mixture; 2] {
    let first = Mixture {
        types: [T::Q4_K, T::Q4_K, T::Q5_0],
        d: 256,
        ff: 96,
        experts: 16,
        used: 4,
        tokens: 40,
    };
    let second = Mixture {
        types: [T::Q8_0, T::BF16, T::F16],
        d: 96,
        ff: 67,
        experts: 8,
        used: 3,
        tokens: 23,
    };
    [first, second]
}

/// Outputs with a tap that replaces an operation's result by known values are bit-identical to
/// those of a program in which the operation itself gives these: the next reader of each operation
/// of a mixture reads the tap's values.
#[test]
fn what_a_tap_gives_is_what_the_next_operation_reads() {
    let mixture = Mixture {
        types: [T::Q4_0, T::Q8_0, T::F16],
        d: 64,
        ff: 96,
        experts: 8,
        used: 3,
        tokens: 7,
    };
    let tokens = all(mixture.tokens);
    let others = mixture.others(&mut Rng(31));
    for isa in Isa::available() {
        let pool = |threads| Pool::new(threads).expect("threads");
        let mut executors = [1, 3].map(|threads| mixture.executor(isa, true, pool(threads)));
        for (op, values) in others.iter().enumerate() {
            let mut known = mixture.executor_with(isa, true, pool(1), Some((op, values)));
            for phase in [Phase::Prefill, Phase::Decode] {
                let expected = run(&mut known, phase, &tokens, None);
                for executor in &mut executors {
                    let how = format!("{isa}, {phase:?}, operation {op}");
                    let own = run(executor, phase, &tokens, None);
                    assert!(bits(&own) != bits(&expected), "{how}: nothing changed");
                    let mut tap = |at: usize, _: usize, _: usize, seen: &[f32]| {
                        assert!(at != op || seen != values, "{how}");
                        (at == op).then(|| values.clone())
                    };
                    let got = run_tapped(executor, phase, &tokens, Some(&mut tap));
                    assert!(bits(&got) == bits(&expected), "{how}");
                    // and the next step is not affected
                    assert!(
                        bits(&run(executor, phase, &tokens, None)) == bits(&own),
                        "{how}"
                    );
                }
            }
        }
    }
}

/// A wrong number of values from a tap panics, and does not corrupt memory.
#[test]
#[should_panic(expected = "values in place of others")]
fn a_tap_that_gives_too_few_values_is_refused() {
    let [mixture, _] = mixtures();
    let isa = Isa::Scalar;
    let mut executor = mixture.executor(isa, true, Pool::new(2).expect("threads"));
    let mut tap = |_: usize, _: usize, _: usize, seen: &[f32]| Some(seen[1..].to_vec());
    run_tapped(&mut executor, Phase::Prefill, &all(2), Some(&mut tap));
}

/// Tokens in a batch, each alone, with taps, and with threads that stall.
#[test]
fn a_mixture_depends_on_the_token_alone() {
    let mut taken_over = 0;
    for mixture in mixtures() {
        let tokens = all(mixture.tokens);
        for isa in Isa::available() {
            for repack in [true, false] {
                let mut one = mixture.executor(isa, repack, Pool::new(1).expect("a thread"));
                for phase in [Phase::Prefill, Phase::Decode] {
                    let how = format!("{isa}, repacked {repack}, {phase:?}");
                    let expected = run(&mut one, phase, &tokens, None);
                    assert!(
                        expected.iter().all(|y| y.is_finite())
                            && expected.iter().any(|y| *y != 0.0),
                        "{how}"
                    );
                    for (token, expected) in tokens.iter().zip(expected.chunks_exact(mixture.d)) {
                        let alone = run(&mut one, phase, &[*token], None);
                        assert!(bits(&alone) == bits(expected), "{how}: token {token}");
                    }
                    let mut seen = 0;
                    let tapped = run(&mut one, phase, &tokens, Some(&mut seen));
                    assert_eq!(seen, 15, "every operation is seen");
                    assert!(bits(&tapped) == bits(&expected), "{how}: with taps");
                    for (threads, one_of) in [(2, 10), (3, 20)] {
                        let pool = Pool::unreliable(threads, 5, one_of).expect("threads");
                        let mut executor = mixture.executor(isa, repack, pool);
                        for round in 0..6 {
                            let got = run(&mut executor, phase, &tokens, None);
                            assert!(
                                bits(&got) == bits(&expected),
                                "{how}: {threads} threads, round {round}"
                            );
                        }
                        taken_over += executor.pool().lock().taken_over();
                    }
                }
            }
        }
    }
    assert!(
        taken_over > 0,
        "nobody ever went on without a missing thread"
    );
    println!("taken over {taken_over} times");
}
