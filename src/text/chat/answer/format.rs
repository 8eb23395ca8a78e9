//! How a model writes calls of tools, seen from its template.

/// How a model writes a call of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFormat {
    /// `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`: Hermes, Qwen, …
    Hermes,
    /// `{"name": "f", "parameters": {…}}`, perhaps after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {…}}]`, or `[TOOL_CALLS]f[ARGS]{…}` in newer ones:
    /// Mistral.
    Mistral,
    /// `<tool_call><function=f><parameter=x>…</parameter></function></tool_call>`: Qwen3-Coder.
    FunctionTag,
    /// `{"name": "f", "arguments": {…}}`: for templates that show no format.
    Json,
}

impl CallFormat {
    /// The format that a template shows.
    pub fn of(template: &str) -> CallFormat {
        let has = |text: &str| template.contains(text);
        if has("<function=") {
            CallFormat::FunctionTag
        } else if has("<tool_call>") {
            CallFormat::Hermes
        } else if has("[TOOL_CALLS]") {
            CallFormat::Mistral
        } else if has("<|python_tag|>") || has("\"parameters\": ") {
            CallFormat::Llama3
        } else {
            CallFormat::Json
        }
    }

    /// The text that opens a call: where it appears in an answer, a call follows and nothing else.
    pub fn opening(self) -> &'static str {
        match self {
            CallFormat::Hermes => "<tool_call>",
            CallFormat::Llama3 | CallFormat::Json => "{\"name\": \"",
            CallFormat::Mistral => "[TOOL_CALLS]",
            CallFormat::FunctionTag => "<tool_call>\n<function=",
        }
    }

    /// The text before and after the arguments of a call of `name`, where the arguments are
    /// written as JSON; `None` where they are written otherwise.
    pub fn around(self, name: &str) -> Option<(String, String)> {
        let name = serde_json::Value::from(name);
        match self {
            CallFormat::Hermes => Some((
                format!("<tool_call>\n{{\"name\": {name}, \"arguments\": "),
                "}\n</tool_call>".to_owned(),
            )),
            CallFormat::Llama3 => Some((
                format!("{{\"name\": {name}, \"parameters\": "),
                "}".to_owned(),
            )),
            CallFormat::Mistral => Some((
                format!("[TOOL_CALLS][{{\"name\": {name}, \"arguments\": "),
                "}]".to_owned(),
            )),
            CallFormat::Json => Some((
                format!("{{\"name\": {name}, \"arguments\": "),
                "}".to_owned(),
            )),
            CallFormat::FunctionTag => None,
        }
    }
}
