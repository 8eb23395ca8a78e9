//! The engine crate from outside: its parts, and models on every instruction set against their
//! goldens.

mod architectures;
mod assistant;
mod batch;
mod beams;
mod choices;
mod context_shift;
mod determinism;
mod embeddings;
mod generate;
mod goldens;
mod logits;
mod lora;
mod mtp;
mod prompt_cache;
mod ranks;
mod rerank;
mod sampler;
mod scripted;
mod speculative;
mod suppressed;
mod tensor_parallel;
mod text;
mod variants;
