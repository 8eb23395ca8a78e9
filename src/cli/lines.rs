//! Several texts of one run: many prompts, one a line, or several continuations of one prompt. They
//! advance together, and each says what it would say alone.

use std::collections::BTreeMap;

use clap::Args;
use octavo_engine::generate::Options;
use octavo_engine::sample::mean_logprob;
use octavo_engine::sequence::Text;
use octavo_engine::{
    Batch, BatchOptions, BeamSearch, Engine, Event, Found, Goal, Request, RequestId, Shown,
};
use serde_json::{Value, json};

use super::failure::{Exit, Failure};
use super::run;
use super::signal::Generating;
use super::terminal;

/// Texts that advance together unless there are fewer.
const TOGETHER: usize = 16;

/// Prompts given to the engine before earlier ones have ended.
const AHEAD: usize = 2 * TOGETHER;

/// How many texts, of how many prompts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several texts")]
pub(super) struct SeveralArgs {
    /// Every line of the text is a prompt of its own; prints a JSON object a line, in order
    #[arg(long)]
    pub(super) lines: bool,
    /// Texts to generate for each prompt, with seeds one above the other
    #[arg(
        long = "n",
        value_name = "N",
        default_value_t = 1,
        hide_default_value = true
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    n: u16,
    /// Generate so many texts, and keep the --n whose tokens are likeliest on average
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    best_of: Option<u16>,
    /// Search with W beams for likely texts, and print the --n best; draws nothing
    #[arg(long, value_name = "W", conflicts_with = "best_of")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    beams: Option<u16>,
    /// What the number of tokens is raised to that a beam's log-probability is divided by, from -10
    /// to 10: 0 prefers short texts
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
    /// Whether more than one text is wanted.
    pub(super) fn is_several(&self) -> bool {
        self.lines || self.n > 1 || self.best_of.is_some() || self.beams.is_some()
    }

    /// Sequences that run at a time.
    pub(super) fn sequences(&self) -> usize {
        // beams of one prompt cannot wait for each other
        let beams = self.beams.map_or(1, usize::from);
        match self.lines {
            true => TOGETHER.max(beams),
            false => self.generated().min(TOGETHER).max(beams),
        }
    }

    /// Texts generated for each prompt.
    fn generated(&self) -> usize {
        self.best_of.unwrap_or(self.n).into()
    }

    /// How they are generated.
    fn goal(&self) -> Goal {
        match self.beams {
            None => Goal::Text,
            Some(width) => Goal::Beams(BeamSearch {
                width: width.into(),
                length_penalty: self.length_penalty,
            }),
        }
    }

    /// An error if fewer texts are generated than kept.
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

/// How the texts are made and shown.
pub(super) struct Several<'a> {
    pub(super) args: &'a SeveralArgs,
    /// Beside every prompt.
    pub(super) pictures: &'a [Shown],
    pub(super) options: Options,
    /// As JSON objects; always so for lines.
    pub(super) json: bool,
}

/// What came of one prompt.
enum Outcome {
    Texts(Vec<(usize, Text)>),
    /// The best first.
    Found(Vec<Found>),
    Failed(String),
}

/// One prompt under way.
struct Pending {
    line: usize,
    prompt: Vec<u32>,
    texts: Vec<(usize, Text)>,
}

/// Generates and prints all texts; `prompt` gives the tokens of the next line, or why there are
/// none.
pub(super) fn generate(
    engine: &Engine,
    several: &Several<'_>,
    mut prompts: impl Iterator<Item = Result<Vec<u32>, Failure>>,
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
    let mut line = 0;
    let mut is_open = true;
    while is_open || !batch.is_empty() {
        while is_open && pending.len() < AHEAD {
            let Some(prompt) = prompts.next() else {
                is_open = false;
                break;
            };
            match prompt.and_then(|prompt| Ok((add(&mut batch, several, &prompt)?, prompt))) {
                Ok((id, prompt)) => {
                    let texts = Vec::new();
                    pending.insert(
                        id,
                        Pending {
                            line,
                            prompt,
                            texts,
                        },
                    );
                }
                Err(failure) => printer.take(line, &[], Outcome::Failed(failure.message()))?,
            }
            line += 1;
        }
        let mut ended = Vec::new();
        batch.step(&mut |id, event| {
            let Some(own) = pending.get_mut(&id) else {
                return;
            };
            match event {
                Event::Finished { choice, text, .. } => own.texts.push((choice, text)),
                Event::Found { texts, .. } => {
                    ended.push((id, Some(Outcome::Found(texts))));
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
        for (id, outcome) in ended {
            if let Some(own) = pending.remove(&id) {
                let outcome = outcome.unwrap_or(Outcome::Texts(own.texts));
                printer.take(own.line, &own.prompt, outcome)?;
            }
        }
        if generating.interrupted() {
            return Ok(Exit::Interrupted);
        }
    }
    Ok(if printer.failed {
        Exit::Partly
    } else {
        Exit::Done
    })
}

fn add(batch: &mut Batch, several: &Several<'_>, prompt: &[u32]) -> Result<RequestId, Failure> {
    let mut options = several.options.clone();
    if several.args.best_of.is_some() {
        options.logprobs.get_or_insert(0);
    }
    Ok(batch.add(Request {
        n: several.args.generated(),
        goal: several.args.goal(),
        pictures: several.pictures.to_vec(),
        ..Request::new(prompt, &options)
    })?)
}

/// Prints what is ready, in the order of the prompts.
struct Printer<'a> {
    engine: &'a Engine,
    several: &'a Several<'a>,
    ready: BTreeMap<usize, Vec<String>>,
    next: usize,
    failed: bool,
}

impl Printer<'_> {
    fn take(&mut self, line: usize, prompt: &[u32], outcome: Outcome) -> Result<(), Failure> {
        let as_json = self.several.json || self.several.args.lines;
        let printed = match outcome {
            Outcome::Failed(message) if as_json => {
                self.failed = true;
                vec![format!("{}\n", json!({ "line": line, "error": message }))]
            }
            Outcome::Failed(message) => return Err(Failure::Input(message)),
            Outcome::Texts(mut texts) => {
                texts.sort_by_key(|(choice, _)| *choice);
                self.keep_best(&mut texts);
                let texts = texts.iter().enumerate();
                let shown = texts.map(|(i, (_, text))| match as_json {
                    true => format!("{}\n", self.object(line, i, prompt, text)),
                    false => format!("{}\n", text.text),
                });
                shown.collect()
            }
            Outcome::Found(found) => {
                let found = found.iter().enumerate();
                let shown = found.map(|(i, found)| match as_json {
                    true => format!("{}\n", self.found(line, i, prompt, found)),
                    false => format!("{}\n", found.text.text),
                });
                shown.collect()
            }
        };
        self.ready.insert(line, printed);
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

    /// Keeps the likeliest texts, the best first.
    fn keep_best(&self, texts: &mut Vec<(usize, Text)>) {
        if self.several.args.best_of.is_none() {
            return;
        }
        let mean = |text: &Text| mean_logprob(&text.logprobs);
        texts.sort_by(|(_, a), (_, b)| mean(b).total_cmp(&mean(a)));
        texts.truncate(self.several.args.n.into());
    }

    /// A text that a search has found, with what it was ranked by.
    fn found(&self, line: usize, place: usize, prompt: &[u32], found: &Found) -> Value {
        let mut object = self.object(line, place, prompt, &found.text);
        object["logprob"] = json!(found.logprob);
        object["score"] = json!(found.score);
        object
    }

    fn object(&self, line: usize, choice: usize, prompt: &[u32], text: &Text) -> Value {
        let mut object = json!({
            "line": line,
            "choice": choice,
            "text": text.text,
            "prompt_tokens": prompt,
            "tokens": text.tokens,
            "finish_reason": text.finish.name(),
        });
        if let Some(detail) = text.finish.detail() {
            object["finish_detail"] = json!(detail);
        }
        if self.several.options.logprobs.is_some() {
            let tokenizer = self.engine.tokenizer();
            let all = text.logprobs.iter();
            object["logprobs"] = all.map(|token| run::logprobs(token, tokenizer)).collect();
        }
        object
    }
}
