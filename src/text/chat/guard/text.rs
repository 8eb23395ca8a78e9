//! Converts values to text as Python does: `str()` for output, `repr()` inside lists and dicts.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use regex::Regex;

use super::error::invalid;
use super::{Budget, ELEMENT, MAX_VALUE_DEPTH, Result};

/// Python type of a sequence in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sequence {
    /// `(1, 2)`
    Tuple,
    /// `dict_keys(['a'])`, `dict_values([1])`, `dict_items([('a', 1)])`
    View(&'static str),
    /// A generator: true even if it yields nothing.
    Generator,
}

/// A sequence that is not a list.
#[derive(Debug)]
pub(super) struct Sequenced {
    pub(super) sequence: Sequence,
    pub(super) items: Vec<Value>,
}

impl Object for Sequenced {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.sequence == Sequence::Generator || !self.items.is_empty()
    }
}

/// Returns whether a value was made by `namespace()`, which is not a dict in Python.
pub(super) fn is_namespace(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("Namespace"))
}

/// Returns the items as the same kind of sequence as `like`.
pub(super) fn same_sequence(like: &Value, items: Vec<Value>) -> Value {
    match sequence(like) {
        Some(Sequence::Tuple) => tuple(items),
        _ => Value::from(items),
    }
}

/// Makes a tuple.
pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from_object(Sequenced {
        sequence: Sequence::Tuple,
        items,
    })
}

/// Returns the kind of a sequence that is not a list.
pub(super) fn sequence(value: &Value) -> Option<Sequence> {
    value
        .downcast_object_ref::<Sequenced>()
        .map(|sequenced| sequenced.sequence)
}

/// A method that is not called: a name such as `schema.items` where `schema['items']` was meant.
#[derive(Debug)]
pub(super) struct Method(pub(super) String);

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.0)
    }
}

/// Evaluates `str(value)`.
pub(super) fn text<'v>(budget: &Budget, value: &'v Value) -> Result<Cow<'v, str>> {
    if let Some(text) = value.as_str() {
        budget.charge(text.len() as u64)?;
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::new();
    if !value.is_undefined() {
        write(budget, value, 0, &mut out)?;
    }
    Ok(Cow::Owned(out))
}

/// Evaluates `repr(value)`.
pub(super) fn repr(budget: &Budget, value: &Value) -> Result<String> {
    let mut out = String::new();
    write(budget, value, 0, &mut out)?;
    Ok(out)
}

fn write(budget: &Budget, value: &Value, depth: u32, out: &mut String) -> Result<()> {
    if depth > MAX_VALUE_DEPTH {
        return Err(invalid("values are nested too deep"));
    }
    budget.charge(ELEMENT)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => push(out, format_args!("{value}")),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            budget.charge(text.len() as u64)?;
            out.push_str(if value.is_safe() { "Markup(" } else { "" });
            quote(text, out);
            out.push_str(if value.is_safe() { ")" } else { "" });
        }
        ValueKind::Seq => write_sequence(budget, value, depth, out)?,
        // Without a length it may be infinite.
        ValueKind::Iterable if value.len().is_some() => {
            write_sequence(budget, value, depth, out)?;
        }
        ValueKind::Map => {
            let namespace = is_namespace(value);
            out.push_str(if namespace { "<Namespace " } else { "" });
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(budget, &key, depth + 1, out)?;
                out.push_str(": ");
                write(budget, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push_str(if namespace { "}>" } else { "}" });
        }
        _ => {
            budget.deep(value, depth)?;
            push(out, format_args!("{value}"));
        }
    }
    Ok(())
}

fn write_sequence(budget: &Budget, value: &Value, depth: u32, out: &mut String) -> Result<()> {
    let kind = sequence(value);
    let (open, close) = match kind {
        None | Some(Sequence::Generator) => ("[", "]"),
        Some(Sequence::Tuple) => ("(", ")"),
        Some(Sequence::View(name)) => {
            out.push_str(name);
            ("([", "])")
        }
    };
    out.push_str(open);
    let mut n = 0;
    for item in value.try_iter()? {
        out.push_str(if n > 0 { ", " } else { "" });
        write(budget, &item, depth + 1, out)?;
        n += 1;
    }
    let single = n == 1 && kind == Some(Sequence::Tuple);
    out.push_str(if single { "," } else { "" });
    out.push_str(close);
    Ok(())
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

/// Writes a float as Python does: the shortest digits that round-trip, with an exponent of at least
/// two digits below 1e-4 and from 1e16 on.
pub(in crate::chat) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    exponent_of_two_digits(&format!("{number:?}"))
}

/// Converts Rust's `1e-7` to C's `1e-07`.
pub(super) fn exponent_of_two_digits(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once('e') else {
        return text.to_owned();
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    let digits = digits.strip_suffix(".0").unwrap_or(digits);
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Writes a string in quotes, like `repr`.
fn quote(text: &str, out: &mut String) {
    static HIDDEN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").ok());
    let hidden = |c: char| {
        let mut bytes = [0; 4];
        let text = c.encode_utf8(&mut bytes);
        HIDDEN.as_ref().is_some_and(|hidden| hidden.is_match(text))
    };
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => {
                out.push_str(if c == mark { "\\" } else { "" });
                out.push(c);
            }
            c if c.is_ascii() || hidden(c) => match u32::from(c) {
                n @ 0..=0xff => push(out, format_args!("\\x{n:02x}")),
                n @ 0..=0xffff => push(out, format_args!("\\u{n:04x}")),
                n => push(out, format_args!("\\U{n:08x}")),
            },
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// Returns whether Python's `str.isspace` accepts a character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Escapes a string for HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns a string as safe as the value it was made from.
pub(super) fn like(value: &Value, text: String) -> Value {
    if value.is_safe() {
        Value::from_safe_string(text)
    } else {
        Value::from(text)
    }
}

/// Escapes text for HTML: at most five bytes for one.
pub(super) fn escaped(budget: &Budget, text: &str) -> Result<String> {
    budget.charge_string(text.len().checked_mul(5))?;
    Ok(escape(text))
}
