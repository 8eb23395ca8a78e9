//! Lowers a model's graph to the list of operations that executors run. Values that never live at
//! the same time share a buffer. A part of the layers is a program too: its input is given with
//! each step.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gguf_rs_lite::{Gguf, TensorInfo};
use octavo_kernels::{
    CacheLayer, Instruction, KvShape, KvTypes, Program, ProgramOp, RowTable, Slot, Translate,
    ValueShape, WeightBytes,
};

use super::experts::nodes_of_experts;
use super::{TapSink, TapView};
use octavo_model::{
    CacheGroup, Graph, Network, Node, Op, Tap, ValueId, VecId, WeightId, WeightRef,
};

/// A lowered graph.
pub(super) struct Lowered {
    /// The program to run.
    pub(super) program: Program,
    /// Weights of the program's matrix products, by number.
    pub(super) weights: Vec<WeightId>,
    /// Tap names of the results.
    pub(super) taps: Taps,
}

/// Tap name of each operation's result, if it has one.
pub(super) struct Taps(Vec<Option<Tap>>);

impl Taps {
    /// Returns the operation whose result has this name.
    pub(super) fn position(&self, tap: Tap) -> Option<usize> {
        self.0.iter().position(|named| *named == Some(tap))
    }

    /// Returns whether the result of an operation has a name.
    pub(super) fn is_named(&self, op: usize) -> bool {
        self.0[op].is_some()
    }

    /// Passes the result of operation `op` to `sink`, if it has a name; returns the values that are
    /// to replace it, if any.
    pub(super) fn show(
        &self,
        sink: &mut TapSink<'_>,
        op: usize,
        rows: usize,
        width: usize,
        data: &[f32],
    ) -> Option<Vec<f32>> {
        let tap = self.0[op]?;
        let instead = RefCell::new(None);
        sink(&TapView {
            tap,
            rows,
            width,
            data,
            instead: &instead,
        });
        instead.into_inner()
    }
}

/// Returns how many layers of a cache group these nodes write.
fn cached(nodes: &[Node], group: usize) -> usize {
    let layer = |node: &Node| match node.op {
        Op::KvWrite { cache, .. } => Some(cache.layer).filter(|_| cache.group == group),
        _ => None,
    };
    let layers: BTreeSet<usize> = nodes.iter().filter_map(layer).collect();
    layers.len()
}

/// Returns the caches of some nodes, in elements of these types: all groups of the model, also
/// those that none of the nodes writes, because a step has block tables for all. A cache that the
/// graph borrows is whole.
fn caches(network: &dyn Network, nodes: &[Node], types: KvTypes) -> Vec<KvShape> {
    let shape = |(i, group): (usize, &CacheGroup)| KvShape {
        n_layer: match network.graph().borrows_cache {
            true => group.n_layer,
            false => cached(nodes, i),
        },
        n_head_kv: group.n_head_kv,
        head_dim: group.head_dim,
        types,
    };
    network.caches().iter().enumerate().map(shape).collect()
}

/// Returns the nodes of these layers, along with those before the first layer and after the last.
fn nodes(graph: &Graph, layers: &Range<usize>) -> Range<usize> {
    let before = layers.start.checked_sub(1);
    let start = before.map_or(0, |layer| graph.layer_nodes(layer).end);
    let end = if layers.end == graph.n_layer {
        graph.nodes.len()
    } else {
        graph.layer_nodes(layers.end - 1).end
    };
    start..end
}

/// Returns the file bytes of these layers' weights in matrix products, as progress counts them.
pub(super) fn weight_bytes(network: &dyn Network, layers: &Range<usize>) -> u64 {
    let bytes = |node: &Node| match node.op {
        Op::MatMul { w, .. } | Op::ExpertMatMul { w, .. } => {
            network.tensors().matrix(w).n_bytes() as u64
        }
        _ => 0,
    };
    let graph = network.graph();
    graph.nodes[nodes(graph, layers)].iter().map(bytes).sum()
}

/// Lowers these layers of a model, the first with the embeddings, the last with the output: all
/// layers, or those up to one, or those from one on. The cache is of types `kv`. A device leaves
/// the experts of the layers `experts` to the host.
pub(super) fn lower(
    gguf: &Arc<Gguf>,
    network: &dyn Network,
    layers: &Range<usize>,
    kv: KvTypes,
    experts: &[usize],
) -> Lowered {
    let mut compiler = Compiler::new(gguf, network);
    compiler.compile(layers);
    let graph = network.graph();
    // operations are nodes, after one for the input of a part
    let first = nodes(graph, layers).start;
    let inputs = usize::from(layers.start > 0);
    let ops = |nodes: Range<usize>| nodes.start - first + inputs..nodes.end - first + inputs;
    let on_host = nodes_of_experts(graph, layers, experts);
    let program = Program {
        ops: compiler.ops,
        slots: compiler.slots,
        ropes: network.ropes().to_vec(),
        caches: caches(network, &graph.nodes[nodes(graph, layers)], kv),
        states: compiler.states,
        output: compiler.output,
        kept: compiler.kept,
        embedding_input_width: graph.embedding_input_width,
        on_host: on_host.into_iter().map(ops).collect(),
    };
    Lowered {
        program,
        weights: compiler.matrices,
        taps: Taps(compiler.taps),
    }
}

/// Returns which values are written before an attention in which rows attend to later ones, and are
/// read by it or after it.
fn outlives(graph: &Graph) -> Vec<bool> {
    let nodes = || graph.nodes.iter().enumerate();
    let at = nodes().filter(|(_, node)| node.op.sees_later());
    let attentions: Vec<usize> = at.map(|(at, _)| at).collect();
    let mut outlives = vec![false; graph.values.len()];
    let last_use = graph.liveness();
    for (written, node) in nodes() {
        let value = node.out.index();
        let mut next = attentions.iter().filter(|at| **at > written);
        outlives[value] = next.next().is_some_and(|at| *at <= last_use[value]);
    }
    outlives
}

/// Bytes of a weight; they keep the file open.
pub(super) struct FileBytes {
    gguf: Arc<Gguf>,
    weight: WeightRef,
    /// All rows joined, where they are not adjacent in the file but are read as they are.
    joined: OnceLock<Vec<u8>>,
}

impl WeightBytes for FileBytes {
    fn bytes(&self) -> &[u8] {
        match self.weight.pieces {
            None => self.weight.bytes(&self.gguf),
            Some(_) => self.joined.get_or_init(|| self.join()),
        }
    }

    fn once<'a>(&'a self, room: &'a mut Vec<u8>) -> &'a [u8] {
        match self.weight.pieces {
            None => self.bytes(),
            Some(_) => {
                *room = self.join();
                room
            }
        }
    }

    fn lies_at(&self) -> Option<*const [u8]> {
        let alone = self.weight.pieces.is_none();
        alone.then(|| std::ptr::from_ref(self.bytes()))
    }

    fn n_bytes(&self) -> usize {
        self.weight.n_bytes()
    }

    fn rows<'a>(&'a self, range: Range<usize>, room: &'a mut Vec<u8>) -> &'a [u8] {
        self.weight.read(&self.gguf, range, room)
    }

    fn ahead(&self, at: usize) {
        if self.weight.transposed.is_some() {
            return;
        }
        self.gguf.ahead(self.tensor(), self.weight.place(at));
    }

    fn passed(&self, range: Range<usize>) {
        let is_of_file = self.weight.transposed.is_none();
        if let Some(last) = range.clone().next_back().filter(|_| is_of_file) {
            let range = self.weight.place(range.start)..self.weight.place(last) + 1;
            self.gguf.release_part(self.tensor(), range);
        }
    }
}

impl FileBytes {
    pub(super) fn new(gguf: &Arc<Gguf>, weight: &WeightRef) -> FileBytes {
        FileBytes {
            gguf: gguf.clone(),
            weight: weight.clone(),
            joined: OnceLock::new(),
        }
    }

    fn join(&self) -> Vec<u8> {
        let (row, mut room) = (self.weight.row_bytes(), Vec::new());
        let mut all = Vec::with_capacity(self.n_bytes());
        for at in (0..self.n_bytes()).step_by(row.max(1)) {
            all.extend_from_slice(self.rows(at..at + row, &mut room));
        }
        all
    }

    fn tensor(&self) -> &TensorInfo {
        &self.gguf.tensors()[self.weight.tensor]
    }
}

/// Lowers a graph to a program.
struct Compiler<'a> {
    gguf: &'a Arc<Gguf>,
    network: &'a dyn Network,
    ops: Vec<Instruction>,
    taps: Vec<Option<Tap>>,
    slots: Vec<ValueShape>,
    /// Slots whose value is not read any more.
    free: Vec<Slot>,
    /// By slot: whether its values outlive an attention in which rows attend to later ones. Such a
    /// slot has room for all rows, so other values use other slots.
    outliving: Vec<bool>,
    /// By value: whether it does.
    outlives: Vec<bool>,
    slot_of: Vec<Option<Slot>>,
    matrices: Vec<WeightId>,
    /// Sizes of the parts of a sequence's state.
    states: Vec<usize>,
    /// Layers of each cache group that earlier parts have.
    cached_before: Vec<usize>,
    output: Slot,
    kept: Option<Slot>,
}

impl<'a> Compiler<'a> {
    fn new(gguf: &'a Arc<Gguf>, network: &'a dyn Network) -> Self {
        Compiler {
            gguf,
            network,
            ops: Vec::new(),
            taps: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            outliving: Vec::new(),
            outlives: outlives(network.graph()),
            slot_of: vec![None; network.graph().values.len()],
            matrices: Vec::new(),
            states: Vec::new(),
            cached_before: Vec::new(),
            output: 0,
            kept: None,
        }
    }

    fn compile(&mut self, layers: &Range<usize>) {
        let graph = self.network.graph();
        let last_use = graph.liveness();
        // values by the node after which their slot is free
        let mut dying: HashMap<usize, Vec<ValueId>> = HashMap::new();
        for (i, node) in last_use.iter().enumerate() {
            dying.entry(*node).or_default().push(ValueId(i as u32));
        }
        let nodes = nodes(graph, layers);
        let before = &graph.nodes[..nodes.start];
        let groups = 0..self.network.caches().len();
        self.cached_before = groups.map(|group| cached(before, group)).collect();
        if let Some(before) = layers.start.checked_sub(1) {
            let out = self.allocate(graph.layers[before]);
            self.ops.push(ProgramOp::Input.to(out));
            // the part before has passed it to the tap
            self.taps.push(None);
        }
        for (i, node) in graph
            .nodes
            .iter()
            .enumerate()
            .take(nodes.end)
            .skip(nodes.start)
        {
            let has_result = !matches!(node.op, Op::KvWrite { .. });
            let out = has_result.then(|| self.allocate(node.out));
            let op = node.op.map(self);
            self.ops.push(Instruction { op, out });
            self.taps.push(node.tap);
            for value in dying.remove(&i).unwrap_or_default() {
                self.free.extend(self.slot_of[value.index()]);
            }
        }
        let whole = layers.end == graph.n_layer;
        self.output = self.slot(if whole {
            graph.logits
        } else {
            graph.layers[layers.end - 1]
        });
        self.kept = graph.kept.filter(|_| whole).map(|value| self.slot(value));
    }

    /// Allocates a slot for a value: a free one of its shape, or a new one. An op's inputs are
    /// still alive here, so its result never overwrites them.
    fn allocate(&mut self, value: ValueId) -> Slot {
        let info = self.network.graph().values[value.index()];
        let outlives = self.outlives[value.index()];
        let fits = |s: &Slot| self.slots[*s] == info && self.outliving[*s] == outlives;
        let slot = match self.free.iter().position(fits) {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.slots.push(info);
                self.outliving.push(outlives);
                self.slots.len() - 1
            }
        };
        self.slot_of[value.index()] = Some(slot);
        slot
    }

    fn slot(&self, value: ValueId) -> Slot {
        self.slot_of[value.index()]
            .expect("the graph was validated: values are written before they are read")
    }
}

impl Translate<ValueId, WeightId, VecId, WeightId> for Compiler<'_> {
    type Value = Slot;
    type Matrix = usize;
    type Vector = Arc<[f32]>;
    type Table = RowTable;

    fn value(&mut self, value: ValueId) -> Slot {
        self.slot(value)
    }

    fn matrix(&mut self, id: WeightId) -> usize {
        self.matrices.push(id);
        self.matrices.len() - 1
    }

    fn vector(&mut self, id: VecId) -> Arc<[f32]> {
        self.network.tensors().vector(id).into()
    }

    fn table(&mut self, id: WeightId) -> RowTable {
        let weight = self.network.tensors().matrix(id).clone();
        RowTable {
            ty: weight.ty,
            rows: weight.rows as usize,
            cols: weight.cols as usize,
            source: Arc::new(FileBytes::new(self.gguf, &weight)),
        }
    }

    fn state(&mut self, state: usize) -> usize {
        // each part belongs to one operation
        self.states.push(self.network.graph().states[state]);
        self.states.len() - 1
    }

    fn cache(&mut self, cache: CacheLayer) -> CacheLayer {
        CacheLayer {
            layer: cache.layer - self.cached_before[cache.group],
            ..cache
        }
    }
}
