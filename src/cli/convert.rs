//! `octavo convert`: a Hugging Face folder as a GGUF file.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{OpenOptions, TensorType};
use octavo_engine::hf;
use octavo_lab::quantize::{Change, Plan, Progress};

use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::signal;
use super::terminal::{self, note};
use super::threads::ThreadsArgs;
use super::values::Named;

/// Write a Hugging Face folder as a GGUF file
///
/// Weights of AWQ checkpoints become Q4_1: the same codes and scales, and zero points that are
/// rounded to f16 with their scale, which is reported for each tensor. Plain weights stay as they
/// are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo convert Qwen3-0.6B-AWQ qwen3-0.6b.gguf
  octavo convert Qwen3-0.6B qwen3-0.6b-f16.gguf --type f16
  octavo quantize qwen3-0.6b-f16.gguf qwen3-0.6b-q4.gguf Q4_K_M

A folder has config.json, safetensors, and tokenizer.json or tokenizer.model. octavo runs folders \
as they are, too.")]
pub(super) struct ConvertArgs {
    /// The folder
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    input: PathBuf,
    /// The new file
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// The type of matrices: q4_1 (of AWQ weights only), f16, bf16 or f32 [default: q4_1, or what
    /// the folder has]
    #[arg(
        long = "type",
        value_name = "TYPE",
        value_parser = matrix_type(),
        hide_possible_values = true,
    )]
    to: Option<TensorType>,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Replace OUT if it is there, unless it is an input
    #[arg(long)]
    force: bool,
}

fn matrix_type() -> Named<TensorType> {
    let names = || vec!["q4_1", "f16", "bf16", "f32"];
    Named::new(names, |text| {
        let types = [
            TensorType::Q4_1,
            TensorType::F16,
            TensorType::BF16,
            TensorType::F32,
        ];
        let of_name = TensorType::from_name(text).filter(|ty| types.contains(ty));
        of_name.ok_or_else(|| "expected q4_1, f16, bf16 or f32".to_owned())
    })
}

/// Runs the command.
pub(super) fn run(args: &ConvertArgs) -> Result<Exit, Failure> {
    let shown = |path: &Path| path.display().to_string();
    if !args.input.is_dir() {
        let instead =
            "expected a Hugging Face folder; octavo quantize changes the type of a GGUF file";
        return Err(Failure::Input(format!("{}: {instead}", shown(&args.input))));
    }
    let inputs = Inputs::default().model(Some(&args.input));
    let output = Output {
        path: &args.output,
        kind: Kind::Model,
        force: args.force,
        inputs: &inputs,
    };
    output.check()?;
    signal::install()?;
    let start = std::time::Instant::now();
    let gguf =
        hf::open(&args.input, &OpenOptions::default()).map_err(octavo_engine::Error::from)?;
    let plan = Plan::of_folder(&gguf, args.to, args.threads.count())?;
    output.check()?;
    let (total, mut done) = (plan.totals().before, 0);
    let bar = terminal::Progress::bytes("converting");
    let result = plan.write(&args.output, &mut |progress| match progress {
        Progress::Tensor { .. } => {}
        Progress::Bytes(bytes) => {
            done += bytes;
            bar.at(done, total);
        }
        Progress::Done { change, rounding } => bar.line(&row(change, rounding)),
    });
    bar.clear();
    let bytes = result?;
    let mib = bytes as f64 / f64::from(1 << 20);
    note(&format!(
        "octavo: wrote {} ({mib:.2} MiB) in {:.1} s",
        shown(&args.output),
        start.elapsed().as_secs_f64()
    ));
    Ok(Exit::Done)
}

/// Name, shape, types, rounding.
fn row(change: &Change, rounding: Option<f32>) -> String {
    let t = &change.tensor;
    let shape: Vec<String> = t.dims.iter().map(u64::to_string).collect();
    let to = if change.converts() {
        format!("-> {}", change.to)
    } else {
        "as it is".to_owned()
    };
    let rounding = rounding.map_or(String::new(), |r| {
        format!("  zero points within {r:.5} of a step")
    });
    let row = format!(
        "{:<32} {:<16} {:<8} {to:<9}{rounding}",
        t.name,
        shape.join(" x "),
        t.ty.name()
    );
    row.trim_end().to_owned()
}
