//! The CPU backend: packs weights for an instruction set and runs the graph's operations on threads.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::{Executor, Isa, KvStore, KvTooLarge, KvType, Matrix, MatrixError, Pool, Step};

use super::lower::{FileBytes, Lowered, Taps, lower};
use super::{Executable, TapSink};
use crate::model::{Model, WeightId, WeightRef};

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

/// The model on the CPU.
pub struct Cpu {
    executor: Executor,
    kv: KvStore,
    taps: Taps,
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
        Cpu::prepare_part(gguf, model, 0..model.hparams.n_layer(), options, progress)
    }

    /// As [`Cpu::prepare`], of some layers.
    pub(super) fn prepare_part(
        gguf: &Arc<Gguf>,
        model: &Model,
        layers: Range<usize>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        let threads = options.threads;
        let mut pool = Pool::new(threads).map_err(|source| Error::Threads { threads, source })?;
        let Lowered { program, weights, taps } = lower(gguf, model, &layers, options.kv_type);
        let kv = program.kv;
        if !kv.ty.takes(kv.head_dim) {
            return Err(Error::KvType { ty: kv.ty, head_dim: kv.head_dim });
        }
        let store = KvStore::new(kv, options.n_pages)?;
        let matrices = pack(gguf, model, &weights, options, &mut pool, progress)?;
        Ok(Cpu { executor: Executor::new(options.isa, program, matrices, pool), kv: store, taps })
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
    let total: u64 = weights.iter().map(|w| w.n_bytes() as u64).sum();
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
        done += weight.n_bytes() as u64;
        progress(done, total);
    }
    Ok(matrices)
}

impl Executable for Cpu {
    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> Result<&[f32], crate::Error> {
        let Some(sink) = tap else {
            return Ok(self.executor.step(step, &mut self.kv, None));
        };
        let mut view = |op: usize, rows: usize, width: usize, data: &[f32]| {
            self.taps.show(sink, op, rows, width, data);
        };
        Ok(self.executor.step(step, &mut self.kv, Some(&mut view)))
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), crate::Error> {
        self.kv.copy_page(from, to);
        Ok(())
    }

    fn n_pages(&self) -> usize {
        self.kv.n_pages()
    }

    fn weight_bytes(&self) -> u64 {
        self.executor.matrices().iter().map(|m| m.packed_bytes() as u64).sum()
    }

    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.executor.isa(), self.executor.pool().threads())
    }
}
