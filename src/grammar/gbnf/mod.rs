//! Translates llama.cpp's grammar notation, GBNF, to Lark.
//!
//! A grammar without recursive rules becomes a single regular expression, and is enforced exactly.
//! In others, regular rules become terminals, which match greedily.

mod parse;

use std::collections::{HashMap, HashSet};

use parse::{Expr, Rules, parse};

/// Maximum bytes of a rule's regular expression, including the rules it refers to.
const MAX_REGEX: usize = 32 << 10;

/// Maximum depth of rule references.
const MAX_DEPTH: usize = 200;

/// Translates a grammar to Lark.
pub(crate) fn to_lark(text: &str) -> Result<String, String> {
    let rules = parse(text)?;
    let mut writer = Writer {
        rules: &rules,
        regular: HashMap::new(),
        names: HashMap::new(),
        todo: Vec::new(),
    };
    let root = Expr::Rule("root".to_owned());
    if let Some(regex) = writer.regex(&root, &mut HashSet::new(), 0)? {
        return Ok(format!("start: /{}/", nonempty(&regex)));
    }
    let mut lark = format!("start: {}\n", writer.part(&root)?);
    while let Some((name, body)) = writer.todo.pop() {
        lark.push_str(&format!("{name}: {}\n", writer.part(body)?));
    }
    Ok(lark)
}

/// Returns a regular expression Lark accepts: it rejects empty ones.
fn nonempty(regex: &str) -> &str {
    if regex.is_empty() { "()" } else { regex }
}

struct Writer<'r> {
    rules: &'r Rules,
    /// Regular expression of each rule visited; `None` if it has none.
    regular: HashMap<&'r str, Option<String>>,
    /// Lark names of rules.
    names: HashMap<&'r str, String>,
    todo: Vec<(String, &'r Expr)>,
}

impl<'r> Writer<'r> {
    fn rule(&self, name: &str) -> Result<(&'r str, &'r Expr), String> {
        match self.rules.get_key_value(name) {
            Some((name, body)) => Ok((name, body)),
            None => Err(format!(
                "expected only rules that the grammar has, found {name}"
            )),
        }
    }

    /// Translates part of a rule.
    fn part(&mut self, expr: &Expr) -> Result<String, String> {
        Ok(match expr {
            Expr::Rule(name) => {
                let (name, body) = self.rule(name)?;
                if let Some(regex) = self.regex(expr, &mut HashSet::new(), 0)? {
                    return Ok(format!("/{}/", nonempty(&regex)));
                }
                if let Some(name) = self.names.get(name) {
                    return Ok(name.clone());
                }
                let own = format!("rule_{}", self.names.len());
                self.names.insert(name, own.clone());
                self.todo.push((own.clone(), body));
                own
            }
            Expr::Sequence(all) if all.is_empty() => "\"\"".to_owned(),
            Expr::Sequence(all) => {
                let all = all
                    .iter()
                    .map(|expr| self.part(expr))
                    .collect::<Result<Vec<_>, _>>()?;
                format!("({})", all.join(" "))
            }
            Expr::Choice(all) => {
                let all = all
                    .iter()
                    .map(|expr| self.part(expr))
                    .collect::<Result<Vec<_>, _>>()?;
                format!("({})", all.join(" | "))
            }
            Expr::Token(token) => token.clone(),
            Expr::Repeat(inner, min, max) => {
                // a repeated class is one terminal
                if matches!(**inner, Expr::Class { .. } | Expr::Any) {
                    let regex = self.regex(expr, &mut HashSet::new(), 0)?;
                    return Ok(format!("/{}/", regex.unwrap_or_default()));
                }
                let inner = self.part(inner)?;
                match (min, max) {
                    (0, None) => format!("({inner})*"),
                    (1, None) => format!("({inner})+"),
                    (0, Some(1)) => format!("({inner})?"),
                    (min, None) => format!("({inner}){{{min},}}"),
                    (min, Some(max)) => format!("({inner}){{{min},{max}}}"),
                }
            }
            Expr::Literal(text) if text.is_empty() => "\"\"".to_owned(),
            Expr::Literal(_) | Expr::Class { .. } | Expr::Any => {
                let regex = self.regex(expr, &mut HashSet::new(), 0)?;
                format!("/{}/", regex.unwrap_or_default())
            }
        })
    }

    /// Returns the regular expression of an expression; `None` if it is recursive, has tokens, or
    /// is too large.
    fn regex(
        &mut self,
        expr: &Expr,
        inside: &mut HashSet<&'r str>,
        depth: usize,
    ) -> Result<Option<String>, String> {
        if depth == MAX_DEPTH {
            return Ok(None);
        }
        let regex = match expr {
            Expr::Token(_) => return Ok(None),
            Expr::Literal(text) => text.chars().map(escaped).collect(),
            Expr::Any => "(?s:.)".to_owned(),
            Expr::Class { is_negated, ranges } => class(*is_negated, ranges),
            Expr::Sequence(all) | Expr::Choice(all) => {
                let mut parts = Vec::new();
                let mut room = MAX_REGEX;
                for part in all {
                    match self.regex(part, inside, depth + 1)? {
                        Some(regex) if regex.len() <= room => {
                            room -= regex.len();
                            parts.push(regex);
                        }
                        _ => return Ok(None),
                    }
                }
                match expr {
                    Expr::Choice(_) => format!("(?:{})", parts.join("|")),
                    _ => parts.concat(),
                }
            }
            Expr::Repeat(inner, min, max) => {
                let Some(inner) = self.regex(inner, inside, depth + 1)? else {
                    return Ok(None);
                };
                let max = max.map_or(String::new(), |max| max.to_string());
                format!("(?:{inner}){{{min},{max}}}")
            }
            Expr::Rule(name) => {
                let (name, body) = self.rule(name)?;
                if let Some(known) = self.regular.get(name) {
                    return Ok(known.clone());
                }
                if !inside.insert(name) {
                    return Ok(None);
                }
                let regex = self.regex(body, inside, depth + 1)?;
                inside.remove(name);
                let regex = regex.map(|regex| format!("(?:{regex})"));
                self.regular.insert(name, regex.clone());
                return Ok(regex);
            }
        };
        // large expressions are written rule by rule
        Ok(Some(regex).filter(|regex| regex.len() <= MAX_REGEX))
    }
}

fn class(is_negated: bool, ranges: &[(char, char)]) -> String {
    if ranges.is_empty() {
        // no character at all, also if it is negated, as in llama.cpp
        return "[^\\x{0}-\\x{10FFFF}]".to_owned();
    }
    let ranges = ranges.iter().map(|(first, last)| match first == last {
        true => escaped(*first),
        false => format!("{}-{}", escaped(*first), escaped(*last)),
    });
    let mark = if is_negated { "^" } else { "" };
    format!("[{mark}{}]", ranges.collect::<String>())
}

/// Escapes a character, for use inside and outside of a class.
fn escaped(c: char) -> String {
    match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("\\x{{{:X}}}", u32::from(c)),
    }
}
