//! Chat templates: the Jinja template of a model file, rendered as in Hugging Face's transformers,
//! within resource limits.
//!
//! Templates are untrusted. Before one is compiled it is parsed and rewritten (`rewrite`), so that
//! every operation with a potentially large result is first charged to a budget (`guard`); the
//! number of instructions is limited too, and rendering runs on a separate thread with a known
//! stack size.

mod adapt;
pub mod answer;
mod builtin;
mod context;
mod continued;
mod guard;
mod json;
mod message;
mod rewrite;
mod scan;
mod shape;
mod variants;

use std::io::Write;
use std::sync::Arc;

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::tokenizer::{EncodeOptions, Tokenizer};
use context::Unfit;
pub use continued::{Continued, ContinuedPart};
use guard::Budget;
pub use message::{Content, Conversation, Message, ToolCall, thinking};
use shape::{Shape, Shapes};

/// Longest template accepted, in bytes. The longest known ones have some 30 KiB.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// Stack of a rendering thread. Nesting limits leave it many times too large.
const STACK_BYTES: usize = 32 << 20;

/// Instructions that a template may execute, plus more for each message and each value in the JSON
/// of a conversation.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;
const FUEL_PER_VALUE: u64 = 200;

/// Largest output in bytes, beyond the size of the messages.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// Deepest recursion of macros and the like.
const RECURSION_LIMIT: usize = 200;

/// Errors of a chat template. Every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// The template is too long.
    #[error("{file}: the chat template has {got} bytes, expected at most {limit}")]
    TooLong {
        /// Name of the model file.
        file: String,
        /// Length in bytes.
        got: usize,
        /// Longest length accepted.
        limit: usize,
    },
    /// The template has a syntax error, or uses features that chat templates do not need.
    #[error("{file}: chat template: {what}")]
    Template {
        /// Name of the model file.
        file: String,
        /// Description of the error, with the line.
        what: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("{file}: the chat template refuses this conversation: {message}")]
    Refused {
        /// Name of the model file.
        file: String,
        /// Message of the template.
        message: String,
    },
    /// The template exceeded its limit of time, memory or output.
    #[error("{file}: chat template: {limit}")]
    Limit {
        /// Name of the model file.
        file: String,
        /// Limit exceeded.
        limit: &'static str,
    },
    /// A variable has the name of a built-in template variable.
    #[error("{file}: the chat template's variable {name} cannot be set")]
    Reserved {
        /// Name of the model file.
        file: String,
        /// Name of the variable.
        name: String,
    },
    /// The template supports text parts only.
    #[error("{file}: the chat template takes text alone, found a part of type {kind}")]
    Part {
        /// Name of the model file.
        file: String,
        /// Type of the part.
        kind: String,
    },
    /// No thread could be started.
    #[error("cannot start a thread for the chat template: {source}")]
    Thread {
        /// The system's error.
        source: std::io::Error,
    },
}

/// Tokenizes a rendered conversation, parsing control tokens. Most templates write the BOS token
/// themselves; if the model asks for one, it is added only if missing.
///
/// # Errors
/// If the text cannot be encoded.
pub fn encode(tokenizer: &Tokenizer, rendered: &str) -> Result<Vec<u32>, crate::tokenizer::Error> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let mut ids = tokenizer.encode(rendered.as_bytes(), options)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    if let Some(bos) = bos.filter(|bos| ids.first() != Some(bos)) {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// A chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    file: String,
    source: String,
    /// Template with its operations guarded: the source that is compiled.
    guarded: Arc<str>,
    bos_token: String,
    eos_token: String,
    shapes: Arc<Shapes>,
    /// Separate template for conversations with tools, if the file has one.
    tool_use: Option<Arc<ChatTemplate>>,
    /// Default variables. Reasoning is enabled by default, as in llama-server.
    variables: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template from its source. `file` names it in messages.
    pub fn new(
        file: &str,
        source: &str,
        bos_token: String,
        eos_token: String,
    ) -> Result<ChatTemplate, Error> {
        let (file, limit) = (file.to_owned(), MAX_TEMPLATE_BYTES);
        if source.len() > limit {
            return Err(Error::TooLong {
                file,
                got: source.len(),
                limit,
            });
        }
        let text = source.to_owned();
        let guarded = on_thread(move || {
            let guarded = rewrite::rewrite(&text)?;
            // Report a template that does not compile now, not at the first message.
            Environment::new().template_from_named_str(rewrite::NAME, &guarded)?;
            Ok(guarded)
        })?;
        match guarded {
            Ok(guarded) => Ok(ChatTemplate {
                file,
                source: source.to_owned(),
                guarded: guarded.into(),
                bos_token,
                eos_token,
                shapes: Arc::default(),
                tool_use: None,
                variables: Map::from_iter([("enable_thinking".to_owned(), Value::Bool(true))]),
            }),
            Err(error) => Err(Error::Template {
                file,
                what: one_line(&error),
            }),
        }
    }

    /// Returns the template's source as in the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the prompt for messages. With `add_generation_prompt` it ends where the assistant's
    /// answer begins.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_conversation`].
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        self.render_conversation(&Conversation {
            messages: messages.to_vec(),
            add_generation_prompt,
            ..Conversation::default()
        })
    }

    /// Renders the prompt for a conversation, with its tools and variables.
    ///
    /// Templates expect data in different shapes; the shape is detected by rendering a few small
    /// conversations, once. Arguments of calls are given as objects, or as text to templates that
    /// print them directly. Absent content next to calls is `none` or empty, whichever the template
    /// supports. Content parts stay a list, or are joined by line breaks for templates that expect
    /// text, and text becomes a part for templates that expect a list. `reasoning_content` gets the
    /// template's name for it, or becomes a part of the content. Anything the template does not
    /// support (a system message, tools, calls, tool results) is written into other messages, and
    /// so are tools that it fails to describe.
    ///
    /// # Errors
    /// [`Error::Refused`] if the template raises an exception, [`Error::Template`] if it fails
    /// otherwise, [`Error::Limit`] if it exceeds a limit, or if JSON is nested too deeply,
    /// [`Error::Reserved`] if a variable cannot be set, and [`Error::Part`] if a non-text part
    /// would have to become text.
    pub fn render_conversation(&self, conversation: &Conversation) -> Result<String, Error> {
        let template = self.variant(!conversation.tools.is_empty());
        context::measure(conversation).map_err(|unfit| template.unfit(unfit))?;
        let adapted = template.adapt(conversation);
        let conversation = adapted.as_ref().unwrap_or(conversation);
        let mut shape = template.shape(conversation);
        let rendered = template.render_as(conversation, &shape);
        if !matches!(rendered, Err(Error::Template { .. })) {
            return rendered;
        }
        if conversation.tools.is_empty() {
            // a template that iterates over the tools even if there are none
            shape.no_tools_undefined = true;
            return template.render_as(conversation, &shape).or(rendered);
        }
        // a template that cannot describe these tools, such as parameters of several types
        match template.adapt_with(conversation, true) {
            Some(adapted) => template.render_conversation(&adapted).or(rendered),
            None => rendered,
        }
    }

    fn unfit(&self, unfit: Unfit) -> Error {
        let file = self.file.clone();
        match unfit {
            Unfit::TooDeep => Error::Limit {
                file,
                limit: "the conversation is nested too deep",
            },
            Unfit::Reserved(name) => Error::Reserved { file, name },
            Unfit::Part(kind) => Error::Part {
                file,
                kind: shorten(&kind),
            },
        }
    }

    fn render_as(&self, conversation: &Conversation, shape: &Shape) -> Result<String, Error> {
        let size = context::measure(conversation).map_err(|unfit| self.unfit(unfit))?;
        let input = size.bytes;
        let budget = Arc::new(Budget::new(input));
        let fuel = FUEL
            + FUEL_PER_MESSAGE * conversation.messages.len() as u64
            + FUEL_PER_VALUE * size.values as u64;
        let tokens = [self.bos_token.as_str(), &self.eos_token];
        let context = context::variables(conversation, shape, tokens, &self.variables)
            .map_err(|unfit| self.unfit(unfit))?;
        let (guarded, budget_there) = (Arc::clone(&self.guarded), Arc::clone(&budget));
        let rendered = on_thread(move || {
            let mut environment = Environment::new();
            environment.set_fuel(Some(fuel));
            environment.set_recursion_limit(RECURSION_LIMIT);
            guard::install(&mut environment, &budget_there);
            let template = environment.template_from_named_str(rewrite::NAME, &guarded)?;
            let mut output = Bounded {
                text: Vec::new(),
                left: MAX_OUTPUT_BYTES + 2 * input,
            };
            let result = template
                .render_captured_to(context, &mut output)
                .map(|_| ());
            result.map(|()| String::from_utf8_lossy(&output.text).into_owned())
        })?;
        rendered.map_err(|error| self.explain(&error, &budget))
    }

    fn explain(&self, error: &minijinja::Error, budget: &Budget) -> Error {
        let file = self.file.clone();
        if let Some(message) = budget.refusal() {
            return Error::Refused {
                file,
                message: shorten(&message),
            };
        }
        let limit = match error.kind() {
            ErrorKind::OutOfFuel => "it runs for too long",
            ErrorKind::WriteFailure => "its output is too long",
            _ if budget.is_spent() => "it uses too much memory",
            _ => {
                return Error::Template {
                    file,
                    what: one_line(error),
                };
            }
        };
        Error::Limit { file, limit }
    }
}

/// Runs `work` on a thread with a stack of known size. The engine has no known panics; a panic
/// would be reported as an error.
fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, minijinja::Error> + Send + 'static,
) -> Result<Result<T, minijinja::Error>, Error> {
    let thread = std::thread::Builder::new()
        .name("chat template".to_owned())
        .stack_size(STACK_BYTES);
    let handle = thread
        .spawn(work)
        .map_err(|source| Error::Thread { source })?;
    let failed =
        |_| minijinja::Error::new(ErrorKind::InvalidOperation, "the template engine failed");
    Ok(handle.join().map_err(failed).and_then(|result| result))
}

/// Formats an error and its causes without line breaks.
fn one_line(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    let line = error
        .line()
        .map(|line| format!(" (line {line})"))
        .unwrap_or_default();
    format!("{}{line}", shorten(&what))
}

fn shorten(text: &str) -> String {
    const LONGEST: usize = 300;
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() <= LONGEST {
        flat
    } else {
        flat.chars().take(LONGEST).chain(['…']).collect()
    }
}

/// A writer that fails beyond a length limit.
struct Bounded {
    text: Vec<u8>,
    left: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let too_long = || std::io::Error::new(std::io::ErrorKind::FileTooLarge, "output too long");
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(too_long)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
