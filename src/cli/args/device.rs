//! Device options: the CPU, a GPU or both.

use clap::Args;
use octavo_engine::DeviceChoice;
use octavo_kernels::IsaChoice;

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
            // the instruction set matters where layers stay on the CPU
            (Device::Auto, ..) => {
                let asked =
                    self.device.is_some() || self.gpu.is_some() || self.gpu_layers.is_some();
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

    /// Returns whether to run decode steps as CUDA graphs.
    pub(crate) fn graphs(&self) -> bool {
        !self.no_cuda_graph
    }

    /// Returns whether kernels check page numbers.
    pub(crate) fn check_pages(&self) -> bool {
        !self.no_paged_check
    }
}
