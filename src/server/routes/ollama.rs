//! Ollama's interface: `/api/chat` and `/api/generate` are converted to chat requests, or to
//! completions where the prompt is raw, and the answer to objects, one on each line of a stream.

mod embed;
mod models;
mod options;
mod turns;
mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::Request;
use serde_json::{Map, Value, json};

use super::Order;
use super::chat::Ready;
use super::completions;
use super::conversation::MAX_TOOLS;
use super::converted::{self, Names, Renames};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::server::Server;
pub(crate) use embed::{embed, embeddings};
pub(crate) use models::{loaded, show, tags, version};
use writer::{Form, OllamaWriter};

/// Field names of this interface for those of chat requests.
const RENAMES: Renames = Renames {
    fields: &[
        ("temperature", "options.temperature"),
        ("top_k", "options.top_k"),
        ("top_p", "options.top_p"),
        ("min_p", "options.min_p"),
        ("repeat_penalty", "options.repeat_penalty"),
        ("repeat_last_n", "options.repeat_last_n"),
        ("presence_penalty", "options.presence_penalty"),
        ("frequency_penalty", "options.frequency_penalty"),
        ("seed", "options.seed"),
        ("stop", "options.stop"),
        ("max_tokens", "options.num_predict"),
        ("enable_thinking", "think"),
        ("reasoning_effort", "think"),
        ("response_format.json_schema.schema", "format"),
        ("response_format", "format"),
    ],
    message: &[(".reasoning_content", ".thinking"), (".name", ".tool_name")],
    part: &[(".image_url", "")],
    call: &[],
    tool: &[],
    texts: &["system", "prompt"],
};

/// `/api/chat`: answers a conversation with the assistant's next message.
pub(crate) async fn chat(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let mut names = Names::new(&RENAMES);
    let messages = turns::messages(&fields, &mut names)?;
    if messages.is_empty() {
        return loads(&app, &fields, Form::Chat);
    }
    let tools = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    names.tools = (0..tools.len()).map(|i| format!("tools[{i}]")).collect();
    let mut chat = options::shared(&app, &fields)?;
    chat.insert("messages".to_owned(), json!(messages));
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), json!(tools));
    }
    answer_chat(&app, caller, &fields, chat, names, Form::Chat).await
}

/// `/api/generate`: answers a prompt as the user's only message, or continues it if it is raw.
pub(crate) async fn generate(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let prompt = fields.str("prompt")?.unwrap_or_default();
    let suffix = fields.str("suffix")?.unwrap_or_default();
    let images = turns::images(&fields)?;
    if prompt.is_empty() && suffix.is_empty() && images.is_empty() {
        return loads(&app, &fields, Form::Generate);
    }
    let mut request = options::shared(&app, &fields)?;
    let is_raw = fields.bool("raw")?.unwrap_or(false);
    // a model without a chat template continues texts
    if !is_raw && suffix.is_empty() && app.template.is_some() {
        let mut names = Names::new(&RENAMES);
        let messages = turns::of_prompt(&fields, prompt, images, &mut names)?;
        request.insert("messages".to_owned(), json!(messages));
        return answer_chat(&app, caller, &fields, request, names, Form::Generate).await;
    }
    if !images.is_empty() {
        return Err(fields.wrong("images", "none beside a raw prompt or a suffix"));
    }
    let system = fields.str("system")?.filter(|_| !is_raw);
    let prompt = match system {
        Some(system) if !system.is_empty() => format!("{system}\n\n{prompt}"),
        _ => prompt.to_owned(),
    };
    request.insert("prompt".to_owned(), json!(prompt));
    request.insert("suffix".to_owned(), json!(suffix));
    // of completions this is the number of the most likely tokens
    let top = request.remove("top_logprobs").unwrap_or(json!(0));
    if request.get("logprobs") == Some(&json!(true)) {
        request.insert("logprobs".to_owned(), top);
    }
    let names = Names::new(&RENAMES);
    let ready = completions::ready(&app, caller, Value::Object(request)).await;
    let ready = ready.map_err(|error| error.renamed(|name| names.of(name)))?;
    let writer = OllamaWriter::of_text(
        &app,
        Form::Generate,
        name(&fields)?.to_owned(),
        ready.warnings,
    );
    respond(&app, &fields, ready.request, writer).await
}

/// Runs a converted chat request.
async fn answer_chat(
    app: &Arc<App>,
    caller: Caller,
    fields: &Fields<'_>,
    chat: Map<String, Value>,
    names: Names,
    form: Form,
) -> Result<Response<Body>, ApiError> {
    let mut chat = chat;
    options::thinking(fields, &mut chat)?;
    let chat = Value::Object(chat);
    let Ready { request, style, .. } = converted::ready(app, caller, (chat, names)).await?;
    let writer = OllamaWriter::of_chat(app, form, name(fields)?.to_owned(), &style);
    respond(app, fields, request, writer).await
}

/// Runs a request, whose answer is streamed unless the client says otherwise.
async fn respond(
    app: &Arc<App>,
    fields: &Fields<'_>,
    request: Request,
    mut writer: OllamaWriter,
) -> Result<Response<Body>, ApiError> {
    writer.warn(options::ignored(fields)?);
    let stream = fields.bool("stream")?.unwrap_or(true);
    converted::answer(app, request, stream, writer).await
}

/// Answers a request without a prompt, with which clients load a model, or unload it.
fn loads(app: &App, fields: &Fields<'_>, form: Form) -> Result<Response<Body>, ApiError> {
    let name = name(fields)?;
    app.model(Some(untagged(app, name)))?;
    let is_unloaded = is_zero(fields.get("keep_alive")) && app.unload();
    Ok(json_response(&writer::loaded(form, name, is_unloaded)))
}

/// Returns whether a time, in seconds or as text such as `0s`, is none.
fn is_zero(time: Option<&Value>) -> bool {
    match time {
        Some(Value::String(text)) => text.trim_end_matches(['s', 'm', 'h']) == "0",
        Some(time) => time.as_f64() == Some(0.0),
        None => false,
    }
}

/// Returns the name by which the client calls the model.
fn name<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    fields.need("model", fields.str("model")?)
}

/// Returns the name of a model that is served, without the tag `latest` if it has none.
fn untagged<'a>(app: &App, name: &'a str) -> &'a str {
    match app.names.iter().any(|own| own == name) {
        true => name,
        false => short(name),
    }
}

/// Returns a name without the tag `latest`.
pub(crate) fn short(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Returns the name of a model as Ollama lists it, with a tag.
fn tagged(name: &str) -> String {
    match name.contains(':') {
        true => name.to_owned(),
        false => format!("{name}:latest"),
    }
}

/// `/api/pull` and others that would change which models there are.
pub(crate) async fn unchanging(_: Arc<Server>, _: Order) -> Result<Response<Body>, ApiError> {
    let message = "this server has the models that it was started with, and changes none";
    Err(ApiError::not_supported(message))
}
