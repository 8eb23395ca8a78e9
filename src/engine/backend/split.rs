//! A model on two devices: the first layers on the CPU, the last ones and the output head on a GPU.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::Step;
use octavo_kernels::cuda::{Device, Fitting, Needs};

use super::cpu::{self, Cpu};
use super::cuda::{self, Cuda, GpuLayers};
use super::experts::{CpuExperts, expert_bytes};
use super::lower::weight_bytes;
use super::{Backend, Candidates, Loading, LoadingSink, TapSink};
use crate::error::Error;
use octavo_model::{Model, Tap};

/// How to run on two devices.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many of the last layers run on the GPU.
    pub gpu_layers: usize,
    /// Layers of these whose experts stay on the CPU.
    pub experts: CpuExperts,
    /// Options of the first layers and of experts, on the CPU.
    pub cpu: cpu::Options,
    /// Options of the last layers, on the GPU; both caches have the same type and number of pages.
    pub cuda: cuda::Options,
}

/// Prepares a model on a device: all of it, or its last layers with the others on the CPU.
///
/// # Errors
/// As [`Split::prepare`], and if experts are to stay on the CPU that cannot.
pub fn prepare<D: Device + 'static>(
    device: D,
    gguf: &Arc<Gguf>,
    model: &Model,
    options: &Options,
    sink: &mut LoadingSink<'_>,
) -> Result<Box<dyn Backend>, Error> {
    let n_layer = model.hparams.n_layer();
    if options.gpu_layers >= n_layer {
        let on = gpu_layers(gguf, model, 0..n_layer, options)?;
        let (cuda, _) = prepare_gpu(device, (gguf, model), &on, options, 0, sink)?;
        return Ok(Box::new(cuda));
    }
    if !model.is_divisible() {
        return Err(Error::Indivisible {
            file: gguf.name().to_owned(),
            gpu_layers: options.gpu_layers,
            n_layer: model.hparams.n_layer(),
        });
    }
    Ok(Box::new(Split::prepare(
        device, gguf, model, options, sink,
    )?))
}

/// Returns the layers that run on a GPU.
fn on_gpu(model: &Model, options: &Options) -> Range<usize> {
    let n_layer = model.hparams.n_layer();
    n_layer.saturating_sub(options.gpu_layers)..n_layer
}

/// Returns the memory that a GPU's part of a model takes.
///
/// # Errors
/// For what the kernels do not support, and if experts are to stay on the CPU that cannot.
pub(crate) fn needs(gguf: &Arc<Gguf>, model: &Model, options: &Options) -> Result<Needs, Error> {
    let on = gpu_layers(gguf, model, on_gpu(model, options), options)?;
    Ok(cuda::needs(gguf, model, &on, &options.cuda)?)
}

/// Returns how many of the last layers would fit into `free` bytes of a GPU, and with the experts
/// of how many first layers on the CPU all of those asked for would.
pub(crate) fn fitting(gguf: &Arc<Gguf>, model: &Model, options: &Options, free: u64) -> Fitting {
    let layers = on_gpu(model, options);
    let fits = |layers: Range<usize>, experts: CpuExperts| {
        let options = Options {
            experts,
            ..options.clone()
        };
        let on = gpu_layers(gguf, model, layers, &options);
        let needs = on.map(|on| cuda::needs(gguf, model, &on, &options.cuda));
        matches!(needs, Ok(Ok(needs)) if needs.total() <= free)
    };
    let end = layers.end;
    let mut fewer = (1..layers.len()).rev().filter(|_| model.is_divisible());
    let last = fewer.find(|n| fits(end - n..end, options.experts.clone()));
    let has_experts = |layer: &usize| model.graph.expert_nodes(*layer).is_some();
    let mut more = layers.clone().filter(has_experts);
    let first = more.find(|layer| {
        let first = options.experts.first.max(layer + 1);
        let tensors = options.experts.tensors.clone();
        fits(layers.clone(), CpuExperts { first, tensors })
    });
    Fitting {
        layers: last,
        experts: first.map(|layer| layer + 1),
    }
}

/// Returns these layers of a model, with the experts that stay on the CPU.
fn gpu_layers(
    gguf: &Gguf,
    model: &Model,
    layers: Range<usize>,
    options: &Options,
) -> Result<GpuLayers, Error> {
    let cpu_experts = options.experts.layers(gguf, model)?;
    Ok(GpuLayers {
        layers,
        cpu_experts,
    })
}

/// Prepares a GPU's layers, then their experts on the CPU. `after` are the bytes of weights that
/// the caller loads next. Returns the bytes of those loaded as well.
fn prepare_gpu<D: Device>(
    device: D,
    (gguf, model): (&Arc<Gguf>, &Model),
    on: &GpuLayers,
    options: &Options,
    after: u64,
    sink: &mut LoadingSink<'_>,
) -> Result<(Cuda<D>, u64), Error> {
    let experts = on.with_cpu_experts();
    let of_experts = expert_bytes(model, &experts);
    if !experts.is_empty() {
        sink(Loading::Note(&format!(
            "the experts of {} of {} layers stay on the CPU: {} MiB",
            experts.len(),
            model.hparams.n_layer(),
            of_experts.div_ceil(1 << 20)
        )));
    } else if !options.experts.is_empty() {
        let what = "no layer on the GPU has experts that could stay on the CPU";
        sink(Loading::Note(&format!("{}: {what}", gguf.name())));
    }
    let mut of_gpu = 0;
    let mut all = |event: Loading<'_>| match event {
        Loading::Weights { done, total } => {
            of_gpu = total;
            sink(Loading::Weights {
                done,
                total: total + of_experts + after,
            });
        }
        note @ Loading::Note(_) => sink(note),
    };
    let cuda = Cuda::prepare_part(device, gguf, model, on, &options.cuda, &mut all);
    let cuda = cuda.map_err(|mut error| {
        if let cuda::Error::TooLarge {
            fitting: parts,
            free,
            ..
        } = &mut error
        {
            **parts = fitting(gguf, model, options, *free);
        }
        error
    })?;
    if experts.is_empty() {
        return Ok((cuda, of_gpu));
    }
    let mut progress = |done: u64, _: u64| {
        sink(Loading::Weights {
            done: of_gpu + done,
            total: of_gpu + of_experts + after,
        });
    };
    let cuda = cuda.add_experts(gguf, model, experts.len(), &options.cpu, &mut progress)?;
    Ok((cuda, of_gpu + of_experts))
}

/// The model on both devices. Hidden states go from one to the other within a step; each device has
/// its layers' keys and values.
pub struct Split<D: Device> {
    first: Cpu,
    second: Cuda<D>,
    n_first: usize,
    n_layer: usize,
}

impl<D: Device> Split<D> {
    /// Prepares both parts, the GPU's first, because it may lack room.
    ///
    /// # Errors
    /// As [`Cuda::prepare`] and [`Cpu::prepare`].
    ///
    /// # Panics
    /// If one of the parts has no layers.
    pub fn prepare(
        device: D,
        gguf: &Arc<Gguf>,
        model: &Model,
        options: &Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Split<D>, Error> {
        let n_layer = model.hparams.n_layer();
        assert!(
            (1..n_layer).contains(&options.gpu_layers),
            "a part without layers"
        );
        let n_first = n_layer - options.gpu_layers;
        let of_first = weight_bytes(model, &(0..n_first));
        let on = gpu_layers(gguf, model, n_first..n_layer, options)?;
        let (second, of_second) = prepare_gpu(device, (gguf, model), &on, options, of_first, sink)?;
        let mut progress = |done: u64, total: u64| {
            sink(Loading::Weights {
                done: of_second + done,
                total: of_second + total,
            });
        };
        let cpu = cpu::Options {
            // experts have started one
            pool: second.pool().or_else(|| options.cpu.pool.clone()),
            ..options.cpu.clone()
        };
        let first = Cpu::prepare_part(gguf, model, 0..n_first, &cpu, &mut progress)?;
        Ok(Split {
            first,
            second,
            n_first,
            n_layer,
        })
    }

    /// Returns the device of the last layers.
    pub fn device(&self) -> &D {
        self.second.device()
    }
}

impl<D: Device> Backend for Split<D> {
    fn batch(&self) -> usize {
        super::BATCH_OF_GPUS
    }

    fn step(
        &mut self,
        step: &Step<'_>,
        mut tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], Error> {
        let input = self
            .first
            .step(step, tap.as_mut().map(|t| &mut **t as &mut TapSink<'_>))?;
        self.second.step(&Step { input, ..*step }, tap)
    }

    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        let input = self.first.step(step, None)?;
        self.second.argmax(&Step { input, ..*step })
    }

    fn max_candidates(&self, n_outputs: usize) -> usize {
        self.second.max_candidates(n_outputs)
    }

    fn candidates(&mut self, step: &Step<'_>, whole: &[usize]) -> Result<Candidates, Error> {
        let input = self.first.step(step, None)?;
        self.second.candidates(&Step { input, ..*step }, whole)
    }

    fn rows_of(&mut self, step: &Step<'_>, tap: Tap) -> Result<Vec<f32>, Error> {
        let input = self.first.step(step, None)?;
        self.second.rows_of(&Step { input, ..*step }, tap)
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, Error> {
        self.second.kept_rows()
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error> {
        self.first.copy_page(group, from, to)?;
        self.second.copy_page(group, from, to)
    }

    fn release_scratch(&mut self) {
        self.first.release_scratch();
        self.second.release_scratch();
    }

    fn cache_groups(&self) -> usize {
        self.first.cache_groups()
    }

    fn n_pages(&self) -> usize {
        self.first.n_pages().min(self.second.n_pages())
    }

    fn n_states(&self) -> usize {
        self.first.n_states().max(self.second.n_states())
    }

    fn weight_bytes(&self) -> u64 {
        self.first.weight_bytes() + self.second.weight_bytes()
    }

    fn describe(&self) -> String {
        let Split {
            n_first, n_layer, ..
        } = self;
        let (first, second) = (self.first.describe(), self.second.describe());
        format!(
            "{n_first} of {n_layer} layers: {first}; {}: {second}",
            n_layer - n_first
        )
    }
}
