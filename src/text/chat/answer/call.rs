//! Reads a tool call, or several in one pair of markers, character by character.

use std::sync::Arc;

use super::elements::ElementReader;
use super::gemma::GemmaReader;
use super::json::Scan;
use super::object::Object;
use super::python::PythonReader;
use super::schema::Tools;
use super::step::{Event, MAX_NAME, Step};
use super::syntax::{Body, Syntax};
use super::tags::TagReader;

#[derive(Debug, Clone)]
enum State {
    /// In a section of calls, before a call: text that may start an opener.
    Section(String),
    /// Before an object or a name.
    Open,
    /// In a name, before its separator.
    Name(String),
    /// Between a name and its arguments.
    Arguments(String, Option<String>),
    /// In JSON arguments.
    Inside(Scan),
    /// In Gemma's arguments.
    Gemma(GemmaReader),
    /// In tagged parameters.
    Tags(TagReader),
    /// In elements.
    Elements(ElementReader),
    /// In a Python-style call.
    Python(PythonReader),
    /// In an object with name and arguments.
    Object(Object),
    /// After a call; text that may start a closer.
    After(String),
}

/// Reads the text after the marker that opens calls.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    syntax: Syntax,
    tools: Arc<Tools>,
    state: State,
    list: bool,
    /// Whether calls of unknown functions are rejected.
    known_only: bool,
}

impl Reader {
    /// Starts reading calls after their opener.
    pub(super) fn new(syntax: Syntax, tools: &Arc<Tools>) -> Reader {
        let mut reader = Reader {
            syntax,
            tools: Arc::clone(tools),
            state: State::Open,
            list: false,
            known_only: false,
        };
        reader.begin();
        reader
    }

    /// Starts reading a section of calls after its marker.
    pub(super) fn of_section(syntax: Syntax, tools: &Arc<Tools>) -> Reader {
        let mut reader = Reader::new(syntax, tools);
        reader.state = State::Section(String::new());
        reader
    }

    /// Starts reading the arguments of a call whose name is already read.
    pub(super) fn of_arguments(syntax: Syntax, tools: &Arc<Tools>, name: String) -> Reader {
        let mut reader = Reader::new(syntax, tools);
        reader.state = State::Arguments(name, None);
        reader
    }

    /// Sets whether calls of unknown functions are rejected.
    pub(super) fn known_only(mut self, known_only: bool) -> Reader {
        self.known_only = known_only;
        self
    }

    /// Sets the state after an opener.
    fn begin(&mut self) {
        self.state = match self.syntax.body {
            Body::Tags(tags) => State::Tags(TagReader::new(tags, &self.tools)),
            Body::Elements => State::Elements(ElementReader::new(&self.tools)),
            _ => State::Open,
        };
    }

    /// Reads a character.
    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let before = events.len();
        let step = self.advance(c, events);
        let begins_unknown = self.known_only
            && events[before..]
                .iter()
                .any(|event| matches!(event, Event::Begins(name, _) if !self.tools.has(name)));
        if begins_unknown {
            events.truncate(before);
            self.state = State::Open;
            return Step::Wrong;
        }
        step
    }

    fn advance(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let step = match &mut self.state {
            State::Section(_) => return self.in_section(c),
            State::Open => return self.open(c, events),
            State::Name(_) => return self.in_name(c, events),
            State::Arguments(name, id) => match c {
                '{' => {
                    events.push(Event::Begins(std::mem::take(name), id.take()));
                    self.state = match self.syntax.body {
                        Body::Gemma => State::Gemma(GemmaReader::new()),
                        _ => State::Inside(Scan::default()),
                    };
                    return self.advance(c, events);
                }
                c if c.is_whitespace() => return Step::More,
                _ => return Step::Wrong,
            },
            State::Inside(scan) => match scan.step(c) {
                None => return Step::Wrong,
                Some(over) => {
                    events.push(Event::Arguments(c.to_string()));
                    if over { Step::Over } else { Step::Settled }
                }
            },
            State::Gemma(reader) => reader.step(c, events),
            State::Tags(reader) => reader.step(c, events),
            State::Elements(reader) => reader.step(c, events),
            State::Python(reader) => reader.step(c, events),
            State::Object(object) => object.step(c, events),
            State::After(_) => return self.after(c, events),
        };
        // After the arguments, the call continues.
        if step != Step::Over {
            return step;
        }
        self.state = State::After(String::new());
        match self.syntax.body {
            Body::Tags(_) | Body::Elements if self.syntax.closers.is_empty() => Step::Over,
            _ => Step::Settled,
        }
    }

    fn in_section(&mut self, c: char) -> Step {
        let State::Section(tail) = &mut self.state else {
            return Step::Wrong;
        };
        if tail.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        tail.push(c);
        let openers = self.syntax.openers;
        if openers.contains(&tail.as_str()) {
            self.begin();
            return Step::More;
        }
        match openers
            .iter()
            .any(|opener| opener.starts_with(tail.as_str()))
        {
            true => Step::More,
            false => Step::Wrong,
        }
    }

    fn open(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let body = self.syntax.body;
        match c {
            c if c.is_whitespace() => return Step::More,
            '[' if !self.list => self.list = true,
            '{' if body != Body::Python => {
                self.state = State::Object(Object::new(self.syntax));
            }
            _ if matches!(body, Body::Named(_) | Body::Gemma) && !self.list => {
                self.state = State::Name(c.to_string());
            }
            _ if is_python(body) && begins_identifier(c) => {
                self.state = State::Python(PythonReader::new());
                return self.advance(c, events);
            }
            // An empty list is not a call.
            _ => return Step::Wrong,
        }
        Step::More
    }

    fn in_name(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let State::Name(name) = &mut self.state else {
            return Step::Wrong;
        };
        name.push(c);
        let separators = match self.syntax.body {
            Body::Named(separators) => separators,
            _ => &["{"],
        };
        let Some(found) = separators.iter().find(|s| name.ends_with(*s)) else {
            return match name.len() > MAX_NAME {
                true => Step::Wrong,
                false => Step::More,
            };
        };
        let is_bare = found.ends_with('{');
        let (name, id) = name_and_id(&name[..name.len() - found.len()]);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Step::Wrong;
        }
        self.state = State::Arguments(name, id);
        match is_bare {
            true => self.advance('{', events),
            false => Step::More,
        }
    }

    fn after(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let State::After(tail) = &mut self.state else {
            return Step::Wrong;
        };
        if tail.is_empty() {
            let body = self.syntax.body;
            let objects = matches!(body, Body::Objects | Body::Keyed) || is_python(body);
            let named = !objects && !self.list;
            match c {
                c if c.is_whitespace() => return Step::More,
                ',' | ';' if !named => return Step::More,
                '{' if !named => {
                    self.state = State::Open;
                    return self.advance(c, events);
                }
                c if self.list && is_python(body) && begins_identifier(c) => {
                    self.state = State::Open;
                    return self.advance(c, events);
                }
                ']' if self.list => {
                    self.list = false;
                    return match self.syntax.closers.is_empty() {
                        true => Step::Over,
                        false => Step::Settled,
                    };
                }
                _ => {}
            }
        }
        tail.push(c);
        let closers = self.syntax.closers;
        if closers.contains(&tail.as_str()) {
            return Step::Over;
        }
        match closers
            .iter()
            .any(|closer| closer.starts_with(tail.as_str()))
        {
            true => Step::More,
            false => Step::Wrong,
        }
    }

    /// Returns whether a call is finished: following white space and brackets then belong to it.
    pub(super) fn is_after(&self) -> bool {
        matches!(&self.state, State::After(tail) if tail.is_empty())
    }

    /// Emits the rest of a call that is interrupted by something else (`complete`), or by the end
    /// of the answer.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        match &mut self.state {
            State::Tags(reader) => reader.break_off(complete, events),
            State::Elements(reader) => reader.break_off(complete, events),
            State::Python(reader) => reader.break_off(complete, events),
            State::Gemma(reader) => reader.break_off(complete, events),
            State::Object(object) => object.break_off(events),
            _ => {}
        }
    }
}

fn is_python(body: Body) -> bool {
    matches!(body, Body::Python | Body::PythonOrObjects)
}

fn begins_identifier(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// Returns the function name and the call id, if any, from a combined form: `functions.f:0`,
/// `f[CALL_ID]1`, `1<|tool_call:name|>f`.
fn name_and_id(text: &str) -> (String, Option<String>) {
    let text = text.trim();
    let own = |id: &str| Some(id.trim().to_owned()).filter(|id| !id.is_empty());
    if let Some((name, id)) = text.split_once("[CALL_ID]") {
        return (name.trim().to_owned(), own(id));
    }
    if let Some((id, name)) = text.split_once("<|tool_call:name|>") {
        return (name.trim().to_owned(), own(id));
    }
    let name = text.split("<|").next().unwrap_or(text);
    let name = name.rsplit("<｜tool▁sep｜>").next().unwrap_or(name).trim();
    let bare = name.strip_prefix("functions.").unwrap_or(name);
    match bare.rsplit_once(':') {
        Some((function, n)) if n.bytes().all(|b| b.is_ascii_digit()) => {
            (function.to_owned(), own(name))
        }
        _ => (bare.to_owned(), None),
    }
}
