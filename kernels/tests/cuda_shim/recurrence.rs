//! Recurrent operations: against the formulas in f64, and any division of sequences into steps
//! against one step per sequence, bit for bit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Device, Executor, Limits, MAX_RETAINED, Setup};
use octavo_kernels::{KeyHeads, KvShape, Phase, StateUse, StateWrite, Step, StepSequence};

use super::{Bench, device};
use crate::common::recurrent::{
    Case, Exact, Sizes, convolution, linear_attention, selective_scan, wkv7,
};
use crate::common::{KV, Rng};

const CACHE: KvShape = KvShape { head_dim: 8, ..KV };
const LIMITS: Limits = Limits {
    rows: 64,
    outputs: 64,
    sequences: 16,
    positions: 32,
    n_pages: 1,
    states: 200,
};
/// No attention uses the KV cache, so all pages are the same.
const TABLES: &[&[u32]] = &[&[0; 2]];

/// A sequence: its tokens, the number computed so far, and the results.
struct Text {
    tokens: Vec<u32>,
    done: usize,
    /// Saved states: number of tokens, and slot.
    states: Vec<(usize, u32)>,
    got: Vec<f32>,
}

/// One step's part of a sequence: the number of tokens, and the token counts after which states are
/// kept besides the last one.
struct SequencePart<'a> {
    text: usize,
    tokens: usize,
    saved_after: &'a [usize],
}

impl SequencePart<'_> {
    fn of(text: usize, tokens: usize) -> SequencePart<'static> {
        SequencePart {
            text,
            tokens,
            saved_after: &[],
        }
    }
}

/// Sequences on a device. Every state is written to a fresh slot.
struct Texts {
    executor: Executor<Box<dyn Device>>,
    texts: Vec<Text>,
    width: usize,
    next: u32,
}

impl Texts {
    /// Creates an executor on the test device, if there is one.
    fn new(case: &Case, capture: bool, schedule: usize) -> Option<Texts> {
        let Bench(mut machine) = device()?;
        let schedules = machine.schedules();
        machine.schedule(schedules[schedule % schedules.len()]);
        let setup = Setup {
            limits: LIMITS,
            capture,
            check_pages: true,
            threads: 1,
        };
        let program = case.program(CACHE);
        let executor = Executor::new(machine.boxed(), program, &[], setup, &mut |_, _, _| {});
        Some(Texts {
            executor: executor.expect("a program that fits"),
            texts: Vec::new(),
            width: *case.widths.last().expect("an output"),
            next: 0,
        })
    }

    /// Adds a sequence.
    fn begin(&mut self, tokens: Vec<u32>) -> usize {
        self.texts.push(Text {
            tokens,
            done: 0,
            states: Vec::new(),
            got: Vec::new(),
        });
        self.texts.len() - 1
    }

    /// Adds a sequence that continues from a saved state of another.
    fn go_on(&mut self, text: usize, state: usize) -> usize {
        let Text {
            tokens,
            states,
            got,
            ..
        } = &self.texts[text];
        let (done, slot) = states[state];
        let text = Text {
            tokens: tokens.clone(),
            done,
            states: vec![(done, slot)],
            got: got[..done * self.width].to_vec(),
        };
        self.texts.push(text);
        self.texts.len() - 1
    }

    fn step(&mut self, phase: Phase, parts: &[SequencePart<'_>]) {
        let mut next = self.next;
        let mut write = |after: usize| {
            let slot = next;
            next += 1;
            StateWrite { after, slot }
        };
        let writes: Vec<Vec<StateWrite>> = parts
            .iter()
            .map(|part| part.saved_after.iter().copied().chain([part.tokens]))
            .map(|after| after.map(&mut write).collect())
            .collect();
        let sequence = |(part, to)| {
            let (SequencePart { text, tokens, .. }, to): (&SequencePart<'_>, &Vec<StateWrite>) =
                (part, to);
            let text = &self.texts[*text];
            StepSequence {
                tokens: &text.tokens[text.done..text.done + tokens],
                start: text.done,
                tables: TABLES,
                outputs: 0..*tokens,
                states: StateUse {
                    from: text.states.last().map(|(_, slot)| *slot),
                    to,
                },
                ..StepSequence::default()
            }
        };
        let seqs: Vec<StepSequence<'_>> = parts.iter().zip(&writes).map(sequence).collect();
        let step = Step {
            phase,
            seqs: &seqs,
            input: &[],
        };
        let mut got = self.executor.step(&step, None).expect("it runs");
        self.next = next;
        for (part, writes) in parts.iter().zip(&writes) {
            let text = &mut self.texts[part.text];
            let own;
            (own, got) = got.split_at(part.tokens * self.width);
            text.got.extend_from_slice(own);
            let states = writes.iter().map(|w| (text.done + w.after, w.slot));
            text.states.extend(states);
            text.done += part.tokens;
        }
        assert!(got.is_empty(), "results of nobody");
    }

    /// Runs the rest of a sequence in one step; returns its results.
    fn finish(&mut self, phase: Phase, text: usize) -> &[f32] {
        let Text { tokens, done, .. } = &self.texts[text];
        self.step(phase, &[SequencePart::of(text, tokens.len() - done)]);
        &self.texts[text].got
    }
}

/// Returns tokens `0..n`, rotated to begin with `first`.
fn around(first: usize, n: usize) -> Vec<u32> {
    (first..first + n).map(|t| (t % n) as u32).collect()
}

/// Checks that a sequence of `n` tokens gives the exact results, and that no division into steps,
/// phase or saved state changes a bit.
fn check_in_any_steps(case: &Case, exact: &Exact, n: usize, what: &str) {
    for schedule in 0..Schedule::ALL.len() {
        let Some(mut texts) = Texts::new(case, false, schedule) else {
            return;
        };
        let whole = texts.begin(around(0, n));
        let whole = texts.finish(Phase::Prefill, whole).to_vec();
        exact.check(what, &whole);
        let each: Vec<usize> = (1..=n).collect();
        let mut saved_after = vec![1, n / 2, n - 1];
        saved_after.dedup();
        let cuts: [(Phase, &[usize], &[usize]); 4] = [
            (Phase::Decode, &each, &[]),
            (Phase::Prefill, &[1, n], &[]),
            (Phase::Prefill, &[n - 1, n], &saved_after[..1]),
            (Phase::Prefill, &[n], &saved_after),
        ];
        for (phase, ends, saved_after) in cuts {
            let text = texts.begin(around(0, n));
            for end in ends {
                let tokens = end - texts.texts[text].done;
                let inside = saved_after.iter().filter(|at| **at < tokens);
                let saved_after: Vec<usize> = inside.copied().collect();
                let saved_after = &saved_after;
                texts.step(
                    phase,
                    &[SequencePart {
                        text,
                        tokens,
                        saved_after,
                    }],
                );
            }
            assert!(texts.texts[text].got == whole, "{what}: steps to {ends:?}");
            if saved_after.is_empty() {
                continue;
            }
            for state in 0..texts.texts[text].states.len() - 1 {
                let again = texts.go_on(text, state);
                let (after, _) = texts.texts[text].states[state];
                let again = texts.finish(Phase::Decode, again);
                assert!(again == whole, "{what}: from the state after {after}");
            }
        }
    }
}

#[test]
fn convolutions_look_back() {
    let mut rng = Rng(41);
    for shape in [
        (9, 5, 4),
        (6, 64, 4),
        (12, 130, 3),
        (7, 33, 2),
        (4, 16, 1),
        (5, 200, 8),
    ] {
        let (case, exact) = convolution(&mut rng, shape);
        check_in_any_steps(&case, &exact, shape.0, &format!("{shape:?}"));
    }
}

/// Two shapes for each kernel, one that fills it and one that does not.
#[test]
fn linear_attention_is_its_formula() {
    let mut rng = Rng(42);
    let sizes = |n, heads, keys, key_dim, value_dim| Sizes {
        n,
        heads,
        keys,
        key_dim,
        value_dim,
    };
    for (s, heads, delta, by_key) in [
        (sizes(7, 4, 2, 16, 16), KeyHeads::Tiled, true, false),
        (sizes(7, 4, 2, 16, 16), KeyHeads::Grouped, true, false),
        (sizes(5, 3, 1, 7, 5), KeyHeads::Tiled, false, false),
        (sizes(17, 6, 3, 64, 72), KeyHeads::Tiled, true, false),
        (sizes(6, 8, 2, 65, 20), KeyHeads::Grouped, false, false),
        (sizes(20, 2, 1, 128, 128), KeyHeads::Grouped, true, false),
        (sizes(5, 1, 1, 130, 33), KeyHeads::Grouped, true, false),
        (sizes(4, 2, 2, 256, 256), KeyHeads::Tiled, true, false),
        (sizes(9, 4, 4, 16, 16), KeyHeads::Grouped, true, true),
        (sizes(17, 2, 1, 128, 72), KeyHeads::Tiled, true, true),
        (sizes(6, 2, 2, 33, 20), KeyHeads::Grouped, false, true),
    ] {
        let (case, exact) = linear_attention(&mut rng, s, heads, (delta, by_key));
        check_in_any_steps(&case, &exact, s.n, &format!("{s:?}"));
    }
}

#[test]
fn selective_scans_are_their_formula() {
    let mut rng = Rng(46);
    for shape in [
        (9, 16, 16),
        (7, 40, 8),
        (20, 130, 16),
        (5, 5, 3),
        (6, 33, 64),
    ] {
        let (case, exact) = selective_scan(&mut rng, shape);
        check_in_any_steps(&case, &exact, shape.0, &format!("{shape:?}"));
    }
}

#[test]
fn time_mixing_is_its_formula() {
    let mut rng = Rng(47);
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
        check_in_any_steps(&case, &exact, s.n, &format!("{s:?}"));
    }
}

/// Returns a program of each kind for `n` tokens.
fn one_of_each(n: usize) -> [Case; 4] {
    let mut rng = Rng(43);
    let s = Sizes {
        n,
        heads: 4,
        keys: 2,
        key_dim: 24,
        value_dim: 40,
    };
    [
        convolution(&mut rng, (n, 70, 4)).0,
        linear_attention(&mut rng, s, KeyHeads::Tiled, (true, false)).0,
        selective_scan(&mut rng, (n, 70, 16)).0,
        wkv7(&mut rng, s).0,
    ]
}

/// Computes sequences, each alone on the device.
fn alone(case: &Case, texts: usize, n: usize) -> Option<Vec<Vec<f32>>> {
    let of = |first| {
        let mut texts = Texts::new(case, false, 0)?;
        let text = texts.begin(around(first, n));
        Some(texts.finish(Phase::Prefill, text).to_vec())
    };
    (0..texts).map(of).collect()
}

#[test]
fn texts_of_a_step_have_states_of_their_own() {
    let n = 21;
    for case in one_of_each(n) {
        let Some(alone) = alone(&case, 4, n) else {
            return;
        };
        for schedule in 0..Schedule::ALL.len() {
            let Some(mut texts) = Texts::new(&case, false, schedule) else {
                return;
            };
            for first in 0..4 {
                texts.begin(around(first, n));
            }
            let with = |text, tokens, saved_after| SequencePart {
                text,
                tokens,
                saved_after,
            };
            let steps: [(Phase, &[SequencePart<'_>]); 5] = [
                (
                    Phase::Prefill,
                    &[with(0, 5, &[2]), SequencePart::of(1, 18), with(2, 1, &[])],
                ),
                (
                    Phase::Decode,
                    &[
                        SequencePart::of(2, 3),
                        SequencePart::of(0, 1),
                        SequencePart::of(1, 2),
                    ],
                ),
                (
                    Phase::Prefill,
                    &[with(3, 20, &[1, 3, 17]), with(2, 16, &[1, 2])],
                ),
                (
                    Phase::Decode,
                    &[
                        SequencePart::of(0, 1),
                        SequencePart::of(3, 1),
                        SequencePart::of(1, 1),
                    ],
                ),
                (
                    Phase::Prefill,
                    &[SequencePart::of(2, 1), with(0, 14, &[13])],
                ),
            ];
            for (phase, parts) in steps {
                texts.step(phase, parts);
            }
            for (text, alone) in texts.texts.iter().zip(&alone) {
                assert!(text.got == *alone, "of {} tokens", text.done);
            }
        }
    }
}

/// Decodes enough sequences that replayed launches have padding rows, which read and write no
/// state: the first slot's state is used again at the end.
#[test]
fn replayed_steps_are_the_same() {
    let (n, most) = (16, 11);
    for case in one_of_each(n) {
        let Some(alone) = alone(&case, most, n) else {
            return;
        };
        for capture in [true, false] {
            let Some(mut texts) = Texts::new(&case, capture, 2) else {
                return;
            };
            for first in 0..most {
                texts.begin(around(first, n));
            }
            // at least two tokens: a padding row that kept a state would keep that after one token
            let prompts: Vec<SequencePart<'_>> = (0..most)
                .map(|text| SequencePart::of(text, 2 + text % 5))
                .collect();
            texts.step(Phase::Prefill, &prompts);
            loop {
                let rest = (0..most).rev().filter(|text| texts.texts[*text].done < n);
                let parts: Vec<SequencePart<'_>> =
                    rest.map(|text| SequencePart::of(text, 1)).collect();
                if parts.is_empty() {
                    break;
                }
                texts.step(Phase::Decode, &parts);
            }
            let again = texts.go_on(0, 0);
            texts.finish(Phase::Prefill, again);
            assert_eq!(texts.texts[again].states[0].1, 0, "the first slot");
            for (text, alone) in texts.texts.iter().zip(alone.iter().chain(&alone[..1])) {
                assert!(text.got == *alone, "captured: {capture}");
            }
        }
    }
}

/// Returns the panic message of an invalid step.
fn complaint(texts: &mut Texts, part: &SequencePart<'_>) -> String {
    let step = || texts.step(Phase::Prefill, std::slice::from_ref(part));
    let panic = catch_unwind(AssertUnwindSafe(step)).expect_err("too much");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().expect("a text").to_string(),
    }
}

#[test]
fn states_beyond_what_there_is_are_refused() {
    let n = 9;
    let [case, ..] = one_of_each(n);
    let Some(mut texts) = Texts::new(&case, false, 0) else {
        return;
    };
    let text = texts.begin(around(0, n));
    let too_many = SequencePart {
        text,
        tokens: n,
        saved_after: &[1, 2, 3, 4, 5, 6, 7, 8],
    };
    let expected = format!("9 states of a sequence: expected at most {MAX_RETAINED}");
    assert_eq!(complaint(&mut texts, &too_many), expected);
    texts.next = LIMITS.states as u32;
    let beyond = complaint(&mut texts, &SequencePart::of(text, n));
    assert_eq!(beyond, "a state that does not exist");
}

#[test]
fn needs_are_known_before() {
    let needs = |case: &Case, states| {
        let limits = Limits { states, ..LIMITS };
        Executor::<Box<dyn Device>>::needs(&case.program(CACHE), &[], &limits)
    };
    let mut rng = Rng(44);
    let s = Sizes {
        n: 1,
        heads: 2,
        keys: 1,
        key_dim: 128,
        value_dim: 120,
    };
    let (case, _) = linear_attention(&mut rng, s, KeyHeads::Grouped, (true, false));
    let none = needs(&case, 0).expect("it fits");
    let some = needs(&case, 12).expect("it fits");
    assert_eq!(none.states, 0);
    assert_eq!(some.states, 12 * 2 * 128 * 128 * 4);
    assert_eq!(some.total(), none.total() + some.states);
    assert!(!none.to_string().contains("states"), "{none}");
    assert!(some.to_string().contains(", states 2, "), "{some}");

    let s = Sizes { key_dim: 257, ..s };
    let linear = linear_attention(&mut rng, s, KeyHeads::Grouped, (true, false));
    let scan = selective_scan(&mut rng, (4, 16, 65));
    let mixing = wkv7(&mut rng, s);
    for ((case, _), what, got, most) in [
        (linear, "linear attention", "keys of 257 values", 256),
        (scan, "selective scan", "65 numbers of a value", 64),
        (mixing, "time mixing", "257 numbers of a value", 64),
    ] {
        let refused = needs(&case, 12).expect_err("no kernel").to_string();
        let says = format!("{what} with {got}: expected at most {most}, on a GPU");
        assert_eq!(refused, says);
    }
}
