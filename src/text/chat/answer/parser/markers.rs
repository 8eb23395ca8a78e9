//! The markers that may come next.

use super::AnswerParser;

/// What a marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// Opens a thought.
    Thought,
    ThoughtEnd,
    /// Begins the content, and ends a thought that is open.
    Content,
    ContentEnd,
    /// Opens a call.
    Call,
    /// Opens a section of calls.
    Section,
    /// Ends something that is over.
    End,
    /// Begins a header.
    Header,
    /// Means nothing by itself.
    Skipped,
}

/// What a text begins with: a marker and its length, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Decided(Option<(Marker, usize)>),
    /// It may become another marker; this is it so far.
    Undecided(Option<(Marker, usize)>),
}

/// Looks for the longest marker that a text begins with.
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
    /// The marker that text begins with; `c` is its first character.
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
                // What ends any message.
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
        // The end of a thought that the model did not have.
        if is_beginning && thoughts.is_shown() {
            look.for_marker(thoughts.close, Marker::ThoughtEnd);
        }
        // A call ended the thought already.
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
