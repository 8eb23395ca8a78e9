//! Chooses the device, GPU or CPU, and prepares a network on it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use gguf_rs_lite::Gguf;

use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda::{self, Cuda, Limits};
use crate::backend::ranks::{self, TensorParallelGroup};
use crate::backend::{Backend, Loading, LoadingSink, split};
use crate::error::Error;
use crate::options::{DeviceChoice, EngineOptions};
use crate::source::ModelSource;
use crate::threads::default_threads;
use octavo_kernels::cuda::Gpu;
use octavo_model::{Model, Network};

/// The device that a network runs on, with its options.
pub struct Placement {
    choice: DeviceChoice,
    how: split::Options,
}

impl Placement {
    /// Reads the placement from the options, for steps and a KV cache of these limits.
    ///
    /// # Errors
    /// If the CPU lacks the instruction set that was asked for.
    pub fn new(options: &EngineOptions, limits: &Limits) -> Result<Placement, Error> {
        let EngineOptions {
            kv_type,
            prompt_bits,
            repack,
            lock,
            graphs,
            check_pages,
            ..
        } = *options;
        let threads = threads(options).get();
        let gpu_layers = options.gpu_layers.unwrap_or(usize::MAX);
        let choice = match gpu_layers {
            0 => DeviceChoice::Cpu,
            _ => options.device,
        };
        let cpu = cpu::Options {
            isa: options.isa.resolve()?,
            threads,
            pool: options.pool.clone(),
            kv_type,
            n_pages: limits.n_pages,
            n_states: limits.states,
            prompt_bits,
            repack,
            lock,
            weights: options.weights.clone(),
        };
        let cuda = cuda::Options {
            kv_type,
            limits: *limits,
            graphs,
            check_pages,
            threads,
        };
        let how = split::Options {
            gpu_layers,
            experts: options.cpu_experts.clone(),
            cpu,
            cuda,
        };
        Ok(Placement { choice, how })
    }

    /// Prepares a network on one device.
    ///
    /// # Errors
    /// As [`Cpu::prepare`], or as [`Cuda::prepare`] if the CPU may not take over from the GPU.
    pub fn prepare(
        &self,
        gguf: &Arc<Gguf>,
        network: &dyn Network,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Box<dyn Backend>, Error> {
        self.place(gguf, network, sink, |gpu, sink| {
            let cuda = Cuda::prepare(gpu, gguf, network, &self.how.cuda, sink)?;
            Ok(Box::new(cuda))
        })
    }

    /// Prepares a model, of which the GPU may take only the last layers, or layers without experts.
    pub(crate) fn prepare_model(
        &self,
        gguf: &Arc<Gguf>,
        model: &Model,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Box<dyn Backend>, Error> {
        self.place(gguf, model, sink, |gpu, sink| {
            split::prepare(gpu, gguf, model, &self.how, sink)
        })
    }

    /// Prepares the shards of a model on all ranks of a tensor parallel group.
    pub(crate) fn prepare_shares(
        &self,
        tp_group: &TensorParallelGroup,
        (source, options): (&ModelSource, &EngineOptions),
        (gguf, model): (&Arc<Gguf>, &Model),
        sink: &mut LoadingSink<'_>,
    ) -> Result<Box<dyn Backend>, Error> {
        let (ranks, gpu_layers) = (tp_group.ranks(), options.gpu_layers);
        if !options.cpu_experts.is_empty() {
            return Err(Error::RanksWithCpuExperts { ranks });
        }
        if options.keep_hidden {
            return Err(Error::RanksWithMtp { ranks });
        }
        let has_all = self.how.gpu_layers >= model.hparams.n_layer();
        let first = match self.choice {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto { asked: false, .. } if gpu_layers.is_none() => None,
            DeviceChoice::Cuda(gpu) if has_all => Some(gpu),
            // all ranks need to know the kind of device before they open their GPUs
            DeviceChoice::Auto { .. } | DeviceChoice::Cuda(_) => {
                return Err(Error::RanksOnGpu { ranks });
            }
        };
        let rank_options = ranks::RankOptions {
            source,
            mmap: options.mmap,
            positions: self.how.cuda.limits.positions,
            threads: options.threads,
            cpu: &self.how.cpu,
            gpus: first.map(|gpu| (gpu, &self.how.cuda)),
        };
        ranks::prepare(tp_group, gguf, model, &rank_options, sink)
    }

    /// Prepares with `on_gpu` on the chosen GPU, or else on the CPU.
    fn place(
        &self,
        gguf: &Arc<Gguf>,
        network: &dyn Network,
        sink: &mut LoadingSink<'_>,
        on_gpu: impl FnOnce(Gpu, &mut LoadingSink<'_>) -> Result<Box<dyn Backend>, Error>,
    ) -> Result<Box<dyn Backend>, Error> {
        let open = |ordinal| cuda::open(ordinal).map_err(Error::from);
        match self.choice {
            DeviceChoice::Cpu => {}
            DeviceChoice::Cuda(gpu) => return on_gpu(open(gpu)?, sink),
            DeviceChoice::Auto { gpu, asked } => {
                match open(gpu).and_then(|gpu| on_gpu(gpu, sink)) {
                    Err(Error::Cuda(cuda::Error::NoDriver)) if !asked => {}
                    Err(Error::Cuda(error)) => sink(Loading::Note(&format!("on the CPU: {error}"))),
                    prepared => return prepared,
                }
            }
        }
        let mut progress = |done: u64, total: u64| sink(Loading::Weights { done, total });
        let cpu = Cpu::prepare(gguf, network, &self.how.cpu, &mut progress)?;
        Ok(Box::new(cpu))
    }
}

/// Returns the number of threads of the options, at least one.
pub(crate) fn threads(options: &EngineOptions) -> NonZeroUsize {
    let threads = options.threads.unwrap_or_else(default_threads);
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}
