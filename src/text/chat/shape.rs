//! The shapes that a template takes: templates differ in whether they want a call's arguments as
//! an object or as text, bear messages without content, and take content as text, as a list of
//! parts, or both. Found out by rendering small conversations and looking for what was put in; each
//! question is asked when a conversation first needs its answer.

use std::sync::OnceLock;

use serde_json::{Value as Json, json};

use super::{ChatTemplate, Content, Conversation, Message, ToolCall};

/// How a template takes the content of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Form {
    /// As it is, text or parts.
    #[default]
    Either,
    /// Parts joined to text.
    Text,
    /// Text as a list of one part.
    Parts,
}

/// How a template takes content that is absent beside calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Absent {
    /// As `none` or as empty text.
    #[default]
    Either,
    /// As empty text.
    Text,
    /// As `none`: it writes calls nowhere else.
    None,
}

/// What a conversation is made into for a template.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shape {
    /// Arguments become JSON text.
    pub(super) arguments_as_text: bool,
    /// What is done with absent content.
    pub(super) absent: Absent,
    /// For each kind of role, as [`kind_of`] numbers them.
    pub(super) forms: [Form; 4],
    /// What the template calls `reasoning_content`.
    pub(super) reasoning: &'static str,
}

/// Which kind of role this is: 0 = system, 1 = user, 2 = assistant, 3 = tool. A template may treat
/// the content of each differently.
pub(super) fn kind_of(role: &str) -> usize {
    match role {
        "system" | "developer" => 0,
        "assistant" | "model" => 2,
        "tool" | "function" | "ipython" => 3,
        _ => 1,
    }
}

/// Answers that were found out.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    arguments_as_text: OnceLock<bool>,
    absent: OnceLock<Absent>,
    forms: [OnceLock<Form>; 4],
}

const KEY: &str = "needle_key";
const NEEDLE: &str = "needle_value";

impl ChatTemplate {
    /// The shape of this conversation.
    pub(super) fn shape(&self, conversation: &Conversation) -> Shape {
        let messages = &conversation.messages;
        let mut shape = self.plain_shape();
        if messages
            .iter()
            .any(|message| !message.tool_calls.is_empty())
        {
            let wanted = || self.wants_arguments_as_text();
            shape.arguments_as_text = *self.shapes.arguments_as_text.get_or_init(wanted);
        }
        let empty = Content::Text(String::new());
        let absent = |message: &Message| {
            let called = !message.tool_calls.is_empty();
            message.content == Content::None || (called && message.content == empty)
        };
        if messages.iter().any(absent) {
            shape.absent = *self.shapes.absent.get_or_init(|| self.absent());
        }
        for message in messages {
            let asks = match message.content {
                Content::None => false,
                Content::Text(_) => self.source.contains("type"),
                Content::Parts(_) => true,
            };
            let kind = kind_of(&message.role);
            if let (true, Some(known)) = (asks, self.shapes.forms.get(kind)) {
                shape.forms[kind] = *known.get_or_init(|| self.form_of(kind));
            }
        }
        shape
    }

    /// The shape that needs no rendering.
    fn plain_shape(&self) -> Shape {
        let has = |name: &str| {
            [
                ".N",
                "['N']",
                "[\"N\"]",
                "'N' in",
                "\"N\" in",
                "get('N'",
                "get(\"N\"",
            ]
            .iter()
            .any(|use_of| self.source.contains(&use_of.replace('N', name)))
        };
        let reasoning = ["reasoning_content", "reasoning", "thinking"]
            .into_iter()
            .find(|name| has(name));
        Shape {
            reasoning: reasoning.unwrap_or("reasoning_content"),
            ..Shape::default()
        }
    }

    /// The rendered messages, where they can be rendered.
    fn try_shape(&self, messages: Vec<Message>, shape: Shape) -> Option<String> {
        let parameters = json!({
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "a key"}},
            "required": [KEY],
        });
        let function = json!({"name": "probe", "description": "a probe", "parameters": parameters});
        let conversation = Conversation {
            messages,
            tools: vec![json!({"type": "function", "function": function})],
            add_generation_prompt: true,
            ..Conversation::default()
        };
        self.render_as(&conversation, &shape).ok()
    }

    fn wants_arguments_as_text(&self) -> bool {
        // Some templates write calls only where there is no content, others only where there is.
        for content in [Content::Text(String::new()), Content::None] {
            let call = calling(content);
            let shape = self.plain_shape();
            let object = self.try_shape(call.clone(), shape);
            // An object that is printed as Python does was meant to be text.
            let printed = format!("'{KEY}': '");
            if object.is_some_and(|out| out.contains(NEEDLE) && !out.contains(&printed)) {
                return false;
            }
            let shape = Shape {
                arguments_as_text: true,
                ..shape
            };
            let text = self.try_shape(call, shape);
            // A text that is quoted once more was meant to be an object.
            let quoted = format!("\\\"{KEY}");
            if text.is_some_and(|out| out.contains(NEEDLE) && !out.contains(&quoted)) {
                return true;
            }
        }
        false
    }

    fn absent(&self) -> Absent {
        let wanted = || self.wants_arguments_as_text();
        let shape = Shape {
            arguments_as_text: *self.shapes.arguments_as_text.get_or_init(wanted),
            ..self.plain_shape()
        };
        let none = self.try_shape(calling(Content::None), shape);
        let text = self.try_shape(calling(Content::Text(String::new())), shape);
        let called = |out: &Option<String>| out.as_ref().is_some_and(|out| out.contains(NEEDLE));
        let nones = |out: &str| out.matches("None").count();
        match (none, text) {
            (none, text) if called(&none) && !called(&text) => Absent::None,
            (_, None) => Absent::Either,
            (Some(none), Some(text)) if nones(&none) <= nones(&text) => Absent::Either,
            _ => Absent::Text,
        }
    }

    fn form_of(&self, kind: usize) -> Form {
        let wanted = || self.wants_arguments_as_text();
        let shape = Shape {
            arguments_as_text: kind == 3 && *self.shapes.arguments_as_text.get_or_init(wanted),
            ..self.plain_shape()
        };
        let part = json!({"type": "text", "text": NEEDLE});
        let parts = self.try_shape(saying(kind, Content::Parts(vec![part])), shape);
        // Parts that are printed as they are were meant to be text.
        let dumps =
            ["'text': '", "\"text\": \"", "\"text\":\""].map(|key| format!("{key}{NEEDLE}"));
        let takes_parts = parts.is_some_and(|out| {
            out.contains(NEEDLE) && !dumps.iter().any(|dump| out.contains(dump))
        });
        if !takes_parts {
            return Form::Text;
        }
        let text = self.try_shape(saying(kind, Content::Text(NEEDLE.to_owned())), shape);
        match text.is_some_and(|out| out.contains(NEEDLE)) {
            true => Form::Either,
            false => Form::Parts,
        }
    }
}

/// A conversation with a call.
fn calling(content: Content) -> Vec<Message> {
    let id = "call00001";
    let call = ToolCall {
        id: id.to_owned(),
        name: "probe".to_owned(),
        arguments: Json::Object([(KEY.to_owned(), NEEDLE.into())].into_iter().collect()),
    };
    vec![
        Message::new("user", "probe"),
        Message {
            role: "assistant".to_owned(),
            content,
            tool_calls: vec![call],
            ..Message::default()
        },
        Message {
            name: Some("probe".to_owned()),
            tool_call_id: Some(id.to_owned()),
            ..Message::new("tool", "probed")
        },
    ]
}

/// A conversation in which one role says something.
fn saying(kind: usize, content: Content) -> Vec<Message> {
    let said = |role: &str| Message {
        role: role.to_owned(),
        content: content.clone(),
        ..Message::default()
    };
    match kind {
        0 => vec![said("system"), Message::new("user", "probe")],
        2 => vec![
            Message::new("user", "probe"),
            said("assistant"),
            Message::new("user", "probe"),
        ],
        3 => {
            let mut messages = calling(Content::Text(String::new()));
            if let Some(answer) = messages.last_mut() {
                answer.content = content;
            }
            messages
        }
        _ => vec![said("user")],
    }
}
