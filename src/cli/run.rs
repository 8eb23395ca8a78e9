//! `octavo run`: continues a text.

mod prepared;

use clap::Args;
use octavo_engine::{FinishReason, GenerationParams};

use super::answer::Answer;
use super::args::{
    AdapterArgs, ComputeArgs, ConstraintArgs, GenerateArgs, ModelArgs, RuleArg, SystemArgs,
    TemplateArgs,
};
use super::failure::{Exit, Failure};
use super::feed::Feed;
use super::lines::{self, Several, SeveralArgs};
use super::metrics::{Metrics, note_discarded, note_full};
use super::prompt::TextArgs;
use super::ranks::NumaArgs;
use super::reply::Reply;
use super::signal::{self, Generating};
use super::terminal;
use super::vision::ImageArgs;
use super::{chat, load};
use prepared::Prompts;

/// Continue a text (or answer one message, with --chat)
///
/// Without a text, on a terminal, it opens a chat as octavo chat does.
///
/// Only the text goes to stdout, as it is generated; a last line with speeds and memory goes to
/// stderr. With --chat, the model's reasoning is dimmed on a terminal and left out elsewhere;
/// --special prints the answer as it is.
#[derive(Debug, Args)]
#[command(mut_arg("chat_template", |a| a.requires("chat")))]
#[command(mut_arg("chat_template_kwargs", |a| a.requires("chat")))]
#[command(mut_arg("reasoning_budget", |a| a.requires("chat")))]
#[command(mut_arg("reasoning", |a| a.requires("chat")))]
#[command(mut_arg("escape", |a| a.help(
    "Process the escapes \\n, \\r, \\t, \\\", \\', \\\\ and \\xHH in TEXT and --stop",
)))]
#[command(after_help = "\
Examples:
  octavo run -p \"1+1=\"
  octavo run model.gguf -p \"Once upon a time\" -n 64 --temp 0.8 --seed 1
  octavo run model.gguf --chat --system \"Be brief.\" -p \"What is the capital of France?\"
  octavo run model.gguf -f prompt.txt -e --stop \"\\n\\n\" --json
  cat prompt.txt | octavo run model.gguf
  octavo run model.gguf -f prompts.txt --lines -n 32 > answers.jsonl
  octavo run model.gguf -p \"Once upon a time\" -n 32 --beams 4 --n 2 --json
  octavo run model.gguf --chat -p \"Name a colour.\" --grammar 'root ::= \"red\" | \"blue\"'
  octavo run model.gguf --mmproj mmproj.gguf --image photo.jpg --chat -p \"What is this?\"

--json prints an object for each text, and so does --lines, which answers lines as they come:
  {version, line, choice, text, reasoning?, prompt_tokens: ids, tokens: ids, finish_reason: \
stop|length|cancelled, finish_detail?, logprobs?, metrics}
finish_detail says which limit a length is: max_tokens (-n) or context_full (-c).
`tokens` has every sampled token, the one that ended the text included; `text` ends before it.
docs/json.md has every field.
Ctrl-C ends the generation; the text so far stays printed, and the exit code is 130.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Treat the text as a user's message: apply the model's chat template
    #[arg(long)]
    chat: bool,
    #[command(flatten)]
    system: SystemArgs,
    /// Print the prompt before the text
    #[arg(long, conflicts_with_all = ["lines", "n", "best_of", "beams"])]
    echo: bool,
    /// Print a JSON object for each text when it is done
    #[arg(long)]
    json: bool,
    /// Report the log-probability of every token and of the N most likely ones (with --json)
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
    constraint: ConstraintArgs,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

impl RunArgs {
    /// Refuses wrong options before a model is loaded.
    fn check(&self) -> Result<(), Failure> {
        if let Some(name) = self.system.option().filter(|_| !self.chat) {
            let what = format!("{name} has no effect: expected --chat with it");
            return Err(Failure::Usage(what));
        }
        self.generate.speculative.check()?;
        self.template.check()?;
        self.images.check(&self.model)?;
        self.system.check()
    }

    /// Returns whether to open a chat: there is nothing to continue, and a person at the terminal.
    fn opens_chat(&self) -> bool {
        let wants_text = self.text.is_set()
            || self.text.escape
            || self.echo
            || self.json
            || self.constraint.is_set()
            || self.images.mmproj.mmproj.is_some()
            || self.several.is_several();
        !wants_text && terminal::stdin_is_terminal() && terminal::stdout_is_terminal()
    }
}

/// Runs the command.
pub(super) fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let mut options = args.generate.options(args.text.escape)?;
    options.logprobs = args.logprobs.map(usize::from);
    args.check()?;
    if args.opens_chat() {
        let mut engine_options = args.compute.options()?;
        args.adapters.apply(&mut engine_options)?;
        return chat::open(
            &args.model,
            &args.template,
            engine_options,
            &args.generate.speculative,
            args.system.read()?.as_deref(),
            options,
        );
    }
    args.several.check()?;
    let rule = args.constraint.read()?;
    let beside = args.generate.has_stops();
    if args.several.is_several() {
        return several(args, options, rule, beside);
    }
    let text = args.text.require_beside(beside)?;
    one(args, options, rule, text)
}

/// Generates one text.
fn one(
    args: &RunArgs,
    mut options: GenerationParams,
    rule: Option<RuleArg>,
    text: Vec<u8>,
) -> Result<Exit, Failure> {
    signal::install()?;
    let encoded = args.images.encode(&args.model, &args.compute)?;
    let speculative = &args.generate.speculative;
    let mut engine_options = args.compute.options()?;
    args.adapters.apply(&mut engine_options)?;
    let engine = load::engine_with_draft(&args.model, engine_options, speculative, None)?;
    let images = encoded.register(&engine)?;
    let prompts = Prompts::new(args, &engine, &images, rule)?;
    options.show_special |= prompts.shows_special();
    let prompt = prompts.of(text)?;
    let mut session = engine.session();
    images.iter().for_each(|image| session.hold(image));
    let generating = Generating::begin();
    let mut reply = Reply::new(&generating, !args.json, prompt.parser);
    if args.echo && !args.json {
        terminal::print(&prompt.text)?;
        reply.output.open_line.set(!prompt.text.ends_with(b"\n"));
    }
    let result = session.generate(&prompt.ids, &options, prompt.constraint, &mut reply);
    let parts = reply.end()?;
    reply.output.end_line(result.is_ok())?;
    let out = result?;
    drop(generating);
    note_discarded(&out.timing);
    note_full(
        out.finish,
        session.tokens().len(),
        session.n_ctx(),
        "-c N makes room for more, --context-shift drops what is oldest",
    );
    let seed = (!options.sampler.is_greedy()).then_some(options.sampler.seed);
    let metrics = Metrics::new(&out.timing, seed, engine.describe());
    if args.json {
        let echo = match args.echo {
            true => String::from_utf8_lossy(&prompt.text),
            false => "".into(),
        };
        let object = Answer {
            line: 0,
            choice: 0,
            text: &format!("{echo}{}", parts.content),
            reasoning: parts.thought(),
            prompt: &prompt.ids,
            tokens: &out.tokens,
            finish: out.finish,
            logprobs: options.logprobs.map(|_| &out.logprobs[..]),
            metrics: &metrics,
        };
        let object = object.to_json(engine.tokenizer())?;
        terminal::print(format!("{object}\n").as_bytes())?;
    } else {
        terminal::note(&metrics.line(out.finish));
    }
    Ok(match out.finish {
        FinishReason::Cancelled => Exit::Interrupted,
        _ => Exit::Done,
    })
}

/// Generates several texts, of one prompt or of one prompt per line; `beside` says that there are
/// stop strings for -e to process.
fn several(
    args: &RunArgs,
    mut options: GenerationParams,
    rule: Option<RuleArg>,
    beside: bool,
) -> Result<Exit, Failure> {
    let mut feed = match args.several.lines {
        true => Feed::lines(&args.text, beside)?,
        false => Feed::of(args.text.require_beside(beside)?),
    };
    signal::install()?;
    let mut engine_options = args.compute.options()?;
    engine_options.sessions = args.several.sequences();
    args.adapters.apply(&mut engine_options)?;
    let encoded = args.images.encode(&args.model, &args.compute)?;
    let speculative = &args.generate.speculative;
    let engine = load::engine_with_draft(&args.model, engine_options, speculative, None)?;
    let images = encoded.register(&engine)?;
    let prompts = Prompts::new(args, &engine, &images, rule)?;
    options.show_special |= prompts.shows_special();
    let several = Several {
        args: &args.several,
        images: &images,
        options,
        json: args.json,
    };
    let prompt = |text: Vec<u8>| prompts.of(text);
    let generating = Generating::begin();
    lines::generate(&engine, &several, &mut feed, &prompt, &generating)
}
