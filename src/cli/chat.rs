//! `octavo chat`: turns with a model, each reading only what the cache does not hold yet.

mod input;

use std::io;
use std::path::Path;

use clap::Args;
use octavo_engine::generate::Observer;
use octavo_engine::generate::{Finish, Options, generate};
use octavo_engine::{Engine, Session, Shown};
use octavo_text::chat::answer::{AnswerParser, Piece, Wants};
use octavo_text::chat::{self, ChatTemplate, Message};
use octavo_vision::Sight;
use octavo_vision::prompt::{private_marker, tokens};

use super::args::{ComputeArgs, GenerateArgs, GuessArgs, ModelArgs, TemplateArgs};
use super::failure::{Exit, Failure};
use super::metrics::{Metrics, note_full};
use super::prompt;
use super::ranks::NumaArgs;
use super::run::Output;
use super::signal::{self, Generating};
use super::vision::{self, SightArgs};
use super::{load, terminal};
use input::{Input, Line};

const COMMANDS: &str = "\
/reset  forget the conversation
/stats  speeds and memory of the last answer, and how full the context is
/image FILE  show a picture with the next message (with --mmproj)
/exit   leave (also: Ctrl-D)
/help   this list
Ctrl-C ends an answer that is under way; it stays part of the conversation.";

/// Talk with a model, turn by turn
///
/// The model's own chat template is applied; the cache of earlier turns is reused. What the model
/// thinks before it answers is dimmed on a terminal, and left out elsewhere. Where stdin is no
/// terminal, every line is a message.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo chat model.gguf
  octavo chat model.gguf --system \"Answer in one sentence.\" --temp 0.7
  octavo chat model.gguf --mmproj mmproj.gguf
  printf 'Hi!\\nAnd again?\\n' | octavo chat model.gguf

Commands: /image FILE shows a picture, /reset forgets the conversation, /stats shows speeds and
memory, /help lists all, /exit leaves.")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// System message (also: -sys TEXT)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Turn \n, \r, \t, \", \', \\ and \xHH in --stop into what they stand for
    #[arg(short, long, requires = "stop")]
    escape: bool,
    /// Do not read or write the file of earlier lines
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    sight: SightArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

/// The model's chat template, or the one that was named.
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
    args.compute.kv_type()?;
    // in this order: the line editor takes Ctrl-C for itself when it is made, and would keep it
    let input = Input::new(args.no_history)?;
    signal::install()?;
    let engine = load::engine_with_draft(&args.model, &args.compute, &args.generate.guess)?;
    options.sampler = args.generate.sampler_for(&engine)?;
    let template = template(&engine, &args.template)?;
    let sight = args.sight.load(&engine, &args.compute)?;
    let talk = Conversation::new(&engine, &template, args.system.as_deref(), options);
    converse(talk.seeing(sight.as_ref()), input)
}

/// Opens a conversation where a command was given no text, and people are there to give it one.
pub(super) fn open(
    model: &ModelArgs,
    template: &TemplateArgs,
    compute: &ComputeArgs,
    guess: &GuessArgs,
    system: Option<&str>,
    options: Options,
) -> Result<Exit, Failure> {
    let input = Input::new(false)?;
    signal::install()?;
    let engine = load::engine_with_draft(model, compute, guess)?;
    let Some(template) = template.load(&engine)? else {
        return Err(Failure::Usage(format!(
            "{}, and this model has no chat template to talk with it",
            prompt::NO_TEXT
        )));
    };
    converse(
        Conversation::new(&engine, &template, system, options),
        input,
    )
}

/// Takes turns until the input ends.
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
                    Err(failure) if input.is_terminal() => terminal::tell(&format!(
                        "octavo: error: {}",
                        super::failure::one_line(&failure.message())
                    )),
                    looked => looked?,
                }
            }
            other if other.starts_with('/') && !other.contains(' ') => {
                terminal::tell(&format!("{other} is not a command: /help lists them"));
            }
            _ => match talk.turn(&line) {
                Ok(Finish::Cancelled) if !input.is_terminal() => return Ok(Exit::Interrupted),
                Ok(_) => {}
                // a person can go on after a message that does not fit; a script cannot know
                Err(Failure::Input(text) | Failure::Machine(text)) if input.is_terminal() => {
                    terminal::tell(&format!(
                        "octavo: error: {} (/reset starts over)",
                        super::failure::one_line(&text)
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
    options: Options,
    last: Option<String>,
    sight: Option<&'e Sight>,
    /// What stands for pictures in messages.
    marker: String,
    /// The pictures of all messages, in order.
    pictures: Vec<Shown>,
    /// Those of the next message.
    next: Vec<Shown>,
}

impl<'e> Conversation<'e> {
    fn new(
        engine: &'e Engine,
        template: &'e ChatTemplate,
        system: Option<&str>,
        mut options: Options,
    ) -> Conversation<'e> {
        options.chunk = engine.batch();
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
            sight: None,
            marker: private_marker(),
            pictures: Vec::new(),
            next: Vec::new(),
        }
    }

    /// With a tower for pictures.
    fn seeing(self, sight: Option<&'e Sight>) -> Conversation<'e> {
        Conversation { sight, ..self }
    }

    /// Shows a picture with the next message.
    fn look(&mut self, path: &Path) -> Result<(), Failure> {
        let Some(sight) = self.sight else {
            return Err(Failure::Input(
                "this model sees nothing: expected --mmproj FILE, its vision tower".to_owned(),
            ));
        };
        let shown = vision::see(sight, path)?;
        let picture = shown.picture();
        terminal::tell(&format!(
            "{}: {} x {} cells, shown with the next message.",
            path.display(),
            picture.nx,
            picture.ny
        ));
        self.session.hold(&shown);
        self.next.push(shown);
        Ok(())
    }

    fn reset(&mut self) {
        self.messages.clone_from(&self.system);
        if !(self.pictures.is_empty() && self.next.is_empty()) {
            // it holds them
            self.session = self.engine.session();
            self.pictures.clear();
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

    /// Answers one message. A message that cannot be answered is taken back.
    fn turn(&mut self, text: &str) -> Result<Finish, Failure> {
        let places = self.marker.repeat(self.next.len());
        self.messages
            .push(Message::new("user", format!("{places}{text}")));
        let before = self.pictures.len();
        self.pictures.append(&mut self.next);
        let answer = self.answer();
        if answer.is_err() {
            self.messages.pop();
            self.pictures.truncate(before);
        }
        answer
    }

    fn answer(&mut self) -> Result<Finish, Failure> {
        let rendered = self.template.render(&self.messages, true)?;
        let tokenizer = self.engine.tokenizer();
        let ids = match &self.pictures[..] {
            [] => chat::encode(tokenizer, &rendered)?,
            all => tokens(tokenizer, rendered.as_bytes(), &self.marker, all)?,
        };
        let generating = Generating::begin();
        let mut answer = Answer::new(&generating, self.template.source(), &rendered);
        self.options.show_special = answer.parser.has_control_words(tokenizer);
        let result = generate(
            &mut self.session,
            self.engine.tokenizer(),
            &ids,
            &self.options,
            &mut answer,
        );
        let out = match result {
            Ok(out) => out,
            Err(error) => {
                answer.dim(false)?;
                answer.output.end_line(false)?;
                return Err(error.into());
            }
        };
        let message = answer.end()?;
        note_full(
            out.finish,
            self.session.tokens().len(),
            self.session.n_ctx(),
            "/reset starts over, and -c N makes room for more",
        );
        let seed = (!self.options.sampler.is_greedy()).then_some(self.options.sampler.seed);
        self.last = Some(Metrics::new(&out.stats, seed, self.engine.describe()).line(out.finish));
        self.messages.push(message);
        // every turn draws anew: the same seed would choose alike in the same place of each answer
        self.options.sampler.seed = self.options.sampler.seed.wrapping_add(1);
        Ok(out.finish)
    }
}

/// An answer as it arrives: what is said, and what is thought before it.
struct Answer<'a> {
    output: Output<'a>,
    parser: AnswerParser,
    said: String,
    thought: String,
    /// Thoughts are being shown.
    dims: bool,
}

/// What a terminal shows dimmed, and not any more.
const DIM: [&str; 2] = ["\x1b[2m", "\x1b[22m"];

impl<'a> Answer<'a> {
    fn new(generating: &'a Generating, template: &str, rendered: &str) -> Answer<'a> {
        let wants = Wants {
            tools: false,
            reasoning: true,
        };
        Answer {
            output: Output::new(generating, true, "reading"),
            parser: AnswerParser::new(template, rendered, wants),
            said: String::new(),
            thought: String::new(),
            dims: false,
        }
    }

    fn show(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        for piece in pieces {
            match piece {
                Piece::Content(text) => {
                    self.dim(false)?;
                    self.said.push_str(&text);
                    self.output.text(&text)?;
                }
                Piece::Reasoning(text) => {
                    if terminal::stdout_is_terminal() {
                        self.dim(true)?;
                        self.output.text(&text)?;
                    }
                    self.thought.push_str(&text);
                }
                // none are asked for
                Piece::CallBegins { .. } | Piece::CallArguments { .. } => {}
            }
        }
        Ok(())
    }

    /// Begins or ends what a terminal shows as thoughts.
    fn dim(&mut self, dims: bool) -> io::Result<()> {
        if self.dims == dims {
            return Ok(());
        }
        self.dims = dims;
        match dims {
            true => self.output.text(DIM[0]),
            false => self.output.text(&format!("{}\n\n", DIM[1])),
        }
    }

    /// The whole of it, as a message of the conversation.
    fn end(mut self) -> io::Result<Message> {
        let rest = self.parser.finish();
        self.show(rest)?;
        if self.dims {
            self.output.text(DIM[1])?;
        }
        self.output.end_answer()?;
        let thought = Some(self.thought).filter(|thought| !thought.is_empty());
        Ok(Message {
            reasoning_content: thought,
            ..Message::new("assistant", self.said)
        })
    }
}

impl Observer for Answer<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        self.output.prompt(done, total);
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let pieces = self.parser.push(text);
        self.show(pieces)
    }

    fn cancelled(&self) -> bool {
        self.output.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_no_part_of_what_is_said() {
        let harmony = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
        for (template, text) in [
            ("<think> </think>", "<think>\nhm\n</think>\n\nYes."),
            (
                "<|channel|>analysis<|message|> <|end|> <|channel|>commentary",
                &format!("{harmony}<|channel|>final<|message|>Yes."),
            ),
        ] {
            let generating = Generating::begin();
            let mut answer = Answer::new(&generating, template, "");
            for (at, c) in text.char_indices() {
                answer
                    .text(&text[at..at + c.len_utf8()])
                    .expect("it is shown");
            }
            let message = answer.end().expect("it is shown");
            assert_eq!(
                message.reasoning_content.as_deref(),
                Some("hm"),
                "{template}"
            );
            let said = Message::new("assistant", "Yes.").content;
            assert_eq!(message.content, said, "{template}");
        }
    }
}
