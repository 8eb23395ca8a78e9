//! `octavo convert`: writes a Hugging Face folder as a GGUF file.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{Gguf, OpenOptions, TensorType};
use octavo_analysis::merge_lora::merge;
use octavo_analysis::quantize::{Change, Plan, Progress};
use octavo_engine::{LoraFile, ModelSource};
use octavo_hf as hf;
use octavo_model::Model;

use super::args::LoraArgs;
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output, place};
use super::signal;
use super::terminal::{self, note};
use super::threads::ThreadsArgs;
use super::values::Named;

/// Write a Hugging Face folder as a GGUF file, or merge LoRA adapters into a model
///
/// Weights of AWQ checkpoints become Q4_1: the same codes and scales, with zero points rounded to
/// f16 together with their scale; the rounding is reported for each tensor. Plain weights stay as
/// they are. A folder with an image encoder (vision tower) becomes two files: the model, and with
/// --mmproj the image encoder.
///
/// With --lora the weights that adapters change become F16, or stay F32 or BF16, and all others are
/// copied.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo convert Qwen3-0.6B-AWQ qwen3-0.6b.gguf
  octavo convert Qwen3-0.6B qwen3-0.6b-f16.gguf --type f16
  octavo convert Qwen3-VL-2B qwen3-vl-2b.gguf --mmproj mmproj-qwen3-vl-2b.gguf
  octavo convert qwen3-0.6b.gguf merged.gguf --lora adapter.gguf
  octavo quantize qwen3-0.6b-f16.gguf qwen3-0.6b-q4.gguf Q4_K_M

A folder has config.json, safetensors, and tokenizer.json or tokenizer.model. octavo runs folders \
as they are, too.")]
pub(super) struct ConvertArgs {
    /// Hugging Face folder; with --lora also a GGUF file
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::AnyPath)]
    pub(super) input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Type of matrices: q4_1 (only of AWQ weights), f16, bf16 or f32 [default: q4_1, or what the
    /// folder has]
    #[arg(
        long = "type",
        value_name = "TYPE",
        value_parser = matrix_type(),
        hide_possible_values = true,
    )]
    to: Option<TensorType>,
    /// Write the folder's image encoder (vision tower) to this file, too
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    mmproj: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Replace existing files, unless they are inputs
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
    let adapters = args.lora.files()?;
    if !adapters.is_empty() {
        return merged(args, &adapters);
    }
    if !args.input.is_dir() {
        let instead =
            "expected a Hugging Face folder; octavo quantize changes the type of a GGUF file";
        return Err(Failure::Input(format!("{}: {instead}", shown(&args.input))));
    }
    let inputs = Inputs::default().model(Some(&args.input));
    let output = |path| Output {
        path,
        kind: Kind::Model,
        force: args.force,
        inputs: &inputs,
    };
    let model = output(&args.output);
    let tower = args.mmproj.as_deref().map(output);
    model.check()?;
    if let Some(tower) = &tower {
        tower.check()?;
        if place(tower.path)? == place(model.path)? {
            let path = shown(tower.path);
            return Err(Failure::Usage(format!(
                "--mmproj {path}: expected another file than the model's"
            )));
        }
    }
    signal::install()?;
    let options = OpenOptions::default();
    let opened = |gguf: Result<Gguf, hf::Error>| gguf.map_err(octavo_engine::Error::from);
    let model_of = opened(hf::open(&args.input, &options))?;
    let tower_of = tower
        .as_ref()
        .map(|_| opened(hf::open_tower(&args.input, &options)));
    let tower_of = tower_of.transpose()?;
    let plan = |gguf| Plan::of_folder(gguf, args.to, args.threads.count());
    let model_plan = plan(&model_of)?;
    let tower_plan = tower_of.as_ref().map(plan).transpose()?;
    write(&model_plan, &model)?;
    if let (Some(plan), Some(output)) = (&tower_plan, &tower) {
        write(plan, output)?;
    } else if hf::has_tower(&args.input) {
        note("octavo: the folder's vision tower was left out; --mmproj FILE writes it");
    }
    Ok(Exit::Done)
}

/// Writes a model with adapters merged into its weights.
fn merged(args: &ConvertArgs, files: &[LoraFile]) -> Result<Exit, Failure> {
    if args.to.is_some() || args.mmproj.is_some() {
        let what = "--type and --mmproj: expected a conversion without --lora";
        return Err(Failure::Usage(what.to_owned()));
    }
    let mut inputs = Inputs::default().model(Some(&args.input));
    for file in files {
        inputs = inputs.model(Some(&file.path));
    }
    let output = Output {
        path: &args.output,
        kind: Kind::Model,
        force: args.force,
        inputs: &inputs,
    };
    output.check()?;
    signal::install()?;
    let gguf = ModelSource::Path(args.input.clone()).open(true)?;
    let model = Model::load(&gguf)?;
    let mut adapters = Vec::new();
    for file in files {
        adapters.push((file.open(&gguf, &model, true)?, file.scale));
    }
    let start = std::time::Instant::now();
    let bar = terminal::Progress::bytes("merging");
    let (total, mut done) = (gguf.tensors().iter().map(|t| t.bytes).sum(), 0);
    let result = merge(&gguf, &adapters, output.path, &mut |tensor, changed| {
        done += tensor.bytes;
        bar.at(done, total);
        if let Some(ty) = changed {
            bar.line(&format!("{:<40} {} -> {ty}", tensor.name, tensor.ty));
        }
    });
    bar.clear();
    wrote(
        output.path,
        result.map_err(|error| Failure::Input(error.to_string()))?,
        start,
    );
    Ok(Exit::Done)
}

/// Reports a file that was written.
fn wrote(path: &Path, bytes: u64, start: std::time::Instant) {
    let mib = bytes as f64 / f64::from(1 << 20);
    note(&format!(
        "octavo: wrote {} ({mib:.2} MiB) in {:.1} s",
        path.display(),
        start.elapsed().as_secs_f64()
    ));
}

/// Writes a file and reports it.
fn write(plan: &Plan<'_>, output: &Output<'_>) -> Result<(), Failure> {
    let start = std::time::Instant::now();
    output.check()?;
    let (total, mut done) = (plan.totals().before, 0);
    let bar = terminal::Progress::bytes("converting");
    let result = plan.write(output.path, &mut |progress| match progress {
        Progress::Tensor { .. } => {}
        Progress::Bytes(bytes) => {
            done += bytes;
            bar.at(done, total);
        }
        Progress::Done { change, rounding } => bar.line(&row(change, rounding)),
    });
    bar.clear();
    wrote(output.path, result?, start);
    Ok(())
}

/// Formats a row: name, shape, types, rounding.
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
