//! The engine crate from outside.

mod beams;
mod generate;
mod kv;
mod ranks;
mod sampler;
mod scheduler;
mod sequence;
mod speculate;
