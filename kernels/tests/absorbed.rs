//! Tests of fused operations against the same operations one by one.

use std::sync::Arc;

use crate::common::{KV, Rng, all_or_turn, embed, program, random_blocks, run};
use octavo_kernels::{
    Activation, Executor, Instruction, Isa, KvStore, Matrix, Op, Phase, Pool, Step, StepSequence,
};
use octavo_quant::TensorType as T;

/// Slots: 0 x, 1 gate, 2 up, 3 gated, 4 down, 5 the sum.
const D: usize = 256;

struct Case {
    gate: T,
    up: T,
    down: T,
    /// Width of the FFN; a multiple of 256.
    ff: usize,
    m: usize,
    /// Slots for the results of gate, up, SwiGLU, down and the addition.
    slots: [usize; 5],
}

fn ops(case: &Case, x: &[f32]) -> Vec<Instruction> {
    let [gate, up, gated, down, sum] = case.slots;
    vec![
        embed(case.m, D, x, 0),
        Op::MatMul { x: 0, w: 0 }.to(gate),
        Op::MatMul { x: 0, w: 1 }.to(up),
        Op::Gate {
            gate,
            up,
            act: Activation::Silu,
        }
        .to(gated),
        Op::MatMul { x: gated, w: 2 }.to(down),
        Op::Add { a: 0, b: down }.to(sum),
        // the output needs a slot of its own
        Op::Add { a: sum, b: sum }.to(5),
    ]
}

fn executor(
    case: &Case,
    isa: Isa,
    threads: usize,
    repack: bool,
    x: &[f32],
    raw: &[Vec<u8>; 3],
) -> Executor {
    let mut pool = Pool::new(threads).expect("threads");
    let shapes = [
        (case.gate, case.ff, D),
        (case.up, case.ff, D),
        (case.down, D, case.ff),
    ];
    let matrices = shapes.iter().zip(raw);
    let matrices = matrices
        .map(|(shape, raw)| {
            Matrix::new(isa, *shape, Arc::new(raw.clone()), repack, &mut pool).expect("a matrix")
        })
        .collect();
    Executor::new(
        isa,
        program(ops(case, x), &[D, case.ff, case.ff, case.ff, D, D], KV),
        matrices,
        pool,
    )
}

/// Returns the output with a tap, which reads every result, so that nothing is fused; and the
/// number of results.
fn one_by_one(executor: &mut Executor, phase: Phase, m: usize) -> (Vec<f32>, usize) {
    let tokens: Vec<u32> = (0..m as u32).collect();
    let table: Vec<u32> = (0..m.div_ceil(16) as u32).collect();
    let seqs = [StepSequence {
        tokens: &tokens,
        start: 0,
        tables: &[&table],
        outputs: 0..m,
        ..StepSequence::default()
    }];
    let mut seen = 0;
    let mut tap = |_: usize, _: usize, _: usize, _: &[f32]| {
        seen += 1;
        None
    };
    let mut kv = KvStore::new(&[KV], table.len()).expect("memory");
    let out = executor
        .step(
            &Step {
                phase,
                seqs: &seqs,
                input: &[],
            },
            &mut kv,
            Some(&mut tap),
        )
        .to_vec();
    (out, seen)
}

/// Cases that are fused, and cases that must not be.
fn cases() -> [Case; 10] {
    let slots = [1, 2, 3, 4, 4];
    let base = Case {
        gate: T::Q4_K,
        up: T::Q4_K,
        down: T::Q6_K,
        ff: 512,
        m: 37,
        slots,
    };
    [
        Case { ..base },
        // results that overwrite their operands or the input
        Case {
            slots: [1, 2, 1, 4, 4],
            ..base
        },
        Case {
            slots: [1, 2, 2, 4, 0],
            ..base
        },
        // different kernels: nothing may be shared
        Case {
            up: T::Q6_K,
            ..base
        },
        Case {
            gate: T::Q8_0,
            up: T::Q4_K,
            down: T::F16,
            ..base
        },
        Case {
            gate: T::F32,
            up: T::F32,
            down: T::BF16,
            m: 3,
            ..base
        },
        Case {
            gate: T::F32,
            up: T::F32,
            down: T::F16,
            m: 2,
            slots: [1, 2, 0, 4, 4],
            ff: D,
        },
        Case {
            gate: T::F32,
            up: T::F32,
            down: T::F16,
            m: 2,
            slots: [1, 2, 3, 4, 3],
            ff: D,
        },
        Case {
            gate: T::Q2_K,
            up: T::Q2_K,
            down: T::IQ4_NL,
            m: 1,
            ..base
        },
        // several units at once, and a token count that fills no tile
        Case {
            ff: 3072,
            m: 530,
            ..base
        },
    ]
}

#[test]
fn absorbed_operations_give_the_same_bits() {
    let mut rng = Rng(5);
    for (i, case) in cases().iter().enumerate() {
        let x: Vec<f32> = rng.floats(case.m * D);
        let [gate, up] = [case.gate, case.up].map(|ty| random_blocks(&mut rng, ty, D * case.ff));
        let raw = [gate, up, random_blocks(&mut rng, case.down, D * case.ff)];
        for (j, isa) in Isa::available()
            .into_iter()
            .filter(|isa| case.m < 100 || *isa != Isa::Scalar)
            .enumerate()
        {
            let ways = [(1, true), (3, true), (2, false)];
            for &(threads, repack) in all_or_turn(&ways, i + j) {
                let mut executor = executor(case, isa, threads, repack, &x, &raw);
                for phase in [Phase::Prefill, Phase::Decode]
                    .into_iter()
                    .filter(|r| case.m < 100 || *r == Phase::Prefill)
                {
                    let how = format!("{isa} repack {repack}");
                    both_ways_agree(&mut executor, case, phase, &how);
                }
            }
        }
    }
}

/// Checks that a step gives the same bits whether operations are fused or run one by one.
fn both_ways_agree(executor: &mut Executor, case: &Case, phase: Phase, how: &str) {
    let near = run(executor, KV, phase, case.m);
    let (apart, seen) = one_by_one(executor, phase, case.m);
    assert_eq!(seen, 7, "every operation is seen");
    let types = (case.gate, case.up, case.down);
    let what = format!("{how} {phase:?} {types:?} m {} {:?}", case.m, case.slots);
    assert!(
        near.iter().all(|v| v.is_finite()) && near.iter().any(|v| *v != 0.0),
        "{what}"
    );
    assert!(
        near.iter()
            .zip(&apart)
            .all(|(a, b)| a.to_bits() == b.to_bits()),
        "{what}"
    );
}

/// A gate or up product that another operation also reads must be written to its slot.
#[test]
fn what_is_read_again_is_not_absorbed() {
    let mut rng = Rng(6);
    let (m, ff) = (5, 256);
    let x = rng.floats(m * D);
    let raw: Vec<Vec<u8>> = (0..2)
        .map(|_| random_blocks(&mut rng, T::Q4_K, D * ff))
        .collect();
    for isa in Isa::available() {
        for last in [Op::Add { a: 1, b: 3 }.to(4), Op::Add { a: 2, b: 3 }.to(4)] {
            let mut pool = Pool::new(2).expect("threads");
            let matrix = |raw: &Vec<u8>, pool: &mut Pool| {
                Matrix::new(isa, (T::Q4_K, ff, D), Arc::new(raw.clone()), true, pool)
                    .expect("a matrix")
            };
            let matrices = raw.iter().map(|raw| matrix(raw, &mut pool)).collect();
            let ops = vec![
                embed(m, D, &x, 0),
                Op::MatMul { x: 0, w: 0 }.to(1),
                Op::MatMul { x: 0, w: 1 }.to(2),
                Op::Gate {
                    gate: 1,
                    up: 2,
                    act: Activation::Silu,
                }
                .to(3),
                last,
            ];
            let mut executor =
                Executor::new(isa, program(ops, &[D, ff, ff, ff, ff], KV), matrices, pool);
            for phase in [Phase::Prefill, Phase::Decode] {
                let near = run(&mut executor, KV, phase, m);
                assert!(
                    near == one_by_one(&mut executor, phase, m).0,
                    "{isa} {phase:?}"
                );
            }
        }
    }
}

/// A gate's integer output must not overwrite the integer input that its own products still read:
/// also if another input was converted after theirs, and if the result overwrites their input.
#[test]
fn a_gate_leaves_its_own_input_alone() {
    use octavo_quant::TensorType as T;
    let (m, mut rng) = (1, Rng(31));
    let (x, y) = (rng.floats(m * D), rng.floats(m * D));
    let raw: Vec<Vec<u8>> = (0..5)
        .map(|_| random_blocks(&mut rng, T::Q4_K, D * D))
        .collect();
    for isa in Isa::available() {
        for (other_input, result) in [(true, 6), (false, 0), (true, 0)] {
            let mut pool = Pool::new(2).expect("threads");
            let matrix = |raw: &Vec<u8>, pool: &mut Pool| {
                Matrix::new(isa, (T::Q4_K, D, D), Arc::new(raw.clone()), true, pool)
                    .expect("a matrix")
            };
            let matrices = raw.iter().map(|raw| matrix(raw, &mut pool)).collect();
            let other = if other_input { 1 } else { 0 };
            let ops = vec![
                embed(m, D, &x, 0),
                embed(m, D, &y, 1),
                Op::MatMul { x: 0, w: 0 }.to(2),
                Op::MatMul { x: other, w: 1 }.to(3),
                Op::MatMul { x: 0, w: 2 }.to(4),
                Op::MatMul { x: 0, w: 3 }.to(5),
                Op::Gate {
                    gate: 4,
                    up: 5,
                    act: Activation::Silu,
                }
                .to(result),
                Op::MatMul { x: result, w: 4 }.to(7),
                Op::Add { a: 2, b: 3 }.to(8),
                Op::Add { a: 7, b: 8 }.to(9),
            ];
            let mut executor = Executor::new(isa, program(ops, &[D; 10], KV), matrices, pool);
            for phase in [Phase::Prefill, Phase::Decode] {
                let near = run(&mut executor, KV, phase, m);
                assert!(
                    near == one_by_one(&mut executor, phase, m).0,
                    "{isa} {phase:?}, another input: {other_input}, result in {result}"
                );
            }
        }
    }
}
