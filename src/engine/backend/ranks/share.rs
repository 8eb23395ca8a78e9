//! One rank's shard of a network: the same graph, with some of the rows of every matrix and some of
//! the KV heads of every cache.
//!
//! Rows of a product depend on nothing but their weights and the whole input, and attention heads
//! on nothing but their own keys. So a rank computes its rows, and where an operation needs whole
//! rows, all ranks gather their parts: nothing is summed across ranks, and no bit depends on their
//! number. Operations that are not known to work on parts work on whole rows, on every rank, so
//! that this needs no knowledge of architectures.

use std::ops::Range;

use octavo_kernels::{Alibi, CacheLayer, Cut, Rope, Scores, Translate, ValueShape};
use octavo_model::{
    CacheGroup, Graph, Network, Node, Op, Pieces, Tap, Tensors, ValueId, VecId, WeightId,
};

use super::heads;

/// Smallest number of rows that a matrix is cut into, unless heads decide.
const GRAIN: usize = 16;

/// A rank's shard of a network.
pub(in crate::backend) struct Share<'a> {
    ropes: &'a [Rope],
    graph: Graph,
    tensors: Tensors,
    caches: Vec<CacheGroup>,
    /// By node: how its result is divided, if it is.
    pub(in crate::backend) cuts: Vec<Option<Cut>>,
}

impl Network for Share<'_> {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    fn ropes(&self) -> &[Rope] {
        self.ropes
    }

    fn caches(&self) -> &[CacheGroup] {
        &self.caches
    }
}

impl<'a> Share<'a> {
    /// Creates the shard of one of `ranks` ranks, which must be [possible](heads::is_possible).
    pub(in crate::backend) fn of(network: &'a dyn Network, rank: usize, ranks: usize) -> Share<'a> {
        let whole = network.graph();
        let mut divider = Divider {
            network,
            rank,
            ranks,
            heads: heads::of_values(network),
            forms: vec![Form::default(); whole.values.len()],
            wants: None,
            tensors: network.tensors().clone(),
            nodes: Vec::new(),
            values: Vec::new(),
            cuts: Vec::new(),
        };
        let mut first_layer = 0;
        for (i, node) in whole.nodes.iter().enumerate() {
            if i == whole.first_layer {
                first_layer = divider.nodes.len();
            }
            divider.node(node);
        }
        let layers = whole.layers.iter().map(|v| divider.whole(*v)).collect();
        let (hidden, logits) = (divider.whole(whole.hidden), divider.whole(whole.logits));
        let kept = whole.kept.map(|value| divider.whole(value));
        let graph = Graph {
            nodes: divider.nodes,
            values: divider.values,
            first_layer,
            layers,
            hidden,
            kept,
            logits,
            ..whole.clone()
        };
        let caches = network.caches().iter().map(|group| CacheGroup {
            n_head_kv: match group.n_layer {
                // a group without layers is not divided
                0 => group.n_head_kv,
                _ => group.n_head_kv / ranks,
            },
            ..*group
        });
        let share = Share {
            ropes: network.ropes(),
            graph,
            tensors: divider.tensors,
            caches: caches.collect(),
            cuts: divider.cuts,
        };
        let sound = share
            .graph
            .validate(&share.tensors, share.ropes, &share.caches);
        sound.expect("a share of a sound graph is sound");
        share
    }
}

/// Forms of a value of the whole graph that the shard has: all of its rows, a part of them, or
/// both.
#[derive(Clone, Copy, Default)]
struct Form {
    whole: Option<ValueId>,
    part: Option<(Cut, ValueId)>,
}

/// Divides a whole graph into shards.
struct Divider<'a> {
    network: &'a dyn Network,
    rank: usize,
    ranks: usize,
    heads: Vec<Option<usize>>,
    forms: Vec<Form>,
    /// How the operation that is being translated needs its operands: divided, or whole.
    wants: Option<Cut>,
    tensors: Tensors,
    nodes: Vec<Node>,
    values: Vec<ValueShape>,
    cuts: Vec<Option<Cut>>,
}

impl Divider<'_> {
    fn shape(&self, value: ValueId) -> ValueShape {
        self.network.graph().values[value.index()]
    }

    /// Returns this rank's range of each piece.
    fn mine(&self, cut: Cut) -> Range<usize> {
        cut.of(self.rank, self.ranks)
    }

    fn push(&mut self, op: Op, shape: ValueShape, tap: Option<Tap>, cut: Option<Cut>) -> ValueId {
        let out = ValueId(self.values.len() as u32);
        self.values.push(shape);
        self.nodes.push(Node { op, out, tap });
        self.cuts.push(cut);
        out
    }

    /// Returns the whole rows of a value, gathered if need be.
    fn whole(&mut self, value: ValueId) -> ValueId {
        match self.forms[value.index()] {
            Form {
                whole: Some(whole), ..
            } => whole,
            Form {
                part: Some((cut, x)),
                ..
            } => {
                let op = Op::AllGather { x, cut };
                let whole = self.push(op, self.shape(value), None, None);
                self.forms[value.index()].whole = Some(whole);
                whole
            }
            Form { .. } => unreachable!("the graph is sound: values are written, then read"),
        }
    }

    /// Returns this rank's part of a value.
    fn part(&mut self, value: ValueId, cut: Cut) -> ValueId {
        match self.forms[value.index()].part {
            Some((own, part)) if own == cut => part,
            _ => {
                let (x, mine) = (self.whole(value), self.mine(cut));
                let op = Op::Slice {
                    x,
                    each: cut.width,
                    from: mine.start,
                    width: mine.len(),
                };
                self.push(op, self.shape_of_part(value, cut), None, Some(cut))
            }
        }
    }

    fn shape_of_part(&self, value: ValueId, cut: Cut) -> ValueShape {
        ValueShape {
            width: cut.pieces * self.mine(cut).len(),
            ..self.shape(value)
        }
    }

    /// Returns how a value is divided, if there is nothing but a part of it yet.
    fn only_part(&self, value: ValueId) -> Option<Cut> {
        let form = self.forms[value.index()];
        form.part
            .filter(|_| form.whole.is_none())
            .map(|(cut, _)| cut)
    }

    fn node(&mut self, node: &Node) {
        let cut = self.cut(node);
        let op = self.divided(cut, node.op);
        let shape = match cut {
            Some(cut) => self.shape_of_part(node.out, cut),
            None => self.shape(node.out),
        };
        let out = self.push(op, shape, node.tap, cut);
        let form = &mut self.forms[node.out.index()];
        match cut {
            Some(cut) => form.part = Some((cut, out)),
            None => form.whole = Some(out),
        }
    }

    /// Translates an operation so that it makes a part of its result, or all of it.
    fn divided(&mut self, cut: Option<Cut>, op: Op) -> Op {
        self.wants = None;
        match (cut, op) {
            (Some(cut), Op::MatMul { x, w }) => Op::MatMul {
                x: self.whole(x),
                w: self.rows_of(w, cut),
            },
            (Some(cut), Op::ExpertMatMul { x, w, ids, experts }) => Op::ExpertMatMul {
                x: self.whole(x),
                w: self.rows_of(w, cut),
                ids: self.whole(ids),
                experts,
            },
            (Some(cut), Op::ExpertBias { x, bias, ids }) => Op::ExpertBias {
                x: self.part(x, cut),
                bias: self.some_of(bias, cut),
                ids: self.whole(ids),
            },
            (Some(cut), Op::ExpertSum { x, weights }) => {
                let pieces = self.shape(weights).width;
                Op::ExpertSum {
                    x: self.part(x, Cut { pieces, ..cut }),
                    weights: self.whole(weights),
                }
            }
            (Some(cut), Op::ScaleRows { x, by }) => Op::ScaleRows {
                x: self.part(x, cut),
                by: self.whole(by),
            },
            (
                Some(cut),
                Op::Slice {
                    x,
                    each,
                    from,
                    width,
                },
            ) => {
                let wide = |values: usize| values / width * each;
                let of = Cut {
                    width: wide(cut.width),
                    grain: wide(cut.grain),
                    ..cut
                };
                let x = self.part(x, of);
                Op::Slice {
                    x,
                    each,
                    from,
                    width,
                }
            }
            (Some(cut), op @ Op::Attention { .. }) => self.attention(cut, op),
            (None, Op::KvWrite { k, v, cache }) => {
                let cut = self.by_heads(k, self.network.caches()[cache.group].n_head_kv);
                Op::KvWrite {
                    k: self.part(k, cut),
                    v: self.part(v, cut),
                    cache,
                }
            }
            (cut, op) => {
                self.wants = cut;
                op.map(self)
            }
        }
    }

    /// Returns the attention of this rank's heads.
    fn attention(&mut self, cut: Cut, op: Op) -> Op {
        let Op::Attention {
            q,
            seen,
            cache,
            scores,
            sinks,
        } = op
        else {
            unreachable!("the caller has seen which operation it is");
        };
        let per_head = self.per_head(cut, cache);
        Op::Attention {
            q: self.part(q, cut),
            seen: seen.map(|seen| self.whole(seen)),
            cache,
            scores: self.scores_of_heads(scores, per_head),
            sinks: sinks.map(|sinks| self.some_of(sinks, per_head)),
        }
    }

    /// Returns how the result of a node is divided, if this rank computes a part of it.
    fn cut(&self, node: &Node) -> Option<Cut> {
        let width = self.shape(node.out).width;
        match node.op {
            Op::MatMul { .. } => match self.heads[node.out.index()] {
                Some(heads) if width.is_multiple_of(heads) => Some(self.by_heads(node.out, heads)),
                _ => self.by_rows(1, width),
            },
            Op::ExpertMatMul { ids, .. } => {
                let used = self.shape(ids).width;
                self.by_rows(used, width / used)
            }
            Op::ExpertBias { x, ids, .. } => self
                .only_part(x)
                .filter(|cut| cut.pieces == self.shape(ids).width),
            Op::ExpertSum { x, weights } => {
                let cut = self.only_part(x)?;
                let sums = cut.pieces == self.shape(weights).width;
                sums.then_some(Cut { pieces: 1, ..cut })
            }
            Op::Attention { q, cache, .. } => {
                let heads = self.network.caches()[cache.group].n_head_kv;
                Some(self.by_heads(q, heads))
            }
            Op::Unary { x, .. } | Op::ScaleByPosition { x, .. } | Op::SelectRows { x } => {
                self.only_part(x)
            }
            Op::ScaleRows { x, by } => self.only_part(x).filter(|_| self.shape(by).width == 1),
            Op::AddBias { x, .. } => self.only_row_part(x, 1),
            Op::MulVector { x, by } => {
                let by = self.network.tensors().vector(by).len();
                self.only_row_part(x, 1).filter(|cut| cut.width == by)
            }
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. } => {
                self.only_row_part(x, self.network.tensors().vector(weight).len())
            }
            Op::Rope { x, head_dim, .. } => self.only_row_part(x, head_dim),
            Op::Hadamard { x, order } => self.only_row_part(x, order),
            Op::Slice { x, each, width, .. } => {
                let cut = self.only_row_part(x, each)?;
                let narrow = |values: usize| values / each * width;
                Some(Cut {
                    width: narrow(cut.width),
                    grain: narrow(cut.grain),
                    ..cut
                })
            }
            Op::Gate { gate: a, up: b, .. } | Op::Add { a, b } | Op::Mul { a, b } => {
                let cut = self.only_part(a)?;
                (self.only_part(b) == Some(cut)).then_some(cut)
            }
            _ => None,
        }
    }

    /// As [`Divider::only_part`], for rows of one piece that is cut between groups of `group`
    /// values.
    fn only_row_part(&self, value: ValueId, group: usize) -> Option<Cut> {
        let cut = self.only_part(value)?;
        let fits =
            cut.pieces == 1 && cut.grain.is_multiple_of(group) && cut.width.is_multiple_of(group);
        fits.then_some(cut)
    }

    /// Cuts a row evenly between KV heads.
    fn by_heads(&self, value: ValueId, heads: usize) -> Cut {
        let width = self.shape(value).width;
        Cut {
            pieces: 1,
            width,
            grain: width / heads,
        }
    }

    /// Cuts `pieces` pieces of `width` rows; `None` if they are too few to be cut.
    fn by_rows(&self, pieces: usize, width: usize) -> Option<Cut> {
        let cut = Cut {
            pieces,
            width,
            grain: GRAIN,
        };
        (cut.grains() >= self.ranks).then_some(cut)
    }

    /// Returns the cut of a row's heads that corresponds to a cut of the row.
    fn per_head(&self, cut: Cut, cache: CacheLayer) -> Cut {
        let head_dim = self.network.caches()[cache.group].head_dim;
        Cut {
            width: cut.width / head_dim,
            grain: cut.grain / head_dim,
            ..cut
        }
    }

    /// Returns how this rank's heads, of a row of heads that is cut, compute scores.
    fn scores_of_heads(&self, scores: Scores, cut: Cut) -> Scores {
        let alibi = scores.alibi.map(|alibi| Alibi {
            first: alibi.first + self.mine(cut).start,
            ..alibi
        });
        Scores { alibi, ..scores }
    }

    /// Adds this rank's rows of a matrix, or of each of several stacked ones.
    fn rows_of(&mut self, id: WeightId, cut: Cut) -> WeightId {
        let (mut weight, mine) = (self.tensors.matrix(id).clone(), self.mine(cut));
        let (each, rows) = (cut.width as u64, mine.len() as u64);
        weight.row_start += mine.start as u64;
        if weight.rows > each {
            weight.pieces = Some(Pieces { each, rows });
        }
        weight.rows = weight.rows / each * rows;
        self.tensors.matrices.push(weight);
        WeightId(self.tensors.matrices.len() as u32 - 1)
    }

    /// Adds this rank's values of a vector, or of each of several concatenated ones.
    fn some_of(&mut self, id: VecId, cut: Cut) -> VecId {
        let mut vector = self.tensors.vectors[id.0 as usize].clone();
        let mine = self.mine(cut);
        let pieces = vector.data.chunks_exact(cut.width);
        vector.data = pieces
            .flat_map(|piece| &piece[mine.clone()])
            .copied()
            .collect();
        self.tensors.vectors.push(vector);
        VecId(self.tensors.vectors.len() as u32 - 1)
    }
}

/// Translates operations whose operands are all divided alike, or all whole.
impl Translate<ValueId, WeightId, VecId, WeightId> for Divider<'_> {
    type Value = ValueId;
    type Matrix = WeightId;
    type Vector = VecId;
    type Table = WeightId;

    fn value(&mut self, value: ValueId) -> ValueId {
        match self.wants {
            Some(cut) => self.part(value, cut),
            None => self.whole(value),
        }
    }

    fn matrix(&mut self, id: WeightId) -> WeightId {
        id
    }

    fn vector(&mut self, id: VecId) -> VecId {
        match self.wants {
            // a vector that is shared by all heads stays whole
            Some(cut) if self.tensors.vector(id).len() == cut.width => self.some_of(id, cut),
            _ => id,
        }
    }

    fn table(&mut self, id: WeightId) -> WeightId {
        id
    }

    fn cache(&mut self, cache: CacheLayer) -> CacheLayer {
        cache
    }

    fn state(&mut self, state: usize) -> usize {
        state
    }
}
