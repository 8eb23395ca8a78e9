//! GBNF parser.

use std::collections::{HashMap, HashSet};

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;

/// Maximum value of a repetition's minimum; a larger maximum counts as unlimited.
const MAX_REPEAT: u32 = 2000;

/// Expression of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// Expressions in sequence.
    Sequence(Vec<Expr>),
    /// Alternatives.
    Choice(Vec<Expr>),
    /// Literal text.
    Literal(String),
    /// One character inside these ranges, or outside of them.
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// Reference to a rule.
    Rule(String),
    /// A token, in the notation Lark shares: `<text>` or `<[id]>`.
    Token(String),
    /// Repetition, with minimum and maximum.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// Rules of a grammar by name.
pub(super) type Rules = HashMap<String, Expr>;

/// Parses a grammar.
pub(super) fn parse(text: &str) -> Result<Rules, String> {
    let mut parser = Parser {
        chars: text.chars().collect(),
        at: 0,
        rules: Rules::new(),
    };
    loop {
        parser.space(true);
        if parser.peek().is_none() {
            break;
        }
        parser.rule()?;
    }
    if !parser.rules.contains_key("root") {
        return Err("expected a rule named root, found none".to_owned());
    }
    Recursion::of(&parser.rules).check()?;
    Ok(parser.rules)
}

/// Finds rules that begin with themselves (left recursion), which llama.cpp refuses. Like there, a
/// rule, a group or a repetition counts as empty only if it has an alternative without elements.
struct Recursion<'r> {
    rules: &'r Rules,
    inside: Vec<&'r str>,
    checked: HashSet<&'r str>,
}

impl<'r> Recursion<'r> {
    fn of(rules: &'r Rules) -> Recursion<'r> {
        Recursion {
            rules,
            inside: Vec::new(),
            checked: HashSet::new(),
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let mut names: Vec<&String> = self.rules.keys().collect();
        names.sort();
        names.into_iter().try_for_each(|name| self.rule(name))
    }

    fn rule(&mut self, name: &str) -> Result<(), String> {
        // unknown rules are refused elsewhere
        let Some((name, body)) = self.rules.get_key_value(name) else {
            return Ok(());
        };
        if self.inside.contains(&&**name) || self.inside.len() > MAX_DEPTH {
            return Err(format!(
                "expected no rule that begins with itself, found {name}"
            ));
        }
        if self.checked.contains(&**name) {
            return Ok(());
        }
        self.inside.push(name);
        self.first(body)?;
        self.inside.pop();
        self.checked.insert(name);
        Ok(())
    }

    /// Checks what an expression may begin with.
    fn first(&mut self, expr: &'r Expr) -> Result<(), String> {
        match expr {
            Expr::Rule(name) => self.rule(name),
            Expr::Choice(all) => all.iter().try_for_each(|one| self.first(one)),
            Expr::Sequence(all) => {
                for part in all {
                    self.first(part)?;
                    if !self.may_be_empty(part) {
                        break;
                    }
                }
                Ok(())
            }
            Expr::Repeat(inner, _, max) => {
                if max.is_none() && self.may_be_empty(inner) {
                    return Err("expected no endless repetition of what may be empty".to_owned());
                }
                self.first(inner)
            }
            Expr::Literal(_) | Expr::Class { .. } | Expr::Any | Expr::Token(_) => Ok(()),
        }
    }

    fn may_be_empty(&self, expr: &Expr) -> bool {
        let has_no_elements = |expr: &Expr| match expr {
            Expr::Literal(text) => text.is_empty(),
            Expr::Sequence(all) => all.is_empty(),
            _ => false,
        };
        match expr {
            Expr::Rule(name) => self.rules.get(name).is_some_and(|body| match body {
                Expr::Choice(all) => all.iter().any(has_no_elements),
                body => has_no_elements(body),
            }),
            Expr::Choice(all) => all.iter().any(has_no_elements),
            Expr::Repeat(_, min, _) => *min == 0,
            other => has_no_elements(other),
        }
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    rules: Rules,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek();
        self.at += usize::from(c.is_some());
        c
    }

    fn starts_with(&self, text: &str) -> bool {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        text.chars()
            .enumerate()
            .all(|(i, c)| rest.get(i) == Some(&c))
    }

    /// Skips white space and comments; line breaks only if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    /// Returns an error at the current position.
    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        let before = self.chars.get(..self.at).unwrap_or_default();
        let line = 1 + before.iter().filter(|c| **c == '\n').count();
        let found = self
            .peek()
            .map_or("the end".to_owned(), |c| format!("{c:?}"));
        Err(format!("line {line}: expected {expected}, found {found}"))
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        while let Some(c) = self
            .peek()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        {
            name.push(c);
            self.at += 1;
        }
        match name.is_empty() {
            true => self.wrong("the name of a rule"),
            false => Ok(name),
        }
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name()?;
        self.space(false);
        if !self.starts_with("::=") {
            return self.wrong("::=");
        }
        self.at += 3;
        self.space(true);
        let body = self.choice(0)?;
        match self.peek() {
            None | Some('\n' | '\r') => {
                self.rules.insert(name, body);
                Ok(())
            }
            Some(_) => self.wrong("the end of the line"),
        }
    }

    fn choice(&mut self, depth: usize) -> Result<Expr, String> {
        if depth == MAX_DEPTH {
            return self.wrong(&format!("at most {MAX_DEPTH} groups inside of each other"));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Expr::Choice(all),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, String> {
        let is_nested = depth > 0;
        let mut all = Vec::new();
        while let Some(c) = self.peek() {
            let part = match c {
                '"' => self.literal()?,
                '[' => self.class()?,
                '(' => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.choice(depth + 1)?;
                    if self.peek() != Some(')') {
                        return self.wrong(")");
                    }
                    self.at += 1;
                    // a group is a rule of its own: see `Recursion`
                    match inner {
                        Expr::Repeat(..) => Expr::Choice(vec![inner]),
                        inner => inner,
                    }
                }
                '.' => {
                    self.at += 1;
                    Expr::Any
                }
                '<' | '!' => self.token()?,
                c if c.is_ascii_alphanumeric() || c == '-' => {
                    let start = self.at;
                    let name = self.name()?;
                    self.space(false);
                    // the name belongs to the next rule, because line breaks inside groups are
                    // allowed
                    if is_nested && self.starts_with("::=") {
                        self.at = start;
                        return self.wrong(")");
                    }
                    Expr::Rule(name)
                }
                '*' | '+' | '?' | '{' => match all.pop() {
                    Some(part) => self.repeated(part)?,
                    None => return self.wrong("something to repeat"),
                },
                _ => break,
            };
            all.push(part);
            self.space(is_nested);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Expr::Sequence(all),
        })
    }

    fn repeated(&mut self, part: Expr) -> Result<Expr, String> {
        let (min, max) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => self.bounds()?,
        };
        if max.is_some_and(|max| max < min) {
            return self.wrong("a repetition whose maximum is not below its minimum");
        }
        Ok(Expr::Repeat(Box::new(part), min, max))
    }

    /// Parses `m}`, `m,}` or `m,n}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        self.space(true);
        let Some(min) = self.number()? else {
            return self.wrong("a number of repetitions");
        };
        self.space(true);
        let max = match self.peek() {
            Some(',') => {
                self.at += 1;
                self.space(true);
                self.number()?.filter(|max| *max <= MAX_REPEAT)
            }
            _ => Some(min),
        };
        self.space(true);
        if self.peek() != Some('}') {
            return self.wrong("}");
        }
        self.at += 1;
        match min <= MAX_REPEAT {
            true => Ok((min, max)),
            false => self.wrong(&format!("at most {MAX_REPEAT} repetitions")),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            digits.push(c);
            self.at += 1;
        }
        match digits.as_str() {
            "" => Ok(None),
            digits => match digits.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => self.wrong("a number of 32 bits"),
            },
        }
    }

    fn literal(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return self.wrong("\" at the end of a text"),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(Expr::Literal(text))
    }

    fn class(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let is_negated = self.peek() == Some('^');
        self.at += usize::from(is_negated);
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return self.wrong("] at the end of a class"),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let is_range =
                self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            let last = match is_range {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => first,
            };
            if first <= last {
                ranges.push((first, last));
            }
        }
        self.at += 1;
        Ok(Expr::Class { is_negated, ranges })
    }

    /// Parses a character or an escape.
    fn character(&mut self) -> Result<char, String> {
        match self.next() {
            Some('\\') => {}
            Some(c) => return Ok(c),
            None => return self.wrong("a character"),
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                self.at -= 1;
                return self
                    .wrong("one of the escapes \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\x \\u \\U");
            }
        };
        let hex: String = self.chars.iter().skip(self.at).take(digits).collect();
        let code = u32::from_str_radix(&hex, 16)
            .ok()
            .filter(|_| hex.len() == digits);
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.wrong(&format!("a character as {digits} hexadecimal digits")),
        }
    }

    fn token(&mut self) -> Result<Expr, String> {
        if self.peek() == Some('!') {
            return self.wrong("no negated token, which grammars here do not have");
        }
        let mut text = String::new();
        while let Some(c) = self.peek().filter(|c| !c.is_whitespace()) {
            text.push(c);
            self.at += 1;
            if c == '>' {
                return Ok(Expr::Token(text));
            }
        }
        self.wrong("> at the end of a token")
    }
}
