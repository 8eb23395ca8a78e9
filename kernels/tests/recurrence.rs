//! Recurrent operations, against the formulas in f64, and any division of a sequence into steps
//! against one step.

use octavo_kernels::{
    Executor, Isa, KeyHeads, KvStore, Phase, Pool, StateUse, StateWrite, Step, StepSequence,
};

use crate::common::recurrent::{Case, Sizes, convolution, linear_attention, selective_scan, wkv7};
use crate::common::{KV, Rng};

impl Case {
    /// Returns the results of tokens `0..n` of a sequence, in steps that end at `ends`; steps also
    /// keep states at the positions `kept`.
    fn run(&self, isa: Isa, threads: usize, ends: &[usize], kept: &[usize]) -> Vec<f32> {
        let pool = Pool::new(threads).expect("threads");
        let mut executor = Executor::new(isa, self.program(KV), Vec::new(), pool);
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
            let seqs = [StepSequence {
                tokens: &tokens,
                start,
                tables: &[&pages],
                outputs: 0..tokens.len(),
                states: StateUse { from, to: &to },
                ..StepSequence::default()
            }];
            let step = Step {
                phase: Phase::Prefill,
                seqs: &seqs,
                input: &[],
            };
            all.extend_from_slice(executor.step(&step, &mut store, None));
            // from a state kept in the middle, compute the rest again
            if let [first, _, ..] = to[..] {
                let seqs = [StepSequence {
                    tokens: &tokens[first.after..],
                    start: start + first.after,
                    tables: &[&pages],
                    outputs: 0..tokens.len() - first.after,
                    states: StateUse {
                        from: Some(first.slot),
                        to: &[StateWrite {
                            after: tokens.len() - first.after,
                            ..to[to.len() - 1]
                        }],
                    },
                    ..StepSequence::default()
                }];
                let step = Step {
                    phase: Phase::Decode,
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

    /// Checks that no division into steps, thread count or kept state changes a bit; returns the
    /// results.
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
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, shape.0);
            exact.check(&format!("{isa} {shape:?}"), &got);
        }
    }
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
    for (s, heads, delta, by_key) in [
        (sizes(9, 4, 2, 16, 16), KeyHeads::Tiled, true, false),
        (sizes(7, 4, 2, 16, 16), KeyHeads::Grouped, true, false),
        (sizes(20, 2, 1, 128, 128), KeyHeads::Grouped, true, false),
        (sizes(6, 8, 2, 33, 20), KeyHeads::Grouped, false, false),
        (sizes(5, 3, 1, 7, 5), KeyHeads::Tiled, false, false),
        (sizes(12, 6, 3, 64, 72), KeyHeads::Tiled, true, false),
        (sizes(9, 4, 4, 16, 16), KeyHeads::Grouped, true, true),
        (sizes(17, 2, 1, 128, 72), KeyHeads::Tiled, true, true),
        (sizes(6, 2, 2, 33, 20), KeyHeads::Grouped, false, true),
    ] {
        let (case, exact) = linear_attention(&mut rng, s, heads, (delta, by_key));
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, s.n);
            exact.check(&format!("{isa} {s:?}"), &got);
        }
    }
}

#[test]
fn selective_scans_are_their_formula() {
    let mut rng = Rng(36);
    for shape in [
        (9, 16, 16),
        (7, 40, 8),
        (20, 130, 16),
        (5, 5, 3),
        (6, 33, 64),
    ] {
        let (case, exact) = selective_scan(&mut rng, shape);
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, shape.0);
            exact.check(&format!("{isa} {shape:?}"), &got);
        }
    }
}

#[test]
fn time_mixing_is_its_formula() {
    let mut rng = Rng(37);
    let sizes = |n, heads, key_dim, value_dim| Sizes {
        n,
        heads,
        keys: heads,
        key_dim,
        value_dim,
    };
    for s in [
        sizes(9, 2, 64, 64),
        sizes(7, 3, 16, 16),
        sizes(20, 1, 33, 20),
        sizes(5, 2, 7, 72),
    ] {
        let (case, exact) = wkv7(&mut rng, s);
        for isa in Isa::available() {
            let got = case.in_any_steps(isa, s.n);
            exact.check(&format!("{isa} {s:?}"), &got);
        }
    }
}

#[test]
fn sequences_of_a_step_have_states_of_their_own() {
    let (case, _) = convolution(&mut Rng(33), (8, 20, 4));
    for isa in Isa::available() {
        let pool = Pool::new(2).expect("threads");
        let mut executor = Executor::new(isa, case.program(KV), Vec::new(), pool);
        let mut store = KvStore::new(&[KV], 2)
            .expect("memory")
            .with_states(&[case.state], 4)
            .expect("memory");
        let mut got = [Vec::new(), Vec::new()];
        for (step, tokens) in [[0, 1, 2, 3], [4, 5, 6, 7]].iter().enumerate() {
            let slots = [0, 1].map(|i| (2 * step + i) as u32);
            let to = slots.map(|slot| [StateWrite { after: 4, slot }]);
            let sequence = |i: usize, page| StepSequence {
                tokens,
                start: 4 * step,
                tables: page,
                outputs: 0..4,
                states: StateUse {
                    from: (step > 0).then_some(i as u32),
                    to: &to[i],
                },
                ..StepSequence::default()
            };
            let seqs = [sequence(0, &[&[0]]), sequence(1, &[&[1]])];
            let step = Step {
                phase: Phase::Prefill,
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
    let mut executor = Executor::new(Isa::Scalar, case.program(KV), Vec::new(), pool);
    let mut store = KvStore::new(&[KV], 1)
        .expect("memory")
        .with_states(&[case.state], 1)
        .expect("memory");
    let seqs = [StepSequence {
        tokens: &[1],
        start: 1,
        tables: &[&[0]],
        outputs: 0..0,
        states: StateUse {
            from: Some(0),
            to: &[StateWrite { after: 1, slot: 0 }],
        },
        ..StepSequence::default()
    }];
    let step = Step {
        phase: Phase::Prefill,
        seqs: &seqs,
        input: &[],
    };
    executor.step(&step, &mut store, None);
}

/// Small enough for Miri (tools/miri.sh), which checks that each thread accesses only its own part
/// of a state.
#[test]
fn a_tiny_state_is_each_threads_own_part() {
    let sizes = Sizes {
        n: 3,
        heads: 2,
        keys: 1,
        key_dim: 4,
        value_dim: 18,
    };
    let mut rng = Rng(35);
    let (recurrent, _) = linear_attention(&mut rng, sizes, KeyHeads::Grouped, (true, false));
    let (convolved, _) = convolution(&mut rng, (3, 70, 3));
    let (scanned, _) = selective_scan(&mut rng, (3, 20, 4));
    let (mixed, _) = wkv7(&mut rng, sizes);
    for case in [recurrent, convolved, scanned, mixed] {
        let got = case.run(Isa::Scalar, 2, &[2, 3], &[1]);
        assert!(got == case.run(Isa::Scalar, 1, &[3], &[]));
    }
}
