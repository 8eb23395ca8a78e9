//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.
//!
//! The entry point: everything a program needs to load a model and to get text, logits or any
//! intermediate value out of it. `examples/` has a program for each.
//!
//! ```no_run
//! use octavo_llm::{Engine, GenerationParams};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::open("model.gguf")?;
//! let answer = engine.generate("1+1=", &GenerationParams::default())?;
//! println!("{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! [`Engine::builder`] takes options and reports progress; [`Engine::generate_stream`] hands out
//! the text while it is generated; [`Engine::chat`] answers messages, [`Engine::logits`] returns
//! the logits after every token and [`Engine::embed`] an embedding:
//!
//! ```
//! use octavo_llm::{Engine, GenerationParams, ModelSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // the small model that is built into the program
//! let engine = Engine::builder().threads(1).open_source(&ModelSource::Demo)?;
//! let params = GenerationParams {
//!     max_tokens: Some(1),
//!     ..GenerationParams::default()
//! };
//! let answer = engine.generate_stream("1+1=", &params, |piece| print!("{piece}"))?;
//! assert_eq!(answer.text, "2");
//! # Ok(())
//! # }
//! ```
//!
//! Below that, a [`Batch`] runs many requests together, and a [`Session`] computes tokens step by
//! step.
//!
//! The crates behind it are layered: [`text`] knows no tensors, [`model`] no backend, [`engine`] no
//! command line, and [`analysis`] compares them all with reference implementations.

pub use octavo_analysis as analysis;
pub use octavo_engine as engine;
pub use octavo_hf as hf;
pub use octavo_model as model;
pub use octavo_text as text;

pub use octavo_engine::backend::{Phase, TapSink, TapView};
pub use octavo_engine::sample::SamplerConfig;
pub use octavo_engine::{
    Batch, BatchError, BatchOptions, DeviceChoice, Engine, EngineBuilder, EngineOptions, Error,
    Event, FinishReason, GenerateError, Generation, GenerationParams, Loading, Logits, LogitsFor,
    ModelSource, Observer, Request, Session, Timing,
};
pub use octavo_kernels::{Isa, IsaChoice, KvType, KvTypes, PromptBits};
pub use octavo_model::{Hparams, Model, Tap};
pub use octavo_text::chat::{ChatTemplate, Message};
pub use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
