//! A model on two devices: the first layers on the CPU, the last ones and the output head on a GPU.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::Step;
use octavo_kernels::cuda::Device;

use super::cpu::{self, Cpu};
use super::cuda::{self, Cuda};
use super::lower::weight_bytes;
use super::{Backend, Loading, LoadingSink, TapSink};
use crate::error::Error;
use octavo_model::{Model, Tap};

/// How to run on two devices.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many of the last layers run on the GPU.
    pub gpu_layers: usize,
    /// Options of the first layers, on the CPU.
    pub cpu: cpu::Options,
    /// Options of the last layers, on the GPU; both caches have the same type and number of pages.
    pub cuda: cuda::Options,
}

/// Prepares a model on a device: all of it, or its last layers with the others on the CPU.
///
/// # Errors
/// As [`Split::prepare`].
pub fn prepare<D: Device + 'static>(
    device: D,
    gguf: &Arc<Gguf>,
    model: &Model,
    options: &Options,
    sink: &mut LoadingSink<'_>,
) -> Result<Box<dyn Backend>, Error> {
    if options.gpu_layers >= model.hparams.n_layer() {
        return Ok(Box::new(Cuda::prepare(
            device,
            gguf,
            model,
            &options.cuda,
            sink,
        )?));
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
        let mut of_second = 0;
        let mut both = |event: Loading<'_>| match event {
            Loading::Weights { done, total } => {
                of_second = total;
                sink(Loading::Weights {
                    done,
                    total: total + of_first,
                });
            }
            note @ Loading::Note(_) => sink(note),
        };
        let second = Cuda::prepare_part(
            device,
            gguf,
            model,
            n_first..n_layer,
            &options.cuda,
            &mut both,
        )?;
        let mut progress = |done: u64, total: u64| {
            sink(Loading::Weights {
                done: of_second + done,
                total: of_second + total,
            });
        };
        let first = Cpu::prepare_part(gguf, model, 0..n_first, &options.cpu, &mut progress)?;
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

    fn rows_of(&mut self, step: &Step<'_>, tap: Tap) -> Result<Vec<f32>, Error> {
        let input = self.first.step(step, None)?;
        self.second.rows_of(&Step { input, ..*step }, tap)
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
