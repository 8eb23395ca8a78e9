//! Octavo: a GGUF-loading LLM inference engine whose numbers can be proved.
pub mod kv;
pub mod model;
pub mod sample;
pub mod stop;
