//! One call, or several in one pair of markers, read character by character.

use std::sync::Arc;

use super::format::{Body, Syntax};
use super::gemma::GemmaReader;
use super::json::{Scan, unquoted};
use super::tags::{Kinds, TagReader};

/// The longest name of a function or key, with what surrounds it, in bytes.
pub(super) const MAX_NAME: usize = 256;

const NAME_KEYS: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENT_KEYS: [&str; 3] = ["arguments", "parameters", "args"];
/// What else an object that is a call may begin with.
const OTHER_KEYS: [&str; 4] = ["id", "type", "tool_call_id", "index"];

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing that could not be taken back.
    More,
    /// Everything up to here is dealt with.
    Settled,
    /// It cannot belong to a call.
    Wrong,
    /// It ends the calls.
    Over,
}

/// What is read out of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Begins(String),
    Arguments(String),
}

#[derive(Debug, Clone)]
enum State {
    /// Before an object, or a name.
    Open,
    /// A name up to a separator.
    Name(String),
    /// Before arguments that follow a name.
    Arguments(String),
    /// Inside those.
    Inside(Scan),
    /// Inside Gemma's arguments.
    Gemma(GemmaReader),
    /// Inside parameters in tags.
    Tags(TagReader),
    /// Inside an object with name and arguments.
    Object(Object),
    /// After a call; what could be the beginning of a closer.
    After(String),
}

/// Reads what follows the marker that opens calls.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    syntax: Syntax,
    kinds: Arc<Kinds>,
    state: State,
    list: bool,
}

impl Reader {
    pub(super) fn new(syntax: Syntax, kinds: &Arc<Kinds>) -> Reader {
        let state = match syntax.body {
            Body::Tags(tags) => State::Tags(TagReader::new(tags, kinds)),
            _ => State::Open,
        };
        Reader {
            syntax,
            kinds: Arc::clone(kinds),
            state,
            list: false,
        }
    }

    /// Takes a character.
    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.state {
            State::Open => self.open(c),
            State::Name(name) => {
                name.push(c);
                let separators = match self.syntax.body {
                    Body::Named(separators) => separators,
                    _ => &["{"],
                };
                if let Some(found) = separators.iter().find(|s| name.ends_with(*s)) {
                    let bare = found.ends_with('{');
                    let name = clean(&name[..name.len() - found.len()]);
                    if name.is_empty() || name.contains(char::is_whitespace) {
                        return Step::Wrong;
                    }
                    self.state = State::Arguments(name);
                    return if bare {
                        self.step('{', events)
                    } else {
                        Step::More
                    };
                }
                match name.len() > MAX_NAME {
                    true => Step::Wrong,
                    false => Step::More,
                }
            }
            State::Arguments(name) => match c {
                '{' => {
                    events.push(Event::Begins(std::mem::take(name)));
                    self.state = match self.syntax.body {
                        Body::Gemma => State::Gemma(GemmaReader::new()),
                        _ => State::Inside(Scan::default()),
                    };
                    self.step(c, events)
                }
                c if c.is_whitespace() => Step::More,
                _ => Step::Wrong,
            },
            State::Inside(scan) => match scan.step(c) {
                None => Step::Wrong,
                Some(over) => {
                    events.push(Event::Arguments(c.to_string()));
                    if over {
                        self.state = State::After(String::new());
                    }
                    Step::Settled
                }
            },
            State::Gemma(reader) => {
                let step = reader.step(c, events);
                self.settle(step)
            }
            State::Tags(reader) => {
                let step = reader.step(c, events);
                self.settle(step)
            }
            State::Object(object) => {
                let step = object.step(c, events);
                self.settle(step)
            }
            State::After(_) => self.after(c, events),
        }
    }

    /// What a step inside the arguments is to the call, which goes on after them.
    fn settle(&mut self, step: Step) -> Step {
        if step != Step::Over {
            return step;
        }
        self.state = State::After(String::new());
        Step::Settled
    }

    fn open(&mut self, c: char) -> Step {
        match c {
            c if c.is_whitespace() => return Step::More,
            '[' if !self.list => self.list = true,
            '{' => self.state = State::Object(Object::new(self.syntax, &self.kinds)),
            _ if matches!(self.syntax.body, Body::Named(_) | Body::Gemma) && !self.list => {
                self.state = State::Name(c.to_string());
            }
            _ => return Step::Wrong,
        }
        Step::More
    }

    fn after(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let State::After(tail) = &mut self.state else {
            return Step::Wrong;
        };
        if tail.is_empty() {
            let objects = matches!(self.syntax.body, Body::Objects | Body::Keyed);
            let named = !objects && !self.list;
            match c {
                c if c.is_whitespace() => return Step::More,
                ',' | ';' if !named => return Step::More,
                '{' if !named => {
                    self.state = State::Open;
                    return self.step(c, events);
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

    /// Whether a call is finished, so that white space and brackets that follow are part of it.
    pub(super) fn is_after(&self) -> bool {
        matches!(&self.state, State::After(tail) if tail.is_empty())
    }

    /// What must still be said of a call that something else broke off (`complete`), or that ends
    /// with the answer.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        if let State::Tags(reader) = &mut self.state {
            reader.break_off(complete, events);
        }
    }
}

/// A function's name without what formats put around it: `functions.f:0`, `f[CALL_ID]1`.
fn clean(name: &str) -> String {
    let name = name.trim();
    let name = name.split("[CALL_ID]").next().unwrap_or(name);
    let name = name.split("<|").next().unwrap_or(name);
    let name = name.rsplit("<｜tool▁sep｜>").next().unwrap_or(name).trim();
    let name = name.strip_prefix("functions.").unwrap_or(name);
    match name.rsplit_once(':') {
        Some((name, n)) if n.bytes().all(|b| b.is_ascii_digit()) => name.to_owned(),
        _ => name.to_owned(),
    }
}

#[derive(Debug, Clone)]
enum At {
    /// Before a key, or the end where there is none.
    Key,
    InKey,
    Colon,
    Value,
    InName,
    InText,
    InArguments,
    InOther(Scan),
    InScalar,
    AfterValue,
}

/// An object with a name and arguments.
#[derive(Debug, Clone)]
struct Object {
    kinds: Arc<Kinds>,
    keyed: bool,
    bare: bool,
    at: At,
    key: String,
    /// What a string that is read holds so far, without its quotes.
    text: String,
    escaped: bool,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    begun: bool,
    scan: Scan,
    keys: usize,
}

impl Object {
    fn new(syntax: Syntax, kinds: &Arc<Kinds>) -> Object {
        Object {
            kinds: Arc::clone(kinds),
            keyed: syntax.body == Body::Keyed,
            bare: syntax.bare,
            at: At::Key,
            key: String::new(),
            text: String::new(),
            escaped: false,
            name: None,
            early: None,
            begun: false,
            scan: Scan::default(),
            keys: 0,
        }
    }

    fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Key | At::Colon | At::Value | At::AfterValue if c.is_whitespace() => Step::More,
            At::Key => match c {
                '"' => self.to(At::InKey),
                '}' => self.end(events),
                _ => Step::Wrong,
            },
            At::InKey => match self.string(c) {
                None => self.short(),
                Some(key) => self.found_key(key),
            },
            At::Colon => match c {
                ':' => self.to(At::Value),
                _ => Step::Wrong,
            },
            At::Value => self.value(c, events),
            At::InName => match self.string(c) {
                None => self.short(),
                // An answer that is JSON for another reason may have a name too.
                Some(name) if self.bare && !self.kinds.has(&name) => Step::Wrong,
                Some(name) if !name.is_empty() => {
                    self.name = Some(name);
                    self.at = At::AfterValue;
                    match self.early.take() {
                        Some(arguments) => self.begin(arguments, events),
                        None => Step::More,
                    }
                }
                Some(_) => Step::Wrong,
            },
            At::InText => match self.string(c) {
                None => Step::More,
                Some(arguments) => self.arguments(arguments, events),
            },
            At::InArguments => self.inside(c, events),
            At::InOther(scan) => match scan.step(c) {
                None => Step::Wrong,
                Some(true) => self.to(At::AfterValue),
                Some(false) => Step::More,
            },
            At::InScalar => match c {
                ',' | '}' => {
                    self.at = At::AfterValue;
                    self.step(c, events)
                }
                c if c.is_ascii_alphanumeric() || "+-. \n".contains(c) => Step::More,
                _ => Step::Wrong,
            },
            At::AfterValue => match c {
                ',' => self.to(At::Key),
                '}' => self.end(events),
                _ => Step::Wrong,
            },
        }
    }

    fn to(&mut self, at: At) -> Step {
        self.at = at;
        self.text.clear();
        Step::More
    }

    /// Reads a string: what it holds, once it ends.
    fn string(&mut self, c: char) -> Option<String> {
        if c == '"' && !self.escaped {
            let text = std::mem::take(&mut self.text);
            return Some(unquoted(&text).unwrap_or(text));
        }
        self.escaped = c == '\\' && !self.escaped;
        self.text.push(c);
        None
    }

    /// Names are not long.
    fn short(&self) -> Step {
        match self.text.len() > MAX_NAME {
            true => Step::Wrong,
            false => Step::More,
        }
    }

    fn found_key(&mut self, key: String) -> Step {
        self.keys += 1;
        let key_name = key.as_str();
        let known = NAME_KEYS.contains(&key_name)
            || ARGUMENT_KEYS.contains(&key_name)
            || OTHER_KEYS.contains(&key_name);
        // An answer that is JSON for another reason is soon told from a call.
        if self.bare && self.keys == 1 && !known {
            return Step::Wrong;
        }
        self.key = key;
        self.to(At::Colon)
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let key = self.key.as_str();
        let is_name = NAME_KEYS.contains(&key) && self.name.is_none() && !self.keyed;
        let is_arguments = ARGUMENT_KEYS.contains(&key) && !self.begun && self.early.is_none();
        if self.keyed && self.name.is_none() && c == '{' {
            self.name = Some(self.key.clone());
            return self.arguments_begin(c, events);
        }
        match c {
            '"' if is_name => self.to(At::InName),
            '{' if is_arguments => self.arguments_begin(c, events),
            '"' if is_arguments => self.to(At::InText),
            // `null` stands for none.
            _ if is_arguments && c != 'n' => Step::Wrong,
            '{' | '[' | '"' => {
                let mut scan = Scan::default();
                scan.step(c);
                self.to(At::InOther(scan))
            }
            _ => {
                self.at = At::InScalar;
                self.step(c, events)
            }
        }
    }

    fn arguments_begin(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.scan = Scan::default();
        self.at = At::InArguments;
        match self.name.clone() {
            Some(name) => {
                self.begun = true;
                events.push(Event::Begins(name));
            }
            None => self.early = Some(String::new()),
        }
        self.inside(c, events)
    }

    fn inside(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let Some(over) = self.scan.step(c) else {
            return Step::Wrong;
        };
        if over {
            self.at = At::AfterValue;
        }
        match &mut self.early {
            Some(early) => {
                early.push(c);
                Step::More
            }
            None => {
                events.push(Event::Arguments(c.to_string()));
                Step::Settled
            }
        }
    }

    /// Arguments that are known as a whole.
    fn arguments(&mut self, arguments: String, events: &mut Vec<Event>) -> Step {
        self.at = At::AfterValue;
        match self.name {
            Some(_) => self.begin(arguments, events),
            None => {
                self.early = Some(arguments);
                Step::More
            }
        }
    }

    fn begin(&mut self, arguments: String, events: &mut Vec<Event>) -> Step {
        self.begun = true;
        events.push(Event::Begins(self.name.clone().unwrap_or_default()));
        events.push(Event::Arguments(arguments));
        Step::Settled
    }

    fn end(&mut self, events: &mut Vec<Event>) -> Step {
        if self.name.is_none() {
            return Step::Wrong;
        }
        if !self.begun {
            self.begin("{}".to_owned(), events);
        }
        Step::Over
    }
}
