//! `octavo chat`: a conversation that prefills only the tokens that the KV cache does not hold yet.

mod input;

use std::path::Path;

use clap::Args;
use octavo_engine::{Engine, EngineOptions, FinishReason, GenerationParams, ImageHandle, Session};
use octavo_grammar::Reasoning;
use octavo_text::chat::{self, ChatTemplate, Content, Message};
use octavo_vision::EncoderCache;
use octavo_vision::prompt::{private_marker, tokens};

use super::args::{
    AdapterArgs, ComputeArgs, ConstraintArgs, Constraints, GenerateArgs, ModelArgs,
    SpeculativeArgs, SystemArgs, TemplateArgs,
};
use super::failure::{Exit, Failure};
use super::metrics::{Metrics, note_discarded, note_full};
use super::prompt;
use super::ranks::NumaArgs;
use super::reply::{self, Reply};
use super::signal::{self, Generating};
use super::vision::{self, MmprojArgs};
use super::wording::one_line;
use super::{load, terminal};
use input::{Input, Line};

const COMMANDS: &str = "\
/reset  forget the conversation
/stats  speeds and memory of the last answer, and how full the context is
/image FILE  send an image with the next message (with --mmproj)
/exit   leave (also: Ctrl-D)
/help   this list
Ctrl-C ends an answer that is under way; it stays part of the conversation.";

/// Talk with a model, turn by turn
///
/// Applies the model's own chat template and reuses the KV cache of earlier turns. The model's
/// reasoning is dimmed on a terminal and left out elsewhere. If stdin is not a terminal, every line
/// is a message.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo chat model.gguf
  octavo chat model.gguf --system \"Answer in one sentence.\" --temp 0.7
  octavo chat model.gguf --mmproj mmproj.gguf
  printf 'Hi!\\nAnd again?\\n' | octavo chat model.gguf

Commands: /image FILE sends an image, /reset forgets the conversation, /stats shows speeds and
memory, /help lists all, /exit leaves.")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    system: SystemArgs,
    /// Process the escapes \n, \r, \t, \", \', \\ and \xHH in --stop
    #[arg(short, long, requires = "stop")]
    escape: bool,
    /// Do not read or write the history file
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    constraint: ConstraintArgs,
    #[command(flatten)]
    mmproj: MmprojArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

/// Returns the chat template of the options, or the model's own.
pub(super) fn template(engine: &Engine, args: &TemplateArgs) -> Result<ChatTemplate, Failure> {
    args.load(engine)?.ok_or_else(|| {
        Failure::Input(format!(
            "{}: key tokenizer.chat_template: expected a chat template, got none (octavo run \
             continues plain text)",
            engine.gguf().name()
        ))
    })
}

/// Runs the command.
pub(super) fn run(args: &ChatArgs) -> Result<Exit, Failure> {
    let mut options = args.generate.options(args.escape)?;
    let rule = args.constraint.read()?;
    let system = args.system.read()?;
    args.template.check()?;
    args.mmproj.check()?;
    // in this order: the line editor installs its own Ctrl-C handler when it is created
    let input = Input::new(args.no_history)?;
    signal::install()?;
    let tower = args.mmproj.path(&args.model)?;
    let (speculative, tower) = (&args.generate.speculative, tower.as_deref());
    speculative.check()?;
    let mut options_of_engine = args.compute.options()?;
    args.adapters.apply(&mut options_of_engine)?;
    let engine = load::engine_with_draft(&args.model, options_of_engine, speculative, tower)?;
    options.sampler = args.generate.sampler_for(&engine)?;
    let template = template(&engine, &args.template)?;
    let encoder_cache = args.mmproj.load(&args.model, &engine, &args.compute)?;
    let constraints = Constraints::new(&engine, rule, args.template.reasoning_budget());
    let talk = Conversation {
        encoder_cache: encoder_cache.as_ref(),
        ..Conversation::new(&engine, &template, system.as_deref(), options, constraints)
    };
    converse(talk, input)
}

/// Opens a conversation for a command without a text, on a terminal.
pub(super) fn open(
    model: &ModelArgs,
    template: &TemplateArgs,
    engine_options: EngineOptions,
    speculative: &SpeculativeArgs,
    system: Option<&str>,
    options: GenerationParams,
) -> Result<Exit, Failure> {
    let input = Input::new(false)?;
    let budget = template.reasoning_budget();
    signal::install()?;
    let engine = load::engine_with_draft(model, engine_options, speculative, None)?;
    let Some(template) = template.load(&engine)? else {
        return Err(Failure::Usage(format!(
            "{}, and this model has no chat template to talk with it",
            prompt::NO_TEXT
        )));
    };
    converse(
        Conversation::new(
            &engine,
            &template,
            system,
            options,
            Constraints::new(&engine, None, budget),
        ),
        input,
    )
}

/// Answers messages until the input ends.
fn converse(mut talk: Conversation<'_>, mut input: Input) -> Result<Exit, Failure> {
    if input.is_terminal() {
        terminal::tell("/help lists the commands; Ctrl-D leaves.");
    }
    loop {
        let line = match input.line()? {
            Line::Text(line) => line,
            Line::End => return Ok(Exit::Done),
            Line::Interrupt => return Ok(Exit::Interrupted),
        };
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => return Ok(Exit::Done),
            "/help" => COMMANDS.lines().for_each(terminal::tell),
            "/reset" => talk.reset(),
            "/stats" => talk.stats(),
            other if other.starts_with("/image ") => {
                let path = Path::new(other["/image ".len()..].trim());
                match talk.look(path) {
                    Err(failure) if input.is_terminal() => {
                        terminal::tell(&format!("octavo: error: {}", one_line(&failure.message())))
                    }
                    looked => looked?,
                }
            }
            other if other.starts_with('/') && !other.contains(' ') => {
                terminal::tell(&format!("{other} is not a command: /help lists them"));
            }
            _ => match talk.turn(&line) {
                Ok(FinishReason::Cancelled) if !input.is_terminal() => {
                    return Ok(Exit::Interrupted);
                }
                Ok(_) => {}
                // a person can continue after a message that does not fit; a script cannot notice
                // it
                Err(Failure::Input(text) | Failure::Machine(text)) if input.is_terminal() => {
                    terminal::tell(&format!(
                        "octavo: error: {} (/reset starts over)",
                        one_line(&text)
                    ));
                }
                Err(failure) => return Err(failure),
            },
        }
    }
}

struct Conversation<'e> {
    engine: &'e Engine,
    template: &'e ChatTemplate,
    session: Session,
    system: Vec<Message>,
    messages: Vec<Message>,
    options: GenerationParams,
    last: Option<String>,
    constraints: Constraints,
    encoder_cache: Option<&'e EncoderCache>,
    /// Marker that stands for images in messages.
    marker: String,
    /// The images of all messages, in order.
    images: Vec<ImageHandle>,
    /// The images of the next message.
    next: Vec<ImageHandle>,
}

impl<'e> Conversation<'e> {
    fn new(
        engine: &'e Engine,
        template: &'e ChatTemplate,
        system: Option<&str>,
        options: GenerationParams,
        constraints: Constraints,
    ) -> Conversation<'e> {
        let system: Vec<Message> = system
            .into_iter()
            .map(|s| Message::new("system", s))
            .collect();
        Conversation {
            engine,
            template,
            session: engine.session(),
            messages: system.clone(),
            system,
            options,
            last: None,
            constraints,
            encoder_cache: None,
            marker: private_marker(),
            images: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Adds an image to the next message.
    fn look(&mut self, path: &Path) -> Result<(), Failure> {
        let Some(encoder_cache) = self.encoder_cache else {
            return Err(Failure::Input(
                "this model sees nothing: expected --mmproj FILE, its vision tower".to_owned(),
            ));
        };
        let shown = vision::register(encoder_cache, path)?;
        let image = shown.image();
        terminal::tell(&format!(
            "{}: {} x {} image tokens, sent with the next message.",
            path.display(),
            image.nx,
            image.ny
        ));
        self.session.hold(&shown);
        self.next.push(shown);
        Ok(())
    }

    fn reset(&mut self) {
        self.messages.clone_from(&self.system);
        if !(self.images.is_empty() && self.next.is_empty()) {
            // the session holds the images
            self.session = self.engine.session();
            self.images.clear();
            self.next.clear();
        }
        self.last = None;
        terminal::tell("The conversation is forgotten.");
    }

    fn stats(&self) {
        terminal::tell(
            self.last
                .as_deref()
                .unwrap_or("Nothing has been generated yet."),
        );
        let turns = self.messages.iter().filter(|m| m.role == "user").count();
        let (used, n_ctx) = (self.session.tokens().len(), self.session.n_ctx());
        terminal::tell(&format!(
            "{turns} turns | context {used} of {n_ctx} tokens | {}",
            self.engine.describe()
        ));
    }

    /// Answers one message; removes it from the conversation if that fails.
    fn turn(&mut self, text: &str) -> Result<FinishReason, Failure> {
        let places = self.marker.repeat(self.next.len());
        self.messages
            .push(Message::new("user", format!("{places}{text}")));
        let n_new = self.next.len();
        self.images.append(&mut self.next);
        let answer = self.answer();
        if answer.is_err() {
            self.messages.pop();
            self.images.truncate(self.images.len() - n_new);
        }
        answer
    }

    /// Renders the conversation and tokenizes it.
    fn render(&self) -> Result<(String, Vec<u32>), Failure> {
        let rendered = self.template.render(&self.messages, true)?;
        let tokenizer = self.engine.tokenizer();
        let ids = match &self.images[..] {
            [] => chat::encode(tokenizer, &rendered)?,
            all => tokens(tokenizer, rendered.as_bytes(), &self.marker, all)?,
        };
        Ok((rendered, ids))
    }

    /// Renders the conversation. If context shifts are wanted and no quarter of the context is left
    /// for the answer, the oldest turns are dropped until half of it is.
    fn fitting(&mut self) -> Result<(String, Vec<u32>), Failure> {
        let n_ctx = self.session.n_ctx();
        let (mut most, mut dropped) = (n_ctx - n_ctx / 4, 0);
        loop {
            let (rendered, ids) = self.render()?;
            let may_drop = self.options.context_shift.is_some() && ids.len() > most;
            if !may_drop || !self.drop_oldest_turn() {
                if dropped > 0 {
                    let s = if dropped == 1 { "" } else { "s" };
                    terminal::note(&format!(
                        "octavo: context full: {dropped} turn{s} dropped from the beginning"
                    ));
                }
                return Ok((rendered, ids));
            }
            (most, dropped) = (n_ctx / 2, dropped + 1);
        }
    }

    /// Drops the first message after the system's, and all before the next one of the user; returns
    /// false if that is the message to answer.
    fn drop_oldest_turn(&mut self) -> bool {
        let first = self.system.len();
        let mut later = (first + 1)..self.messages.len();
        let Some(end) = later.find(|at| self.messages[*at].role == "user") else {
            return false;
        };
        let dropped = self.messages.drain(first..end);
        let n_images: usize = dropped
            .map(|message| match &message.content {
                Content::Text(text) => text.matches(&self.marker).count(),
                Content::None | Content::Parts(_) => 0,
            })
            .sum();
        self.images.drain(..n_images);
        true
    }

    fn answer(&mut self) -> Result<FinishReason, Failure> {
        let (rendered, ids) = self.fitting()?;
        let tokenizer = self.engine.tokenizer();
        let reasoning = Reasoning::of(self.template.source(), &rendered);
        let constraint = self.constraints.make(reasoning)?;
        let parser = reply::parser(self.template.source(), &rendered);
        self.options.show_special = parser.has_control_words(tokenizer);
        let generating = Generating::begin();
        let mut reply = Reply::new(&generating, true, Some(parser));
        let result = self
            .session
            .generate(&ids, &self.options, constraint, &mut reply);
        let out = match result {
            Ok(out) => out,
            Err(error) => {
                reply.end()?;
                reply.output.end_line(false)?;
                return Err(error.into());
            }
        };
        let message = reply.end()?.into_message();
        reply.output.end_answer()?;
        note_discarded(&out.timing);
        note_full(
            out.finish,
            self.session.tokens().len(),
            self.session.n_ctx(),
            "/reset starts over, -c N makes room for more, --context-shift drops what is old",
        );
        let seed = (!self.options.sampler.is_greedy()).then_some(self.options.sampler.seed);
        self.last = Some(Metrics::new(&out.timing, seed, self.engine.describe()).line(out.finish));
        self.messages.push(message);
        // a new seed for every turn: the same one would choose alike at the same place of each
        // answer
        self.options.sampler.seed = self.options.sampler.seed.wrapping_add(1);
        Ok(out.finish)
    }
}
