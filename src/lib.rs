//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.
//!
//! The entry point: everything a program needs to load a model and to get text, logits or any
//! intermediate value out of it. `examples/` has a program for each.
//!
//! ```
//! use octavo_llm::{Engine, EngineOptions, GenerationParams, ModelSource, generate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // or ModelSource::Path("model.gguf".into())
//! let engine = Engine::load(&ModelSource::Demo, &EngineOptions::default(), &mut |_| {})?;
//! let prompt = engine.tokenizer().encode(b"1+1=", Default::default())?;
//! let options = GenerationParams {
//!     max_tokens: Some(1),
//!     ..GenerationParams::default()
//! };
//! let answer = generate(
//!     &mut engine.session(),
//!     engine.tokenizer(),
//!     &prompt,
//!     &options,
//!     &mut |text: &str| print!("{text}"),
//! )?;
//! assert_eq!(answer.text, "2");
//! # Ok(())
//! # }
//! ```
//!
//! The crates behind it are layered: [`text`] knows no tensors, [`model`] no backend, [`engine`] no
//! command line, and [`analysis`] compares them all with reference implementations.

pub use octavo_analysis as analysis;
pub use octavo_engine as engine;
pub use octavo_hf as hf;
pub use octavo_model as model;
pub use octavo_text as text;

pub use octavo_engine::backend::{Phase, TapSink, TapView};
pub use octavo_engine::generate::{Generation, Observer, Stats, generate};
pub use octavo_engine::sample::SamplerConfig;
pub use octavo_engine::sequence::{FinishReason, GenerationParams};
pub use octavo_engine::{
    Batch, BatchError, BatchOptions, DeviceChoice, Engine, EngineOptions, Error, Event, Loading,
    Logits, LogitsFor, ModelSource, Request, Session,
};
pub use octavo_kernels::{Isa, IsaChoice, KvType, KvTypes, PromptBits};
pub use octavo_model::{Hparams, Model, Tap};
pub use octavo_text::chat::{ChatTemplate, Message};
pub use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
