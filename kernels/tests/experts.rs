//! Mixtures of experts: a product with an expert has the bits of a product with that expert alone,
//! whatever the format, the instruction set, the role and the neighbours; the operations around it
//! are held against f64, or are exact.

use std::sync::Arc;

use crate::common::{KV, Rng, embed, f32_bytes, product, program, random_blocks};
use octavo_kernels::{
    Activation, Executor, Instruction, Isa, KvStore, Matrix, Op, Pool, Role, Sequence, Step, TapFn,
    TopGroups,
};
use octavo_quant::TensorType as T;

/// Relative error of one rounding.
const U: f64 = 1.0 / 16_777_216.0;

/// Runs some tokens of one sequence, with a tap if `seen` is given, and returns the outputs of all.
fn run(executor: &mut Executor, role: Role, tokens: &[u32], seen: Option<&mut usize>) -> Vec<f32> {
    match seen {
        None => run_tapped(executor, role, tokens, None),
        Some(seen) => {
            let mut tap = |_: usize, _: usize, _: usize, _: &[f32]| {
                *seen += 1;
                None
            };
            run_tapped(executor, role, tokens, Some(&mut tap))
        }
    }
}

fn run_tapped(
    executor: &mut Executor,
    role: Role,
    tokens: &[u32],
    tap: Option<&mut TapFn<'_>>,
) -> Vec<f32> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(16) as u32).collect();
    let seqs = [Sequence {
        tokens,
        start: 0,
        tables: &[&table],
        wanted: 0..tokens.len(),
        ..Sequence::default()
    }];
    let step = Step {
        role,
        seqs: &seqs,
        input: &[],
    };
    let mut kv = KvStore::new(&[KV], table.len()).expect("memory");
    executor.step(&step, &mut kv, tap).to_vec()
}

fn all(m: usize) -> Vec<u32> {
    (0..m as u32).collect()
}

/// One operation on given rows, `[m][width]` each, by `threads` threads.
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
    run(&mut executor, Role::Prompt, &all(m), None)
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Products with experts, and what decides them.
#[derive(Clone, Copy, Debug)]
struct Case {
    ty: T,
    experts: usize,
    /// Experts of a row.
    used: usize,
    /// Rows and columns of an expert.
    n: usize,
    cols: usize,
    /// Tokens.
    m: usize,
    /// Whether each expert of a row has an input of its own.
    apart: bool,
}

/// Places in random order, `used` different ones for each of `m` rows.
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

    /// The same from products with each expert alone.
    fn one_by_one(
        &self,
        isa: Isa,
        role: Role,
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
            let (of_all, _) = product(isa, (ty, n, cols), raw, &inputs, role, repack, 1);
            for (choice, of_one) in mine.iter().zip(of_all.chunks_exact(n)) {
                y[choice * n..(choice + 1) * n].copy_from_slice(of_one);
            }
        }
        y
    }
}

/// Every class of formats: one of integers with scales for 16 and for 32, with minima and without,
/// with a table; floats; and one without a packed form.
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

/// Experts, experts of a row, rows of an expert, tokens.
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
                for (role, repack) in [
                    (Role::Prompt, true),
                    (Role::Prompt, false),
                    (Role::Generated, true),
                    (Role::Generated, false),
                ] {
                    let expected = case.one_by_one(isa, role, repack, &raw, &x, &expert_of);
                    for threads in [1, 2] {
                        let pool = Pool::new(threads).expect("threads");
                        let mut executor = case.executor(isa, pool, repack, &raw, &x, &ids);
                        let got = run(&mut executor, role, &all(m), None);
                        assert!(got.iter().all(|y| y.is_finite()));
                        assert!(
                            bits(&got) == bits(&expected),
                            "{isa} {role:?}, repacked {repack}, {threads} threads: {case:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Many rows of few experts: several pairs of strips go through a slice of activations together.
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
        let expected = case.one_by_one(isa, Role::Prompt, true, &raw, &x, &expert_of);
        for threads in [1, 3] {
            let pool = Pool::new(threads).expect("threads");
            let mut executor = case.executor(isa, pool, true, &raw, &x, &ids);
            let got = run(&mut executor, Role::Prompt, &all(case.m), None);
            assert!(bits(&got) == bits(&expected), "{isa}, {threads} threads");
        }
    }
}

/// Whatever stands where experts are named, and however often one is named: the nearest is taken,
/// and nothing else is read.
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
            for role in [Role::Prompt, Role::Generated] {
                let expected = case.one_by_one(isa, role, true, &raw, &x, &expert_of);
                let pool = Pool::new(2).expect("threads");
                let mut executor = case.executor(isa, pool, true, &raw, &x, &ids);
                let got = run(&mut executor, role, &all(3), None);
                assert!(bits(&got) == bits(&expected), "{isa} {ty} {role:?}");
            }
        }
    }
}

/// A mixture with everything that belongs to one. Slots: 0 x, 1 logits, 2 probabilities, 3 experts,
/// 4 their probabilities, 5 their weights, 6 gates, 7 biased, 8 up, 9 gated, 10 down, 11 the sum,
/// 12 what that is scaled by, 13 scaled, 14 the output.
pub(crate) struct Mixture {
    /// Of the gates' weights, those of `up` and those of `down`.
    pub(crate) types: [T; 3],
    pub(crate) d: usize,
    pub(crate) ff: usize,
    pub(crate) experts: usize,
    pub(crate) used: usize,
    pub(crate) tokens: usize,
}

impl Mixture {
    /// What it computes, from these rows (`[tokens, d]`) and with this bias (`[experts, ff]`) on
    /// its gates.
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

    /// Values of a token in each slot.
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

    /// The type, rows and columns of each matrix, and how many experts the rows belong to.
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

    /// What each operation may be thought to have given instead: experts where experts are chosen,
    /// and otherwise numbers above zero.
    pub(crate) fn others(&self, rng: &mut Rng) -> Vec<Vec<f32>> {
        let one = |(op, width): (usize, usize)| {
            let value = |i: usize| match op {
                // neighbours, the first of them at random
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

    /// With an operation that gives known values in place of its own.
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

/// The outputs where a tap gives known values in place of an operation's own have the bits of a
/// program in which the operation gives these itself: every operation of a mixture is read from
/// what the tap gave, by whatever reads it next.
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
            for role in [Role::Prompt, Role::Generated] {
                let expected = run(&mut known, role, &tokens, None);
                for executor in &mut executors {
                    let how = format!("{isa}, {role:?}, operation {op}");
                    let own = run(executor, role, &tokens, None);
                    assert!(bits(&own) != bits(&expected), "{how}: nothing changed");
                    let mut tap = |at: usize, _: usize, _: usize, seen: &[f32]| {
                        assert!(at != op || seen != values, "{how}");
                        (at == op).then(|| values.clone())
                    };
                    let got = run_tapped(executor, role, &tokens, Some(&mut tap));
                    assert!(bits(&got) == bits(&expected), "{how}");
                    // and nothing of it is left for the next step
                    assert!(
                        bits(&run(executor, role, &tokens, None)) == bits(&own),
                        "{how}"
                    );
                }
            }
        }
    }
}

/// Values of another number are a fault of the tap, and not of memory.
#[test]
#[should_panic(expected = "values in place of others")]
fn a_tap_that_gives_too_few_values_is_refused() {
    let [mixture, _] = mixtures();
    let isa = Isa::Scalar;
    let mut executor = mixture.executor(isa, true, Pool::new(2).expect("threads"));
    let mut tap = |_: usize, _: usize, _: usize, seen: &[f32]| Some(seen[1..].to_vec());
    run_tapped(&mut executor, Role::Prompt, &all(2), Some(&mut tap));
}

/// Tokens together, each alone, with taps, and with threads that go missing.
#[test]
fn a_mixture_depends_on_the_token_alone() {
    let mut taken_over = 0;
    for mixture in mixtures() {
        let tokens = all(mixture.tokens);
        for isa in Isa::available() {
            for repack in [true, false] {
                let mut one = mixture.executor(isa, repack, Pool::new(1).expect("a thread"));
                for role in [Role::Prompt, Role::Generated] {
                    let how = format!("{isa}, repacked {repack}, {role:?}");
                    let expected = run(&mut one, role, &tokens, None);
                    assert!(
                        expected.iter().all(|y| y.is_finite())
                            && expected.iter().any(|y| *y != 0.0),
                        "{how}"
                    );
                    for (token, expected) in tokens.iter().zip(expected.chunks_exact(mixture.d)) {
                        let alone = run(&mut one, role, &[*token], None);
                        assert!(bits(&alone) == bits(expected), "{how}: token {token}");
                    }
                    let mut seen = 0;
                    let tapped = run(&mut one, role, &tokens, Some(&mut seen));
                    assert_eq!(seen, 15, "every operation is seen");
                    assert!(bits(&tapped) == bits(&expected), "{how}: with taps");
                    for (threads, one_of) in [(2, 10), (3, 20)] {
                        let pool = Pool::unreliable(threads, 5, one_of).expect("threads");
                        let mut executor = mixture.executor(isa, repack, pool);
                        for round in 0..6 {
                            let got = run(&mut executor, role, &tokens, None);
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

/// The argument is rounded, which changes the power by as much as the argument is large; a power is
/// off by two units in the last place, four roundings; their sum is off by as much as they are, on
/// average, and by a rounding for each; then there is a quotient. Powers do not become smaller than
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

/// Places by sorting.
pub(crate) fn sorted(x: &[f32], n: usize, groups: Option<TopGroups>) -> Vec<f32> {
    // the larger first, what is not a number before all; of equal ones the lower place
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

/// Rows for choosing: ordinary ones, with many equal values, with both zeros, with infinities and
/// with what is not a number.
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

/// Widths, places, groups.
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
                            // a rounding for each value that is added, and that of the quotient
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
                        // at most two roundings a part
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

/// What does not fit is refused before anything runs.
#[test]
fn shapes_that_do_not_fit_are_refused() {
    use octavo_kernels::{CacheShape, MatrixShape, RowSet, ShapeError, Shapes, ValueShape};

    /// Values are as wide as they are numbered; those from 1000 on have other rows.
    struct Numbers;
    type Words = Op<usize, (usize, usize), usize, ()>;

    impl Shapes<usize, (usize, usize), usize, ()> for Numbers {
        fn value(&self, width: usize) -> ValueShape {
            let rows = if width < 1000 {
                RowSet::All
            } else {
                RowSet::Wanted
            };
            ValueShape {
                width: width % 1000,
                rows,
            }
        }
        fn matrix(&self, (rows, cols): &(usize, usize)) -> Option<MatrixShape> {
            let (rows, cols) = (*rows, *cols);
            Some(MatrixShape { rows, cols })
        }
        fn vector(&self, len: &usize) -> Option<usize> {
            Some(*len)
        }
        fn table(&self, (): &()) -> Option<MatrixShape> {
            None
        }
        fn input(&self) -> Option<usize> {
            None
        }
        fn given(&self) -> usize {
            0
        }
        fn rope(&self, _: usize) -> Option<usize> {
            None
        }
        fn cache(&self, _: usize) -> Option<CacheShape> {
            None
        }
        fn state(&self, _: usize) -> Option<usize> {
            None
        }
    }

    let width = |op: Words| op.shape(&Numbers).map(|shape| shape.width);
    let top = |x, n, groups| Words::TopK { x, n, groups };
    let groups = |count, used| Some(TopGroups { count, used });
    let experts = |x, w, ids, experts| Words::ExpertMatMul { x, w, ids, experts };
    for (op, expected) in [
        (Words::Softmax { x: 5 }, 5),
        (top(8, 8, None), 8),
        (top(8, 4, groups(4, 2)), 4),
        (Words::Gather { x: 9, ids: 3 }, 3),
        (Words::Normalize { x: 4, least: 1.0 }, 4),
        (Words::ScaleRows { x: 7, by: 1 }, 7),
        (experts(16, (40, 16), 3, 8), 15),
        (experts(48, (40, 16), 3, 8), 15),
        (
            Words::ExpertBias {
                x: 15,
                bias: 40,
                ids: 3,
            },
            15,
        ),
        (Words::ExpertSum { x: 15, weights: 3 }, 5),
    ] {
        assert_eq!(width(op).expect("it fits"), expected, "{op:?}");
    }
    let width_error = |op: Words| matches!(width(op), Err(ShapeError::Width { .. }));
    for op in [
        Words::Softmax { x: 0 },
        top(8, 0, None),
        top(8, 9, None),
        top(8, 5, groups(4, 2)),
        top(8, 1, groups(3, 1)),
        top(8, 1, groups(0, 1)),
        top(8, 1, groups(4, 0)),
        top(8, 1, groups(4, 5)),
        // no two values
        top(8, 1, groups(8, 2)),
        Words::Gather { x: 0, ids: 3 },
        Words::Gather { x: 9, ids: 0 },
        Words::Normalize { x: 0, least: 1.0 },
        Words::ScaleRows { x: 7, by: 2 },
        experts(17, (40, 16), 3, 8),
        experts(32, (40, 16), 3, 8),
        experts(16, (40, 16), 3, 7),
        experts(16, (40, 16), 3, 0),
        experts(16, (40, 16), 0, 8),
        experts(16, (40, 16), 9, 8),
        Words::ExpertBias {
            x: 16,
            bias: 40,
            ids: 3,
        },
        Words::ExpertBias {
            x: 15,
            bias: 41,
            ids: 3,
        },
        Words::ExpertBias {
            x: 15,
            bias: 10,
            ids: 3,
        },
        Words::ExpertBias {
            x: 15,
            bias: 40,
            ids: 0,
        },
        Words::ExpertSum { x: 16, weights: 3 },
        Words::ExpertSum { x: 15, weights: 0 },
    ] {
        assert!(width_error(op), "{op:?}");
    }
    for op in [
        Words::Gather { x: 9, ids: 1003 },
        Words::ScaleRows { x: 9, by: 1001 },
        experts(16, (40, 16), 1003, 8),
        Words::ExpertBias {
            x: 15,
            bias: 40,
            ids: 1003,
        },
        Words::ExpertSum {
            x: 15,
            weights: 1003,
        },
    ] {
        assert!(matches!(width(op), Err(ShapeError::RowsDiffer)), "{op:?}");
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
