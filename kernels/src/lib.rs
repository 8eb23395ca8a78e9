//! High-performance kernels: quantized matrix products, paged attention and the operations around
//! them, on CPUs and (`cuda`) on NVIDIA's GPUs.
//!
//! This crate owns vectors, packed weight layouts, the thread pool and the execution of a
//! [`Program`]: a flat list of operations over numbered buffers. It knows no model, no file and no
//! request. It is the one crate with unsafe code (the memory map apart); every block states its
//! guarantees.
#![allow(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("weights are used as they lie in the file: little-endian");

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod act;
mod affinity;
mod clock;
pub mod cuda;
mod dispatch;
mod exec;
mod formats;
mod fuse;
mod generic;
mod hadamard;
mod isa;
mod kv;
mod matrix;
mod memory;
mod op;
mod pack;
mod pool;
mod portable;
mod prefetch;
pub mod probe;
mod program;
mod prompt_bits;
mod ranks;
mod rope;
mod simd;
mod state;
mod stdout;
mod table;
mod weight_bytes;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use affinity::stay_on;
pub use exec::{Executor, TapFn};
pub use formats::{has_minimum, packed_types};
pub use hadamard::HADAMARD_ORDER;
pub use isa::{Isa, IsaChoice, IsaError, Rounding};
pub use kv::{KvShape, KvStore, KvTooLarge, KvType, KvTypes, PAGE_POSITIONS};
pub use matrix::{Matrix, MatrixError, kernel_name};
pub use memory::{
    LargePages, NoMemory, large_pages, lock_limit, room, share_heap, trim, with_memory,
};
pub use op::{
    Activation, CacheLayer, CacheShape, Function, KeyHeads, MERGED_ROWS, MatrixShape, Op,
    Recurrence, RowSet, STATE_LANES, Scores, ShapeError, Shapes, TopGroups, Translate, Translated,
    ValueShape, matrix_state,
};
pub use pool::{Pool, SharedPool};
pub use program::{
    EmbeddingRows, Instruction, Phase, Program, ProgramOp, RowTable, Sequence, Slot, StateUse,
    StateWrite, Step,
};
pub use prompt_bits::PromptBits;
pub use ranks::{Collective, Cut, Threads, gather_rows};
pub use rope::{Pairing, Rope, RopePosition};
pub use stdout::stdout_was_closed;
pub use weight_bytes::WeightBytes;
