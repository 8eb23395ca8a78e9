//! Developer tasks: `cargo xtask quick` is for after a change, `cargo xtask check` for before a
//! commit; others measure speed, make models, compare numbers with llama.cpp, and build what users
//! install.

mod arch;
mod busy;
mod check;
mod compare_llama;
mod dist;
mod gpu;
mod model;
mod nvrtc;
mod random;
mod regress;
mod side;
mod skips;
mod tensors;
mod tolerances;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Octavo's developer tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Arch(arch::ArchArgs),
    Busy(Box<busy::BusyArgs>),
    /// Formatting, lints, tests and documentation
    Check,
    CompareLlama(Box<compare_llama::CompareArgs>),
    Dist(dist::DistArgs),
    Gpu(gpu::GpuArgs),
    Model(model::ModelArgs),
    Nvrtc(nvrtc::NvrtcArgs),
    /// Formatting, lints, unit tests and most of the engine's tests: minutes after a change
    Quick,
    Regress(regress::RegressArgs),
    Skips(skips::SkipsArgs),
    Tensors(Box<tensors::TensorsArgs>),
    Tolerances(tolerances::TolerancesArgs),
    /// Keep a CPU busy until stdin is closed
    #[command(hide = true)]
    Spin,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Arch(args) => arch::run(&args),
        Task::Busy(args) => busy::run(&args),
        Task::Check => check::check(),
        Task::CompareLlama(args) => compare_llama::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Gpu(args) => gpu::run(&args),
        Task::Model(args) => model::run(&args),
        Task::Nvrtc(args) => nvrtc::run(&args),
        Task::Quick => check::quick(),
        Task::Regress(args) => regress::run(&args),
        Task::Skips(args) => skips::run(&args),
        Task::Tensors(args) => tensors::run(&args),
        Task::Tolerances(args) => tolerances::run(&args),
        Task::Spin => busy::spin(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a command for the Cargo that runs this program.
fn cargo() -> std::process::Command {
    std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command that must succeed.
fn must(command: &mut std::process::Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("cannot start {name}: {error}")),
    }
}
