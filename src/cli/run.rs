//! `octavo run`: continue one text.

use std::cell::Cell;
use std::io::{self, Write};

use clap::Args;
use octavo_engine::generate::{Finish, Generation, Observer, Options, generate};
use octavo_engine::sample::Logprobs;
use octavo_engine::{Engine, Shown, is_cell};
use octavo_text::chat::Message;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use octavo_vision::prompt;
use serde_json::{Value, json};

use super::args::{ComputeArgs, GenerateArgs, ModelArgs, TemplateArgs};
use super::failure::{Exit, Failure};
use super::lines::{self, Several, SeveralArgs};
use super::metrics::{Metrics, note_full};
use super::prompt::TextArgs;
use super::ranks::NumaArgs;
use super::signal::{self, Generating};
use super::terminal::{self, Progress};
use super::vision::{self, PictureArgs};
use super::{chat, load};

/// Continue a text (or answer one message, with --chat)
///
/// Without a text, on a terminal, it is octavo chat.
///
/// The text alone goes to stdout as it is generated; a closing line with speeds and memory goes to
/// stderr.
#[derive(Debug, Args)]
#[command(mut_arg("chat_template", |a| a.requires("chat")))]
#[command(mut_arg("chat_template_kwargs", |a| a.requires("chat")))]
#[command(mut_arg("reasoning", |a| a.requires("chat")))]
#[command(mut_arg("escape", |a| a.help(
    "Turn \\n, \\r, \\t, \\\", \\', \\\\ and \\xHH in TEXT and --stop into what they stand for",
)))]
#[command(after_help = "\
Examples:
  octavo run -p \"1+1=\"
  octavo run model.gguf -p \"Once upon a time\" -n 64 --temp 0.8 --seed 1
  octavo run model.gguf --chat --system \"Be brief.\" -p \"What is the capital of France?\"
  octavo run model.gguf -f prompt.txt -e --stop \"\\n\\n\" --json
  cat prompt.txt | octavo run model.gguf -f -
  octavo run model.gguf -f prompts.txt --lines -n 32 > answers.jsonl
  octavo run model.gguf -p \"Once upon a time\" -n 32 --beams 4 --n 2 --json
  octavo run model.gguf --mmproj mmproj.gguf --image photo.jpg --chat -p \"What is this?\"

--json prints one object:
  {text, prompt_tokens: ids, tokens: ids, finish_reason: stop|length|cancelled, \
finish_detail?, logprobs?, metrics}
finish_detail says which limit a length is: max_tokens (-n) or context_full (-c).
`tokens` has every token chosen, one that ended the text included; `text` ends before it.
Ctrl-C ends the generation: what there is has been printed, and the exit code is 130.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// The text is a user's message: apply the model's chat template
    #[arg(long)]
    chat: bool,
    /// System message (also: -sys TEXT)
    #[arg(
        long,
        value_name = "TEXT",
        requires = "chat",
        allow_hyphen_values = true
    )]
    system: Option<String>,
    /// Print the prompt before the text
    #[arg(long, conflicts_with_all = ["lines", "n", "best_of", "beams"])]
    echo: bool,
    /// Print one JSON object when all is done
    #[arg(long)]
    json: bool,
    /// Log-probabilities of every token, with the N most likely ones (with --json)
    #[arg(
        long,
        value_name = "N",
        requires = "json",
        value_parser = clap::value_parser!(u16).range(0..=1000),
    )]
    logprobs: Option<u16>,
    #[command(flatten)]
    several: SeveralArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    pictures: PictureArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

impl RunArgs {
    /// Whether nothing was said that could be continued, by a person who can say it now.
    fn opens_chat(&self) -> bool {
        let wants_text = self.text.is_given()
            || self.text.escape
            || self.echo
            || self.json
            || self.pictures.sight.mmproj.is_some()
            || self.several.is_several();
        !wants_text && terminal::stdin_is_terminal() && terminal::stdout_is_terminal()
    }
}

/// Runs the command.
pub(super) fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let mut options = args.generate.options(args.text.escape)?;
    args.compute.kv_type()?;
    options.logprobs = args.logprobs.map(usize::from);
    if args.opens_chat() {
        return chat::open(
            &args.model,
            &args.template,
            &args.compute,
            &args.generate.guess,
            args.system.as_deref(),
            options,
        );
    }
    args.several.check()?;
    let text = args.text.require_beside(args.generate.has_stops())?;
    signal::install()?;
    if args.several.is_several() {
        return several(args, options, &text);
    }
    let seen = args.pictures.look(&args.model, &args.compute)?;
    let engine = load::engine_with_draft(&args.model, &args.compute, &args.generate.guess)?;
    options.chunk = engine.batch();
    let pictures = seen.show(&engine)?;
    let (text, ids) = prepare(args, &engine, text, &pictures)?;
    let mut session = engine.session();
    pictures.iter().for_each(|picture| session.hold(picture));
    let generating = Generating::begin();
    let mut output = Output::new(&generating, !args.json, "reading the prompt");
    if args.echo && !args.json {
        terminal::print(&text)?;
        output.open_line.set(!text.ends_with(b"\n"));
    }
    let result = generate(
        &mut session,
        engine.tokenizer(),
        &ids,
        &options,
        &mut output,
    );
    output.end_line(result.is_ok())?;
    let out = result?;
    drop(generating);
    note_full(
        out.finish,
        session.tokens().len(),
        session.n_ctx(),
        "-c N makes room for more",
    );
    let seed = (!options.sampler.is_greedy()).then_some(options.sampler.seed);
    let metrics = Metrics::new(&out.stats, seed, engine.describe());
    let exit = if out.finish == Finish::Cancelled {
        Exit::Interrupted
    } else {
        Exit::Done
    };
    if args.json {
        let echo = if args.echo {
            String::from_utf8_lossy(&text).into_owned()
        } else {
            String::new()
        };
        let object = report(&out, &echo, &ids, &metrics, engine.tokenizer())?;
        terminal::print(format!("{object}\n").as_bytes())?;
    } else {
        terminal::note(&metrics.line(out.finish));
    }
    Ok(exit)
}

/// Generates several texts, of one prompt or of one for each line.
fn several(args: &RunArgs, options: Options, text: &[u8]) -> Result<Exit, Failure> {
    let mut engine_options = args.compute.options()?;
    engine_options.sessions = args.several.sequences();
    let seen = args.pictures.look(&args.model, &args.compute)?;
    let engine = load::engine_with(&args.model, engine_options)?;
    args.generate.guess.load_draft(&engine, &args.compute)?;
    let pictures = seen.show(&engine)?;
    let several = Several {
        args: &args.several,
        pictures: &pictures,
        options,
        json: args.json,
    };
    let lines: Vec<&[u8]> = match args.several.lines {
        true => lines_of(text),
        false => vec![text],
    };
    let prompts = lines.into_iter();
    let prompts = prompts.map(|line| Ok(prepare(args, &engine, line.to_vec(), &pictures)?.1));
    let generating = Generating::begin();
    lines::generate(&engine, &several, prompts, &generating)
}

/// The lines of a text, without what ends them.
fn lines_of(text: &[u8]) -> Vec<&[u8]> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let end = |line: &'_ [u8]| line.len() - usize::from(line.ends_with(b"\r"));
    text.split(|byte| *byte == b'\n')
        .map(|line| &line[..end(line)])
        .collect()
}

/// The prompt's text, templated if asked for, and its tokens.
fn prepare(
    args: &RunArgs,
    engine: &Engine,
    text: Vec<u8>,
    pictures: &[Shown],
) -> Result<(Vec<u8>, Vec<u32>), Failure> {
    let text = args.pictures.place(text);
    if !args.chat {
        let options = EncodeOptions::PROMPT;
        let ids = vision::tokens(engine.tokenizer(), &text, options, pictures)?;
        return Ok((text, ids));
    }
    let content = String::from_utf8(text).map_err(|e| {
        Failure::Input(format!(
            "--chat: expected a message in UTF-8: {}",
            e.utf8_error()
        ))
    })?;
    let mut messages: Vec<Message> = args
        .system
        .iter()
        .map(|s| Message::new("system", s))
        .collect();
    messages.push(Message::new("user", content));
    let rendered = chat::template(engine, &args.template)?.render(&messages, true)?;
    let ids = match pictures {
        [] => octavo_text::chat::encode(engine.tokenizer(), &rendered)?,
        _ => prompt::tokens(
            engine.tokenizer(),
            rendered.as_bytes(),
            prompt::MARKER,
            pictures,
        )?,
    };
    Ok((rendered.into_bytes(), ids))
}

fn report(
    out: &Generation,
    echo: &str,
    prompt: &[u32],
    metrics: &Metrics,
    tokenizer: &Tokenizer,
) -> Result<Value, serde_json::Error> {
    let mut object = json!({
        "text": format!("{echo}{}", out.text),
        "prompt_tokens": shown_ids(prompt),
        "tokens": out.tokens,
        "finish_reason": out.finish.name(),
    });
    if let Some(detail) = out.finish.detail() {
        object["finish_detail"] = json!(detail);
    }
    if !out.logprobs.is_empty() {
        object["logprobs"] = out
            .logprobs
            .iter()
            .map(|l| logprobs(l, tokenizer))
            .collect();
    }
    object["metrics"] = serde_json::to_value(metrics)?;
    Ok(object)
}

pub(super) fn logprobs(l: &Logprobs, tokenizer: &Tokenizer) -> Value {
    let one = |id: u32, logprob: f64| {
        let piece = piece(tokenizer, id);
        json!({"id": id, "piece": piece, "logprob": logprob})
    };
    let mut object = one(l.id, l.logprob);
    object["top"] = l
        .top
        .iter()
        .map(|&(id, logprob)| one(id, logprob))
        .collect();
    object
}

/// A token's id; -1 for a cell of a picture.
pub(super) fn shown_id(id: u32) -> i32 {
    match is_cell(id) {
        true => -1,
        false => id as i32,
    }
}

/// Ids of tokens as they are shown; see [`shown_id`].
pub(super) fn shown_ids(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| shown_id(*id)).collect()
}

/// A token as text; what is not UTF-8 by itself is shown as U+FFFD.
pub(super) fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    match is_cell(id) {
        true => "<picture>".to_owned(),
        false => String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned(),
    }
}

/// Streams text to stdout and listens to Ctrl-C.
pub(super) struct Output<'a> {
    generating: &'a Generating,
    stream: bool,
    bar: Progress,
    /// The last byte written was not a line feed.
    open_line: Cell<bool>,
}

impl<'a> Output<'a> {
    pub(super) fn new(generating: &'a Generating, stream: bool, what: &'static str) -> Output<'a> {
        Output {
            generating,
            stream,
            bar: Progress::tokens(what),
            open_line: Cell::new(false),
        }
    }

    /// Ends an unfinished line where a person reads it; `ok` is whether the generation went well.
    pub(super) fn end_line(&self, ok: bool) -> io::Result<()> {
        self.bar.clear();
        let person = terminal::stdout_is_terminal();
        if self.stream && self.open_line.take() && person {
            let ended = terminal::print(b"\n");
            // after an error that is what is reported
            return if ok { ended } else { Ok(()) };
        }
        Ok(())
    }

    /// Ends an unfinished line whoever reads it: what comes next is another answer.
    pub(super) fn end_answer(&self) -> io::Result<()> {
        self.bar.clear();
        if self.open_line.take() {
            terminal::print(b"\n")
        } else {
            Ok(())
        }
    }
}

impl Observer for Output<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        // a short prompt is done before a bar could be seen
        if total > 512 {
            self.bar.at(done as u64, total as u64);
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if !self.stream {
            return Ok(());
        }
        self.open_line.set(!text.ends_with('\n'));
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn cancelled(&self) -> bool {
        self.generating.interrupted()
    }
}
