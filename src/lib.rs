//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.

pub mod chat;
pub mod tokenizer;
