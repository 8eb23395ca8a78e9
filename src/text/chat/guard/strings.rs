//! Methods of Python's strings.

use minijinja::Value;
use minijinja::value::{Kwargs, ValueKind, from_args};

use super::error::invalid;
use super::format::braces;
use super::text::escaped;
use super::text::{is_space, like, text, tuple};
use super::{Budget, Result};

/// Most characters in a set to strip.
const MAX_STRIPPED: usize = 256;
/// Longest text made by padding.
const MAX_PADDED: usize = 1 << 20;

/// Names of the methods that [`method`] supports.
pub(super) const METHODS: [&str; 42] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Calls a method of a string. `None` if strings have no such method.
pub(super) fn method(
    budget: &Budget,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>> {
    let s = value.as_str().unwrap_or_default();
    budget.charge_string(Some(s.len()))?;
    let result = match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let ends = (name != "rstrip", name != "lstrip");
            like(value, strip(s, chars, ends)?.to_owned())
        }
        "startswith" | "endswith" => affixed(s, name == "startswith", args)?,
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let rest = match name {
                "removeprefix" => s.strip_prefix(affix),
                _ => s.strip_suffix(affix),
            };
            like(value, rest.unwrap_or(s).to_owned())
        }
        "split" | "rsplit" => split_method(budget, value, s, name == "rsplit", args)?,
        "splitlines" => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            let lines = lines(s, keep);
            budget.charge_elements(lines.len())?;
            Value::from_iter(lines)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(s, separator, name == "rpartition")?
        }
        "replace" => {
            let (from, to, most, named): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let most = most.or(named.get("count")?);
            named.assert_all_used()?;
            let most = most.and_then(|most| usize::try_from(most).ok());
            match value.is_safe() {
                true => like(
                    value,
                    replace(budget, s, from, &escaped(budget, to)?, most)?,
                ),
                false => Value::from(replace(budget, s, from, to, most)?),
            }
        }
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            let safe = value.is_safe();
            like(value, join(budget, &items, s, safe)?)
        }
        "format" => {
            let (args, named) = match args.split_last() {
                Some((last, args)) if last.is_kwargs() => (args, last.clone()),
                _ => (
                    args,
                    Value::from(Kwargs::from_iter::<[(&str, Value); 0]>([])),
                ),
            };
            braces(budget, s, value.is_safe(), args, &named)?
        }
        _ => {
            return match inspect(s, name, args)? {
                Some(answer) => Ok(Some(answer)),
                None => reshape(budget, value, s, name, args),
            };
        }
    };
    Ok(Some(result))
}

fn split_method(
    budget: &Budget,
    value: &Value,
    s: &str,
    from_end: bool,
    args: &[Value],
) -> Result<Value> {
    let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(named.get("sep")?).filter(|sep| !sep.is_none());
    let most = most.or(named.get("maxsplit")?);
    named.assert_all_used()?;
    let separator = separator.as_ref().map(expect_text).transpose()?;
    let parts = split(budget, s, separator, most, from_end)?;
    if !value.is_safe() {
        return Ok(parts);
    }
    let safe = parts.try_iter()?.map(|part| like(value, part.to_string()));
    Ok(Value::from_iter(safe))
}

/// Evaluates methods that return a number or a bool.
fn inspect(s: &str, name: &str, args: &[Value]) -> Result<Option<Value>> {
    let all = |test: fn(char) -> bool| !s.is_empty() && s.chars().all(test);
    let result = match name {
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, part) = part(s, start, end);
            match what {
                "" => Value::from(part.chars().count() + 1),
                what => Value::from(part.matches(what).count()),
            }
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (skipped, part) = part(s, start, end);
            let at = if name.starts_with('r') {
                part.rfind(what)
            } else {
                part.find(what)
            };
            match at {
                Some(at) => Value::from(skipped + part[..at].chars().count()),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(invalid("substring not found")),
            }
        }
        "isdigit" | "isdecimal" | "isnumeric" => Value::from(all(char::is_numeric)),
        "isalnum" => Value::from(all(char::is_alphanumeric)),
        "isalpha" => Value::from(all(char::is_alphabetic)),
        "isspace" => Value::from(all(is_space)),
        "isascii" => Value::from(s.is_ascii()),
        "islower" | "isupper" => {
            type Case = fn(char) -> bool;
            let (own, other): (Case, Case) = match name {
                "islower" => (char::is_lowercase, char::is_uppercase),
                _ => (char::is_uppercase, char::is_lowercase),
            };
            Value::from(s.chars().any(own) && !s.chars().any(other))
        }
        "istitle" => Value::from(s.chars().any(char::is_alphabetic) && title(s) == s),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Evaluates methods that change letters or pad.
fn reshape(
    budget: &Budget,
    value: &Value,
    s: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>> {
    // A letter becomes at most three.
    budget.charge_string(s.len().checked_mul(3))?;
    let result = match name {
        "upper" => s.to_uppercase(),
        "lower" | "casefold" => s.to_lowercase(),
        "title" => title(s),
        "capitalize" => capitalize(s),
        "swapcase" => s
            .chars()
            .flat_map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<Vec<char>>(),
                false => c.to_uppercase().collect(),
            })
            .collect(),
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            pad(budget, s, name, width, fill)?
        }
        "expandtabs" | "encode" => return Err(invalid("this method is not supported")),
        _ => return Ok(None),
    };
    Ok(Some(like(value, result)))
}

fn pad(budget: &Budget, s: &str, name: &str, width: i64, fill: Option<&str>) -> Result<String> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_PADDED {
        return Err(invalid("the padding is too wide"));
    }
    budget.charge_string(width.checked_mul(4))?;
    let mut chars = fill
        .unwrap_or(if name == "zfill" { "0" } else { " " })
        .chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(invalid("the padding must be one character"));
    };
    let n = s.chars().count();
    let missing = width.saturating_sub(n);
    let filled = |n: usize| fill.to_string().repeat(n);
    Ok(match name {
        "ljust" => format!("{s}{}", filled(missing)),
        "rjust" => format!("{}{s}", filled(missing)),
        "zfill" => {
            let digits = s.trim_start_matches(['+', '-']);
            let sign = if s.len() - digits.len() == 1 {
                &s[..1]
            } else {
                ""
            };
            format!("{sign}{}{}", filled(missing), &s[sign.len()..])
        }
        _ => {
            // As in CPython: the odd one goes to the left if the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{s}{}", filled(left), filled(missing - left))
        }
    })
}

/// Evaluates `str.capitalize`.
pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + &chars.as_str().to_lowercase()
}

fn title(s: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

fn expect_text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| invalid("expected a string"))
}

/// Returns the characters from `start` to `end`, as in a slice, and the number before them.
fn part(s: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    if start.is_none() && end.is_none() {
        return (0, s);
    }
    let n = s.chars().count();
    let place = |bound: i64| {
        let bound = if bound < 0 {
            bound.saturating_add(n as i64).max(0)
        } else {
            bound
        };
        usize::try_from(bound).unwrap_or(usize::MAX).min(n)
    };
    let (start, end) = (start.map_or(0, place), end.map_or(n, place));
    let byte = |at: usize| s.char_indices().nth(at).map_or(s.len(), |(byte, _)| byte);
    (start, s.get(byte(start)..byte(end)).unwrap_or_default())
}

fn affixed(s: &str, at_start: bool, args: &[Value]) -> Result<Value> {
    let (affix, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (_, s) = part(s, start, end);
    let has = |affix: &str| {
        if at_start {
            s.starts_with(affix)
        } else {
            s.ends_with(affix)
        }
    };
    if let Some(affix) = affix.as_str() {
        return Ok(Value::from(has(affix)));
    }
    if affix.kind() != ValueKind::Seq {
        return Err(invalid("expected a string or a tuple of strings"));
    }
    for affix in affix.try_iter()? {
        if has(expect_text(&affix)?) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// Strips `chars` (white space by default) from the start, the end, or both.
pub(super) fn strip<'s>(s: &'s str, chars: Option<&str>, ends: (bool, bool)) -> Result<&'s str> {
    if chars.is_some_and(|chars| chars.len() > MAX_STRIPPED) {
        return Err(invalid("too many characters to strip"));
    }
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let s = if ends.0 {
        s.trim_start_matches(goes)
    } else {
        s
    };
    Ok(if ends.1 { s.trim_end_matches(goes) } else { s })
}

/// Evaluates `str.split`, or `str.rsplit` if `from_end`.
pub(super) fn split(
    budget: &Budget,
    s: &str,
    separator: Option<&str>,
    most: Option<i64>,
    from_end: bool,
) -> Result<Value> {
    let most = most
        .and_then(|most| usize::try_from(most).ok())
        .unwrap_or(usize::MAX);
    budget.charge_string(Some(s.len()))?;
    let parts = match separator {
        Some("") => return Err(invalid("an empty separator")),
        Some(separator) => s.matches(separator).count(),
        None => s.split(is_space).filter(|part| !part.is_empty()).count(),
    };
    budget.charge_elements(parts.min(most).saturating_add(1))?;
    let mut parts: Vec<&str> = match (separator, from_end) {
        (Some(separator), false) => s.splitn(most.saturating_add(1), separator).collect(),
        (Some(separator), true) => s.rsplitn(most.saturating_add(1), separator).collect(),
        (None, false) => words(s, most),
        (None, true) => words_from_end(s, most),
    };
    if from_end {
        parts.reverse();
    }
    Ok(Value::from_iter(parts))
}

fn words(s: &str, most: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        if words.len() == most {
            words.push(rest);
            break;
        }
        let (word, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    words
}

fn words_from_end(s: &str, most: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = s.trim_end_matches(is_space);
    while !rest.is_empty() {
        if words.len() == most {
            words.push(rest);
            break;
        }
        let last_space = rest.char_indices().rev().find(|(_, c)| is_space(*c));
        let start = last_space.map_or(0, |(at, c)| at + c.len_utf8());
        let (before, word) = rest.split_at(start);
        words.push(word);
        rest = before.trim_end_matches(is_space);
    }
    words
}

/// Evaluates `str.splitlines`.
pub(super) fn lines(s: &str, keep: bool) -> Vec<&str> {
    let separates = |c: char| matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}');
    let ends = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}') || separates(c);
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let tail = &rest[at..];
        let mark = match tail.starts_with("\r\n") {
            true => 2,
            false => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep { at + mark } else { at }]);
        rest = &rest[at + mark..];
    }
    lines
}

fn partition(s: &str, separator: &str, from_end: bool) -> Result<Value> {
    if separator.is_empty() {
        return Err(invalid("an empty separator"));
    }
    let found = if from_end {
        s.rsplit_once(separator)
    } else {
        s.split_once(separator)
    };
    let parts = match (found, from_end) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [s, "", ""],
        (None, true) => ["", "", s],
    };
    Ok(tuple(parts.map(Value::from).to_vec()))
}

/// Evaluates `str.replace`, with at most `most` replacements.
pub(super) fn replace(
    budget: &Budget,
    text: &str,
    from: &str,
    to: &str,
    most: Option<usize>,
) -> Result<String> {
    budget.charge_string(Some(text.len()))?;
    let found = text.matches(from).take(most.unwrap_or(usize::MAX)).count();
    budget.charge_string(found.checked_mul(to.len().saturating_add(8)))?;
    Ok(most.map_or_else(
        || text.replace(from, to),
        |most| text.replacen(from, to, most),
    ))
}

/// Joins the items of `value` with `separator`; escapes them if the separator is `safe`.
pub(super) fn join(budget: &Budget, value: &Value, separator: &str, safe: bool) -> Result<String> {
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            budget.charge_string(Some(separator.len()))?;
            out.push_str(separator);
        }
        let written = text(budget, &item)?;
        match safe && !item.is_safe() {
            true => out.push_str(&escaped(budget, &written)?),
            false => out.push_str(&written),
        }
    }
    Ok(out)
}
