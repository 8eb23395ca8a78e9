//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.

pub mod backend;
pub mod chat;
pub mod kv;
pub mod model;
pub mod sample;
pub mod stop;
pub mod tokenizer;
