//! The CPU backend: compiles the graph to a list of kernel operations, with buffers shared by values that never live
//! at the same time.

use std::collections::HashMap;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::{
    Bytes, Executor, Isa, KvShape, KvStore, KvTooLarge, KvType, Matrix, MatrixError, Op as KernelOp, Pool, Program,
    Rope, RowTable, Slot, SlotInfo, Step,
};

use super::{Executable, TapSink, TapView};
use crate::model::{Graph, Model, Op, Pairing, Rows, Tap, ValueId, VecId, WeightId, WeightRef};

/// How to run on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whose kernels.
    pub isa: Isa,
    /// Threads.
    pub threads: usize,
    /// Element type of the cache.
    pub kv_type: KvType,
    /// Pages of the cache.
    pub n_pages: usize,
    /// Copy weights into the kernels' layout; otherwise run from the file's rows.
    pub repack: bool,
}

/// Why a model cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A weight that the kernels cannot take.
    #[error("tensor {name}: {source}")]
    Matrix {
        /// Its name in the file.
        name: String,
        /// What is wrong.
        source: MatrixError,
    },
    /// The system refused threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// Asked for.
        threads: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The cache does not fit.
    #[error(transparent)]
    Kv(#[from] KvTooLarge),
    /// A cache type that comes in groups of values.
    #[error("KV cache of {ty}: expected heads of a multiple of 32 values, got {head_dim} (see --kv-type)")]
    KvType {
        /// The type.
        ty: KvType,
        /// Values of the model's heads.
        head_dim: usize,
    },
}

/// A weight's bytes, kept alive by the file.
struct FileBytes {
    gguf: Arc<Gguf>,
    weight: WeightRef,
}

impl Bytes for FileBytes {
    fn bytes(&self) -> &[u8] {
        self.weight.bytes(&self.gguf)
    }
}

/// The model on the CPU.
pub struct Cpu {
    executor: Executor,
    kv: KvStore,
    /// Per operation: its tap and how often the name came before.
    taps: Vec<Option<(Tap, usize)>>,
}

impl Cpu {
    /// Packs the weights and allocates the cache. `progress` is told (bytes done, bytes in all).
    ///
    /// # Errors
    /// [`enum@Error`] if a weight, the threads or the cache cannot be had.
    pub fn prepare(
        gguf: &Arc<Gguf>,
        model: &Model,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        let threads = options.threads;
        let mut pool = Pool::new(threads).map_err(|source| Error::Threads { threads, source })?;
        let h = &model.hparams;
        let kv =
            KvShape { n_layer: h.n_layer(), n_head_kv: h.n_head_kv(), head_dim: h.head_dim(), ty: options.kv_type };
        if !kv.ty.takes(kv.head_dim) {
            return Err(Error::KvType { ty: kv.ty, head_dim: kv.head_dim });
        }
        let store = KvStore::new(kv, options.n_pages)?;
        let mut compiler = Compiler::new(gguf, model);
        compiler.compile();
        let matrices = pack(gguf, model, &compiler.matrices, options, &mut pool, progress)?;
        let program = Program {
            ops: compiler.ops,
            slots: compiler.slots,
            matrices,
            rope: Rope {
                frequencies: model.rope.inv_freq.clone(),
                magnitude: model.rope.magnitude as f32,
                neox: model.rope.pairing == Pairing::Neox,
            },
            kv,
            output: compiler.output,
        };
        Ok(Cpu { executor: Executor::new(options.isa, program, pool), kv: store, taps: compiler.taps })
    }

    /// Bytes of packed weights.
    pub fn packed_bytes(&self) -> usize {
        self.executor.program().matrices.iter().map(Matrix::packed_bytes).sum()
    }
}

/// Brings every matrix into its kernel's layout and lets go of the file's pages behind it.
fn pack(
    gguf: &Arc<Gguf>,
    model: &Model,
    ids: &[WeightId],
    options: &Options,
    pool: &mut Pool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Matrix>, Error> {
    let weights: Vec<&WeightRef> = ids.iter().map(|id| model.weights.matrix(*id)).collect();
    let total: u64 = weights.iter().map(|w| w.bytes(gguf).len() as u64).sum();
    let mut done = 0;
    progress(0, total);
    let mut matrices = Vec::with_capacity(weights.len());
    for weight in weights {
        let source = Arc::new(FileBytes { gguf: gguf.clone(), weight: weight.clone() });
        let shape = (weight.ty, weight.rows as usize, weight.cols as usize);
        let matrix = Matrix::new(options.isa, shape, source, options.repack, pool)
            .map_err(|source| Error::Matrix { name: weight.name.clone(), source })?;
        if matrix.is_packed() {
            gguf.release(&gguf.tensors()[weight.tensor]);
        }
        matrices.push(matrix);
        done += weight.bytes(gguf).len() as u64;
        progress(done, total);
    }
    Ok(matrices)
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
            output: 0,
        }
    }

    fn compile(&mut self) {
        let graph: &Graph = &self.model.graph;
        let last_use = graph.liveness();
        // values by the node after which their slot is free
        let mut dying: HashMap<usize, Vec<ValueId>> = HashMap::new();
        for (i, node) in last_use.iter().enumerate() {
            dying.entry(*node).or_default().push(ValueId(i as u32));
        }
        let mut seen: HashMap<Tap, usize> = HashMap::new();
        for (i, node) in graph.nodes.iter().enumerate() {
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
        self.output = self.slot(graph.logits);
    }

    /// A slot for a value: one that is free and has its shape, or a new one. An op's inputs are still alive here, so
    /// its result never overwrites them.
    fn allocate(&mut self, value: ValueId) -> Slot {
        let info = self.model.graph.values[value.index()];
        let info = SlotInfo { width: info.width, selected: info.rows == Rows::Wanted };
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
        self.slot_of[value.index()].expect("the graph was validated: values are written before they are read")
    }

    fn vector(&self, id: VecId) -> Arc<[f32]> {
        self.model.weights.vector(id).into()
    }

    fn op(&mut self, op: &Op, out: Slot) -> KernelOp {
        match *op {
            Op::Embed { table } => {
                let weight = self.model.weights.matrix(table).clone();
                let (ty, rows, cols) = (weight.ty, weight.rows as usize, weight.cols as usize);
                let source = Arc::new(FileBytes { gguf: self.gguf.clone(), weight });
                KernelOp::Embed { table: RowTable { ty, rows, cols, source }, out }
            }
            Op::RmsNorm { x, weight, eps, .. } => {
                KernelOp::RmsNorm { x: self.slot(x), weight: self.vector(weight), eps, out }
            }
            Op::MatMul { x, w } => {
                self.matrices.push(w);
                KernelOp::MatMul { x: self.slot(x), w: self.matrices.len() - 1, out }
            }
            Op::AddBias { x, bias } => KernelOp::AddBias { x: self.slot(x), bias: self.vector(bias), out },
            Op::Rope { x, head_dim } => KernelOp::Rope { x: self.slot(x), head_dim, out },
            Op::KvWrite { k, v, layer } => KernelOp::KvWrite { k: self.slot(k), v: self.slot(v), layer },
            Op::Attention { q, layer, scale } => KernelOp::Attention { q: self.slot(q), layer, scale, out },
            Op::SwiGlu { gate, up } => KernelOp::SwiGlu { gate: self.slot(gate), up: self.slot(up), out },
            Op::Add { a, b } => KernelOp::Add { a: self.slot(a), b: self.slot(b), out },
            Op::SelectRows { x } => KernelOp::SelectRows { x: self.slot(x), out },
        }
    }
}

impl Executable for Cpu {
    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> &[f32] {
        let Some(sink) = tap else {
            return self.executor.step(step, &mut self.kv, None);
        };
        let taps = &self.taps;
        let mut view = |op: usize, rows: usize, width: usize, data: &[f32]| {
            if let Some((tap, occurrence)) = taps[op] {
                sink(&TapView { tap, occurrence, rows, width, data });
            }
        };
        self.executor.step(step, &mut self.kv, Some(&mut view))
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        self.kv.copy_page(from, to);
    }

    fn n_pages(&self) -> usize {
        self.kv.n_pages()
    }

    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.executor.isa(), self.executor.threads())
    }
}
