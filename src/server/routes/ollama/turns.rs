//! Converts messages to those of a chat.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::MAX_IMAGES;
use crate::routes::conversation::{MAX_CALLS, MAX_MESSAGES};
use crate::routes::converted::{Item, Names};

/// Converts the messages of a request, recording the origin of each; none if it has none.
pub(super) fn messages(fields: &Fields<'_>, names: &mut Names) -> Result<Vec<Value>, ApiError> {
    let messages = fields.list("messages", MAX_MESSAGES)?.unwrap_or_default();
    let mut calls = Calls::default();
    let mut converted = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate() {
        let name = format!("messages[{i}]");
        let path = format!("{name}.");
        let fields = Fields::at(message, &path)?;
        let mut item = Item::of(&name);
        let text = fields.str("content")?.unwrap_or_default();
        let mut turn = json!({
            "role": fields.need("role", fields.str("role")?)?,
            "content": content(text, &images(&fields)?, &name, &mut item),
        });
        if let Some(thinking) = fields.str("thinking")?.filter(|text| !text.is_empty()) {
            turn["reasoning_content"] = json!(thinking);
        }
        let own = fields.list("tool_calls", MAX_CALLS)?.unwrap_or_default();
        if !own.is_empty() {
            item.calls = (0..own.len())
                .map(|i| format!("{name}.tool_calls[{i}]"))
                .collect();
            turn["tool_calls"] = own.iter().map(|call| calls.made(call)).collect();
        }
        if turn["role"] == "tool" {
            let tool = fields.str("tool_name")?.unwrap_or_default();
            let id = fields.str("tool_call_id")?;
            turn["tool_call_id"] = json!(calls.answered(id, tool));
            if !tool.is_empty() {
                turn["name"] = json!(tool);
            }
        }
        converted.push(turn);
        names.messages.push(item);
    }
    Ok(converted)
}

/// Returns the conversation of a prompt: the system's message, if there is one, and the user's.
pub(super) fn of_prompt(
    fields: &Fields<'_>,
    prompt: &str,
    images: Vec<&str>,
    names: &mut Names,
) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.str("system")?.filter(|text| !text.is_empty()) {
        messages.push(json!({ "role": "system", "content": system }));
        names.messages.push(Item::of("system"));
    }
    let mut item = Item::of("prompt");
    let content = content(prompt, &images, "", &mut item);
    messages.push(json!({ "role": "user", "content": content }));
    names.messages.push(item);
    Ok(messages)
}

/// Reads the images of a message, or of a prompt: base64.
pub(super) fn images<'a>(fields: &Fields<'a>) -> Result<Vec<&'a str>, ApiError> {
    let images = fields.list("images", MAX_IMAGES)?.unwrap_or_default();
    let wrong = || fields.wrong("images", "a list of images in base64");
    let image = |image: &'a Value| image.as_str().ok_or_else(wrong);
    images.iter().map(image).collect()
}

/// Returns the content of a message: the text, or parts if there are images, which come first.
fn content(text: &str, images: &[&str], name: &str, item: &mut Item) -> Value {
    if images.is_empty() {
        return json!(text);
    }
    let prefix = if name.is_empty() { "" } else { "." };
    let mut parts = Vec::with_capacity(images.len() + 1);
    for (i, image) in images.iter().enumerate() {
        parts.push(json!({ "type": "image_url", "image_url": { "url": image } }));
        item.parts.push(format!("{name}{prefix}images[{i}]"));
    }
    if !text.is_empty() {
        parts.push(json!({ "type": "text", "text": text }));
        item.parts.push(match name {
            "" => "prompt".to_owned(),
            name => format!("{name}.content"),
        });
    }
    Value::Array(parts)
}

/// Calls of tools that have no result yet. Clients of this interface may leave out their ids, which
/// some chat templates require.
#[derive(Default)]
struct Calls {
    made: usize,
    /// Ids and names.
    open: VecDeque<(String, String)>,
}

impl Calls {
    /// Returns a call with an id.
    fn made(&mut self, call: &Value) -> Value {
        let mut call = call.clone();
        // an error names what is wrong with the call later
        if call.is_object() {
            self.made += 1;
            if !call["id"].is_string() {
                // templates of Mistral's models want nine letters and digits
                call["id"] = json!(format!("call{:05}", self.made));
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = text(&call["function"]["name"]);
            self.open.push_back((text(&call["id"]), name));
        }
        call
    }

    /// Returns the id of the call that a result belongs to: the one it gives, or that of the first
    /// call of this tool without a result, or of any tool.
    fn answered(&mut self, id: Option<&str>, tool: &str) -> Option<String> {
        let of_id = |(own, _): &(String, String)| Some(own.as_str()) == id;
        let of_tool = |(_, name): &(String, String)| name == tool;
        let at = match id {
            Some(_) => self.open.iter().position(of_id),
            None => self.open.iter().position(of_tool).or(Some(0)),
        };
        let found = at.and_then(|at| self.open.remove(at)).map(|(id, _)| id);
        id.map(str::to_owned).or(found)
    }
}
