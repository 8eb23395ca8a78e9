//! Chooses the device, GPU or CPU, and prepares a network on it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use gguf_rs_lite::Gguf;

use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda::{self, Cuda, Limits};
use crate::backend::pipeline::Pipeline;
use crate::backend::ranks::{self, TensorParallelGroup};
use crate::backend::{Backend, Loading, LoadingSink, split};
use crate::engine::Sizes;
use crate::error::Error;
use crate::fit::fitted;
use crate::options::{DeviceChoice, EngineOptions, LayerSplit};
use crate::source::ModelSource;
use crate::threads::default_threads;
use octavo_kernels::cuda::{Device, Fitting, Gpu, Needs};
use octavo_model::{Adapter, Model, Network};

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
        let choice = choice(options);
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
            adapters: Vec::new(),
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
        if let Some(ordinal) = ordinal(self.choice) {
            let prepared = open(ordinal)
                .and_then(|gpu| Ok(Cuda::prepare(gpu, gguf, network, &self.how.cuda, sink)?));
            match prepared {
                Ok(cuda) => return Ok(Box::new(cuda)),
                Err(error) => fall_back(self.choice, error, sink)?,
            }
        }
        self.on_cpu(gguf, network, sink)
    }

    fn on_cpu(
        &self,
        gguf: &Arc<Gguf>,
        network: &dyn Network,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Box<dyn Backend>, Error> {
        let mut progress = |done: u64, total: u64| sink(Loading::Weights { done, total });
        let cpu = Cpu::prepare(gguf, network, &self.how.cpu, &mut progress)?;
        Ok(Box::new(cpu))
    }

    /// Returns the memory that a model takes on a GPU.
    ///
    /// # Errors
    /// For what its kernels do not support, and layers that cannot be split.
    pub(crate) fn needs(&self, gguf: &Arc<Gguf>, model: &Model) -> Result<Needs, Error> {
        split::needs(gguf, model, &self.how)
    }

    /// Returns which parts of a model that does not fit into `free` bytes of a GPU would.
    pub(crate) fn fitting(&self, gguf: &Arc<Gguf>, model: &Model, free: u64) -> Fitting {
        split::fitting(gguf, model, &self.how, free)
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
        if options.layer_split.is_some() {
            return Err(Error::LayerSplitWith(
                "ranks, of which each has rows of all layers",
            ));
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
}

/// How often a model is fitted anew to memory that other programs take meanwhile.
const FITTINGS: usize = 3;

/// Prepares a model on the device of the options, or on the CPU if it may take over, and returns
/// the sizes of its steps and KV cache, which are fitted to a GPU's memory.
///
/// # Errors
/// As [`Placement::prepare`], and if layers or experts cannot be where they are wanted.
pub(crate) fn place(
    (gguf, model): (&Arc<Gguf>, &mut Model),
    adapters: Vec<Arc<Adapter>>,
    options: &EngineOptions,
    sink: &mut LoadingSink<'_>,
) -> Result<(Sizes, Box<dyn Backend>), Error> {
    let choice = match (choice(options), adapters.is_empty()) {
        (choice, true) => choice,
        (choice, false) => cpu_for_adapters(choice, sink)?,
    };
    let on_gpu = choice != DeviceChoice::Cpu;
    if let Some(split) = options.layer_split.as_ref().filter(|_| on_gpu) {
        match place_on_gpus(split, (gguf, model), options, sink) {
            Ok(placed) => return Ok(placed),
            Err(error) => fall_back(choice, error, sink)?,
        }
    } else if let Some(ordinal) = ordinal(choice) {
        match place_on_gpu(ordinal, (gguf, model), options, sink) {
            Ok(placed) => return Ok(placed),
            Err(error) => fall_back(choice, error, sink)?,
        }
    }
    let sizes = Sizes::of(model, options)?;
    model.fit_to_context(sizes.n_ctx);
    let mut placement = Placement::new(options, &sizes.limits)?;
    placement.how.cpu.adapters = adapters;
    let backend = placement.on_cpu(gguf, model, sink)?;
    Ok((sizes, backend))
}

/// Returns the CPU as the device of a model with adapters, which no GPU applies.
///
/// # Errors
/// If nothing but a GPU may run it.
fn cpu_for_adapters(
    choice: DeviceChoice,
    sink: &mut LoadingSink<'_>,
) -> Result<DeviceChoice, Error> {
    match choice {
        DeviceChoice::Cuda(_) => return Err(Error::AdapterDevice("GPU")),
        DeviceChoice::Auto { .. } if octavo_kernels::cuda::gpus().is_ok() => {
            sink(Loading::Note("on the CPU: no GPU applies adapters"));
        }
        DeviceChoice::Auto { .. } | DeviceChoice::Cpu => {}
    }
    Ok(DeviceChoice::Cpu)
}

fn place_on_gpu(
    ordinal: usize,
    (gguf, model): (&Arc<Gguf>, &mut Model),
    asked: &EngineOptions,
    sink: &mut LoadingSink<'_>,
) -> Result<(Sizes, Box<dyn Backend>), Error> {
    let mut left = FITTINGS;
    loop {
        let gpu = open(ordinal)?;
        let options = fitted(&gpu, (gguf, model), asked, sink)?;
        let sizes = Sizes::of(model, &options)?;
        model.fit_to_context(sizes.n_ctx);
        let placement = Placement::new(&options, &sizes.limits)?;
        left -= 1;
        match split::prepare(gpu, gguf, model, &placement.how, sink) {
            // it fitted a moment ago
            Err(Error::Cuda(cuda::Error::TooLarge { device, free, .. }))
                if asked.fit.is_some() && left > 0 =>
            {
                sink(Loading::Note(&format!(
                    "{device}: another program has taken memory: {} MiB are left",
                    free >> 20
                )));
            }
            prepared => return Ok((sizes, prepared?)),
        }
    }
}

/// Prepares a model's layers on several GPUs. What does not fit is refused.
fn place_on_gpus(
    split: &LayerSplit,
    (gguf, model): (&Arc<Gguf>, &mut Model),
    options: &EngineOptions,
    sink: &mut LoadingSink<'_>,
) -> Result<(Sizes, Box<dyn Backend>), Error> {
    let n_layer = model.hparams.n_layer();
    if options.gpu_layers.is_some_and(|layers| layers < n_layer) {
        return Err(Error::LayerSplitWith("layers on the CPU"));
    }
    if !options.cpu_experts.is_empty() {
        return Err(Error::LayerSplitWith("experts on the CPU"));
    }
    let (gpus, proportions) = open_all(split)?;
    let sizes = Sizes::of(model, options)?;
    model.fit_to_context(sizes.n_ctx);
    let how = Placement::new(options, &sizes.limits)?.how.cuda;
    let pipeline = Pipeline::prepare(gpus, (gguf, model), &proportions, &how, sink)?;
    Ok((sizes, Box::new(pipeline)))
}

/// Opens the GPUs that get layers, and returns their proportions of these.
fn open_all(split: &LayerSplit) -> Result<(Vec<Gpu>, Vec<f64>), Error> {
    let devices = cuda::devices()?;
    let Some(proportions) = &split.proportions else {
        let works = devices.iter().filter(|(_, wrong)| wrong.is_none());
        let gpus = works.map(|(info, _)| open(info.ordinal));
        let gpus = gpus.collect::<Result<Vec<Gpu>, Error>>()?;
        let free = gpus.iter().map(|gpu| Ok(gpu.free_bytes()? as f64));
        let free = free.collect::<Result<Vec<f64>, cuda::Error>>()?;
        return match free.iter().any(|bytes| *bytes > 0.0) {
            true => Ok((gpus, free)),
            // the first one has a reason
            false => Err(open(0)
                .err()
                .unwrap_or_else(|| wrong_split(split, devices.len()))),
        };
    };
    let are_right = proportions
        .iter()
        .all(|share| share.is_finite() && *share >= 0.0)
        && proportions.iter().any(|share| *share > 0.0)
        && proportions.len() <= devices.len();
    if !are_right {
        return Err(wrong_split(split, devices.len()));
    }
    let used = (0..).zip(proportions.iter().copied());
    let used = used.filter(|(_, share)| *share > 0.0);
    let (ordinals, proportions): (Vec<usize>, Vec<f64>) = used.unzip();
    let gpus = ordinals.into_iter().map(open);
    Ok((gpus.collect::<Result<_, _>>()?, proportions))
}

fn wrong_split(split: &LayerSplit, gpus: usize) -> Error {
    let got = split.proportions.iter().flatten().map(f64::to_string);
    Error::LayerSplit {
        expected: match gpus {
            1 => "1 GPU".to_owned(),
            n => format!("up to {n} GPUs"),
        },
        got: got.collect::<Vec<_>>().join(","),
    }
}

fn open(ordinal: usize) -> Result<Gpu, Error> {
    Ok(cuda::open(ordinal)?)
}

/// Returns the device of the options.
fn choice(options: &EngineOptions) -> DeviceChoice {
    match options.gpu_layers {
        Some(0) => DeviceChoice::Cpu,
        _ => options.device,
    }
}

/// Returns the number of the GPU to try.
fn ordinal(choice: DeviceChoice) -> Option<usize> {
    match choice {
        DeviceChoice::Cpu => None,
        DeviceChoice::Auto { gpu, .. } | DeviceChoice::Cuda(gpu) => Some(gpu),
    }
}

/// Goes on with the CPU after a GPU's error, if that is allowed, and says why.
///
/// # Errors
/// The error itself, if it is not.
fn fall_back(choice: DeviceChoice, error: Error, sink: &mut LoadingSink<'_>) -> Result<(), Error> {
    match (choice, error) {
        (DeviceChoice::Auto { asked: false, .. }, Error::Cuda(cuda::Error::NoDriver)) => {}
        (DeviceChoice::Auto { .. }, Error::Cuda(error)) => {
            sink(Loading::Note(&format!("on the CPU: {error}")));
        }
        (_, error) => return Err(error),
    }
    Ok(())
}

/// Returns the number of threads of the options, at least one.
pub(crate) fn threads(options: &EngineOptions) -> NonZeroUsize {
    let threads = options.threads.unwrap_or_else(default_threads);
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}
