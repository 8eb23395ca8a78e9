//! Models of the Hugging Face hub, and files at addresses: chosen by name as llama.cpp chooses,
//! downloaded, checked and kept in the standard cache, which `huggingface_hub` and llama.cpp share.
//!
//! ```no_run
//! # fn main() -> Result<(), octavo_hub::Error> {
//! use octavo_hub::{Hub, RemoteModel};
//!
//! let hub = Hub::from_env()?;
//! let model = RemoteModel::parse("hf:ggml-org/SmolLM3-3B-GGUF:Q8_0")?.expect("a remote model");
//! let path = hub.model(&model, &mut |_| {})?;
//! # Ok(()) }
//! ```

mod address;
mod cache;
mod choice;
mod client;
mod download;
mod error;
mod hub;
mod name;
mod segments;

pub use cache::{Cache, CachedModel};
pub use client::Retries;
pub use error::Error;
pub use hub::{Event, EventSink, Hub};
pub use name::{FileSelector, RemoteModel};
pub use segments::Connections;
