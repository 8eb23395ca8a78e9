//! Benchmarks of each kernel, as a percentage of the machine's peak: `cargo bench -p
//! octavo-kernels`. Arguments select benchmarks by name, such as `cargo bench -p octavo-kernels --
//! avx512/prompt/Q4_K`; `OCTAVO_KERNELS_CSV=FILE` appends the results to a file.
//!
//! Packing (done once, at load) and decode products are compared with the read bandwidth, prefill
//! products and attention with the peak of the vector or matrix unit, both measured first with the
//! same threads. Elementwise operations work in the caches and have no limit.

#[allow(dead_code)] // tests use the rest
#[path = "../tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Rng, embed, program};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use octavo_kernels::{
    Activation, CacheLayer, Executor, Isa, KvShape, KvStore, KvType, Matrix, Op, Pairing, Phase,
    Pool, Program, Rope, RowSet, Scores, Step, StepSequence, ValueShape,
    probe::{flops_peak, read_bandwidth},
};
use octavo_quant::{TensorType as T, quantize};

/// Bytes read per decode token: more than caches hold.
const BYTES: usize = 256 << 20;
/// Prompt length in tokens.
const TOKENS: usize = 512;
/// Sliding window of decode attention in positions.
const WINDOW: usize = 512;
/// Number of query heads.
const ATTENDING_HEADS: usize = 16;

/// Limit to compare results with: its name, and its value in 1e9 per second.
#[derive(Clone, Copy)]
struct Limit(&'static str, f64);

struct Bench<'a> {
    group: BenchmarkGroup<'a, WallTime>,
    isa: Isa,
    threads: usize,
}

impl Bench<'_> {
    /// Whether the command line selects any benchmark among `names`. Preparing a benchmark can
    /// take longer than running it.
    fn selects(&self, names: &[String]) -> bool {
        let mut words = std::env::args()
            .skip(1)
            .filter(|word| !word.starts_with('-'));
        let Some(word) = words.next() else {
            return true;
        };
        let id = |name| format!("{}/{name}", self.isa);
        names.iter().any(|name| id(name).contains(&word))
    }

    /// Times `run`, which does `work` (bytes or floating-point operations), against a limit if
    /// there is one.
    fn run(&mut self, name: &str, work: &Throughput, limit: Option<Limit>, mut run: impl FnMut()) {
        let samples = RefCell::new(Vec::new());
        self.group.throughput(work.clone());
        self.group.bench_function(name, |b| {
            b.iter_custom(|n| {
                let start = Instant::now();
                (0..n).for_each(|_| run());
                let took = start.elapsed();
                samples.borrow_mut().push(took.as_secs_f64() / n as f64);
                took
            });
        });
        let mut samples = samples.into_inner();
        samples.sort_by(f64::total_cmp);
        let Some(median) = samples.get(samples.len() / 2) else {
            return;
        }; // not among the names asked for
        let (Throughput::Bytes(amount) | Throughput::Elements(amount)) = *work else {
            unreachable!("one of both")
        };
        let rate = amount as f64 / median / 1e9;
        let unit = if matches!(work, Throughput::Bytes(_)) {
            "GB/s"
        } else {
            "GFLOP/s"
        };
        let part = limit.map_or(String::new(), |l| format!("{:.1}", 100.0 * rate / l.1));
        let of = limit.map_or(String::new(), |l| {
            format!(" = {part} % of {:.1} {unit} {}", l.1, l.0)
        });
        println!("{}/{name}: {rate:.1} {unit}{of}", self.isa);
        if let Some(path) = std::env::var_os("OCTAVO_KERNELS_CSV") {
            let mut file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .expect("OCTAVO_KERNELS_CSV opens");
            let line = format!(
                "{},{},{name},{rate:.2},{unit},{part}",
                self.isa, self.threads
            );
            writeln!(file, "{line}").expect("OCTAVO_KERNELS_CSV is written");
        }
    }
}

/// Runs the program on `m` tokens from position `start` on.
fn step(executor: &mut Executor, store: &mut KvStore, phase: Phase, start: usize, m: usize) {
    let table: Vec<u32> = (0..(start + m).div_ceil(16) as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    let seqs = [StepSequence {
        tokens: &tokens,
        start,
        tables: &[&table],
        outputs: 0..m,
        ..StepSequence::default()
    }];
    executor.step(
        &Step {
            phase,
            seqs: &seqs,
            input: &[],
        },
        store,
        None,
    );
}

/// Returns a closure that runs the same step on each call.
fn repeat(
    mut executor: Executor,
    mut store: KvStore,
    phase: Phase,
    start: usize,
    m: usize,
) -> impl FnMut() {
    move || step(&mut executor, &mut store, phase, start, m)
}

fn no_cache(m: usize) -> KvStore {
    KvStore::new(&[common::KV], m.div_ceil(16)).expect("memory")
}

/// Quantizes random values: random bits would give denormal numbers, which slow vectors down.
fn weights(ty: T, n: usize) -> Vec<u8> {
    let mut some = Vec::new();
    // the smallest types need an importance of each column
    let importance = vec![1.0; 1 << 14];
    quantize(
        ty,
        &Rng(1).floats(1 << 14),
        1 << 14,
        Some(&importance),
        &mut some,
    )
    .expect("whole blocks of finite values");
    some.iter()
        .copied()
        .cycle()
        .take(n / ty.block_len() * ty.block_bytes())
        .collect()
}

fn products(bench: &mut Bench<'_>, read: Limit, flops: Limit) {
    for ty in octavo_kernels::packed_types() {
        let rows = BYTES / ty.block_bytes() * ty.block_len() / 4096;
        for (phase, m, cols, rows) in [
            (Phase::Decode, 1, 4096, rows),
            (Phase::Prefill, TOKENS, 1024, 2048),
        ] {
            let names = match phase {
                Phase::Decode => vec![format!("pack/{ty}"), format!("generated/{ty}")],
                Phase::Prefill => vec![format!("prompt/{ty}")],
            };
            if !bench.selects(&names) {
                continue;
            }
            let raw = weights(ty, rows * cols);
            let bytes = raw.len() as u64;
            let mut pool = Pool::new(bench.threads).expect("threads");
            let raw = Arc::new(raw);
            let isa = bench.isa;
            let mut pack = || {
                Matrix::new(isa, (ty, rows, cols), raw.clone(), true, &mut pool).expect("a matrix")
            };
            if phase == Phase::Decode {
                let name = format!("pack/{ty}");
                bench.run(&name, &Throughput::Bytes(bytes), Some(read), || {
                    std::hint::black_box(pack());
                });
            }
            let matrix = pack();
            let x = Rng(2).floats(m * cols);
            let ops = vec![embed(m, cols, &x, 0), Op::MatMul { x: 0, w: 0 }.to(1)];
            let program = program(ops, &[cols, rows], common::KV);
            let executor = Executor::new(bench.isa, program, vec![matrix], pool);
            let run = repeat(executor, no_cache(m), phase, 0, m);
            match phase {
                Phase::Decode => {
                    bench.run(
                        &format!("generated/{ty}"),
                        &Throughput::Bytes(bytes),
                        Some(read),
                        run,
                    );
                }
                Phase::Prefill => {
                    let work = Throughput::Elements((2 * m * rows * cols) as u64);
                    bench.run(&format!("prompt/{ty}"), &work, Some(flops), run);
                }
            }
        }
    }
}

/// Rows of a step that verifies drafts, or generates for several texts.
const FEW_ROWS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// Benchmarks products of a few rows: a weight is read once for all of them, so that the limit is
/// that of one row.
fn few_rows(bench: &mut Bench<'_>, read: Limit) {
    let cols = 4096;
    for ty in octavo_kernels::packed_types() {
        let name = |m: usize| format!("rows/{ty}/{m}");
        if !bench.selects(&FEW_ROWS.map(name)) {
            continue;
        }
        let rows = BYTES / ty.block_bytes() * ty.block_len() / cols;
        let raw = weights(ty, rows * cols);
        let bytes = Throughput::Bytes(raw.len() as u64);
        let raw = Arc::new(raw);
        for m in FEW_ROWS {
            let mut pool = Pool::new(bench.threads).expect("threads");
            let shape = (ty, rows, cols);
            let matrix =
                Matrix::new(bench.isa, shape, raw.clone(), true, &mut pool).expect("a matrix");
            let x = Rng(2).floats(m * cols);
            let ops = vec![embed(m, cols, &x, 0), Op::MatMul { x: 0, w: 0 }.to(1)];
            let program = program(ops, &[cols, rows], common::KV);
            let executor = Executor::new(bench.isa, program, vec![matrix], pool);
            let run = repeat(executor, no_cache(m), Phase::Decode, 0, m);
            bench.run(&name(m), &bytes, Some(read), run);
        }
    }
}

/// Experts of a mixture, and experts per token.
const EXPERTS: usize = 128;
const USED: usize = 8;

/// Benchmarks expert products: in decode, a token with all experts one after the other, so that
/// caches hold none; and in prefill.
fn experts(bench: &mut Bench<'_>, read: Limit, flops: Limit) {
    let (n, cols) = (768, 2048);
    for ty in [T::Q4_K, T::Q8_0] {
        for (phase, m, kind) in [
            (Phase::Decode, 1, "generated"),
            (Phase::Prefill, TOKENS, "prompt"),
        ] {
            let name = format!("{kind}/experts/{ty}");
            if !bench.selects(std::slice::from_ref(&name)) {
                continue;
            }
            let turns = if m == 1 { EXPERTS / USED } else { 1 };
            let raw = weights(ty, EXPERTS * n * cols);
            let bytes = raw.len() as u64;
            let mut pool = Pool::new(bench.threads).expect("threads");
            let shape = (ty, EXPERTS * n, cols);
            let matrix =
                Matrix::of_experts(bench.isa, shape, EXPERTS, Arc::new(raw), true, &mut pool)
                    .expect("a matrix");
            let x = Rng(2).floats(m * cols);
            let mut ops = vec![embed(m, cols, &x, 0)];
            for turn in 0..turns {
                // consecutive experts are far apart, and all occur equally often
                let id = |i: usize| ((i + turn * USED) * 45 % EXPERTS) as f32;
                let ids: Vec<f32> = (0..m * USED).map(id).collect();
                ops.push(embed(m, USED, &ids, 1));
                let product = Op::ExpertMatMul {
                    x: 0,
                    w: 0,
                    ids: 1,
                    experts: EXPERTS,
                };
                ops.push(product.to(2));
            }
            let program = program(ops, &[cols, USED, USED * n], common::KV);
            let executor = Executor::new(bench.isa, program, vec![matrix], pool);
            let run = repeat(executor, no_cache(m), phase, 0, m);
            match phase {
                Phase::Decode => {
                    let work = Throughput::Bytes(bytes);
                    bench.run(&name, &work, Some(read), run);
                }
                Phase::Prefill => {
                    let work = Throughput::Elements((2 * m * USED * n * cols) as u64);
                    bench.run(&name, &work, Some(flops), run);
                }
            }
        }
    }
}

fn attention(bench: &mut Bench<'_>, read: Limit, flops: Limit) {
    let (heads, heads_kv, d) = (ATTENDING_HEADS, 8, 128);
    for ty in KvType::ALL {
        let position = 2 * ty.bytes(heads_kv * d).expect("small");
        let deep = BYTES / (4096 * position);
        for (phase, start, m, layers, window) in [
            (Phase::Decode, 4095, 1, deep, None),
            (Phase::Decode, 4095, 1, deep, Some(WINDOW)),
            (Phase::Prefill, 0, TOKENS, 1, None),
        ] {
            let name = match (phase, window) {
                (Phase::Prefill, _) => format!("attend prompt/{ty}"),
                (Phase::Decode, None) => format!("attend 4096/{ty}"),
                (Phase::Decode, Some(window)) => format!("attend {window} of 4096/{ty}"),
            };
            if !bench.selects(std::slice::from_ref(&name)) {
                continue;
            }
            let scores = Scores {
                window,
                ..Scores::plain(0.09)
            };
            let kv = KvShape {
                n_layer: layers,
                n_head_kv: heads_kv,
                head_dim: d,
                types: ty.both(),
            };
            // pages never written would all map to one page of zeros
            let mut store = KvStore::new(&[kv], (start + m).div_ceil(16)).expect("memory");
            for at in (0..start).step_by(TOKENS) {
                step(
                    &mut attending(bench, kv, None),
                    &mut store,
                    Phase::Prefill,
                    at,
                    TOKENS.min(start - at),
                );
            }
            let run = repeat(attending(bench, kv, Some(scores)), store, phase, start, m);
            match phase {
                Phase::Decode => {
                    let bytes = layers * window.unwrap_or(start + m) * position;
                    bench.run(&name, &Throughput::Bytes(bytes as u64), Some(read), run);
                }
                Phase::Prefill => {
                    // scores and weighted sums, over half of the square (causal)
                    let flops_made = 2 * 2 * layers * heads * d * m * (m + 1) / 2;
                    let work = Throughput::Elements(flops_made as u64);
                    bench.run(&name, &work, Some(flops), run);
                }
            }
        }
    }
}

/// Creates an executor that writes keys and values of all layers, and attends to them if `scores`
/// is given.
fn attending(bench: &Bench<'_>, kv: KvShape, scores: Option<Scores>) -> Executor {
    let (q_width, kv_width) = (ATTENDING_HEADS * kv.head_dim, kv.n_head_kv * kv.head_dim);
    let x = Rng(3).floats(TOKENS * q_width);
    let mut pool = Pool::new(bench.threads).expect("threads");
    let mut ops = vec![
        embed(TOKENS, q_width, &x, 0),
        embed(TOKENS, kv_width, &x, 1),
    ];
    for layer in 0..kv.n_layer {
        let cache = CacheLayer { group: 0, layer };
        ops.push(Op::KvWrite { k: 1, v: 1, cache }.without_result());
        if let Some(scores) = scores {
            let attend = Op::Attention {
                q: 0,
                seen: None,
                cache,
                scores,
                sinks: None,
            };
            ops.push(attend.to(2));
        }
    }
    // models with quantized weights have separate prefill attention kernels
    let raw = Arc::new(weights(T::Q8_0, 32 * 32));
    let matrix = Matrix::new(bench.isa, (T::Q8_0, 32, 32), raw, true, &mut pool).expect("a matrix");
    let program = program(ops, &[q_width, kv_width, q_width], kv);
    Executor::new(bench.isa, program, vec![matrix], pool)
}

fn elementwise(bench: &mut Bench<'_>) {
    let n = 4096;
    let x = Rng(4).floats(TOKENS * n);
    let ones: Arc<[f32]> = vec![1.0; n].into();
    // head size for RoPE
    let kv = KvShape {
        head_dim: 128,
        ..common::KV
    };
    let store = || KvStore::new(&[kv], TOKENS.div_ceil(16)).expect("memory");
    let cases = [
        (
            "rms_norm",
            2,
            Op::RmsNorm {
                x: 0,
                weight: ones,
                eps: 1e-6,
            }
            .to(1),
        ),
        (
            "rope",
            2,
            Op::Rope {
                x: 0,
                head_dim: 128,
                rope: 0,
            }
            .to(1),
        ),
        (
            "swiglu",
            3,
            Op::Gate {
                gate: 0,
                up: 0,
                act: Activation::Silu,
            }
            .to(1),
        ),
        ("add", 3, Op::Add { a: 0, b: 0 }.to(1)),
    ];
    for (name, moved, op) in cases {
        // many operations per embedding, so that it hardly counts
        let mut ops = vec![embed(TOKENS, n, &x, 0)];
        ops.extend(std::iter::repeat_n(op, 16));
        let rows = RowSet::All;
        let slots = vec![ValueShape { width: n, rows }; 2];
        let frequencies = (0..64).map(|i| 1e6f64.powf(-f64::from(i) / 64.0)).collect();
        let rope = Rope {
            frequencies,
            magnitude: 1.0,
            pairing: Pairing::Neox,
            axes: Vec::new(),
        };
        let program = Program {
            ops,
            slots,
            ropes: vec![rope],
            caches: vec![kv],
            states: vec![],
            output: 1,
            kept: None,
            embedding_input_width: 0,
            on_host: vec![],
        };
        let pool = Pool::new(bench.threads).expect("threads");
        let executor = Executor::new(bench.isa, program, Vec::new(), pool);
        let bytes = (16 * moved * TOKENS * n * 4) as u64;
        bench.run(
            name,
            &Throughput::Bytes(bytes),
            None,
            repeat(executor, store(), Phase::Prefill, 0, TOKENS),
        );
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for isa in Isa::available() {
        let mut pool = Pool::new(threads).expect("threads");
        let read = Limit("read", read_bandwidth(isa, &mut pool).expect("memory"));
        let flops = Limit("peak", flops_peak(isa, &mut pool));
        drop(pool);
        let mut bench = Bench {
            group: criterion.benchmark_group(isa.name()),
            isa,
            threads,
        };
        products(&mut bench, read, flops);
        few_rows(&mut bench, read);
        experts(&mut bench, read, flops);
        attention(&mut bench, read, flops);
        elementwise(&mut bench);
        bench.group.finish();
    }
    criterion.final_summary();
}
