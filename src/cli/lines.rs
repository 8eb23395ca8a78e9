//! Several texts of one run: many prompts, one per line, or several continuations of one prompt.
//! They are generated as a batch, and each is the same as if generated alone with its seed.

use std::collections::BTreeMap;

use clap::Args;
use octavo_engine::GenerationParams;
use octavo_engine::Text;
use octavo_engine::sample::mean_logprob;
use octavo_engine::{
    self as engine, Batch, BatchOptions, BeamOutput, BeamSearch, Engine, Event, Request, RequestId,
    Task, Timing,
};
use octavo_text::chat::answer::AnswerParser;
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::failure::{Exit, Failure};
use super::feed::{Fed, Feed};
use super::metrics::Metrics;
use super::prompt::Prompt;
use super::reply::AnswerParts;
use super::signal::Generating;
use super::terminal;

/// Maximum number of sequences in a batch.
const TOGETHER: usize = 16;

/// Maximum number of prompts given to the engine before earlier ones have ended.
const AHEAD: usize = 2 * TOGETHER;

/// Options of generating several texts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several texts")]
pub(super) struct SeveralArgs {
    /// Treat every line of the text as a prompt of its own, without empty ones; print a JSON object
    /// for each, in order, as lines come
    #[arg(long)]
    pub(super) lines: bool,
    /// Number of texts to generate for each prompt, with consecutive seeds; the seeds of the next
    /// line continue from there
    #[arg(
        long = "n",
        value_name = "N",
        default_value_t = 1,
        hide_default_value = true
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    n: u16,
    /// Generate N texts and keep the --n with the highest mean log-probability of their tokens
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    best_of: Option<u16>,
    /// Beam search with W beams: print the --n best texts; without sampling
    #[arg(long, value_name = "W")]
    #[arg(conflicts_with_all = ["best_of", "temp", "top_k", "top_p", "min_p", "seed", "samplers"])]
    #[arg(conflicts_with_all = ["lookup", "draft"])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    beams: Option<u16>,
    /// Length penalty of --beams, from -10 to 10: a beam's log-probability is divided by its number
    /// of tokens to this power; 0 prefers short texts
    #[arg(
        long,
        value_name = "P",
        requires = "beams",
        allow_negative_numbers = true
    )]
    #[arg(default_value_t = 1.0, hide_default_value = true)]
    length_penalty: f64,
}

impl SeveralArgs {
    /// Returns whether more than one text is wanted.
    pub(super) fn is_several(&self) -> bool {
        self.lines || self.n > 1 || self.best_of.is_some() || self.beams.is_some()
    }

    /// Returns the number of sequences that run at a time.
    pub(super) fn sequences(&self) -> usize {
        // the beams of one prompt must run together
        let beams = self.beams.map_or(1, usize::from);
        match self.lines {
            true => TOGETHER.max(beams),
            false => self.generated().min(TOGETHER).max(beams),
        }
    }

    /// Returns the number of texts to generate for each prompt.
    fn generated(&self) -> usize {
        self.best_of.unwrap_or(self.n).into()
    }

    /// Returns the decoding method.
    fn task(&self) -> Task {
        match self.beams {
            None => Task::Text,
            Some(width) => Task::Beams(BeamSearch {
                width: width.into(),
                length_penalty: self.length_penalty,
            }),
        }
    }

    /// Refuses to generate fewer texts than to keep.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let least = |option: &str, made: Option<u16>| match made {
            Some(made) if made < self.n => Err(Failure::Usage(format!(
                "{option} {made}: expected at least --n, which is {}",
                self.n
            ))),
            _ => Ok(()),
        };
        least("--best-of", self.best_of)?;
        least("--beams", self.beams)
    }
}

/// Settings of all texts of a run.
pub(super) struct Several<'a> {
    pub(super) args: &'a SeveralArgs,
    /// Images of every prompt.
    pub(super) images: &'a [engine::ImageHandle],
    pub(super) options: GenerationParams,
    /// Whether to print JSON objects; always so for lines.
    pub(super) json: bool,
}

/// Result of one prompt.
enum Outcome {
    /// Texts in the order of their choices.
    Texts(Vec<(usize, Text, Timing)>),
    /// Texts of a beam search, the best first.
    Beams(Vec<BeamOutput>, Timing),
    Failed(String),
}

/// A prompt that is being answered.
struct Pending {
    line: usize,
    /// Number among the prompts that were given to the engine or refused.
    place: usize,
    asked: Asked,
    texts: Vec<(usize, Text, Timing)>,
}

/// Prompt of a text, and the parser that reads its answer.
#[derive(Default)]
struct Asked {
    /// Tokens of the prompt.
    ids: Vec<u32>,
    /// Separates reasoning from the answer, if needed.
    parser: Option<AnswerParser>,
}

/// The prompt of a text, or why there is none.
pub(super) type Prepare<'a> = dyn Fn(Vec<u8>) -> Result<Prompt, Failure> + 'a;

/// Generates and prints all texts, each as soon as it and those before it are done.
pub(super) fn generate(
    engine: &Engine,
    several: &Several<'_>,
    feed: &mut Feed,
    prepare: &Prepare<'_>,
    generating: &Generating,
) -> Result<Exit, Failure> {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let mut pending: BTreeMap<RequestId, Pending> = BTreeMap::new();
    let mut printer = Printer {
        engine,
        several,
        ready: BTreeMap::new(),
        next: 0,
        failed: false,
    };
    let mut place = 0;
    let mut is_open = true;
    while is_open || !batch.is_empty() {
        while is_open && pending.len() < AHEAD && !generating.interrupted() {
            let fed = feed.next(batch.is_empty(), || generating.interrupted())?;
            let (line, text) = match fed {
                Fed::Text(text) => text,
                Fed::NotYet => break,
                Fed::End => {
                    is_open = false;
                    break;
                }
            };
            let added = prepare(text).and_then(|prompt| add(&mut batch, several, line, prompt));
            match added {
                Ok((id, asked)) => {
                    let texts = Vec::new();
                    let own = Pending {
                        line,
                        place,
                        asked,
                        texts,
                    };
                    pending.insert(id, own);
                }
                Err(failure) => {
                    let failed = Outcome::Failed(failure.message());
                    printer.take(place, line, &Asked::default(), failed)?;
                }
            }
            place += 1;
        }
        for (id, outcome) in step(&mut batch, several, &mut pending)? {
            if let Some(own) = pending.remove(&id) {
                let outcome = outcome.unwrap_or(Outcome::Texts(own.texts));
                printer.take(own.place, own.line, &own.asked, outcome)?;
            }
        }
        if generating.interrupted() {
            return Ok(Exit::Interrupted);
        }
    }
    Ok(match printer.failed {
        true => Exit::Partly,
        false => Exit::Done,
    })
}

/// Runs a step; returns the prompts that are done, with their results unless these are the
/// collected texts.
fn step(
    batch: &mut Batch,
    several: &Several<'_>,
    pending: &mut BTreeMap<RequestId, Pending>,
) -> Result<Vec<(RequestId, Option<Outcome>)>, Failure> {
    let mut ended = Vec::new();
    batch.step(&mut |id, event| {
        let Some(own) = pending.get_mut(&id) else {
            return;
        };
        match event {
            Event::Finished {
                choice,
                text,
                timing,
            } => own.texts.push((choice, text, timing)),
            Event::Beams { texts, timing } => {
                ended.push((id, Some(Outcome::Beams(texts, timing))));
                return;
            }
            Event::Failed(error) => {
                ended.push((id, Some(Outcome::Failed(error.to_string()))));
                return;
            }
            Event::Started { .. }
            | Event::Read { .. }
            | Event::Prompt(_)
            | Event::Delta { .. }
            | Event::Embedded { .. } => return,
        }
        if own.texts.len() == several.args.generated() {
            ended.push((id, None));
        }
    })?;
    Ok(ended)
}

impl Asked {
    /// Splits an answer into reasoning and content.
    fn answer_parts(&self, text: &str) -> AnswerParts {
        match &self.parser {
            Some(parser) => AnswerParts::of(parser.clone(), text),
            None => AnswerParts {
                content: text.to_owned(),
                ..AnswerParts::default()
            },
        }
    }
}

impl Several<'_> {
    /// Returns the seed of a line's first text: all texts of a run have different seeds.
    fn seed(&self, line: usize) -> u64 {
        let before = line as u64 * self.args.generated() as u64;
        self.options.sampler.seed.wrapping_add(before)
    }

    /// Returns the seed of a text; `None` without sampling.
    fn drawn(&self, line: usize, choice: usize) -> Option<u64> {
        let draws = !self.options.sampler.is_greedy() && self.args.beams.is_none();
        draws.then(|| self.seed(line).wrapping_add(choice as u64))
    }
}

fn add(
    batch: &mut Batch,
    several: &Several<'_>,
    line: usize,
    prompt: Prompt,
) -> Result<(RequestId, Asked), Failure> {
    let mut options = several.options.clone();
    options.sampler.seed = several.seed(line);
    if several.args.best_of.is_some() {
        options.logprobs.get_or_insert(0);
    }
    let id = batch.add(Request {
        n: several.args.generated(),
        task: several.args.task(),
        images: several.images.to_vec(),
        constraint: prompt.constraint,
        ..Request::new(&prompt.ids, &options)
    })?;
    let asked = Asked {
        ids: prompt.ids,
        parser: prompt.parser,
    };
    Ok((id, asked))
}

/// Prints finished results, in the order of the prompts.
struct Printer<'a> {
    engine: &'a Engine,
    several: &'a Several<'a>,
    ready: BTreeMap<usize, Vec<String>>,
    next: usize,
    failed: bool,
}

/// A finished text to print.
struct Shown<'a> {
    line: usize,
    asked: &'a Asked,
    /// Number among the texts that are printed.
    choice: usize,
    text: &'a Text,
    timing: &'a Timing,
    seed: Option<u64>,
}

impl Printer<'_> {
    fn take(
        &mut self,
        place: usize,
        line: usize,
        asked: &Asked,
        outcome: Outcome,
    ) -> Result<(), Failure> {
        let as_json = self.several.json || self.several.args.lines;
        let printed = match outcome {
            Outcome::Failed(message) if as_json => {
                self.failed = true;
                vec![format!("{}\n", answer::error(line, &message))]
            }
            Outcome::Failed(message) => return Err(Failure::Input(message)),
            Outcome::Texts(mut texts) => {
                texts.sort_by_key(|(choice, ..)| *choice);
                self.keep_best(&mut texts);
                let texts = texts.iter().enumerate();
                let shown = texts.map(|(i, (choice, text, timing))| match as_json {
                    true => {
                        let shown = Shown {
                            line,
                            asked,
                            choice: i,
                            text,
                            timing,
                            seed: self.several.drawn(line, *choice),
                        };
                        Ok(format!("{}\n", self.object(&shown)?))
                    }
                    false => Ok(format!("{}\n", asked.answer_parts(&text.text).content)),
                });
                shown.collect::<Result<_, Failure>>()?
            }
            Outcome::Beams(found, timing) => {
                let found = found.iter().enumerate();
                let shown = found.map(|(i, found)| match as_json {
                    true => Ok(format!("{}\n", self.found(line, i, asked, found, &timing)?)),
                    false => Ok(format!(
                        "{}\n",
                        asked.answer_parts(&found.text.text).content
                    )),
                });
                shown.collect::<Result<_, Failure>>()?
            }
        };
        self.ready.insert(place, printed);
        while let Some(texts) = self.ready.remove(&self.next) {
            self.next += 1;
            for (i, text) in texts.iter().enumerate() {
                if !as_json {
                    terminal::note(&format!("octavo: text {} of {}", i + 1, texts.len()));
                }
                terminal::print(text.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Keeps the texts with the highest mean log-probability, the best first.
    fn keep_best(&self, texts: &mut Vec<(usize, Text, Timing)>) {
        if self.several.args.best_of.is_none() {
            return;
        }
        let mean = |text: &Text| mean_logprob(&text.logprobs);
        texts.sort_by(|(_, a, _), (_, b, _)| mean(b).total_cmp(&mean(a)));
        texts.truncate(self.several.args.n.into());
    }

    /// Returns the object of a text of a beam search, with its score.
    fn found(
        &self,
        line: usize,
        choice: usize,
        asked: &Asked,
        found: &BeamOutput,
        timing: &Timing,
    ) -> Result<Value, Failure> {
        let mut object = self.object(&Shown {
            line,
            asked,
            choice,
            text: &found.text,
            timing,
            seed: None,
        })?;
        object["logprob"] = json!(found.logprob);
        object["score"] = json!(found.score);
        Ok(object)
    }

    fn object(&self, shown: &Shown<'_>) -> Result<Value, Failure> {
        let text = shown.text;
        let timing = Timing {
            // of a beam search, those of this text
            generated_tokens: text.tokens.len(),
            ..*shown.timing
        };
        let metrics = Metrics::new(&timing, shown.seed, self.engine.describe());
        let parts = shown.asked.answer_parts(&text.text);
        let wants_logprobs = self.several.options.logprobs.is_some();
        let answer = Answer {
            line: shown.line,
            choice: shown.choice,
            text: &parts.content,
            reasoning: parts.thought(),
            prompt: &shown.asked.ids,
            tokens: &text.tokens,
            finish: text.finish,
            logprobs: wants_logprobs.then_some(&text.logprobs[..]),
            metrics: &metrics,
        };
        Ok(answer.to_json(self.engine.tokenizer())?)
    }
}
