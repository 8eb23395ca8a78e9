//! Writing the KV cache, and attention over it.

mod floats8;
mod neighbours;
mod programs;
mod windows;

use std::sync::Arc;

use half::{bf16, f16};
use octavo_kernels::cuda::params::{Attention, KvWrite, Paging};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Executor, HEAD_DIMS, Limits, Ptr, Setup, Source, launch};
use octavo_kernels::{
    CacheLayer, Instruction, Isa, KvShape, KvStore, KvType, Matrix, Op, Phase, Pool, Scores, Step,
    StepSequence,
};
use octavo_quant::TensorType;

use super::{Bench, Worst, device};
use crate::common::{Rng, e4m3, embed, program, random_blocks};

/// A cache and the rows of one step.
#[derive(Clone)]
struct Scene {
    kv: KvType,
    dim: usize,
    heads: usize,
    heads_kv: usize,
    /// Length of each sequence, including this step.
    lengths: Vec<usize>,
    /// Keys for each position of all sequences: `[heads_kv][dim]`, rounded as in the cache.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    q: Vec<f32>,
    /// (sequence, position), or `None` for padding.
    rows: Vec<Option<(usize, usize)>>,
    cap: Option<f32>,
    window: Option<usize>,
    /// Number of later positions that a row attends to.
    after: usize,
    /// One sink per head, or empty.
    sinks: Vec<f32>,
}

/// Pages with the keys and values of a scene.
struct Pages {
    tables: Ptr,
    k: Ptr,
    v: Ptr,
    /// Page tables of all sequences, concatenated.
    all: Vec<u32>,
    /// Pages per table.
    most: usize,
    /// Number of pages, used or not.
    n: usize,
}

impl Pages {
    /// Returns the paging parameters of rows, given as (sequence, position).
    fn paging(&self, bench: &mut Bench, rows: &[Option<(usize, usize)>]) -> Paging {
        let positions = rows.iter().map(|r| r.map_or(-1i32, |r| r.1 as i32) as u32);
        let sequences = rows.iter().map(|r| r.map_or(0, |r| r.0 as u32));
        Paging {
            positions: bench.integers(&positions.collect::<Vec<_>>()),
            sequences: bench.integers(&sequences.collect::<Vec<_>>()),
            tables: self.tables,
            missing: bench.integers(&[0]),
            max_pages: self.most as u32,
            rows: rows.len() as u32,
            n_pages: self.n as u32,
            first_row: 0,
        }
    }
}

/// Rounds whole heads as the cache stores them.
fn rounded(kv: KvType, mut x: Vec<f32>) -> Vec<f32> {
    match kv {
        KvType::F32 => {}
        KvType::F16 => x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        KvType::Bf16 => x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        KvType::Q8_0 => through(TensorType::Q8_0, &mut x),
        KvType::F8E4M3 => e4m3::round(&mut x),
        KvType::Q4_0 => through(TensorType::Q4_0, &mut x),
        KvType::Q5_0 | KvType::Q5_1 | KvType::Iq4Nl => unreachable!("{kv}: no kernels"),
    }
    x
}

/// Rounds values by quantizing to a type and back.
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

    /// Returns the first position that a row at `position` attends to.
    fn first(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)
    }

    /// Returns the positions that a row of a sequence attends to.
    fn seen(&self, sequence: usize, position: usize) -> std::ops::Range<usize> {
        self.first(position)..(position + 1 + self.after).min(self.lengths[sequence])
    }

    /// Returns tables without the pages that no row attends to.
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

    /// Allocates pages for all sequences, in an order shuffled by `seed`.
    fn pages(&self, bench: &mut Bench, seed: u64) -> Pages {
        let mut rng = Rng(seed);
        let longest = self.lengths.iter().map(|n| n.div_ceil(16)).max();
        let most = longest.unwrap_or(0) + 1;
        let n = self.lengths.len() * most + 3;
        let mut all: Vec<u32> = (0..n as u32).collect();
        (1..n)
            .rev()
            .for_each(|i| all.swap(i, rng.bits() as usize % (i + 1)));
        all.truncate(self.lengths.len() * most);
        let bytes = self.kv.bytes(16 * self.heads_kv * self.dim).expect("few");
        Pages {
            tables: bench.integers(&all),
            k: bench.alloc(n * bytes),
            v: bench.alloc(n * bytes),
            all,
            most,
            n,
        }
    }

    /// Writes the cache with the kernel under test, all positions of all sequences in one launch.
    fn write(&self, bench: &mut Bench, pages: &Pages) {
        let width = self.heads_kv * self.dim;
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
            pages_k: pages.k,
            pages_v: pages.v,
            paging: pages.paging(bench, &all),
            heads,
            head_dim,
        };
        bench.run(&launch::kv_write(self.kv, &write));
    }

    /// Writes the cache, to pages in an order shuffled by `seed`. Returns the parameters of
    /// attention.
    fn prepare(&self, bench: &mut Bench, seed: u64, splits: usize) -> Attention {
        let pages = self.pages(bench, seed);
        self.write(bench, &pages);
        let states = self.rows.len() * self.heads * splits;
        let sinks = match self.sinks.is_empty() {
            true => Ptr::NULL,
            false => bench.floats(&self.sinks),
        };
        let ends = self.rows.iter();
        let ends: Vec<u32> = ends
            .map(|r| r.map_or(0, |r| self.lengths[r.0] as u32))
            .collect();
        Attention {
            q: bench.floats(&self.q),
            pages_k: pages.k,
            pages_v: pages.v,
            sums: bench.alloc(4 * states * self.dim),
            states: bench.alloc(8 * states),
            out: bench.alloc(4 * self.q.len()),
            integers: Ptr::NULL,
            tiles: Ptr::NULL,
            sinks,
            slopes: Ptr::NULL,
            firsts: Ptr::NULL,
            ends: bench.integers(&ends),
            paging: Paging {
                tables: bench.integers(&self.without_passed(&pages.all, pages.most)),
                ..pages.paging(bench, &self.rows)
            },
            heads: self.heads as u32,
            heads_kv: self.heads_kv as u32,
            splits: splits as u32,
            scale: 1.0 / (self.dim as f32).sqrt(),
            cap: self.cap.unwrap_or(0.0),
            window: self.window.unwrap_or(0) as u32,
            after: self.after as u32,
            chunked: 0,
        }
    }

    fn attend(&self, bench: &mut Bench, seed: u64, splits: usize) -> Vec<f32> {
        let p = self.prepare(bench, seed, splits);
        // no more blocks than the longest sequence has splits
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let most = launch::splits_of(longest) as u32;
        launch::attend(self.kv, self.dim, &p, most)
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
        let tiles = tiles.len() as u32 / 2;
        bench.run(&launch::attend_prompt(self.kv, self.dim, &p, tiles));
        assert_eq!(bench.read_integers(p.paging.missing, 1), [0], "pages read");
        bench.read(p.out, self.q.len())
    }

    /// Checks results against f64. The error of a score is the roundings of its sum, and of its
    /// query where that is split into two halves; a weight has the same relative error, doubled
    /// because the sum of weights has it too; and weights themselves may be halves, as may keys and
    /// values of other types. A cap passes
    /// errors on and adds that of `tanhf`, two units in the last place, and two roundings of a
    /// half. A sink is a score of a value of zero.
    fn check(&self, out: &[f32], prompt: bool) {
        let eps = f64::from(f32::EPSILON);
        let scale = f64::from(1.0 / (self.dim as f32).sqrt());
        // the error of a sum of products, of a size, whose second factors become halves
        let made_halves = |size: f64, first: &[f32]| match self.kv {
            KvType::F16 => 0.0,
            _ => {
                let first: f64 = first.iter().map(|x| f64::from(x.abs())).sum();
                size * 2f64.powi(-11) + first * 2f64.powi(-25)
            }
        };
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
                        error += scale * made_halves(size / scale, q);
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
                        bound += made_halves(size, &[1.0]);
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
            "attention of {:?}, heads of {}, prompt: {prompt}, window {:?}, {} after, cap {:?}, \
             sinks {:?}",
            self.kv, self.dim, self.window, self.after, self.cap, self.sinks
        ));
    }
}

#[test]
fn attention_matches_f64_over_every_head_size_and_split() {
    let Some(mut bench) = device() else { return };
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        for (j, kv) in launch::KV_TYPES
            .into_iter()
            .enumerate()
            .filter(|(_, kv)| kv.takes(dim))
        {
            for (n, heads) in [(2, 2), (4, 1), (10, 2), (3, 1)].into_iter().enumerate() {
                bench.0.schedule(Schedule::ALL[(i + j + n) % 3]);
                let lengths = [[1, 17, 100], [16, 15, 230], [33, 2, 64]][(i + n) % 3];
                let scene = Scene::new(kv, dim, heads, &lengths, 1);
                let splits = [1, 3, 32][(i + j + n) % 3];
                scene.check(&scene.attend(&mut bench, 5, splits), false);
                bench.0.clear();
            }
        }
    }
}

/// Sequences long enough that each warp of a split gets several pages; the last split may have
/// none.
#[test]
fn splits_go_on_to_further_pages() {
    let Some(mut bench) = device() else { return };
    let splits = launch::MAX_SPLITS as usize;
    let rounds = 16 * 4 * splits;
    for length in [rounds, rounds + 1, 3 * rounds - 5] {
        let scene = Scene::new(KvType::F16, 32, (2, 1), &[length, 70], 1);
        scene.check(&scene.attend(&mut bench, 5, splits), false);
        bench.0.clear();
    }
}

#[test]
fn prompts_attend_on_tensor_cores_and_without() {
    let Some(mut bench) = device() else { return };
    let mut on_tensor_cores = 0;
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        for (n, (heads, heads_kv)) in [(1, 1), (4, 1), (10, 2)].into_iter().enumerate() {
            bench.0.schedule(Schedule::ALL[(i + n) % 3]);
            for (j, kv) in launch::KV_TYPES.into_iter().enumerate() {
                // halves with all, the others with one of these
                if !kv.takes(dim) || kv != KvType::F16 && (i + j + n) % 3 > 0 {
                    continue;
                }
                for (lengths, new) in [(&[40][..], 40), (&[70, 5, 130], 23)] {
                    let scene = Scene::new(kv, dim, (heads, heads_kv), lengths, new);
                    scene.check(&scene.attend(&mut bench, 9, 4), false);
                    if launch::takes_prompt(kv, dim, heads / heads_kv) {
                        scene.check(&scene.attend_prompt(&mut bench, 9), true);
                        on_tensor_cores += 1;
                    }
                    bench.0.clear();
                }
            }
        }
    }
    assert!(
        on_tensor_cores > 60,
        "{on_tensor_cores} prompts on tensor cores"
    );
}
