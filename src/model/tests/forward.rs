//! The graph, executed naively in f64 straight from its ops, gives llama.cpp's logits on the F32
//! models: weights are bound to the right fields, ops stand in the right order, and the rotary
//! table is right up to the longest golden prompt.

use crate::support::{open_shared, shared};
use gguf_rs_lite::{Gguf, TensorType};
use octavo_kernels::{Activation, CacheLayer, Function, Scores};
use octavo_model::{Model, Op, ValueId, VecId, WeightId};
use safetensors::SafeTensors;

type Matrix = Vec<Vec<f64>>;

/// Every row of every value; all rows are wanted.
struct Run<'a> {
    m: &'a Model,
    gguf: &'a Gguf,
    values: Vec<Matrix>,
    cache: Vec<(Matrix, Matrix)>,
}

impl Run<'_> {
    fn weight(&self, id: WeightId) -> Matrix {
        let w = self.m.weights.matrix(id);
        assert_eq!(w.ty, TensorType::F32);
        let number = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let rows = w.bytes(self.gguf).chunks_exact(w.row_bytes());
        rows.map(|row| row.chunks_exact(4).map(number).collect())
            .collect()
    }

    fn layer_of(&self, cache: CacheLayer) -> usize {
        self.m
            .hparams
            .layer_of(cache)
            .expect("a layer of the model")
    }

    fn attention(&self, q: ValueId, layer: usize, scores: Scores, sinks: Option<VecId>) -> Matrix {
        let sinks = sinks.map(|sinks| self.m.weights.vector(sinks));
        let h = &self.m.hparams.layers[layer];
        let (d, group) = (h.head_dim, h.n_head / h.n_head_kv);
        let (k, v) = &self.cache[layer];
        let head = |row: &[f64], head: usize| row[head * d..][..d].to_vec();
        let one = |t: usize, row: &Vec<f64>| {
            let mut out = Vec::new();
            for i in 0..h.n_head {
                let q = head(row, i);
                let score = |k: &Vec<f64>| {
                    let products = q.iter().zip(head(k, i / group)).map(|(a, b)| a * b);
                    let score = products.sum::<f64>() * f64::from(scores.scale);
                    let capped = |cap: f64| cap * (score / cap).tanh();
                    scores.cap.map_or(score, |cap| capped(cap.into()))
                };
                let first = scores
                    .window
                    .map_or(0, |window| (t + 1).saturating_sub(window));
                let scores: Vec<f64> = k[first..=t].iter().map(score).collect();
                let sink = sinks.map(|sinks| f64::from(sinks[i]));
                let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
                for j in 0..d {
                    let column = v[first..=t].iter().map(|v| v[i / group * d + j]);
                    out.push(weights.iter().zip(column).map(|(w, v)| w * v).sum::<f64>() / sum);
                }
            }
            out
        };
        self.values[q.index()]
            .iter()
            .enumerate()
            .map(|(t, row)| one(t, row))
            .collect()
    }

    fn rope(&self, x: &Matrix, head_dim: usize, rope: usize) -> Matrix {
        let table = &self.m.ropes[rope];
        let turn = |(t, row): (usize, &Vec<f64>)| {
            let mut row = row.clone();
            for head in row.chunks_exact_mut(head_dim) {
                for i in 0..table.n_rot() / 2 {
                    let (a, b) = table.pair(i);
                    let (sin, cos) = (t as f64 * table.frequencies[i]).sin_cos();
                    let (x, y) = (head[a] * table.magnitude, head[b] * table.magnitude);
                    (head[a], head[b]) = (x * cos - y * sin, x * sin + y * cos);
                }
            }
            row
        };
        x.iter().enumerate().map(turn).collect()
    }

    fn op(&mut self, op: Op, tokens: &[usize]) -> Matrix {
        let value = |v: ValueId| &self.values[v.index()];
        let zip = |a: ValueId, b: ValueId, f: &dyn Fn(f64, f64) -> f64| {
            let row =
                |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
            value(a).iter().zip(value(b)).map(row).collect()
        };
        match op {
            Op::Embed { table } => {
                let table = self.weight(table);
                tokens.iter().map(|&t| table[t].clone()).collect()
            }
            Op::Input => unreachable!("a graph begins with token ids"),
            Op::RmsNorm { x, weight, eps } => {
                let weight = self.m.weights.vector(weight);
                let norm = |g: &[f64]| {
                    let mean = g.iter().map(|x| x * x).sum::<f64>() / g.len() as f64;
                    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                    g.iter()
                        .zip(weight)
                        .map(|(x, w)| x * scale * f64::from(*w))
                        .collect::<Vec<_>>()
                };
                value(x)
                    .iter()
                    .map(|row| row.chunks_exact(weight.len()).flat_map(norm).collect())
                    .collect()
            }
            Op::MatMul { x, w } => {
                let w = self.weight(w);
                let dot =
                    |row: &[f64], w: &[f64]| row.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
                value(x)
                    .iter()
                    .map(|row| w.iter().map(|w| dot(row, w)).collect())
                    .collect()
            }
            Op::AddBias { x, bias } => {
                let bias = self.m.weights.vector(bias);
                value(x)
                    .iter()
                    .map(|row| {
                        row.iter()
                            .zip(bias)
                            .map(|(x, b)| x + f64::from(*b))
                            .collect()
                    })
                    .collect()
            }
            Op::Rope { x, head_dim, rope } => self.rope(value(x), head_dim, rope),
            Op::KvWrite { k, v, cache } => {
                let layer = self.layer_of(cache);
                self.cache[layer] = (value(k).clone(), value(v).clone());
                Vec::new()
            }
            Op::Attention {
                q,
                cache,
                scores,
                sinks,
            } => self.attention(q, self.layer_of(cache), scores, sinks),
            Op::Gate {
                gate,
                up,
                act: Activation::Silu,
            } => zip(gate, up, &|g, u| g / (1.0 + (-g).exp()) * u),
            Op::Unary {
                x,
                f: Function::SoftCap(cap),
            } => zip(x, x, &|x, _| f64::from(cap) * (x / f64::from(cap)).tanh()),
            Op::Add { a, b } => zip(a, b, &|a, b| a + b),
            Op::SelectRows { x } => value(x).clone(),
        }
    }
}

fn forward(m: &Model, gguf: &Gguf, tokens: &[usize]) -> Matrix {
    let values = vec![Vec::new(); m.graph.values.len()];
    let mut run = Run {
        m,
        gguf,
        values,
        cache: vec![(Vec::new(), Vec::new()); m.graph.n_layer],
    };
    for node in &m.graph.nodes {
        let out = run.op(node.op, tokens);
        run.values[node.out.index()] = out;
    }
    run.values.swap_remove(m.graph.logits.index())
}

#[test]
fn logits_are_those_of_llama_cpp() {
    for model in [
        "rnd-llama-F32",
        "rnd-qwen2-F32",
        "rnd-qwen3-F32",
        "tiny-qwen3-F32",
    ] {
        let Some(gguf) = open_shared(model) else {
            return;
        };
        let m = Model::load(&gguf).unwrap_or_else(|e| panic!("{e}"));
        let Some(folder) = shared(&format!("goldens/{model}")) else {
            return;
        };
        let mut n = 0;
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            let bytes = std::fs::read(&path).expect("a golden");
            let golden = SafeTensors::deserialize(&bytes).expect("safetensors");
            let number = |b: &[u8]| <[u8; 4]>::try_from(b).expect("four bytes");
            let tokens = golden
                .tensor("tokens")
                .expect("tokens")
                .data()
                .chunks_exact(4);
            let tokens: Vec<usize> = tokens
                .map(|b| i32::from_le_bytes(number(b)) as usize)
                .collect();
            let logits = golden
                .tensor("logits")
                .expect("logits")
                .data()
                .chunks_exact(4);
            let logits: Vec<f64> = logits
                .map(|b| f64::from(f32::from_le_bytes(number(b))))
                .collect();
            let ours: Vec<f64> = forward(&m, &gguf, &tokens).concat();
            assert_eq!(ours.len(), logits.len());
            let error: f64 = ours.iter().zip(&logits).map(|(a, b)| (a - b).powi(2)).sum();
            let nmse = error / logits.iter().map(|x| x * x).sum::<f64>();
            println!(
                "{model} {}: {} tokens, NMSE {nmse:.2e}",
                path.display(),
                tokens.len()
            );
            // llama.cpp computes in f32: up to 1.7e-12 is measured. The smallest faults give far
            // more: rope_freqs ignored 1.6e-6, YaRN's ramp one pair off 1.2e-5, its magnitude
            // dropped 2.4e-2
            assert!(nmse < 1e-9, "{model} {}: NMSE {nmse:.2e}", path.display());
            n += 1;
        }
        assert!(n >= 3, "{model}: only {n} goldens");
    }
}
