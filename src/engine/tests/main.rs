//! The engine crate from outside.

mod beams;
mod generate;
mod kv;
mod sampler;
mod scheduler;
mod sequence;
mod speculate;
