//! Mixtures of experts: a product with an expert is bit-identical to a product with that expert's
//! matrix alone, for any format, instruction set, phase and batch; the operations around it are
//! exact or checked against f64.

mod mixture;
mod products;
mod routing;
mod shapes;

use crate::common::{KV, embed, program};
use octavo_kernels::{Executor, Isa, KvStore, Phase, Pool, Step, StepSequence, TapFn};

pub(crate) use mixture::Mixture;
pub(crate) use routing::{TOPS, check_softmax, rows_to_choose_from, sorted};

/// Runs some tokens of one sequence, with a tap if `seen` is given, and returns the outputs of all.
fn run(
    executor: &mut Executor,
    phase: Phase,
    tokens: &[u32],
    seen: Option<&mut usize>,
) -> Vec<f32> {
    match seen {
        None => run_tapped(executor, phase, tokens, None),
        Some(seen) => {
            let mut tap = |_: usize, _: usize, _: usize, _: &[f32]| {
                *seen += 1;
                None
            };
            run_tapped(executor, phase, tokens, Some(&mut tap))
        }
    }
}

fn run_tapped(
    executor: &mut Executor,
    phase: Phase,
    tokens: &[u32],
    tap: Option<&mut TapFn<'_>>,
) -> Vec<f32> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(16) as u32).collect();
    let seqs = [StepSequence {
        tokens,
        start: 0,
        tables: &[&table],
        outputs: 0..tokens.len(),
        ..StepSequence::default()
    }];
    let step = Step {
        phase,
        seqs: &seqs,
        input: &[],
    };
    let mut kv = KvStore::new(&[KV], table.len()).expect("memory");
    executor.step(&step, &mut kv, tap).to_vec()
}

fn all(m: usize) -> Vec<u32> {
    (0..m as u32).collect()
}

/// Applies one operation to input rows, `[m][width]` each, by `threads` threads.
fn applied(
    isa: Isa,
    inputs: &[(&[f32], usize)],
    op: impl Fn() -> octavo_kernels::ProgramOp,
    width: usize,
    threads: usize,
) -> Vec<f32> {
    let m = inputs[0].0.len() / inputs[0].1;
    let mut ops = Vec::new();
    for (slot, (x, width)) in inputs.iter().enumerate() {
        ops.push(embed(m, *width, x, slot));
    }
    ops.push(op().to(inputs.len()));
    let widths: Vec<usize> = inputs.iter().map(|x| x.1).chain([width]).collect();
    let pool = Pool::new(threads).expect("threads");
    let mut executor = Executor::new(isa, program(ops, &widths, KV), Vec::new(), pool);
    run(&mut executor, Phase::Prefill, &all(m), None)
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}
