//! Runs models. A [`backend`] executes the graph of an [`octavo_model::Model`] on a CPU or a GPU,
//! `kv` manages the pages of the KV cache, a [`Batch`] runs requests for text together, a
//! [`Session`] is one sequence of a loaded [`Engine`], and [`sample`] chooses tokens.
//!
//! Dependencies point one way: the model knows no backend, the backend no session. Nothing here
//! prints, and nothing here knows of a command line.

mod adapters;
pub mod backend;
mod batch;
mod choices;
mod context;
mod decoder;
mod demo;
mod device;
mod engine;
mod engine_handle;
mod error;
pub mod fit;
mod generate;
mod image_registry;
mod kv;
mod model_runner;
mod options;
pub mod sample;
mod scheduler;
mod session;
mod source;
mod speculative;
mod text;
pub mod threads;

pub use adapters::{ControlFile, LoraFile, LoraInfo, LoraScale};
pub use backend::cpu::SharedWeights;
pub use backend::{CpuExperts, Loading, LoadingSink, TensorPattern};
pub use batch::{
    Batch, BatchError, BatchOptions, BeamOutput, BeamSearch, Delta, Embed, Event, MAX_CHOICES,
    Request, RequestId, RequestView, Snapshot, Task, Timing, Totals,
};
pub use choices::{ChoiceRow, Choices};
pub use context::{Context, fits, free_memory};
pub use decoder::{
    ContextShift, FinishReason, GenerationError, GenerationParams, Text, Vocabulary,
};
pub use demo::demo_model;
pub use device::Placement;
pub use engine::{DEFAULT_CONTEXT, Engine, EngineBuilder, MemoryReport, kv_bytes};
pub use engine_handle::{EngineHandle, EventStream, Health, Unavailable};
pub use error::Error;
pub use fit::Fit;
pub use generate::{GenerateError, Generation, Observer};
pub use image_registry::{
    EncodedImage, ImageHandle, ImagePart, ImageRegistry, MultimodalInput, is_image_token,
};
pub use kv::{
    OutOfPages, PAGE as PAGE_POSITIONS, PageCounts, PromptCacheOptions, PromptCacheStats,
    SlotError, SlotPages,
};
pub use octavo_kernels::trim as release_freed_memory;
pub use octavo_model::Pooling;
pub use options::{DeviceChoice, EngineOptions, LayerSplit, default_batch};
pub use session::{Logits, LogitsFor, Session};
pub use source::ModelSource;
pub use speculative::{DraftStats, Lookup};
pub use threads::default_threads;
