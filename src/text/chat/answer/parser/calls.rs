//! Tool calls within an answer.

use super::{AnswerParser, Mode, Piece};
use crate::chat::answer::call::Reader;
use crate::chat::answer::step::{Event, Step};

impl AnswerParser {
    /// Reads calls. Returns whether there is nothing left to read.
    pub(super) fn read_call(
        &mut self,
        start: &mut usize,
        last: bool,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        let mode = std::mem::replace(&mut self.mode, Mode::Content);
        let Mode::Call {
            mut reader,
            opener,
            mut begun,
            thinking,
        } = mode
        else {
            return false;
        };
        let mut events = Vec::new();
        let outcome = self.feed(&mut reader, &mut begun, start, pieces);
        let is_cut = matches!(outcome, Step::More | Step::Settled);
        if is_cut && !last {
            self.mode = Mode::Call {
                reader,
                opener,
                begun,
                thinking,
            };
            return true;
        }
        if outcome != Step::Over {
            reader.break_off(outcome == Step::Wrong, &mut events);
            if !events.is_empty() && !begun {
                begun = true;
                *start = self.at;
            }
            self.tell(&mut events, pieces);
        }
        if begun {
            self.opening.clear();
        }
        if is_cut {
            if begun && reader.is_after() {
                *start = self.at;
            }
            self.say(*start..self.buffer.len(), thinking && !begun, pieces);
            *start = self.buffer.len();
            self.at = *start;
            return true;
        }
        if outcome == Step::Wrong && begun {
            self.read_again(*start);
        } else if outcome == Step::Wrong {
            let opened = *start + opener;
            self.say(*start..opened, thinking, pieces);
            *start = opened;
            self.read_again(opened);
        }
        // A call ends the thought around it.
        self.mode = match thinking && !begun {
            true => Mode::Thought,
            false => Mode::Content,
        };
        // Text that is not read again is content, including white space.
        self.place.after_marker = begun && self.at == *start;
        self.place.after_call = begun;
        self.place.begins_message = begun;
        self.place.fresh &= thinking;
        false
    }

    /// Feeds the buffered text to a reader, until it is done.
    fn feed(
        &mut self,
        reader: &mut Reader,
        begun: &mut bool,
        start: &mut usize,
        pieces: &mut Vec<Piece>,
    ) -> Step {
        let mut events = Vec::new();
        let mut outcome = Step::More;
        while let Some(c) = self.buffer[self.at..].chars().next() {
            outcome = reader.step(c, &mut events);
            if !events.is_empty() {
                *begun = true;
                self.tell(&mut events, pieces);
            }
            if outcome == Step::Wrong {
                break;
            }
            self.at += c.len_utf8();
            if outcome != Step::More {
                *start = self.at;
            }
            if outcome == Step::Over {
                break;
            }
        }
        outcome
    }

    fn tell(&mut self, events: &mut Vec<Event>, pieces: &mut Vec<Piece>) {
        for event in events.drain(..) {
            match event {
                Event::Begins(name, id) => {
                    pieces.push(Piece::CallBegins {
                        index: self.calls,
                        name,
                        id: id.filter(|id| self.ids.insert(id.clone())),
                    });
                    self.calls += 1;
                }
                Event::Arguments(more) => match pieces.last_mut() {
                    Some(Piece::CallArguments { text, .. }) => text.push_str(&more),
                    _ => pieces.push(Piece::CallArguments {
                        index: self.calls.saturating_sub(1),
                        text: more,
                    }),
                },
            }
        }
    }
}
