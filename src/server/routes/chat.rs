//! `/v1/chat/completions`: answers a conversation with the assistant's next message.

mod demanded;
pub(crate) mod rendered;
mod stream;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse;
use octavo_engine::{FinishReason, GenerationParams};
use octavo_engine::{ImageHandle, Request};
use octavo_text::chat::ChatTemplate;
use octavo_text::chat::answer::{AnswerParser, Piece, Wants};
use serde_json::{Value, json};

use super::conversation;
use super::native::settings;
use crate::app::App;
use crate::auth::Caller;
use crate::demand::Demanded;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::images;
use crate::params::{self, Dialect, MAX_N, MAX_TOP};
use crate::progress::Progress;
use crate::prompt::{check_bytes, salt, slot};
use crate::routes::lora;
use crate::server::now;
use crate::sse;
use crate::wire::{self, Usage};
use crate::work::{Answer, Work};
use demanded::Asks;
use rendered::Prompt;
use stream::ChatWriter;

/// A request ready to run, and the format of its answer.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    pub(crate) demanded: Option<Demanded>,
    pub(crate) stream: bool,
    pub(crate) style: Style,
}

/// Format of an answer.
#[derive(Clone)]
pub(crate) struct Style {
    /// Model name to report.
    pub(crate) model: String,
    template: Arc<str>,
    /// Whether calls are constrained to their schemas.
    is_strict: bool,
    rendered: Arc<str>,
    /// Whether the prompt ends inside a thought that is continued.
    in_thought: bool,
    tools: Arc<[Value]>,
    wants: Wants,
    /// Whether log-probabilities are included.
    logprobs: bool,
    include_usage: bool,
    return_token_ids: bool,
    /// Whether every piece of a stream includes timings.
    pub(crate) timings_per_token: bool,
    /// Progress of a prompt before it begins, for streams that report it.
    pub(crate) progress: Progress,
    /// The prompt and all settings, for an answer that shows them.
    verbose: Option<Value>,
    n: usize,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
}

impl Style {
    /// Creates the parser of the answer.
    pub(crate) fn parser(&self) -> AnswerParser {
        let parser = AnswerParser::new(&self.template, &self.rendered, self.wants);
        let parser = parser.with_tools(&self.tools);
        let parser = match self.in_thought {
            true => parser.in_thought(),
            false => parser,
        };
        match self.is_strict {
            true => parser.strict(),
            false => parser,
        }
    }
}

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let Ready {
        request,
        stream,
        style,
    } = ready(&app, caller, body).await?;
    let mut work = Work::begin(&app, vec![request])?;
    let head = Head {
        id: app.new_id("chatcmpl-"),
        created: now(),
    };
    if stream {
        work.has_begun().await?;
        return Ok(sse::response(ChatWriter::new(app, work, head, style)));
    }
    let answers = work.collect().await?;
    Ok(json_response(&whole(&app, &head, &style, answers)))
}

/// A request with its constraint, and the format of its answer.
pub(crate) struct Ready {
    pub(crate) request: Request,
    pub(crate) stream: bool,
    pub(crate) style: Style,
}

/// Reads a chat request, and compiles the constraint on its answer.
pub(crate) async fn ready(app: &Arc<App>, caller: Caller, body: Value) -> Result<Ready, ApiError> {
    let Prepared {
        mut request,
        demanded,
        stream,
        mut style,
    } = read(app, caller, body).await?;
    let compiled = app.compile(demanded).await?;
    request.constraint = compiled.constraint;
    style.warnings.extend(compiled.warning);
    Ok(Ready {
        request,
        stream,
        style,
    })
}

/// Encodes the images of a chat request, renders its conversation and tokenizes it.
pub(crate) async fn read(
    app: &Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Prepared, ApiError> {
    let body = Arc::new(body);
    let images = images::see(app, &body).await?;
    app.work(move |app| prepare(app, &caller, &body, images))
        .await
}

/// Fields common to all pieces of an answer.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
}

/// Returns the model's chat template.
pub(crate) fn template(app: &App) -> Result<&ChatTemplate, ApiError> {
    app.template.as_ref().ok_or_else(|| {
        ApiError::bad_request("this model's file has no chat template: use /v1/completions")
    })
}

/// Reads a request, renders its conversation and tokenizes it.
pub(crate) fn prepare(
    app: &App,
    caller: &Caller,
    body: &Value,
    images: Vec<ImageHandle>,
) -> Result<Prepared, ApiError> {
    let fields = Fields::of(body)?;
    let model = app.model(fields.str("model")?)?;
    let mut asked = conversation::read(app, &fields)?;
    let mut options = params::options(app, &fields, Dialect::OpenAi)?;
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let most = params::max_tokens(&fields, &names, 1)?;
    options.max_tokens = most.flatten().or(app.options.n_predict);
    let n = fields.count("n", 1, MAX_N)?.unwrap_or(1);
    let task = params::task(&fields, n)?;
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, MAX_TOP)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(fields.wrong("top_logprobs", "logprobs: true beside it"));
    }
    options.logprobs = logprobs.then(|| top.unwrap_or(0));
    let Prompt {
        rendered,
        tokens: prompt,
        warning,
    } = rendered::fitting(app, &mut asked, &images)?;
    let (conversation, choice) = (asked.conversation, asked.choice);
    let takes_tools = !conversation.tools.is_empty();
    let source = template(app)?.variant(takes_tools).source();
    let asks = Asks {
        conversation: &conversation,
        choice: &choice,
        template: source,
        rendered: &rendered,
    };
    let (demanded, ignored) = demanded::read(app, caller, &fields, &asks)?;
    let wants = Wants {
        tools: takes_tools,
        reasoning: fields.str("reasoning_format")? != Some("none"),
    };
    let calls = |demanded: &Demanded| Some(demanded.demand.calls.as_ref()?.required);
    let is_strict = demanded.as_ref().and_then(calls) == Some(true);
    // in some vocabularies the markers of calls or reasoning are control tokens
    let parser = AnswerParser::new(source, "", wants);
    let verbose = verbose(app, &fields, &rendered.prompt, &options)?;
    options.show_special = wants.tools || parser.has_control_words(app.tokenizer());
    Ok(Prepared {
        request: Request {
            n,
            task,
            salt: salt(&fields, caller.salt())?,
            adapters: lora::named(app, &fields)?,
            slot: slot(&fields)?,
            images,
            ..Request::new(&prompt, &options)
        },
        demanded,
        stream: fields.bool("stream")?.unwrap_or(false),
        style: Style {
            model,
            template: source.into(),
            is_strict,
            rendered: rendered.prompt.into(),
            in_thought: rendered.in_thought,
            tools: conversation.tools.into(),
            wants,
            logprobs,
            include_usage: params::includes_usage(&fields)?,
            return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            progress: Progress::wanted(&fields)?,
            verbose,
            n,
            warnings: params::warnings(app, &fields, warning.into_iter().chain(ignored)),
        },
    })
}

/// Returns the prompt and all settings, if the request wants to see them.
fn verbose(
    app: &App,
    fields: &Fields<'_>,
    prompt: &str,
    options: &GenerationParams,
) -> Result<Option<Value>, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let is_verbose = fields.bool("verbose")?.unwrap_or(false);
    Ok(is_verbose.then(|| {
        let settings = settings::of(app, options, stream);
        json!({ "prompt": prompt, "generation_settings": settings })
    }))
}

/// Tokenizes a rendered conversation, with its images in place of their markers.
fn tokens(app: &App, rendered: &str, images: &[ImageHandle]) -> Result<Vec<u32>, ApiError> {
    check_bytes(app, rendered)?;
    match app.marker() {
        Some(marker) if !images.is_empty() => {
            let tokens =
                octavo_vision::prompt::tokens(app.tokenizer(), rendered.as_bytes(), marker, images);
            tokens.map_err(|error| ApiError::bad_field("messages", error.to_string()))
        }
        _ => Ok(octavo_text::chat::encode(app.tokenizer(), rendered)?),
    }
}

/// One message as it grows.
#[derive(Default)]
pub(crate) struct Assembled {
    content: String,
    reasoning: String,
    calls: Vec<AssembledCall>,
}

/// A tool call in the message.
struct AssembledCall {
    /// Call id written by the model.
    id: Option<String>,
    name: String,
    arguments: String,
}

impl Assembled {
    /// Returns whether there is a tool call.
    pub(crate) fn has_called(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::CallBegins { name, id, .. } => self.calls.push(AssembledCall {
                    id,
                    name,
                    arguments: String::new(),
                }),
                Piece::CallArguments { index, text } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    pub(crate) fn to_json(&self, app: &App) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.content });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            if self.content.trim().is_empty() {
                message["content"] = Value::Null;
            }
            let call = |call: &AssembledCall| {
                json!({
                    "id": call.id.clone().unwrap_or_else(|| app.new_id("call_")),
                    "type": "function",
                    "function": { "name": call.name, "arguments": call.arguments },
                })
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

pub(crate) fn finish_reason(finish: FinishReason, has_called: bool) -> &'static str {
    match wire::finish_reason(finish) {
        "stop" if has_called => "tool_calls",
        reason => reason,
    }
}

/// Returns the whole answer.
fn whole(app: &App, head: &Head, style: &Style, answers: Vec<Answer>) -> Value {
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    let mut timings = Value::Null;
    for choice in answers.iter().flat_map(|answer| &answer.choices) {
        let mut parser = style.parser();
        let mut message = Assembled::default();
        message.add(parser.push(&choice.text));
        message.add(parser.finish());
        let logprobs = style
            .logprobs
            .then(|| wire::chat_logprobs(app.tokenizer(), &choice.logprobs));
        let mut object = json!({
            "index": choice.index,
            "message": message.to_json(app),
            "logprobs": logprobs,
            "finish_reason": finish_reason(choice.finish, message.has_called()),
        });
        if style.return_token_ids {
            object["token_ids"] = json!(choice.tokens);
        }
        choices.push(object);
        usage.prompt = choice.timing.prompt_tokens;
        usage.completion += choice.timing.generated_tokens;
        if choice.index == 0 {
            usage.cached = choice.timing.cached;
            timings = wire::timings(&choice.timing);
        }
    }
    let mut object = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": style.model,
        "system_fingerprint": crate::FINGERPRINT,
        "choices": choices,
        "usage": usage.to_json(),
        "timings": timings,
    });
    if let Some(verbose) = &style.verbose {
        object["__verbose"] = verbose.clone();
    }
    wire::warn(&mut object, &style.warnings);
    object
}

/// `/v1/chat/completions/input_tokens`: counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prepared = read(&app, caller, body).await?;
    Ok(count(&prepared.request))
}

/// Returns the answer with the number of a prompt's tokens.
pub(crate) fn count(request: &Request) -> Response<Body> {
    json_response(&json!({
        "object": "response.input_tokens",
        "input_tokens": request.prompt.len(),
    }))
}

/// `/apply-template`: returns the prompt of a conversation.
pub(crate) async fn apply_template(
    app: Arc<App>,
    _caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let prompt = app
        .work(move |app| {
            let fields = Fields::of(&body)?;
            let asked = conversation::read(app, &fields)?;
            Ok(rendered::render(app, &asked)?.prompt)
        })
        .await?;
    Ok(json_response(&json!({ "prompt": prompt })).into_response())
}
