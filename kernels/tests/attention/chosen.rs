//! The choice of keys by an indexer, and attention to them: against scores in f64 and a naive
//! softmax; bit-identical for any page order, chunking, number of threads and neighbour.

use super::exact::{HALF, Rounds, SCALE, exact_of, hold, roundings};
use super::{Case, Data, data, identity, kv_shape};
use crate::common::f32_bytes;
use octavo_kernels::{
    CacheLayer, Executor, Isa, KvShape, KvStore, KvType, Op, Phase, Pool, Program, RowSet,
    RowTable, Scores, Step, StepSequence, ValueShape,
};
use octavo_quant::TensorType;
use std::sync::Arc;

/// Slots of the program.
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const INDEX_Q: usize = 3;
const INDEX_K: usize = 4;
const WEIGHTS: usize = 5;
const SEEN: usize = 6;
const OUT: usize = 7;

/// An indexer beside attention, its data, and the number of keys to choose.
struct Chooser {
    attention: Case,
    index: Case,
    data: [Data; 2],
    /// Of the indexer's heads, of each token.
    weights: Vec<f32>,
    n: usize,
}

impl Chooser {
    fn new(isa: Isa, types: KvType, (tokens, n): (usize, usize), index_heads: usize) -> Chooser {
        let attention = Case {
            isa,
            heads: 5,
            heads_kv: 1,
            head_dim: 32,
            types: types.both(),
            threads: 1,
            scores: Scores::plain(SCALE),
            sinks: false,
            before: None,
        };
        let index = Case {
            heads: index_heads,
            head_dim: 64,
            ..attention
        };
        let weight = |i: usize| ((i * 37 + 11) % 64) as f32 / 32.0 - 0.5;
        Chooser {
            attention,
            index,
            data: [data(attention, tokens), data(index, tokens)],
            weights: (0..tokens * index_heads).map(weight).collect(),
            n,
        }
    }

    fn tokens(&self) -> usize {
        self.weights.len() / self.index.heads
    }

    /// Creates an executor of the program whose outputs are those of a slot.
    fn executor(&self, output: usize, threads: usize) -> Executor {
        let tokens = self.tokens();
        let embed = |values: &[f32], out: usize| {
            Op::Embed {
                table: RowTable {
                    ty: TensorType::F32,
                    rows: tokens,
                    cols: values.len() / tokens,
                    source: Arc::new(f32_bytes(values)),
                },
                placeholder: None,
            }
            .to(out)
        };
        let [main, index] = [0, 1].map(|group| CacheLayer { group, layer: 0 });
        let [(q, k, v), (index_q, index_k, _)] = &self.data;
        let write = |k, v, cache| Op::KvWrite { k, v, cache }.without_result();
        let ops = vec![
            embed(q, Q),
            embed(k, K),
            embed(v, V),
            embed(index_q, INDEX_Q),
            embed(index_k, INDEX_K),
            embed(&self.weights, WEIGHTS),
            write(K, V, main),
            write(INDEX_K, INDEX_K, index),
            Op::SelectKeys {
                q: INDEX_Q,
                weights: WEIGHTS,
                cache: index,
                n: self.n,
            }
            .to(SEEN),
            Op::Attention {
                q: Q,
                seen: Some(SEEN),
                cache: main,
                scores: self.attention.scores,
                sinks: None,
            }
            .to(OUT),
        ];
        let [a, i] = [self.attention, self.index];
        let widths = [
            a.heads * a.head_dim,
            a.head_dim,
            a.head_dim,
            i.heads * i.head_dim,
            i.head_dim,
            i.heads,
            self.n,
            a.heads * a.head_dim,
        ];
        let all = |width| ValueShape {
            width,
            rows: RowSet::All,
        };
        let program = Program {
            ops,
            slots: widths.map(all).to_vec(),
            ropes: vec![],
            caches: self.caches().to_vec(),
            states: vec![],
            output,
            kept: None,
            embedding_input_width: 0,
            on_host: vec![],
        };
        let pool = Pool::new(threads).expect("threads");
        Executor::new(self.attention.isa, program, Vec::new(), pool)
    }

    fn caches(&self) -> [KvShape; 2] {
        [self.attention, self.index].map(kv_shape)
    }

    /// Returns the rows of a slot, with `prompt` tokens prefilled in batches, then others decoded
    /// so many at a time.
    fn run(
        &self,
        output: usize,
        threads: usize,
        (prompt, batch): (usize, usize),
        together: usize,
        tables: [&[u32]; 2],
    ) -> Vec<f32> {
        let n = self.tokens();
        let mut executor = self.executor(output, threads);
        let mut kv = KvStore::new(&self.caches(), n.div_ceil(16) + 3).expect("memory");
        let (mut all, mut at) = (Vec::new(), 0);
        while at < n {
            let (phase, len) = match at < prompt {
                true => (Phase::Prefill, batch.min(prompt - at)),
                false => (Phase::Decode, together.min(n - at)),
            };
            let tokens: Vec<u32> = (at as u32..(at + len) as u32).collect();
            let seqs = [StepSequence {
                tokens: &tokens,
                start: at,
                tables: &tables,
                outputs: 0..len,
                ..StepSequence::default()
            }];
            let step = Step {
                phase,
                seqs: &seqs,
                input: &[],
            };
            all.extend_from_slice(executor.step(&step, &mut kv, None));
            at += len;
        }
        all
    }

    /// Returns the score of a key for a token, and its error bound: products are summed in two
    /// halves, then over heads.
    fn score(&self, t: usize, key: usize) -> (f64, f64) {
        let (q, k, _) = &self.data[1];
        let (d, heads) = (self.index.head_dim, self.index.heads);
        let key = &k[key * d..][..d];
        let rows = q[t * heads * d..][..heads * d].chunks(d);
        let (mut score, mut error) = (0.0, 0.0);
        for (q, w) in rows.zip(&self.weights[t * heads..]) {
            let products = || {
                q.iter()
                    .zip(key)
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
            };
            let magnitude: f64 = products().map(f64::abs).sum();
            let (w, product) = (f64::from(*w), products().sum::<f64>().max(0.0));
            score += w * product;
            error += w.abs() * (HALF + roundings(d / 2 + 1)) * magnitude;
            error += (HALF + roundings(heads)) * (w * product).abs();
        }
        (score, error)
    }

    /// Checks a token's choice: no key that is left out scores higher than one that is not, by more
    /// than their errors. Returns the positions.
    fn check(&self, t: usize, row: &[f32]) -> Vec<usize> {
        let mut chosen: Vec<usize> = row.iter().map(|p| *p as usize).collect();
        assert!(chosen.is_sorted(), "{t}: {chosen:?}");
        chosen.dedup();
        assert_eq!(chosen.len(), self.n.min(t + 1), "{t}: {chosen:?}");
        assert!(chosen.iter().all(|p| *p <= t), "{t}: {chosen:?}");
        let scores: Vec<(f64, f64)> = (0..=t).map(|key| self.score(t, key)).collect();
        let least = chosen.iter().map(|p| scores[*p].0 + scores[*p].1);
        let least = least.fold(f64::INFINITY, f64::min);
        for (key, (score, error)) in scores.iter().enumerate() {
            assert!(
                chosen.contains(&key) || score - error <= least,
                "{} {t}: key {key} of {score} is left out, {least} is not",
                self.attention.isa
            );
        }
        chosen
    }
}

#[test]
fn the_best_keys_are_chosen_and_seen() {
    let mut worst = 0.0f64;
    for isa in Isa::available() {
        for (types, index_heads) in [
            (KvType::F32, 1),
            (KvType::F16, 37),
            (KvType::Q8_0, 8),
            (KvType::Q4_0, 64),
        ] {
            let of = Chooser::new(isa, types, (150, 20), index_heads);
            let (c, table) = (of.attention, identity(150));
            for prompt in [0, 140] {
                let run = |output| of.run(output, 2, (prompt, 64), 3, [&table, &table]);
                let (seen, out) = (run(SEEN), run(OUT));
                for (t, row) in seen.chunks(of.n).enumerate() {
                    let chosen = of.check(t, row);
                    for h in 0..c.heads {
                        let exact = exact_of(c, &of.data[0], (t, h), Rounds::Not, &chosen);
                        let got = &out[(t * c.heads + h) * c.head_dim..][..c.head_dim];
                        let what = format!("{types} t {t} h {h}");
                        worst = worst.max(hold(c, &exact, got, &what));
                    }
                }
            }
        }
    }
    println!("worst part of a bound: {worst:.3}");
    assert!(worst > 0.05, "{worst}: the bound is far too wide");
}

#[test]
fn nothing_beside_a_token_changes_its_keys() {
    for isa in Isa::available() {
        let of = Chooser::new(isa, KvType::F16, (1100, 40), 33);
        let table = identity(1100);
        let shuffled: Vec<u32> = table.iter().map(|p| (p * 29 + 5) % 71).collect();
        for output in [SEEN, OUT] {
            let expected = of.run(output, 1, (560, 512), 1, [&table, &table]);
            for (threads, batch, together, tables) in [
                (1, 7, 5, [&table, &table]),
                (2, 64, 1, [&table, &shuffled]),
                (3, 512, 9, [&shuffled, &table]),
            ] {
                let [main, index] = tables;
                let got = of.run(output, threads, (560, batch), together, [main, index]);
                assert!(
                    got == expected,
                    "{isa}: {threads} threads, batches of {batch}"
                );
            }
        }
    }
}

/// Where a token may see as many keys as there are, attention is that to all of them, bit for bit.
#[test]
fn all_keys_are_seen_while_there_are_few() {
    for isa in Isa::available() {
        let of = Chooser::new(isa, KvType::F16, (90, 90), 8);
        let table = identity(90);
        for prompt in [0, 90] {
            let chosen = of.run(OUT, 1, (prompt, 16), 1, [&table, &table]);
            if prompt > 0 && Rounds::of(of.attention) != Rounds::Not {
                continue; // other kernels
            }
            let all = super::run(of.attention, &of.data[0], 90, prompt, 16, &table);
            assert!(chosen == all, "{isa}, {prompt}");
        }
    }
}
