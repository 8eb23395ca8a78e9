//! Answers that consist of several messages, each with a header.

use super::{AnswerParser, Mode, Piece};
use crate::chat::answer::call::Reader;
use crate::chat::answer::header::{Read, Recipient};
use crate::chat::answer::syntax::Headers;

impl AnswerParser {
    /// Reads a header. Returns whether there is nothing left to read.
    pub(super) fn read_header(
        &mut self,
        at: &mut usize,
        last: bool,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        let (
            Mode::Header {
                blank,
                start,
                thinking,
            },
            Some(headers),
        ) = (&self.mode, self.syntax.headers)
        else {
            return false;
        };
        let (begin, start, thinking) = (*at + blank, *start, *thinking);
        let recipient = loop {
            match headers.read(&self.buffer[begin..self.at], &self.tools) {
                Read::Done(recipient) => break Some(recipient),
                Read::Wrong => break None,
                Read::More => {}
            }
            match self.buffer[self.at..].chars().next() {
                Some(c) => self.at += c.len_utf8(),
                None if !last => return true,
                None if headers == Headers::Functionary => break None,
                // A truncated header is dropped.
                None => {
                    *at = self.buffer.len();
                    self.mode = Mode::Content;
                    return true;
                }
            }
        };
        self.place.begins_message = false;
        match recipient {
            Some(recipient) => self.begin_message(headers, recipient, at, pieces),
            None => {
                self.place.after_marker = false;
                self.mode = if thinking {
                    Mode::Thought
                } else {
                    Mode::Content
                };
                self.say(*at..begin + start, thinking, pieces);
                *at = begin + start;
                self.read_again(*at);
            }
        }
        false
    }

    fn begin_message(
        &mut self,
        headers: Headers,
        recipient: Recipient,
        at: &mut usize,
        pieces: &mut Vec<Piece>,
    ) {
        let header = *at..self.at;
        *at = self.at;
        self.place.after_marker = true;
        self.place.has_calls = false;
        match recipient {
            Recipient::User => self.mode = Mode::Content,
            Recipient::Function(_) if headers == Headers::Muse && self.wants.tools => {
                self.mode = Mode::Content;
                self.place.has_calls = true;
            }
            Recipient::Function(name) if self.wants.tools => {
                // A bare name may turn out to be content.
                let opener = match headers {
                    Headers::Functionary => header.len(),
                    _ => 0,
                };
                *at -= opener;
                let reader = Reader::of_arguments(self.syntax, &self.tools, name);
                self.mode = Mode::Call {
                    reader: Box::new(reader),
                    opener,
                    begun: false,
                    thinking: false,
                };
            }
            Recipient::Itself | Recipient::Function(_) => {
                if !self.wants.reasoning {
                    self.say(header, false, pieces);
                    self.place.after_marker = false;
                }
                self.mode = Mode::Thought;
                self.place.has_thought = true;
            }
        }
    }
}
