//! The parser of answers.

use super::{CallFormat, Piece, Wants};

/// Takes an answer apart as it arrives. Every method is cheap: all pushes together take time
/// linear in the text.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    format: CallFormat,
    wants: Wants,
    /// Text that is not decided yet.
    held: String,
    thinking: bool,
}

impl AnswerParser {
    /// A parser for the answer to `rendered_prompt`, which the template with the source `template`
    /// rendered.
    pub fn new(template: &str, rendered_prompt: &str, wants: Wants) -> AnswerParser {
        AnswerParser {
            format: CallFormat::of(template),
            wants,
            held: String::new(),
            thinking: wants.reasoning && rendered_prompt.trim_end().ends_with("<think>"),
        }
    }

    /// How the model writes calls.
    pub fn format(&self) -> CallFormat {
        self.format
    }

    /// Takes more text of the answer and returns what it decides.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        if self.wants.reasoning {
            self.thoughts(&mut pieces);
        } else {
            self.emit(self.held.len(), &mut pieces);
        }
        pieces
    }

    /// Ends the answer and returns what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.emit(self.held.len(), &mut pieces);
        pieces
    }

    fn thoughts(&mut self, pieces: &mut Vec<Piece>) {
        loop {
            let marker = if self.thinking { "</think>" } else { "<think>" };
            let Some(at) = self.held.find(marker) else {
                let undecided = (1..marker.len())
                    .rev()
                    .find(|n| self.held.ends_with(&marker[..*n]));
                return self.emit(self.held.len() - undecided.unwrap_or(0), pieces);
            };
            self.emit(at, pieces);
            self.held.drain(..marker.len());
            self.thinking = !self.thinking;
        }
    }

    fn emit(&mut self, bytes: usize, pieces: &mut Vec<Piece>) {
        if bytes > 0 {
            let text = self.held.drain(..bytes).collect();
            pieces.push(match self.thinking {
                true => Piece::Reasoning(text),
                false => Piece::Content(text),
            });
        }
    }
}
