//! What a template is given: messages, tools and variables.

use serde_json::{Map, Value};

/// What was said in a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// Nothing, as in a message that only calls tools: JSON's `null`.
    #[default]
    None,
    /// Text.
    Text(String),
    /// Parts as OpenAI's interface has them: objects with a `type`, such as
    /// `{"type": "text", "text": "…"}`.
    Parts(Vec<Value>),
}

/// One call of a tool, made by the assistant in an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What the tool's answer refers to; may be empty.
    pub id: String,
    /// The function.
    pub name: String,
    /// An object; or a string with the text where it was not JSON.
    pub arguments: Value,
}

/// One message of a conversation. What is absent is absent in the template too, not empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, …
    pub role: String,
    /// What was said.
    pub content: Content,
    /// Who said it; for a tool's answer, the function.
    pub name: Option<String>,
    /// What an assistant thought before it said it.
    pub reasoning_content: Option<String>,
    /// The tools that an assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that is nothing but text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Message {
        Message {
            role: role.into(),
            content: Content::Text(text.into()),
            ..Message::default()
        }
    }
}

/// All that a template renders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conversation {
    /// The messages, the oldest first.
    pub messages: Vec<Message>,
    /// Tools as OpenAI's interface has them: `{"type": "function", "function": {…}}`. Where there
    /// are none, `tools` is `none` in the template.
    pub tools: Vec<Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables of the template: `enable_thinking`, `reasoning_effort`, …
    pub kwargs: Map<String, Value>,
}

/// The variables by which templates are told whether the model thinks before it answers.
pub fn thinking(thinks: bool) -> [(String, Value); 2] {
    ["enable_thinking", "thinking"].map(|name| (name.to_owned(), Value::Bool(thinks)))
}
