//! Quality loss of quantization: the same text scored by a model and by its quantizations.
//!
//! Every quantization is made as by `quantize`, into a temporary file, loaded, and scored against
//! the model itself: beside it, or against a base of log-probabilities that it has written
//! ([`compared`], [`crate::eval`]). [`sensitivity`] does the same with one tensor at a time: it
//! shows which tensors are worth their bits.

mod candidates;
mod check;
mod replaced;
mod scores;
mod sensitivity;

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use octavo_kernels::Phase;
use serde::Serialize;

use crate::eval::base::{Reader, Writer};
use crate::eval::{self, Divergence, Observer, Perplexity, Text};
use crate::imatrix::Importance;
use crate::quantize::{self, Target};
use crate::shards::ShardIndex;
use octavo_engine::{Engine, EngineOptions, LogitsFor, ModelSource};

pub use candidates::{Candidate, against, compared};
pub use check::check;
pub(crate) use replaced::{Replaced, weights};
pub use scores::{
    BaseRow, BaseScores, Facts, Failed, ModelScores, Pace, Scores, Sensitivity, TensorScores,
};
pub use sensitivity::sensitivity;
pub(crate) use sensitivity::{is_float_matrix, role};

/// Reasons there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be loaded or computed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The GGUF container is invalid.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// Scoring failed.
    #[error(transparent)]
    Eval(#[from] eval::Error),
    /// Quantizing failed.
    #[error(transparent)]
    Quantize(#[from] quantize::Error),
    /// A type that the model cannot be quantized to.
    #[error("{target}: {source}")]
    Target {
        /// Target type.
        target: Target,
        /// Reason for the refusal.
        source: quantize::Error,
    },
    /// A model with another vocabulary size.
    #[error("{file}: expected the {expected} tokens of {model}, got {got}")]
    Vocabulary {
        /// Name of the other model.
        file: String,
        /// Name of the model.
        model: String,
        /// Vocabulary size of the model.
        expected: usize,
        /// Vocabulary size of the other model.
        got: usize,
    },
    /// A model with another vocabulary of the same size.
    #[error("{file}: token {id}: expected {expected:?} as in {model}, got {got:?}")]
    Token {
        /// Name of the other model.
        file: String,
        /// Name of the model.
        model: String,
        /// First token id that differs.
        id: usize,
        /// Token text in the model.
        expected: String,
        /// Token text in the other model.
        got: String,
    },
    /// A weight that cannot be converted.
    #[error("tensor {name}: {source}")]
    Convert {
        /// Name of the tensor.
        name: String,
        /// Conversion error.
        source: octavo_quant::Error,
    },
    /// A temporary file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// No tensor can be ranked.
    #[error(
        "{file}: no tensor can be quantized to {to}: expected F32, F16 or BF16 matrices whose \
         rows fit its blocks"
    )]
    NothingToRank {
        /// Name of the model.
        file: String,
        /// Target type.
        to: &'static str,
    },
}

/// Setup of a report.
pub struct Setup<'a> {
    /// Reference model: F16, BF16 or F32.
    pub model: &'a Path,
    /// Options for running it and its quantizations.
    pub engine: EngineOptions,
    /// Token ids of the text.
    pub tokens: Vec<u32>,
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Largest number of chunks.
    pub chunks: Option<usize>,
    /// ShardIndex of the chunks to score, if not all.
    pub shard: Option<ShardIndex>,
    /// Importance weights for the quantizers that use them.
    pub importance: Option<&'a Importance>,
    /// Whether to quantize tensors that are already quantized.
    pub allow_requantize: bool,
    /// Folder for temporary files.
    pub folder: &'a Path,
}

/// The base: scores of the model itself, and the file with its log-probabilities.
#[derive(Debug)]
pub struct Base {
    /// Perplexity, size and speed.
    pub scores: BaseScores,
    /// Path of the base file.
    file: PathBuf,
}

/// Figures of one quantization.
#[derive(Clone, Debug, Serialize)]
pub struct QuantRow {
    /// File type, by llama-quantize's name; or the name of an existing file or folder.
    pub name: String,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// Perplexity of the text.
    pub ppl: f64,
    /// ln(PPL / PPL of the base), and its standard error.
    pub ln_ppl_ratio: (f64, f64),
    /// Mean KL divergence from the base in nats, and its standard error.
    pub mean_kl: (f64, f64),
    /// 99th percentile of the KL divergence.
    pub kl_99: f32,
    /// The largest KL divergence.
    pub max_kl: f32,
    /// Share of tokens whose most likely token is the same as the base's.
    pub same_top: f64,
    /// Prompt tokens per second while scoring.
    pub prompt_rate: f64,
    /// Generated tokens per second.
    pub generation_rate: f64,
}

/// Progress observer.
pub trait Watch {
    /// Called when a stage of the work begins.
    fn begin(&mut self, what: &str);
    /// Called with (chunks done, chunks in all) of the stage.
    fn at(&mut self, done: usize, total: usize);
    /// Called with the error of a model, which does not stop the others.
    fn failed(&mut self, name: &str, error: &Error) -> Failed {
        Failed {
            name: name.to_owned(),
            error: error.to_string(),
        }
    }
    /// Returns whether to stop.
    fn cancelled(&self) -> bool;
}

/// Adapts a [`Watch`] to the scoring's observer.
struct Scoring<'w>(&'w mut dyn Watch);

impl Observer<Perplexity> for Scoring<'_> {
    fn chunk(&mut self, so_far: &Perplexity, total: usize) {
        self.0.at(so_far.chunks(), total);
    }
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

impl Observer<Divergence> for Scoring<'_> {
    fn chunk(&mut self, so_far: &Divergence, total: usize) {
        self.0.at(so_far.chunks(), total);
    }
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

impl Setup<'_> {
    /// Returns the number of chunks in the whole text.
    pub fn units(&self) -> usize {
        let all = self.tokens.len() / self.n_ctx.max(1);
        self.chunks.map_or(all, |n| n.min(all))
    }

    /// Returns the chunks to score.
    fn text(&self, n_vocab: usize) -> Result<Text, eval::Error> {
        let text = Text::new(self.tokens.clone(), n_vocab, self.n_ctx, self.chunks)?;
        let n_chunks = text.shape().n_chunks;
        Ok(text.only(
            self.shard
                .map_or(0..n_chunks, |shard| shard.range(n_chunks)),
        ))
    }

    /// Returns the options for one quantization.
    pub(crate) fn quantizing(&self, target: Target) -> quantize::Options {
        let mut options = quantize::Options::new(target);
        options.threads = self.engine.threads.unwrap_or(options.threads);
        options.choices.has_importance = self.importance.is_some();
        options.allow_requantize = self.allow_requantize;
        options
    }

    pub(crate) fn load(&self, path: &Path) -> Result<Engine, Error> {
        Ok(Engine::load(
            &ModelSource::Path(path.to_owned()),
            &self.engine,
            &mut |_| {},
        )?)
    }

    pub(crate) fn options(&self) -> eval::Options {
        let defaults = eval::Options::default();
        eval::Options {
            threads: self.engine.threads.unwrap_or(defaults.threads),
            batch: self.engine.batch(),
        }
    }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Io {
        path: path.display().to_string(),
        source,
    }
}

/// Scores the model itself and writes its log-probabilities to the base file.
///
/// # Errors
/// [`enum@Error`].
pub fn base(setup: &Setup<'_>, watch: &mut dyn Watch) -> Result<Base, Error> {
    let engine = setup.load(setup.model)?;
    let text = setup.text(engine.hparams().n_vocab())?;
    base_of(setup, &engine, &text, watch)
}

/// As [`base`], for a model that is loaded.
fn base_of(
    setup: &Setup<'_>,
    engine: &Engine,
    text: &Text,
    watch: &mut dyn Watch,
) -> Result<Base, Error> {
    watch.begin("the model itself");
    let file = setup.folder.join("base.kld");
    let out = BufWriter::new(File::create(&file).map_err(io(&file))?);
    let name = file.display().to_string();
    let mut writer =
        Writer::new(out, &name, text.shape(), text.tokens()).map_err(eval::Error::from)?;
    let start = Instant::now();
    let ppl = eval::perplexity_with_base(
        engine,
        text,
        &setup.options(),
        &mut Scoring(watch),
        &mut writer,
    )?;
    writer.finish().map_err(eval::Error::from)?;
    let scores = BaseScores::of(engine, &ppl, text, start.elapsed())?;
    Ok(Base { scores, file })
}

impl BaseScores {
    /// Returns the scores of a model that took `time` for a text.
    fn of(engine: &Engine, ppl: &Perplexity, text: &Text, time: Duration) -> Result<Self, Error> {
        let (bytes, bits) = candidates::size(engine.gguf());
        Ok(BaseScores {
            facts: Facts {
                bytes,
                bits,
                prompts: Pace::of(text.tokens().len(), time),
                generation: generation(engine)?,
            },
            chunks: ppl.by_chunk().to_vec(),
        })
    }
}

/// Tokens of the generation benchmark: enough to average out the first tokens' noise, few compared
/// with scoring.
const GENERATED: usize = 32;

/// Measures the speed of greedy decoding from a single-token context.
fn generation(engine: &Engine) -> Result<Pace, Error> {
    let mut session = engine.session();
    let n = GENERATED.min(session.n_ctx().saturating_sub(2)).max(1);
    session.eval(&[0], Phase::Decode, LogitsFor::Last)?;
    let start = Instant::now();
    for id in (0..).take(n) {
        session.eval(&[id], Phase::Decode, LogitsFor::Last)?;
    }
    Ok(Pace::of(n, start.elapsed()))
}

/// Scores a model against the base.
pub(crate) fn score(
    setup: &Setup<'_>,
    base: &Base,
    engine: &Engine,
    watch: &mut dyn Watch,
) -> Result<Divergence, Error> {
    let mut rows = base.rows()?;
    let (chunks, options) = (setup.chunks, setup.options());
    let mut watch = Scoring(watch);
    Ok(eval::divergence(
        engine, &mut rows, chunks, &options, &mut watch,
    )?)
}

/// Scores a model against `n` chunks of the base, evenly spread over it.
pub(crate) fn score_some(
    setup: &Setup<'_>,
    base: &Base,
    engine: &Engine,
    n: usize,
) -> Result<Divergence, Error> {
    let mut rows = base.rows()?;
    let all = rows.shape().n_chunks;
    let mut some = Divergence::default();
    for chunk in (0..n).map(|i| i * all / n) {
        let range = chunk..chunk + 1;
        let one = eval::divergence_of(engine, &mut rows, range, &setup.options(), &mut ())?;
        one.by_chunk()
            .iter()
            .for_each(|chunk| some.push(chunk.clone()));
    }
    Ok(some)
}

impl Base {
    /// Opens the log-probabilities.
    fn rows(&self) -> Result<Reader<BufReader<File>>, Error> {
        let file = BufReader::new(File::open(&self.file).map_err(io(&self.file))?);
        let name = self.file.display().to_string();
        Ok(Reader::new(file, &name).map_err(eval::Error::from)?)
    }
}
