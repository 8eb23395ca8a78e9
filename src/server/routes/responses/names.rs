//! What the fields of a request are called, told by what they are called in the one for a chat that
//! is made of it: errors name what the client has sent.

/// What messages and tools were made of, in their order.
#[derive(Default)]
pub(super) struct Names {
    pub(super) messages: Vec<String>,
    pub(super) tools: Vec<String>,
}

/// Fields whose name is another, and all that is inside them; the first that fits counts.
const FIELDS: [(&str, &str); 7] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("tool_choice.function", "tool_choice"),
    ("json_schema", "text.format"),
];

/// The same inside a message.
const PARTS: [(&str, &str); 4] = [
    (".tool_calls[0].function", ""),
    (".tool_calls[0].id", ".call_id"),
    (".tool_calls[0]", ""),
    (".tool_call_id", ".call_id"),
];

impl Names {
    /// The client's name of a field of the chat.
    pub(super) fn of(&self, field: &str) -> String {
        if let Some((own, rest)) = element(field, "messages[", &self.messages) {
            return match own {
                // these have a text and nothing else
                "instructions" | "input" => own.to_owned(),
                _ => format!("{own}{}", replaced(rest, &PARTS)),
            };
        }
        if let Some((own, rest)) = element(field, "tools[", &self.tools) {
            return format!("{own}{}", replaced(rest, &[(".function", "")]));
        }
        replaced(field, &FIELDS)
    }
}

/// What an element of a list was made of, and what follows its index.
fn element<'a>(field: &'a str, list: &str, all: &'a [String]) -> Option<(&'a str, &'a str)> {
    let (index, rest) = field.strip_prefix(list)?.split_once(']')?;
    let own = all.get(index.parse::<usize>().ok()?)?;
    Some((own, rest))
}

/// A path with another beginning.
fn replaced(path: &str, beginnings: &[(&str, &str)]) -> String {
    for (beginning, own) in beginnings {
        if let Some(rest) = path.strip_prefix(beginning)
            && (rest.is_empty() || rest.starts_with(['.', '[']))
        {
            return format!("{own}{rest}");
        }
    }
    path.to_owned()
}
