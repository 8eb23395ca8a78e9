//! A tiny layer that is small enough for Miri, which CI runs with both of its aliasing models. It
//! covers all memory shared by threads: step buffers in both phases, with and without taps, the
//! paged cache, and work taken over from stalled threads. Without Miri it is fast.

use crate::common::layers::Layers;
use octavo_kernels::{Executor, Isa, KvShape, KvStore, KvType, Phase, Pool, Step, StepSequence};
use octavo_quant::TensorType as T;

/// Rows of the embedding table: Miri takes ten microseconds per call, so that everything is as
/// small as possible.
const TOKENS: usize = 4;

/// Returns a layer with two query heads per KV head, products with float and integer inputs, and
/// gate and up fused with SwiGLU.
fn layers() -> Layers {
    let kv = KvShape {
        n_layer: 1,
        n_head_kv: 1,
        head_dim: 16,
        types: KvType::F16.both(),
    };
    let types = vec![[
        T::Q8_0,
        T::Q4_0,
        T::F16,
        T::F32,
        T::Q4_1,
        T::Q4_1,
        T::IQ4_NL,
    ]];
    Layers {
        d: 32,
        ff: 32,
        kv,
        out: 5,
        tokens: TOKENS,
        types,
        out_type: T::F32,
    }
}

/// Returns the logits of a prompt across a page end, then of two decoded sequences, as bits; and
/// the number of values that taps saw.
fn timeline(executor: &mut Executor, kv: KvShape, tapped: bool) -> (Vec<u32>, usize) {
    let mut kv = KvStore::new(&[kv], 5).expect("memory");
    let (one, two) = ([3, 0], [1]);
    let (mut bits, mut seen) = (Vec::new(), 0);
    let mut step = |phase, seqs: &[StepSequence<'_>]| {
        let mut tap = |op: usize, rows: usize, width: usize, values: &[f32]| {
            assert_eq!(values.len(), rows * width);
            seen += values.iter().filter(|value| value.is_finite()).count();
            // replace by equal values, so that writes are checked as well as reads
            op.is_multiple_of(2).then(|| values.to_vec())
        };
        let step = Step {
            phase,
            seqs,
            input: &[],
        };
        let out = executor.step(&step, &mut kv, if tapped { Some(&mut tap) } else { None });
        assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0));
        bits.extend(out.iter().map(|x| x.to_bits()));
    };
    let prompt = [3, 1, 0];
    step(
        Phase::Prefill,
        &[StepSequence {
            tokens: &prompt,
            start: 14,
            tables: &[&one],
            outputs: 1..3,
            ..StepSequence::default()
        }],
    );
    let first = StepSequence {
        tokens: &[2],
        start: 17,
        tables: &[&one],
        outputs: 0..1,
        ..StepSequence::default()
    };
    let second = StepSequence {
        tokens: &[1],
        start: 0,
        tables: &[&two],
        outputs: 0..1,
        ..StepSequence::default()
    };
    step(Phase::Decode, &[first, second]);
    (bits, seen)
}

#[test]
fn every_access_is_allowed_and_no_bit_depends_on_threads() {
    let layers = layers();
    let mut missing = layers.executor(
        Isa::Scalar,
        true,
        Pool::unreliable(2, 3, 3).expect("threads"),
    );
    let (got, none) = timeline(&mut missing, layers.kv, false);
    let (tapped, seen) = timeline(&mut missing, layers.kv, true);
    assert!(none == 0 && seen > 0);
    assert!(got == tapped, "two threads, with taps and without");
    if cfg!(not(miri)) {
        let mut one = layers.executor(Isa::Scalar, true, Pool::new(1).expect("a thread"));
        assert!(
            timeline(&mut one, layers.kv, false).0 == got,
            "two threads and one"
        );
    }
}
