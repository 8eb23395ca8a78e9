//! An answer taken apart as it is generated: what is said, what is thought, and calls of tools.
//!
//! A template shows how its model writes calls and thoughts ([`CallFormat`]); the prompt shows
//! whether the answer begins inside a thought. Text that could still become a marker is held back
//! until it is decided; nothing is ever taken back or lost.

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
mod syntax;
mod tags;
mod thoughts;
mod writing;

pub use format::CallFormat;
pub use parser::AnswerParser;
pub use schema::is_written_as_text;
pub use thoughts::Thoughts;
pub use writing::{Arguments, Call, Section};

/// What opens and closes thoughts in answers of this template's model; `None` where the template
/// shows none.
pub(super) fn thoughts(template: &str) -> Option<(&'static str, &'static str)> {
    let thoughts = thoughts::Thoughts::of(template);
    thoughts
        .is_shown()
        .then_some((thoughts.open, thoughts.close))
}

/// What a client wants taken apart. The rest stays part of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// Calls of tools.
    pub tools: bool,
    /// Thoughts.
    pub reasoning: bool,
}

/// A piece of an answer. Pieces of one kind that follow each other belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// More of what is said.
    Content(String),
    /// More of what is thought.
    Reasoning(String),
    /// A call begins.
    CallBegins {
        /// Which call of the answer, from 0.
        index: usize,
        /// The function.
        name: String,
        /// The identifier that the model gave the call; no other call of the answer has it.
        id: Option<String>,
    },
    /// More of a call's arguments. All of a call's pieces joined are the text of a JSON value, in
    /// an answer that was not cut short.
    CallArguments {
        /// Which call of the answer, from 0.
        index: usize,
        /// More of the JSON text.
        text: String,
    },
}
