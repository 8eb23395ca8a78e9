//! `/v1/responses`: OpenAI's newer API: a request is converted to a chat request, and the answer to
//! items. Responses are stored, to be fetched or continued by their id.

mod background;
mod custom;
mod fetched;
mod turns;
mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
pub(crate) use fetched::{cancel, delete, get, input_items};
use serde_json::{Value, json};

use super::chat::{self, Ready};
use super::conversation::MAX_TOOLS;
use super::converted::{self, Names, Renames};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::stored::Stored;
use custom::CustomTool;
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
    texts: &["instructions", "input", "previous_response_id"],
};

/// Answers a request.
pub(crate) async fn handle(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let input = conversation(&app, &caller, &fields)?;
    let (chat, warnings) = chat_request(&fields, &input)?;
    let echoed = EchoedFields::of(&fields)?;
    let salt = caller.salt().map(str::to_owned);
    let kept = || Stored::new(&input.all, salt.as_deref());
    let kept = echoed.store.then(kept);
    let Ready {
        request,
        stream,
        mut style,
    } = converted::ready(&app, caller, chat).await?;
    style.warnings.extend(warnings);
    let in_background = echoed.background;
    let writer = ResponseWriter::new(Arc::clone(&app), &style, echoed, kept);
    if in_background {
        return background::begin(&app, request, stream, writer);
    }
    converted::answer(&app, request, stream, writer).await
}

/// Items of a conversation.
struct Input {
    all: Vec<Value>,
    /// Number of those that come from the response before.
    n_before: usize,
}

/// Returns the conversation of a request: that of the response before, and its own input.
fn conversation(app: &App, caller: &Caller, fields: &Fields<'_>) -> Result<Input, ApiError> {
    const NAME: &str = "previous_response_id";
    if fields.get("conversation").is_some() {
        let expected = "none: a conversation is continued by previous_response_id";
        return Err(fields.wrong("conversation", expected));
    }
    let mut all = match fields.str(NAME)? {
        None => Vec::new(),
        Some(id) => {
            let found = app.server.responses.get(id, caller.salt());
            let stored = found.ok_or_else(|| {
                ApiError::bad_field(NAME, "expected the id of a response that is stored here")
            })?;
            if stored.in_progress() {
                return Err(ApiError::bad_field(
                    NAME,
                    "expected a response that has ended",
                ));
            }
            stored.items()
        }
    };
    let n_before = all.len();
    let input = fields.need("input", fields.get("input"))?;
    match input {
        Value::String(text) => {
            let message = json!({ "type": "message", "role": "user", "content": text });
            all.push(message);
        }
        _ => {
            let items = fields.list("input", turns::MAX_ITEMS)?.unwrap_or_default();
            all.extend_from_slice(items);
        }
    }
    if all.len() > turns::MAX_ITEMS {
        let expected = format!("at most {} items, with those before", turns::MAX_ITEMS);
        return Err(fields.wrong("input", &expected));
    }
    Ok(Input { all, n_before })
}

/// `/v1/responses/input_tokens`: counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(
    app: Arc<App>,
    caller: Caller,
    body: Value,
) -> Result<Response<Body>, ApiError> {
    let fields = Fields::of(&body)?;
    let input = conversation(&app, &caller, &fields)?;
    let (chat, _) = chat_request(&fields, &input)?;
    let read = converted::read(&app, caller, chat).await?;
    Ok(chat::count(&read.request))
}

/// Fields of a request that its answer repeats.
struct EchoedFields {
    tools: Value,
    tool_choice: Value,
    parallel_tool_calls: bool,
    metadata: Value,
    previous_response_id: Value,
    instructions: Value,
    /// Whether the response is stored.
    store: bool,
    /// Whether it is computed without the client.
    background: bool,
}

impl EchoedFields {
    /// Returns whether one of the tools is a custom one of this name.
    fn has_custom_tool(&self, name: &str) -> bool {
        let mut tools = self.tools.as_array().into_iter().flatten();
        tools.any(|tool| tool["type"] == "custom" && tool["name"] == name)
    }

    fn of(fields: &Fields<'_>) -> Result<EchoedFields, ApiError> {
        let or = |name: &str, usual: Value| fields.get(name).cloned().unwrap_or(usual);
        fields.object("metadata")?;
        let store = fields.bool("store")?.unwrap_or(true);
        let background = fields.bool("background")?.unwrap_or(false);
        if background && !store {
            return Err(fields.wrong("background", "false beside store: false"));
        }
        Ok(EchoedFields {
            previous_response_id: or("previous_response_id", Value::Null),
            instructions: or("instructions", Value::Null),
            store,
            background,
            tools: or("tools", json!([])),
            tool_choice: or("tool_choice", json!("auto")),
            parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            metadata: or("metadata", json!({})),
        })
    }
}

/// A chat request and the mapping of its field names, and warnings.
type ChatRequest = ((Value, Names), Vec<String>);

/// Returns the equivalent chat request.
fn chat_request(fields: &Fields<'_>, input: &Input) -> Result<ChatRequest, ApiError> {
    let mut names = Names::new(&RENAMES);
    let messages = turns::messages(fields, input, &mut names)?;
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
    let (mut functions, mut warnings) = (Vec::new(), Vec::new());
    let tools = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    for (i, tool) in tools.iter().enumerate() {
        let function = match tool["type"].as_str() {
            Some("function") => {
                let mut function = tool.clone();
                function.as_object_mut().and_then(|all| all.remove("type"));
                function
            }
            Some("custom") => {
                let custom = CustomTool::of(tool, &format!("tools[{i}]."))?;
                warnings.extend(custom.warning);
                custom.function
            }
            // those of other kinds are run by OpenAI's servers
            _ => continue,
        };
        functions.push(json!({ "type": "function", "function": function }));
        names.tools.push(format!("tools[{i}]"));
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), json!(functions));
    }
    Ok(((Value::Object(chat), names), warnings))
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
