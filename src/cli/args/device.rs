//! What computes: the CPU, a GPU or both.

use clap::Args;
use octavo_engine::DeviceChoice;
use octavo_kernels::IsaChoice;

use crate::cli::failure::Failure;

/// What computes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(in crate::cli) struct DeviceArgs {
    /// What computes: auto, cpu or cuda (an NVIDIA GPU) [default: auto, a GPU that works and has
    /// room for the model or its --gpu-layers; the CPU with --isa and no --gpu-layers]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Which GPU, by its number in `octavo inspect --devices` [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16))]
    gpu: Option<u16>,
    /// How many of the last layers a GPU takes, the output with them; the CPU keeps the others and
    /// the embeddings, or all if 0 (also: -ngl N) [default: all]
    #[arg(
        long,
        visible_alias = "n-gpu-layers",
        value_name = "N",
        value_parser = clap::value_parser!(u32),
    )]
    gpu_layers: Option<u32>,
    /// On a GPU, launch every kernel by itself instead of replaying captured launches
    #[arg(long)]
    no_cuda_graph: bool,
    /// On a GPU, do not let kernels check page numbers of the KV cache
    #[arg(long)]
    no_paged_check: bool,
}

/// A device, or the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Device {
    Auto,
    Cpu,
    Cuda,
}

impl DeviceArgs {
    /// What computes, with kernels of `isa` on the CPU.
    pub(in crate::cli) fn choice(&self, isa: IsaChoice) -> Result<DeviceChoice, Failure> {
        self.choice_of(self.device(), isa)
    }

    /// As [`DeviceArgs::choice`], for another device than the one given.
    pub(in crate::cli) fn choice_of(
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
        match (device, isa, self.gpu_layers) {
            (Device::Cpu, ..) if self.gpu.is_some() => {
                useless(format!("--gpu {gpu}"), "--device auto or cuda")
            }
            (Device::Cpu, _, Some(n @ 1..)) => {
                useless(format!("--gpu-layers {n}"), "--device auto or cuda")
            }
            (Device::Cpu, ..) if self.no_cuda_graph || self.no_paged_check => {
                let option = match self.no_cuda_graph {
                    true => "--no-cuda-graph",
                    false => "--no-paged-check",
                };
                useless(option.to_owned(), "--device auto or cuda")
            }
            (Device::Cuda, IsaChoice::Only(isa), None) => useless(
                format!("--isa {isa}"),
                "--device auto or cpu, or --gpu-layers,",
            ),
            (Device::Cpu, ..) | (_, _, Some(0)) | (Device::Auto, IsaChoice::Only(_), None) => {
                Ok(DeviceChoice::Cpu)
            }
            // with a part on the CPU, its instruction set matters there
            (Device::Auto, ..) => {
                let asked =
                    self.device.is_some() || self.gpu.is_some() || self.gpu_layers.is_some();
                Ok(DeviceChoice::Auto { gpu, asked })
            }
            (Device::Cuda, ..) => Ok(DeviceChoice::Cuda(gpu)),
        }
    }

    /// The device given, or the best.
    pub(in crate::cli) fn device(&self) -> Device {
        self.device.unwrap_or(Device::Auto)
    }

    /// How many layers a GPU takes, if not all.
    pub(in crate::cli) fn gpu_layers(&self) -> Option<usize> {
        self.gpu_layers.map(|n| n as usize)
    }

    /// Whether to capture the launches of generated tokens.
    pub(in crate::cli) fn graphs(&self) -> bool {
        !self.no_cuda_graph
    }

    /// Whether kernels check page numbers.
    pub(in crate::cli) fn check_pages(&self) -> bool {
        !self.no_paged_check
    }
}
