//! The CUDA backend: uploads weights to a GPU and runs the graph's operations there. Kernels, their
//! delivery and their launches are in `octavo_kernels::cuda`.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::cuda::{
    Cache, Device, DeviceCollective, Executor, Gpu, GpuInfo, HostExecutor, ModelPart, Needs, Setup,
    Source, gpus, takes,
};
use octavo_kernels::{Collective, KvTypes, SharedPool, Step, with_memory};

pub use octavo_kernels::cuda::{Error, Limits};

use super::cpu::{self, Watched};
use super::lower::{FileBytes, Lowered, Taps, lower};
use super::ranks::gathered::Gathered;
use super::ranks::on_device::OnDevice;
use super::ranks::share::Share;
use super::rotate::Stored;
use super::{Backend, Candidates, Loading, LoadingSink, TapSink};
use octavo_model::{Network, WeightId, WeightRef};

/// How to run on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Element types of the cache.
    pub kv_type: KvTypes,
    /// Largest step, and size of the cache.
    pub limits: Limits,
    /// Capture the launches of a decode step and replay them.
    pub graphs: bool,
    /// Check every page number inside the kernels.
    pub check_pages: bool,
    /// Number of threads that pack weights.
    pub threads: usize,
}

/// Rounding error of prefill products, as a relative error of their inputs: both factors are halves
/// (f16), rounded by half a step of 11 bits, evenly distributed.
const HALVES: f64 = 1.0 / 2048.0 / 1.732_050_807_568_877_2 * std::f64::consts::SQRT_2;

/// Returns what prefill kernels round beyond f32: the inputs of products, and attention's weights.
pub fn prompt_rounding() -> octavo_kernels::Rounding {
    octavo_kernels::Rounding {
        products: HALVES,
        floats: HALVES,
        attention: HALVES,
    }
}

/// Returns every GPU, each with the reason why it cannot be used, if there is one.
///
/// # Errors
/// If there is no driver or no GPU.
pub fn devices() -> Result<Vec<(GpuInfo, Option<Error>)>, Error> {
    let test = |info: GpuInfo| {
        let wrong = open(info.ordinal).err();
        (info, wrong)
    };
    Ok(gpus()?.into_iter().map(test).collect())
}

/// Opens a GPU by its number, with the user's kernel cache.
///
/// # Errors
/// One line that says what is missing.
pub fn open(ordinal: usize) -> Result<Gpu, Error> {
    Gpu::open(ordinal, Cache::of_user())
}

/// Layers of a model, lowered, with their weights as they are in the file.
struct LoweredLayers {
    lowered: Lowered,
    sources: Vec<Source>,
    /// Which part of the model they are, if not all.
    part: Option<ModelPart>,
}

/// Returns which part of a model of `n_layer` layers these are; `None` for all.
fn part_of(layers: &Range<usize>, n_layer: usize) -> Option<ModelPart> {
    match (layers.start, layers.end) {
        (0, end) if end == n_layer => None,
        (_, end) if end == n_layer => Some(ModelPart::Last(layers.len())),
        (first, end) => Some(ModelPart::Layers { first, end }),
    }
}

/// Layers that run on a GPU.
#[derive(Clone, Debug)]
pub(super) struct GpuLayers {
    pub(super) layers: Range<usize>,
    /// Those whose experts stay on the CPU, of all of the model.
    pub(super) cpu_experts: Vec<usize>,
}

impl GpuLayers {
    /// Returns these layers, with all that belongs to them.
    pub(super) fn whole(layers: Range<usize>) -> GpuLayers {
        GpuLayers {
            layers,
            cpu_experts: Vec::new(),
        }
    }

    /// Returns those whose experts stay on the CPU.
    pub(super) fn with_cpu_experts(&self) -> Vec<usize> {
        let all = self.cpu_experts.iter();
        let here = all.filter(|layer| self.layers.contains(layer));
        here.copied().collect()
    }
}

impl LoweredLayers {
    fn new(
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        on: &GpuLayers,
        options: &Options,
    ) -> LoweredLayers {
        let GpuLayers {
            layers,
            cpu_experts,
        } = on;
        let lowered = lower(gguf, model, layers, options.kv_type, cpu_experts);
        let source = |weight: &WeightRef| Source {
            name: weight.name.clone(),
            ty: weight.ty,
            rows: weight.rows as usize,
            cols: weight.cols as usize,
            bytes: Arc::new(FileBytes::new(gguf, weight)),
        };
        let sources = lowered
            .weights
            .iter()
            .map(|id| source(model.tensors().matrix(*id)))
            .collect();
        LoweredLayers {
            lowered,
            sources,
            part: part_of(layers, model.graph().n_layer),
        }
    }
}

/// Returns the memory that some layers of a model need.
pub(super) fn needs(
    gguf: &Arc<Gguf>,
    model: &dyn Network,
    on: &GpuLayers,
    options: &Options,
) -> Result<Needs, Error> {
    let model = Stored::of(model, options.kv_type);
    let LoweredLayers {
        lowered, sources, ..
    } = LoweredLayers::new(gguf, &model, on, options);
    Executor::<Gpu>::needs(&lowered.program, &sources, &options.limits)
}

/// The model on a GPU, or on another device that runs its kernels.
pub struct Cuda<D: Device> {
    executor: Executor<D>,
    taps: Taps,
    /// For one of several ranks: shows the values of all ranks to taps.
    gathered: Option<Gathered>,
    weights: Vec<WeightId>,
    cpu_experts: Option<LoadedExperts>,
}

/// Experts that the CPU computes.
struct LoadedExperts {
    /// Number of layers whose experts they are.
    n_layer: usize,
    watched: Watched,
}

impl Cuda<Box<dyn Device>> {
    /// As [`Cuda::prepare`], for a rank's shard of a model, with the link to the other ranks.
    pub(super) fn prepare_share(
        on: OnDevice,
        link: Arc<dyn Collective>,
        gguf: &Arc<Gguf>,
        share: &Share<'_>,
        options: &Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Self, Error> {
        let OnDevice { device, ranks } = on;
        let layers = 0..share.graph().n_layer;
        let part = LoweredLayers::new(gguf, share, &GpuLayers::whole(layers), options);
        let cuda = Cuda::prepare_with((device, Some(ranks)), gguf, share, part, options, sink)?;
        Ok(Cuda {
            gathered: Some(Gathered::new(link, share)),
            ..cuda
        })
    }
}

impl<D: Device> Cuda<D> {
    /// Packs and uploads the weights and reserves all memory in advance. `sink` receives the memory
    /// needs before anything happens.
    ///
    /// # Errors
    /// If the kernels do not take a weight, the heads or the cache's type, if there is no room, or
    /// if the device fails.
    pub fn prepare(
        device: D,
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        options: &Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Cuda<D>, Error> {
        let all = GpuLayers::whole(0..model.graph().n_layer);
        Cuda::prepare_part(device, gguf, model, &all, options, sink)
    }

    /// As [`Cuda::prepare`], for some layers. If there are experts for the CPU, the caller adds
    /// them with [`Cuda::add_experts`].
    pub(super) fn prepare_part(
        device: D,
        gguf: &Arc<Gguf>,
        model: &dyn Network,
        on: &GpuLayers,
        options: &Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Cuda<D>, Error> {
        let model = Stored::of(model, options.kv_type);
        let part = LoweredLayers::new(gguf, &model, on, options);
        Cuda::prepare_with((device, None), gguf, &model, part, options, sink)
    }

    /// As [`Cuda::prepare`], for lowered layers, on a device that may gather with those of other
    /// ranks.
    fn prepare_with(
        (device, ranks): (D, Option<Arc<dyn DeviceCollective>>),
        gguf: &Arc<Gguf>,
        network: &dyn Network,
        lowered: LoweredLayers,
        options: &Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Cuda<D>, Error> {
        let LoweredLayers {
            lowered:
                Lowered {
                    program,
                    weights,
                    taps,
                },
            sources,
            part,
        } = lowered;
        let tensor = |id: WeightId| network.tensors().matrix(id).tensor;
        let needs = Executor::<D>::needs(&program, &sources, &options.limits)?;
        sink(Loading::Note(&format!(
            "{}: {} {needs}",
            device.describe(),
            takes(part)
        )));
        let mut progress = |weight: Option<usize>, done: u64, total: u64| {
            if let Some(weight) = weight {
                gguf.release(&gguf.tensors()[tensor(weights[weight])]);
            }
            sink(Loading::Weights { done, total });
        };
        let Options {
            limits,
            graphs,
            check_pages,
            threads,
            ..
        } = *options;
        let setup = Setup {
            limits,
            capture: graphs,
            check_pages,
            threads,
        };
        let executor = Executor::of_rank(device, ranks, program, &sources, setup, &mut progress);
        let executor = executor.map_err(|error| error.of_part(part))?;
        Ok(Cuda {
            executor,
            taps,
            gathered: None,
            weights,
            cpu_experts: None,
        })
    }

    /// Packs the experts of `n_layer` layers for the CPU, where the program leaves any to it.
    ///
    /// # Errors
    /// If a weight is unusable, or memory or threads are lacking.
    pub(super) fn add_experts(
        self,
        gguf: &Arc<Gguf>,
        network: &dyn Network,
        n_layer: usize,
        options: &cpu::Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cuda<D>, cpu::Error> {
        let host = self.executor.host_program();
        let weights = host.matrices.iter().map(|w| self.weights[*w]).collect();
        let pool = options.pool()?;
        let program = (&host.program, weights);
        let packed = cpu::matrices(gguf, network, program, (options, &pool), progress);
        let (matrices, watched) = packed?;
        let isa = options.isa;
        let host = with_memory(|| HostExecutor::new(isa, host, matrices, pool))??;
        Ok(Cuda {
            executor: self.executor.with_host(host),
            cpu_experts: Some(LoadedExperts { n_layer, watched }),
            ..self
        })
    }

    /// Checks that the files of the CPU's experts are still those that were opened.
    fn check(&self) -> Result<(), cpu::Error> {
        self.cpu_experts
            .as_ref()
            .map_or(Ok(()), |experts| experts.watched.check())
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        self.executor.device()
    }
}

impl<D: Device> Backend for Cuda<D> {
    fn batch(&self) -> usize {
        super::BATCH_OF_GPUS
    }

    fn step(
        &mut self,
        step: &Step<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], crate::error::Error> {
        self.check()?;
        let Some(sink) = tap else {
            return Ok(self.executor.step(step, None)?);
        };
        let Cuda {
            executor,
            taps,
            gathered,
            ..
        } = self;
        let mut view = |op: usize, rows: usize, width: usize, data: &[f32]| match gathered {
            None => taps.show(sink, op, rows, width, data),
            Some(gathered) => gathered.show(taps, sink, op, (rows, width), data),
        };
        Ok(executor.step(step, Some(&mut view))?)
    }

    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, crate::error::Error> {
        self.check()?;
        Ok(self.executor.argmax(step)?)
    }

    fn max_candidates(&self, n_outputs: usize) -> usize {
        self.executor.max_candidates(n_outputs)
    }

    fn candidates(
        &mut self,
        step: &Step<'_>,
        whole: &[usize],
    ) -> Result<Candidates, crate::error::Error> {
        self.check()?;
        Ok(self.executor.candidates(step, whole)?)
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, crate::error::Error> {
        Ok(self.executor.kept()?.to_vec())
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), crate::error::Error> {
        Ok(self.executor.copy_page(group, from, to)?)
    }

    fn cache_groups(&self) -> usize {
        self.executor.cache_groups()
    }

    fn n_pages(&self) -> usize {
        self.executor.limits().n_pages
    }

    fn n_states(&self) -> usize {
        self.executor.n_states()
    }

    fn weight_bytes(&self) -> u64 {
        let host = self
            .executor
            .host()
            .map_or(&[][..], |host| host.executor().matrices());
        let experts: usize = host.iter().map(|m| m.packed_bytes()).sum();
        self.executor.memory().weights + experts as u64
    }

    fn release_scratch(&mut self) {
        if let Some(host) = self.executor.host_mut() {
            host.release_scratch();
        }
    }

    fn pool(&self) -> Option<SharedPool> {
        Some(self.executor.host()?.executor().pool().clone())
    }

    fn describe(&self) -> String {
        let graphs = match self.executor.captures() {
            Ok(true) => String::new(),
            Ok(false) => ", no graphs".to_owned(),
            Err(error) => format!(", no graphs ({error})"),
        };
        let experts = self.cpu_experts.iter().zip(self.executor.host());
        let experts = experts.map(|(LoadedExperts { n_layer, .. }, host)| {
            let s = if *n_layer == 1 { "" } else { "s" };
            let cpu = cpu::describe(host.executor());
            format!("; experts of {n_layer} layer{s}: {cpu}")
        });
        let experts: String = experts.collect();
        let device = self.executor.device().describe();
        format!("cuda, {device}{graphs}{experts}")
    }
}
