//! Fields that requests for chats and for texts have in common.

use serde_json::{Map, Value, json};

use super::{name, untagged};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// Options with the name and the meaning of a chat request's field.
const SAME: [&str; 14] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
];

/// Options that change the text in Ollama, and nothing here.
const IGNORED: [&str; 2] = ["tfs_z", "penalize_newline"];

/// Begins a request with the model, the options, the format of the answer and log-probabilities.
pub(super) fn shared(app: &App, fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut request = Map::new();
    let model = name(fields)?;
    request.insert("model".to_owned(), json!(untagged(app, model)));
    if let Some(options) = fields.get("options") {
        let options = Fields::at(options, "options.")?;
        for name in SAME {
            if let Some(value) = options.get(name) {
                request.insert(name.to_owned(), value.clone());
            }
        }
        // -1 and -2: limited by the context only
        let most = options.int("num_predict", -2..=1 << 30)?;
        if let Some(most) = most {
            request.insert("max_tokens".to_owned(), json!(most.max(-1)));
        }
    }
    request.entry("max_tokens").or_insert(json!(-1));
    if let Some(format) = format(fields)? {
        request.insert("response_format".to_owned(), format);
    }
    // the last two are not Ollama's
    for name in ["logprobs", "top_logprobs", "tool_choice", "cache_salt"] {
        if let Some(value) = fields.get(name) {
            request.insert(name.to_owned(), value.clone());
        }
    }
    Ok(request)
}

/// Reads `format`: `"json"`, or a schema.
fn format(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(json!({ "type": "json_object" }))),
        Some(schema @ Value::Object(_)) => Ok(Some(json!({
            "type": "json_schema",
            "json_schema": { "schema": schema },
        }))),
        Some(_) => Err(fields.wrong("format", "json, or a JSON schema")),
    }
}

/// Adds whether the model thinks first, or with how much effort.
pub(super) fn thinking(fields: &Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let (name, value) = match fields.get("think") {
        None => return Ok(()),
        Some(Value::Bool(thinks)) => ("enable_thinking", json!(thinks)),
        Some(Value::String(effort)) if !effort.is_empty() => ("reasoning_effort", json!(effort)),
        Some(_) => return Err(fields.wrong("think", "true, false, low, medium or high")),
    };
    chat.insert(name.to_owned(), value);
    Ok(())
}

/// Returns a warning for each field that would change the answer in Ollama, and does not here.
pub(super) fn ignored(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let mut warnings = Vec::new();
    if let Some(options) = fields.object("options")? {
        let given = IGNORED
            .iter()
            .filter(|name| options.get(**name).is_some_and(|value| !value.is_null()));
        warnings.extend(given.map(|name| format!("options.{name} is ignored")));
    }
    for (name, why) in [
        ("template", "the model's own chat template is used"),
        ("context", "send the conversation to /api/chat"),
    ] {
        let value = fields.get(name);
        let is_empty = match value {
            None => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(_) => false,
        };
        if !is_empty {
            warnings.push(format!("{name} is ignored: {why}"));
        }
    }
    Ok(warnings)
}
