//! Threads that stall in the middle of a step, as on a busy machine, change no bit of any result:
//! two layers of a model, prefill and decode, every instruction set.

use crate::common::layers::Layers;
use octavo_kernels::{
    Executor, Isa, KvShape, KvStore, KvType, Phase, Pool, SharedPool, Step, StepSequence,
};
use octavo_quant::TensorType as T;

const TOKENS: usize = 64;
const PROMPT: usize = 40;

const KV: KvShape = KvShape {
    n_layer: 2,
    n_head_kv: 2,
    head_dim: 64,
    types: KvType::F16.both(),
};

fn layers() -> Layers {
    // the down projection reads floats in one layer, and integers in the other
    let layer = |down| [T::Q4_K, T::Q4_K, T::Q6_K, T::Q4_K, T::Q8_0, T::Q8_0, down];
    let types = vec![layer(T::F16), layer(T::Q6_K)];
    Layers {
        d: 256,
        ff: 512,
        kv: KV,
        out: 2048,
        tokens: TOKENS,
        types,
        out_type: T::Q4_0,
    }
}

/// Returns, as bits, the logits of a prompt in batches and of decoded tokens after it; then once
/// more from the middle, where the cache is overwritten; then of two sequences at a time, one of
/// which reaches its second piece of attention.
fn timeline(executor: &mut Executor) -> Vec<u32> {
    let mut kv = KvStore::new(&[KV], 40).expect("memory");
    let table = [3, 0, 4, 1];
    let mut bits = Vec::new();
    let mut step = |phase, start: usize, n: usize| {
        let tokens: Vec<u32> = (0..n).map(|i| ((start + i) * 7 % TOKENS) as u32).collect();
        let seqs = [StepSequence {
            tokens: &tokens,
            start,
            tables: &[&table],
            outputs: n - 1..n,
            ..StepSequence::default()
        }];
        let out = executor.step(
            &Step {
                phase,
                seqs: &seqs,
                input: &[],
            },
            &mut kv,
            None,
        );
        assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0));
        bits.extend(out.iter().map(|x| x.to_bits()));
    };
    for start in (0..PROMPT).step_by(17) {
        step(Phase::Prefill, start, 17.min(PROMPT - start));
    }
    for start in (PROMPT..TOKENS).chain(PROMPT - 8..PROMPT) {
        step(Phase::Decode, start, 1);
    }
    // positions in between have never been written: zeros
    let long: Vec<u32> = (6..40).collect();
    for i in 0..8 {
        let tokens = [i, i + 1];
        let sequence = |i: usize, start, tables| StepSequence {
            tokens: &tokens[i..=i],
            start,
            tables,
            outputs: 0..1,
            ..StepSequence::default()
        };
        let (long, table): ([&[u32]; 1], [&[u32]; 1]) = ([&long], [&table]);
        let seqs = [
            sequence(0, 508 + i as usize, &long),
            sequence(1, TOKENS - 8 + i as usize, &table),
        ];
        let out = executor.step(
            &Step {
                phase: Phase::Decode,
                seqs: &seqs,
                input: &[],
            },
            &mut kv,
            None,
        );
        assert!(out.iter().all(|x| x.is_finite()));
        bits.extend(out.iter().map(|x| x.to_bits()));
    }
    bits
}

#[test]
fn missing_threads_change_no_bit() {
    let (mut taken_over, mut divided_again) = (0, 0);
    for isa in Isa::available() {
        for repack in [true, false] {
            let expected =
                timeline(&mut layers().executor(isa, repack, Pool::new(1).expect("a thread")));
            for (threads, one_of) in [(2, 20), (3, 40), (5, 60)] {
                let mut executor = layers().executor(
                    isa,
                    repack,
                    Pool::unreliable(threads, 3, one_of).expect("threads"),
                );
                for round in 0..3 {
                    let got = timeline(&mut executor);
                    assert!(
                        got == expected,
                        "{isa} repack {repack} {threads} threads, round {round}"
                    );
                }
                taken_over += executor.pool().lock().taken_over();
                divided_again += executor.pool().lock().divided_again();
            }
        }
    }
    // hundreds of times with several CPUs; zero would mean that nothing was tested
    assert!(
        taken_over > 0,
        "nobody ever went on without a missing thread"
    );
    assert!(
        divided_again > 0,
        "nobody ever shared the rest of a section with one who came back"
    );
    println!("taken over {taken_over} times, divided again {divided_again} times");
}

/// Two models of different widths, such as a model and its draft, that share threads in any order.
#[test]
fn executors_that_share_threads_change_no_bit_of_each_other() {
    let small = Layers {
        ff: 256,
        out: 512,
        ..layers()
    };
    let isa = Isa::best();
    for (threads, one_of) in [(1, 30), (2, 20), (3, 40)] {
        let pool = SharedPool::from(Pool::unreliable(threads, 5, one_of).expect("threads"));
        std::thread::scope(|scope| {
            for (name, layers) in [("large", layers()), ("small", small.clone())] {
                let pool = pool.clone();
                scope.spawn(move || {
                    let alone = Pool::new(1).expect("a thread");
                    let expected = timeline(&mut layers.executor(isa, true, alone));
                    let mut executor = layers.executor(isa, true, pool);
                    for round in 0..3 {
                        let got = timeline(&mut executor);
                        assert!(got == expected, "{name}, {threads} threads, round {round}");
                    }
                });
            }
        });
    }
}
