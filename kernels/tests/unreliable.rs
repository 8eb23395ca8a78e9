//! Threads that go missing in the middle of a step, as on a busy machine, change no bit of any result: two layers of a
//! model, prompts and generated tokens, every instruction set.

mod common;

use std::sync::Arc;

use common::{Rng, embed, random_blocks};
use octavo_kernels::{
    Executor, Isa, KvShape, KvStore, KvType, Matrix, Op, Pool, Program, Role, Rope, Sequence, SlotInfo, Step,
};
use octavo_quant::TensorType as T;

const D: usize = 256;
const FF: usize = 512;
const HEAD_DIM: usize = 64;
const HEADS_KV: usize = 2;
const N_LAYER: usize = 2;
/// Rows of the output: many, so that it takes a while.
const OUT: usize = 2048;
const TOKENS: usize = 64;
const PROMPT: usize = 40;

const KV: KvShape = KvShape { n_layer: N_LAYER, n_head_kv: HEADS_KV, head_dim: HEAD_DIM, ty: KvType::F16 };

/// Slots: 0 the residual, 1 normed, 2 q, 3 k, 4 v, 5 and 6 q and k normed, 7 and 8 those rotated, 9 attention, 10 its
/// sum, 11 normed, 12 gate, 13 up, 14 gated, 15 selected, 16 normed, 17 the output.
fn ops(rng: &mut Rng) -> Vec<Op> {
    let mut weight = |n: usize| -> Arc<[f32]> { rng.floats(n).iter().map(|x| x * 0.2 + 1.0).collect() };
    let norm = |x, weight, out| Op::RmsNorm { x, weight, eps: 1e-5, out };
    let mut ops = Vec::new();
    for layer in 0..N_LAYER {
        let w = layer * 7;
        ops.extend([
            norm(0, weight(D), 1),
            Op::MatMul { x: 1, w, out: 2 },
            Op::MatMul { x: 1, w: w + 1, out: 3 },
            Op::MatMul { x: 1, w: w + 2, out: 4 },
            norm(2, weight(HEAD_DIM), 5),
            norm(3, weight(HEAD_DIM), 6),
            Op::Rope { x: 5, head_dim: HEAD_DIM, out: 7 },
            Op::Rope { x: 6, head_dim: HEAD_DIM, out: 8 },
            Op::KvWrite { k: 8, v: 4, layer },
            Op::Attention { q: 7, layer, scale: 0.125, out: 9 },
            Op::MatMul { x: 9, w: w + 3, out: 2 },
            Op::Add { a: 0, b: 2, out: 10 },
            norm(10, weight(D), 11),
            Op::MatMul { x: 11, w: w + 4, out: 12 },
            Op::MatMul { x: 11, w: w + 5, out: 13 },
            Op::SwiGlu { gate: 12, up: 13, out: 14 },
            Op::MatMul { x: 14, w: w + 6, out: 2 },
            Op::Add { a: 10, b: 2, out: 0 },
        ]);
    }
    ops.extend([
        Op::SelectRows { x: 0, out: 15 },
        norm(15, weight(D), 16),
        Op::MatMul { x: 16, w: N_LAYER * 7, out: 17 },
    ]);
    ops
}

fn executor(isa: Isa, repack: bool, mut pool: Pool) -> Executor {
    let mut rng = Rng(11);
    let mut list = vec![embed(TOKENS, D, &rng.floats(TOKENS * D), 0)];
    list.extend(ops(&mut rng));
    let d_kv = HEADS_KV * HEAD_DIM;
    // what comes down reads floats in the one layer, and integers in the other
    let layer = |down| {
        [
            (T::Q4_K, D, D),
            (T::Q4_K, d_kv, D),
            (T::Q6_K, d_kv, D),
            (T::Q4_K, D, D),
            (T::Q8_0, FF, D),
            (T::Q8_0, FF, D),
            (down, D, FF),
        ]
    };
    let shapes = [layer(T::F16), layer(T::Q6_K)].concat().into_iter().chain([(T::Q4_0, OUT, D)]);
    let matrices = shapes
        .map(|(ty, rows, cols)| {
            let raw = Arc::new(random_blocks(&mut rng, ty, rows * cols));
            Matrix::new(isa, (ty, rows, cols), raw, repack, &mut pool).expect("a matrix")
        })
        .collect();
    let widths = [D, D, D, d_kv, d_kv, D, d_kv, D, d_kv, D, D, D, FF, FF, FF, D, D, OUT];
    let slots = widths.iter().enumerate().map(|(i, width)| SlotInfo { width: *width, selected: i >= 15 }).collect();
    let frequencies = (0..HEAD_DIM / 2).map(|i| 10_000f64.powf(-(i as f64) / 32.0)).collect();
    let rope = Rope { frequencies, magnitude: 1.0, neox: true };
    Executor::new(isa, Program { ops: list, slots, rope, kv: KV, output: 17 }, matrices, pool)
}

/// The logits of a prompt in batches and of generated tokens behind it, as bits; then once more from the middle, where
/// the cache is written again; then of two sequences at a time, one of which comes to its second piece of attention.
fn timeline(executor: &mut Executor) -> Vec<u32> {
    let mut kv = KvStore::new(KV, 40).expect("memory");
    let table = [3, 0, 4, 1];
    let mut bits = Vec::new();
    let mut step = |role, start: usize, n: usize| {
        let tokens: Vec<u32> = (0..n).map(|i| ((start + i) * 7 % TOKENS) as u32).collect();
        let seqs = [Sequence { tokens: &tokens, start, table: &table, wanted: n - 1..n }];
        let out = executor.step(&Step { role, seqs: &seqs, input: &[] }, &mut kv, None);
        assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0));
        bits.extend(out.iter().map(|x| x.to_bits()));
    };
    for start in (0..PROMPT).step_by(17) {
        step(Role::Prompt, start, 17.min(PROMPT - start));
    }
    for start in (PROMPT..TOKENS).chain(PROMPT - 8..PROMPT) {
        step(Role::Generated, start, 1);
    }
    // what is between has never been written: zeros
    let long: Vec<u32> = (6..40).collect();
    for i in 0..8 {
        let tokens = [i, i + 1];
        let sequence = |i: usize, start, table| Sequence { tokens: &tokens[i..=i], start, table, wanted: 0..1 };
        let seqs = [sequence(0, 508 + i as usize, &long[..]), sequence(1, TOKENS - 8 + i as usize, &table)];
        let out = executor.step(&Step { role: Role::Generated, seqs: &seqs, input: &[] }, &mut kv, None);
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
            let expected = timeline(&mut executor(isa, repack, Pool::new(1).expect("a thread")));
            for (threads, one_of) in [(2, 20), (3, 40), (5, 60)] {
                let mut executor = executor(isa, repack, Pool::unreliable(threads, 3, one_of).expect("threads"));
                for round in 0..3 {
                    let got = timeline(&mut executor);
                    assert!(got == expected, "{isa} repack {repack} {threads} threads, round {round}");
                }
                taken_over += executor.pool().taken_over();
                divided_again += executor.pool().divided_again();
            }
        }
    }
    // hundreds of times where there are several CPUs; never would mean that nothing was tested
    assert!(taken_over > 0, "nobody ever went on without a missing thread");
    assert!(divided_again > 0, "nobody ever shared the rest of a section with one who came back");
    println!("taken over {taken_over} times, divided again {divided_again} times");
}
