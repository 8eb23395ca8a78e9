//! `tojson` as transformers defines it: `json.dumps(value, ensure_ascii=False)`, not the HTML-safe
//! form of Jinja.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::guard::{Budget, float};

const MAX_DEPTH: usize = 100;
const MAX_INDENT: usize = 64;

struct Style<'a> {
    indent: Option<String>,
    item: &'a str,
    key: &'a str,
    sort: bool,
    ascii: bool,
}

/// Implements the filter
/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    type Argument = Option<Value>;
    let (ascii, indent, separators, sort, options): (
        Argument,
        Argument,
        Argument,
        Argument,
        Kwargs,
    ) = from_args(args)?;
    let ascii = ascii.or(options.get("ensure_ascii")?);
    let indent = indent.or(options.get("indent")?);
    let separators = separators.or(options.get("separators")?);
    let sort = sort.or(options.get("sort_keys")?);
    options.assert_all_used()?;
    let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined());
    let indent = indent.as_ref().map(indent_of).transpose()?;
    let separators = separators.filter(|separators| !separators.is_none());
    let (item, key) = match &separators {
        Some(separators) => {
            let separators: Vec<Value> = separators.try_iter()?.collect();
            match separators.as_slice() {
                [item, key] => (item.to_string(), key.to_string()),
                _ => return Err(invalid("tojson: expected two separators")),
            }
        }
        None => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
    };
    let (sort, ascii) = (
        sort.is_some_and(|v| v.is_true()),
        ascii.is_some_and(|v| v.is_true()),
    );
    let (item, key) = (item.as_str(), key.as_str());
    let mut out = String::new();
    write(
        budget,
        value,
        &Style {
            indent,
            item,
            key,
            sort,
            ascii,
        },
        0,
        &mut out,
    )?;
    Ok(Value::from(out))
}

/// Returns the indentation of one level: spaces, or the text itself.
fn indent_of(indent: &Value) -> Result<String, Error> {
    let text = match indent.as_str() {
        Some(text) => text.to_owned(),
        None if indent.kind() == ValueKind::Bool => " ".repeat(usize::from(indent.is_true())),
        None => {
            let n = indent
                .as_i64()
                .ok_or_else(|| invalid("tojson: not an indent"))?;
            " ".repeat(usize::try_from(n).unwrap_or(0).min(MAX_INDENT + 1))
        }
    };
    match text.len() <= MAX_INDENT {
        true => Ok(text),
        false => Err(invalid("tojson: the indent is too large")),
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn write(
    budget: &Budget,
    value: &Value,
    style: &Style<'_>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: values are nested too deep",
        ));
    }
    let around = style.indent.as_ref().map_or(0, String::len) * depth
        + style.item.len()
        + style.key.len()
        + 8;
    budget.charge(around as u64)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out)?,
        ValueKind::String => string(budget, value.as_str().unwrap_or_default(), style, out)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = sized(budget, value)?;
            enclosed(style, depth, ('[', ']'), items.len(), out, |i, out| {
                write(budget, &items[i], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = sized(budget, value)?;
            if style.sort {
                keys.sort();
            }
            enclosed(style, depth, ('{', '}'), keys.len(), out, |i, out| {
                let text = key_text(&keys[i])?;
                string(budget, &text, style, out)?;
                out.push_str(style.key);
                write(budget, &value.get_item(&keys[i])?, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: {kind} has no JSON form"),
            ));
        }
    }
    Ok(())
}

/// Converts a key to text: JSON keys are strings only.
fn key_text(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(key, &mut text)?,
        _ => {
            return Err(invalid(
                "tojson: keys must be strings, numbers, truths or none",
            ));
        }
    }
    Ok(text)
}

fn sized(budget: &Budget, value: &Value) -> Result<Vec<Value>, Error> {
    budget.charge(64 * value.len().unwrap_or(1) as u64)?;
    Ok(value.try_iter()?.collect())
}

fn enclosed(
    style: &Style<'_>,
    depth: usize,
    (open, close): (char, char),
    n: usize,
    out: &mut String,
    mut each: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for i in 0..n {
        out.push_str(if i > 0 { style.item } else { "" });
        new_line(depth + 1, out);
        each(i, out)?;
    }
    if n > 0 {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Ok(());
    }
    let number = f64::try_from(value.clone())?;
    let text = match number {
        n if n.is_nan() => "NaN".to_owned(),
        n if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        n => float(n),
    };
    out.push_str(&text);
    Ok(())
}

fn string(budget: &Budget, text: &str, style: &Style<'_>, out: &mut String) -> Result<(), Error> {
    // Every character may become an escape of six bytes.
    budget.charge(text.len() as u64 * 2)?;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20
                || (style.ascii && !c.is_ascii())
                || (style.ascii && c == '\u{7f}') =>
            {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}
