//! Converts the system prompt and the messages to those of a chat: results of tools, which are
//! blocks of a user's message here, become messages of their own.

use serde_json::{Value, json};

use super::billing::without_billing;
use super::blocks::Parts;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::routes::conversation::{MAX_MESSAGES, MAX_PARTS};
use crate::routes::converted::{Item, Names};

/// Text at the head of a result that is an error, which chat messages do not mark.
const ERROR: &str = "Error: ";

/// Converts the messages of a request, recording the origin of each.
pub(super) fn messages(fields: &Fields<'_>, names: &mut Names) -> Result<Vec<Value>, ApiError> {
    let mut turns = Turns {
        messages: Vec::new(),
        names,
    };
    turns.system(fields)?;
    let messages = fields.need("messages", fields.list("messages", MAX_MESSAGES)?)?;
    if messages.is_empty() {
        return Err(fields.wrong("messages", "at least one message"));
    }
    for (i, message) in messages.iter().enumerate() {
        turns.take(message, &format!("messages[{i}]"))?;
    }
    Ok(turns.messages)
}

struct Turns<'n> {
    messages: Vec<Value>,
    names: &'n mut Names,
}

impl Turns<'_> {
    fn push(&mut self, message: Value, item: Item) {
        self.messages.push(message);
        self.names.messages.push(item);
    }

    /// Adds a message with text and images alone.
    fn say(&mut self, role: &str, parts: Parts, name: &str) {
        let mut item = Item::of(name);
        item.parts.clone_from(&parts.names);
        let content = parts.into_content();
        self.push(json!({ "role": role, "content": content }), item);
    }

    fn system(&mut self, fields: &Fields<'_>) -> Result<(), ApiError> {
        let mut parts = Parts::default();
        let mut add = |text: &str, name: &str| {
            let text = without_billing(text);
            if !text.is_empty() {
                parts.push_text(text, name);
            }
        };
        match fields.get("system") {
            None => {}
            Some(Value::String(text)) => add(text, "system"),
            Some(_) => {
                let blocks = fields.list("system", MAX_PARTS)?.unwrap_or_default();
                for (i, block) in blocks.iter().enumerate() {
                    let (name, path) = (format!("system[{i}]"), format!("system[{i}]."));
                    let block = Fields::at(block, &path)?;
                    if block.need("type", block.str("type")?)? != "text" {
                        return Err(block.wrong("type", "text"));
                    }
                    add(block.need("text", block.str("text")?)?, &name);
                }
            }
        }
        if !parts.is_empty() {
            self.say("system", parts, "system");
        }
        Ok(())
    }

    fn take(&mut self, message: &Value, name: &str) -> Result<(), ApiError> {
        let path = format!("{name}.");
        let fields = Fields::at(message, &path)?;
        let role = fields.need("role", fields.str("role")?)?;
        if !matches!(role, "user" | "assistant" | "system") {
            return Err(fields.wrong("role", "user, assistant or system"));
        }
        let blocks = match fields.need("content", fields.get("content"))? {
            Value::String(text) => {
                let mut parts = Parts::default();
                parts.push_text(text, &format!("{path}content"));
                self.say(role, parts, name);
                return Ok(());
            }
            Value::Array(_) => fields.list("content", MAX_PARTS)?.unwrap_or_default(),
            _ => return Err(fields.wrong("content", "a string or a list of blocks")),
        };
        match role {
            "assistant" => self.assistant(blocks, name),
            role => self.user(role, blocks, name),
        }
    }

    /// Adds the messages of a user's blocks, in their order.
    fn user(&mut self, role: &str, blocks: &[Value], name: &str) -> Result<(), ApiError> {
        let mut parts = Parts::default();
        for (i, block) in blocks.iter().enumerate() {
            let own = format!("{name}.content[{i}]");
            let path = format!("{own}.");
            let block = Fields::at(block, &path)?;
            if parts.take(&block, &own)? {
                continue;
            }
            if role != "user" || block.str("type")? != Some("tool_result") {
                let expected = "text, image or, of a user, tool_result";
                return Err(block.wrong("type", expected));
            }
            if !parts.is_empty() {
                self.say(role, std::mem::take(&mut parts), name);
            }
            self.result(&block, &own)?;
        }
        if !parts.is_empty() || blocks.is_empty() {
            self.say(role, parts, name);
        }
        Ok(())
    }

    /// Adds the message of a tool's result.
    fn result(&mut self, block: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        let id = block.need("tool_use_id", block.str("tool_use_id")?)?;
        let content = format!("{name}.content");
        let mut parts = Parts::default();
        match block.get("content") {
            None => {}
            Some(Value::String(text)) => parts.push_text(text, &content),
            Some(_) => {
                let inner = block.list("content", MAX_PARTS)?.unwrap_or_default();
                for (i, value) in inner.iter().enumerate() {
                    let own = format!("{content}[{i}]");
                    let path = format!("{own}.");
                    let inner = Fields::at(value, &path)?;
                    if !parts.take(&inner, &own)? {
                        return Err(inner.wrong("type", "text or image"));
                    }
                }
            }
        }
        if block.bool("is_error")?.unwrap_or(false) {
            parts.begin_with(ERROR, &content);
        }
        let mut item = Item::of(name);
        item.parts.clone_from(&parts.names);
        let content = parts.into_content();
        let message = json!({ "role": "tool", "tool_call_id": id, "content": content });
        self.push(message, item);
        Ok(())
    }

    /// Adds the assistant's message: its texts, its reasoning and its calls.
    fn assistant(&mut self, blocks: &[Value], name: &str) -> Result<(), ApiError> {
        let mut parts = Parts::default();
        let (mut thoughts, mut calls) = (Vec::<String>::new(), Vec::new());
        let mut item = Item::of(name);
        for (i, block) in blocks.iter().enumerate() {
            let own = format!("{name}.content[{i}]");
            let path = format!("{own}.");
            let block = Fields::at(block, &path)?;
            match block.need("type", block.str("type")?)? {
                "text" => {
                    parts.take(&block, &own)?;
                }
                "thinking" => {
                    block.str("signature")?;
                    let thought = block.need("thinking", block.str("thinking")?)?;
                    thoughts.push(thought.to_owned());
                }
                // encrypted for another server, and unreadable here
                "redacted_thinking" => {
                    block.need("data", block.str("data")?)?;
                }
                "tool_use" => {
                    calls.push(call(&block)?);
                    item.calls.push(own);
                }
                _ => {
                    let expected = "text, thinking, redacted_thinking or tool_use";
                    return Err(block.wrong("type", expected));
                }
            }
        }
        item.parts.clone_from(&parts.names);
        let mut message = json!({ "role": "assistant", "content": null });
        if !parts.is_empty() {
            message["content"] = parts.into_content();
        }
        thoughts.retain(|thought| !thought.is_empty());
        if !thoughts.is_empty() {
            message["reasoning_content"] = json!(thoughts.join("\n"));
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        self.push(message, item);
        Ok(())
    }
}

/// Converts a call.
fn call(block: &Fields<'_>) -> Result<Value, ApiError> {
    let id = block.need("id", block.str("id")?)?;
    let name = block.need("name", block.str("name")?)?;
    let input = block.need("input", block.object("input")?)?;
    Ok(json!({
        "id": id,
        "type": "function",
        "function": { "name": name, "arguments": input },
    }))
}
