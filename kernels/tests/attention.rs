//! Paged attention against a naive f64 softmax; pages in any order, prompts in any pieces, any
//! number of threads: always the same bits.

use crate::common::{Rng, f32_bytes};
use octavo_kernels::{
    CacheLayer, Executor, Isa, KvShape, KvStore, KvType, Op, Pairing, Pool, Program, Role, Rope,
    RowSet, RowTable, Sequence, Step, ValueShape,
};
use octavo_quant::TensorType;
use std::sync::Arc;

#[derive(Clone, Copy)]
struct Case {
    isa: Isa,
    heads: usize,
    heads_kv: usize,
    head_dim: usize,
    ty: KvType,
    threads: usize,
}

/// Tokens look up q, k and v in tables and attend.
fn executor(c: Case, q: &[f32], k: &[f32], v: &[f32], tokens: usize) -> Executor {
    let table = |values: &[f32], cols: usize| RowTable {
        ty: TensorType::F32,
        rows: tokens,
        cols,
        source: Arc::new(f32_bytes(values)),
    };
    let (nq, nkv) = (c.heads * c.head_dim, c.heads_kv * c.head_dim);
    let ops = vec![
        Op::Embed {
            table: table(q, nq),
        }
        .to(0),
        Op::Embed {
            table: table(k, nkv),
        }
        .to(1),
        Op::Embed {
            table: table(v, nkv),
        }
        .to(2),
        Op::KvWrite {
            k: 1,
            v: 2,
            cache: LAYER,
        }
        .without_result(),
        Op::Attention {
            q: 0,
            cache: LAYER,
            scale: 0.37,
        }
        .to(3),
    ];
    let slots = [nq, nkv, nkv, nq]
        .map(|width| ValueShape {
            width,
            rows: RowSet::All,
        })
        .to_vec();
    let kv = kv_shape(c);
    let rope = Rope {
        frequencies: Vec::new(),
        magnitude: 1.0,
        pairing: Pairing::Norm,
    };
    let program = Program {
        ops,
        slots,
        ropes: vec![rope],
        caches: vec![kv],
        output: 3,
    };
    Executor::new(
        c.isa,
        program,
        Vec::new(),
        Pool::new(c.threads).expect("threads"),
    )
}

const LAYER: CacheLayer = CacheLayer { group: 0, layer: 1 };

fn kv_shape(c: Case) -> KvShape {
    KvShape {
        n_layer: 2,
        n_head_kv: c.heads_kv,
        head_dim: c.head_dim,
        ty: c.ty,
    }
}

/// All outputs, the first `prompt` tokens in batches of `batch`, the rest one by one as generated
/// tokens.
fn run(
    c: Case,
    data: &(Vec<f32>, Vec<f32>, Vec<f32>),
    n: usize,
    prompt: usize,
    batch: usize,
    table: &[u32],
) -> Vec<f32> {
    let mut executor = executor(c, &data.0, &data.1, &data.2, n);
    let mut kv = KvStore::new(&[kv_shape(c)], table.len() + 3).expect("memory");
    let mut all = Vec::new();
    let mut at = 0;
    while at < n {
        let (role, len) = if at < prompt {
            (Role::Prompt, batch.min(prompt - at))
        } else {
            (Role::Generated, 1)
        };
        let tokens: Vec<u32> = (at as u32..(at + len) as u32).collect();
        let seqs = [Sequence {
            tokens: &tokens,
            start: at,
            tables: &[table],
            wanted: 0..len,
        }];
        all.extend_from_slice(executor.step(
            &Step {
                role,
                seqs: &seqs,
                input: &[],
            },
            &mut kv,
            None,
        ));
        at += len;
    }
    all
}

fn data(c: Case, n: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut rng = Rng(3);
    let mut make = |heads: usize| -> Vec<f32> {
        let mut x = rng.floats(n * heads * c.head_dim);
        if c.ty == KvType::Q8_0 {
            // 64ths, with the largest code in every group: what bytes and their scale hold
            let code = |(i, v): (usize, &mut f32)| {
                *v = if i % 32 == 0 {
                    127.0
                } else {
                    (127.0 * *v).round()
                } / 64.0
            };
            x.iter_mut().enumerate().for_each(code);
        } else {
            // values that all other types hold, so that they see the same numbers
            x.iter_mut()
                .for_each(|v| *v = half::bf16::from_f32(2.0 * *v).to_f32());
        }
        x
    };
    (make(c.heads), make(c.heads_kv), make(c.heads_kv))
}

fn naive(c: Case, (q, k, v): &(Vec<f32>, Vec<f32>, Vec<f32>), t: usize, h: usize) -> Vec<f64> {
    let d = c.head_dim;
    let hk = h / (c.heads / c.heads_kv);
    let row = |x: &[f32], heads: usize, t: usize, h: usize| -> Vec<f64> {
        x[(t * heads + h) * d..(t * heads + h + 1) * d]
            .iter()
            .map(|v| f64::from(*v))
            .collect()
    };
    let q = row(q, c.heads, t, h);
    let scores: Vec<f64> = (0..=t)
        .map(|p| {
            row(k, c.heads_kv, p, hk)
                .iter()
                .zip(&q)
                .map(|(a, b)| a * b)
                .sum::<f64>()
                * f64::from(0.37f32)
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (p, w) in weights.iter().enumerate() {
        for (o, x) in out.iter_mut().zip(row(v, c.heads_kv, p, hk)) {
            *o += w / total * x;
        }
    }
    out
}

fn cases(threads: usize) -> Vec<Case> {
    let mut all = Vec::new();
    for isa in Isa::available() {
        for (heads, heads_kv, head_dim) in [
            (4, 2, 64),
            (3, 1, 20),
            (14, 1, 10),
            (2, 2, 6),
            (16, 8, 128),
            (1, 1, 258),
        ] {
            for ty in KvType::ALL.into_iter().filter(|ty| ty.takes(head_dim)) {
                all.push(Case {
                    isa,
                    heads,
                    heads_kv,
                    head_dim,
                    ty,
                    threads,
                });
            }
        }
    }
    all
}

fn identity(n: usize) -> Vec<u32> {
    (0..n.div_ceil(16) as u32).collect()
}

#[test]
fn matches_a_naive_softmax() {
    for c in cases(2) {
        let n = 40;
        let data = data(c, n);
        for prompt in [0, 17, n] {
            let y = run(c, &data, n, prompt, 512, &identity(n));
            for t in 0..n {
                for h in 0..c.heads {
                    let expected = naive(c, &data, t, h);
                    let got = &y[(t * c.heads + h) * c.head_dim..][..c.head_dim];
                    for (e, g) in expected.iter().zip(got) {
                        // scores reach |q||k| <= 4 d in magnitude: their rounding, (d + 4) eps 4 d * 0.37, moves every
                        // weight by that much relatively; values are at most 2
                        let d = c.head_dim as f64;
                        let bound =
                            2.0 * f64::from(f32::EPSILON) * (1.5 * d * (d.sqrt() + 4.0) + 64.0);
                        // the matrix unit rounds weights and values, of 1.15 on average, to 8 bits,
                        // and scores to 16
                        let rounds = c.isa.prompt_rounding().attention > 0.0;
                        let unit = rounds && t < prompt && c.head_dim.is_multiple_of(32);
                        let bf16 = f64::from(2f32.powi(-9));
                        let scores = 1.33 * 0.37 * bf16 * bf16 * (2.0 * d).sqrt();
                        let bound = bound
                            + if unit {
                                5.0 * (scores + 2.0 * bf16)
                            } else {
                                0.0
                            };
                        assert!(
                            (e - f64::from(*g)).abs() <= bound,
                            "{} t {t} h {h}: {e} {g} {bound:e}",
                            c.isa
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn pages_batches_and_threads_do_not_change_a_bit() {
    for c in cases(1) {
        let n = 70;
        let data = data(c, n);
        let prompt = 45;
        let expected = run(c, &data, n, prompt, 512, &identity(n));
        // pages in another order, with gaps
        let shuffled = [6, 0, 3, 7, 1];
        assert!(
            run(c, &data, n, prompt, 512, &shuffled) == expected,
            "{}: page order matters",
            c.isa
        );
        for batch in [1, 7, 16] {
            assert!(
                run(c, &data, n, prompt, batch, &identity(n)) == expected,
                "{}: batch {batch} matters",
                c.isa
            );
        }
        for threads in [2, 3] {
            let c = Case { threads, ..c };
            assert!(
                run(c, &data, n, prompt, 512, &identity(n)) == expected,
                "{}: {threads} threads matter",
                c.isa
            );
        }
    }
}

#[test]
fn long_contexts_are_merged_from_pieces() {
    for isa in Isa::available() {
        let c = Case {
            isa,
            heads: 2,
            heads_kv: 1,
            head_dim: 16,
            ty: KvType::F32,
            threads: 2,
        };
        let n = 1100;
        let data = data(c, n);
        let y = run(c, &data, n, 1020, 512, &identity(n));
        for t in [511, 512, 1019, 1020, 1023, 1024, 1025, 1099] {
            let expected = naive(c, &data, t, 1);
            let got = &y[(t * 2 + 1) * 16..][..16];
            for (e, g) in expected.iter().zip(got) {
                assert!((e - f64::from(*g)).abs() < 2e-5, "{isa} t {t}: {e} {g}");
            }
        }
        let one = run(Case { threads: 1, ..c }, &data, n, 1020, 64, &identity(n));
        assert!(one == y, "{isa}: threads or batches change a long context");
    }
}

#[test]
fn copied_pages_hold_the_same_keys_and_values() {
    let c = Case {
        isa: Isa::best(),
        heads: 4,
        heads_kv: 2,
        head_dim: 16,
        ty: KvType::F16,
        threads: 1,
    };
    let data = data(c, 20);
    let expected = run(c, &data, 20, 20, 512, &[0, 1]);
    let mut executor = executor(c, &data.0, &data.1, &data.2, 20);
    let mut kv = KvStore::new(&[kv_shape(c)], 4).expect("memory");
    let tokens: Vec<u32> = (0..20).collect();
    let seqs = [Sequence {
        tokens: &tokens[..18],
        start: 0,
        tables: &[&[0, 1]],
        wanted: 0..0,
    }];
    executor.step(
        &Step {
            role: Role::Prompt,
            seqs: &seqs,
            input: &[],
        },
        &mut kv,
        None,
    );
    kv.copy_page(0, 1, 3);
    // a second sequence writes over the original's last page; the copy must not notice
    let seqs = [Sequence {
        tokens: &tokens[5..7],
        start: 16,
        tables: &[&[0, 1]],
        wanted: 0..0,
    }];
    executor.step(
        &Step {
            role: Role::Prompt,
            seqs: &seqs,
            input: &[],
        },
        &mut kv,
        None,
    );
    let seqs = [Sequence {
        tokens: &tokens[18..],
        start: 18,
        tables: &[&[0, 3]],
        wanted: 0..2,
    }];
    let y = executor.step(
        &Step {
            role: Role::Prompt,
            seqs: &seqs,
            input: &[],
        },
        &mut kv,
        None,
    );
    assert!(y == &expected[18 * 64..], "a copied page differs");
}
