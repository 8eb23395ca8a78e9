//! Markers that may come next.

use super::AnswerParser;

/// Effect of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// Opens a thought.
    Thought,
    ThoughtEnd,
    /// Begins the content, and ends an open thought.
    Content,
    ContentEnd,
    /// Opens a call.
    Call,
    /// Opens a section of calls.
    Section,
    /// Closes something already over.
    End,
    /// Begins a header.
    Header,
    /// Has no meaning by itself.
    Skipped,
}

/// Marker at the start of a text, and its length; `None` without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Decided(Option<(Marker, usize)>),
    /// May become another marker; this is the match so far.
    Undecided(Option<(Marker, usize)>),
}

/// Searches for the longest marker at the start of a text.
struct Look<'t> {
    text: &'t str,
    found: Option<(Marker, usize)>,
    is_undecided: bool,
}

impl Look<'_> {
    fn for_marker(&mut self, marker: &str, kind: Marker) {
        if self.text.starts_with(marker) {
            if self.found.is_none_or(|(_, len)| len < marker.len()) {
                self.found = Some((kind, marker.len()));
            }
        } else {
            self.is_undecided |= marker.starts_with(self.text);
        }
    }

    fn for_any(&mut self, markers: &[&str], kind: Marker) {
        for marker in markers {
            self.for_marker(marker, kind);
        }
    }
}

impl AnswerParser {
    /// Returns the marker at the start of `text`; `c` is its first character.
    pub(super) fn marker(&self, text: &str, c: char, thinking: bool) -> Found {
        let mut look = Look {
            text,
            found: None,
            is_undecided: false,
        };
        match thinking {
            true => self.look_in_thought(&mut look),
            false => {
                self.look_in_content(&mut look, c);
                let begins_call = self.place.fresh
                    && self.wants.tools
                    && self.syntax.is_bare
                    && matches!(c, '{' | '[');
                if begins_call && !look.is_undecided {
                    look.found = look.found.or(Some((Marker::Call, 0)));
                }
            }
        }
        match look.is_undecided {
            true => Found::Undecided(look.found),
            false => Found::Decided(look.found),
        }
    }

    fn look_in_thought(&self, look: &mut Look<'_>) {
        look.for_marker(self.thoughts.close, Marker::ThoughtEnd);
        look.for_any(self.thoughts.content, Marker::Content);
        match self.syntax.headers {
            Some(headers) => {
                look.for_any(headers.starts(), Marker::Header);
                // Markers that end any message.
                look.for_any(self.syntax.skipped, Marker::ThoughtEnd);
            }
            None if self.format.calls_in_thoughts() => self.look_for_calls(look),
            None => {}
        }
    }

    fn look_in_content(&self, look: &mut Look<'_>, c: char) {
        let place = &self.place;
        match self.syntax.headers {
            Some(headers) => {
                look.for_any(headers.starts(), Marker::Header);
                if place.begins_message {
                    look.for_any(headers.starts_message(), Marker::Header);
                    if headers.may_begin_with(c) && place.fresh {
                        look.found = look.found.or(Some((Marker::Header, 0)));
                    }
                }
            }
            None if self.wants.reasoning => self.look_for_thoughts(look),
            None => {}
        }
        if place.has_calls {
            self.look_for_calls(look);
        }
        look.for_any(self.syntax.skipped, Marker::Skipped);
    }

    fn look_for_thoughts(&self, look: &mut Look<'_>) {
        let thoughts = self.thoughts;
        let is_beginning = self.place.fresh && !self.place.has_thought;
        if is_beginning || thoughts.repeats {
            look.for_marker(thoughts.open, Marker::Thought);
        }
        // The end marker of a thought that never began.
        if is_beginning && thoughts.is_shown() {
            look.for_marker(thoughts.close, Marker::ThoughtEnd);
        }
        // The call has already ended the thought.
        if self.place.after_call {
            look.for_marker(thoughts.close, Marker::End);
        }
        look.for_any(thoughts.strays, Marker::End);
        if self.place.fresh && self.place.has_thought {
            look.for_any(thoughts.content, Marker::Content);
        }
        if let Some(end) = thoughts.content_end.filter(|_| self.place.in_content) {
            look.for_marker(end, Marker::ContentEnd);
        }
    }

    fn look_for_calls(&self, look: &mut Look<'_>) {
        if !self.wants.tools {
            return;
        }
        look.for_any(self.syntax.openers, Marker::Call);
        let (open, close) = self.syntax.section;
        look.for_any(open, Marker::Section);
        if self.place.after_call {
            look.for_any(close, Marker::End);
        }
    }
}
