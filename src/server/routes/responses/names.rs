//! What the fields of a request are called, told by what they are called in the one for a chat that
//! is made of it: errors name what the client has sent.

/// What messages and tools were made of, in their order.
#[derive(Default)]
pub(super) struct Names {
    pub(super) messages: Vec<Item>,
    pub(super) tools: Vec<String>,
}

/// What a message was made of: an item of the input, or several of an assistant.
pub(super) struct Item {
    /// The first of them, or what the message says.
    name: String,
    /// Whether `name` is what it says.
    says: bool,
    /// Those that call tools.
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

    /// Notes the first item that has the message's content.
    pub(super) fn say(&mut self, name: &str) {
        if !std::mem::replace(&mut self.says, true) {
            name.clone_into(&mut self.name);
        }
    }
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
const PARTS: [(&str, &str); 1] = [(".tool_call_id", ".call_id")];

/// And inside a call.
const CALL: [(&str, &str); 2] = [(".function", ""), (".id", ".call_id")];

impl Names {
    /// The client's name of a field of the chat.
    pub(super) fn of(&self, field: &str) -> String {
        if let Some((item, rest)) = element(field, "messages[", &self.messages) {
            if let Some((call, rest)) = element(rest, ".tool_calls[", &item.calls) {
                return format!("{call}{}", replaced(rest, &CALL));
            }
            let own = item.name.as_str();
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
fn element<'a, T>(field: &'a str, list: &str, all: &'a [T]) -> Option<(&'a T, &'a str)> {
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
