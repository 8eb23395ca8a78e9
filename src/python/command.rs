//! The command line in the interpreter's process.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs `octavo` with these arguments, the program's name first; returns the exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| octavo_cli::run(arguments.into_iter(), octavo_cli::Build::default()))
}
