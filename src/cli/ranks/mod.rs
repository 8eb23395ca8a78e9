//! Several ranks that compute one model: processes that `mpirun` starts, where the program was
//! built with MPI, or one for each NUMA node in this process. The first of them is the program as
//! always; the others do as it says and print nothing.

#[cfg(feature = "rank-faults")]
mod faults;
#[cfg(feature = "mpi")]
mod mpi;
mod nodes;

use std::sync::OnceLock;

pub(super) use nodes::{Numa, NumaArgs};
use octavo_engine::backend::ranks::World;

/// How long a rank may take to answer, unless it was said.
#[cfg(feature = "mpi")]
pub(super) const SECONDS: u64 = 60;

/// What a launcher says of how many it has started: Open MPI's, MPICH's.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The ranks of which this process, or its first thread, is the first.
static WORLD: OnceLock<World> = OnceLock::new();

/// As how many ranks a launcher has started this program, if they are several.
fn started() -> Option<usize> {
    let several = |name| std::env::var(name).ok()?.parse().ok().filter(|n| *n > 1);
    SIZES.into_iter().find_map(several)
}

/// The ranks that compute a model together, if there are more than this process.
pub(super) fn world() -> Option<World> {
    WORLD.get().cloned()
}

/// Runs the program, together with whatever ranks were started with it.
#[cfg(feature = "mpi")]
pub(super) fn run(program: impl FnOnce() -> std::process::ExitCode) -> std::process::ExitCode {
    mpi::run(program)
}

/// Runs the program, which was built without ranks.
#[cfg(not(feature = "mpi"))]
pub(super) fn run(program: impl FnOnce() -> std::process::ExitCode) -> std::process::ExitCode {
    // a launcher may start parts of batch work too, so that this is no error
    if let Some(ranks) = started() {
        let line = "built without MPI: each of them does all of the work";
        super::terminal::warn([format!("started as {ranks} ranks, but {line}")]);
    }
    program()
}

/// After a panic nothing is waited for: the other ranks must not wait for this one either.
pub(super) fn after_panic() {
    #[cfg(feature = "mpi")]
    mpi::after_panic();
}
