//! Writing the cache, and attention over it.

use std::sync::Arc;

use half::{bf16, f16};
use octavo_kernels::cuda::params::{Attention, KvWrite, Paging};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Executor, HEAD_DIMS, Limits, Ptr, Setup, Source, launch};
use octavo_kernels::{
    CacheLayer, Instruction, Isa, KvShape, KvStore, KvType, Matrix, Op, Pool, Role, Scores,
    Sequence, Step,
};
use octavo_quant::TensorType;

use super::{Bench, Worst, device};
use crate::common::{Rng, embed, program, random_blocks};

/// A cache and the rows of one step.
#[derive(Clone)]
struct Scene {
    kv: KvType,
    dim: usize,
    heads: usize,
    heads_kv: usize,
    /// Positions before and with this step, of each sequence.
    lengths: Vec<usize>,
    /// Per position of all sequences: `[heads_kv][dim]`, as the cache rounds them.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    q: Vec<f32>,
    /// (sequence, position), or none for padding.
    rows: Vec<Option<(usize, usize)>>,
    cap: Option<f32>,
    window: Option<usize>,
    /// How many positions behind its own a row sees.
    after: usize,
    /// One for each head, or none.
    sinks: Vec<f32>,
}

/// Whole heads, as the cache stores them.
fn rounded(kv: KvType, mut x: Vec<f32>) -> Vec<f32> {
    match kv {
        KvType::F32 => {}
        KvType::F16 => x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        KvType::Bf16 => x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        KvType::Q8_0 => through(TensorType::Q8_0, &mut x),
        KvType::Q4_0 => through(TensorType::Q4_0, &mut x),
    }
    x
}

/// What is left of values as such a type holds them.
fn through(ty: TensorType, x: &mut [f32]) {
    let mut bytes = Vec::new();
    octavo_quant::quantize(ty, x, x.len(), None, &mut bytes).expect("whole blocks");
    octavo_quant::dequantize(ty, &bytes, x).expect("as many");
}

impl Scene {
    fn new(
        kv: KvType,
        dim: usize,
        (heads, heads_kv): (usize, usize),
        lengths: &[usize],
        new: usize,
    ) -> Scene {
        let mut rng = Rng((dim * heads + lengths.len()) as u64);
        let width = heads_kv * dim;
        let mut all = |scale: f32| -> Vec<Vec<f32>> {
            let mut scaled = |n: usize| rng.floats(n).into_iter().map(|x| scale * x).collect();
            lengths
                .iter()
                .map(|n| rounded(kv, scaled(n * width)))
                .collect()
        };
        let (k, v) = (all(3.0), all(1.0));
        let mut rows: Vec<Option<(usize, usize)>> = lengths
            .iter()
            .enumerate()
            .flat_map(|(s, n)| (n.saturating_sub(new)..*n).map(move |p| Some((s, p))))
            .collect();
        if new == 1 {
            rows.insert(rows.len() / 2, None);
        }
        let q = rng
            .floats(rows.len() * heads * dim)
            .into_iter()
            .map(|x| 2.0 * x)
            .collect();
        Scene {
            kv,
            dim,
            heads,
            heads_kv,
            lengths: lengths.to_vec(),
            k,
            v,
            q,
            rows,
            cap: None,
            window: None,
            after: 0,
            sinks: Vec::new(),
        }
    }

    /// The first position that one at `position` sees.
    fn first(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }

    /// The positions that one of a sequence sees.
    fn seen(&self, sequence: usize, position: usize) -> std::ops::Range<usize> {
        self.first(position)..(position + 1 + self.after).min(self.lengths[sequence])
    }

    /// Tables without the pages that none of the rows sees.
    fn without_passed(&self, pages: &[u32], max_pages: usize) -> Vec<u32> {
        let mut tables = pages.to_vec();
        for (s, table) in tables.chunks_exact_mut(max_pages).enumerate() {
            let of_sequence = self.rows.iter().flatten().filter(|row| row.0 == s);
            let first = of_sequence.map(|row| self.first(row.1)).min();
            let passed = first.map_or(max_pages, |first| first / 16);
            table[..passed].fill(u32::MAX);
        }
        tables
    }

    /// Writes the cache with the kernel under test, all positions of all sequences in one launch,
    /// to pages in an order that `seed` shuffles. Returns the parameters of attention.
    fn prepare(&self, bench: &mut Bench, seed: u64, splits: usize) -> Attention {
        let mut rng = Rng(seed);
        let width = self.heads_kv * self.dim;
        let max_pages = self
            .lengths
            .iter()
            .map(|n| n.div_ceil(16))
            .max()
            .unwrap_or(0)
            + 1;
        let n_pages = self.lengths.len() * max_pages + 3;
        let mut pages: Vec<u32> = (0..n_pages as u32).collect();
        (1..n_pages)
            .rev()
            .for_each(|i| pages.swap(i, rng.bits() as usize % (i + 1)));
        let pages = &pages[..self.lengths.len() * max_pages];
        let tables = bench.integers(pages);
        let page_bytes = self.kv.bytes(16 * width).expect("few");
        let (pages_k, pages_v) = (
            bench.alloc(n_pages * page_bytes),
            bench.alloc(n_pages * page_bytes),
        );
        let paging = |bench: &mut Bench, rows: &[Option<(usize, usize)>]| Paging {
            positions: bench.integers(
                &rows
                    .iter()
                    .map(|r| r.map_or(-1i32, |r| r.1 as i32) as u32)
                    .collect::<Vec<_>>(),
            ),
            sequences: bench.integers(
                &rows
                    .iter()
                    .map(|r| r.map_or(0, |r| r.0 as u32))
                    .collect::<Vec<_>>(),
            ),
            tables,
            missing: bench.integers(&[0]),
            max_pages: max_pages as u32,
            rows: rows.len() as u32,
            n_pages: n_pages as u32,
            first_row: 0,
        };
        let mut all: Vec<Option<(usize, usize)>> = self
            .lengths
            .iter()
            .enumerate()
            .flat_map(|(s, n)| (0..*n).map(move |p| Some((s, p))))
            .collect();
        all.insert(1, None);
        let padding = vec![f32::NAN; width];
        let values = |store: &[Vec<f32>]| -> Vec<f32> {
            all.iter()
                .flat_map(|r| r.map_or(&padding[..], |(s, p)| &store[s][p * width..][..width]))
                .copied()
                .collect()
        };
        let (k, v) = (
            bench.floats(&values(&self.k)),
            bench.floats(&values(&self.v)),
        );
        let (heads, head_dim) = (self.heads_kv as u32, self.dim as u32);
        let write = KvWrite {
            k,
            v,
            pages_k,
            pages_v,
            paging: paging(bench, &all),
            heads,
            head_dim,
        };
        bench.run(&launch::kv_write(self.kv, &write));
        let states = self.rows.len() * self.heads * splits;
        let sinks = match self.sinks.is_empty() {
            true => Ptr::NULL,
            false => bench.floats(&self.sinks),
        };
        Attention {
            q: bench.floats(&self.q),
            pages_k,
            pages_v,
            sums: bench.alloc(4 * states * self.dim),
            states: bench.alloc(8 * states),
            out: bench.alloc(4 * self.q.len()),
            integers: Ptr::NULL,
            tiles: Ptr::NULL,
            sinks,
            firsts: Ptr::NULL,
            ends: bench.integers(
                &self
                    .rows
                    .iter()
                    .map(|r| r.map_or(0, |r| self.lengths[r.0] as u32))
                    .collect::<Vec<_>>(),
            ),
            paging: Paging {
                tables: bench.integers(&self.without_passed(pages, max_pages)),
                ..paging(bench, &self.rows)
            },
            heads: self.heads as u32,
            heads_kv: self.heads_kv as u32,
            splits: splits as u32,
            scale: 1.0 / (self.dim as f32).sqrt(),
            cap: self.cap.unwrap_or(0.0),
            window: self.window.unwrap_or(0) as u32,
            after: self.after as u32,
            unused: 0,
        }
    }

    fn attend(&self, bench: &mut Bench, seed: u64, splits: usize) -> Vec<f32> {
        let p = self.prepare(bench, seed, splits);
        launch::attend(self.kv, self.dim, &p)
            .iter()
            .for_each(|launch| bench.run(launch));
        assert_eq!(bench.read_integers(p.paging.missing, 1), [0], "pages read");
        bench.read(p.out, self.q.len())
    }

    fn attend_prompt(&self, bench: &mut Bench, seed: u64) -> Vec<f32> {
        let p = self.prepare(bench, seed, 1);
        let at_most = launch::TILE_QUERIES / (self.heads / self.heads_kv);
        let mut tiles = Vec::new();
        let mut first = 0;
        while first < self.rows.len() {
            let sequence = |r: usize| self.rows[r].map(|r| r.0);
            let n = (first..self.rows.len())
                .take_while(|r| sequence(*r) == sequence(first))
                .count()
                .min(at_most);
            tiles.extend([first as u32, n as u32]);
            first += n;
        }
        let p = Attention {
            tiles: bench.integers(&tiles),
            ..p
        };
        bench.run(&launch::attend_prompt(self.dim, &p, tiles.len() as u32 / 2));
        assert_eq!(bench.read_integers(p.paging.missing, 1), [0], "pages read");
        bench.read(p.out, self.q.len())
    }

    /// In f64. A score is off by the roundings of its sum, and of its query where that is two
    /// halves; a weight by as much relatively, twice because the sum of weights has the same; and
    /// weights themselves may be halves. A cap passes errors on and adds that of `tanhf`, two units
    /// in the last place, and two roundings of a half. A sink is a score of a value that is zero.
    fn check(&self, out: &[f32], prompt: bool) {
        let eps = f64::from(f32::EPSILON);
        let scale = f64::from(1.0 / (self.dim as f32).sqrt());
        let mut worst = Worst::default();
        for (r, row) in self.rows.iter().enumerate() {
            for h in 0..self.heads {
                let out = &out[(r * self.heads + h) * self.dim..][..self.dim];
                let Some((s, position)) = *row else {
                    assert!(out.iter().all(|x| *x == 0.0), "padding is zero: {out:?}");
                    continue;
                };
                let q = &self.q[(r * self.heads + h) * self.dim..][..self.dim];
                let at =
                    |p: usize| (p * self.heads_kv + h / (self.heads / self.heads_kv)) * self.dim;
                let (mut scores, mut off) = (Vec::new(), 0.0f64);
                let seen = self.seen(s, position);
                for p in seen.clone() {
                    let products = q
                        .iter()
                        .zip(&self.k[s][at(p)..])
                        .map(|(q, k)| f64::from(*q) * scale * f64::from(*k));
                    let (sum, size) =
                        products.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
                    let capped = self.cap.map(f64::from).map(|cap| cap * (sum / cap).tanh());
                    scores.push(capped.unwrap_or(sum));
                    let mut error =
                        size * eps * (2.0 * (self.dim as f64).sqrt() + 4.0) + sum.abs() * eps;
                    if prompt {
                        let keys: f64 = self.k[s][at(p)..][..self.dim]
                            .iter()
                            .map(|k| f64::from(k.abs()))
                            .sum();
                        error += size * 2f64.powi(-22) + keys * 2f64.powi(-25);
                    }
                    error += capped.map_or(0.0, |capped| capped.abs() * 3.0 * eps);
                    off = off.max(error);
                }
                let sink = self.sinks.get(h).map(|sink| f64::from(*sink));
                let all = scores.iter().copied().chain(sink);
                let top = all.clone().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = all.map(|s| (s - top).exp()).sum();
                let roundings = 2.0 * (weights.len() as f64).sqrt() + 24.0;
                for (d, got) in out.iter().enumerate() {
                    let values = weights
                        .iter()
                        .enumerate()
                        .map(|(p, w)| w / total * f64::from(self.v[s][at(seen.start + p) + d]));
                    let (value, size) =
                        values.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
                    let mut bound = size * (2.0 * off + roundings * eps);
                    if prompt {
                        bound +=
                            size * 2f64.powi(-11) + weights.len() as f64 / total * 2f64.powi(-25);
                    }
                    worst.see(
                        || format!("row {r}, head {h}, value {d}"),
                        value,
                        *got,
                        bound + 1e-30,
                    );
                }
            }
        }
        worst.check(&format!(
            "attention of {:?}, heads of {}, prompt: {prompt}, window {:?}, {} after, cap {:?}, sinks {:?}",
            self.kv, self.dim, self.window, self.after, self.cap, self.sinks
        ));
    }
}

#[test]
fn attention_matches_f64_over_every_head_size_and_split() {
    let Some(mut bench) = device() else { return };
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        for (j, kv) in KvType::ALL
            .into_iter()
            .enumerate()
            .filter(|(_, kv)| kv.takes(dim))
        {
            for (n, heads) in [(2, 2), (4, 1), (10, 2), (3, 1)].into_iter().enumerate() {
                bench.0.schedule(Schedule::ALL[(i + j + n) % 3]);
                let lengths = [[1, 17, 100], [16, 15, 230], [33, 2, 64]][(i + n) % 3];
                let scene = Scene::new(kv, dim, heads, &lengths, 1);
                let splits = [1, 3, 16][(i + j + n) % 3];
                scene.check(&scene.attend(&mut bench, 5, splits), false);
                bench.0.clear();
            }
        }
    }
}

#[test]
fn prompts_attend_on_tensor_cores_and_without() {
    let Some(mut bench) = device() else { return };
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        for (n, (heads, heads_kv)) in [(1, 1), (4, 1), (10, 2)].into_iter().enumerate() {
            bench.0.schedule(Schedule::ALL[(i + n) % 3]);
            for (lengths, new) in [(&[40][..], 40), (&[70, 5, 130], 23)] {
                let scene = Scene::new(KvType::F16, dim, (heads, heads_kv), lengths, new);
                scene.check(&scene.attend(&mut bench, 9, 4), false);
                if launch::takes_prompt(KvType::F16, dim, heads / heads_kv) {
                    scene.check(&scene.attend_prompt(&mut bench, 9), true);
                }
                bench.0.clear();
            }
        }
    }
}

#[test]
fn attention_depends_on_no_page_order_and_no_neighbour() {
    let Some(mut bench) = device() else { return };
    let all = Scene::new(KvType::F16, 64, (4, 2), &[100, 49, 7], 3);
    let (out, prompt) = (
        all.attend(&mut bench, 1, 8),
        all.attend_prompt(&mut bench, 1),
    );
    for (seed, schedule) in [
        (2, Schedule::Forward),
        (3, Schedule::Backward),
        (4, Schedule::Random(9)),
    ] {
        bench.0.schedule(schedule);
        assert_eq!(
            all.attend(&mut bench, seed, 8),
            out,
            "pages in another order, {schedule:?}"
        );
        assert_eq!(
            all.attend_prompt(&mut bench, seed),
            prompt,
            "pages in another order, {schedule:?}"
        );
    }
    for s in 0..3 {
        let (width, first) = (4 * 64, 3 * s);
        let alone = Scene {
            lengths: vec![all.lengths[s]],
            k: vec![all.k[s].clone()],
            v: vec![all.v[s].clone()],
            q: all.q[first * width..(first + 3) * width].to_vec(),
            rows: all.rows[first..first + 3]
                .iter()
                .map(|r| r.map(|(_, p)| (0, p)))
                .collect(),
            ..Scene::new(KvType::F16, 64, (4, 2), &[1], 1)
        };
        assert_eq!(
            alone.attend(&mut bench, 7, 8),
            out[first * width..(first + 3) * width],
            "sequence {s} alone"
        );
        assert_eq!(
            alone.attend_prompt(&mut bench, 7),
            prompt[first * width..(first + 3) * width],
            "sequence {s} alone"
        );
    }
}

/// Windows, caps and sinks: alone and together.
const SCORES: [(Option<usize>, Option<f32>, bool); 9] = [
    (Some(1), None, false),
    (Some(16), None, false),
    (Some(17), None, false),
    (Some(100), None, false),
    (Some(1000), None, false),
    (None, Some(2.0), false),
    (None, None, true),
    (Some(100), Some(2.0), true),
    (Some(17), Some(30.0), true),
];

impl Scene {
    /// With some of [`SCORES`]; sinks lie below the scores, among them and above them.
    fn with(self, (window, cap, sinks): (Option<usize>, Option<f32>, bool)) -> Scene {
        let sink = |h: usize| [0.5, 4.0, -1.0, 9.0][h % 4];
        let heads = if sinks { self.heads } else { 0 };
        Scene {
            window,
            cap,
            sinks: (0..heads).map(sink).collect(),
            ..self
        }
    }
}

#[test]
fn windows_caps_and_sinks_match_f64() {
    let Some(mut bench) = device() else { return };
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        let types = KvType::ALL.into_iter().enumerate();
        for (j, kv) in types.filter(|(_, kv)| kv.takes(dim)) {
            for (n, scores) in SCORES.into_iter().enumerate() {
                // a sixth of all, another one for each size and type
                if !(i + j + n).is_multiple_of(6) {
                    continue;
                }
                bench.0.schedule(Schedule::ALL[(i + n) % 3]);
                let heads = [(2, 2), (4, 1), (10, 2), (3, 1)][(j + n) % 4];
                let lengths = [[1, 17, 100], [16, 15, 300], [33, 130, 64]][(i + n / 3) % 3];
                let splits = [1, 3, 16][(j + n / 3) % 3];
                let one = Scene::new(kv, dim, heads, &lengths, 1).with(scores);
                one.check(&one.attend(&mut bench, 5, splits), false);
                bench.0.clear();
                let some = Scene::new(kv, dim, heads, &[70, 5, 230], 23).with(scores);
                some.check(&some.attend(&mut bench, 9, splits), false);
                if launch::takes_prompt(kv, dim, heads.0 / heads.1) {
                    some.check(&some.attend_prompt(&mut bench, 9), true);
                }
                bench.0.clear();
            }
        }
    }
}

/// Positions behind a row's own: some, all, and more than there are.
#[test]
fn what_lies_behind_matches_f64() {
    let Some(mut bench) = device() else { return };
    let everything = i32::MAX as usize;
    for (n, (window, after)) in [
        (None, everything),
        (Some(13), 12),
        (Some(1), 0),
        (Some(2), 1),
        (Some(101), 100),
        (Some(1000), 999),
    ]
    .into_iter()
    .enumerate()
    {
        for (i, dim) in [8, 32, 64, 80, 128, 256].into_iter().enumerate() {
            bench.0.schedule(Schedule::ALL[(i + n) % 3]);
            let kv = KvType::ALL[(i + n) % KvType::ALL.len()];
            let kv = if kv.takes(dim) { kv } else { KvType::F16 };
            for kv in [kv, KvType::F16] {
                let heads = [(2, 2), (4, 1), (10, 2), (3, 1)][(i + n) % 4];
                let scene = Scene {
                    window,
                    after,
                    ..Scene::new(kv, dim, heads, &[70, 5, 130], usize::MAX)
                };
                scene.check(&scene.attend(&mut bench, 5, [1, 3, 16][n % 3]), false);
                if launch::takes_prompt(kv, dim, heads.0 / heads.1) {
                    scene.check(&scene.attend_prompt(&mut bench, 9), true);
                }
                bench.0.clear();
            }
        }
    }
}

/// A row beside others, whose windows begin elsewhere, and alone.
#[test]
fn windows_depend_on_no_neighbour() {
    let Some(mut bench) = device() else { return };
    for scores in SCORES {
        let (heads, dim, length) = (4, 64, 210);
        let all = Scene::new(KvType::F16, dim, (heads, 2), &[length], 100).with(scores);
        let (out, prompt) = (
            all.attend(&mut bench, 1, 8),
            all.attend_prompt(&mut bench, 1),
        );
        for rows in [0..1, 37..38, 60..75, 99..100] {
            let values = rows.start * heads * dim..rows.end * heads * dim;
            let some = Scene {
                q: all.q[values.clone()].to_vec(),
                rows: all.rows[rows.clone()].to_vec(),
                ..all.clone()
            };
            assert_eq!(
                some.attend(&mut bench, 7, 8),
                out[values.clone()],
                "{scores:?}, {rows:?}"
            );
            assert_eq!(
                some.attend_prompt(&mut bench, 7),
                prompt[values],
                "{scores:?}, {rows:?}, prompt"
            );
        }
        bench.0.clear();
    }
}

/// Attention of four heads and a product that reads it, so that generated tokens' attention leaves
/// integers: from tables of queries, keys and values, the last one by position.
fn attention_and_product(tokens: usize, scores: Scores, sinks: bool) -> Vec<Instruction> {
    let mut rng = Rng(23);
    let mut table =
        |width: usize, out: usize| embed(tokens, width, &rng.floats(tokens * width), out);
    let cache = CacheLayer { group: 0, layer: 0 };
    let (q, k) = (table(128, 0), table(64, 1));
    let Op::Embed { table } = table(64, 2).op else {
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
            cache,
            scores,
            sinks: sinks.then(|| vec![0.5, 2.0, -1.0, 1.0].into()),
        }
        .to(3),
        Op::MatMul { x: 3, w: 0 }.to(4),
    ]
}

/// What an executor passes to the kernels: programs on this device and on the CPU.
#[test]
fn programs_take_windows_caps_and_sinks() {
    const TOKENS: usize = 60;
    let kv = KvShape {
        n_layer: 1,
        n_head_kv: 2,
        head_dim: 32,
        ty: KvType::F16,
    };
    let widths = [128, 64, 64, 128, 64];
    let shape = (TensorType::Q8_0, 64, 128);
    let raw = Arc::new(random_blocks(&mut Rng(24), shape.0, 64 * 128));
    for (window, cap, sinks, causal, blocks) in [
        (None, None, false, true, false),
        (Some(5), None, false, true, false),
        (None, Some(0.5), false, true, false),
        (None, None, true, true, false),
        (Some(20), Some(0.5), true, true, false),
        (None, None, false, false, false),
        (Some(20), None, false, false, false),
        (None, None, false, false, true),
    ] {
        let Some(Bench(machine)) = device() else {
            return;
        };
        let scores = Scores {
            scale: 0.4,
            cap,
            window,
            causal,
            blocks,
        };
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
            wanted: TOKENS,
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
        let mut here = Executor::new(machine.boxed(), ops(), &[source], setup, &mut |_, _, _| {})
            .expect("a program that fits");
        let mut pool = Pool::new(1).expect("a thread");
        let matrix =
            Matrix::new(Isa::Scalar, shape, raw.clone(), true, &mut pool).expect("a matrix");
        let mut there = octavo_kernels::Executor::new(Isa::Scalar, ops(), vec![matrix], pool);
        let mut store = KvStore::new(&[kv], 4).expect("memory");
        let prompt = if causal { 50 } else { TOKENS };
        let steps = [(Role::Prompt, 0..prompt)]
            .into_iter()
            .chain((prompt..TOKENS).map(|at| (Role::Generated, at..at + 1)));
        for (role, tokens) in steps {
            let ids: Vec<u32> = tokens.clone().map(|t| (7 * t % TOKENS) as u32).collect();
            let seqs = [Sequence {
                tokens: &ids,
                start: tokens.start,
                tables: &[&[2, 0, 3, 1]],
                wanted: 0..ids.len(),
                blocks: if blocks { &[3, 4, 37, TOKENS] } else { &[] },
                ..Sequence::default()
            }];
            let step = Step {
                role,
                seqs: &seqs,
                input: &[],
            };
            let got = here.step(&step, None).expect("it runs").to_vec();
            let expected = there.step(&step, &mut store, None);
            let largest = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            // halves, of weights and of products' inputs, are right to 2^-11: whatever is left out
            // makes a hundred times that
            for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                assert!(
                    (got - expected).abs() <= 2e-3 * largest,
                    "{scores:?} sinks {sinks} {role:?} {tokens:?} value {at}: {got}, not {expected}"
                );
            }
        }
    }
}
