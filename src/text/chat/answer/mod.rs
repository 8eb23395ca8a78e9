//! Splits an answer as it is generated into content, reasoning, and tool calls.
//!
//! A chat template shows how its model writes calls and reasoning ([`CallFormat`]); the prompt
//! shows whether the answer begins inside a thought. Text that may still become a marker is held
//! back until decided; emitted text is never revoked, and no text is lost.

mod call;
mod elements;
mod format;
mod gemma;
mod header;
mod json;
mod object;
mod parser;
mod python;
mod schema;
mod step;
mod syntax;
mod tags;
mod thoughts;
mod writing;

pub use format::CallFormat;
pub use parser::AnswerParser;
pub use schema::is_written_as_text;
pub use thoughts::Thoughts;
pub use writing::{Arguments, Call, Section};

/// Returns the markers that open and close a thought in answers of this template's model; `None` if
/// the template has none.
pub(super) fn thoughts(template: &str) -> Option<(&'static str, &'static str)> {
    let thoughts = thoughts::Thoughts::of(template);
    thoughts
        .is_shown()
        .then_some((thoughts.open, thoughts.close))
}

/// Parts that a client wants split off. Everything else stays in the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// Split off tool calls.
    pub tools: bool,
    /// Split off reasoning.
    pub reasoning: bool,
}

/// A piece of an answer. Consecutive pieces of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// More content.
    Content(String),
    /// More reasoning.
    Reasoning(String),
    /// A tool call begins.
    CallBegins {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// Name of the function.
        name: String,
        /// Call id written by the model; unique in the answer.
        id: Option<String>,
    },
    /// More of a call's arguments. Joined, all pieces of a call are a JSON value, unless the answer
    /// was cut short.
    CallArguments {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// More of the JSON text.
        text: String,
    },
}
