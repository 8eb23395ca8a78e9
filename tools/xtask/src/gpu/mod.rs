//! `cargo xtask gpu`: all checks that need a GPU, in one command, which can be packed for machines
//! without Rust.

mod archive;
mod cubins;
mod figures;
mod legs;
mod pack;
mod plan;
mod predict;
pub(crate) mod process;
mod profile;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

/// Test, check and measure the CUDA backend on this machine's GPU
///
/// The tests are those that otherwise run on the CPU. Generation with and without CUDA graphs must
/// choose the same thousand tokens; every tensor must be within its bound of the CPU's at a real
/// size; octavo bench measures; NVIDIA's compute-sanitizer runs over the kernels' tests if it is
/// installed. Failures are repeated at the end, and do not stop the other legs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask gpu
  cargo xtask gpu --only tests,replays --presets 0.6b
  cargo xtask gpu --plan speed --budget 300
  cargo xtask gpu --pack target/gpu-pack                   where there is Rust
  target/gpu-pack/xtask gpu --packed target/gpu-pack       where there is a GPU
  target/gpu-pack.sh check 540 results                     the same out of the archive")]
pub(crate) struct GpuArgs {
    /// Run only these legs, in the order of the list below
    #[arg(
        long,
        value_name = "LEGS",
        value_delimiter = ',',
        value_enum,
        default_values_t = Leg::ALL,
    )]
    only: Vec<Leg>,
    /// Append the output of octavo bench to this file
    #[arg(long, value_name = "FILE", default_value = "target/gpu/bench.csv")]
    csv: PathBuf,
    /// Folder for models with random weights, and for compiled test kernels
    #[arg(long, value_name = "DIR", default_value = "target/gpu")]
    dir: PathBuf,
    /// Model sizes, as for cargo xtask model, the smallest first
    #[arg(
        long,
        value_name = "PRESETS",
        value_delimiter = ',',
        default_value = "0.6b,8b"
    )]
    presets: Vec<String>,
    /// Weight types of the models
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "Q4_K_M,Q8_0"
    )]
    types: Vec<String>,
    /// Stop a program that takes longer, as hung
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    limit: u64,
    /// Run nothing: build everything that a machine without Rust and network needs for this, and
    /// put it into DIR
    #[arg(long, value_name = "DIR", conflicts_with = "packed")]
    pack: Option<PathBuf>,
    /// Run nothing: write the speeds that a model of the launches predicts for an H200
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pack", "packed"])]
    predict: Option<PathBuf>,
    /// Build nothing: run the programs that --pack put into DIR
    #[arg(long, value_name = "DIR")]
    packed: Option<PathBuf>,
    /// Run the legs of a plan instead, those first whose outcome is least certain, each with a
    /// limit of its own
    #[arg(long, value_name = "PLAN", value_enum, conflicts_with_all = ["only", "pack", "predict"])]
    plan: Option<plan::Plan>,
    /// Seconds that a plan may take; legs for which nothing is left are left out
    #[arg(long, value_name = "SECONDS", default_value_t = 540, requires = "plan")]
    budget: u64,
    /// File to which each figure of a plan is appended as it comes, beside what was predicted
    #[arg(
        long,
        value_name = "FILE",
        default_value = "tools/bench/gpu-measured.csv"
    )]
    figures: PathBuf,
}

/// A leg that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Leg {
    /// The kernels' and the backend's tests on the GPU
    Tests,
    /// A thousand tokens of the first model, with and without CUDA graphs
    Replays,
    /// The smallest size against the CPU, tensor by tensor; the largest one's first tokens
    Diff,
    /// Speeds of every size and type
    Bench,
    /// compute-sanitizer: memcheck over all kernels' tests, racecheck and synccheck over those that
    /// share memory
    Sanitize,
}

impl Leg {
    /// All legs in running order: the slowest is the last.
    const ALL: [Leg; 5] = [
        Leg::Tests,
        Leg::Replays,
        Leg::Diff,
        Leg::Bench,
        Leg::Sanitize,
    ];
}

impl std::fmt::Display for Leg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            self.to_possible_value()
                .expect("none is skipped")
                .get_name(),
        )
    }
}

pub(crate) fn run(args: &GpuArgs) -> Result<(), String> {
    if let Some(dir) = &args.pack {
        return pack::pack(dir);
    }
    if let Some(file) = &args.predict {
        return predict::write(file);
    }
    let programs = match &args.packed {
        Some(dir) => pack::Programs::packed(dir)?,
        None => pack::Programs::built()?,
    };
    let limit = Duration::from_secs(args.limit);
    let gpu = legs::device(&programs, limit)?;
    println!("== {gpu}");
    std::fs::create_dir_all(&args.dir)
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let dir = args
        .dir
        .canonicalize()
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let mut legs = legs::Legs {
        args,
        dir,
        programs,
        limit,
        failures: Vec::new(),
    };
    if let Some(plan) = args.plan {
        let figures = plan::figures(plan, &args.figures, &gpu)?;
        return plan::run(&mut legs, plan, Duration::from_secs(args.budget), figures);
    }
    for leg in Leg::ALL.into_iter().filter(|leg| args.only.contains(leg)) {
        println!("== {leg}");
        let (started, failed) = (Instant::now(), legs.failures.len());
        legs.run(leg);
        let failed = legs.failures.len() - failed;
        println!(
            "== {leg}: {failed} failed, {:.0} s",
            started.elapsed().as_secs_f64()
        );
    }
    match legs.failures.len() {
        0 => Ok(()),
        n => Err(format!("{n} failed:\n  {}", legs.failures.join("\n  "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        gpu: GpuArgs,
    }

    #[test]
    fn all_legs_run_unless_some_are_named() {
        let only = |args: &[&str]| {
            Cli::try_parse_from(args)
                .map(|cli| cli.gpu.only)
                .map_err(|e| e.kind())
        };
        assert_eq!(only(&["gpu"]), Ok(Leg::ALL.to_vec()));
        assert_eq!(
            only(&["gpu", "--only", "bench,tests"]),
            Ok(vec![Leg::Bench, Leg::Tests])
        );
        assert_eq!(
            only(&["gpu", "--only", "race"]),
            Err(clap::error::ErrorKind::InvalidValue)
        );
        assert!(only(&["gpu", "--pack", "a", "--packed", "a"]).is_err());
        assert!(only(&["gpu", "--plan", "check", "--budget", "60"]).is_ok());
        assert!(only(&["gpu", "--plan", "check", "--only", "tests"]).is_err());
        assert!(only(&["gpu", "--budget", "60"]).is_err());
    }
}
