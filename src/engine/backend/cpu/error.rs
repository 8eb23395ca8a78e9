//! Errors of the CPU backend.

use std::fmt;

use octavo_kernels::{KvTooLarge, KvTypes, MatrixError, NoMemory};

/// Reasons that a model cannot be prepared or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A weight that the kernels cannot take.
    #[error("tensor {name}: {source}")]
    Matrix {
        /// Its name in the file.
        name: String,
        /// Reason.
        source: MatrixError,
    },
    /// No memory for a weight's copy in the kernels' layout.
    #[error(
        "tensor {name}: {source}; {} MiB of the {} MiB of weights are packed",
        done >> 20,
        total >> 20
    )]
    Weights {
        /// Its name in the file.
        name: String,
        /// Memory that it takes.
        source: MatrixError,
        /// Bytes packed before it.
        done: u64,
        /// Bytes of all weights.
        total: u64,
    },
    /// The system does not let the process lock this much memory.
    #[error("locking {} MiB of weights in memory: {source}{}", bytes >> 20, Limit(*limit))]
    Lock {
        /// Bytes of all packed weights.
        bytes: u64,
        /// Bytes that the process may lock, if there is a limit.
        limit: Option<u64>,
        /// Error of the system.
        source: std::io::Error,
    },
    /// No memory for the threads' stacks.
    #[error("{threads} threads: {source}")]
    Stacks {
        /// Number of threads.
        threads: usize,
        /// Memory that they take.
        source: NoMemory,
    },
    /// No memory for measuring the memory bandwidth.
    #[error("reading memory to measure it: {0}")]
    Measuring(#[source] NoMemory),
    /// No memory for the buffers of a step.
    #[error("buffers of a step: {0}")]
    Buffers(#[from] NoMemory),
    /// A file that has changed since it was opened.
    #[error(transparent)]
    File(#[from] gguf_rs_lite::Error),
    /// The system could not start the threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The cache does not fit.
    #[error("{0}")]
    Kv(#[from] KvTooLarge),
    /// No memory for the states of recurrent layers.
    #[error("{n_states} states of recurrent layers: {source}")]
    States {
        /// Number of states.
        n_states: usize,
        /// Memory that they take.
        source: NoMemory,
    },
    /// A cache type with blocks of values that do not divide a head.
    #[error("KV cache of {types}: expected heads of a multiple of 32 values, got {head_dim}")]
    KvType {
        /// The cache types.
        types: KvTypes,
        /// Values per head of the model.
        head_dim: usize,
    },
}

/// Limit on locked memory, for a message.
struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "; the limit (ulimit -l) is {} KiB", limit >> 10),
            None => Ok(()),
        }
    }
}
