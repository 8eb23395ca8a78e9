//! Prompts that end inside the assistant's last message, which the model continues.

use serde_json::Value as Json;

use super::answer::thoughts;
use super::{ChatTemplate, Content, Conversation, Error, Message};

/// Placeholder for the continued text while a template is rendered: it never occurs in text.
const CONTINUES: &str = "\u{f8f0}continues-here\u{f8f1}";

/// Part of the last message that is continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContinuedPart {
    /// Its text, or its thought if it has only that.
    #[default]
    Last,
    /// Its text: a thought before it has ended.
    Content,
    /// Its thought: a text after it is left out.
    Reasoning,
}

/// Prompt of a conversation whose last message is continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continued {
    /// Prompt, ending with the text to be continued.
    pub prompt: String,
    /// Whether it ends inside a thought.
    pub in_thought: bool,
}

impl ChatTemplate {
    /// Renders a conversation that ends with the assistant's text so far, or with its thought;
    /// `None` if its last message is not an assistant text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_conversation`].
    pub fn render_continued(
        &self,
        conversation: &Conversation,
        part: ContinuedPart,
    ) -> Result<Option<Continued>, Error> {
        let Some((last, before)) = conversation.messages.split_last() else {
            return Ok(None);
        };
        let text = match (last.role.as_str(), last.tool_calls.is_empty()) {
            ("assistant", true) => text_of(&last.content),
            _ => None,
        };
        let Some(text) = text else {
            return Ok(None);
        };
        let source = self.variant(!conversation.tools.is_empty()).source();
        let tags = thoughts(source);
        // a model without reasoning has no place for a thought
        let thought = last.reasoning_content.as_deref().filter(|_| tags.is_some());
        let thought = thought.unwrap_or_default();
        let in_thought = match part {
            ContinuedPart::Last => text.is_empty() && !thought.is_empty(),
            ContinuedPart::Content => false,
            ContinuedPart::Reasoning => !thought.is_empty(),
        };
        let shown = match text.is_empty() && thought.is_empty() {
            true => None,
            false => self.cut(conversation, in_thought).filter(|head| {
                // a template may drop a thought before the text
                in_thought || thought.is_empty() || head.contains(thought.trim())
            }),
        };
        let text = if in_thought { "" } else { &text };
        let prompt = match shown {
            Some(head) => head + if in_thought { thought } else { text },
            None => {
                let rest = Conversation {
                    messages: before.to_vec(),
                    add_generation_prompt: true,
                    ..conversation.clone()
                };
                let prompt = self.render_conversation(&rest)?;
                begun(prompt, tags, (thought, in_thought), text)
            }
        };
        Ok(Some(Continued { prompt, in_thought }))
    }

    /// Renders the prompt up to where the template writes the last message's text or thought;
    /// `None` if it writes neither.
    fn cut(&self, conversation: &Conversation, in_thought: bool) -> Option<String> {
        let mut conversation = Conversation {
            add_generation_prompt: false,
            ..conversation.clone()
        };
        let last = conversation.messages.last_mut()?;
        *last = match in_thought {
            true => Message {
                reasoning_content: Some(CONTINUES.to_owned()),
                ..std::mem::take(last)
            },
            false => Message {
                content: Content::Text(CONTINUES.to_owned()),
                ..std::mem::take(last)
            },
        };
        let mut rendered = self.render_conversation(&conversation).ok()?;
        rendered.truncate(rendered.rfind(CONTINUES)?);
        Some(rendered)
    }
}

/// Appends a thought, which goes on or has ended, and a text to a prompt that ends where an answer
/// begins.
fn begun(
    mut prompt: String,
    tags: Option<(&str, &str)>,
    (thought, goes_on): (&str, bool),
    text: &str,
) -> String {
    let Some((open, close)) = tags else {
        return prompt + text;
    };
    let is_open = prompt.trim_end().ends_with(open);
    // tags like <think> are on lines of their own
    let (line, lines) = match open.ends_with("think>") {
        true => ("\n", "\n\n"),
        false => ("", ""),
    };
    if !thought.is_empty() {
        if !is_open {
            prompt.push_str(open);
            prompt.push_str(line);
        }
        prompt.push_str(thought);
    }
    let has_thought = !thought.is_empty() || (is_open && !text.is_empty());
    if has_thought && !goes_on {
        for piece in [line, close, lines] {
            prompt.push_str(piece);
        }
    }
    prompt.push_str(text);
    prompt
}

/// Returns the text of content; `None` if there is anything but text.
fn text_of(content: &Content) -> Option<String> {
    match content {
        Content::None => Some(String::new()),
        Content::Text(text) => Some(text.clone()),
        Content::Parts(parts) => {
            let text = |part: &Json| part.get("text").and_then(Json::as_str).map(str::to_owned);
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.map(|texts| texts.join("\n"))
        }
    }
}
