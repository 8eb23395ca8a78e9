//! The engine crate from outside: its parts, and models on every instruction set against their
//! goldens.

mod architectures;
mod beams;
mod constraint;
mod determinism;
mod embeddings;
mod generate;
mod goldens;
mod kv;
mod logits;
mod ranks;
mod sampler;
mod scheduler;
mod sequence;
mod speculative;
mod tensor_parallel;
mod text;
mod variants;
