//! Field names of the original request for those of the chat request made from it: errors name the
//! field that the client has sent.

/// Origins of messages and tools, in their order.
#[derive(Default)]
pub(super) struct Names {
    pub(super) messages: Vec<Item>,
    pub(super) tools: Vec<String>,
}

/// Origin of a message: an input item, or several of an assistant.
pub(super) struct Item {
    /// Name of the first item, or of the first with content.
    name: String,
    /// Whether `name` is the item with the content.
    says: bool,
    /// Names of the items that call tools.
    pub(super) calls: Vec<String>,
}

impl Item {
    pub(super) fn of(name: &str) -> Item {
        Item {
            name: name.to_owned(),
            says: false,
            calls: Vec::new(),
        }
    }

    /// Records the first item that has the message's content.
    pub(super) fn say(&mut self, name: &str) {
        if !std::mem::replace(&mut self.says, true) {
            name.clone_into(&mut self.name);
        }
    }
}

/// Renamed fields, with everything inside them; the first match counts.
const FIELDS: [(&str, &str); 7] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("tool_choice.function", "tool_choice"),
    ("json_schema", "text.format"),
];

/// Renamed fields inside a message.
const PARTS: [(&str, &str); 1] = [(".tool_call_id", ".call_id")];

/// Renamed fields inside a call.
const CALL: [(&str, &str); 2] = [(".function", ""), (".id", ".call_id")];

impl Names {
    /// Returns the client's name of a chat request's field.
    pub(super) fn of(&self, field: &str) -> String {
        if let Some((item, rest)) = element(field, "messages[", &self.messages) {
            if let Some((call, rest)) = element(rest, ".tool_calls[", &item.calls) {
                return format!("{call}{}", replaced(rest, &CALL));
            }
            let own = item.name.as_str();
            return match own {
                // these are a plain text
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

/// Returns the origin of a list element, and the path after its index.
fn element<'a, T>(field: &'a str, list: &str, all: &'a [T]) -> Option<(&'a T, &'a str)> {
    let (index, rest) = field.strip_prefix(list)?.split_once(']')?;
    let own = all.get(index.parse::<usize>().ok()?)?;
    Some((own, rest))
}

/// Replaces the beginning of a path.
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
