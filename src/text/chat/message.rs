//! Input of a template: messages, tools and variables.

use serde_json::{Map, Value};

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// No content, as in a message that only calls tools: JSON's `null`.
    #[default]
    None,
    /// Text.
    Text(String),
    /// Parts as in OpenAI's API: objects with a `type`, such as `{"type": "text", "text": "…"}`.
    Parts(Vec<Value>),
}

/// A tool call made by the assistant in an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Call id that the tool's result refers to; may be empty.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments: an object, or a string with the raw text if that was not JSON.
    pub arguments: Value,
}

/// One message of a conversation. Absent fields are absent in the template too, not empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, …
    pub role: String,
    /// Content of the message.
    pub content: Content,
    /// Name of the author; for a tool result, the function.
    pub name: Option<String>,
    /// Assistant's reasoning before the content.
    pub reasoning_content: Option<String>,
    /// Tools that the assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that a tool result answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// Creates a text-only message.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: Content::Text(text.into()),
            ..Message::default()
        }
    }
}

/// All input of a template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools as in OpenAI's API: `{"type": "function", "function": {…}}`. If empty, `tools` is
    /// `none` in the template.
    pub tools: Vec<Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further template variables: `enable_thinking`, `reasoning_effort`, …
    pub kwargs: Map<String, Value>,
}

/// Returns the variables by which templates switch reasoning on or off.
pub fn thinking(thinks: bool) -> [(String, Value); 2] {
    ["enable_thinking", "thinking"].map(|name| (name.to_owned(), Value::Bool(thinks)))
}
