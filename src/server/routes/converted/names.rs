//! Field names of the original request for those of the chat request made from it: errors name the
//! field that the client has sent.

/// Beginnings of paths in a chat request, and what they are in the original; the first match
/// counts.
type Beginnings = &'static [(&'static str, &'static str)];

/// Names of an interface for the fields of chat requests, with everything inside them.
pub(crate) struct Renames {
    /// Fields of the request.
    pub(crate) fields: Beginnings,
    /// Fields of a message.
    pub(crate) message: Beginnings,
    /// Fields of a part of a message whose origin is known.
    pub(crate) part: Beginnings,
    /// Fields of a call.
    pub(crate) call: Beginnings,
    /// Fields of a tool.
    pub(crate) tool: Beginnings,
    /// Fields that are a message by themselves, as a plain text.
    pub(crate) texts: &'static [&'static str],
}

/// Origins of messages and tools, in their order.
pub(crate) struct Names {
    renames: &'static Renames,
    pub(crate) messages: Vec<Item>,
    pub(crate) tools: Vec<String>,
    /// Renamed fields of this request alone.
    pub(crate) fields: Vec<(&'static str, &'static str)>,
}

/// Origin of a message: an item or message of the request, or several items of an assistant.
pub(crate) struct Item {
    /// Name of the first item, or of the first with content.
    name: String,
    /// Whether `name` is the item with the content.
    says: bool,
    /// Names of the parts of its content, where these differ from the message's own.
    pub(crate) parts: Vec<String>,
    /// Names of the items that call tools.
    pub(crate) calls: Vec<String>,
}

impl Item {
    pub(crate) fn of(name: &str) -> Item {
        Item {
            name: name.to_owned(),
            says: false,
            parts: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Records the first item that has the message's content.
    pub(crate) fn say(&mut self, name: &str) {
        if !std::mem::replace(&mut self.says, true) {
            name.clone_into(&mut self.name);
        }
    }
}

impl Names {
    pub(crate) fn new(renames: &'static Renames) -> Names {
        Names {
            renames,
            messages: Vec::new(),
            tools: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Returns the client's name of a chat request's field.
    pub(crate) fn of(&self, field: &str) -> String {
        let renames = self.renames;
        if let Some((item, rest)) = element(field, "messages[", &self.messages) {
            if let Some((call, rest)) = element(rest, ".tool_calls[", &item.calls) {
                return renamed(call, rest, renames.call);
            }
            if let Some((part, rest)) = element(rest, ".content[", &item.parts) {
                return renamed(part, rest, renames.part);
            }
            let own = item.name.as_str();
            return match renames.texts.contains(&own) {
                true => own.to_owned(),
                false => renamed(own, rest, renames.message),
            };
        }
        if let Some((own, rest)) = element(field, "tools[", &self.tools) {
            return renamed(own, rest, renames.tool);
        }
        replaced(field, &self.fields)
            .or_else(|| replaced(field, renames.fields))
            .unwrap_or_else(|| field.to_owned())
    }
}

/// Returns the origin of a list element, and the path after its index.
fn element<'a, T>(field: &'a str, list: &str, all: &'a [T]) -> Option<(&'a T, &'a str)> {
    let (index, rest) = field.strip_prefix(list)?.split_once(']')?;
    let own = all.get(index.parse::<usize>().ok()?)?;
    Some((own, rest))
}

/// Returns the path of a field inside an element.
fn renamed(element: &str, path: &str, beginnings: &[(&str, &str)]) -> String {
    let own = replaced(path, beginnings);
    format!("{element}{}", own.as_deref().unwrap_or(path))
}

/// Replaces the beginning of a path; returns `None` if it has none of these.
fn replaced(path: &str, beginnings: &[(&str, &str)]) -> Option<String> {
    beginnings.iter().find_map(|(beginning, own)| {
        let rest = path.strip_prefix(beginning)?;
        let is_whole = rest.is_empty() || rest.starts_with(['.', '[']);
        is_whole.then(|| format!("{own}{rest}"))
    })
}
