//! High-performance kernels: quantized matrix products, paged attention and the operations around
//! them, on CPUs and (`cuda`) on NVIDIA's GPUs.
//!
//! This crate owns packed matrices, the thread pool and the execution of a [`Program`]: a flat list
//! of operations over numbered buffers. It knows no model, no file and no request. The algorithms
//! are in `octavo-simd` (`kernels/simd`), compiled for each instruction set in `octavo-isa`
//! (`kernels/isa`). These three crates are the ones with unsafe code (the memory map apart); every
//! block states its guarantees.
#![allow(unsafe_code)]

mod affinity;
mod clock;
pub mod cuda;
mod exec;
mod fuse;
mod hadamard;
mod kv;
mod logits;
mod lora;
mod matrix;
mod memory;
mod op;
mod pool;
pub mod probe;
mod program;
mod ranks;
mod rope;
mod state;
mod stdout;
mod strips;
mod weight_bytes;

pub use affinity::stay_on;
pub use exec::{Executor, TapFn};
pub use hadamard::HADAMARD_ORDER;
pub use kv::{KvStore, KvTooLarge};
pub use logits::{ExpSums, LOGIT_BLOCK, LogitKernels, exp_f64};
pub use lora::{LoraInput, LoraPart, LoraSite};
pub use matrix::{Matrix, MatrixError, kernel_name};
pub use memory::{
    LargePages, NoMemory, large_pages, lock_limit, room, share_heap, trim, with_memory,
};
pub use octavo_isa::{Isa, IsaChoice, IsaError, PromptBits, Rounding};
pub use octavo_simd::formats::{has_minimum, packed_types};
pub use octavo_simd::function::{Activation, Function, Xielu};
pub use octavo_simd::generic::recurrence::STATE_LANES;
pub use octavo_simd::generic::routing::TopGroups;
pub use octavo_simd::kv_layout::{KvShape, KvType, KvTypes, PAGE_POSITIONS};
pub use op::{
    Alibi, CacheLayer, CacheShape, KeyHeads, MatrixShape, Op, Recurrence, RowSet, Scores,
    ShapeError, Shapes, Translate, Translated, ValueShape, matrix_state,
};
pub use pool::{Pool, SharedPool};
pub use program::{
    EmbeddingRows, HostProgram, Instruction, Phase, Program, ProgramOp, RowTable, Slot, StateUse,
    StateWrite, Step, StepSequence, UsedAdapter,
};
pub use ranks::{Collective, Cut, Threads, gather_rows};
pub use rope::{Pairing, Rope, RopePosition};
pub use stdout::stdout_was_closed;
pub use weight_bytes::WeightBytes;
