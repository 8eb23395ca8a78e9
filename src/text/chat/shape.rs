//! Detects the data shapes that a template expects: arguments of calls as an object or as text,
//! messages without content or not, content as text, as a list of parts, or both. This renders
//! small conversations and searches the output for probe strings; each question is asked when a
//! conversation first needs its answer.

use std::sync::OnceLock;

use serde_json::{Value as Json, json};

use super::{ChatTemplate, Content, Conversation, Message, ToolCall};

/// Content shapes that a template supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Form {
    /// Unchanged, text or parts.
    #[default]
    Either,
    /// Parts joined to text.
    Text,
    /// Text converted to a list of one part.
    Parts,
}

/// Supported values of absent content next to calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Absent {
    /// `none` or empty text.
    #[default]
    Either,
    /// Empty text only.
    Text,
    /// `none` only: the template writes calls in no other case.
    None,
}

/// Conversions of a conversation for a template.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shape {
    /// Whether arguments become JSON text.
    pub(super) arguments_as_text: bool,
    /// Value for absent content.
    pub(super) absent: Absent,
    /// Content shape for each kind of role, as numbered by [`kind_of`].
    pub(super) forms: [Form; 4],
    /// Place of the assistant's reasoning.
    pub(super) reasoning: Reasoning,
    /// Whether `tools` is undefined instead of `none` if there are no tools.
    pub(super) no_tools_undefined: bool,
    /// Whether the tools are also in `functions`, as JSON text that the template appends to its own
    /// (FireFunction).
    pub(super) functions: bool,
}

/// Place where a template reads the assistant's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasoning {
    /// A field of the message with this name.
    Field(&'static str),
    /// A part of the content with type `thinking`.
    Part,
}

impl Default for Reasoning {
    fn default() -> Reasoning {
        Reasoning::Field("reasoning_content")
    }
}

/// Returns the kind of a role: 0 = system, 1 = user, 2 = assistant, 3 = tool. A template may treat
/// the content of each differently.
pub(super) fn kind_of(role: &str) -> usize {
    match role {
        "system" | "developer" => 0,
        "assistant" | "model" => 2,
        "tool" | "function" | "ipython" => 3,
        _ => 1,
    }
}

/// Cached answers about a template.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    arguments_as_text: OnceLock<bool>,
    absent: OnceLock<Absent>,
    forms: [OnceLock<Form>; 4],
    reasoning: OnceLock<Reasoning>,
    pub(super) takes: Takes,
}

/// Message kinds that a template supports.
#[derive(Debug, Default)]
pub(super) struct Takes {
    pub(super) system: OnceLock<bool>,
    pub(super) late_system: OnceLock<bool>,
    pub(super) tools: OnceLock<bool>,
    pub(super) calls: OnceLock<bool>,
    pub(super) results: OnceLock<bool>,
}

const KEY: &str = "needle_key";
/// Probe for the value of a call's argument.
const NEEDLE: &str = "needle_value";
/// Probes for content and for reasoning.
const SAID: &str = "needle_said";
const THOUGHT: &str = "needle_thought";
/// Name of a tool that is offered and never called.
const TOOL: &str = "needle_tool";
/// Call id of nine letters and digits: some templates accept no others.
const PROBE_ID: &str = "call00001";

impl ChatTemplate {
    /// Returns the shape for this conversation.
    pub(super) fn shape(&self, conversation: &Conversation) -> Shape {
        let messages = &conversation.messages;
        let mut shape = self.plain_shape();
        if messages
            .iter()
            .any(|message| !message.tool_calls.is_empty())
        {
            let as_text = || self.wants_arguments_as_text();
            shape.arguments_as_text = *self.shapes.arguments_as_text.get_or_init(as_text);
        }
        let empty = Content::Text(String::new());
        let absent = |message: &Message| {
            let called = !message.tool_calls.is_empty();
            message.content == Content::None || (called && message.content == empty)
        };
        if messages.iter().any(absent) {
            shape.absent = *self.shapes.absent.get_or_init(|| self.absent());
        }
        if messages.iter().any(|m| m.reasoning_content.is_some()) {
            shape.reasoning = *self.shapes.reasoning.get_or_init(|| self.reasoning());
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

    /// Returns the shape known without rendering.
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
            reasoning: Reasoning::Field(reasoning.unwrap_or("reasoning_content")),
            functions: self.source.contains("+ functions"),
            ..Shape::default()
        }
    }

    /// Renders messages; `None` if that fails.
    fn try_shape(&self, messages: Vec<Message>, shape: Shape) -> Option<String> {
        self.try_tools(messages, vec![tool("probe")], shape)
    }

    fn try_tools(&self, messages: Vec<Message>, tools: Vec<Json>, shape: Shape) -> Option<String> {
        let conversation = Conversation {
            messages,
            tools,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        self.render_as(&conversation, &shape).ok()
    }

    /// Returns whether a plain question can be rendered: if a template refuses even that, its other
    /// failures mean nothing.
    fn takes_questions(&self) -> bool {
        [Form::Either, Form::Parts].into_iter().any(|form| {
            let mut shape = self.plain_shape();
            shape.forms = [form; 4];
            let question = vec![Message::new("user", SAID)];
            let rendered = self.try_tools(question, Vec::new(), shape);
            rendered.is_some_and(|out| out.contains(SAID))
        })
    }

    /// Returns whether the template shows the content probe in these messages.
    fn shows_said(&self, messages: Vec<Message>, tools: Vec<Json>) -> bool {
        let conversation = Conversation {
            messages,
            ..Conversation::default()
        };
        let shape = self.shape(&conversation);
        let rendered = self.try_tools(conversation.messages, tools, shape);
        rendered.is_some_and(|out| out.contains(SAID))
    }

    /// Returns whether the template supports a system message.
    pub(super) fn takes_system(&self) -> bool {
        *self.shapes.takes.system.get_or_init(|| {
            let messages = saying(0, Content::Text(SAID.to_owned()));
            self.shows_said(messages, Vec::new()) || !self.takes_questions()
        })
    }

    /// Returns whether the template supports a system message after others.
    pub(super) fn takes_late_system(&self) -> bool {
        *self.shapes.takes.late_system.get_or_init(|| {
            let messages = vec![
                Message::new("user", "probe"),
                Message::new("assistant", "probe"),
                Message::new("system", SAID),
                Message::new("user", "probe"),
            ];
            self.shows_said(messages, Vec::new()) || !self.takes_questions()
        })
    }

    /// Returns whether the template supports tools.
    pub fn takes_tools(&self) -> bool {
        let shows = || {
            let shape = self.shape(&Conversation {
                messages: vec![Message::new("user", "probe")],
                ..Conversation::default()
            });
            let question = vec![Message::new("user", "probe")];
            let rendered = self.try_tools(question, vec![tool(TOOL)], shape);
            rendered.is_some_and(|out| out.contains(TOOL)) || !self.takes_questions()
        };
        *self.shapes.takes.tools.get_or_init(shows)
    }

    /// Returns whether the template writes the calls of earlier turns.
    pub(super) fn takes_calls(&self) -> bool {
        let shows = || {
            let contents = [Content::Text(String::new()), Content::None];
            let mut shapes = [self.plain_shape(), self.plain_shape()];
            shapes[1].arguments_as_text = true;
            let shows = contents.into_iter().any(|content| {
                shapes.into_iter().any(|shape| {
                    let rendered = self.try_shape(calling(content.clone()), shape);
                    rendered.is_some_and(|out| out.contains(NEEDLE))
                })
            });
            shows || !self.takes_questions()
        };
        *self.shapes.takes.calls.get_or_init(shows)
    }

    /// Returns whether the template writes tool results.
    pub(super) fn takes_results(&self) -> bool {
        let shows = || {
            let messages = match self.takes_calls() {
                true => saying(3, Content::Text(SAID.to_owned())),
                false => vec![
                    Message::new("user", "probe"),
                    Message::new("assistant", "probe"),
                    result(Content::Text(SAID.to_owned())),
                ],
            };
            self.shows_said(messages, vec![tool("probe")]) || !self.takes_questions()
        };
        *self.shapes.takes.results.get_or_init(shows)
    }

    /// Returns the place for reasoning: the field that the source names, unless the template shows
    /// reasoning only as a part of the content.
    fn reasoning(&self) -> Reasoning {
        let shape = self.plain_shape();
        if !self.source.contains("thinking") {
            return shape.reasoning;
        }
        let messages = [Content::Text(SAID.to_owned()), Content::None].map(|content| {
            let mut messages = calling(content);
            messages[1].reasoning_content = Some(THOUGHT.to_owned());
            messages
        });
        // If parts are printed as a list, the template expects text.
        let printed = |out: &str| {
            ["'", "\""]
                .iter()
                .any(|q| out.contains(&format!("{q}{THOUGHT}")))
        };
        let shows = |reasoning: Reasoning| {
            messages.iter().any(|messages| {
                let shape = Shape { reasoning, ..shape };
                let rendered = self.try_shape(messages.clone(), shape);
                rendered.is_some_and(|out| out.contains(THOUGHT) && !printed(&out))
            })
        };
        match !shows(shape.reasoning) && shows(Reasoning::Part) {
            true => Reasoning::Part,
            false => shape.reasoning,
        }
    }

    fn wants_arguments_as_text(&self) -> bool {
        // Some templates write calls only if there is no content, others only if there is.
        for content in [Content::Text(String::new()), Content::None] {
            let call = calling(content);
            let shape = self.plain_shape();
            let object = self.try_shape(call.clone(), shape);
            // If an object is printed as a Python dict, the template expects text.
            let printed = format!("'{KEY}': '");
            if object.is_some_and(|out| out.contains(NEEDLE) && !out.contains(&printed)) {
                return false;
            }
            let shape = Shape {
                arguments_as_text: true,
                ..shape
            };
            let text = self.try_shape(call, shape);
            // If a text is quoted once more, the template expects an object.
            let quoted = format!("\\\"{KEY}");
            if text.is_some_and(|out| out.contains(NEEDLE) && !out.contains(&quoted)) {
                return true;
            }
        }
        false
    }

    fn absent(&self) -> Absent {
        let as_text = || self.wants_arguments_as_text();
        let shape = Shape {
            arguments_as_text: *self.shapes.arguments_as_text.get_or_init(as_text),
            ..self.plain_shape()
        };
        let none = self.try_shape(calling(Content::None), shape);
        let text = self.try_shape(calling(Content::Text(String::new())), shape);
        let called = |out: &Option<String>| out.as_ref().is_some_and(|out| out.contains(NEEDLE));
        // Printed `none`: Python's, or JSON's where the content is written as JSON.
        let nones = |out: &str| out.matches("None").count() + out.matches("null").count();
        match (none, text) {
            (none, text) if called(&none) && !called(&text) => Absent::None,
            (_, None) => Absent::Either,
            (Some(none), Some(text)) if nones(&none) <= nones(&text) => Absent::Either,
            _ => Absent::Text,
        }
    }

    fn form_of(&self, kind: usize) -> Form {
        let as_text = || self.wants_arguments_as_text();
        let shape = Shape {
            arguments_as_text: kind == 3 && *self.shapes.arguments_as_text.get_or_init(as_text),
            ..self.plain_shape()
        };
        let part = json!({"type": "text", "text": SAID});
        let parts = self.try_shape(saying(kind, Content::Parts(vec![part])), shape);
        // If parts are printed as a list, the template expects text.
        let dumps = ["'text': '", "\"text\": \"", "\"text\":\""].map(|key| format!("{key}{SAID}"));
        let takes_parts = parts
            .is_some_and(|out| out.contains(SAID) && !dumps.iter().any(|dump| out.contains(dump)));
        if !takes_parts {
            return Form::Text;
        }
        let text = self.try_shape(saying(kind, Content::Text(SAID.to_owned())), shape);
        match text.is_some_and(|out| out.contains(SAID)) {
            true => Form::Either,
            false => Form::Parts,
        }
    }
}

/// Returns a conversation with a call.
fn calling(content: Content) -> Vec<Message> {
    let call = ToolCall {
        id: PROBE_ID.to_owned(),
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
        result(Content::Text("probed".to_owned())),
    ]
}

/// Returns a tool result.
fn result(content: Content) -> Message {
    Message {
        role: "tool".to_owned(),
        content,
        name: Some("probe".to_owned()),
        tool_call_id: Some(PROBE_ID.to_owned()),
        ..Message::default()
    }
}

/// Returns a tool with one parameter.
fn tool(name: &str) -> Json {
    let parameters = json!({
        "type": "object",
        "properties": {KEY: {"type": "string", "description": "a key"}},
        "required": [KEY],
    });
    let function = json!({"name": name, "description": "a probe", "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// Returns a conversation with this content in a message of one role.
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
