//! `octavo imatrix`: which inputs of which matrix matter, for `octavo quantize --imatrix`.

use std::path::PathBuf;

use clap::Args;
use octavo_engine::EngineOptions;
use octavo_lab::imatrix::{Collector, Options};

use super::args::{ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::prompt::TextArgs;
use super::{load, signal, terminal, values};

/// Make an importance matrix from a text
///
/// Writes llama-imatrix's GGUF form: for every matrix the sums of its squared inputs over the text,
/// for an expert's over the tokens that are sent to it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo imatrix model-f16.gguf -f text.txt -o imatrix.gguf
  octavo imatrix model-f16.gguf -f text.txt -o imatrix.gguf --chunks 100 -c 512

The text is cut into chunks of -c tokens [default: 512]; a rest is left out.")]
pub(super) struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// The new file
    #[arg(short, long, value_name = "OUT.gguf", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Replace OUT whatever it is, unless it is an input
    #[arg(long)]
    force: bool,
    /// Chunks at most; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = values::chunks)]
    chunks: i64,
    /// Also look at the inputs of output.weight
    #[arg(long)]
    process_output: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Runs the command.
pub(super) fn run(args: &ImatrixArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(args.model.path())
        .file(args.text.file.as_deref());
    let output = Output {
        path: &args.output,
        kind: Kind::Imatrix,
        force: args.force,
        inputs: &inputs,
    };
    output.check()?;
    signal::install()?;
    let mut text = args.text.require()?;
    // as llama.cpp's -f does
    if args.text.file.is_some() && text.last() == Some(&b'\n') {
        text.pop();
    }
    let chunk = args.compute.context().unwrap_or(Options::default().chunk);
    let engine = load::engine_with(
        &args.model,
        EngineOptions {
            ctx: Some(chunk),
            ..args.compute.options()?
        },
    )?;
    let max_chunks = usize::try_from(args.chunks).ok();
    let mut collector = Collector::new(
        &engine,
        Options {
            chunk,
            max_chunks,
            output: args.process_output,
        },
    )?;
    let tokens = collector.tokens(&text)?;
    let bar = terminal::Progress::tokens("imatrix");
    for (i, part) in tokens.chunks(chunk).enumerate() {
        bar.at((i * chunk) as u64, tokens.len() as u64);
        collector.add(part)?;
    }
    bar.clear();
    let dataset = args
        .text
        .file
        .as_ref()
        .map_or_else(String::new, |path| path.to_string_lossy().into_owned());
    output.check()?;
    let bytes = collector.write(&args.output, &dataset)?;
    terminal::note(&format!(
        "octavo: wrote {} ({bytes} bytes): {} matrices, {} chunks of {chunk} tokens",
        args.output.display(),
        collector.matrices(),
        collector.chunks()
    ));
    let (unseen, all) = collector.unseen();
    if unseen > 0 {
        terminal::note(&format!(
            "octavo: warning: {unseen} of {all} experts' matrices saw no token of this text: all \
             their inputs will count alike"
        ));
    }
    Ok(Exit::Done)
}
