//! `/v1/responses`: OpenAI's newer API, without stored conversations: a request is converted to a
//! chat request, and the answer to items.

mod turns;
mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use super::chat::{self, Ready};
use super::conversation::MAX_TOOLS;
use super::converted::{self, Names, Renames};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use writer::ResponseWriter;

/// Field names of this interface for those of chat requests.
const RENAMES: Renames = Renames {
    fields: &[
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
        ("tool_choice.function", "tool_choice"),
        ("json_schema", "text.format"),
    ],
    message: &[(".tool_call_id", ".call_id")],
    part: &[],
    call: &[(".function", ""), (".id", ".call_id")],
    tool: &[(".function", "")],
    texts: &["instructions", "input"],
};

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let chat = chat_request(&fields)?;
    let echoed = EchoedFields::of(&fields)?;
    let Ready {
        request,
        stream,
        style,
    } = converted::ready(&app, caller, chat).await?;
    let writer = ResponseWriter::new(Arc::clone(&app), &style, echoed);
    converted::answer(&app, request, stream, writer).await
}

/// `/v1/responses/input_tokens`: counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let chat = chat_request(&Fields::of(&body)?)?;
    let read = converted::read(&app, caller, chat).await?;
    Ok(chat::count(&read.request))
}

/// Fields of a request that its answer repeats.
struct EchoedFields {
    tools: Value,
    tool_choice: Value,
    parallel_tool_calls: bool,
    metadata: Value,
}

impl EchoedFields {
    fn of(fields: &Fields<'_>) -> Result<EchoedFields, ApiError> {
        let or = |name: &str, usual: Value| fields.get(name).cloned().unwrap_or(usual);
        fields.object("metadata")?;
        Ok(EchoedFields {
            tools: or("tools", json!([])),
            tool_choice: or("tool_choice", json!("auto")),
            parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            metadata: or("metadata", json!({})),
        })
    }
}

/// Returns the equivalent chat request, and the mapping of its field names.
fn chat_request(fields: &Fields<'_>) -> Result<(Value, Names), ApiError> {
    if fields.get("previous_response_id").is_some() || fields.get("conversation").is_some() {
        let message = "conversations are not stored here: send all of it as input";
        return Err(ApiError::bad_field("previous_response_id", message));
    }
    let mut names = Names::new(&RENAMES);
    let messages = turns::messages(fields, &mut names)?;
    let own = ["tool_choice", "parallel_tool_calls", "stop"];
    let mut chat = converted::copied(fields, &own);
    chat.insert("messages".to_owned(), json!(messages));
    if let Some(n) = fields.get("max_output_tokens") {
        chat.insert("max_tokens".to_owned(), n.clone());
    }
    if let Some(reasoning) = fields.object("reasoning")?
        && let Some(effort) = reasoning.get("effort").filter(|effort| !effort.is_null())
    {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    if let Some(format) = fields.object("text")?.and_then(|text| text.get("format")) {
        chat.insert("response_format".to_owned(), response_format(format));
    }
    // skip tools of other kinds, which the client handles itself
    let tools = fields.list("tools", MAX_TOOLS)?.unwrap_or_default().iter();
    let mut functions = Vec::new();
    for (i, tool) in tools
        .enumerate()
        .filter(|(_, tool)| tool["type"] == "function")
    {
        let mut function = tool.as_object().cloned().unwrap_or_default();
        function.remove("type");
        functions.push(json!({ "type": "function", "function": function }));
        names.tools.push(format!("tools[{i}]"));
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), json!(functions));
    }
    Ok((Value::Object(chat), names))
}

/// Nests `{type, name, schema}`, which is flat here.
fn response_format(format: &Value) -> Value {
    match format["type"].as_str() {
        Some("json_schema") if format.get("json_schema").is_none() => {
            json!({ "type": "json_schema", "json_schema": format })
        }
        _ => format.clone(),
    }
}
