//! Paged attention against a naive f64 softmax; pages in any order, prompts in any pieces, any
//! number of threads: always the same bits.

use crate::common::{Rng, f32_bytes};
use octavo_kernels::{
    CacheLayer, Executor, Isa, KvShape, KvStore, KvType, Matrix, Op, Pairing, Pool, Program, Role,
    Rope, RowSet, RowTable, Sequence, Step, ValueShape,
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

/// Tokens look up q, k and v in tables and attend. A matrix unit attends only where it multiplies
/// quantized weights too: there is a matrix of them, which no operation uses.
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
            scale: SCALE,
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
    let mut pool = Pool::new(c.threads).expect("threads");
    let raw = Arc::new(vec![0; 64 * 64 / 32 * 34]);
    let matrix = Matrix::new(c.isa, (TensorType::Q8_0, 64, 64), raw, true, &mut pool);
    Executor::new(c.isa, program, vec![matrix.expect("a matrix")], pool)
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
    run_together(c, data, n, (prompt, batch), 1, table)
}

/// As [`run`], with so many generated tokens in a step.
fn run_together(
    c: Case,
    data: &(Vec<f32>, Vec<f32>, Vec<f32>),
    n: usize,
    (prompt, batch): (usize, usize),
    together: usize,
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
            (Role::Generated, together.min(n - at))
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

/// What multiplies the scores.
const SCALE: f32 = 0.37;
/// Half of a step of f32 and of bf16: the most that rounding is off, relatively.
const HALF: f64 = 0.5 * f32::EPSILON as f64;
const HALF_BF16: f64 = 1.0 / 256.0;
/// `e^x` is right to two steps of f32 (see `simd::exp`).
const EXP: f64 = 2.0 * f32::EPSILON as f64;

/// Roundings of a sum of `k` terms, of half a step of the sum of magnitudes each: all of one sign
/// where they are few, else a random walk, and twice that leaves room for the longest of all walks.
fn roundings(k: usize) -> f64 {
    let k = k as f64;
    k.min(2.0 * k.sqrt()) * HALF
}

/// Head `h` of token `t`: exact values, and how far a correct kernel may be from each.
///
/// The result is a mean of values `v` by weights `w = e^(s - max) / sum`, so that weights off by a
/// part `e` each move it by `sum w |v - mean| e`: whatever is common to all weights falls out. A
/// weight is off by
/// - its score's error: the query's scaling, two sums of half of the head's products each (or of
///   the products that share a scale, then of those), and their sum, as parts of `scale sum |q k|`;
/// - that of the difference to the maximum, which is the sum of all differences to a maximum of the
///   time: half a step of it;
/// - that of `e^x`, once for itself and once for every later span of 128 positions, or piece of 512
///   where pieces are merged, whose maximum is larger.
///
/// Besides, weighted values and weights are summed over positions, with a product for every span.
/// The last step multiplies with an inverse, which is rounded too.
///
/// The matrix unit takes queries and keys as two bf16 each: what is below the second is lost of
/// either, and so is the product of both second ones, each a rounding of bf16 squared. It adds
/// three products for one. Weights are rounded to bf16 where they meet values, not where they are
/// summed up. The values of these tests are bf16 themselves.
fn exact(
    c: Case,
    (q, k, v): &(Vec<f32>, Vec<f32>, Vec<f32>),
    t: usize,
    h: usize,
    unit: bool,
) -> Vec<(f64, f64)> {
    let d = c.head_dim;
    let hk = h / (c.heads / c.heads_kv);
    let row = |x: &[f32], heads: usize, t: usize, h: usize| -> Vec<f64> {
        let at = (t * heads + h) * d;
        x[at..at + d].iter().map(|v| f64::from(*v)).collect()
    };
    let (n, scale, query) = (t + 1, f64::from(SCALE), row(q, c.heads, t, h));
    let mut score_part = HALF + roundings(d / 2 + 1);
    if unit {
        score_part = HALF + roundings(3 * d) + 3.0 * HALF_BF16 * HALF_BF16;
    }
    let scores: Vec<(f64, f64)> = (0..n)
        .map(|p| {
            let keys = row(k, c.heads_kv, p, hk);
            let products = keys.iter().zip(&query).map(|(a, b)| a * b * scale);
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            (products.sum(), score_part * magnitude)
        })
        .collect();
    let max = scores.iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|(s, _)| (s - max).exp()).sum();
    // spans and pieces end at fixed positions
    let joins = n.div_ceil(128) + n / 512;
    let weights: Vec<(f64, f64)> = scores
        .iter()
        .map(|(s, error)| {
            let off = error + (max - s) * HALF + EXP * joins as f64;
            ((s - max).exp() / total, off)
        })
        .collect();
    let values: Vec<Vec<f64>> = (0..n).map(|p| row(v, c.heads_kv, p, hk)).collect();
    let sums = roundings(n + joins);
    let narrow = if unit { HALF_BF16 } else { 0.0 };
    (0..d)
        .map(|i| {
            let terms = || {
                weights
                    .iter()
                    .zip(&values)
                    .map(|((w, off), v)| (w, off, v[i]))
            };
            let mean: f64 = terms().map(|(w, _, v)| w * v).sum();
            let of_weights: f64 = terms().map(|(w, off, v)| w * off * (v - mean).abs()).sum();
            let magnitude: f64 = terms().map(|(w, _, v)| w * v.abs()).sum();
            let of_sums = (sums + narrow) * magnitude + (sums + 2.0 * HALF) * mean.abs();
            (mean, of_weights + of_sums)
        })
        .collect()
}

/// Holds a head of a token against its exact values; returns the largest part of a bound.
fn hold(c: Case, exact: &[(f64, f64)], got: &[f32], what: &str) -> f64 {
    let mut worst = 0.0f64;
    for ((exact, bound), got) in exact.iter().zip(got) {
        let error = (exact - f64::from(*got)).abs();
        assert!(
            error <= *bound,
            "{} {what}: expected {exact}, got {got}: {error:e} > {bound:e}",
            c.isa
        );
        worst = worst.max(error / bound);
    }
    worst
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
    let mut worst = [0.0f64; 2];
    for c in cases(2) {
        let n = 40;
        let data = data(c, n);
        let has_unit = c.isa.prompt_rounding().attention > 0.0 && c.head_dim.is_multiple_of(32);
        for prompt in [0, 17, n] {
            let y = run(c, &data, n, prompt, 512, &identity(n));
            for t in 0..n {
                let unit = has_unit && t < prompt;
                for h in 0..c.heads {
                    let exact = exact(c, &data, t, h, unit);
                    let got = &y[(t * c.heads + h) * c.head_dim..][..c.head_dim];
                    let what = format!("{:?} d {} t {t} h {h}", c.ty, c.head_dim);
                    let part = hold(c, &exact, got, &what);
                    worst[usize::from(unit)] = worst[usize::from(unit)].max(part);
                }
            }
        }
    }
    // measured: 0.35 and 0.52
    let [vectors, unit] = worst;
    if Isa::available()
        .iter()
        .any(|isa| isa.prompt_rounding().attention > 0.0)
    {
        assert!(
            unit > 0.05,
            "{unit}: what rounds to bf16 is not as near as vectors"
        );
    }
    println!("worst part of a bound: {vectors:.3} of vectors, {unit:.3} of a matrix unit");
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
        // measured: 0.034 of the bound at most, for few positions have weights that count, and the
        // bound counts the roundings of all
        for t in [511, 512, 1019, 1020, 1023, 1024, 1025, 1099] {
            let exact = exact(c, &data, t, 1, false);
            let part = hold(c, &exact, &y[(t * 2 + 1) * 16..][..16], &format!("t {t}"));
            println!("{isa} t {t}: {part:.3} of the bound");
        }
        let one = run(Case { threads: 1, ..c }, &data, n, 1020, 64, &identity(n));
        assert!(one == y, "{isa}: threads or batches change a long context");
        // rows of two pieces beside rows of three
        for threads in [1, 2, 3] {
            let c = Case { threads, ..c };
            let together = run_together(c, &data, n, (1020, 512), 7, &identity(n));
            assert!(
                together == y,
                "{isa}: rows beside others differ, {threads} threads"
            );
        }
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
