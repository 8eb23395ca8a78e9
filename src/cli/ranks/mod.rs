//! Tensor parallelism: several ranks that compute one model. Ranks are processes that `mpirun`
//! starts, if the program was built with MPI, or threads of this process, one rank per NUMA node.
//! The first rank runs the program as always; the others follow it and print nothing.

#[cfg(feature = "rank-faults")]
mod faults;
#[cfg(feature = "mpi")]
mod mpi;
mod nodes;

use std::sync::OnceLock;

pub(super) use nodes::{Numa, NumaArgs};
use octavo_engine::backend::ranks::{Open, TensorParallelGroup, open_gpu, open_gpu_by_nccl};

/// Default time in seconds that a rank may take to answer.
#[cfg(feature = "mpi")]
pub(super) const SECONDS: u64 = 60;

/// Environment variables with the number of ranks started: Open MPI's, MPICH's.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// Tensor-parallel group of which this process, or its first thread, is the first rank.
static GROUP: OnceLock<TensorParallelGroup> = OnceLock::new();

/// Returns the number of ranks that a launcher has started, if more than one.
fn started() -> Option<usize> {
    let several = |name| std::env::var(name).ok()?.parse().ok().filter(|n| *n > 1);
    SIZES.into_iter().find_map(several)
}

/// Name of the option that lets GPUs gather by NCCL.
const NCCL: &str = "--nccl";

/// Returns what opens the GPUs of ranks. All ranks have the same arguments, but only the first one
/// parses them.
fn open() -> Open {
    match std::env::args_os().any(|arg| arg == NCCL) || crate::environment::is_on("nccl") {
        true => open_gpu_by_nccl,
        false => open_gpu,
    }
}

/// Returns the tensor-parallel group, if there is more than this rank.
pub(super) fn tp_group() -> Option<TensorParallelGroup> {
    GROUP.get().cloned()
}

/// Runs the program, together with the ranks that were started with it.
#[cfg(feature = "mpi")]
pub(super) fn run(program: impl FnOnce() -> u8) -> u8 {
    mpi::run(program)
}

/// Runs the program, which was built without MPI.
#[cfg(not(feature = "mpi"))]
pub(super) fn run(program: impl FnOnce() -> u8) -> u8 {
    // not an error, because a launcher may start parts of batch work too
    if let Some(ranks) = started() {
        let line = "built without MPI: each of them does all of the work";
        super::terminal::warn([format!("started as {ranks} ranks, but {line}")]);
    }
    program()
}

/// Ends all ranks after a panic, because the others must not wait for this one.
pub(super) fn after_panic() {
    #[cfg(feature = "mpi")]
    mpi::after_panic();
}
