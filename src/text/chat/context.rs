//! Converts a conversation to template variables, with checks and a measure of its size.

use minijinja::Value;
use serde::Serialize as _;
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Serializer, Value as Json, json};

use super::guard::float;
use super::shape::{Absent, Form, Reasoning, Shape, kind_of};
use super::{Content, Conversation, Message, ToolCall};
use crate::time;

/// Deepest nesting of a conversation's JSON. The template engine has its own limit for values that
/// templates build.
const MAX_JSON_DEPTH: usize = 80;

/// Variables set by the conversation itself.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Reasons a conversation cannot be given to a template.
pub(super) enum Unfit {
    /// The JSON is nested too deeply.
    TooDeep,
    /// A variable has a reserved name.
    Reserved(String),
    /// A content part of this type cannot be converted to text.
    Part(String),
}

/// Size of a conversation.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// Bytes of text.
    pub(super) bytes: usize,
    /// Number of values of any kind.
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

/// Measures a conversation; refuses one that no template can take.
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
        check_name(name)?;
        size.add(name);
        size.add_json(value, 0)?;
    }
    Ok(size)
}

/// Refuses a variable name that is set by the conversation, or used internally.
pub(super) fn check_name(name: &str) -> Result<(), Unfit> {
    match RESERVED.contains(&name) || name.starts_with("__guard") {
        true => Err(Unfit::Reserved(name.to_owned())),
        false => Ok(()),
    }
}

/// Returns the variables of a template, in the shape it expects. Those of the conversation come
/// last, so that they replace defaults of the same name. `tokens` are BOS and EOS.
pub(super) fn variables(
    conversation: &Conversation,
    shape: &Shape,
    tokens: [&str; 2],
    defaults: &Map<String, Json>,
) -> Result<Value, Unfit> {
    let [bos, eos] = tokens;
    let messages = conversation.messages.iter();
    let messages: Result<Vec<Json>, Unfit> = messages.map(|m| message(m, shape)).collect();
    let tools = match conversation.tools.as_slice() {
        [] => Json::Null,
        tools => Json::Array(tools.to_vec()),
    };
    let mut variables = Map::new();
    variables.insert("bos_token".to_owned(), bos.into());
    variables.insert("eos_token".to_owned(), eos.into());
    variables.insert("documents".to_owned(), Json::Null);
    // variables of templates from before `strftime_now`, as in llama.cpp
    for (name, format) in [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")] {
        let today = time::strftime(format, time::now());
        variables.insert(name.to_owned(), today.into());
    }
    if shape.functions {
        let functions = functions(&conversation.tools);
        variables.insert("functions".to_owned(), functions.into());
    }
    variables.extend(defaults.clone());
    variables.extend(conversation.kwargs.clone());
    variables.insert("messages".to_owned(), Json::Array(messages?));
    if !(tools.is_null() && shape.no_tools_undefined) {
        variables.insert("tools".to_owned(), tools);
    }
    let generate = conversation.add_generation_prompt;
    variables.insert("add_generation_prompt".to_owned(), generate.into());
    Ok(Value::from_serialize(variables))
}

/// Returns the definitions of the tools as FireFunction's model card writes them, which is Python's
/// `json.dumps(functions, indent=4)`; nothing if there are none.
fn functions(tools: &[Json]) -> String {
    if tools.is_empty() {
        return String::new();
    }
    let functions: Vec<&Json> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .collect();
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    let mut serializer = Serializer::with_formatter(&mut text, formatter);
    functions
        .serialize(&mut serializer)
        .expect("JSON values are written to memory");
    String::from_utf8(text).expect("JSON is UTF-8")
}

fn message(message: &Message, shape: &Shape) -> Result<Json, Unfit> {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), message.role.as_str().into());
    let mut content = content(message, shape)?;
    // The template of gpt-oss refuses messages with thoughts, content and calls.
    let has_content = !matches!(&message.content, Content::None)
        && message.content != Content::Text(String::new());
    let too_much = shape.reasoning == Reasoning::Field("thinking")
        && has_content
        && !message.tool_calls.is_empty();
    let thought = message.reasoning_content.as_ref().filter(|_| !too_much);
    let reasoning = match (shape.reasoning, thought) {
        (Reasoning::Part, Some(text)) => {
            content = with_thought(text, content);
            ("reasoning_content", None)
        }
        (Reasoning::Part, None) => ("reasoning_content", None),
        (Reasoning::Field(name), thought) => (name, thought),
    };
    fields.insert("content".to_owned(), content);
    for (name, text) in [
        ("name", message.name.as_ref()),
        reasoning,
        ("tool_call_id", message.tool_call_id.as_ref()),
    ] {
        if let Some(text) = text {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|c| call(c, shape)).collect();
        fields.insert("tool_calls".to_owned(), Json::Array(calls));
    }
    Ok(Json::Object(fields))
}

/// Prepends a thought to content as its first part.
fn with_thought(thought: &str, content: Json) -> Json {
    let mut parts = vec![json!({"type": "thinking", "thinking": thought})];
    match content {
        Json::Array(rest) => parts.extend(rest),
        Json::String(text) if !text.is_empty() => parts.push(json!({"type": "text", "text": text})),
        _ => {}
    }
    Json::Array(parts)
}

fn content(message: &Message, shape: &Shape) -> Result<Json, Unfit> {
    let form = shape.forms.get(kind_of(&message.role)).copied();
    let has_called = !message.tool_calls.is_empty();
    Ok(match (&message.content, form.unwrap_or_default()) {
        // Next to calls some templates distinguish `none` from empty text; elsewhere it is nothing.
        (Content::None, Form::Parts) if !has_called => json!([]),
        (Content::None, _) if !has_called || shape.absent == Absent::Text => "".into(),
        (Content::Text(text), _)
            if text.is_empty() && has_called && shape.absent == Absent::None =>
        {
            Json::Null
        }
        (Content::None, _) => Json::Null,
        (Content::Text(text), Form::Parts) => json!([{"type": "text", "text": text}]),
        (Content::Text(text), _) => text.as_str().into(),
        (Content::Parts(parts), Form::Text) => {
            let texts: Result<Vec<&str>, Unfit> = parts.iter().map(part_text).collect();
            texts?.join("\n").into()
        }
        (Content::Parts(parts), _) => Json::Array(parts.clone()),
    })
}

fn part_text(part: &Json) -> Result<&str, Unfit> {
    let kind = part.get("type").and_then(Json::as_str);
    let text = [part.get("text"), part.get("refusal"), Some(part)];
    match text.into_iter().flatten().find_map(Json::as_str) {
        Some(text) => Ok(text),
        None => Err(Unfit::Part(kind.unwrap_or("unknown").to_owned())),
    }
}

fn call(call: &ToolCall, shape: &Shape) -> Json {
    let mut fields = Map::new();
    if !call.id.is_empty() {
        fields.insert("id".to_owned(), call.id.as_str().into());
    }
    fields.insert("type".to_owned(), "function".into());
    let arguments = match &call.arguments {
        Json::String(_) => call.arguments.clone(),
        arguments if shape.arguments_as_text => {
            let mut text = String::new();
            dump(arguments, &mut text);
            text.into()
        }
        arguments => arguments.clone(),
    };
    let function = json!({"name": call.name, "arguments": arguments});
    fields.insert("function".to_owned(), function);
    Json::Object(fields)
}

/// Writes JSON like Python's `json.dumps(value, ensure_ascii=False)`, as in training data.
pub(super) fn dump(value: &Json, out: &mut String) {
    match value {
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                dump(item, out);
            }
            out.push(']');
        }
        Json::Object(fields) => {
            out.push('{');
            for (i, (name, value)) in fields.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                out.push_str(&Json::from(name.as_str()).to_string());
                out.push_str(": ");
                dump(value, out);
            }
            out.push('}');
        }
        Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => out.push_str(&float(number)),
            None => out.push_str(&number.to_string()),
        },
        other => out.push_str(&other.to_string()),
    }
}
