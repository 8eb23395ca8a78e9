//! Rotates keys and values on their way into a KV cache of few bits. A head often has a few
//! outliers, many times as large as its other values; with one scale for all of them, four bits
//! leave nothing of the others. A Hadamard matrix spreads each value over all. llama.cpp rotates
//! what it stores in any quantized type; of eight bits there is little to gain, and five bits are
//! few, too.
//!
//! Rotated queries have the same products with rotated keys as before, and what attention sums up
//! of rotated values is the rotated sum, which is rotated back. Keys and values are each rotated by
//! the type of their own half of the cache alone. Nothing else changes, so that no architecture and
//! no attention kernel has to know of it.

use octavo_kernels::{HADAMARD_ORDER, KvTypes, Rope};
use octavo_model::{CacheGroup, Graph, Network, Node, Op, Tensors, ValueId};

/// A network and, if its cache needs rotated heads, the graph that rotates them.
pub(super) struct Stored<'a> {
    network: &'a dyn Network,
    rotating: Option<Graph>,
}

impl<'a> Stored<'a> {
    /// Wraps a network for a cache of these types.
    pub(super) fn of(network: &'a dyn Network, kv: KvTypes) -> Stored<'a> {
        let halves = Halves {
            k: kv.k.wants_rotated_heads(),
            v: kv.v.wants_rotated_heads(),
        };
        let rotating = (halves.k || halves.v).then(|| rotating(network, halves));
        Stored { network, rotating }
    }
}

impl Network for Stored<'_> {
    fn graph(&self) -> &Graph {
        match &self.rotating {
            Some(graph) => graph,
            None => self.network.graph(),
        }
    }

    fn tensors(&self) -> &Tensors {
        self.network.tensors()
    }

    fn ropes(&self) -> &[Rope] {
        self.network.ropes()
    }

    fn caches(&self) -> &[CacheGroup] {
        self.network.caches()
    }
}

/// Halves of the cache to rotate: keys along with queries, and values along with the attention
/// output.
#[derive(Clone, Copy)]
struct Halves {
    k: bool,
    v: bool,
}

/// Returns the graph with rotations around the cache.
fn rotating(network: &dyn Network, halves: Halves) -> Graph {
    let whole = network.graph();
    let mut graph = Graph {
        nodes: Vec::with_capacity(whole.nodes.len()),
        ..whole.clone()
    };
    // the largest power of two that divides a head's width, at most `HADAMARD_ORDER`
    let order = |group: usize| {
        let dim = network.caches()[group].head_dim;
        (1 << dim.trailing_zeros()).min(HADAMARD_ORDER)
    };
    for node in &whole.nodes {
        match node.op {
            Op::KvWrite { k, v, cache } => {
                let order = order(cache.group);
                let mut rotated = |x, is| if is { rotate(&mut graph, x, order) } else { x };
                let (k, v) = (rotated(k, halves.k), rotated(v, halves.v));
                let op = Op::KvWrite { k, v, cache };
                graph.nodes.push(Node { op, ..*node });
            }
            Op::SelectKeys {
                q,
                weights,
                cache,
                n,
            } if halves.k => {
                let q = rotate(&mut graph, q, order(cache.group));
                let op = Op::SelectKeys {
                    q,
                    weights,
                    cache,
                    n,
                };
                graph.nodes.push(Node { op, ..*node });
            }
            Op::Attention {
                q,
                seen,
                cache,
                scores,
                sinks,
            } => {
                let order = order(cache.group);
                let q = match halves.k {
                    true => rotate(&mut graph, q, order),
                    false => q,
                };
                let op = Op::Attention {
                    q,
                    seen,
                    cache,
                    scores,
                    sinks,
                };
                if !halves.v {
                    graph.nodes.push(Node { op, ..*node });
                    continue;
                }
                let out = twin(&mut graph, node.out);
                graph.nodes.push(Node { op, out, tap: None });
                let op = Op::Hadamard { x: out, order };
                graph.nodes.push(Node { op, ..*node });
            }
            _ => graph.nodes.push(*node),
        }
    }
    let sound = graph.validate(network.tensors(), network.ropes(), network.caches());
    sound.expect("a sound graph with rotations is sound");
    graph
}

/// Adds a value of the shape of another.
fn twin(graph: &mut Graph, value: ValueId) -> ValueId {
    graph.values.push(graph.values[value.index()]);
    ValueId(graph.values.len() as u32 - 1)
}

/// Adds a rotation of a value, and returns its result.
fn rotate(graph: &mut Graph, x: ValueId, order: usize) -> ValueId {
    let out = twin(graph, x);
    let op = Op::Hadamard { x, order };
    graph.nodes.push(Node { op, out, tap: None });
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gguf_rs_lite::{Gguf, OpenOptions};
    use octavo_kernels::{Isa, KvType, Phase, PromptBits, Step, StepSequence};
    use octavo_model::Model;

    use super::*;
    use crate::backend::Backend;
    use crate::backend::cpu::{Cpu, Options};
    use crate::demo_model;

    /// Returns the logits of a few tokens.
    fn logits(gguf: &Arc<Gguf>, network: &dyn Network, kv_type: KvTypes) -> Vec<f32> {
        let options = Options {
            isa: Isa::Scalar,
            threads: 1,
            pool: None,
            kv_type,
            n_pages: 4,
            n_states: 0,
            prompt_bits: PromptBits::default(),
            repack: true,
            lock: false,
            weights: None,
            adapters: Vec::new(),
        };
        let mut cpu = Cpu::prepare(gguf, network, &options, &mut |_, _| {}).expect("a small model");
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % 300).collect();
        let seqs = [StepSequence {
            tokens: &tokens,
            start: 0,
            tables: &[&[2, 0, 1]],
            outputs: 20..40,
            ..StepSequence::default()
        }];
        let step = Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &[],
        };
        cpu.step(&step, None).expect("logits").to_vec()
    }

    /// Returns the mean squared error relative to the mean square.
    fn nmse(of: &[f32], exact: &[f32]) -> f64 {
        let squares =
            |all: &mut dyn Iterator<Item = f32>| -> f64 { all.map(|x| f64::from(x).powi(2)).sum() };
        let errors = squares(&mut of.iter().zip(exact).map(|(a, b)| a - b));
        errors / squares(&mut exact.iter().copied())
    }

    #[test]
    fn rotations_are_undone_and_keep_what_four_bits_would_lose() {
        let options = OpenOptions::default();
        let gguf = Gguf::from_bytes(demo_model(), "demo", &options).expect("a sound file");
        let gguf = Arc::new(gguf);
        let model = Model::load(&gguf).expect("a sound model");
        let plain = logits(&gguf, &model, KvType::F32.both());
        for (k, v) in [(true, true), (true, false), (false, true)] {
            let rotated = Stored {
                network: &model,
                rotating: Some(rotating(&model, Halves { k, v })),
            };
            let turned = logits(&gguf, &rotated, KvType::F32.both());
            assert!(turned != plain, "nothing was rotated");
            let lost = nmse(&turned, &plain);
            assert!(lost < 1e-6, "{lost:e} of the logits are lost in rotations");
        }
        // the rotation that this module adds for a cache of four bits, or half of one
        let [k, v] = [KvType::Q4_0; 2];
        for (types, bound) in [
            (k.both(), 0.02),
            (KvTypes { k, v: KvType::F32 }, 0.02),
            (KvTypes { k: KvType::F32, v }, 0.02),
        ] {
            let lost = nmse(&logits(&gguf, &model, types), &plain);
            println!("{types}: {lost:.2e}");
            assert!(lost < bound, "{types}: {lost:e} of the logits are lost");
        }
    }
}
