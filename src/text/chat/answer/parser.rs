//! The parser of answers.

use std::sync::Arc;

use serde_json::Value;

use super::call::{Event, Reader, Step};
use super::format::{Syntax, thoughts};
use super::tags::{Kinds, kinds};
use super::{CallFormat, Piece, Wants};

/// Text that is read anew after calls that turned out to be none: so many times all that was read,
/// and so many bytes more. Beyond that such text is content without a second look.
const REREAD: usize = 4;
const REREAD_BYTES: usize = 4096;

/// Takes an answer apart as it arrives. All pushes together take time linear in the text, and give
/// the same pieces, joined, however the text is split.
///
/// White space beside a marker belongs to the marker. What opens a call and then is none stays
/// content as it stands. A call that goes wrong after it began ends there, and what follows is
/// content.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    format: CallFormat,
    syntax: Syntax,
    kinds: Arc<Kinds>,
    wants: Wants,
    thoughts: (&'static str, &'static str),
    mode: Mode,
    /// Text from the first byte that is not settled.
    buffer: String,
    /// What of the buffer was read.
    at: usize,
    /// Where white space begins that may belong to a marker.
    blank: Option<usize>,
    /// Bytes before the buffer, and bytes that were read again.
    before: usize,
    reread: usize,
    /// Whether white space that follows belongs to a marker.
    after_marker: bool,
    /// Whether nothing was said yet.
    fresh: bool,
    calls: usize,
}

#[derive(Debug, Clone)]
enum Mode {
    Content,
    Thought,
    /// Inside calls: how long the marker was, with the white space before it, and whether a call
    /// began.
    Call(Box<Reader>, usize, bool),
}

#[derive(Clone, Copy)]
enum Marker {
    Thought,
    ThoughtEnd,
    Call,
    Skipped,
}

impl AnswerParser {
    /// A parser for the answer to `rendered_prompt`, which the template with the source `template`
    /// rendered.
    pub fn new(template: &str, rendered_prompt: &str, wants: Wants) -> AnswerParser {
        let format = CallFormat::of(template);
        let thoughts = thoughts(template);
        let thinking = wants.reasoning && rendered_prompt.trim_end().ends_with(thoughts.0);
        AnswerParser {
            format,
            syntax: format.syntax(),
            kinds: Arc::default(),
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
            after_marker: thinking,
            fresh: true,
            calls: 0,
        }
    }

    /// Tells the parser which tools there are, as a request has them. Formats without JSON do not
    /// show whether `1` is a number or a text: a parameter's schema does.
    pub fn with_tools(mut self, tools: &[Value]) -> AnswerParser {
        self.kinds = Arc::new(kinds(tools));
        self
    }

    /// Tells the parser, after the tools, that a grammar forces a call in this format: the answer
    /// begins with it, and thinks nothing before.
    pub fn forced(mut self, format: CallFormat) -> AnswerParser {
        self.format = format;
        self.syntax = format.syntax();
        self.mode = Mode::Content;
        self.after_marker = false;
        Arc::make_mut(&mut self.kinds).be_strict();
        self
    }

    /// Whether the words around thoughts are control tokens in the vocabularies of models with such
    /// a template, so that an answer must be generated with them shown.
    pub fn has_control_words(&self) -> bool {
        self.thoughts.0.starts_with("<|channel")
    }

    /// How the model writes calls.
    pub fn format(&self) -> CallFormat {
        self.format
    }

    /// Takes more text of the answer and returns what it decides.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if !self.wants.tools && !self.wants.reasoning {
            say(text, &mut pieces, false);
            return pieces;
        }
        self.buffer.push_str(text);
        self.read(false, &mut pieces);
        pieces
    }

    /// Ends the answer and returns what was held back. The parser can be used no further.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.read(true, &mut pieces);
        pieces
    }

    fn read(&mut self, last: bool, pieces: &mut Vec<Piece>) {
        // Where the text that is not settled begins.
        let mut start = 0;
        loop {
            let done = match self.mode {
                Mode::Call(..) => self.read_call(&mut start, last, pieces),
                _ => self.read_text(&mut start, last, pieces),
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

    /// Reads text up to a marker. Whether there is nothing left to read.
    fn read_text(&mut self, start: &mut usize, last: bool, pieces: &mut Vec<Piece>) -> bool {
        let thinking = matches!(self.mode, Mode::Thought);
        while let Some(c) = self.buffer[self.at..].chars().next() {
            let rest = &self.buffer[self.at..];
            let bare = c == '{' && self.wants.tools && self.syntax.bare && self.fresh && !thinking;
            let found = match bare {
                true => Found::Marker(Marker::Call, 0),
                false => self.marker(rest, thinking),
            };
            match found {
                Found::Marker(marker, len) => {
                    let said = self.blank.take().unwrap_or(self.at);
                    self.say(&(*start..said), thinking, pieces);
                    self.met(marker, len, said, start);
                    return false;
                }
                Found::Undecided if !last => break,
                _ => {}
            }
            if !c.is_whitespace() {
                self.blank = None;
                self.after_marker = false;
                self.fresh &= thinking;
            } else if self.after_marker {
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
        self.say(&(*start..end), thinking, pieces);
        *start = end;
        if last {
            (self.at, self.blank) = (end, None);
        }
        true
    }

    /// The marker that text begins with.
    fn marker(&self, text: &str, thinking: bool) -> Found {
        let mut undecided = false;
        let mut look = |marker: &str, kind: Marker| {
            if text.starts_with(marker) {
                return Some(Found::Marker(kind, marker.len()));
            }
            undecided |= marker.starts_with(text);
            None
        };
        let mut found = None;
        if thinking {
            found = look(self.thoughts.1, Marker::ThoughtEnd);
        } else {
            if self.wants.tools {
                for opener in self.syntax.openers {
                    found = found.or_else(|| look(opener, Marker::Call));
                }
            }
            if self.wants.reasoning {
                found = found.or_else(|| look(self.thoughts.0, Marker::Thought));
            }
            for skipped in self.syntax.skipped {
                found = found.or_else(|| look(skipped, Marker::Skipped));
            }
        }
        match (found, undecided) {
            (Some(found), _) => found,
            (None, true) => Found::Undecided,
            (None, false) => Found::Nothing,
        }
    }

    fn met(&mut self, marker: Marker, len: usize, said: usize, start: &mut usize) {
        let begin = self.at;
        self.at += len;
        *start = self.at;
        self.after_marker = true;
        match marker {
            Marker::Thought => self.mode = Mode::Thought,
            Marker::ThoughtEnd => self.mode = Mode::Content,
            Marker::Skipped => {}
            Marker::Call => {
                // Should there be no call, all of this is content.
                *start = said;
                let reader = Box::new(Reader::new(self.syntax, &self.kinds));
                self.mode = Mode::Call(reader, begin + len.max(1) - said, false);
            }
        }
    }

    /// Reads calls. Whether there is nothing left to read.
    fn read_call(&mut self, start: &mut usize, last: bool, pieces: &mut Vec<Piece>) -> bool {
        let Mode::Call(reader, opener, begun) = &mut self.mode else {
            return false;
        };
        let mut events = Vec::new();
        let mut outcome = Step::More;
        while let Some(c) = self.buffer[self.at..].chars().next() {
            outcome = reader.step(c, &mut events);
            if outcome == Step::Wrong {
                break;
            }
            self.at += c.len_utf8();
            if !events.is_empty() {
                *begun = true;
                tell(&mut events, &mut self.calls, pieces);
            }
            if outcome != Step::More {
                *start = self.at;
            }
            if outcome == Step::Over {
                break;
            }
        }
        let (opener, begun) = (*opener, *begun);
        match outcome {
            Step::More | Step::Settled if !last => return true,
            Step::More | Step::Settled => {
                if begun {
                    reader.break_off(false, &mut events);
                    tell(&mut events, &mut self.calls, pieces);
                    if reader.is_after() {
                        *start = self.at;
                    }
                }
                self.mode = Mode::Content;
                self.say(&(*start..self.buffer.len()), false, pieces);
                *start = self.buffer.len();
                self.at = *start;
                return true;
            }
            Step::Over => {}
            Step::Wrong if begun => {
                reader.break_off(true, &mut events);
                tell(&mut events, &mut self.calls, pieces);
                self.read_again(*start);
            }
            Step::Wrong => {
                self.after_marker = false;
                let opened = *start + opener;
                self.say(&(*start..opened), false, pieces);
                *start = opened;
                self.read_again(opened);
            }
        }
        self.mode = Mode::Content;
        // What is not read again is content, white space and all.
        self.after_marker = begun && self.at == *start;
        self.fresh = false;
        false
    }

    /// Goes back to `place`, if that has not been done too often.
    fn read_again(&mut self, place: usize) {
        let again = self.at.saturating_sub(place);
        let most = REREAD * (self.before + self.at) + REREAD_BYTES;
        if self.reread + again <= most {
            self.reread += again;
            self.at = place;
        }
        self.at = self.at.max(place);
    }

    fn say(&self, range: &std::ops::Range<usize>, thinking: bool, pieces: &mut Vec<Piece>) {
        say(
            self.buffer.get(range.clone()).unwrap_or_default(),
            pieces,
            thinking,
        );
    }
}

enum Found {
    Marker(Marker, usize),
    /// It may become a marker.
    Undecided,
    Nothing,
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

fn tell(events: &mut Vec<Event>, calls: &mut usize, pieces: &mut Vec<Piece>) {
    for event in events.drain(..) {
        match event {
            Event::Begins(name) => {
                pieces.push(Piece::CallBegins {
                    index: *calls,
                    name,
                });
                *calls += 1;
            }
            Event::Arguments(more) => match pieces.last_mut() {
                Some(Piece::CallArguments { text, .. }) => text.push_str(&more),
                _ => pieces.push(Piece::CallArguments {
                    index: calls.saturating_sub(1),
                    text: more,
                }),
            },
        }
    }
}
