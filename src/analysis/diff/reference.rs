//! Recorded computations of other programs, and the engine's distance from them.

use std::path::{Path, PathBuf};

use octavo_reference::formats::eval_callback::{self, Printed, Recording};
use octavo_reference::formats::server::{self, Completion};
use octavo_reference::formats::session::{self, Session};
use octavo_reference::formats::{Kind, debug, recognize};
use octavo_reference::golden::{Golden, TopLogits};
use octavo_reference::metrics::{Nmse, log_sum_exp};
use octavo_reference::results::Results;

use super::Error;
use super::lockstep::Options;
use super::logits::LogitComparison;
use super::measured::Measured;
use super::probabilities::{TokenComparison, generated};
use super::recorded_routing::is_printed_choice;
use super::target::ImageInput;
use super::tensor_comparison::TensorComparison;
use super::tensors;
use super::tolerance::Tolerance;
use crate::eval;
use crate::imatrix::{Collector, Importance, Options as ImatrixOptions};
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, LogitsFor};
use octavo_text::tokenizer::EncodeOptions;
use octavo_vision::Encoder;
use octavo_vision::pixels::Prepared;

/// Selects one of a golden's two computations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferenceValues {
    /// llama.cpp on the file itself, with its rounded activations.
    #[default]
    Logits,
    /// llama.cpp on the file dequantized to F32: the result of a perfect engine.
    Exact,
}

/// Contents of a reference file.
#[derive(Debug)]
enum Recorded {
    /// Logits of all positions, `(n, n_vocab)`.
    All(Vec<f32>),
    /// The most likely tokens of all positions: number of positions, and the recorded data.
    Top(usize, TopLogits),
    /// Logits of the last position.
    Last(Vec<f32>),
    /// `result_norm` of all positions.
    Hidden(Vec<f32>),
    /// Corners and sums of every tensor.
    Printed(Vec<Printed>),
    /// Keys and values of a KV cache.
    Cache(Session),
    /// Log-probabilities of generated tokens.
    Generated(Completion),
    /// Log-probabilities of a long text (`llama-perplexity`'s base file), streamed from the file.
    Base(PathBuf),
    /// Sums of squares of the inputs of every matrix.
    Energies(Importance, usize),
}

/// A recorded computation.
#[derive(Debug)]
pub struct Reference {
    /// Name of the program that wrote it, for people.
    pub kind: &'static str,
    /// Warning about data missing from the file, for people.
    pub warning: Option<String>,
    /// Token ids of the text, if the file has them.
    pub tokens: Option<Vec<u32>>,
    /// The text itself, if the file has it.
    text: Option<String>,
    /// Vocabulary size, if the file says.
    n_vocab: Option<usize>,
    recorded: Recorded,
}

impl Reference {
    /// Reads a reference file, recognised by its content.
    ///
    /// # Errors
    /// Names the file, what is wrong, and what was expected.
    pub fn read(path: &Path, values: ReferenceValues) -> Result<Reference, Error> {
        Ok(match recognize(path)? {
            Kind::Results => {
                let r = Results::read(path)?;
                let (tokens, n_vocab) = (Some(r.tokens), Some(r.n_vocab));
                Reference {
                    tokens,
                    n_vocab,
                    ..Reference::of("llama-results", Recorded::All(r.logits))
                }
            }
            Kind::Golden => Reference::golden(Golden::read(path)?, values),
            Kind::Debug => Reference::debug(debug::read(path)?),
            Kind::EvalCallback => {
                let Recording { tensors, cut_off } = eval_callback::read(path)?;
                let warning = cut_off.map(|tensor| {
                    let path = path.display();
                    format!("{path}: the file ends inside of {tensor}, which is left out")
                });
                Reference {
                    warning,
                    ..Reference::of("llama-eval-callback", Recorded::Printed(tensors))
                }
            }
            Kind::Session => Reference::session(session::read(path)?),
            Kind::Server => {
                let completion = server::read(path)?;
                let text = completion.prompt.clone();
                Reference {
                    text,
                    ..Reference::of("llama-server", Recorded::Generated(completion))
                }
            }
            Kind::KldBase => {
                let shape = eval::base::Reader::open(path)
                    .map_err(eval::Error::from)?
                    .shape();
                let n_vocab = Some(shape.n_vocab);
                Reference {
                    n_vocab,
                    ..Reference::of("llama-perplexity base", Recorded::Base(path.to_owned()))
                }
            }
            Kind::Imatrix => {
                let importance = Importance::open(path)?;
                let chunk = importance.chunk_size().max(2);
                Reference::of("llama-imatrix", Recorded::Energies(importance, chunk))
            }
        })
    }

    /// Wraps recorded data without a text.
    fn of(kind: &'static str, recorded: Recorded) -> Reference {
        Reference {
            kind,
            warning: None,
            tokens: None,
            text: None,
            n_vocab: None,
            recorded,
        }
    }

    fn debug(debug: debug::Debug) -> Reference {
        let recorded = if debug.embeddings {
            Recorded::Hidden(debug.values)
        } else {
            Recorded::Last(debug.values)
        };
        Reference {
            tokens: debug.tokens,
            ..Reference::of("llama-debug", recorded)
        }
    }

    fn session(cache: Session) -> Reference {
        // the last sampled token is not in the cache yet
        let mut tokens = cache.tokens.clone();
        tokens.truncate(cache.n_cells);
        let recorded = Recorded::Cache(Session {
            tokens: tokens.clone(),
            ..cache
        });
        Reference {
            tokens: Some(tokens),
            ..Reference::of("prompt cache", recorded)
        }
    }

    fn golden(golden: Golden, values: ReferenceValues) -> Reference {
        let (tokens, n_vocab) = (golden.tokens().to_vec(), golden.n_vocab());
        let exact = values == ReferenceValues::Exact;
        let recorded = match golden {
            Golden::Full(full) => Recorded::All(if exact { full.exact } else { full.logits }),
            Golden::Top(top) => Recorded::Top(top.k, if exact { top.exact } else { top.llama_cpp }),
        };
        let kind = if exact { "golden, exact" } else { "golden" };
        Reference {
            tokens: Some(tokens),
            n_vocab: Some(n_vocab),
            ..Reference::of(kind, recorded)
        }
    }

    /// Returns the positions that a comparison needs, for a text of `text_tokens` ids.
    pub fn n_ctx(&self, text_tokens: Option<usize>) -> usize {
        let tokens = self
            .tokens
            .as_ref()
            .map(Vec::len)
            .or(text_tokens)
            .unwrap_or(512);
        match &self.recorded {
            Recorded::Generated(completion) => {
                completion.n_prompt.unwrap_or(0).max(tokens) + completion.tokens.len() + 1
            }
            Recorded::Base(path) => {
                eval::base::Reader::open(path).map_or(512, |reader| reader.shape().n_ctx)
            }
            Recorded::Energies(_, chunk) => *chunk,
            _ => tokens,
        }
    }

    /// Returns whether a comparison needs a text that is not in the file.
    pub fn wants_text(&self) -> bool {
        self.tokens.is_none() && self.text.is_none() && !matches!(self.recorded, Recorded::Base(_))
    }

    /// Returns whether it has expert choices, which the engine can continue with.
    pub fn has_routing(&self) -> bool {
        matches!(&self.recorded, Recorded::Printed(all) if all.iter().any(is_printed_choice))
    }

    /// Returns the token ids: the file's own, else `text` tokenized, else the file's text
    /// tokenized.
    fn ids(&self, engine: &Engine, text: Option<&[u8]>) -> Result<Vec<u32>, Error> {
        if let Some(tokens) = &self.tokens {
            return Ok(tokens.clone());
        }
        let text = text
            .or(self.text.as_deref().map(str::as_bytes))
            .ok_or(Error::NoText { kind: self.kind })?;
        // tokenize as the program in question does
        let parse_special = matches!(self.recorded, Recorded::Printed(_) | Recorded::Generated(_));
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        Ok(engine
            .tokenizer()
            .encode(text, options)
            .map_err(octavo_engine::Error::from)?)
    }

    /// Computes the reference's text (or `text`, if the file has none) and compares.
    ///
    /// # Errors
    /// If the model is of another shape, the text is missing or is not the reference's, or cannot
    /// be computed.
    pub fn compare(
        &self,
        engine: &Engine,
        text: Option<&[u8]>,
        tolerance: &Tolerance,
    ) -> Result<Measured, Error> {
        self.compare_with(engine, text, tolerance, Options::default())
    }

    /// As [`Reference::compare`], with options: `same_routing` has an effect where
    /// [`Reference::has_routing`] is true.
    ///
    /// # Errors
    /// As [`Reference::compare`].
    pub fn compare_with(
        &self,
        engine: &Engine,
        text: Option<&[u8]>,
        tolerance: &Tolerance,
        options: Options,
    ) -> Result<Measured, Error> {
        let n_vocab = engine.hparams().n_vocab();
        if let Some(theirs) = self.n_vocab.filter(|theirs| *theirs != n_vocab) {
            return Err(Error::Differ {
                what: "vocabulary of model (first) and reference (second)",
                a: n_vocab.to_string(),
                b: theirs.to_string(),
            });
        }
        let ids = || self.ids(engine, text);
        Ok(match &self.recorded {
            Recorded::All(rows) => Measured::Logits(all_logits(engine, &ids()?, rows)?),
            Recorded::Top(k, top) => Measured::Logits(top_logits(engine, &ids()?, *k, top)?),
            Recorded::Last(row) => Measured::Logits(logits(
                engine,
                &ids()?,
                LogitsFor::Last,
                &mut |c, position, ours| c.add(position, ours, row),
            )?),
            Recorded::Hidden(values) => {
                Measured::Tensors(tensors::hidden(engine, &ids()?, values, tolerance.nmse)?)
            }
            Recorded::Printed(all) => {
                let (ids, nmse) = (ids()?, tolerance.nmse);
                Measured::Tensors(tensors::printed(engine, &ids, all, nmse, options)?)
            }
            Recorded::Cache(cache) => {
                Measured::Tensors(tensors::cached(engine, cache, tolerance.nmse)?)
            }
            Recorded::Generated(completion) => {
                Measured::Generated(continued(engine, &ids()?, completion)?)
            }
            Recorded::Base(path) => divergence(engine, path)?,
            Recorded::Energies(importance, chunk) => {
                let text = text.ok_or(Error::NoText { kind: self.kind })?;
                let all = energies(engine, text, importance, *chunk, tolerance.nmse)?;
                Measured::Tensors(all.into())
            }
        })
    }

    /// Encodes the image whose tower tensors `llama-mtmd-cli` has printed, and compares.
    ///
    /// # Errors
    /// If the file holds something else, or the image cannot be encoded.
    pub fn compare_image(
        &self,
        encoder: &mut Encoder,
        seen: ImageInput<'_>,
        tolerance: &Tolerance,
    ) -> Result<Measured, Error> {
        let Recorded::Printed(all) = &self.recorded else {
            return Err(Error::NoImage { kind: self.kind });
        };
        let prepared = Prepared::new(seen.image, &encoder.tower().hparams, seen.token_limits)?;
        let all = tensors::printed_of_image(encoder, &prepared, all, tolerance.nmse)?;
        Ok(Measured::Tensors(all))
    }
}

/// Compares with the logits of every position, `[positions, n_vocab]`.
fn all_logits(engine: &Engine, tokens: &[u32], rows: &[f32]) -> Result<LogitComparison, Error> {
    let n_vocab = engine.hparams().n_vocab();
    logits(engine, tokens, LogitsFor::All, &mut |c, position, ours| {
        let theirs = &rows[position * n_vocab..(position + 1) * n_vocab];
        c.add(position, ours, theirs)
    })
}

/// Compares with the `k` largest logits of every position.
fn top_logits(
    engine: &Engine,
    tokens: &[u32],
    k: usize,
    top: &TopLogits,
) -> Result<LogitComparison, Error> {
    logits(engine, tokens, LogitsFor::All, &mut |c, position, ours| {
        let range = position * k..(position + 1) * k;
        let theirs = (
            &top.ids[range.clone()],
            &top.logits[range],
            f64::from(top.lse[position]),
        );
        c.add_top(position, (ours, log_sum_exp(ours)), theirs)
    })
}

/// Compares with tokens that were generated from this prompt.
fn continued(
    engine: &Engine,
    prompt: &[u32],
    completion: &Completion,
) -> Result<Vec<TokenComparison>, Error> {
    if let Some(theirs) = completion.n_prompt.filter(|n| *n != prompt.len()) {
        return Err(Error::Differ {
            what: "tokens of the prompt",
            a: prompt.len().to_string(),
            b: theirs.to_string(),
        });
    }
    generated(engine, prompt, completion)
}

type Add<'a> = &'a mut dyn FnMut(&mut LogitComparison, usize, &[f32]) -> Result<(), Error>;

fn logits(
    engine: &Engine,
    tokens: &[u32],
    logits_for: LogitsFor,
    add: Add<'_>,
) -> Result<LogitComparison, Error> {
    let mut comparison = LogitComparison::new(tokens, engine.hparams().n_vocab());
    let mut failed = None;
    let mut sink = |position: usize, ours: &[f32]| {
        if let Err(error) = add(&mut comparison, position, ours) {
            failed.get_or_insert(error);
        }
    };
    engine
        .session()
        .eval_with(tokens, Phase::Prefill, logits_for, None, &mut sink)?;
    failed.map_or(Ok(comparison), Err)
}

fn divergence(engine: &Engine, path: &Path) -> Result<Measured, Error> {
    let mut base = eval::base::Reader::open(path).map_err(eval::Error::from)?;
    let d = eval::divergence(engine, &mut base, None, &eval::Options::default(), &mut ())?;
    let (mean_kl, same_top) = (d.kld().value, d.same_top().value);
    Ok(Measured::Divergence {
        mean_kl,
        max_kl: d.klds().maximum().into(),
        same_top,
        scored: d.scored(),
    })
}

/// Compares the mean squares of the inputs of every matrix over a text, channel by channel.
fn energies(
    engine: &Engine,
    text: &[u8],
    importance: &Importance,
    chunk: usize,
    nmse: f64,
) -> Result<Vec<TensorComparison>, Error> {
    let chunks = importance.chunks() as usize;
    let options = ImatrixOptions {
        chunk,
        max_chunks: (chunks > 0).then_some(chunks),
        output: true,
    };
    let mut collector = Collector::new(engine, options)?;
    for part in collector.tokens(text)?.chunks(chunk) {
        collector.add(part)?;
    }
    let mut found = Vec::new();
    for (name, ours) in collector.means() {
        let Some(theirs) = importance
            .weights(name)
            .filter(|theirs| theirs.len() == ours.len())
        else {
            continue;
        };
        let (mut error, mut worst, mut channel) = (Nmse::default(), -1.0, 0);
        for (i, (x, y)) in ours.iter().zip(theirs).enumerate() {
            let difference = (x - f64::from(*y)).abs();
            error.add_difference(difference, f64::from(*y));
            if difference > worst || difference.is_nan() {
                (worst, channel) = (difference, i);
            }
        }
        let error = error.value();
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        found.push(TensorComparison {
            name: name.to_owned(),
            layer,
            occurrence: 0,
            values: ours.len(),
            nmse: error,
            position: 0,
            channel,
            a: ours[channel] as f32,
            b: theirs[channel],
            // a relative error of a value doubles in its square, and so is four times larger in
            // NMSE
            outside: error > 4.0 * nmse || error.is_nan(),
        });
    }
    found.sort_by_key(|t| t.layer);
    Ok(found)
}
