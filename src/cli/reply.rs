//! Output of a text as it is generated; in conversations, reasoning is separated from the content.

use std::io;

use octavo_engine::Observer;
use octavo_text::chat::Message;
use octavo_text::chat::answer::{AnswerParser, Piece, Wants};

use super::signal::Generating;
use super::streamed::Output;
use super::terminal;

/// Escape sequences that begin and end dimmed text on a terminal.
const DIM: [&str; 2] = ["\x1b[2m", "\x1b[22m"];

/// A text that is being generated and shown. Reasoning is dimmed on a terminal and left out
/// elsewhere.
pub(super) struct Reply<'a> {
    pub(super) output: Output<'a>,
    /// Separates reasoning from content; `None` shows the text as it is.
    parser: Option<AnswerParser>,
    parts: AnswerParts,
    /// Whether reasoning is being shown.
    dims: bool,
}

/// Parts of a complete answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerParts {
    /// Text of the answer.
    pub(super) content: String,
    /// Reasoning before it; empty if there is none.
    pub(super) reasoning: String,
}

/// Creates a parser of the answer to a prompt that a template has rendered.
pub(super) fn parser(template: &str, rendered: &str) -> AnswerParser {
    let wants = Wants {
        tools: false,
        reasoning: true,
    };
    AnswerParser::new(template, rendered, wants)
}

impl AnswerParts {
    /// Splits a complete answer into its parts.
    pub(super) fn of(mut parser: AnswerParser, text: &str) -> AnswerParts {
        let mut parts = AnswerParts::default();
        let mut pieces = parser.push(text);
        pieces.extend(parser.finish());
        pieces.iter().for_each(|piece| parts.add(piece));
        parts
    }

    /// Appends a piece.
    fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Content(text) => self.content.push_str(text),
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            // no tool calls are requested
            Piece::CallBegins { .. } | Piece::CallArguments { .. } => {}
        }
    }

    /// Returns the reasoning, if there is any.
    pub(super) fn thought(&self) -> Option<&str> {
        Some(&self.reasoning[..]).filter(|thought| !thought.is_empty())
    }

    /// Converts the answer to a message of a conversation.
    pub(super) fn into_message(self) -> Message {
        Message {
            reasoning_content: self.thought().map(str::to_owned),
            ..Message::new("assistant", self.content)
        }
    }
}

impl<'a> Reply<'a> {
    /// Creates a reply; `parser` splits its text, if given. Without `stream` nothing is shown.
    pub(super) fn new(
        generating: &'a Generating,
        stream: bool,
        parser: Option<AnswerParser>,
    ) -> Reply<'a> {
        let what = match parser {
            Some(_) => "reading",
            None => "reading the prompt",
        };
        Reply {
            output: Output::new(generating, stream, what),
            parser,
            parts: AnswerParts::default(),
            dims: false,
        }
    }

    fn show(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        for piece in pieces {
            self.parts.add(&piece);
            match piece {
                Piece::Content(text) => {
                    self.dim(false)?;
                    self.output.text(&text)?;
                }
                Piece::Reasoning(text) => {
                    if terminal::stdout_is_terminal() {
                        self.dim(true)?;
                        self.output.text(&text)?;
                    }
                }
                // no tool calls are requested
                Piece::CallBegins { .. } | Piece::CallArguments { .. } => {}
            }
        }
        Ok(())
    }

    /// Begins or ends dimmed text.
    fn dim(&mut self, dims: bool) -> io::Result<()> {
        if self.dims == dims {
            return Ok(());
        }
        self.dims = dims;
        match dims {
            true => self.output.text(DIM[0]),
            false => self.output.text(&format!("{}\n\n", DIM[1])),
        }
    }

    /// Shows the text that was held back, ends dimmed text, and returns the parts of the answer.
    pub(super) fn end(&mut self) -> io::Result<AnswerParts> {
        if let Some(parser) = &mut self.parser {
            let rest = parser.finish();
            self.show(rest)?;
        }
        if std::mem::take(&mut self.dims) {
            self.output.text(DIM[1])?;
        }
        Ok(std::mem::take(&mut self.parts))
    }
}

impl Observer for Reply<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        self.output.prompt(done, total);
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        match &mut self.parser {
            Some(parser) => {
                let pieces = parser.push(text);
                self.show(pieces)
            }
            None => {
                self.parts.content.push_str(text);
                self.output.text(text)
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.output.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_no_part_of_what_is_said() {
        let harmony = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
        for (template, text) in [
            ("<think> </think>", "<think>\nhm\n</think>\n\nYes."),
            (
                "<|channel|>analysis<|message|> <|end|> <|channel|>commentary",
                &format!("{harmony}<|channel|>final<|message|>Yes."),
            ),
        ] {
            let generating = Generating::begin();
            let mut reply = Reply::new(&generating, true, Some(parser(template, "")));
            for (at, c) in text.char_indices() {
                reply
                    .text(&text[at..at + c.len_utf8()])
                    .expect("it is shown");
            }
            let parts = reply.end().expect("it is shown");
            assert_eq!(
                parts,
                AnswerParts::of(parser(template, ""), text),
                "{template}"
            );
            let message = parts.into_message();
            assert_eq!(
                message.reasoning_content.as_deref(),
                Some("hm"),
                "{template}"
            );
            let said = Message::new("assistant", "Yes.").content;
            assert_eq!(message.content, said, "{template}");
        }
    }

    #[test]
    fn without_a_parser_a_text_stays_as_it_is() {
        let generating = Generating::begin();
        let mut reply = Reply::new(&generating, false, None);
        reply.text("<think>hm</think>Yes.").expect("it is kept");
        let parts = reply.end().expect("it is kept");
        assert_eq!(parts.content, "<think>hm</think>Yes.");
        assert_eq!(parts.thought(), None);
    }
}
