//! Reads and checks a request's messages and tools, for a chat template.

mod choice;

pub(crate) use choice::ToolChoice;
use octavo_grammar::tool_name;
use octavo_text::chat::{Content, ContinuedPart, Conversation, Message, ToolCall, thinking};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::json;

pub(crate) const MAX_MESSAGES: usize = 2048;
pub(crate) const MAX_PARTS: usize = 1024;
pub(crate) const MAX_CALLS: usize = 128;
pub(crate) const MAX_TOOLS: usize = 1024;
const MAX_NAME: usize = 256;

/// Contents of a chat request.
pub(crate) struct Asked<'a> {
    pub(crate) conversation: Conversation,
    pub(crate) choice: ToolChoice,
    /// Part of the last message, which is the assistant's, that the answer continues.
    pub(crate) continues: Option<ContinuedPart>,
    /// Images of all messages, in order; the conversation has markers in their places.
    pub(crate) images: Vec<Image<'a>>,
}

/// An image of a request.
pub(crate) struct Image<'a> {
    /// Field that contains it.
    pub(crate) field: String,
    /// Data URL, bare base64, or URL to fetch.
    pub(crate) url: &'a str,
}

/// Reads `messages`, `tools` and other template input. If images are accepted, those in messages
/// are replaced by markers.
pub(crate) fn read<'a>(app: &App, fields: &Fields<'a>) -> Result<Asked<'a>, ApiError> {
    let messages = fields.need("messages", fields.list("messages", MAX_MESSAGES)?)?;
    if messages.is_empty() {
        return Err(fields.wrong("messages", "at least one message"));
    }
    let mut parts = Parts {
        marker: app.marker(),
        images: Vec::new(),
    };
    let read =
        |(i, value): (usize, &'a Value)| message(value, &format!("messages[{i}]."), &mut parts);
    let messages = messages
        .iter()
        .enumerate()
        .map(read)
        .collect::<Result<Vec<Message>, _>>()?;
    let (choice, tools) = choice::read(fields, tools(fields)?)?;
    let continues = continues(app, fields, &messages)?;
    let conversation = Conversation {
        messages,
        tools,
        add_generation_prompt: fields.bool("add_generation_prompt")?.unwrap_or(true),
        kwargs: kwargs(fields)?,
    };
    Ok(Asked {
        conversation,
        choice,
        continues,
        images: parts.images,
    })
}

/// Reads the variables of the template.
fn kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    if let Some(thinks) = fields.bool("enable_thinking")? {
        kwargs.extend(thinking(thinks));
    }
    match fields.str("reasoning_effort")? {
        // no template has such an effort
        Some("none") => kwargs.extend(thinking(false)),
        Some(effort) => {
            kwargs.insert("reasoning_effort".to_owned(), json!(effort));
        }
        None => {}
    }
    let own = fields.object("chat_template_kwargs")?;
    kwargs.extend(own.cloned().unwrap_or_default());
    Ok(kwargs)
}

/// Returns which part of the last message the answer continues, if any: if the request says so, or
/// if that message is the assistant's without calls, as in llama-server.
fn continues(
    app: &App,
    fields: &Fields<'_>,
    messages: &[Message],
) -> Result<Option<ContinuedPart>, ApiError> {
    const NAME: &str = "continue_final_message";
    let last = |continues: bool| Ok(continues.then_some(ContinuedPart::Last));
    match fields.get(NAME) {
        Some(Value::String(part)) if part == "content" => Ok(Some(ContinuedPart::Content)),
        Some(Value::String(part)) if part == "reasoning_content" => {
            Ok(Some(ContinuedPart::Reasoning))
        }
        Some(Value::Bool(true)) if fields.bool("add_generation_prompt")? == Some(true) => {
            let expected = "false beside continue_final_message: a message is begun or continued";
            Err(fields.wrong("add_generation_prompt", expected))
        }
        Some(Value::Bool(continues)) => last(*continues),
        Some(_) => Err(fields.wrong(NAME, "true, false, content or reasoning_content")),
        None => {
            let message = messages.last().filter(|last| last.role == "assistant");
            let is_text = message.is_some_and(|message| message.tool_calls.is_empty());
            last(is_text && app.options.prefill_assistant)
        }
    }
}

fn message<'a>(
    value: &'a Value,
    path: &str,
    parts: &mut Parts<'a, '_>,
) -> Result<Message, ApiError> {
    let fields = Fields::at(value, path)?;
    let role = match fields.need("role", fields.str("role")?)? {
        // the newer name of the role, which few templates know
        "developer" => "system",
        // and the older name
        "function" => "tool",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        _ => {
            let expected = "system, developer, user, assistant or tool";
            return Err(fields.wrong("role", expected));
        }
    };
    let tool_calls = tool_calls(&fields, path)?;
    // null means none, as everywhere; a message without the field is a mistake
    if role != "assistant" && !fields.has("content") {
        return Err(fields.wrong("content", "a string or a list of parts"));
    }
    let content = parts.content(value, path)?;
    let reasoning = match fields.str("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.str("reasoning")?,
    };
    Ok(Message {
        role: role.to_owned(),
        content,
        name: fields.str("name")?.map(str::to_owned),
        reasoning_content: reasoning.map(str::to_owned),
        tool_calls,
        tool_call_id: fields.str("tool_call_id")?.map(str::to_owned),
    })
}

/// Reads the parts of messages.
struct Parts<'a, 'm> {
    /// Marker for an image in a text, if images are accepted.
    marker: Option<&'m str>,
    images: Vec<Image<'a>>,
}

/// One part of a message.
enum Part<'a> {
    Text(&'a str),
    Image(Image<'a>),
}

impl<'a> Parts<'a, '_> {
    fn content(&mut self, message: &'a Value, path: &str) -> Result<Content, ApiError> {
        match &message["content"] {
            Value::Null => Ok(Content::None),
            Value::String(text) => Ok(Content::Text(text.clone())),
            content => {
                // reports errors in the list
                Fields::at(message, path)?.list("content", MAX_PARTS)?;
                let parts = content.as_array().map_or(&[][..], Vec::as_slice);
                let read = |(i, value): (usize, &'a Value)| {
                    self.part(value, &format!("{path}content[{i}]."))
                };
                let parts: Vec<Part<'a>> = parts
                    .iter()
                    .enumerate()
                    .map(read)
                    .collect::<Result<_, _>>()?;
                Ok(self.join(parts))
            }
        }
    }

    /// Returns texts as parts. If there are images, joins all into one text as llama-server does:
    /// texts on lines of their own, and image markers in their places.
    fn join(&mut self, parts: Vec<Part<'a>>) -> Content {
        let has_image = parts.iter().any(|part| matches!(part, Part::Image(_)));
        let marker = self.marker.filter(|_| has_image);
        let Some(marker) = marker else {
            let texts = parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(json!({ "type": "text", "text": text })),
                Part::Image(_) => None,
            });
            return Content::Parts(texts.collect());
        };
        let (mut all, mut after_text) = (String::new(), false);
        for part in parts {
            match part {
                Part::Text(text) => {
                    if after_text {
                        all.push('\n');
                    }
                    all.push_str(text);
                    after_text = true;
                }
                Part::Image(image) => {
                    all.push_str(marker);
                    self.images.push(image);
                    after_text = false;
                }
            }
        }
        Content::Text(all)
    }

    fn part(&self, value: &'a Value, path: &str) -> Result<Part<'a>, ApiError> {
        let fields = Fields::at(value, path)?;
        match fields.need("type", fields.str("type")?)? {
            "text" | "input_text" | "output_text" => text(value, &fields, "text"),
            "refusal" => text(value, &fields, "refusal"),
            "image_url" | "image" | "input_image" if self.marker.is_some() => {
                image(value, &fields, path).map(Part::Image)
            }
            "image_url" | "image" | "input_image" => {
                Err(fields.wrong("type", "text: this model takes no images"))
            }
            "input_audio" | "audio" | "video" | "video_url" | "file" => {
                Err(fields.wrong("type", "text: this model takes nothing else"))
            }
            _ => Err(fields.wrong("type", "text")),
        }
    }
}

fn text<'a>(part: &'a Value, fields: &Fields<'_>, name: &str) -> Result<Part<'a>, ApiError> {
    fields.need(name, fields.str(name)?)?;
    Ok(Part::Text(part[name].as_str().unwrap_or_default()))
}

/// Reads an image: `image_url` is an object with its `url`, or the URL.
fn image<'a>(part: &'a Value, fields: &Fields<'_>, path: &str) -> Result<Image<'a>, ApiError> {
    let field = format!("{path}image_url");
    fields.need("image_url", fields.get("image_url"))?;
    let (field, url) = match &part["image_url"] {
        Value::String(url) => (field, url.as_str()),
        value => {
            let inner_path = format!("{field}.");
            let Some(url) = value.get("url").and_then(Value::as_str) else {
                return Err(ApiError::bad_field(field, "expected an object with a url"));
            };
            (format!("{inner_path}url"), url)
        }
    };
    Ok(Image { field, url })
}

fn tool_calls(fields: &Fields<'_>, path: &str) -> Result<Vec<ToolCall>, ApiError> {
    let calls = fields.list("tool_calls", MAX_CALLS)?.unwrap_or_default();
    let read = |(i, value): (usize, &Value)| {
        let outer_path = format!("{path}tool_calls[{i}].");
        let outer = Fields::at(value, &outer_path)?;
        let function = outer.need("function", outer.get("function"))?;
        let id = outer.str("id")?.unwrap_or_default();
        call(function, &format!("{outer_path}function."), id)
    };
    let mut calls = calls
        .iter()
        .enumerate()
        .map(read)
        .collect::<Result<Vec<ToolCall>, _>>()?;
    // the older form of a single call
    if let (true, Some(function)) = (calls.is_empty(), fields.get("function_call")) {
        calls.push(call(function, &format!("{path}function_call."), "")?);
    }
    Ok(calls)
}

fn call(function: &Value, path: &str, id: &str) -> Result<ToolCall, ApiError> {
    let inner = Fields::at(function, path)?;
    let name = inner.need("name", inner.str("name")?)?;
    let arguments = match inner.get("arguments") {
        None => Value::Object(Map::new()),
        Some(Value::String(text)) => match json::parse(text.as_bytes()) {
            Ok(object @ Value::Object(_)) => object,
            _ if text.trim().is_empty() => Value::Object(Map::new()),
            _ => Value::String(text.clone()),
        },
        Some(object @ Value::Object(_)) => object.clone(),
        Some(_) => return Err(inner.wrong("arguments", "JSON as a string")),
    };
    Ok(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    })
}

fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    for (i, value) in tools.iter().enumerate() {
        let path = format!("tools[{i}].");
        let tool = Fields::at(value, &path)?;
        if tool.need("type", tool.str("type")?)? != "function" {
            return Err(tool.wrong("type", "function"));
        }
        let function = tool.need("function", tool.get("function"))?;
        let path = format!("tools[{i}].function.");
        let function = Fields::at(function, &path)?;
        let name = function.need("name", function.str("name")?)?;
        let is_sound = !name.is_empty() && name.len() <= MAX_NAME;
        if !is_sound || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(function.wrong("name", "letters, digits, _ and -"));
        }
        function.str("description")?;
        function.object("parameters")?;
    }
    Ok(tools.to_vec())
}
