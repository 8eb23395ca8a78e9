//! Finds in a model's graph the matrices that multiply each value. Every product's input has a tap.

use std::collections::HashMap;

use octavo_engine::Engine;
use octavo_model::{Op, Tap, ValueId, WeightId};

/// Matrices of a layer's experts, and the values that they read.
#[derive(Clone, Debug)]
pub(super) struct Routed {
    /// Tensor name.
    pub(super) name: String,
    /// Number of experts.
    pub(super) experts: usize,
    /// Input: one row shared by all experts of a token, or one for each expert, side by side.
    pub(super) x: Tap,
    /// Expert ids of each token.
    pub(super) ids: Tap,
    /// Input width of each expert.
    pub(super) width: usize,
}

/// Returns for every value the layers' matrices (and the output head) that multiply it, each once:
/// the parts of a fused tensor share a name. For expert matrices see [`routed`].
pub(crate) fn readers(engine: &Engine, output: bool) -> HashMap<Tap, Vec<String>> {
    let names = Names::of(engine);
    let mut readers: HashMap<Tap, Vec<String>> = HashMap::new();
    for node in &engine.model().graph.nodes {
        let (x, w) = match node.op {
            Op::MatMul { x, w } => (x, w),
            // a matrix per head: all of them apply to every token
            Op::ExpertMatMul { x, w, ids, .. } if names.tap(ids).is_none() => (x, w),
            _ => continue,
        };
        let name = names.tensor(w);
        if name.starts_with("blk.") || (output && name == "output.weight") {
            let names = readers.entry(names.shown(x)).or_default();
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    readers
}

/// Returns the layers' expert matrices, keyed by the last computed of the two values that they
/// read: by then both are available.
pub(super) fn routed(engine: &Engine) -> HashMap<Tap, Vec<Routed>> {
    let names = Names::of(engine);
    let mut routed: HashMap<Tap, Vec<Routed>> = HashMap::new();
    for node in &engine.model().graph.nodes {
        if let Op::ExpertMatMul { x, w, ids, experts } = node.op
            && let (x_tap, Some(ids_tap)) = (names.shown(x), names.tap(ids))
        {
            // values are numbered in the order in which they are computed
            let last = if x > ids { x_tap } else { ids_tap };
            routed.entry(last).or_default().push(Routed {
                name: names.tensor(w).to_owned(),
                experts,
                x: x_tap,
                ids: ids_tap,
                width: engine.model().weights.matrix(w).cols as usize,
            });
        }
    }
    routed
}

/// Tap names of a graph's values, and tensor names of its matrices.
struct Names<'e> {
    engine: &'e Engine,
    taps: HashMap<ValueId, Tap>,
}

impl<'e> Names<'e> {
    fn of(engine: &'e Engine) -> Names<'e> {
        let mut taps = HashMap::new();
        for node in &engine.model().graph.nodes {
            // all rows are outputs during collection, so the selected rows are the value itself
            let tap = match node.op {
                Op::SelectRows { x } => node.tap.or_else(|| taps.get(&x).copied()),
                _ => node.tap,
            };
            if let Some(tap) = tap {
                taps.insert(node.out, tap);
            }
        }
        Names { engine, taps }
    }

    fn tap(&self, value: ValueId) -> Option<Tap> {
        self.taps.get(&value).copied()
    }

    /// Returns the tap of a product's input.
    fn shown(&self, value: ValueId) -> Tap {
        self.tap(value).expect("the graph shows what products read")
    }

    fn tensor(&self, w: WeightId) -> &'e str {
        &self.engine.model().weights.matrix(w).name
    }
}
