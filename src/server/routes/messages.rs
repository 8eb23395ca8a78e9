//! `/v1/messages`: Anthropic's interface: a request is converted to a chat request, and the answer
//! to blocks.

mod billing;
mod blocks;
#[cfg(test)]
mod tests;
mod tools;
mod turns;
mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Map, Value, json};

use super::chat::Ready;
use super::converted::{self, Names, Renames};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use writer::MessageWriter;

/// Field names of this interface for those of chat requests.
const RENAMES: Renames = Renames {
    fields: &[
        ("stop", "stop_sequences"),
        ("reasoning_effort", "output_config.effort"),
        ("reasoning_budget_tokens", "thinking.budget_tokens"),
        ("tool_choice.function", "tool_choice"),
        (
            "parallel_tool_calls",
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
    message: &[
        (".tool_call_id", ".tool_use_id"),
        (".tool_calls", ".content"),
    ],
    part: &[(".image_url", ".source")],
    call: &[(".function.arguments", ".input"), (".function", "")],
    tool: &[(".function.parameters", ".input_schema"), (".function", "")],
    texts: &["system"],
};

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let chat = chat_request(&Fields::of(&body)?)?;
    let Ready {
        request,
        stream,
        style,
    } = converted::ready(&app, caller, chat).await?;
    let stops = request.options.stop.clone();
    let writer = MessageWriter::new(Arc::clone(&app), &style, stops);
    converted::answer(&app, request, stream, writer).await
}

/// `/v1/messages/count_tokens`: counts the tokens of a request's prompt.
pub(crate) async fn count_tokens(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let chat = chat_request(&Fields::of(&body)?)?;
    let read = converted::read(&app, caller, chat).await?;
    let n_prompt = read.request.prompt.len();
    Ok(json_response(&json!({ "input_tokens": n_prompt })))
}

/// Returns the equivalent chat request, and the mapping of its field names.
fn chat_request(fields: &Fields<'_>) -> Result<(Value, Names), ApiError> {
    if fields
        .list("mcp_servers", usize::MAX)?
        .is_some_and(|all| !all.is_empty())
    {
        return Err(fields.wrong("mcp_servers", "none: this server calls no tools itself"));
    }
    fields.object("metadata")?;
    let mut names = Names::new(&RENAMES);
    let mut chat = converted::copied(fields, &["max_tokens"]);
    let messages = turns::messages(fields, &mut names)?;
    chat.insert("messages".to_owned(), json!(messages));
    if let Some(stop) = fields.get("stop_sequences") {
        chat.insert("stop".to_owned(), stop.clone());
    }
    tools::convert(fields, &mut chat, &mut names)?;
    thinking(fields, &mut chat)?;
    output(fields, &mut chat, &mut names)?;
    Ok((Value::Object(chat), names))
}

/// Reads whether the model thinks first, and with how many tokens; without the field the server's
/// options decide. A model cannot choose by itself, so one that may think does.
fn thinking(fields: &Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(thinking) = fields.get("thinking") else {
        return Ok(());
    };
    let thinking = Fields::at(thinking, "thinking.")?;
    let budget = thinking.count("budget_tokens", 0, 1 << 30)?;
    let thinks = match thinking.need("type", thinking.str("type")?)? {
        "enabled" | "adaptive" => true,
        "disabled" => false,
        _ => return Err(thinking.wrong("type", "enabled, disabled or adaptive")),
    };
    chat.insert("enable_thinking".to_owned(), json!(thinks));
    if let Some(budget) = budget.filter(|_| thinks) {
        chat.insert("reasoning_budget_tokens".to_owned(), json!(budget));
    }
    Ok(())
}

/// Converts the effort, and the schema of the answer: `output_config.format`, earlier
/// `output_format`.
fn output(
    fields: &Fields<'_>,
    chat: &mut Map<String, Value>,
    names: &mut Names,
) -> Result<(), ApiError> {
    let mut format = fields
        .get("output_format")
        .map(|value| ("output_format", value));
    if let Some(config) = fields.get("output_config") {
        let config = Fields::at(config, "output_config.")?;
        if let Some(effort) = config.str("effort")? {
            chat.insert("reasoning_effort".to_owned(), json!(effort));
        }
        let newer = config
            .get("format")
            .map(|value| ("output_config.format", value));
        format = newer.or(format);
    }
    let Some((name, format)) = format else {
        return Ok(());
    };
    let path = format!("{name}.");
    let format = Fields::at(format, &path)?;
    if format.need("type", format.str("type")?)? != "json_schema" {
        return Err(format.wrong("type", "json_schema"));
    }
    let schema = format.need("schema", format.get("schema"))?;
    let response_format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    chat.insert("response_format".to_owned(), response_format);
    names.fields.push(("response_format.json_schema", name));
    names.fields.push(("response_format", name));
    Ok(())
}
