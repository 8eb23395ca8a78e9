//! Checks that a graph's operations fit each other and the weights.

use octavo_kernels::{CacheShape, MatrixShape, Rope, ShapeError, Shapes, ValueShape};

use super::{Graph, GraphError, Node, Op, ValueId};
use crate::hparams::CacheGroup;
use crate::weights::{Tensors, VecId, WeightId};

/// Checks a graph; see [`Graph::validate`].
pub(super) fn all(
    graph: &Graph,
    tensors: &Tensors,
    ropes: &[Rope],
    caches: &[CacheGroup],
) -> Result<(), GraphError> {
    let mut check = Check {
        graph,
        tensors,
        ropes,
        caches,
        rewrites: !graph.is_causal(),
        written: vec![false; graph.values.len()],
        cached: caches
            .iter()
            .map(|c| vec![graph.borrows_cache; c.n_layer])
            .collect(),
        seen: vec![false; graph.states.len()],
    };
    for (i, node) in graph.nodes.iter().enumerate() {
        check.node(i, node)?;
    }
    let node = graph.nodes.len();
    if let Some(state) = check.seen.iter().position(|seen| !seen) {
        return Err(GraphError::State { node, state });
    }
    let mut layers = check.cached.iter().map(|group| group.iter());
    if let Some(layer) = layers.find_map(|mut group| group.position(|cached| !cached)) {
        return Err(GraphError::Cache { node, layer });
    }
    let results = [graph.hidden, graph.logits];
    let mut ends = graph.layers.iter().chain(&results);
    match ends.find(|v| check.written.get(v.index()) != Some(&true)) {
        Some(v) => Err(GraphError::NoResult { value: v.0 }),
        None => Ok(()),
    }
}

/// State of the check up to a node.
struct Check<'a> {
    graph: &'a Graph,
    tensors: &'a Tensors,
    ropes: &'a [Rope],
    caches: &'a [CacheGroup],
    /// Keys and values may be overwritten.
    rewrites: bool,
    written: Vec<bool>,
    /// `[group][layer]`: whether keys and values are written.
    cached: Vec<Vec<bool>>,
    /// Parts of the state that a node already uses.
    seen: Vec<bool>,
}

impl Check<'_> {
    fn node(&mut self, i: usize, node: &Node) -> Result<(), GraphError> {
        for v in node.op.inputs() {
            if self.written.get(v.index()) != Some(&true) {
                return Err(GraphError::Undefined {
                    node: i,
                    value: v.0,
                });
            }
        }
        if self.written.get(node.out.index()) != Some(&false) {
            return Err(GraphError::BadOutput {
                node: i,
                value: node.out.0,
            });
        }
        let got = self.graph.values[node.out.index()];
        let shape = node.op.shape(self);
        shape
            .and_then(|shape| shape.expect(got))
            .map_err(|error| at_node(i, error))?;
        self.see_cache(i, &node.op)?;
        self.written[node.out.index()] = true;
        Ok(())
    }

    /// Checks that each layer's cache is written once, before it is read, and that each part of the
    /// state belongs to one node.
    fn see_cache(&mut self, node: usize, op: &Op) -> Result<(), GraphError> {
        if let Some(state) = op.state() {
            let before = std::mem::replace(&mut self.seen[state], true);
            return match before {
                false => Ok(()),
                true => Err(GraphError::State { node, state }),
            };
        }
        let (cache, written) = match *op {
            Op::KvWrite { cache, .. } => (cache, false),
            Op::Attention { cache, .. } | Op::SelectKeys { cache, .. } => (cache, true),
            _ => return Ok(()),
        };
        let cached = &mut self.cached[cache.group][cache.layer];
        let again = !written && self.rewrites;
        if *cached != written && !again {
            let layer = cache.layer;
            return Err(GraphError::Cache { node, layer });
        }
        *cached = true;
        Ok(())
    }
}

/// Adds the node's number to an error in its operands.
fn at_node(node: usize, error: ShapeError) -> GraphError {
    match error {
        ShapeError::Width {
            what,
            expected,
            got,
        } => GraphError::Width {
            node,
            what,
            expected,
            got,
        },
        ShapeError::RowsDiffer => GraphError::RowsDiffer { node },
        ShapeError::NoWeight => GraphError::NoWeight { node },
        ShapeError::NoLayer(cache) => GraphError::Cache {
            node,
            layer: cache.layer,
        },
        ShapeError::NoState { state } => GraphError::State { node, state },
        ShapeError::NoRope { rope } => GraphError::Rope { node, rope },
        ShapeError::NoInput => GraphError::NoInput { node },
    }
}

impl Shapes<ValueId, WeightId, VecId, WeightId> for Check<'_> {
    fn value(&self, v: ValueId) -> ValueShape {
        self.graph.values[v.index()]
    }

    fn matrix(&self, id: &WeightId) -> Option<MatrixShape> {
        let m = self.tensors.matrices.get(id.0 as usize)?;
        Some(MatrixShape {
            rows: m.rows as usize,
            cols: m.cols as usize,
        })
    }

    fn vector(&self, id: &VecId) -> Option<usize> {
        Some(self.tensors.vectors.get(id.0 as usize)?.data.len())
    }

    fn table(&self, id: &WeightId) -> Option<MatrixShape> {
        self.matrix(id)
    }

    fn input(&self) -> Option<usize> {
        Some(self.graph.input).filter(|width| *width > 0)
    }

    fn embedding_input_width(&self) -> usize {
        self.graph.embedding_input_width
    }

    fn rope(&self, rope: usize) -> Option<usize> {
        Some(self.ropes.get(rope)?.frequencies.len())
    }

    fn state(&self, state: usize) -> Option<usize> {
        self.graph.states.get(state).copied()
    }

    fn cache(&self, group: usize) -> Option<CacheShape> {
        let group = self.caches.get(group)?;
        Some(CacheShape {
            layers: group.n_layer,
            head_dim: group.head_dim,
            width: group.n_head_kv * group.head_dim,
        })
    }
}
