//! Adapts conversations to templates that lack support for parts of them: a system message goes to
//! the head of the first user message, a later one into the user message beside it, tool
//! definitions into the system message, tool calls into the assistant's text, and tool results into
//! a user message. Nothing of a conversation is dropped.

use serde_json::{Value as Json, json};

use super::answer::{Arguments, CallFormat};
use super::context::dump;
use super::shape::kind_of;
use super::{ChatTemplate, Content, Conversation, Message, ToolCall};

/// Text before and after a tool result in a user message.
const RESULT: (&str, &str) = ("<tool_response>\n", "\n</tool_response>");

impl ChatTemplate {
    /// Returns the conversation adapted to this template; `None` if it supports everything as is.
    pub(super) fn adapt(&self, conversation: &Conversation) -> Option<Conversation> {
        let tools_as_text = !conversation.tools.is_empty() && !self.takes_tools();
        self.adapt_with(conversation, tools_as_text)
    }

    /// As [`ChatTemplate::adapt`], with the tools in the system message if `tools_as_text`.
    pub(super) fn adapt_with(
        &self,
        conversation: &Conversation,
        tools_as_text: bool,
    ) -> Option<Conversation> {
        let messages = &conversation.messages;
        let says = |kind: usize| messages.iter().any(|m| kind_of(&m.role) == kind);
        let calls = messages.iter().any(|m| !m.tool_calls.is_empty());
        let calls_as_text = calls && !self.takes_calls();
        let results_as_user = says(3) && !self.takes_results();
        let system_as_user = (says(0) || tools_as_text) && !self.takes_system();
        let late_as_user =
            has_late_system(messages) && (system_as_user || !self.takes_late_system());
        if !(tools_as_text || calls_as_text || results_as_user || system_as_user || late_as_user) {
            return None;
        }
        let mut adapted = conversation.clone();
        let format = CallFormat::of(self.source());
        if tools_as_text {
            let tools = std::mem::take(&mut adapted.tools);
            add_to_system(&mut adapted.messages, &offer(&tools, format));
        }
        if calls_as_text {
            adapted
                .messages
                .iter_mut()
                .for_each(|m| say_calls(m, format));
        }
        if results_as_user {
            adapted.messages = with_results(adapted.messages);
        }
        if late_as_user {
            adapted.messages = with_late_system(adapted.messages);
        }
        if system_as_user {
            merge_system(&mut adapted.messages);
        }
        Some(adapted)
    }
}

/// Returns the text that describes the tools to the model, and the syntax to call them.
fn offer(tools: &[Json], format: CallFormat) -> String {
    let mut text = "You may call functions to answer the user. These are their definitions, one \
                    in each line:\n"
        .to_owned();
    for tool in tools {
        dump(tool.get("function").unwrap_or(tool), &mut text);
        text.push('\n');
    }
    let call = match (format.around("NAME"), format.around_tags("NAME")) {
        (Some((before, after)), _) => format!("{before}ARGUMENTS{after}"),
        (None, Some((before, after))) => {
            let (open, close) = format.around_value("PARAMETER", true);
            format!("{before}{open}VALUE{close}{after}")
        }
        (None, None) => "{\"name\": \"NAME\", \"arguments\": ARGUMENTS}".to_owned(),
    };
    text.push_str(
        "To call a function, answer with nothing but this, with the function's name in place of \
         NAME and its arguments as a JSON object in place of ARGUMENTS:\n",
    );
    if !call.contains("ARGUMENTS") {
        // the parameters have tags of their own
        text.truncate(text.rfind(" and its arguments").unwrap_or(text.len()));
        text.push_str(" and the part with PARAMETER and VALUE once for each of its parameters:\n");
    }
    text.push_str(&call);
    text
}

/// Appends to the system message, or inserts one if there is none.
fn add_to_system(messages: &mut Vec<Message>, more: &str) {
    match messages.first_mut().filter(|m| kind_of(&m.role) == 0) {
        Some(system) => append(&mut system.content, "\n\n", more),
        None => messages.insert(0, Message::new("system", more)),
    }
}

/// Appends a message's tool calls to its text, in the model's own format.
fn say_calls(message: &mut Message, format: CallFormat) {
    let calls = std::mem::take(&mut message.tool_calls);
    if calls.is_empty() {
        return;
    }
    let section = format.section();
    let calls: Vec<String> = calls.iter().map(|call| written(call, format)).collect();
    let calls = calls.join(section.between);
    let text = format!("{}{calls}{}", section.open, section.close);
    // control tokens need no line of their own
    let separator = match text.starts_with(['[', '<']) {
        true if !text.starts_with("<tool") => "",
        _ => "\n",
    };
    append(&mut message.content, separator, &text);
}

fn written(call: &ToolCall, format: CallFormat) -> String {
    let json = |value: &Json| {
        let mut text = String::new();
        dump(value, &mut text);
        text
    };
    let form = format.call(&call.name);
    let arguments = match (form.arguments, &call.arguments) {
        (Arguments::Parameters { between }, Json::Object(arguments)) => {
            let parameters = arguments.iter().map(|(key, value)| {
                // texts are written verbatim where an end marker delimits them
                let text = value.as_str().filter(|_| format.text_end(key).is_some());
                let (open, close) = format.around_value(key, text.is_some());
                let value = text.map_or_else(|| json(value), str::to_owned);
                format!("{open}{value}{close}")
            });
            parameters.collect::<Vec<String>>().join(between)
        }
        // arguments that were not JSON
        (_, Json::String(text)) => text.clone(),
        (_, arguments) => json(arguments),
    };
    format!("{}{arguments}{}", form.before, form.after)
}

/// Turns tool results into user messages: consecutive ones, and the user message after them, become
/// one, as templates expect user and assistant to alternate.
fn with_results(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    let mut after_result = false;
    for mut message in messages {
        let kind = kind_of(&message.role);
        if kind == 3 {
            let content = std::mem::take(&mut message.content);
            let mut result = Content::Text(RESULT.0.to_owned());
            join(&mut result, "", content);
            append(&mut result, "", RESULT.1);
            message = Message {
                role: "user".to_owned(),
                content: result,
                ..Message::default()
            };
        }
        match all
            .last_mut()
            .filter(|_| after_result && (kind == 3 || kind == 1))
        {
            Some(last) => join(&mut last.content, "\n", message.content),
            None => all.push(message),
        }
        after_result = kind == 3 || (after_result && kind == 1);
    }
    all
}

/// Moves the system messages at the beginning to the head of the first user message, as llama.cpp
/// does with all. A later one would change how the conversation begins, and nothing of it would
/// come from the cache.
fn merge_system(messages: &mut Vec<Message>) {
    let mut system = Content::None;
    messages.retain_mut(|message| {
        let is_system = kind_of(&message.role) == 0;
        if is_system {
            join(&mut system, "\n", std::mem::take(&mut message.content));
        }
        !is_system
    });
    match messages.iter_mut().find(|m| kind_of(&m.role) == 1) {
        Some(user) => {
            join(&mut system, "\n", std::mem::take(&mut user.content));
            user.content = system;
        }
        None => messages.insert(
            0,
            Message {
                role: "user".to_owned(),
                content: system,
                ..Message::default()
            },
        ),
    }
}

/// Returns whether a system message comes after others.
fn has_late_system(messages: &[Message]) -> bool {
    messages.iter().skip(1).any(|m| kind_of(&m.role) == 0)
}

/// Joins the system messages at the beginning, and turns later ones into user messages, or parts of
/// those beside them, as templates expect user and assistant to alternate.
fn with_late_system(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    let mut after_late = false;
    for mut message in messages {
        let is_system = kind_of(&message.role) == 0;
        let is_late = is_system && all.iter().any(|m| kind_of(&m.role) != 0);
        if is_late {
            "user".clone_into(&mut message.role);
        }
        let joins = is_system || after_late;
        let kind = kind_of(&message.role);
        match all.last_mut().filter(|m| joins && kind_of(&m.role) == kind) {
            Some(before) if is_system && !is_late => {
                join(&mut before.content, "\n", message.content);
            }
            Some(before) => join(&mut before.content, "\n\n", message.content),
            None => all.push(message),
        }
        after_late = is_late;
    }
    all
}

/// Appends text to content.
fn append(content: &mut Content, separator: &str, more: &str) {
    join(content, separator, Content::Text(more.to_owned()));
}

/// Appends content to content, with a separator between non-empty texts.
fn join(content: &mut Content, separator: &str, more: Content) {
    let text_part = |text: String| json!({"type": "text", "text": text});
    let first = std::mem::take(content);
    *content = match (first, more) {
        (Content::None, more) => more,
        (first, Content::None) => first,
        (Content::Text(mut text), Content::Text(more)) => {
            if !text.is_empty() && !more.is_empty() {
                text.push_str(separator);
            }
            text.push_str(&more);
            Content::Text(text)
        }
        (Content::Text(text), Content::Parts(mut parts)) => {
            match parts.first_mut().and_then(text_of) {
                Some(next) => next.insert_str(0, &(text + separator)),
                None => parts.insert(0, text_part(text)),
            }
            Content::Parts(parts)
        }
        (Content::Parts(mut parts), Content::Text(text)) => {
            match parts.last_mut().and_then(text_of) {
                Some(before) => before.push_str(&format!("{separator}{text}")),
                None => parts.push(text_part(text)),
            }
            Content::Parts(parts)
        }
        (Content::Parts(mut parts), Content::Parts(mut more)) => {
            if let (Some(before), Some(next)) = (
                parts.last_mut().and_then(text_of),
                more.first_mut().and_then(text_of),
            ) {
                before.push_str(separator);
                before.push_str(next);
                more.remove(0);
            }
            parts.extend(more);
            Content::Parts(parts)
        }
    };
}

/// Returns the text of a text part.
fn text_of(part: &mut Json) -> Option<&mut String> {
    match part.get_mut("text") {
        Some(Json::String(text)) => Some(text),
        _ => None,
    }
}
