//! `octavo perplexity`: computes llama-perplexity's figures, under its names.

mod beside;
mod merge;
mod print;
mod shard;
mod small;
mod tasks;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use octavo_analysis::eval::base::{self, Reader};
use octavo_analysis::eval::{self, Divergence, Error, Observer, Options, Perplexity, Text};
use octavo_engine::{Engine, EngineOptions, default_threads};

use super::args::{AdapterArgs, ComputeArgs, ModelArgs};
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output};
use super::ranks::NumaArgs;
use super::shards::{Job, ShardArgs, about};
use super::signal::{self, Generating};
use super::terminal::{self, Progress};
use super::{load, prompt, values};

pub(super) use merge::{divergence, divergence_from_small, perplexity};
pub(super) use small::report as report_small_base;

/// Default number of tokens of a chunk, as in llama-perplexity.
const CHUNK: usize = 512;

/// Measure how well a model predicts a text, and how far it is from a base
///
/// The text is cut into chunks of -c tokens; the second half of each is scored. Chunks, scores,
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
  octavo perplexity f16.gguf -f text.txt --kl-divergence-base s.kld --base-top 1000    small
  octavo perplexity q4.gguf --against f16.gguf -f text.txt                   without a base
  octavo perplexity model.gguf -f text.txt --shard 3/8 --out 3.shard    one of eight jobs
  octavo merge *.shard                                                 what one run prints
  octavo perplexity f16.gguf -f text.txt --base-top 1000 --shard 3/8 --out 3.shard
  octavo merge *.shard -o s.kld                                        a small base
  octavo perplexity model.gguf -f hellaswag_val_full.txt --hellaswag --hellaswag-tasks 1000
  octavo perplexity model.gguf -f winogrande-debiased-eval.csv --winogrande
  octavo perplexity model.gguf -f mmlu-validation.bin --multiple-choice

Base files are llama-perplexity's: either program reads the other's, and ik_llama.cpp's are read
too. One that is cut off, of another vocabulary or (where -f is given) of another text is refused.
Percentiles are stated from 100 scored tokens on. Memory does not grow with the text, but for 4
bytes for each token and, with --kl-divergence, 8 for each scored one.

--json prints {version, ppl, mean_nll: {value, uncertainty}, chunk_ppl, ...}, with --kl-divergence
{version, ppl, ppl_base, ln_ratio, kld, dp, rms_dp, same_top: {value, uncertainty}, ...}; kld and dp
have their percentiles too, and dp, rms_dp and same_top are fractions. docs/json.md has all fields."
)]
pub(super) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to score, or tasks; - is stdin. As in llama.cpp, one line feed at its end is dropped
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
    /// Replace any file at --kl-divergence-base or --out, unless it is an input
    #[arg(long)]
    force: bool,
    /// Compare with the predictions in the base, which also has the text
    #[arg(long, requires = "kl_divergence_base")]
    kl_divergence: bool,
    /// Print one JSON object when all is done
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    small: small::SmallArgs,
    #[command(flatten)]
    against: beside::AgainstArgs,
    #[command(flatten)]
    tasks: tasks::TaskArgs,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

/// Runs the command.
pub(super) fn run(args: &PerplexityArgs) -> Result<Exit, Failure> {
    args.shard.ended(measure(args))
}

fn measure(args: &PerplexityArgs) -> Result<Exit, Failure> {
    args.check()?;
    let mut options = args.compute.options()?;
    args.adapters.apply(&mut options)?;
    let inputs = Inputs::default()
        .model(args.model.path()?)
        .file(args.file.as_deref());
    let inputs = match args.kl_divergence {
        true => inputs.file(args.kl_divergence_base.as_deref()),
        false => inputs,
    };
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
        // checked before the work, not after it
        target.check()?;
    }
    if let Some((kind, n)) = args.tasks.kind() {
        signal::install()?;
        return tasks::run(args, options, kind, n);
    }
    let job = args.shard.job(args.force, &inputs);
    job.as_ref().map_or(Ok(()), Job::check)?;
    let text = args.file.as_deref().map(read).transpose()?;
    signal::install()?;
    if let Some(against) = &args.against.against {
        return beside::run(args, options, against, &text.unwrap_or_default());
    }
    if let Some(job) = job {
        return shard::measure(args, options, text, &job);
    }
    match &args.kl_divergence_base {
        Some(path) if args.kl_divergence && eval::is_small(path) => {
            small::compare(args, options, path, text)
        }
        Some(path) if args.kl_divergence => compare(args, options, path, text),
        _ => score(args, options, text.unwrap_or_default(), target),
    }
}

/// Reads a text as llama.cpp's `-f` does.
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
    let text = args.cut(&engine, &text)?;
    let generating = Generating::begin();
    let mut watch = Watch::new(args, &generating, "scoring");
    let (scoring, shape) = (scoring(&options), text.shape());
    let result = match (target, args.small.size()) {
        (None, _) => eval::perplexity(&engine, &text, &scoring, &mut watch),
        (Some(target), Some(size)) => {
            let path = target.path;
            eval::perplexity_with_small_base(&engine, &text, size, &scoring, &mut watch, path)
        }
        (Some(target), None) => base::write_file(target.path, shape, text.tokens(), |writer| {
            eval::perplexity_with_base(&engine, &text, &scoring, &mut watch, writer)
        }),
    };
    let Some(ppl) = watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    if let (Some(target), Some(_)) = (&target, args.small.size()) {
        small::report(target.path, shape)?;
    }
    let out = match args.json {
        true => {
            let about = about(&engine, &options, String::new(), shape.n_ctx)?;
            let base = target.map(|t| t.path);
            print::perplexity_json(&ppl, &watch.chunk_ppl, base, &about)?
        }
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
    let mut base = open_base(path, &mut options)?;
    let engine = load::engine_with(&args.model, options.clone())?;
    if let Some(text) = text {
        eval::check_text(&mut base, &eval::encode(engine.tokenizer(), &text)?)?;
    }
    let (scoring, generating) = (scoring(&options), Generating::begin());
    let mut watch = Watch::new(args, &generating, "comparing");
    let result = eval::divergence(&engine, &mut base, args.chunks(), &scoring, &mut watch);
    let Some(divergence) = watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    let out = match args.json {
        true => {
            let (name, n_ctx) = (base.file().to_owned(), base.shape().n_ctx);
            let about = about(&engine, &options, name, n_ctx)?;
            print::divergence_json(&divergence, Some(base.cut()), &about)?
        }
        false => print::divergence(&divergence),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

/// Opens a base; the size of its chunks sets the context.
fn open_base(path: &Path, options: &mut EngineOptions) -> Result<Reader<File>, Failure> {
    let base = Reader::open(path)?;
    fit(base.file(), base.shape().n_ctx, options)?;
    Ok(base)
}

/// Sets the context to the chunks of a base, which a given one must have room for.
fn fit(file: &str, n_ctx: usize, options: &mut EngineOptions) -> Result<(), Failure> {
    if let Some(ctx) = options.ctx.filter(|ctx| (1..n_ctx).contains(ctx)) {
        return Err(Failure::Input(format!(
            "{file}: chunks of {n_ctx} tokens: expected at most -c, {ctx}"
        )));
    }
    options.ctx = Some(n_ctx);
    Ok(())
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

    /// Refuses options that would have no effect.
    fn check(&self) -> Result<(), Failure> {
        let useless = |what: &str, expected: &str| {
            let message = format!("{what} has no effect: expected {expected}");
            Err(Failure::Usage(message))
        };
        let is_sharded = self.shard.index().is_some();
        self.against.check()?;
        if self.against.against.is_some()
            && let Some(option) = beside::useless(self)
        {
            return useless(option, "no --against with it");
        }
        if self.tasks.kind().is_some() {
            let options = [
                ("--kl-divergence-base", self.kl_divergence_base.is_some()),
                ("--base-top", self.small.size().is_some()),
                ("--chunks", self.chunks != -1),
                ("--shard", is_sharded),
                ("--force", self.force),
            ];
            let useless_one = options.into_iter().find(|(_, is_set)| *is_set);
            return match useless_one {
                Some((option, _)) => useless(option, "a text to score, not tasks"),
                None => Ok(()),
            };
        }
        let writes_base = self.kl_divergence_base.is_some() && !self.kl_divergence;
        if is_sharded && writes_base {
            return Err(Failure::Usage(
                "--kl-divergence-base with --shard: expected --kl-divergence too, or --base-top \
                 without it: octavo merge -o writes small bases, and others are written by one run"
                    .to_owned(),
            ));
        }
        if self.small.size().is_some() && !is_sharded && !writes_base {
            return useless("--base-top", "--kl-divergence-base, or --shard");
        }
        if is_sharded && self.json {
            return useless("--json with --shard", "it of octavo merge");
        }
        if self.force && !is_sharded && !writes_base {
            return useless(
                "--force",
                "--kl-divergence-base or --out, which are written",
            );
        }
        Ok(())
    }

    /// Cuts a text into chunks.
    fn cut(&self, engine: &Engine, text: &[u8]) -> Result<Text, Failure> {
        let tokenizer = engine.tokenizer();
        let tokens = eval::encode(tokenizer, text)?;
        let (n_vocab, n_ctx) = (tokenizer.n_vocab(), engine.n_ctx());
        Ok(Text::new(tokens, n_vocab, n_ctx, self.chunks())?)
    }
}

/// Prints the figures of each chunk, shows progress, and watches for Ctrl-C.
struct Watch<'a> {
    generating: &'a Generating,
    /// Whether to print chunks as they come.
    stream: bool,
    /// Whether a base is written, for which the work goes on if stdout is closed.
    writes: bool,
    /// Progress bar, only if it cannot mix with printed chunks.
    bar: Option<Progress>,
    start: Instant,
    chunk_ppl: Vec<f64>,
    /// Error of stdout, after which the work is useless.
    failed: RefCell<Option<std::io::Error>>,
    open_line: bool,
}

impl<'a> Watch<'a> {
    fn new(args: &PerplexityArgs, generating: &'a Generating, what: &'static str) -> Watch<'a> {
        let stream = !args.json && args.shard.index().is_none();
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

    /// Removes the bar and ends the line of chunks; `None` if Ctrl-C ended the work.
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
        self.chunk_ppl.push(so_far.ppl().value);
        self.chunk_done(so_far.chunks(), total, &print::perplexity_chunk(so_far));
    }

    fn cancelled(&self) -> bool {
        self.stopped()
    }
}

impl Observer<Divergence> for Watch<'_> {
    fn chunk(&mut self, so_far: &Divergence, total: usize) {
        self.chunk_done(so_far.chunks(), total, &print::divergence_chunk(so_far));
    }

    fn cancelled(&self) -> bool {
        self.stopped()
    }
}
