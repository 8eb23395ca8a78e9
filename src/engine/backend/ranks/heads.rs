//! KV heads: among how many ranks they can be divided, and which values are divided like them.

use octavo_kernels::CacheLayer;
use octavo_model::{Network, Op, ValueId};

/// Returns the number of KV heads of every cache that has layers. Where no layer attends, there is
/// a group without layers, whose heads do not count.
fn key_heads(network: &dyn Network) -> impl Iterator<Item = usize> {
    let groups = network.caches().iter().filter(|group| group.n_layer > 0);
    groups.map(|group| group.n_head_kv)
}

/// Returns whether a network can be divided among this many ranks: each gets as many KV heads.
pub(super) fn is_possible(network: &dyn Network, ranks: usize) -> bool {
    key_heads(network).all(|heads| heads.is_multiple_of(ranks))
}

/// Returns the numbers of ranks that a network can be divided among.
pub(super) fn possible(network: &dyn Network) -> Vec<usize> {
    let most = key_heads(network).min().unwrap_or(1);
    (1..=most)
        .filter(|ranks| is_possible(network, *ranks))
        .collect()
}

/// Returns which values are divided by KV heads, and by how many, because attention reads or writes
/// them, or because they become its inputs.
pub(super) fn of_values(network: &dyn Network) -> Vec<Option<usize>> {
    let graph = network.graph();
    let of = |cache: CacheLayer| network.caches()[cache.group].n_head_kv;
    let mut heads = vec![None; graph.values.len()];
    for node in &graph.nodes {
        let (cache, values) = match node.op {
            Op::Attention { q, cache, .. } => (cache, [q, node.out]),
            Op::KvWrite { k, v, cache } => (cache, [k, v]),
            _ => continue,
        };
        for value in values {
            heads[value.index()] = Some(of(cache));
        }
    }
    for node in graph.nodes.iter().rev() {
        let values: Vec<ValueId> = match node.op {
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::AddBias { x, .. }
            | Op::MulVector { x, .. }
            | Op::Unary { x, .. }
            | Op::ScaleByPosition { x, .. }
            | Op::Rope { x, .. }
            | Op::Hadamard { x, .. }
            | Op::Slice { x, .. } => vec![x, node.out],
            Op::Mul { a, b } | Op::Gate { gate: a, up: b, .. } => vec![a, b, node.out],
            _ => continue,
        };
        let known = values.iter().find_map(|value| heads[value.index()]);
        for value in values {
            let own = &mut heads[value.index()];
            *own = own.or(known);
        }
    }
    heads
}
