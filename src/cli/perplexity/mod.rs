//! `octavo perplexity`: llama-perplexity's figures, under its names.

mod print;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use octavo_engine::{Engine, EngineOptions, default_threads};
use octavo_lab::eval::base::{self, Reader};
use octavo_lab::eval::{self, Divergence, Error, Observer, Options, Perplexity, Text};

use super::args::{ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::signal::{self, Generating};
use super::terminal::{self, Progress};
use super::{load, prompt, values};

/// Tokens of a chunk unless given, as in llama-perplexity.
const CHUNK: usize = 512;

/// Measure how well a model predicts a text, and how far it is from a base
///
/// The text is cut into chunks of -c tokens; of each, the second half is scored. Chunks, scores,
/// names and formats are llama-perplexity's. Figures go to stdout, progress to stderr.
#[derive(Debug, Args)]
#[command(
    mut_arg("ctx_size", |a| a.help(
        "Tokens of a chunk [default: 512; with --kl-divergence: those of the base]",
    )),
    after_help = "\
Examples:
  octavo perplexity model.gguf -f text.txt
  octavo perplexity f16.gguf -f text.txt --kl-divergence-base base.kld       writes the base
  octavo perplexity q4.gguf --kl-divergence-base base.kld --kl-divergence    compares with it

Base files are llama-perplexity's: either program reads the other's, and ik_llama.cpp's are read
too. One that is cut off, of another vocabulary or (where -f is given) of another text is refused.
Percentiles are stated from 100 scored tokens on. Memory does not grow with the text, but for 4
bytes for each token and, with --kl-divergence, 8 for each scored one.

--json prints {ppl, ppl_uncertainty, mean_nll, chunk_ppl, ...}, with --kl-divergence {ppl, ppl_base,
ln_ratio, kld, dp, rms_dp, same_top: {value, uncertainty}, ...}; kld and dp have their percentiles
too, and dp, rms_dp and same_top are fractions."
)]
pub(super) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; - is stdin. As in llama.cpp, one line feed at its end is dropped
    #[arg(
        short,
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        value_hint = clap::ValueHint::FilePath,
    )]
    #[arg(required_unless_present = "kl_divergence")]
    file: Option<PathBuf>,
    /// Read at most N chunks; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = values::chunks)]
    chunks: i64,
    /// Write the predictions for every scored token to FILE; with --kl-divergence, read them
    #[arg(
        long,
        alias = "save-all-logits",
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
    )]
    kl_divergence_base: Option<PathBuf>,
    /// Replace the file of --kl-divergence-base whatever it is, unless it is an input
    #[arg(
        long,
        requires = "kl_divergence_base",
        conflicts_with = "kl_divergence"
    )]
    force: bool,
    /// Compare with the predictions in the base; its text is read
    #[arg(long, requires = "kl_divergence_base")]
    kl_divergence: bool,
    /// Print one JSON object when all is done
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Runs the command.
pub(super) fn run(args: &PerplexityArgs) -> Result<Exit, Failure> {
    let options = args.compute.options()?;
    let inputs = Inputs::default()
        .model(args.model.path())
        .file(args.file.as_deref());
    let target = args
        .kl_divergence_base
        .as_deref()
        .filter(|_| !args.kl_divergence);
    let target = target.map(|path| Output {
        path,
        kind: Kind::Base,
        force: args.force,
        inputs: &inputs,
    });
    if let Some(target) = &target {
        // before the work, not after it
        target.check()?;
    }
    let text = args.file.as_deref().map(read).transpose()?;
    signal::install()?;
    match &args.kl_divergence_base {
        Some(path) if args.kl_divergence => compare(args, options, path, text),
        _ => score(args, options, text.unwrap_or_default(), target),
    }
}

/// A text as llama.cpp's `-f` reads it.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = prompt::read(path)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(text)
}

fn score(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    text: Vec<u8>,
    target: Option<Output<'_>>,
) -> Result<Exit, Failure> {
    options.ctx = options.ctx.or(Some(CHUNK));
    let engine = load::engine_with(&args.model, options.clone())?;
    let tokenizer = engine.tokenizer();
    let text = Text::new(
        eval::encode(tokenizer, &text)?,
        tokenizer.n_vocab(),
        engine.n_ctx(),
        args.chunks(),
    )?;
    let (options, generating) = (scoring(&options), Generating::begin());
    let mut watch = Watch::new(args, &generating, "scoring");
    let result = match target {
        None => eval::perplexity(&engine, &text, &options, &mut watch),
        Some(target) => base::write_file(target.path, text.shape(), text.tokens(), |writer| {
            eval::perplexity_with_base(&engine, &text, &options, &mut watch, writer)
        }),
    };
    let Some(ppl) = watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    let out = match args.json {
        true => print::perplexity_json(
            &ppl,
            &text,
            &watch.chunk_ppl,
            target.map(|t| t.path),
            &engine,
        )?,
        false => print::final_estimate(&ppl),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

fn compare(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    path: &Path,
    text: Option<Vec<u8>>,
) -> Result<Exit, Failure> {
    let mut base = Reader::open(path)?;
    let n_ctx = base.shape().n_ctx;
    if let Some(given) = options.ctx.filter(|given| (1..n_ctx).contains(given)) {
        return Err(Failure::Input(format!(
            "{}: chunks of {n_ctx} tokens: expected at most -c, {given}",
            base.file()
        )));
    }
    options.ctx = Some(n_ctx);
    let engine = load::engine_with(&args.model, options.clone())?;
    if let Some(text) = text {
        eval::check_text(&mut base, &eval::encode(engine.tokenizer(), &text)?)?;
    }
    let (options, generating) = (scoring(&options), Generating::begin());
    let mut watch = Watch::new(args, &generating, "comparing");
    let result = eval::divergence(&engine, &mut base, args.chunks(), &options, &mut watch);
    let Some(divergence) = watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    let out = match args.json {
        true => print::divergence_json(&divergence, &base, &engine)?,
        false => print::divergence(&divergence),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

fn scoring(options: &EngineOptions) -> Options {
    Options {
        threads: options.threads.unwrap_or_else(default_threads),
        batch: options.batch(),
    }
}

impl PerplexityArgs {
    fn chunks(&self) -> Option<usize> {
        usize::try_from(self.chunks).ok()
    }
}

/// Prints what each chunk gives, shows how far the work is, and listens to Ctrl-C.
struct Watch<'a> {
    generating: &'a Generating,
    /// Chunks are printed as they come.
    stream: bool,
    /// A base is written, whether or not somebody reads stdout.
    writes: bool,
    /// Only where it cannot get between those lines.
    bar: Option<Progress>,
    start: Instant,
    chunk_ppl: Vec<f64>,
    /// Why stdout takes no more: the work is then in vain.
    failed: RefCell<Option<std::io::Error>>,
    open_line: bool,
}

impl<'a> Watch<'a> {
    fn new(args: &PerplexityArgs, generating: &'a Generating, what: &'static str) -> Watch<'a> {
        let stream = !args.json;
        let bar = (!stream || !terminal::stdout_is_terminal()).then(|| Progress::chunks(what));
        Watch {
            generating,
            stream,
            writes: args.kl_divergence_base.is_some() && !args.kl_divergence,
            bar,
            start: Instant::now(),
            chunk_ppl: Vec::new(),
            failed: RefCell::new(None),
            open_line: false,
        }
    }

    fn chunk_done(&mut self, done: usize, total: usize, line: &str) {
        if done == 1 {
            let seconds = self.start.elapsed().as_secs_f64();
            terminal::note(&format!(
                "octavo: {total} chunks, {}",
                print::eta(seconds, total)
            ));
        }
        if let Some(bar) = &self.bar {
            bar.at(done as u64, total as u64);
        }
        if self.stream && self.failed.borrow().is_none() {
            self.open_line = !line.ends_with('\n');
            if let Err(error) = terminal::print(line.as_bytes()) {
                self.failed.replace(Some(error));
            }
        }
    }

    fn stopped(&self) -> bool {
        self.generating.interrupted() || (self.failed.borrow().is_some() && !self.writes)
    }

    /// Takes the bar away and ends the line of chunks; `None` if Ctrl-C ended the work.
    fn end<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Failure> {
        if let Some(bar) = &self.bar {
            bar.clear();
        }
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if self.open_line {
            terminal::print(b"\n")?;
        }
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Cancelled) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Observer<Perplexity> for Watch<'_> {
    fn chunk(&mut self, so_far: &Perplexity, total: usize) {
        let ppl = so_far.ppl().value;
        self.chunk_ppl.push(ppl);
        let line = format!("[{}]{},", so_far.chunks(), print::fixed(ppl, 0, 4));
        self.chunk_done(so_far.chunks(), total, &line);
    }

    fn cancelled(&self) -> bool {
        self.stopped()
    }
}

impl Observer<Divergence> for Watch<'_> {
    fn chunk(&mut self, so_far: &Divergence, total: usize) {
        let header = if so_far.chunks() == 1 {
            print::DIVERGENCE_HEADER
        } else {
            ""
        };
        self.chunk_done(
            so_far.chunks(),
            total,
            &format!("{header}{}", print::divergence_row(so_far)),
        );
    }

    fn cancelled(&self) -> bool {
        self.stopped()
    }
}

/// What every JSON object has.
fn about(engine: &Engine) -> serde_json::Value {
    serde_json::json!({"model": engine.gguf().name(), "backend": engine.describe()})
}
