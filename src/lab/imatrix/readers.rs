//! Which matrices multiply which values, from a model's graph. It shows every input of a product.

use std::collections::HashMap;

use octavo_engine::Engine;
use octavo_model::{Op, Tap, ValueId, WeightId};

/// Matrices of experts, and the values that say what they multiply.
#[derive(Clone, Debug)]
pub(super) struct Routed {
    /// The tensor.
    pub(super) name: String,
    /// How many experts it has.
    pub(super) experts: usize,
    /// What they multiply: one row for all experts of a token, or one for each, side by side.
    pub(super) x: Tap,
    /// The experts of each token.
    pub(super) ids: Tap,
    /// Values that each expert multiplies.
    pub(super) width: usize,
}

/// For every value the layers' matrices (and the output) that multiply it, each once: the parts of
/// a fused tensor have one name. Without experts, see [`routed`].
pub(crate) fn readers(engine: &Engine, output: bool) -> HashMap<Tap, Vec<String>> {
    let names = Names::of(engine);
    let mut readers: HashMap<Tap, Vec<String>> = HashMap::new();
    for node in &engine.model().graph.nodes {
        let (x, w) = match node.op {
            Op::MatMul { x, w } => (x, w),
            // a matrix for each head: all of them are for every token
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

/// The layers' matrices of experts, by whichever of the two values that they read comes last in a
/// step: when it is there, the other one is too.
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

/// What a graph's values and matrices are called.
struct Names<'e> {
    engine: &'e Engine,
    taps: HashMap<ValueId, Tap>,
}

impl<'e> Names<'e> {
    fn of(engine: &'e Engine) -> Names<'e> {
        let mut taps = HashMap::new();
        for node in &engine.model().graph.nodes {
            // whoever collects wants all rows: those that are wanted are the value itself
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

    /// What an input of a product is called.
    fn shown(&self, value: ValueId) -> Tap {
        self.tap(value).expect("the graph shows what products read")
    }

    fn tensor(&self, w: WeightId) -> &'e str {
        &self.engine.model().weights.matrix(w).name
    }
}
