//! The CPU backend: packs weights for an instruction set and runs the graph's operations on
//! threads.

mod error;
mod shared;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::{
    Collective, Executor, Isa, KvStore, KvTypes, Matrix, MatrixError, Pool, Program, PromptBits,
    SharedPool, Step, lock_limit, room, with_memory,
};

pub use error::Error;
pub use shared::SharedWeights;

use super::lora::Adapted;
use super::lower::{FileBytes, Lowered, Taps, lower};
use super::ranks::gathered::Gathered;
use super::ranks::share::Share;
use super::rotate::Stored;
use super::{Backend, TapSink, finite_argmax};
use octavo_model::{Adapter, Network, Tap, WeightId, WeightRef};

/// How to run on the CPU.
#[derive(Clone, Debug)]
pub struct Options {
    /// Instruction set to run.
    pub isa: Isa,
    /// Number of threads to start, unless `pool` has some.
    pub threads: usize,
    /// Thread pool to share with another network.
    pub pool: Option<SharedPool>,
    /// Element types of the cache.
    pub kv_type: KvTypes,
    /// Number of pages of the cache.
    pub n_pages: usize,
    /// Number of slots for states, for models with recurrent layers.
    pub n_states: usize,
    /// Precision to which prefill activations are rounded before they are multiplied with quantized
    /// weights.
    pub prompt_bits: PromptBits,
    /// Copy weights into the kernels' layout; otherwise compute on the file's rows.
    pub repack: bool,
    /// Lock these copies in memory.
    pub lock: bool,
    /// Packed weights to share with other networks, if any.
    pub weights: Option<SharedWeights>,
    /// Low-rank adapters that sequences may use, by number.
    pub adapters: Vec<Arc<Adapter>>,
}

/// Upper bound on the memory of a thread: its stack, its signal stack and their guard pages.
const STACK: usize = (2 << 20) + (256 << 10);

/// The model on the CPU.
pub struct Cpu {
    plain: Run,
    /// With places for adapters, if there are any, on the same matrices.
    adapted: Option<Run>,
    /// Whether the last step was one with adapters.
    was_adapted: bool,
    kv: KvStore,
    /// For one of several ranks: shows the values of all ranks to taps.
    gathered: Option<Gathered>,
    watched: Watched,
    /// Bytes of the adapters' matrices.
    adapter_bytes: u64,
}

/// An executor, and the names of its results.
struct Run {
    executor: Executor,
    taps: Taps,
}

impl Cpu {
    /// Packs the weights and allocates the cache. `progress` receives (bytes done, bytes in all).
    ///
    /// # Errors
    /// [`enum@Error`] if a weight is unusable, or memory or threads are lacking.
    pub fn prepare(
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        Cpu::prepare_part(gguf, model, 0..model.graph().n_layer, options, progress)
    }

    /// As [`Cpu::prepare`], for the shard of one of several ranks.
    pub(super) fn prepare_share(
        gguf: &Arc<Gguf>,
        share: Share<'_>,
        ranks: Arc<dyn Collective>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        let layers = 0..share.graph().n_layer;
        let gathered = Gathered::new(ranks.clone(), &share);
        let ranks = Some(ranks);
        let cpu = Cpu::prepare_with(gguf, &share, layers, ranks, options, progress)?;
        Ok(Cpu {
            gathered: Some(gathered),
            ..cpu
        })
    }

    /// As [`Cpu::prepare`], for some layers.
    pub(super) fn prepare_part(
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        layers: Range<usize>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        let model = Stored::of(model, options.kv_type);
        Cpu::prepare_with(gguf, &model, layers, None, options, progress)
    }

    fn prepare_with(
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        layers: Range<usize>,
        ranks: Option<Arc<dyn Collective>>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cpu, Error> {
        let pool = options.pool()?;
        let Lowered {
            program,
            weights,
            taps,
        } = lower(gguf, model, &layers, options.kv_type, &[]);
        let types = options.kv_type;
        if let Some(kv) = program.caches.iter().find(|kv| !types.takes(kv.head_dim)) {
            let head_dim = kv.head_dim;
            return Err(Error::KvType { types, head_dim });
        }
        let n_states = if program.states.is_empty() {
            0
        } else {
            options.n_states
        };
        let store = KvStore::new(&program.caches, options.n_pages)?;
        let store = store
            .with_states(&program.states, n_states)
            .map_err(|source| Error::States { n_states, source })?;
        let ids = weights.clone();
        let (matrices, watched) =
            matrices(gguf, model, (&program, weights), (options, &pool), progress)?;
        let known: HashMap<WeightId, Matrix> =
            ids.into_iter().zip(matrices.iter().cloned()).collect();
        let executor =
            with_memory(|| Executor::of_rank(options.isa, program, matrices, pool, ranks))?;
        let plain = Run { executor, taps };
        let adapted = match options.adapters.is_empty() {
            true => None,
            false => Some(adapted(gguf, (model, &layers), &known, options, &plain)?),
        };
        Ok(Cpu {
            plain,
            adapted,
            was_adapted: false,
            kv: store,
            gathered: None,
            watched,
            adapter_bytes: options.adapters.iter().map(|a| a.gguf().file_bytes()).sum(),
        })
    }

    /// Returns the executor for a step, and all else that a step needs.
    fn run_of(&mut self, step: &Step<'_>) -> Running<'_> {
        let uses = step.seqs.iter().any(|s| !s.adapters.is_empty());
        let is_adapted = uses && self.adapted.is_some();
        if is_adapted != self.was_adapted {
            // threads left behind in the other one's step may still read pages
            self.last_run().executor.settle();
            self.was_adapted = is_adapted;
        }
        let Cpu {
            plain,
            adapted,
            kv,
            gathered,
            ..
        } = self;
        let run = match adapted {
            Some(adapted) if is_adapted => adapted,
            _ => plain,
        };
        Running {
            executor: &mut run.executor,
            taps: &run.taps,
            kv,
            gathered,
        }
    }

    /// Returns the executor of the last step.
    fn last_run(&mut self) -> &mut Run {
        match &mut self.adapted {
            Some(adapted) if self.was_adapted => adapted,
            _ => &mut self.plain,
        }
    }
}

/// The parts of a [`Cpu`] that run a step.
struct Running<'a> {
    executor: &'a mut Executor,
    taps: &'a Taps,
    kv: &'a mut KvStore,
    gathered: &'a Option<Gathered>,
}

/// Makes the executor with places for the options' adapters, on the matrices of the other one.
fn adapted(
    gguf: &Arc<Gguf>,
    (model, layers): (&dyn Network, &Range<usize>),
    known: &HashMap<WeightId, Matrix>,
    options: &Options,
    plain: &Run,
) -> Result<Run, Error> {
    let network = Adapted::of(model, &options.adapters);
    let Lowered {
        program,
        weights,
        taps,
    } = lower(gguf, &network, layers, options.kv_type, &[]);
    let matrices = weights.iter().map(|id| known[id].clone()).collect();
    let pool = plain.executor.pool().clone();
    let sites = network.sites(options.isa, &mut pool.lock())?;
    let executor = with_memory(|| Executor::new(options.isa, program, matrices, pool))?;
    Ok(Run {
        executor: executor.with_lora(sites),
        taps,
    })
}

/// Tensors that are read from the file itself at every step, one for each file.
pub(super) struct Watched {
    gguf: Arc<Gguf>,
    tensors: Vec<usize>,
}

impl Watched {
    /// Checks that the mapped files are still those that were opened. The system reports a
    /// shortened file, but not one that was written to.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut tensors = self.tensors.iter();
        Ok(tensors.try_for_each(|tensor| self.gguf.check(&self.gguf.tensors()[*tensor]))?)
    }
}

impl Options {
    /// Returns the given thread pool, or starts one.
    pub(super) fn pool(&self) -> Result<SharedPool, Error> {
        match &self.pool {
            Some(pool) => Ok(pool.clone()),
            None => Ok(start(self.threads)?.into()),
        }
    }
}

/// Packs a program's weights with the options' pool, and locks them if asked.
pub(super) fn matrices(
    gguf: &Arc<Gguf>,
    model: &dyn Network,
    (program, weights): (&Program, Vec<WeightId>),
    (options, pool): (&Options, &SharedPool),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Vec<Matrix>, Watched), Error> {
    let experts = program.experts(weights.len());
    let weights: Vec<_> = weights.into_iter().zip(experts).collect();
    let packed = pack(gguf, model, &weights, options, pool, progress);
    let (matrices, tensors) = packed?;
    if options.lock {
        lock(&matrices)?;
    }
    let gguf = gguf.clone();
    Ok((matrices, Watched { gguf, tensors }))
}

/// Starts threads.
fn start(threads: usize) -> Result<Pool, Error> {
    // a thread allocates memory as it starts, and ends the program if there is none
    room(threads.saturating_mul(STACK)).map_err(|source| Error::Stacks { threads, source })?;
    let mut pool = Pool::new(threads).map_err(|source| Error::Threads { threads, source })?;
    // wait until every thread is up
    pool.meet();
    Ok(pool)
}

/// Packs every matrix into its kernel's layout, in the order of the file, and releases the file's
/// pages after it; `ids` has the number of experts that a matrix stacks. Also returns a tensor of
/// each file that is still read later.
fn pack(
    gguf: &Arc<Gguf>,
    model: &dyn Network,
    ids: &[(WeightId, usize)],
    options: &Options,
    pool: &SharedPool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Vec<Matrix>, Vec<usize>), Error> {
    let weights: Vec<(&WeightRef, usize)> = ids
        .iter()
        .map(|(id, experts)| (model.tensors().matrix(*id), *experts))
        .collect();
    let total: u64 = weights.iter().map(|(w, _)| w.n_bytes() as u64).sum();
    let mut done = 0;
    progress(0, total);
    let mut matrices: Vec<Option<Matrix>> = weights.iter().map(|_| None).collect();
    let mut watched: Vec<usize> = Vec::new();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| {
        let tensor = &gguf.tensors()[weights[*i].0.tensor];
        (tensor.part, gguf.file_offset(tensor))
    });
    for i in order {
        let (weight, experts) = weights[i];
        let tensor = &gguf.tensors()[weight.tensor];
        gguf.check(tensor)?;
        let shared = options.weights.as_ref();
        let shared = shared.zip(shared::Place::of(gguf, weight, experts, options.isa));
        let packed = shared
            .as_ref()
            .and_then(|(weights, place)| weights.get(place));
        let matrix = match packed {
            Some(packed) => packed,
            None => {
                let source = Arc::new(FileBytes::new(gguf, weight));
                let shape = (weight.ty, weight.rows as usize, weight.cols as usize);
                let (isa, repack) = (options.isa, options.repack);
                // between two matrices, steps of another engine may use the pool
                let pool = &mut pool.lock();
                let matrix = Matrix::of_experts(isa, shape, experts, source, repack, pool);
                matrix.map_err(|source| weight_error(weight, source, done, total))?
            }
        };
        if let Some((weights, place)) = shared.filter(|_| matrix.is_packed()) {
            weights.add(place, &matrix);
        }
        let matrix = matrix.with_prompt_bits(options.prompt_bits);
        if matrix.is_packed() {
            gguf.release(tensor);
        } else if watched
            .iter()
            .all(|other| gguf.part_name(&gguf.tensors()[*other]) != gguf.part_name(tensor))
        {
            watched.push(weight.tensor);
        }
        matrices[i] = Some(matrix);
        done += weight.n_bytes() as u64;
        progress(done, total);
    }
    let matrices = matrices.into_iter().flatten().collect();
    Ok((matrices, watched))
}

/// Returns the error of a weight that could not be packed after `done` bytes of `total`.
fn weight_error(weight: &WeightRef, source: MatrixError, done: u64, total: u64) -> Error {
    let name = weight.name.clone();
    match source {
        MatrixError::NoMemory { .. } => Error::Weights {
            name,
            source,
            done,
            total,
        },
        _ => Error::Matrix { name, source },
    }
}

/// Locks all packed weights in memory.
fn lock(matrices: &[Matrix]) -> Result<(), Error> {
    matrices
        .iter()
        .try_for_each(Matrix::lock)
        .map_err(|source| Error::Lock {
            bytes: matrices.iter().map(|m| m.packed_bytes() as u64).sum(),
            limit: lock_limit(),
            source,
        })
}

impl Backend for Cpu {
    fn step(
        &mut self,
        step: &Step<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], crate::error::Error> {
        self.watched.check()?;
        let Running {
            executor,
            taps,
            kv,
            gathered,
        } = self.run_of(step);
        let logits = with_memory(|| {
            let Some(sink) = tap else {
                return executor.step(step, kv, None);
            };
            let mut view = |op: usize, rows: usize, width: usize, data: &[f32]| match gathered {
                None => taps.show(sink, op, rows, width, data),
                Some(gathered) => gathered.show(taps, sink, op, (rows, width), data),
            };
            executor.step(step, kv, Some(&mut view))
        });
        Ok(logits.map_err(Error::from)?)
    }

    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, crate::error::Error> {
        self.watched.check()?;
        let Running { executor, kv, .. } = self.run_of(step);
        let rows = with_memory(|| executor.step_by_rows(step, kv, &finite_argmax));
        Ok(rows.map_err(Error::from)?)
    }

    fn rows_of(&mut self, step: &Step<'_>, tap: Tap) -> Result<Vec<f32>, crate::error::Error> {
        self.watched.check()?;
        let Running {
            executor, taps, kv, ..
        } = self.run_of(step);
        let last = taps
            .position(tap)
            .expect("the graph has a value of this name");
        let rows = with_memory(|| executor.step_up_to(step, kv, last).to_vec());
        Ok(rows.map_err(Error::from)?)
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, crate::error::Error> {
        Ok(self.last_run().executor.kept().to_vec())
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), crate::error::Error> {
        self.kv.copy_page(group, from, to);
        Ok(())
    }

    fn kv_store(&mut self) -> Option<&mut KvStore> {
        Some(&mut self.kv)
    }

    fn settle(&mut self) {
        self.last_run().executor.settle();
    }

    fn release_scratch(&mut self) {
        self.plain.executor.release_scratch();
        if let Some(adapted) = &mut self.adapted {
            adapted.executor.release_scratch();
        }
    }

    fn cache_groups(&self) -> usize {
        self.kv.groups()
    }

    fn n_pages(&self) -> usize {
        self.kv.n_pages()
    }

    fn n_states(&self) -> usize {
        self.kv.n_states()
    }

    fn weight_bytes(&self) -> u64 {
        let matrices = self.plain.executor.matrices().iter();
        let packed: u64 = matrices.map(|m| m.packed_bytes() as u64).sum();
        packed + self.adapter_bytes
    }

    fn pool(&self) -> Option<SharedPool> {
        Some(self.plain.executor.pool().clone())
    }

    fn describe(&self) -> String {
        describe(&self.plain.executor)
    }
}

/// Describes an executor on the CPU, for people.
pub(super) fn describe(executor: &Executor) -> String {
    let threads = executor.pool().lock().threads();
    format!("cpu, {}, {threads} threads", executor.isa())
}
