//! The engine crate from outside.

mod generate;
mod kv;
mod sampler;
mod scheduler;
mod sequence;
