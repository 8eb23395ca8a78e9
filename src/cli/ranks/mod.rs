//! Several processes that compute one model: what `mpirun` starts, where the program was built with
//! MPI. The first of them is the program as always; the others do as it says and print nothing.

#[cfg(feature = "mpi")]
mod mpi;

use std::sync::OnceLock;

use octavo_engine::backend::ranks::World;

/// How long a rank may take to answer, unless it was said.
#[cfg(feature = "mpi")]
pub(super) const SECONDS: u64 = 60;

/// The ranks that this process is the first of.
static WORLD: OnceLock<World> = OnceLock::new();

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
    program()
}

/// After a panic nothing is waited for: the other ranks must not wait for this one either.
pub(super) fn after_panic() {
    #[cfg(feature = "mpi")]
    mpi::after_panic();
}
