//! Filters as Jinja defines them, with their work charged to the budget.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::error::invalid;
use super::format::percent;
use super::python::iterable;
use super::text::{Sequence, Sequenced, escaped, like, text, tuple};
use super::{Budget, Result, collections, numbers, sorting, strings};
use crate::chat::json;

/// Filters without use in chat templates whose work is hard to bound.
const REMOVED: [&str; 6] = ["batch", "slice", "pprint", "lines", "chain", "zip"];

/// Widest indent, in spaces.
const MAX_INDENT: usize = 1 << 20;

pub(super) fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    for name in REMOVED {
        environment.remove_filter(name);
    }
    install_of_text(environment, budget);
    install_of_collections(environment, budget);
    install_generators(environment);
    numbers::install(environment, budget);
    sorting::install(environment, budget);
}

type Change = fn(&str) -> String;

fn install_of_text(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let changes: [(&str, Change); 3] = [
        ("upper", |text| text.to_uppercase()),
        ("lower", |text| text.to_lowercase()),
        ("capitalize", strings::capitalize),
    ];
    for (name, change) in changes {
        let b = Arc::clone(budget);
        environment.add_filter(name, move |value: Value| -> Result<Value> {
            let text = text(&b, &value)?;
            b.charge_string(text.len().checked_mul(3))?;
            Ok(like(&value, change(&text)))
        });
    }
    let b = Arc::clone(budget);
    environment.add_filter("string", move |value: Value| -> Result<Value> {
        match value.as_str() {
            Some(_) => Ok(value),
            None => text(&b, &value).map(|text| Value::from(text.into_owned())),
        }
    });
    for name in ["e", "escape", "forceescape"] {
        let b = Arc::clone(budget);
        environment.add_filter(name, move |value: Value| -> Result<Value> {
            match value.is_safe() && name != "forceescape" {
                true => Ok(value),
                false => escaped(&b, &text(&b, &value)?).map(Value::from_safe_string),
            }
        });
    }
    let b = Arc::clone(budget);
    environment.add_filter("safe", move |value: Value| -> Result<Value> {
        Ok(Value::from_safe_string(text(&b, &value)?.into_owned()))
    });
    install_shaping(environment, budget);
}

/// Installs filters that cut, replace and format.
fn install_shaping(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    environment.add_filter(
        "trim",
        move |value: Value, chars: Option<Value>| -> Result<Value> {
            let s = text(&b, &value)?;
            let chars = chars.as_ref().and_then(Value::as_str);
            Ok(like(
                &value,
                strings::strip(&s, chars, (true, true))?.to_owned(),
            ))
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "replace",
        move |value: Value, from: Value, to: Value, most: Option<i64>| -> Result<String> {
            let (from, to) = (text(&b, &from)?, text(&b, &to)?);
            let most = most.and_then(|most| usize::try_from(most).ok());
            strings::replace(&b, &text(&b, &value)?, &from, &to, most)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "split",
        move |text: &str, separator: Option<&str>, most: Option<i64>| {
            strings::split(&b, text, separator, most, false)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "format",
        move |format: Value, Rest(args): Rest<Value>| -> Result<Value> {
            let safe = format.is_safe();
            percent(&b, &text(&b, &format)?, safe, &args)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter("tojson", move |value: Value, Rest(args): Rest<Value>| {
        json::tojson(&b, &value, &args)
    });
    let b = Arc::clone(budget);
    environment.add_filter("wordcount", move |value: Value| -> Result<usize> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let words = text(&b, &value)?;
        let words = words.split(|c| !is_word(c));
        Ok(words.filter(|word| !word.is_empty()).count())
    });
    let b = Arc::clone(budget);
    environment.add_filter("truncate", move |value: Value, Rest(args): Rest<Value>| {
        truncate(&text(&b, &value)?, &args)
    });
    let b = Arc::clone(budget);
    environment.add_filter(
        "indent",
        move |value: Value,
              width: Option<Value>,
              first: Option<bool>,
              blank: Option<bool>,
              options: Kwargs|
              -> Result<Value> {
            let width = width.or(options.get("width")?);
            let first = first.or(options.get("first")?).unwrap_or(false);
            let blank = blank.or(options.get("blank")?).unwrap_or(false);
            options.assert_all_used()?;
            let s = text(&b, &value)?;
            Ok(like(&value, indent(&b, &s, width, first, blank)?))
        },
    );
}

/// Evaluates `truncate(s, length=255, killwords=False, end='...', leeway=5)`; lengths are in
/// characters.
fn truncate(s: &str, args: &[Value]) -> Result<String> {
    type Argument = Option<Value>;
    let (length, kill_words, end, leeway, options): (
        Argument,
        Argument,
        Argument,
        Argument,
        Kwargs,
    ) = from_args(args)?;
    let length = length.or(options.get("length")?);
    let kill_words = kill_words.or(options.get("killwords")?);
    let end = end.or(options.get("end")?);
    let leeway = leeway.or(options.get("leeway")?);
    options.assert_all_used()?;
    let count = |value: Option<Value>, default: usize| match value.filter(|v| !v.is_none()) {
        None => Ok(default),
        Some(value) => {
            let count = value.as_usize();
            count.ok_or_else(|| invalid("truncate: lengths are whole numbers"))
        }
    };
    let (length, leeway) = (count(length, 255)?, count(leeway, 5)?);
    let end = end.as_ref().and_then(Value::as_str).unwrap_or("...");
    let Some(keep) = length.checked_sub(end.chars().count()) else {
        return Err(invalid("truncate: the length is shorter than the end"));
    };
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(s.to_owned());
    }
    let cut = s.char_indices().nth(keep).map_or(s.len(), |(at, _)| at);
    let start = s.get(..cut).unwrap_or(s);
    let start = match (
        kill_words.is_some_and(|kill| kill.is_true()),
        start.rfind(' '),
    ) {
        (false, Some(space)) => start.get(..space).unwrap_or(start),
        _ => start,
    };
    Ok(format!("{start}{end}"))
}

fn indent(
    budget: &Budget,
    s: &str,
    width: Option<Value>,
    first: bool,
    blank: bool,
) -> Result<String> {
    let spaces = |n: usize| " ".repeat(n);
    let padding = match width {
        None => spaces(4),
        Some(width) => match width.as_str() {
            Some(padding) => padding.to_owned(),
            None => match width.as_usize() {
                Some(n) if n <= MAX_INDENT => spaces(n),
                _ => return Err(invalid("the indent is too wide")),
            },
        },
    };
    let mut lines = strings::lines(s, false);
    // The last line counts as ended, even if it is empty.
    let ends = strings::lines(s, true).last().map(|last| last.len());
    if ends != lines.last().map(|last| last.len()) || s.is_empty() {
        lines.push("");
    }
    budget.charge_elements(lines.len())?;
    let added = lines.len().checked_mul(padding.len());
    budget.charge_string(added.and_then(|n| n.checked_add(s.len())))?;
    let mut out = String::with_capacity(s.len());
    for (i, line) in lines.iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        let padded = match i {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        out.push_str(if padded { &padding } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

fn install_of_collections(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    for name in ["length", "count"] {
        let b = Arc::clone(budget);
        environment.add_filter(name, move |value: Value| length(&b, &value));
    }
    let b = Arc::clone(budget);
    environment.add_filter("first", move |value: Value| -> Result<Value> {
        let nothing = || Value::UNDEFINED;
        match value.as_str() {
            Some(text) => Ok(text.chars().next().map_or_else(nothing, Value::from)),
            None => Ok(iterable(&b, &value)?.next().unwrap_or_else(nothing)),
        }
    });
    let b = Arc::clone(budget);
    environment.add_filter("last", move |value: Value| -> Result<Value> {
        let nothing = || Value::UNDEFINED;
        match value.as_str() {
            Some(text) => Ok(text.chars().next_back().map_or_else(nothing, Value::from)),
            None => {
                b.charge_elements(value.len().unwrap_or(1))?;
                Ok(iterable(&b, &value)?.last().unwrap_or_else(nothing))
            }
        }
    });
    let b = Arc::clone(budget);
    environment.add_filter("items", move |value: Value| -> Result<Value> {
        match value.kind() {
            ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
            ValueKind::Map => collections::items(&b, &value).map(Value::from),
            _ => Err(invalid("only a dictionary has items")),
        }
    });
    let b = Arc::clone(budget);
    environment.add_filter(
        "dictsort",
        move |value: Value, options: Kwargs| -> Result<Value> {
            b.deep(&value, 0)?;
            let sorted = minijinja::filters::dictsort(&value, options)?;
            let pairs = sorted
                .try_iter()?
                .map(|pair| Ok(tuple(pair.try_iter()?.collect())));
            Ok(Value::from(pairs.collect::<Result<Vec<Value>>>()?))
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "join",
        move |value: Value,
              separator: Option<Value>,
              attribute: Option<Value>,
              options: Kwargs|
              -> Result<String> {
            let separator = separator.or(options.get("d")?).unwrap_or_default();
            let attribute = attribute.or(options.get("attribute")?);
            let attribute = attribute.filter(|attribute| !attribute.is_none());
            options.assert_all_used()?;
            let separator = text(&b, &separator)?;
            match attribute {
                None => strings::join(&b, &value, &separator, false),
                Some(path) => {
                    let items = iterable(&b, &value)?;
                    let named = items.map(|item| sorting::attribute(&item, &path));
                    let named = Value::from(named.collect::<Result<Vec<Value>>>()?);
                    strings::join(&b, &named, &separator, false)
                }
            }
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter("list", move |value: Value| -> Result<Value> {
        let n = value.as_str().map(str::len).or(value.len());
        b.charge_elements(n.unwrap_or(1))?;
        match value.as_str() {
            Some(text) => Ok(Value::from_iter(text.chars())),
            None => Ok(Value::from(iterable(&b, &value)?.collect::<Vec<Value>>())),
        }
    });
}

/// Installs filters that return generators: in Python these are true even when empty.
fn install_generators(environment: &mut Environment<'_>) {
    type Named<'a> = Option<std::borrow::Cow<'a, str>>;
    fn yielded(items: Vec<Value>) -> Value {
        Value::from_object(Sequenced {
            sequence: Sequence::Generator,
            items,
        })
    }
    environment.add_filter(
        "select",
        |state: &State<'_, '_>, value: Value, test: Named<'_>, args: Rest<Value>| {
            filters::select(state, value, test, args).map(yielded)
        },
    );
    environment.add_filter(
        "reject",
        |state: &State<'_, '_>, value: Value, test: Named<'_>, args: Rest<Value>| {
            filters::reject(state, value, test, args).map(yielded)
        },
    );
    environment.add_filter(
        "selectattr",
        |state: &State<'_, '_>,
         value: Value,
         name: std::borrow::Cow<'_, str>,
         test: Named<'_>,
         args: Rest<Value>| {
            filters::selectattr(state, value, name, test, args).map(yielded)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &State<'_, '_>,
         value: Value,
         name: std::borrow::Cow<'_, str>,
         test: Named<'_>,
         args: Rest<Value>| {
            filters::rejectattr(state, value, name, test, args).map(yielded)
        },
    );
    environment.add_filter(
        "map",
        |state: &State<'_, '_>, value: Value, args: Rest<Value>| {
            filters::map(state, value, args).map(yielded)
        },
    );
}

fn length(budget: &Budget, value: &Value) -> Result<Value> {
    budget.flat(value)?;
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    let length = match value.as_str() {
        Some(text) => Some(text.chars().count()),
        None => value.len(),
    };
    length.map(Value::from).ok_or_else(|| {
        let what = format!("{} has no length", value.kind());
        Error::new(ErrorKind::InvalidOperation, what)
    })
}
