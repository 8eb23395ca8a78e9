//! `octavo diff`: where two computations of one text part ways.

mod print;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use gguf_rs_lite::Gguf;
use octavo_kernels::{IsaChoice, PAGE_POSITIONS};
use octavo_llm::backend::cpu;
use octavo_llm::diff::{Backend, Comparison, Execution, OracleExecution, Verdict, compare};
use octavo_llm::engine::{ModelSource, default_threads};
use octavo_llm::model::Model;
use octavo_llm::tokenizer::{EncodeOptions, Tokenizer};

use super::args::ComputeArgs;
use super::failure::{Exit, Failure};
use super::prompt::TextArgs;
use super::terminal::{self, Progress};

/// Find the first tensor in which two computations of a text differ
///
/// Two model files, two instruction sets, or the engine and its f64 oracle: every named tensor is compared in the order
/// of the computation, and held against a bound that follows from the errors measured in its inputs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo diff model.gguf changed.gguf -p \"Hello\"           two files
  octavo diff f16.gguf q4_k_m.gguf -f text.txt             what a quantization does, layer by layer
  octavo diff model.gguf -p \"Hello\" --a-isa scalar --b-isa avx512
  octavo diff model.gguf -p \"Hello\" --a-exec oracle        engine against the f64 oracle

Exit code: 0 within the bounds, 1 outside, 2 if it could not be compared.
--json prints {verdict: identical|within|diverged, first_divergence: {name, layer, position, channel, a, b, ...} or
null, taps, absent, logits, a, b, tokens}.")]
pub(super) struct DiffArgs {
    /// The first model; the built-in demo model if not given
    #[arg(value_name = "A", value_hint = clap::ValueHint::FilePath)]
    a: Option<PathBuf>,
    /// The second model [default: the first]
    #[arg(value_name = "B", value_hint = clap::ValueHint::FilePath)]
    b: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    /// Token ids instead of a text, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    tokens: Option<Vec<u32>>,
    /// Neither add special tokens nor recognize them in the text
    #[arg(long, conflicts_with = "tokens")]
    no_special: bool,
    /// Instruction set of the first [default: that of --isa]
    #[arg(long, value_name = "ISA")]
    a_isa: Option<IsaChoice>,
    /// Instruction set of the second [default: that of --isa]
    #[arg(long, value_name = "ISA")]
    b_isa: Option<IsaChoice>,
    /// What computes the first
    #[arg(long, value_name = "EXEC", default_value = "engine")]
    a_exec: Exec,
    /// What computes the second
    #[arg(long, value_name = "EXEC", default_value = "engine")]
    b_exec: Exec,
    /// Show every tensor and every position, not only what matters
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Exec {
    /// The kernels
    Engine,
    /// The plain f64 forward pass (slow)
    Oracle,
}

/// Runs the command. Whatever keeps it from comparing is exit code 2.
pub(super) fn run(args: &DiffArgs) -> Result<Exit, Failure> {
    diff(args).map_err(|failure| match failure {
        Failure::Input(message) => Failure::Usage(message),
        other => other,
    })
}

fn diff(args: &DiffArgs) -> Result<Exit, Failure> {
    let one_thing = args.b.is_none() && args.a_exec == args.b_exec && args.isa(args.a_isa) == args.isa(args.b_isa);
    if one_thing {
        let message = "nothing to compare with: expected a second model, --a-isa, --b-isa, --a-exec or --b-exec";
        return Err(Failure::Usage(message.to_owned()));
    }
    let a = open(args.a.as_deref(), args.compute.mmap())?;
    let b = match &args.b {
        Some(path) => open(Some(path), args.compute.mmap())?,
        None => a.clone(),
    };
    let tokenizer = Tokenizer::from_gguf(&a)?;
    let tokens = tokens(args, &tokenizer)?;
    same_tokens(args, &tokens, &b)?;
    let mut first = execution(args, (a, args.a_exec, args.a_isa), tokens.len())?;
    let mut second = execution(args, (b, args.b_exec, args.b_isa), tokens.len())?;
    let bar = Progress::tensors("comparing");
    let comparison = compare(&mut *first, &mut *second, &tokens, &mut |done, total| bar.at(done, total));
    bar.clear();
    let comparison = comparison?;
    let report = print::Report { a: first.describe(), b: second.describe(), tokenizer: &tokenizer, comparison };
    let text = if args.json { report.json(&tokens)? } else { report.text(args.all) };
    terminal::print(text.as_bytes())?;
    Ok(exit(&report.comparison))
}

fn exit(comparison: &Comparison) -> Exit {
    match comparison.verdict {
        Verdict::Identical | Verdict::Within => Exit::Done,
        Verdict::Diverged => Exit::Outside,
    }
}

impl DiffArgs {
    fn isa(&self, own: Option<IsaChoice>) -> IsaChoice {
        own.unwrap_or(self.compute.isa)
    }
}

fn open(path: Option<&Path>, mmap: bool) -> Result<Arc<Gguf>, Failure> {
    let source = match path {
        Some(path) => ModelSource::Path(path.to_owned()),
        None => {
            terminal::note(super::load::DEMO_NOTE);
            ModelSource::Demo
        }
    };
    Ok(Arc::new(source.open(mmap)?))
}

fn tokens(args: &DiffArgs, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let tokens = match (&args.tokens, args.text.read()?) {
        (Some(ids), _) => ids.clone(),
        (None, Some(text)) => tokenizer.encode(&text, encoding(args))?,
        (None, None) => {
            let message = "no text: expected -p TEXT, -f FILE (- is stdin) or --tokens IDS";
            return Err(Failure::Usage(message.to_owned()));
        }
    };
    match tokens.is_empty() {
        true => Err(Failure::Input("the text has no tokens: expected at least one".to_owned())),
        false => Ok(tokens),
    }
}

fn encoding(args: &DiffArgs) -> EncodeOptions {
    EncodeOptions { add_special: !args.no_special, parse_special: !args.no_special }
}

/// Another file must cut a text the same way, or the comparison would be of two texts.
fn same_tokens(args: &DiffArgs, tokens: &[u32], b: &Gguf) -> Result<(), Failure> {
    let (Some(path), Some(text)) = (&args.b, &args.text.prompt) else { return Ok(()) };
    if args.text.escape {
        return Ok(());
    }
    let theirs = Tokenizer::from_gguf(b)?.encode(text.as_encoded_bytes(), encoding(args))?;
    if theirs == tokens {
        return Ok(());
    }
    let message = format!(
        "{}: cuts the text into {} tokens, the first model into {}: expected the same tokens (--tokens gives ids)",
        path.display(),
        theirs.len(),
        tokens.len()
    );
    Err(Failure::Input(message))
}

fn execution(
    args: &DiffArgs,
    (gguf, exec, isa): (Arc<Gguf>, Exec, Option<IsaChoice>),
    n_tokens: usize,
) -> Result<Box<dyn Execution>, Failure> {
    if exec == Exec::Oracle {
        return Ok(Box::new(OracleExecution::new(gguf)?));
    }
    let model = Model::load(&gguf)?;
    let compute = args.compute.options()?;
    let options = cpu::Options {
        isa: args.isa(isa).resolve()?,
        threads: compute.threads.unwrap_or_else(default_threads),
        kv_type: args.compute.kv_type_or_f32()?,
        n_pages: n_tokens.div_ceil(PAGE_POSITIONS),
        repack: compute.repack,
    };
    let bar = Progress::bytes("loading");
    let backend = Backend::cpu(gguf, model, &options, &mut |done, total| bar.at(done, total));
    bar.clear();
    Ok(Box::new(backend?))
}
