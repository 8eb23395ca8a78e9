//! Parser of answers.

mod calls;
mod markers;
mod messages;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::call::Reader;
use super::schema::Tools;
use super::syntax::{Headers, Syntax};
use super::thoughts::Thoughts;
use super::{CallFormat, Piece, Wants};
use crate::chat::encode;
use crate::tokenizer::Tokenizer;
use markers::{Found, Marker};

/// Limit on text read again after something that looked like a call was not one: this multiple of
/// all text read, plus this many bytes. Beyond it such text is content without another attempt.
const REREAD: usize = 4;
const REREAD_BYTES: usize = 4096;

/// Splits an answer as it arrives. All pushes together take time linear in the text, and the joined
/// pieces do not depend on how the text is split into pushes.
///
/// White space next to a marker belongs to the marker. Text that opens a call but is not one
/// remains content, verbatim. A call that goes wrong after it began ends there, and the following
/// text is content. Tags around thoughts are markers at the beginning of an answer, or where the
/// prompt opened a thought, but not later.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    format: CallFormat,
    syntax: Syntax,
    tools: Arc<Tools>,
    wants: Wants,
    thoughts: &'static Thoughts,
    mode: Mode,
    /// Text from the first undecided byte on.
    buffer: String,
    /// Length of the buffer already read.
    at: usize,
    /// Start of white space that may belong to a marker.
    blank: Option<usize>,
    /// Bytes of the answer before the buffer; `reread` counts bytes that were read again.
    before: usize,
    reread: usize,
    place: ParserState,
    calls: usize,
    /// Call ids written by the model.
    ids: HashSet<String>,
    /// Marker of a thought that the prompt ends with, which belongs to the content, until there is
    /// a text. A call or a marker of the content in its place shows that there is no thought.
    opening: String,
}

/// State that determines which markers may come next.
#[derive(Debug, Clone, Copy)]
struct ParserState {
    /// Whether white space that follows belongs to a marker.
    after_marker: bool,
    /// Whether no content was emitted yet.
    fresh: bool,
    /// Whether there was a thought, even an empty one.
    has_thought: bool,
    /// Whether only calls and white space followed the last call.
    after_call: bool,
    /// Whether a message with a header of its own may begin here.
    begins_message: bool,
    /// Whether calls may occur in this message.
    has_calls: bool,
    /// Whether a marker opened the content, so that another one closes it.
    in_content: bool,
}

#[derive(Debug, Clone)]
enum Mode {
    Content,
    Thought,
    /// In a header: lengths of the white space before it and of its start marker, and whether it
    /// ends a thought.
    Header {
        blank: usize,
        start: usize,
        thinking: bool,
    },
    /// In calls: length of the marker including the white space before it, whether a call began,
    /// and whether it is inside a thought.
    Call {
        reader: Box<Reader>,
        opener: usize,
        begun: bool,
        thinking: bool,
    },
}

impl AnswerParser {
    /// Creates a parser for the answer to `rendered_prompt`, rendered by the template with the
    /// source `template`.
    pub fn new(template: &str, rendered_prompt: &str, wants: Wants) -> AnswerParser {
        let format = CallFormat::of(template);
        let syntax = format.syntax();
        let thoughts = Thoughts::of(template);
        let prompt = rendered_prompt.trim_end();
        let open = thoughts.open.trim_end();
        let is_open = prompt.ends_with(open);
        let thinking = wants.reasoning && is_open;
        // whoever splits off thoughts from the content needs both of their markers
        let opening = match is_open && !wants.reasoning {
            true => &rendered_prompt[prompt.len() - open.len()..],
            false => "",
        };
        AnswerParser {
            format,
            syntax,
            tools: Arc::default(),
            wants,
            thoughts,
            mode: if thinking {
                Mode::Thought
            } else {
                Mode::Content
            },
            buffer: String::new(),
            at: 0,
            blank: None,
            before: 0,
            reread: 0,
            place: ParserState {
                after_marker: thinking,
                fresh: true,
                has_thought: thinking,
                after_call: false,
                begins_message: !thinking,
                has_calls: syntax.headers.is_none(),
                in_content: false,
            },
            calls: 0,
            ids: HashSet::new(),
            opening: opening.to_owned(),
        }
    }

    /// Sets that the prompt ends inside a thought, which the answer continues.
    pub fn in_thought(mut self) -> AnswerParser {
        if self.wants.reasoning {
            self.mode = Mode::Thought;
            self.place.has_thought = true;
            self.place.begins_message = false;
        }
        self
    }

    /// Sets the available tools, as given in a request. Formats without JSON do not show whether
    /// `1` is a number or a text: a parameter's schema does.
    pub fn with_tools(mut self, tools: &[Value]) -> AnswerParser {
        self.tools = Arc::new(Tools::new(tools));
        self
    }

    /// Sets (after the tools) that a grammar constrains calls to their schemas.
    pub fn strict(mut self) -> AnswerParser {
        Arc::make_mut(&mut self.tools).is_strict = true;
        self
    }

    /// Returns whether markers that are always recognised, with or without tools, are control
    /// tokens in a vocabulary: an answer must then be generated with control tokens shown.
    pub fn has_control_words(&self, tokenizer: &Tokenizer) -> bool {
        let thoughts = [self.thoughts.open, self.thoughts.close];
        let thoughts = thoughts.iter().filter(|_| self.wants.reasoning);
        let headers = self.syntax.headers.map_or(&[][..], Headers::starts);
        let mut markers = thoughts.chain(headers).chain(self.syntax.skipped);
        markers.any(|marker| {
            let ids = encode(tokenizer, marker).unwrap_or_default();
            let own = |id: &&u32| Some(**id) != tokenizer.bos();
            ids.iter().filter(own).any(|id| tokenizer.is_special(*id))
        })
    }

    /// Returns whether the whole answer is verbatim content.
    fn is_plain(&self) -> bool {
        let has_markers = self.syntax.headers.is_some() || !self.syntax.skipped.is_empty();
        !self.wants.tools && !self.wants.reasoning && !has_markers
    }

    /// Returns the model's tool call format.
    pub fn format(&self) -> CallFormat {
        self.format
    }

    /// Reads more text of the answer and returns the pieces it decides.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.is_plain() {
            self.open(!text.is_empty(), &mut pieces);
            say(text, &mut pieces, false);
            return pieces;
        }
        self.buffer.push_str(text);
        self.read(false, &mut pieces);
        pieces
    }

    /// Ends the answer and returns the text held back. The parser cannot be used afterwards.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.read(true, &mut pieces);
        pieces
    }

    /// Emits the prompt's marker before the first text.
    fn open(&mut self, has_text: bool, pieces: &mut Vec<Piece>) {
        if has_text {
            say(&std::mem::take(&mut self.opening), pieces, false);
        }
    }

    fn read(&mut self, last: bool, pieces: &mut Vec<Piece>) {
        // Start of the undecided text.
        let mut start = 0;
        loop {
            let done = match self.mode {
                Mode::Call { .. } => self.read_call(&mut start, last, pieces),
                Mode::Header { .. } => self.read_header(&mut start, last, pieces),
                Mode::Content | Mode::Thought => self.read_text(&mut start, last, pieces),
            };
            if done {
                break;
            }
        }
        self.buffer.drain(..start);
        self.at -= start;
        self.before += start;
        self.blank = self.blank.map(|blank| blank - start);
    }

    /// Reads text up to a marker. Returns whether there is nothing left to read.
    fn read_text(&mut self, start: &mut usize, last: bool, pieces: &mut Vec<Piece>) -> bool {
        let thinking = matches!(self.mode, Mode::Thought);
        while let Some(c) = self.buffer[self.at..].chars().next() {
            let found = match self.marker(&self.buffer[self.at..], c, thinking) {
                Found::Undecided(_) if !last => break,
                Found::Undecided(found) => found,
                Found::Decided(found) => found,
            };
            if let Some((marker, len)) = found {
                let said = self.blank.take().unwrap_or(self.at);
                self.say(*start..said, thinking, pieces);
                self.met(marker, len, said, start, pieces);
                return false;
            }
            if !c.is_whitespace() {
                self.blank = None;
                self.place.after_marker = false;
                self.place.fresh &= thinking;
                self.place.after_call = false;
                self.place.begins_message = false;
            } else if self.place.after_marker {
                *start = self.at + c.len_utf8();
            } else if self.blank.is_none() {
                self.blank = Some(self.at);
            }
            self.at += c.len_utf8();
        }
        let end = match last {
            true => self.buffer.len(),
            false => self.blank.unwrap_or(self.at),
        };
        self.say(*start..end, thinking, pieces);
        *start = end;
        if last {
            (self.at, self.blank) = (end, None);
        }
        true
    }

    /// Handles a marker; `said` is the start of the white space before it.
    fn met(
        &mut self,
        marker: Marker,
        len: usize,
        said: usize,
        start: &mut usize,
        pieces: &mut Vec<Piece>,
    ) {
        let begin = self.at;
        let thinking = matches!(self.mode, Mode::Thought);
        self.at += len;
        *start = self.at;
        self.place.after_marker = true;
        self.place.begins_message = true;
        match marker {
            Marker::Thought => {
                self.mode = Mode::Thought;
                self.place.has_thought = true;
            }
            Marker::ThoughtEnd => {
                if !self.wants.reasoning {
                    self.say(said..self.at, false, pieces);
                    self.place.after_marker = false;
                }
                self.mode = Mode::Content;
                self.place.has_thought = true;
            }
            Marker::Content => {
                self.opening.clear();
                self.mode = Mode::Content;
                self.place.has_thought = true;
                self.place.in_content = true;
            }
            Marker::ContentEnd => self.place.in_content = false,
            Marker::End => {}
            Marker::Skipped => {
                self.opening.clear();
                self.place.has_calls = self.syntax.headers.is_none();
            }
            Marker::Header => {
                // If it is not a header, this is content.
                *start = said;
                self.mode = Mode::Header {
                    blank: begin - said,
                    start: len,
                    thinking,
                };
            }
            Marker::Call | Marker::Section => {
                // If it is not a call, all of this is content.
                *start = said;
                let reader = match marker {
                    Marker::Section => Reader::of_section(self.syntax, &self.tools),
                    _ => Reader::new(self.syntax, &self.tools),
                };
                let known_only = len == 0 || thinking;
                self.mode = Mode::Call {
                    reader: Box::new(reader.known_only(known_only)),
                    opener: begin + len.max(1) - said,
                    begun: false,
                    thinking,
                };
            }
        }
    }

    /// Goes back to `place`, if the limit on text read again allows.
    fn read_again(&mut self, place: usize) {
        let again = self.at.saturating_sub(place);
        let most = REREAD * (self.before + self.at) + REREAD_BYTES;
        if self.reread + again <= most {
            self.reread += again;
            self.at = place;
        }
        self.at = self.at.max(place);
    }

    fn say(&mut self, range: std::ops::Range<usize>, thinking: bool, pieces: &mut Vec<Piece>) {
        self.open(!range.is_empty(), pieces);
        let text = self.buffer.get(range).unwrap_or_default();
        say(text, pieces, thinking && self.wants.reasoning);
    }
}

fn say(text: &str, pieces: &mut Vec<Piece>, thinking: bool) {
    match (pieces.last_mut(), thinking) {
        _ if text.is_empty() => {}
        (Some(Piece::Content(before)), false) | (Some(Piece::Reasoning(before)), true) => {
            before.push_str(text);
        }
        (_, true) => pieces.push(Piece::Reasoning(text.to_owned())),
        (_, false) => pieces.push(Piece::Content(text.to_owned())),
    }
}
