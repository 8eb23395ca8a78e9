//! Octavo from outside: the program, folders, models on GPUs against their goldens, hostile files.

#![allow(unsafe_code)] // `cuda::watched` and `cuda::ranks`: devices want promises

mod cli;
mod crates;
mod cuda;
mod docs;
mod hf;
mod hostile;
mod machine_code;
mod sizes;

#[path = "../src/hub/tests/standin.rs"]
#[allow(dead_code)] // the hub's own tests plant more faults
mod standin;

#[path = "../src/engine/tests/logits.rs"]
mod logits;

#[path = "../src/engine/tests/tensor_parallel.rs"]
mod tensor_parallel;
