//! Runs models. A [`backend`] executes the graph of an [`octavo_model::Model`] on a CPU or a GPU,
//! [`kv`] manages the pages of the KV cache, a [`Session`] is one sequence of a loaded [`Engine`],
//! [`sample`] chooses tokens and [`generate`] combines them all.
//!
//! Dependencies point one way: the model knows no backend, the backend no session. Nothing here
//! prints, and nothing here knows of a command line.

pub mod backend;
mod batch;
mod demo;
mod device;
mod engine;
mod engine_handle;
mod error;
pub mod generate;
mod image_registry;
pub mod kv;
mod model_runner;
mod options;
pub mod sample;
pub mod schedule;
pub mod sequence;
mod session;
mod source;
pub mod speculative;
pub mod threads;

pub use backend::{Loading, LoadingSink};
pub use batch::{
    Batch, BatchError, BatchOptions, BeamSearch, Delta, Embed, Event, Found, MAX_CHOICES, Request,
    RequestId, RequestView, Snapshot, Task, Timing, Totals,
};
pub use demo::demo_model;
pub use device::{Placement, default_threads};
pub use engine::{DEFAULT_CONTEXT, Engine, EngineBuilder, MemoryReport, kv_bytes};
pub use engine_handle::{EngineHandle, EventStream, Health, Unavailable};
pub use error::Error;
pub use image_registry::{
    EncodedImage, ImageHandle, ImageRegistry, MultimodalInput, is_image_token,
};
pub use octavo_model::Pooling;
pub use options::{DeviceChoice, EngineOptions, default_batch};
pub use session::{Logits, LogitsFor, Session};
pub use source::ModelSource;
