//! Operations that go from token to token, against the formulas in f64, and any cut of a text into
//! steps against one step.

use octavo_kernels::{
    Executor, Instruction, Isa, KeyHeads, KvStore, Op, Pool, Program, Recurrence, Role, Sequence,
    StateUse, StateWrite, Step, matrix_state,
};

use crate::common::{KV, Rng, embed, program};

/// Half a unit in the last place, relatively.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// A program with one part of a state.
struct Case {
    ops: Vec<Instruction>,
    widths: Vec<usize>,
    state: usize,
}

impl Case {
    fn program(&self) -> Program {
        Program {
            states: vec![self.state],
            ..program(self.ops.clone(), &self.widths, KV)
        }
    }

    /// The results of tokens `0..n` of a sequence, in steps that end at `ends`; `kept` are places
    /// where steps keep a state as well.
    fn run(&self, isa: Isa, threads: usize, ends: &[usize], kept: &[usize]) -> Vec<f32> {
        let pool = Pool::new(threads).expect("threads");
        let mut executor = Executor::new(isa, self.program(), Vec::new(), pool);
        let n = *ends.last().expect("a step");
        let pages: Vec<u32> = (0..n.div_ceil(16) as u32).collect();
        let slots = ends.len() + kept.len();
        let mut store = KvStore::new(&[KV], pages.len())
            .expect("memory")
            .with_states(&[self.state], slots)
            .expect("memory");
        let (mut start, mut from, mut next) = (0, None, 0..slots as u32);
        let mut all = Vec::new();
        for end in ends {
            let tokens: Vec<u32> = (start as u32..*end as u32).collect();
            let inside = kept.iter().filter(|at| (start + 1..*end).contains(at));
            let to: Vec<StateWrite> = inside
                .chain([end])
                .map(|at| StateWrite {
                    after: at - start,
                    slot: next.next().expect("a slot"),
                })
                .collect();
            let seqs = [Sequence {
                tokens: &tokens,
                start,
                tables: &[&pages],
                wanted: 0..tokens.len(),
                states: StateUse { from, to: &to },
            }];
            let step = Step {
                role: Role::Prompt,
                seqs: &seqs,
                input: &[],
            };
            all.extend_from_slice(executor.step(&step, &mut store, None));
            // the state in the middle, where there is one, and what follows computed again from it
            if let [first, _, ..] = to[..] {
                let seqs = [Sequence {
                    tokens: &tokens[first.after..],
                    start: start + first.after,
                    tables: &[&pages],
                    wanted: 0..tokens.len() - first.after,
                    states: StateUse {
                        from: Some(first.slot),
                        to: &[StateWrite {
                            after: tokens.len() - first.after,
                            ..to[to.len() - 1]
                        }],
                    },
                }];
                let step = Step {
                    role: Role::Generated,
                    seqs: &seqs,
                    input: &[],
                };
                let again = executor.step(&step, &mut store, None);
                let rows = all.len() - again.len();
                assert!(
                    all[rows..] == *again,
                    "from a state in the middle of a step"
                );
            }
            (start, from) = (*end, to.last().map(|write| write.slot));
        }
        all
    }

    /// That no cut, no thread and no state that is kept changes a bit; answers the results.
    fn in_any_steps(&self, isa: Isa, n: usize) -> Vec<f32> {
        let whole = self.run(isa, 1, &[n], &[]);
        let each: Vec<usize> = (1..=n).collect();
        let cuts: [(&[usize], &[usize]); 4] = [
            (&each, &[]),
            (&[1, n], &[]),
            (&[n - 1, n], &[n / 2]),
            (&[n], &[1, n - 1]),
        ];
        for threads in [1, 3] {
            for (ends, kept) in cuts {
                let got = self.run(isa, threads, ends, kept);
                assert!(got == whole, "{isa}: {threads} threads, steps to {ends:?}");
            }
        }
        whole
    }
}

/// A convolution of some rows of random numbers, and what it is in f64.
fn convolution(rng: &mut Rng, (n, width, kernel): (usize, usize, usize)) -> (Case, Vec<f64>) {
    let (x, weight) = (rng.floats(n * width), rng.floats(kernel * width));
    let at = |t: usize, c: usize| f64::from(x[t * width + c]);
    let exact = (0..n * width).map(|i| {
        let (t, c) = (i / width, i % width);
        let rows = (0..kernel).filter(|j| t + j + 1 >= kernel);
        rows.map(|j| at(t + j + 1 - kernel, c) * f64::from(weight[j * width + c]))
            .sum()
    });
    let exact = exact.collect();
    let conv = Op::CausalConv {
        x: 0,
        weight: weight.into(),
        state: 0,
    };
    let case = Case {
        ops: vec![embed(n, width, &x, 0), conv.to(1)],
        widths: vec![width, width],
        state: (kernel - 1) * width,
    };
    (case, exact)
}

#[test]
fn convolutions_look_back() {
    let mut rng = Rng(31);
    for shape in [
        (9, 5, 4),
        (3, 64, 4),
        (12, 130, 3),
        (7, 33, 2),
        (4, 16, 1),
        (5, 200, 8),
    ] {
        let (case, exact) = convolution(&mut rng, shape);
        let (n, _, kernel) = shape;
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, n);
            for (got, exact) in got.iter().zip(&exact) {
                let error = (f64::from(*got) - exact).abs();
                assert!(
                    error <= 2.0 * kernel as f64 * U,
                    "{isa} {shape:?}: {got} for {exact}"
                );
            }
        }
    }
}

/// The sizes of a linear attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    n: usize,
    heads: usize,
    keys: usize,
    key_dim: usize,
    value_dim: usize,
}

/// Rows of random numbers, of one input.
struct Rows {
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    fn new(width: usize, values: Vec<f32>) -> Rows {
        Rows { width, values }
    }

    fn at(&self, t: usize, i: usize) -> f64 {
        f64::from(self.values[t * self.width + i])
    }
}

/// Queries, keys, values, decays and rates as programs have them.
fn inputs(rng: &mut Rng, s: Sizes) -> [Rows; 5] {
    let mut unit = |heads: usize| {
        let mut rows = rng.floats(s.n * heads * s.key_dim);
        for head in rows.chunks_mut(s.key_dim) {
            let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
            head.iter_mut().for_each(|x| *x /= length);
        }
        Rows::new(heads * s.key_dim, rows)
    };
    let (q, k) = (unit(s.keys), unit(s.keys));
    let v = Rows::new(
        s.heads * s.value_dim,
        rng.floats(s.n * s.heads * s.value_dim),
    );
    let mut part = |least: f32| {
        let rows = rng.floats(s.n * s.heads);
        let rows = rows
            .iter()
            .map(|x| least + (1.0 - least) * x.abs())
            .collect();
        Rows::new(s.heads, rows)
    };
    [q, k, v, part(0.5), part(0.0)]
}

/// What comes of them in f64, and how large what is added up on the way is.
fn exactly(s: Sizes, how: &Recurrence, [q, k, v, decay, rate]: &[Rows; 5]) -> (Vec<f64>, f64) {
    let mut out = vec![0.0; s.n * s.heads * s.value_dim];
    let mut largest = 0f64;
    for (head, i) in (0..s.heads).flat_map(|h| (0..s.value_dim).map(move |i| (h, i))) {
        let mut row = vec![0.0; s.key_dim];
        let key = match how.heads {
            KeyHeads::Grouped => head / (s.heads / s.keys),
            KeyHeads::Tiled => head % s.keys,
        };
        for t in 0..s.n {
            row.iter_mut().for_each(|m| *m *= decay.at(t, head));
            let dot = |row: &[f64], with: &Rows| -> f64 {
                let terms = row.iter().enumerate();
                terms
                    .map(|(j, m)| m * with.at(t, key * s.key_dim + j))
                    .sum()
            };
            let known = if how.delta { dot(&row, k) } else { 0.0 };
            let change = rate.at(t, head) * (v.at(t, head * s.value_dim + i) - known);
            for (j, m) in row.iter_mut().enumerate() {
                *m += change * k.at(t, key * s.key_dim + j);
            }
            largest = row.iter().fold(largest, |most, m| most.max(m.abs()));
            let at = (t * s.heads + head) * s.value_dim + i;
            out[at] = f64::from(how.scale) * dot(&row, q);
        }
    }
    (out, largest)
}

#[test]
fn linear_attention_is_its_formula() {
    let mut rng = Rng(32);
    let sizes = |n, heads, keys, key_dim, value_dim| Sizes {
        n,
        heads,
        keys,
        key_dim,
        value_dim,
    };
    for (s, heads, delta) in [
        (sizes(9, 4, 2, 16, 16), KeyHeads::Tiled, true),
        (sizes(7, 4, 2, 16, 16), KeyHeads::Grouped, true),
        (sizes(20, 2, 1, 128, 128), KeyHeads::Grouped, true),
        (sizes(6, 8, 2, 33, 20), KeyHeads::Grouped, false),
        (sizes(5, 3, 1, 7, 5), KeyHeads::Tiled, false),
        (sizes(12, 6, 3, 64, 72), KeyHeads::Tiled, true),
    ] {
        let how = Recurrence {
            key_dim: s.key_dim,
            heads,
            delta,
            scale: 0.7,
        };
        let inputs = inputs(&mut rng, s);
        let (exact, largest) = exactly(s, &how, &inputs);
        let tables = inputs.iter().enumerate();
        let mut ops: Vec<Instruction> = tables
            .map(|(slot, rows)| embed(s.n, rows.width, &rows.values, slot))
            .collect();
        let op = Op::LinearAttention {
            q: 0,
            k: 1,
            v: 2,
            decay: 3,
            rate: 4,
            how,
            state: 0,
        };
        ops.push(op.to(5));
        let mut widths: Vec<usize> = inputs.iter().map(|rows| rows.width).collect();
        widths.push(s.heads * s.value_dim);
        let state = matrix_state(s.heads, s.key_dim, s.value_dim).expect("a small state");
        let case = Case { ops, widths, state };
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, s.n);
            // a value is added to and fades in three roundings a token, of which less than half is
            // left after one; queries and keys have length 1, and their products as many roundings
            // as terms, twice for what is taken away
            let allowed = largest * U * (16.0 + 4.0 * s.key_dim as f64);
            for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
                let error = (f64::from(*got) - exact).abs();
                assert!(error <= allowed, "{isa} {s:?} at {i}: {got} for {exact}");
            }
        }
    }
}

#[test]
fn sequences_of_a_step_have_states_of_their_own() {
    let (case, _) = convolution(&mut Rng(33), (8, 20, 4));
    for isa in Isa::available() {
        let pool = Pool::new(2).expect("threads");
        let mut executor = Executor::new(isa, case.program(), Vec::new(), pool);
        let mut store = KvStore::new(&[KV], 2)
            .expect("memory")
            .with_states(&[case.state], 4)
            .expect("memory");
        let mut got = [Vec::new(), Vec::new()];
        for (step, tokens) in [[0, 1, 2, 3], [4, 5, 6, 7]].iter().enumerate() {
            let slots = [0, 1].map(|i| (2 * step + i) as u32);
            let to = slots.map(|slot| [StateWrite { after: 4, slot }]);
            let sequence = |i: usize, page| Sequence {
                tokens,
                start: 4 * step,
                tables: page,
                wanted: 0..4,
                states: StateUse {
                    from: (step > 0).then_some(i as u32),
                    to: &to[i],
                },
            };
            let seqs = [sequence(0, &[&[0]]), sequence(1, &[&[1]])];
            let step = Step {
                role: Role::Prompt,
                seqs: &seqs,
                input: &[],
            };
            let out = executor.step(&step, &mut store, None);
            let (one, other) = out.split_at(out.len() / 2);
            got[0].extend_from_slice(one);
            got[1].extend_from_slice(other);
        }
        let alone = case.run(isa, 1, &[8], &[]);
        assert!(got[0] == alone && got[1] == alone, "{isa}");
    }
}

#[test]
#[should_panic(expected = "a state written over another of the step")]
fn a_state_that_is_read_is_not_written() {
    let (case, _) = convolution(&mut Rng(34), (2, 4, 2));
    let pool = Pool::new(1).expect("a thread");
    let mut executor = Executor::new(Isa::Scalar, case.program(), Vec::new(), pool);
    let mut store = KvStore::new(&[KV], 1)
        .expect("memory")
        .with_states(&[case.state], 1)
        .expect("memory");
    let seqs = [Sequence {
        tokens: &[1],
        start: 1,
        tables: &[&[0]],
        wanted: 0..0,
        states: StateUse {
            from: Some(0),
            to: &[StateWrite { after: 1, slot: 0 }],
        },
    }];
    let step = Step {
        role: Role::Prompt,
        seqs: &seqs,
        input: &[],
    };
    executor.step(&step, &mut store, None);
}
