//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.
//!
//! The way data flows: a file becomes a [`model::Model`] (checked hyperparameters, bound weights, a
//! graph of named ops), a [`backend`] executes it, an [`engine::Session`] is one timeline, and
//! [`sample`] chooses tokens. Nothing flows backwards: the model knows no backend, the backend no
//! request.

pub mod awq;
pub mod backend;
pub mod bench;
pub mod chat;
pub mod diff;
pub mod engine;
mod error;
pub mod eval;
pub mod generate;
pub mod hf;
pub mod imatrix;
pub mod kv;
pub mod model;
pub mod quant_report;
pub mod quantize;
pub mod report;
pub mod sample;
pub mod stop;
pub mod threads;
pub mod tokenizer;

pub use error::Error;
