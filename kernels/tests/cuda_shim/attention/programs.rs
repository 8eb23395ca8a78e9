//! Parameters that an executor passes to the attention kernels.

use super::*;
use octavo_kernels::Alibi;
use octavo_kernels::cuda::Device;

/// Returns attention of four heads and a product that reads it, so that decode attention writes
/// integers: from tables of queries, keys and values, the last one by position.
fn attention_and_product(tokens: usize, scores: Scores, sinks: bool) -> Vec<Instruction> {
    let mut rng = Rng(23);
    let mut table =
        |width: usize, out: usize| embed(tokens, width, &rng.floats(tokens * width), out);
    let cache = CacheLayer { group: 0, layer: 0 };
    let (q, k) = (table(128, 0), table(64, 1));
    let Op::Embed { table, .. } = table(64, 2).op else {
        unreachable!("rows of a table");
    };
    let v = Op::EmbedPositions { table }.to(2);
    vec![
        q,
        k,
        v,
        Op::KvWrite { k: 1, v: 2, cache }.without_result(),
        Op::Attention {
            q: 0,
            seen: None,
            cache,
            scores,
            sinks: sinks.then(|| vec![0.5, 2.0, -1.0, 1.0].into()),
        }
        .to(3),
        Op::MatMul { x: 3, w: 0 }.to(4),
    ]
}

/// A program on the test device and on the CPU.
struct Both {
    here: Executor<Box<dyn Device>>,
    there: octavo_kernels::Executor,
    store: KvStore,
}

const TOKENS: usize = 60;

impl Both {
    fn new(Bench(machine): Bench, scores: Scores, sinks: bool) -> Both {
        let kv = KvShape {
            n_layer: 1,
            n_head_kv: 2,
            head_dim: 32,
            types: KvType::F16.both(),
        };
        let widths = [128, 64, 64, 128, 64];
        let shape = (TensorType::Q8_0, 64, 128);
        let raw = Arc::new(random_blocks(&mut Rng(24), shape.0, 64 * 128));
        let ops = || program(attention_and_product(TOKENS, scores, sinks), &widths, kv);
        let source = Source {
            name: "the product's".to_owned(),
            ty: shape.0,
            rows: shape.1,
            cols: shape.2,
            bytes: raw.clone(),
        };
        let limits = Limits {
            rows: TOKENS,
            outputs: TOKENS,
            sequences: 1,
            positions: 64,
            n_pages: 4,
            states: 0,
        };
        let setup = Setup {
            limits,
            capture: true,
            check_pages: true,
            threads: 1,
        };
        let here = Executor::new(machine.boxed(), ops(), &[source], setup, &mut |_, _, _| {})
            .expect("a program that fits");
        let mut pool = Pool::new(1).expect("a thread");
        let matrix = Matrix::new(Isa::Scalar, shape, raw, true, &mut pool).expect("a matrix");
        Both {
            here,
            there: octavo_kernels::Executor::new(Isa::Scalar, ops(), vec![matrix], pool),
            store: KvStore::new(&[kv], 4).expect("memory"),
        }
    }

    /// Checks that both agree. Half-precision weights and product inputs are accurate to 2^-11; any
    /// operation left out makes a hundred times that error.
    fn agree_on(&mut self, step: &Step<'_>, what: &str) {
        let got = self.here.step(step, None).expect("it runs").to_vec();
        let expected = self.there.step(step, &mut self.store, None);
        let largest = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
            assert!(
                (got - expected).abs() <= 2e-3 * largest,
                "{what} value {at}: {got}, not {expected}"
            );
        }
    }
}

/// Programs give the same results on the test device and on the CPU.
#[test]
fn programs_take_windows_caps_and_sinks() {
    let [alone, in_blocks, in_images] = [(false, false), (true, false), (false, true)];
    let (moving, in_chunks) = (false, true);
    let falling = Some(Alibi {
        max_bias: 8.0,
        heads: 6,
        first: 1,
    });
    for (i, ((window, chunked), cap, sinks, causal, (blocks, images))) in [
        ((None, moving), None, false, true, alone),
        ((Some(20), moving), Some(0.5), true, true, alone),
        ((None, moving), None, false, false, alone),
        ((None, moving), None, false, true, alone),
        ((Some(5), moving), None, false, true, alone),
        ((None, moving), Some(0.5), false, true, alone),
        ((None, moving), None, true, true, alone),
        ((Some(20), moving), Some(0.5), true, true, alone),
        ((Some(7), in_chunks), None, false, true, alone),
        ((Some(16), in_chunks), None, true, true, alone),
        ((None, moving), None, false, false, alone),
        ((Some(20), moving), None, false, false, alone),
        ((None, moving), None, false, false, in_blocks),
        ((None, moving), None, false, true, in_images),
        ((Some(5), moving), None, false, true, in_images),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(bench) = device() else {
            return;
        };
        let scores = Scores {
            scale: 0.4,
            cap,
            window,
            chunked,
            causal,
            blocks,
            images,
            alibi: falling.filter(|_| i < 3),
        };
        let mut both = Both::new(bench, scores, sinks);
        let prompt = if causal { 50 } else { TOKENS };
        let steps = [(Phase::Prefill, 0..prompt)]
            .into_iter()
            .chain((prompt..TOKENS).map(|at| (Phase::Decode, at..at + 1)));
        for (phase, tokens) in steps {
            let ids: Vec<u32> = tokens.clone().map(|t| (7 * t % TOKENS) as u32).collect();
            let seqs = [StepSequence {
                tokens: &ids,
                start: tokens.start,
                tables: &[&[2, 0, 3, 1]],
                outputs: 0..ids.len(),
                blocks: if blocks { &[3, 4, 37, TOKENS] } else { &[] },
                images: if phase == Phase::Prefill {
                    &[2..19, 30..45]
                } else {
                    &[]
                },
                ..StepSequence::default()
            }];
            let step = Step {
                phase,
                seqs: &seqs,
                input: &[],
            };
            both.agree_on(
                &step,
                &format!("{scores:?} sinks {sinks} {phase:?} {tokens:?}"),
            );
        }
    }
}

#[test]
fn selected_keys_are_refused() {
    let kv = KvShape {
        n_layer: 1,
        n_head_kv: 1,
        head_dim: 32,
        types: KvType::F16.both(),
    };
    let cache = CacheLayer { group: 0, layer: 0 };
    let ops = vec![
        embed(1, 32, &[0.0; 32], 0),
        embed(1, 1, &[0.0], 1),
        Op::KvWrite { k: 0, v: 0, cache }.without_result(),
        Op::SelectKeys {
            q: 0,
            weights: 1,
            cache,
            n: 4,
        }
        .to(2),
        Op::Attention {
            q: 0,
            seen: Some(2),
            cache,
            scores: Scores::plain(1.0),
            sinks: None,
        }
        .to(3),
    ];
    let limits = Limits {
        rows: 1,
        outputs: 1,
        sequences: 1,
        positions: 16,
        n_pages: 1,
        states: 0,
    };
    let program = program(ops, &[32, 1, 4, 32], kv);
    let needs = Executor::<Box<dyn Device>>::needs(&program, &[], &limits);
    let refused = needs.expect_err("no kernel").to_string();
    let says = "attention to keys that an indexer selects: expected attention to all, on a GPU";
    assert_eq!(refused, says);
}
