//! How to load and run a model, and on which device.

use std::path::PathBuf;

use octavo_kernels::{IsaChoice, KvTypes, PromptBits, SharedPool};

use crate::adapters::{ControlFile, LoraFile};
use crate::backend::cpu::SharedWeights;
use crate::backend::ranks::TensorParallelGroup;
use crate::backend::{BATCH_OF_CPUS, BATCH_OF_GPUS, CpuExperts};
use crate::fit::Fit;
use crate::kv::PromptCacheOptions;

/// Device to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if it works and has room for the model, otherwise the CPU.
    Auto {
        /// Number of the GPU.
        gpu: usize,
        /// Whether the user asked for this: only then is a missing driver reported, because most
        /// machines have none.
        asked: bool,
    },
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU of this number; an error if it cannot be used.
    Cuda(usize),
}

/// How to divide a model's layers among several GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerSplit {
    /// Proportions of layers for the GPUs from number 0 on; further GPUs get none. `None` divides
    /// them by free memory, among all GPUs that work.
    pub proportions: Option<Vec<f64>>,
}

/// How to load and run a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Device to run on.
    pub device: DeviceChoice,
    /// On a GPU, how many of the last layers run there, together with the output head; `None` means
    /// all layers.
    pub gpu_layers: Option<usize>,
    /// How to divide the layers among all GPUs; `None` for one GPU.
    pub layer_split: Option<LayerSplit>,
    /// Layers on a GPU whose experts stay in the CPU's memory and are computed there.
    pub cpu_experts: CpuExperts,
    /// How to fit a model into a GPU's memory that it does not fit into as these options say;
    /// `None` means to refuse it.
    pub fit: Option<Fit>,
    /// Number of threads; `None` means [`crate::default_threads`]. More threads than CPUs work, but
    /// are slower.
    pub threads: Option<usize>,
    /// Thread pool of another engine ([`pool`](crate::Engine::pool)) to share with it instead of
    /// starting a new one.
    pub pool: Option<SharedPool>,
    /// Tensor parallel group to run in; `None` means a single rank. Every rank has as many threads.
    pub tp_group: Option<TensorParallelGroup>,
    /// Instruction set to run; `Auto` picks the best this CPU has.
    pub isa: IsaChoice,
    /// Element types of the KV cache.
    pub kv_type: KvTypes,
    /// Precision to which CPUs round prefill activations before multiplying them with quantized
    /// weights.
    pub prompt_bits: PromptBits,
    /// Context length of a session in tokens; `None` means the smaller of the file's own and 4096.
    pub ctx: Option<usize>,
    /// Prefill batch size in tokens; `None` means enough to keep the device busy.
    pub batch: Option<usize>,
    /// Map the file instead of reading it.
    pub mmap: bool,
    /// Copy weights into the kernels' layout.
    pub repack: bool,
    /// Lock these copies in memory, so that they are never swapped out.
    pub lock: bool,
    /// On CPUs, copies to share with other engines, which keep those of all of them.
    pub weights: Option<SharedWeights>,
    /// Maximum number of sequences running at once.
    pub sessions: usize,
    /// Positions to allocate KV cache pages for; `None` means enough for `sessions` sequences of
    /// full length.
    pub kv_positions: Option<usize>,
    /// Folder that keeps the prefix cache beyond the program's end; `None` for none.
    pub prompt_cache: Option<PromptCacheOptions>,
    /// Folder for files of slots, which can be saved then; `None` for none.
    pub slot_dir: Option<PathBuf>,
    /// Low-rank adapters (LoRA) that sequences may use; on the CPU only.
    pub adapters: Vec<LoraFile>,
    /// Control vectors to add to the outputs of layers, for all sequences.
    pub control: Vec<ControlFile>,
    /// First and last layer that control vectors change; `None` means all.
    pub control_layers: Option<[usize; 2]>,
    /// Keep the hidden states of all tokens, for an MTP layer that drafts tokens. The
    /// last layer then computes whole prompts, not only the tokens with outputs.
    pub keep_hidden: bool,
    /// On a GPU, capture the launches of a decode step and replay them.
    pub graphs: bool,
    /// On a GPU, check every KV cache page number inside the kernels.
    pub check_pages: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: DeviceChoice::default(),
            gpu_layers: None,
            layer_split: None,
            cpu_experts: CpuExperts::default(),
            fit: Some(Fit::default()),
            threads: None,
            pool: None,
            tp_group: None,
            isa: IsaChoice::Auto,
            kv_type: KvTypes::default(),
            prompt_bits: PromptBits::default(),
            ctx: None,
            batch: None,
            mmap: true,
            repack: true,
            lock: false,
            weights: None,
            sessions: 1,
            kv_positions: None,
            prompt_cache: None,
            slot_dir: None,
            adapters: Vec::new(),
            control: Vec::new(),
            control_layers: None,
            keep_hidden: false,
            graphs: true,
            check_pages: true,
        }
    }
}

impl EngineOptions {
    /// Returns the prefill batch size in tokens, as far as it is known before a model is loaded.
    pub fn batch(&self) -> usize {
        self.batch.unwrap_or_else(|| default_batch(self.device))
    }
}

/// Returns the default prefill batch size in tokens, as far as it is known before a model is
/// loaded: a GPU that is present may turn out to be unusable.
pub fn default_batch(device: DeviceChoice) -> usize {
    let on_gpu = match device {
        DeviceChoice::Cpu => false,
        DeviceChoice::Auto { .. } => octavo_kernels::cuda::gpus().is_ok(),
        DeviceChoice::Cuda(_) => true,
    };
    if on_gpu { BATCH_OF_GPUS } else { BATCH_OF_CPUS }
}
