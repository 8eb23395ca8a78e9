//! Converts input items to chat messages: an assistant's reasoning, content and calls in one turn
//! become one message.

use serde_json::{Value, json};

use super::{Input, custom};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::routes::converted::{Item, Names};

pub(super) const MAX_ITEMS: usize = 4096;

/// Converts the messages of a request, recording the origin of each.
pub(super) fn messages(
    fields: &Fields<'_>,
    input: &Input,
    names: &mut Names,
) -> Result<Vec<Value>, ApiError> {
    let mut turns = Turns {
        messages: Vec::new(),
        names,
        is_open: false,
    };
    if let Some(text) = fields.str("instructions")? {
        turns.push(json!({ "role": "system", "content": text }), "instructions");
    }
    let is_text = fields.get("input").is_some_and(Value::is_string);
    for (i, item) in input.all.iter().enumerate() {
        let name = match i.checked_sub(input.n_before) {
            None => "previous_response_id".to_owned(),
            Some(_) if is_text => "input".to_owned(),
            Some(own) => format!("input[{own}]"),
        };
        let path = format!("{name}.");
        turns.take(&Fields::at(item, &path)?, item, &name)?;
    }
    turns.end();
    Ok(turns.messages)
}

struct Turns<'n> {
    messages: Vec<Value>,
    names: &'n mut Names,
    /// Whether the last message is the assistant's and may be extended.
    is_open: bool,
}

impl Turns<'_> {
    fn push(&mut self, message: Value, name: &str) {
        self.end();
        self.messages.push(message);
        self.names.messages.push(Item::of(name));
    }

    /// Ends the assistant's turn.
    fn end(&mut self) {
        self.is_open = false;
    }

    /// Returns the assistant's message of this turn, creating it if necessary.
    fn turn(&mut self, name: &str) -> (&mut Value, &mut Item) {
        if !self.is_open {
            self.push(json!({ "role": "assistant", "content": null }), name);
            self.is_open = true;
        }
        let message = self.messages.last_mut().expect("pushed above");
        let item = self.names.messages.last_mut().expect("pushed with it");
        (message, item)
    }

    fn take(&mut self, fields: &Fields<'_>, item: &Value, name: &str) -> Result<(), ApiError> {
        match fields.str("type")?.unwrap_or("message") {
            "message" if item["role"] == "assistant" => {
                let (message, own) = self.turn(name);
                own.say(name);
                say(message, &item["content"]);
            }
            "message" => {
                let message = json!({ "role": item["role"], "content": item["content"] });
                self.push(message, name);
            }
            "reasoning" => {
                let thought = thought(item);
                // omitted or encrypted reasoning
                if thought.is_empty() {
                    return Ok(());
                }
                let (message, _) = self.turn(name);
                message["reasoning_content"] = json!(match message["reasoning_content"].as_str() {
                    Some(before) => format!("{before}\n{thought}"),
                    None => thought,
                });
            }
            "function_call" => self.call(item, name, item["arguments"].clone()),
            "custom_tool_call" => {
                fields.need("input", fields.str("input")?)?;
                self.call(item, name, custom::arguments(&item["input"]));
            }
            "function_call_output" | "custom_tool_call_output" => {
                let output = match &item["output"] {
                    // parts, as in a message
                    content @ (Value::String(_) | Value::Array(_) | Value::Null) => content.clone(),
                    other => json!(other.to_string()),
                };
                let id = &item["call_id"];
                self.push(
                    json!({ "role": "tool", "tool_call_id": id, "content": output }),
                    name,
                );
            }
            _ => {
                let expected = "message, reasoning, function_call, function_call_output, \
                                custom_tool_call or custom_tool_call_output";
                return Err(fields.wrong("type", expected));
            }
        }
        Ok(())
    }

    /// Adds a call to the assistant's message.
    fn call(&mut self, item: &Value, name: &str, arguments: Value) {
        let (message, own) = self.turn(name);
        own.calls.push(name.to_owned());
        let call = json!({
            "id": item["call_id"],
            "type": "function",
            "function": { "name": item["name"], "arguments": arguments },
        });
        match message["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        }
    }
}

/// Appends content to an assistant's message; several contents become its parts.
fn say(message: &mut Value, content: &Value) {
    let parts = |content: &Value| match content {
        Value::Null => Vec::new(),
        Value::Array(parts) => parts.clone(),
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        other => vec![other.clone()],
    };
    message["content"] = match message["content"].is_null() {
        true => content.clone(),
        false => {
            let mut all = parts(&message["content"]);
            all.extend(parts(content));
            Value::Array(all)
        }
    };
}

/// Returns the text of a reasoning item: its content, or else its summary.
fn thought(item: &Value) -> String {
    let texts = |name: &str| -> Vec<&str> {
        let parts = item[name].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let content = texts("content");
    match content.is_empty() {
        true => texts("summary").join("\n"),
        false => content.join("\n"),
    }
}
