//! Mixtures of experts: routing and related operations, and products that are bit-identical to
//! `gemv`.

use std::sync::Arc;

use octavo_kernels::cuda::launch::Form;
use octavo_kernels::cuda::pack::{is_packed, pack_experts};
use octavo_kernels::cuda::params::{
    ExpertBias, ExpertGemv, Gather, Normalize, Softmax, TopK, WeightedSum,
};
use octavo_kernels::cuda::{Device, Executor, Limits, Setup, Source, launch};
use octavo_kernels::{Instruction, KvShape, Phase, Step, StepSequence, TapFn, TopGroups};
use octavo_quant::TensorType as T;

use super::{Bench, Worst, device};
use crate::common::{KV, Rng, embed, program, random_blocks, weight_types};
use crate::experts::{Mixture, TOPS, check_softmax, rows_to_choose_from, sorted};

#[test]
fn softmax_matches() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(1);
    for schedule in bench.0.schedules() {
        bench.0.schedule(*schedule);
        for (rows, n, spread) in [(1, 1, 1.0), (3, 31, 20.0), (2, 128, 200.0), (5, 60, 1.0)] {
            let mut x: Vec<f32> = rng.floats(rows * n).iter().map(|x| x * spread).collect();
            x[0] = spread;
            let p = Softmax {
                x: bench.floats(&x),
                out: bench.alloc(4 * rows * n),
                n: n as u32,
                unused: 0,
            };
            bench.run(&launch::softmax(&p, rows as u32));
            let got = bench.read(p.out, rows * n);
            for (x, got) in x.chunks_exact(n).zip(got.chunks_exact(n)) {
                check_softmax("softmax", x, got);
            }
        }
        let p = Softmax {
            x: bench.floats(&[1.0, f32::NAN, 2.0]),
            out: bench.alloc(12),
            n: 3,
            unused: 0,
        };
        bench.run(&launch::softmax(&p, 1));
        assert!(bench.read(p.out, 3).iter().all(|y| y.is_nan()));
    }
}

#[test]
fn the_largest_are_found_in_order() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(2);
    for schedule in bench.0.schedules() {
        bench.0.schedule(*schedule);
        for (width, n, groups) in TOPS {
            let rows = rows_to_choose_from(&mut rng, width);
            let expected: Vec<f32> = rows.iter().flat_map(|row| sorted(row, n, groups)).collect();
            let (count, used) = groups.map_or((width, width), |g| (g.count, g.used));
            let p = TopK {
                x: bench.floats(&rows.concat()),
                out: bench.alloc(4 * rows.len() * n),
                width: width as u32,
                n: n as u32,
                groups: count as u32,
                used: used as u32,
            };
            bench.run(&launch::top_k(&p, rows.len() as u32));
            let got = bench.read(p.out, rows.len() * n);
            assert_eq!(got, expected, "{n} of {width}, {groups:?}");
        }
    }
}

#[test]
fn values_are_gathered_by_place() {
    let Some(mut bench) = device() else { return };
    let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
    let p = Gather {
        x: bench.floats(&x),
        ids: bench.floats(&[3.0, 0.0, 9.0, f32::NAN, 1e9, -2.0]),
        out: bench.alloc(24),
        total: 6,
        width: 10,
        n: 3,
    };
    bench.run(&launch::gather(&p));
    assert_eq!(bench.read(p.out, 6), [3.0, 0.0, 9.0, 10.0, 19.0, 10.0]);
}

#[test]
fn rows_are_normalized_and_summed() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(3);
    let eps = f64::from(f32::EPSILON);
    for (rows, count, n) in [(1, 1, 1), (3, 8, 64), (300, 2, 5), (5, 6, 331)] {
        let x = rng.floats(rows * count * n);
        let weights: Vec<f32> = rng.floats(rows * count).iter().map(|w| w.abs()).collect();
        let at = bench.floats(&weights);
        for least in [1e-5, 10.0f32] {
            let p = Normalize {
                x: at,
                out: bench.alloc(4 * rows * count),
                rows: rows as u32,
                n: count as u32,
                least,
                unused: 0,
            };
            bench.run(&launch::normalize(&p));
            let got = bench.read(p.out, rows * count);
            let mut worst = Worst::default();
            for (r, w) in weights.chunks_exact(count).enumerate() {
                let sum: f64 = w.iter().map(|w| f64::from(*w)).sum();
                for (i, w) in w.iter().enumerate() {
                    let y = f64::from(*w) / sum.max(least.into());
                    let bound = y * eps * (count as f64 + 1.0) + 1e-44;
                    worst.see(|| format!("row {r}, {i}"), y, got[r * count + i], bound);
                }
            }
            worst.check("normalize");
        }
        let p = WeightedSum {
            x: bench.floats(&x),
            weights: at,
            out: bench.alloc(4 * rows * n),
            total: (rows * n) as u64,
            n: n as u32,
            count: count as u32,
        };
        bench.run(&launch::weighted_sum(&p));
        let got = bench.read(p.out, rows * n);
        let mut worst = Worst::default();
        for (at, got) in got.into_iter().enumerate() {
            let (r, i) = (at / n, at % n);
            let part = |p: usize| {
                let at = r * count + p;
                f64::from(x[at * n + i]) * f64::from(weights[at])
            };
            let exact = (0..count).map(part).sum();
            let size: f64 = (0..count).map(|p| part(p).abs()).sum();
            let bound = size * eps * count as f64 + 1e-44;
            worst.see(|| format!("row {r}, {i}"), exact, got, bound);
        }
        worst.check("weighted_sum");
    }
}

#[test]
fn parts_get_the_bias_of_their_expert() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(4);
    let (n, experts) = (137, 5);
    let ids = [4.0, 0.0, 2.0, 3.0, f32::NAN, 99.0];
    let expert_of = [4, 0, 2, 3, 0, 4];
    let (x, bias) = (rng.floats(ids.len() * n), rng.floats(experts * n));
    let p = ExpertBias {
        x: bench.floats(&x),
        bias: bench.floats(&bias),
        ids: bench.floats(&ids),
        out: bench.alloc(4 * x.len()),
        total: x.len() as u64,
        n: n as u32,
        experts: experts as u32,
    };
    bench.run(&launch::expert_bias(&p));
    let with_bias = |(i, x): (usize, &f32)| x + bias[expert_of[i / n] * n + i % n];
    let expected: Vec<f32> = x.iter().enumerate().map(with_bias).collect();
    assert_eq!(bench.read(p.out, x.len()), expected);
}

impl Bench {
    /// Multiplies rows of `x` by the experts `ids`; `sharing` of these share one input.
    pub(super) fn expert_gemv(
        &mut self,
        (ty, experts, n, cols): (T, usize, usize, usize),
        raw: &[u8],
        x: &[f32],
        ids: &[f32],
        sharing: usize,
    ) -> Vec<f32> {
        let packed = pack_experts(ty, experts, experts * n, cols, raw).expect("whole rows");
        let base = self.bytes(&packed.bytes);
        let p = ExpertGemv {
            w: packed.layout.matrix(base),
            x: self.arranged(Form::of_gemv(ty), x, cols),
            ids: self.floats(ids),
            out: self.alloc(4 * ids.len() * n),
            n: n as u32,
            experts: experts as u32,
            sharing: sharing as u32,
            unused: 0,
        };
        self.run(&launch::expert_gemv(ty, &p, ids.len() as u32));
        self.read(p.out, ids.len() * n)
    }
}

/// Experts with fewer rows than a strip or more strips than a block has, and invalid expert ids.
#[test]
fn products_are_those_of_each_expert_alone() {
    let Some(mut bench) = device() else { return };
    for (i, ty) in weight_types().filter(|ty| is_packed(*ty)).enumerate() {
        let schedules = bench.0.schedules();
        bench.0.schedule(schedules[i % schedules.len()]);
        let mut rng = Rng(u64::from(ty.id()) + 9);
        let experts = 4;
        let cols = match ty.block_len() {
            1 => 101,
            len => 1024 + len.max(32),
        };
        // also rows of four parts
        let cols = if ty == T::Q4_K { 8448 } else { cols };
        for n in [5, 36] {
            let raw = random_blocks(&mut rng, ty, experts * n * cols);
            let ids = [3.0, 1.0, f32::NAN, 3.0, 1e9, 0.0];
            let expert_of = [3, 1, 0, 3, 3, 0];
            for sharing in [1, 2] {
                let x = rng.floats(ids.len() / sharing * cols);
                let got = bench.expert_gemv((ty, experts, n, cols), &raw, &x, &ids, sharing);
                for (choice, got) in got.chunks_exact(n).enumerate() {
                    let bytes = raw.len() / experts;
                    let raw = &raw[expert_of[choice] * bytes..][..bytes];
                    let x = &x[choice / sharing * cols..][..cols];
                    let expected = bench.gemv((ty, n, cols), raw, x, None);
                    assert!(got == expected, "{ty}, {n} rows, choice {choice}");
                }
                bench.0.clear();
            }
        }
    }
}

const M: usize = 5;
const D: usize = 64;
const FF: usize = 96;
const EXPERTS: usize = 8;
const USED: usize = 3;

/// The executor's use of all these kernels: each expert's products, as shown by taps, against
/// products with that expert's matrix alone; replayed, and in both phases.
#[test]
fn programs_take_mixtures() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let mut rng = Rng(5);
    let bias = rng.floats(EXPERTS * FF);
    let ops = MIXTURE.ops(&rng.floats(M * D), &bias);
    let sources = sources(&mut rng);
    let mut executor = executor(machine.boxed(), ops, &sources);
    for phase in [Phase::Prefill, Phase::Decode] {
        let mut shown: Vec<Vec<f32>> = Vec::new();
        let mut tap = |_: usize, _: usize, _: usize, x: &[f32]| {
            shown.push(x.to_vec());
            None
        };
        let tapped = run(&mut executor, phase, Some(&mut tap));
        check_mixture(&shown, &sources, &bias);
        for round in 0..3 {
            let again = run(&mut executor, phase, None);
            assert!(again == tapped, "{phase:?}, round {round}");
        }
    }
}

/// Outputs with a tap that replaces an operation's result by known values are bit-identical to
/// those of a program in which the operation itself gives these.
#[test]
fn what_a_tap_gives_is_what_the_next_operation_reads() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let mut rng = Rng(6);
    let (x, bias) = (rng.floats(M * D), rng.floats(EXPERTS * FF));
    let sources = sources(&mut rng);
    let mut tapped = executor(machine.boxed(), MIXTURE.ops(&x, &bias), &sources);
    for (op, values) in MIXTURE.others(&mut rng).iter().enumerate() {
        let Some(Bench(machine)) = device() else {
            return;
        };
        let mut ops = MIXTURE.ops(&x, &bias);
        ops[op] = embed(M, MIXTURE.widths()[op], values, op);
        let mut known = executor(machine.boxed(), ops, &sources);
        for phase in [Phase::Prefill, Phase::Decode] {
            let how = format!("{phase:?}, operation {op}");
            let expected = run(&mut known, phase, None);
            let own = run(&mut tapped, phase, None);
            assert!(own != expected, "{how}: nothing changed");
            let mut tap =
                |at: usize, _: usize, _: usize, _: &[f32]| (at == op).then(|| values.clone());
            let got = run(&mut tapped, phase, Some(&mut tap));
            assert!(got == expected, "{how}");
            // and the next step is not affected
            assert!(run(&mut tapped, phase, None) == own, "{how}");
        }
    }
}

const MIXTURE: Mixture = Mixture {
    types: [T::Q4_0, T::Q8_0, T::F16],
    d: D,
    ff: FF,
    experts: EXPERTS,
    used: USED,
    tokens: M,
};

fn sources(rng: &mut Rng) -> [Source; 5] {
    MIXTURE.matrices().map(|((ty, rows, cols), _)| Source {
        name: "w".to_owned(),
        ty,
        rows,
        cols,
        bytes: Arc::new(random_blocks(rng, ty, rows * cols)),
    })
}

fn executor(
    device: Box<dyn Device>,
    ops: Vec<Instruction>,
    sources: &[Source],
) -> Executor<Box<dyn Device>> {
    let kv = KvShape { head_dim: 8, ..KV };
    let setup = Setup {
        limits: Limits {
            rows: M,
            outputs: M,
            sequences: M,
            positions: 16,
            n_pages: M,
            states: 0,
        },
        capture: true,
        check_pages: true,
        threads: 2,
    };
    let program = program(ops, &MIXTURE.widths(), kv);
    Executor::new(device, program, sources, setup, &mut |_, _, _| {}).expect("a program that fits")
}

/// Runs each token as a sequence of its own, so that decode is replayed.
fn run(
    executor: &mut Executor<Box<dyn Device>>,
    phase: Phase,
    tap: Option<&mut TapFn<'_>>,
) -> Vec<f32> {
    let pages: Vec<[u32; 1]> = (0..M as u32).map(|i| [i]).collect();
    let tables: Vec<[&[u32]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
    let tokens: Vec<u32> = (0..M as u32).collect();
    let sequence = |i: usize| StepSequence {
        tokens: &tokens[i..=i],
        start: 0,
        tables: &tables[i],
        outputs: 0..1,
        ..StepSequence::default()
    };
    let seqs: Vec<StepSequence<'_>> = (0..M).map(sequence).collect();
    let step = Step {
        phase,
        seqs: &seqs,
        input: &[],
    };
    executor.step(&step, tap).expect("it runs").to_vec()
}

/// Checks each value of a mixture against those before it.
fn check_mixture(shown: &[Vec<f32>], sources: &[Source], bias: &[f32]) {
    let ids = shown[2 + 1].chunks_exact(USED);
    let groups = Some(TopGroups { count: 4, used: 2 });
    let expected = shown[2]
        .chunks_exact(EXPERTS)
        .map(|x| sorted(x, USED, groups));
    assert!(
        ids.clone()
            .zip(expected)
            .all(|(ids, expected)| ids == expected)
    );
    let expert_of: Vec<usize> = shown[3].iter().map(|id| *id as usize).collect();
    for (r, x) in shown[1].chunks_exact(EXPERTS).enumerate() {
        check_softmax("softmax", x, &shown[2][r * EXPERTS..(r + 1) * EXPERTS]);
    }
    let mut worst = Worst::default();
    for (x, w, out, apart) in [(0, 1, 6, false), (0, 2, 8, false), (9, 3, 10, true)] {
        let Source {
            ty,
            rows,
            cols,
            bytes,
            ..
        } = &sources[w];
        let (n, cols) = (rows / EXPERTS, *cols);
        let mut weights = vec![0.0; rows * cols];
        octavo_quant::dequantize(*ty, bytes.bytes(), &mut weights).expect("whole rows");
        let form = if *ty == T::F16 {
            crate::common::Form::Floats
        } else {
            crate::common::Form::Integers(32)
        };
        for (at, got) in shown[out].iter().enumerate() {
            let (choice, i) = (at / n, at % n);
            let row = if apart { choice } else { choice / USED };
            let x = &shown[x][row * cols..(row + 1) * cols];
            let w = &weights[(expert_of[choice] * n + i) * cols..][..cols];
            let (value, bound) = crate::common::exact(w, x, false, form);
            worst.see(|| format!("{ty}: choice {choice}, {i}"), value, *got, bound);
        }
    }
    worst.check("expert_gemv");
    for (at, got) in shown[7].iter().enumerate() {
        let bias = bias[expert_of[at / FF] * FF + at % FF];
        assert_eq!(*got, shown[6][at] + bias);
    }
    for (at, got) in shown[4].iter().enumerate() {
        assert_eq!(*got, shown[2][at / USED * EXPERTS + expert_of[at]]);
    }
    for (at, got) in shown[13].iter().enumerate() {
        assert_eq!(*got, shown[11][at] * shown[12][at / D]);
    }
    assert!(shown[14].iter().all(|y| y.is_finite()) && shown[11].iter().any(|y| *y != 0.0));
}
