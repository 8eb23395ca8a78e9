//! Device options: the CPU, a GPU or both.

use clap::Args;
use octavo_engine::{CpuExperts, DeviceChoice, LayerSplit, TensorPattern};
use octavo_kernels::IsaChoice;
use regex::Regex;

use super::FitArgs;
use crate::failure::Failure;

/// Device options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct DeviceArgs {
    /// Device to run on: auto, cpu or cuda (an NVIDIA GPU) [default: auto, which takes a GPU that
    /// works and has room for the model or its --gpu-layers; the CPU with --isa and no
    /// --gpu-layers]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Number of the GPU in `octavo inspect --devices` [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16))]
    gpu: Option<u16>,
    /// Number of last layers to run on the GPU, with the output layer; the CPU runs the others and
    /// the embeddings, or everything with 0 (also: -ngl N) [default: all]
    #[arg(
        long,
        visible_alias = "n-gpu-layers",
        value_name = "N",
        value_parser = clap::value_parser!(u32),
    )]
    gpu_layers: Option<u32>,
    /// How to use several GPUs: none, one GPU; layer, each has neighbouring layers (also: -sm)
    /// [default: none]
    #[arg(long, value_name = "MODE", conflicts_with = "gpu")]
    split_mode: Option<SplitMode>,
    /// Proportions of layers for each GPU with --split-mode layer, from the first on, such as 3,1
    /// (also: -ts) [default: by free memory]
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        requires = "split_mode"
    )]
    tensor_split: Vec<f64>,
    /// Of the layers on the GPU, keep the experts of the first N layers of the model in the CPU's
    /// memory and compute them there (also: -ncmoe N) [default: 0]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32),
        conflicts_with = "cpu_moe",
    )]
    n_cpu_moe: Option<u32>,
    /// Keep the experts of all layers on the CPU (also: -cmoe)
    #[arg(long)]
    cpu_moe: bool,
    /// Keep the tensors whose names match REGEX on the CPU: the experts of whole layers, such as
    /// 'blk\.[0-9]\.ffn_.*_exps=CPU'; may be given several times (also: -ot)
    #[arg(long, value_name = "REGEX=CPU", value_parser = overrides)]
    override_tensor: Vec<Overrides>,
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// On a GPU, launch every kernel separately instead of replaying CUDA graphs
    #[arg(long)]
    no_cuda_graph: bool,
    /// On a GPU, skip the kernels' checks of KV cache page numbers
    #[arg(long)]
    no_paged_check: bool,
}

/// A device, or auto for the best one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    Auto,
    Cpu,
    Cuda,
}

/// How to divide a model among GPUs, in llama.cpp's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SplitMode {
    None,
    Layer,
}

/// Tensors that stay on the CPU, as llama.cpp names them: REGEX=CPU, several with commas.
#[derive(Clone, Debug)]
struct Overrides {
    text: String,
    patterns: Vec<Regex>,
}

impl Overrides {
    fn patterns(&self) -> impl Iterator<Item = TensorPattern> {
        self.patterns.iter().cloned().map(|pattern| {
            let text = format!("--override-tensor {pattern}=CPU");
            TensorPattern::new(text, move |name| pattern.is_match(name))
        })
    }
}

/// Reads the value of --override-tensor. A comma without a device before it is the pattern's own.
fn overrides(text: &str) -> Result<Overrides, String> {
    let (mut patterns, mut rest) = (Vec::new(), String::new());
    for piece in text.split(',') {
        rest += piece;
        let Some((pattern, device)) = rest.rsplit_once('=') else {
            rest.push(',');
            continue;
        };
        if device != "CPU" {
            let why = "tensors can be kept on the CPU, and nowhere else";
            return Err(format!("expected REGEX=CPU, got {rest}: {why}"));
        }
        let bad = |error: regex::Error| error.to_string().replace('\n', " ");
        patterns.push(Regex::new(pattern).map_err(bad)?);
        rest.clear();
    }
    if patterns.is_empty() || !rest.is_empty() {
        return Err(format!("expected REGEX=CPU, got {text}"));
    }
    let text = text.to_owned();
    Ok(Overrides { text, patterns })
}

impl DeviceArgs {
    /// Chooses the device, with kernels of `isa` on the CPU.
    pub(crate) fn choice(&self, isa: IsaChoice) -> Result<DeviceChoice, Failure> {
        self.choice_of(self.device(), isa)
    }

    /// Does the same as [`DeviceArgs::choice`] for another device than the given one.
    pub(crate) fn choice_of(
        &self,
        device: Device,
        isa: IsaChoice,
    ) -> Result<DeviceChoice, Failure> {
        let gpu = self.gpu.map_or(0, usize::from);
        let useless = |what: String, expected: &str| {
            Err(Failure::Usage(format!(
                "{what} has no effect: expected {expected} with it"
            )))
        };
        // what stays on the CPU runs its instruction set
        let has_experts = self.cpu_experts_option().is_some();
        let asks_for_parts = self.gpu_layers.is_some() || has_experts;
        match (device, isa, self.gpu_layers) {
            (Device::Cpu, ..) if has_experts => {
                let option = self.cpu_experts_option().unwrap_or_default();
                useless(option, "--device auto or cuda")
            }
            (Device::Cpu, ..) if self.gpu.is_some() => {
                useless(format!("--gpu {gpu}"), "--device auto or cuda")
            }
            (Device::Cpu, _, Some(n @ 1..)) => {
                useless(format!("--gpu-layers {n}"), "--device auto or cuda")
            }
            (Device::Cpu, ..) if self.fit.option().is_some() => {
                let option = self.fit.option().unwrap_or_default();
                useless(option, "--device auto or cuda")
            }
            (Device::Cpu, ..) if self.layer_split().is_some() => {
                useless("--split-mode layer".to_owned(), "--device auto or cuda")
            }
            _ if self.split_mode == Some(SplitMode::None) && !self.tensor_split.is_empty() => {
                useless("--tensor-split".to_owned(), "--split-mode layer")
            }
            _ if self.fit.useless().is_some() => {
                useless(self.fit.useless().unwrap_or_default(), "--fit on")
            }
            (Device::Cpu, ..) if self.no_cuda_graph || self.no_paged_check => {
                let option = match self.no_cuda_graph {
                    true => "--no-cuda-graph",
                    false => "--no-paged-check",
                };
                useless(option.to_owned(), "--device auto or cuda")
            }
            (Device::Cuda, IsaChoice::Only(isa), None) if !has_experts => useless(
                format!("--isa {isa}"),
                "--device auto or cpu, or --gpu-layers or --n-cpu-moe,",
            ),
            (Device::Cpu, ..) | (_, _, Some(0)) => Ok(DeviceChoice::Cpu),
            (Device::Auto, IsaChoice::Only(_), None) if !has_experts => Ok(DeviceChoice::Cpu),
            // the instruction set matters where layers stay on the CPU
            (Device::Auto, ..) => {
                let asks_for_parts = asks_for_parts || self.split_mode.is_some();
                let asked = self.device.is_some() || self.gpu.is_some() || asks_for_parts;
                Ok(DeviceChoice::Auto { gpu, asked })
            }
            (Device::Cuda, ..) => Ok(DeviceChoice::Cuda(gpu)),
        }
    }

    /// Returns the given device, or auto.
    pub(crate) fn device(&self) -> Device {
        self.device.unwrap_or(Device::Auto)
    }

    /// Returns the number of layers to run on the GPU; `None` for all.
    pub(crate) fn gpu_layers(&self) -> Option<usize> {
        self.gpu_layers.map(|n| n as usize)
    }

    /// Returns how to divide layers among GPUs, if there are to be several.
    pub(crate) fn layer_split(&self) -> Option<LayerSplit> {
        let proportions = (!self.tensor_split.is_empty()).then(|| self.tensor_split.clone());
        (self.split_mode == Some(SplitMode::Layer)).then_some(LayerSplit { proportions })
    }

    /// Returns the layers whose experts stay on the CPU.
    pub(crate) fn cpu_experts(&self) -> CpuExperts {
        let first = self.n_cpu_moe.map_or(0, |n| n as usize);
        CpuExperts {
            first: if self.cpu_moe { usize::MAX } else { first },
            tensors: self
                .override_tensor
                .iter()
                .flat_map(Overrides::patterns)
                .collect(),
        }
    }

    /// Returns the first option that keeps experts on the CPU, as it was given.
    fn cpu_experts_option(&self) -> Option<String> {
        let n = self.n_cpu_moe.filter(|n| *n > 0);
        let all = || self.cpu_moe.then(|| "--cpu-moe".to_owned());
        let tensors = || {
            let first = self.override_tensor.first()?;
            Some(format!("--override-tensor {}", first.text))
        };
        n.map(|n| format!("--n-cpu-moe {n}"))
            .or_else(all)
            .or_else(tensors)
    }

    /// Returns whether to run decode steps as CUDA graphs.
    pub(crate) fn graphs(&self) -> bool {
        !self.no_cuda_graph
    }

    /// Returns whether kernels check page numbers.
    pub(crate) fn check_pages(&self) -> bool {
        !self.no_paged_check
    }
}
