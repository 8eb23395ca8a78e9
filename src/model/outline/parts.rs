//! Division of rows into heads or experts, as the operations that read or write them see it.

use crate::Network;
use crate::graph::{Graph, Op, ValueId};

/// Returns the number of parts of each value's rows; 1 where no operation divides them.
pub(super) fn of_values(network: &dyn Network) -> Vec<usize> {
    let graph = network.graph();
    let mut parts = Parts {
        graph,
        known: vec![1; graph.values.len()],
    };
    // readers know more than writers: a product does not know that its rows are heads
    for node in graph.nodes.iter().rev() {
        parts.of_operands(network, &node.op, node.out);
        for x in single_values(&node.op) {
            parts.copy(node.out, x);
        }
    }
    for node in &graph.nodes {
        for x in single_values(&node.op) {
            parts.copy(x, node.out);
        }
    }
    parts.known
}

struct Parts<'a> {
    graph: &'a Graph,
    known: Vec<usize>,
}

impl Parts<'_> {
    fn width(&self, value: ValueId) -> usize {
        self.graph.values[value.index()].width
    }

    /// Divides rows of values, unless an operation already does.
    fn divide(&mut self, values: &[ValueId], parts: usize) {
        for value in values {
            let width = self.width(*value);
            let fits = (2..width).contains(&parts) && width.is_multiple_of(parts);
            let known = &mut self.known[value.index()];
            if fits && *known == 1 {
                *known = parts;
            }
        }
    }

    /// Divides rows of values into parts of this width.
    fn divide_by(&mut self, values: &[ValueId], width: usize) {
        for value in values {
            let parts = self.width(*value).checked_div(width).unwrap_or(1);
            self.divide(&[*value], parts);
        }
    }

    fn copy(&mut self, from: ValueId, to: ValueId) {
        if self.width(from) == self.width(to) {
            self.divide(&[to], self.known[from.index()]);
        }
    }

    fn of_operands(&mut self, network: &dyn Network, op: &Op, out: ValueId) {
        let tensors = network.tensors();
        match *op {
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. } => {
                let width = tensors.vector(weight).len();
                self.divide_by(&[x, out], width);
            }
            Op::Rope { x, head_dim, .. } => {
                self.divide_by(&[x, out], head_dim);
            }
            Op::Attention { q, cache, .. } => {
                let width = network.caches()[cache.group].head_dim;
                self.divide_by(&[q, out], width);
            }
            Op::SelectKeys { q, cache, .. } => {
                let width = network.caches()[cache.group].head_dim;
                self.divide_by(&[q], width);
            }
            Op::KvWrite { k, v, cache } => {
                let heads = network.caches()[cache.group].n_head_kv;
                self.divide(&[k, v], heads);
            }
            Op::LinearAttention {
                q, k, v, rate, how, ..
            } => {
                let heads = self.width(rate);
                self.divide(&[v, out], heads);
                self.divide_by(&[q, k], how.key_dim);
            }
            Op::Wkv7 {
                r,
                decay,
                k,
                v,
                removed,
                replaced,
                key_dim,
                ..
            } => {
                let heads = self.width(r) / key_dim;
                self.divide(&[r, decay, k, v, removed, replaced, out], heads);
            }
            Op::Slice { x, each, width, .. } => {
                self.divide_by(&[x], each);
                self.divide_by(&[out], width);
            }
            Op::Concat { a, b, each } => {
                let parts = self.width(a) / each[0];
                self.divide(&[a, out], parts);
                if self.width(b) == parts * each[1] {
                    self.divide(&[b], parts);
                }
            }
            Op::ExpertMatMul { x, w, ids, .. } => {
                let (used, cols) = (self.width(ids), tensors.matrix(w).cols as usize);
                self.divide(&[out], used);
                self.divide_by(&[x], cols);
            }
            Op::ExpertBias { x, ids, .. } => {
                let used = self.width(ids);
                self.divide(&[x, out], used);
            }
            Op::ExpertSum { x, weights } => {
                let used = self.width(weights);
                self.divide(&[x], used);
            }
            _ => {}
        }
    }
}

/// Returns the inputs of an operation whose results depend only on values at the same place in
/// them.
fn single_values(op: &Op) -> Vec<ValueId> {
    match *op {
        Op::AddBias { x, .. }
        | Op::Unary { x, .. }
        | Op::MulVector { x, .. }
        | Op::ScaleByPosition { x, .. }
        | Op::CausalConv { x, .. }
        | Op::SelectRows { x } => vec![x],
        Op::Gate { gate: a, up: b, .. } | Op::Add { a, b } | Op::Mul { a, b } => vec![a, b],
        _ => Vec::new(),
    }
}
