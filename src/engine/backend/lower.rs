//! From a model's graph to the list of operations that executors take, with buffers shared by
//! values that never live at the same time. A part of the layers is a program too: what comes
//! before it is given with each step.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::{
    Bytes, KvShape, KvType, Op as KernelOp, Program, Rope, RowTable, Slot, SlotInfo,
};

use super::{TapSink, TapView};
use octavo_model::{
    Graph, Hparams, Model, Node, Op, Pairing, Rows, Tap, ValueId, VecId, WeightId, WeightRef,
};

/// A graph as a program.
pub(super) struct Lowered {
    /// What to execute.
    pub(super) program: Program,
    /// What the program's products multiply with, by number.
    pub(super) weights: Vec<WeightId>,
    /// Names of the results.
    pub(super) taps: Taps,
}

/// Per operation: its tap and how often the name came before.
pub(super) struct Taps(Vec<Option<(Tap, usize)>>);

impl Taps {
    /// Shows the result of operation `op` to `sink`, if it has a name.
    pub(super) fn show(
        &self,
        sink: &mut TapSink<'_>,
        op: usize,
        rows: usize,
        width: usize,
        data: &[f32],
    ) {
        if let Some((tap, occurrence)) = self.0[op] {
            sink(&TapView {
                tap,
                occurrence,
                rows,
                width,
                data,
            });
        }
    }
}

/// The cache of so many of a model's layers in elements of `ty`.
fn kv_shape(h: &Hparams, n_layer: usize, ty: KvType) -> KvShape {
    KvShape {
        n_layer,
        n_head_kv: h.n_head_kv(),
        head_dim: h.head_dim(),
        ty,
    }
}

/// The nodes of these layers, of what comes before the first layer and behind the last.
fn nodes(graph: &Graph, layers: &Range<usize>) -> Range<usize> {
    let behind = |layer: usize| {
        let last = |node: &Node| node.out == graph.layers[layer];
        1 + graph
            .nodes
            .iter()
            .position(last)
            .expect("the graph was validated: layers hand on what was written")
    };
    let start = if layers.start == 0 {
        0
    } else {
        behind(layers.start - 1)
    };
    let end = if layers.end == graph.n_layer {
        graph.nodes.len()
    } else {
        behind(layers.end - 1)
    };
    start..end
}

/// Bytes in the file of what products of these layers multiply with, as progress counts them.
pub(super) fn weight_bytes(model: &Model, layers: &Range<usize>) -> u64 {
    let bytes = |node: &Node| match node.op {
        Op::MatMul { w, .. } => model.weights.matrix(w).n_bytes() as u64,
        _ => 0,
    };
    model.graph.nodes[nodes(&model.graph, layers)]
        .iter()
        .map(bytes)
        .sum()
}

/// Lowers these layers of a model, the first with the embeddings, the last with the output: all
/// that there are, or those up to one, or those from one on. The cache is of type `kv`.
pub(super) fn lower(gguf: &Arc<Gguf>, model: &Model, layers: &Range<usize>, kv: KvType) -> Lowered {
    let kv = kv_shape(&model.hparams, layers.len(), kv);
    let mut compiler = Compiler::new(gguf, model);
    compiler.compile(layers);
    let rope = Rope {
        frequencies: model.rope.inv_freq.clone(),
        magnitude: model.rope.magnitude as f32,
        neox: model.rope.pairing == Pairing::Neox,
    };
    let program = Program {
        ops: compiler.ops,
        slots: compiler.slots,
        rope,
        kv,
        output: compiler.output,
    };
    Lowered {
        program,
        weights: compiler.matrices,
        taps: Taps(compiler.taps),
    }
}

/// A weight's bytes, kept alive by the file.
pub(super) struct FileBytes {
    pub(super) gguf: Arc<Gguf>,
    pub(super) weight: WeightRef,
}

impl Bytes for FileBytes {
    fn bytes(&self) -> &[u8] {
        self.weight.bytes(&self.gguf)
    }

    fn n_bytes(&self) -> usize {
        self.weight.n_bytes()
    }

    fn rows<'a>(&'a self, range: Range<usize>, room: &'a mut Vec<u8>) -> &'a [u8] {
        self.weight.read(&self.gguf, range, room)
    }
}

/// From graph to program.
struct Compiler<'a> {
    gguf: &'a Arc<Gguf>,
    model: &'a Model,
    ops: Vec<KernelOp>,
    taps: Vec<Option<(Tap, usize)>>,
    slots: Vec<SlotInfo>,
    /// Slots whose value nobody reads any more.
    free: Vec<Slot>,
    slot_of: Vec<Option<Slot>>,
    matrices: Vec<WeightId>,
    /// The first layer, which is the cache's first.
    first: usize,
    output: Slot,
}

impl<'a> Compiler<'a> {
    fn new(gguf: &'a Arc<Gguf>, model: &'a Model) -> Self {
        Compiler {
            gguf,
            model,
            ops: Vec::new(),
            taps: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            slot_of: vec![None; model.graph.values.len()],
            matrices: Vec::new(),
            first: 0,
            output: 0,
        }
    }

    fn compile(&mut self, layers: &Range<usize>) {
        let graph: &Graph = &self.model.graph;
        let last_use = graph.liveness();
        // values by the node after which their slot is free
        let mut dying: HashMap<usize, Vec<ValueId>> = HashMap::new();
        for (i, node) in last_use.iter().enumerate() {
            dying.entry(*node).or_default().push(ValueId(i as u32));
        }
        let mut seen: HashMap<Tap, usize> = HashMap::new();
        let nodes = nodes(graph, layers);
        self.first = layers.start;
        if let Some(before) = layers.start.checked_sub(1) {
            let out = self.allocate(graph.layers[before]);
            self.ops.push(KernelOp::Input { out });
            // the part before has shown it
            self.taps.push(None);
        }
        for (i, node) in graph
            .nodes
            .iter()
            .enumerate()
            .take(nodes.end)
            .skip(nodes.start)
        {
            let writes = !matches!(node.op, Op::KvWrite { .. });
            let out = if writes { self.allocate(node.out) } else { 0 };
            let op = self.op(&node.op, out);
            self.ops.push(op);
            self.taps.push(node.tap.map(|tap| {
                let count = seen.entry(tap).or_default();
                *count += 1;
                (tap, *count - 1)
            }));
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
    }

    /// A slot for a value: one that is free and has its shape, or a new one. An op's inputs are
    /// still alive here, so its result never overwrites them.
    fn allocate(&mut self, value: ValueId) -> Slot {
        let info = self.model.graph.values[value.index()];
        let info = SlotInfo {
            width: info.width,
            selected: info.rows == Rows::Wanted,
        };
        let slot = match self.free.iter().position(|s| self.slots[*s] == info) {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.slots.push(info);
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

    fn vector(&self, id: VecId) -> Arc<[f32]> {
        self.model.weights.vector(id).into()
    }

    fn op(&mut self, op: &Op, out: Slot) -> KernelOp {
        match *op {
            Op::Embed { table } => {
                let weight = self.model.weights.matrix(table).clone();
                let (ty, rows, cols) = (weight.ty, weight.rows as usize, weight.cols as usize);
                let source = Arc::new(FileBytes {
                    gguf: self.gguf.clone(),
                    weight,
                });
                KernelOp::Embed {
                    table: RowTable {
                        ty,
                        rows,
                        cols,
                        source,
                    },
                    out,
                }
            }
            Op::RmsNorm { x, weight, eps, .. } => KernelOp::RmsNorm {
                x: self.slot(x),
                weight: self.vector(weight),
                eps,
                out,
            },
            Op::MatMul { x, w } => {
                self.matrices.push(w);
                KernelOp::MatMul {
                    x: self.slot(x),
                    w: self.matrices.len() - 1,
                    out,
                }
            }
            Op::AddBias { x, bias } => KernelOp::AddBias {
                x: self.slot(x),
                bias: self.vector(bias),
                out,
            },
            Op::Rope { x, head_dim } => KernelOp::Rope {
                x: self.slot(x),
                head_dim,
                out,
            },
            Op::KvWrite { k, v, layer } => KernelOp::KvWrite {
                k: self.slot(k),
                v: self.slot(v),
                layer: layer - self.first,
            },
            Op::Attention { q, layer, scale } => KernelOp::Attention {
                q: self.slot(q),
                layer: layer - self.first,
                scale,
                out,
            },
            Op::SwiGlu { gate, up } => KernelOp::SwiGlu {
                gate: self.slot(gate),
                up: self.slot(up),
                out,
            },
            Op::Add { a, b } => KernelOp::Add {
                a: self.slot(a),
                b: self.slot(b),
                out,
            },
            Op::SelectRows { x } => KernelOp::SelectRows {
                x: self.slot(x),
                out,
            },
        }
    }
}
