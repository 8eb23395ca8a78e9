//! Programs that leave the products of experts to the host: the same bits as on the CPU alone,
//! whatever is captured, replaced or padded.

use std::sync::Arc;

use octavo_kernels::cuda::{Device, Executor, HostExecutor, Limits, Setup, Source};
use octavo_kernels::{
    Instruction, Isa, KvShape, KvStore, Matrix, Op, Phase, Pool, Program, Step, StepSequence, TapFn,
};
use octavo_quant::TensorType as T;

use super::{Bench, device};
use crate::common::{KV, Rng, program, random_blocks};
use crate::experts::Mixture;

const MIXTURE: Mixture = Mixture {
    types: [T::Q4_0, T::Q8_0, T::F16],
    d: 64,
    ff: 96,
    experts: 8,
    used: 3,
    tokens: TOKENS,
};
const TOKENS: usize = 11;
/// First and last operation for the host of each of two mixtures.
const BLOCKS: [[usize; 2]; 2] = [[6, 11], [15, 18]];
/// Slots that the blocks read: rows, experts, weights.
const INPUTS: [[usize; 3]; 2] = [[0, 3, 5], [14, 3, 5]];

/// Returns a mixture and another one that reads its result, with the same experts chosen.
fn operations(rng: &mut Rng) -> Vec<Instruction> {
    let (x, bias) = (rng.floats(TOKENS * 64), rng.floats(8 * 96));
    let mut ops = MIXTURE.ops(&x, &bias);
    let product = |x, w| Op::ExpertMatMul {
        x,
        w,
        ids: 3,
        experts: 8,
    };
    ops.extend([
        product(14, 5).to(6),
        Op::Mul { a: 6, b: 6 }.to(9),
        product(9, 6).to(10),
        Op::ExpertSum { x: 10, weights: 5 }.to(11),
        Op::Add { a: 14, b: 11 }.to(14),
    ]);
    ops
}

/// Returns the program, with some operations for the host.
fn both(on_host: &[[usize; 2]]) -> Program {
    let kv = KvShape { head_dim: 8, ..KV };
    let program = program(operations(&mut Rng(5)), &MIXTURE.widths(), kv);
    Program {
        on_host: on_host
            .iter()
            .map(|[first, last]| *first..last + 1)
            .collect(),
        ..program
    }
}

/// Returns the matrices, and the number of experts in each.
fn sources() -> Vec<(Source, usize)> {
    let mut rng = Rng(6);
    let more = [((T::Q4_0, 8 * 96, 64), 8), ((T::Q8_0, 8 * 64, 96), 8)];
    let source = |((ty, rows, cols), experts)| {
        let source = Source {
            name: "w".to_owned(),
            ty,
            rows,
            cols,
            bytes: Arc::new(random_blocks(&mut rng, ty, rows * cols)),
        };
        (source, experts)
    };
    MIXTURE
        .matrices()
        .into_iter()
        .chain(more)
        .map(source)
        .collect()
}

fn packed(which: impl Iterator<Item = usize>, pool: &mut Pool) -> Vec<Matrix> {
    let sources = sources();
    let matrix = |w: usize| {
        let (source, experts) = &sources[w];
        let shape = (source.ty, source.rows, source.cols);
        Matrix::of_experts(
            Isa::best(),
            shape,
            *experts,
            source.bytes.clone(),
            true,
            pool,
        )
        .expect("a matrix")
    };
    which.map(matrix).collect()
}

fn limits() -> Limits {
    Limits {
        rows: 16,
        outputs: 16,
        sequences: 16,
        positions: 16,
        n_pages: 16,
        states: 0,
    }
}

/// Prepares the program on the device, with these blocks on the host; `order` mixes up the host's
/// matrices.
fn on_both(
    on_host: &[[usize; 2]],
    mut pool: Pool,
    order: impl Fn(&mut Vec<Matrix>),
) -> Option<Executor<Box<dyn Device>>> {
    let Bench(machine) = device()?;
    let program = both(on_host);
    let host = program.host_program();
    let sources: Vec<Source> = sources().into_iter().map(|(source, _)| source).collect();
    let setup = Setup {
        limits: limits(),
        capture: true,
        check_pages: true,
        threads: 2,
    };
    let executor = Executor::new(machine.boxed(), program, &sources, setup, &mut |_, _, _| {})
        .expect("a program that fits");
    let mut matrices = packed(host.matrices.iter().copied(), &mut pool);
    order(&mut matrices);
    let host = HostExecutor::new(Isa::best(), host, matrices, pool).expect("memory");
    Some(executor.with_host(host))
}

fn steady(threads: usize) -> Pool {
    Pool::new(threads).expect("threads")
}

/// Runs some tokens, each as a sequence of its own, with `run`.
fn as_sequences<T>(phase: Phase, tokens: &[u32], run: impl FnOnce(&Step<'_>) -> T) -> T {
    let pages: Vec<[u32; 1]> = (0..tokens.len() as u32).map(|i| [i]).collect();
    let tables: Vec<[&[u32]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
    let sequence = |i: usize| StepSequence {
        tokens: &tokens[i..=i],
        start: 0,
        tables: &tables[i],
        outputs: 0..1,
        ..StepSequence::default()
    };
    let seqs: Vec<StepSequence<'_>> = (0..tokens.len()).map(sequence).collect();
    run(&Step {
        phase,
        seqs: &seqs,
        input: &[],
    })
}

fn run(
    executor: &mut Executor<Box<dyn Device>>,
    phase: Phase,
    tokens: &[u32],
    tap: Option<&mut TapFn<'_>>,
) -> Vec<f32> {
    as_sequences(phase, tokens, |step| {
        executor.step(step, tap).expect("it runs").to_vec()
    })
}

/// Shows every result of a step, after the gated values of the first block were replaced.
fn shown(
    executor: &mut Executor<Box<dyn Device>>,
    phase: Phase,
    replaced: Option<&[f32]>,
) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut all: Vec<Vec<f32>> = Vec::new();
    let mut tap = |op: usize, rows: usize, width: usize, x: &[f32]| {
        assert_eq!(
            (op, rows * width),
            (all.len(), x.len()),
            "in order, all of them"
        );
        let instead = replaced.filter(|_| op == 9).map(<[f32]>::to_vec);
        all.push(instead.clone().unwrap_or_else(|| x.to_vec()));
        instead
    };
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let outputs = run(executor, phase, &tokens, Some(&mut tap));
    (all, outputs)
}

/// Describes the first result of a block that is not what the CPU alone computes from the same
/// inputs.
fn difference(shown: &[Vec<f32>], phase: Phase, replaced: Option<&[f32]>) -> Option<String> {
    let mut pool = Pool::new(1).expect("a thread");
    let matrices = packed(0..sources().len(), &mut pool);
    let mut cpu = octavo_kernels::Executor::new(Isa::best(), both(&[]), matrices, pool);
    let kv = KvShape { head_dim: 8, ..KV };
    let mut store = KvStore::new(&[kv], 16).expect("memory");
    let mut different = None;
    let mut tap = |op: usize, _: usize, _: usize, x: &[f32]| {
        let block = BLOCKS
            .iter()
            .position(|[first, last]| (*first..=*last).contains(&op));
        if block.is_none() {
            return Some(shown[op].clone());
        }
        if op == 9 && replaced.is_some() {
            return replaced.map(<[f32]>::to_vec);
        }
        if different.is_none() && x != shown[op] {
            different = Some(format!("{phase:?}, operation {op}"));
        }
        None
    };
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    as_sequences(phase, &tokens, |step| {
        cpu.step(step, &mut store, Some(&mut tap));
    });
    different
}

#[test]
fn blocks_of_the_host_have_the_bits_of_the_cpu() {
    for threads in [1, 3] {
        let Some(mut executor) = on_both(&BLOCKS, steady(threads), |_| {}) else {
            return;
        };
        let others = MIXTURE.others(&mut Rng(8)).remove(9);
        for phase in [Phase::Prefill, Phase::Decode] {
            let (all, outputs) = shown(&mut executor, phase, None);
            assert_eq!(all.len(), both(&[]).ops.len());
            assert_eq!(difference(&all, phase, None), None);
            let tokens: Vec<u32> = (0..TOKENS as u32).collect();
            // eleven in a bucket of sixteen: run, captured, replayed
            for round in 0..4 {
                let again = run(&mut executor, phase, &tokens, None);
                assert!(again == outputs, "{phase:?}, round {round}");
            }
            for tokens in tokens.chunks(4) {
                let expected = &outputs[tokens[0] as usize * 64..][..tokens.len() * 64];
                for round in 0..3 {
                    let got = run(&mut executor, phase, tokens, None);
                    assert!(got == expected, "{phase:?}, {tokens:?}, round {round}");
                }
            }
            let (all, changed) = shown(&mut executor, phase, Some(&others));
            assert_eq!(difference(&all, phase, Some(&others)), None);
            assert!(changed != outputs, "{phase:?}: values in place of others");
            let (all, _) = shown(&mut executor, phase, None);
            assert_eq!(
                difference(&all, phase, None),
                None,
                "nothing was left behind"
            );
        }
        assert!(executor.captures().expect("no refusal"));
    }
}

/// Threads that stall in the middle of a block are left behind, as in whole steps.
#[test]
fn missing_threads_change_no_bit_of_a_block() {
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let Some(mut alone) = on_both(&BLOCKS, steady(1), |_| {}) else {
        return;
    };
    let pool = Pool::unreliable(3, 3, 20).expect("threads");
    let mut executor = on_both(&BLOCKS, pool, |_| {}).expect("there was a device");
    for phase in [Phase::Prefill, Phase::Decode] {
        let expected = run(&mut alone, phase, &tokens, None);
        for round in 0..60 {
            let got = run(&mut executor, phase, &tokens, None);
            assert!(got == expected, "{phase:?}, round {round}");
        }
    }
    let host = executor.host().expect("it was given");
    let taken_over = host.executor().pool().lock().taken_over();
    assert!(
        taken_over > 0,
        "nobody ever went on without a missing thread"
    );
}

/// Matrices of another block, or in another order, show.
#[test]
fn mixed_up_matrices_of_the_host_show() {
    for (a, b, expected) in [(0, 3, "operation 6"), (2, 4, "operation 10")] {
        let wrong = |matrices: &mut Vec<Matrix>| matrices.swap(a, b);
        let Some(mut executor) = on_both(&BLOCKS, steady(1), wrong) else {
            return;
        };
        for phase in [Phase::Prefill, Phase::Decode] {
            let (all, _) = shown(&mut executor, phase, None);
            let difference = difference(&all, phase, None).expect("a difference");
            assert_eq!(difference, format!("{phase:?}, {expected}"));
        }
    }
}

/// The device keeps neither the matrices nor the biases of the host, nor slots that only the host
/// uses.
#[test]
fn a_device_has_no_memory_for_what_the_host_keeps() {
    let sources: Vec<Source> = sources().into_iter().map(|(source, _)| source).collect();
    let needs = |on_host: &[[usize; 2]]| {
        Executor::<Box<dyn Device>>::needs(&both(on_host), &sources, &limits())
            .expect("known types")
    };
    let (all, first, none) = (needs(&BLOCKS), needs(&BLOCKS[..1]), needs(&[]));
    let bytes = |which: &[usize]| -> u64 {
        let matrix = |w: &usize| {
            let Source { ty, rows, cols, .. } = &sources[*w];
            let layout = octavo_kernels::cuda::pack::Layout::of_experts(*ty, 8, *rows, *cols);
            (layout.expect("whole rows").bytes as u64).next_multiple_of(256)
        };
        which.iter().map(matrix).sum()
    };
    let bias = 4 * 8 * 96;
    assert_eq!(none.weights - first.weights, bytes(&[1, 2, 3]) + bias);
    assert_eq!(first.weights - all.weights, bytes(&[5, 6]));
    // gates, biased, up, gated and down of 16 rows
    let slots = 4 * 16 * 3 * (4 * 96 + 64);
    assert!(none.buffers - all.buffers >= slots, "{all:?}, {none:?}");
    assert_eq!((all.kv, all.states), (none.kv, none.states));
}

#[test]
fn blocks_read_rows_experts_and_weights() {
    let host = both(&BLOCKS).host_program();
    assert_eq!(host.matrices, [1, 2, 3, 5, 6]);
    let width =
        |inputs: [usize; 3]| -> usize { inputs.iter().map(|slot| MIXTURE.widths()[*slot]).sum() };
    let inputs = host
        .program
        .ops
        .iter()
        .filter(|i| matches!(i.op, Op::Input));
    assert_eq!(inputs.count(), BLOCKS.len());
    assert_eq!(host.program.slots[0].width, width(INPUTS[0]));
    assert_eq!(width(INPUTS[0]), width(INPUTS[1]));
    assert!(both(&[]).host_program().program.ops.is_empty());
}

#[test]
#[should_panic(expected = "another result than the last is read later")]
fn a_block_has_one_result() {
    both(&[[6, 9]]).host_program();
    both(&[[1, 3]]).host_program();
}

#[test]
#[should_panic(expected = "an operation that a device cannot leave out")]
fn a_block_has_operations_of_rows_alone() {
    both(&[[14, 14], [12, 12]]).host_program();
}
