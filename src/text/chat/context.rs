//! A conversation as the variables of a template, checked and measured.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::{Content, Conversation, Message, ToolCall};

/// How deep the JSON of a conversation may be nested. The engine's own limit holds for what
/// templates make of it.
const MAX_JSON_DEPTH: usize = 80;

/// Variables that the conversation itself sets.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Why a conversation cannot be given to a template.
pub(super) enum Unfit {
    /// Its JSON is nested too deep.
    TooDeep,
    /// A variable has a name that is taken.
    Reserved(String),
}

/// How much a conversation holds.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// Bytes of text.
    pub(super) bytes: usize,
    /// Values of any kind.
    pub(super) values: usize,
}

impl Size {
    fn add(&mut self, text: &str) {
        self.bytes += text.len();
        self.values += 1;
    }

    fn add_json(&mut self, value: &Json, depth: usize) -> Result<(), Unfit> {
        if depth > MAX_JSON_DEPTH {
            return Err(Unfit::TooDeep);
        }
        self.values += 1;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => {
                for item in items {
                    self.add_json(item, depth + 1)?;
                }
            }
            Json::Object(fields) => {
                for (name, value) in fields {
                    self.add(name);
                    self.add_json(value, depth + 1)?;
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
        Ok(())
    }
}

/// Measures a conversation, and refuses what no template may see.
pub(super) fn measure(conversation: &Conversation) -> Result<Size, Unfit> {
    let mut size = Size::default();
    for message in &conversation.messages {
        let texts = [
            &message.name,
            &message.reasoning_content,
            &message.tool_call_id,
        ];
        size.add(&message.role);
        texts.into_iter().flatten().for_each(|text| size.add(text));
        match &message.content {
            Content::None => {}
            Content::Text(text) => size.add(text),
            Content::Parts(parts) => {
                for part in parts {
                    size.add_json(part, 0)?;
                }
            }
        }
        for call in &message.tool_calls {
            size.add(&call.id);
            size.add(&call.name);
            size.add_json(&call.arguments, 0)?;
        }
    }
    for tool in &conversation.tools {
        size.add_json(tool, 0)?;
    }
    for (name, value) in &conversation.kwargs {
        if RESERVED.contains(&name.as_str()) || name.starts_with("__guard") {
            return Err(Unfit::Reserved(name.clone()));
        }
        size.add(name);
        size.add_json(value, 0)?;
    }
    Ok(size)
}

/// The variables of a template. `variables` come first, so that the conversation's own may replace
/// them.
pub(super) fn variables(conversation: &Conversation, bos: &str, eos: &str) -> Value {
    let messages: Vec<Json> = conversation.messages.iter().map(message).collect();
    let tools = match conversation.tools.as_slice() {
        [] => Json::Null,
        tools => Json::Array(tools.to_vec()),
    };
    let mut variables = Map::new();
    variables.insert("bos_token".to_owned(), bos.into());
    variables.insert("eos_token".to_owned(), eos.into());
    variables.insert("documents".to_owned(), Json::Null);
    variables.extend(conversation.kwargs.clone());
    variables.insert("messages".to_owned(), Json::Array(messages));
    variables.insert("tools".to_owned(), tools);
    let generate = conversation.add_generation_prompt;
    variables.insert("add_generation_prompt".to_owned(), generate.into());
    Value::from_serialize(variables)
}

fn message(message: &Message) -> Json {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), message.role.as_str().into());
    let content = match &message.content {
        Content::None => Json::Null,
        Content::Text(text) => text.as_str().into(),
        Content::Parts(parts) => Json::Array(parts.clone()),
    };
    fields.insert("content".to_owned(), content);
    for (name, text) in [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning_content),
        ("tool_call_id", &message.tool_call_id),
    ] {
        if let Some(text) = text {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(call).collect();
        fields.insert("tool_calls".to_owned(), Json::Array(calls));
    }
    Json::Object(fields)
}

fn call(call: &ToolCall) -> Json {
    let mut fields = Map::new();
    if !call.id.is_empty() {
        fields.insert("id".to_owned(), call.id.as_str().into());
    }
    fields.insert("type".to_owned(), "function".into());
    let function = json!({"name": call.name, "arguments": call.arguments});
    fields.insert("function".to_owned(), function);
    Json::Object(fields)
}
