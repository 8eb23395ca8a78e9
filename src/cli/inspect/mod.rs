//! `octavo inspect`: reports what a file holds, how it would run, and what keeps it from running.

mod devices;
mod graph;
mod json;
mod structure;
mod text;
mod tower;

use std::path::PathBuf;

use clap::Args;
use octavo_analysis::facts::Facts;
use octavo_engine::{Context, DeviceChoice};

use super::args::{ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::vision::ImageTokenArgs;
use super::{load, terminal};

/// Show a model's hyperparameters, structure, types, memory and kernels
///
/// Works on every valid GGUF file, including those that hold only a vocabulary or cannot run:
/// everything that loading would refuse is listed with its reason.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo inspect model.gguf
  octavo inspect model.gguf --tensors --isa avx2 -c 8192
  octavo inspect --graph --layer 0 model.gguf
  octavo inspect --devices
  octavo inspect mmproj.gguf --image photo.png --dump out.safetensors
  octavo inspect model.gguf --json | jq '.\"qwen3.rope.freq_base\".value'

--json prints one object: every GGUF key => {value, source}, where source is `file`, or `default`
for what the file lacks; an array of more than 32 values is {array: element type, len}.
One more member, `octavo`, holds the rest: {file, isa, threads, threads_reason, structure?, types,
memory, tokenizer?, chat_template, tensors?, warnings, refusals: [{what, why}]}.
--graph prints one line for each operation: llama.cpp's name of its result (%1, %2, ... for results
that have none, and #2 for the second result of a name), the numbers per token, and the operation
with its inputs, weights and parameters. Equal layers are shown once, with N for the layer's number
and inpL for its input. With --json: {version, file, architecture, embeddings?, groups?, head?,
layers: [{layer, operations}]}; an operation is {value, name, op, inputs, cache?, weights: [{name,
type, shape, first_row?}], parameters, width, parts, rows}.
--dump writes `pixels` [3, height, width], scaled and normalised, and `embeddings` [tokens, width],
the rows that stand for the image in a text.")]
pub(super) struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// List every tensor: type, shape, size, kernel
    #[arg(long)]
    tensors: bool,
    /// Show the CPU and the GPUs of this machine instead of a model
    #[arg(long, conflicts_with_all = ["positional", "flag", "tensors"])]
    devices: bool,
    /// Show the operations of the forward pass instead of a report
    #[arg(long, conflicts_with_all = ["tensors", "devices", "image"])]
    #[arg(conflicts_with_all = ["isa", "prompt_bits", "ctx_size", "batch_size", "no_repack"])]
    #[arg(conflicts_with_all = ["mlock", "FitArgs", "ThreadsArgs", "CacheArgs"])]
    #[arg(conflicts_with_all = ["device", "gpu", "gpu_layers", "n_cpu_moe", "cpu_moe"])]
    #[arg(conflicts_with_all = ["override_tensor", "no_cuda_graph", "no_paged_check"])]
    #[arg(conflicts_with = "ImageTokenArgs")]
    graph: bool,
    /// Show the operations of one layer only; the first is 0
    #[arg(long, value_name = "N", requires = "graph")]
    layer: Option<usize>,
    /// Image to encode with an image encoder (vision tower)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(requires = "dump", conflicts_with = "devices")]
    image: Option<PathBuf>,
    /// Write the encoded image to a safetensors file instead of a report
    #[arg(long, value_name = "OUT.safetensors", value_hint = clap::ValueHint::FilePath)]
    #[arg(requires = "image")]
    dump: Option<PathBuf>,
    /// Replace any file at --dump, unless it is an input
    #[arg(long, requires = "dump")]
    force: bool,
    #[command(flatten)]
    image_tokens: ImageTokenArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Runs the command.
pub(super) fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    if args.graph {
        let gguf = load::source(&args.model)?.open(args.compute.mmap())?;
        terminal::print(graph::render(&gguf, args.layer, args.json)?.as_bytes())?;
        return Ok(Exit::Done);
    }
    let mut options = args.compute.options()?;
    if args.devices {
        terminal::print(
            devices::render(options.isa, &args.compute.threads.decide(), args.json)?.as_bytes(),
        )?;
        return Ok(Exit::Done);
    }
    if let (Some(image), Some(dump)) = (&args.image, &args.dump) {
        return tower::dump(args, &options, image, dump);
    }
    if let DeviceChoice::Cuda(_) = options.device {
        let message =
            "--device cuda: a file is described as the CPU runs it; expected --devices to see GPUs";
        return Err(Failure::Usage(message.to_owned()));
    }
    let isa = options.isa.resolve()?;
    let gguf = load::source(&args.model)?.open(options.mmap)?;
    // a file that cannot run has no context to report
    if let Ok(context) = Context::of(&gguf, &options) {
        options.ctx = Some(context.positions);
    }
    let report = Facts::new(&gguf, &options, isa, args.compute.threads.decide());
    let out = match args.json {
        true => format!("{}\n", json::render(&report, args.tensors)?),
        false => text::render(&report, args.tensors),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}
