//! Octavo from outside: the program, models on every backend against their goldens, hostile files.

#![allow(unsafe_code)] // `cuda::watched`: a device passes promises on

mod architectures;
mod cli;
mod crates;
mod cuda;
mod determinism;
mod docs;
mod embeddings;
mod goldens;
mod hf;
mod hostile;
mod logits;
mod sizes;
