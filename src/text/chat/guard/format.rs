//! Formatting: Python's `'%s' % x` and `'{}'.format(x)`.

use std::borrow::Cow;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::error::invalid;
use super::python::is_number;
use super::text::{escaped, exponent_of_two_digits, float, repr, text};
use super::{Budget, Result};

/// Largest width and precision of a field; chat templates need no more.
const MAX_WIDTH: usize = 1000;

/// Format specification of one value.
#[derive(Clone, Copy)]
struct Spec {
    fill: char,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    const NONE: Spec = Spec {
        fill: ' ',
        align: None,
        sign: None,
        alternate: false,
        width: 0,
        grouping: None,
        precision: None,
        kind: None,
    };
}

/// Evaluates `format % args`, where `args` are the elements of a tuple, or the one value. Values
/// inserted into a safe string are escaped.
pub(super) fn percent(budget: &Budget, format: &str, safe: bool, args: &[Value]) -> Result<Value> {
    budget.charge_string(Some(format.len()))?;
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    let mut next = args.iter();
    let mut named = false;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let mut at = Cursor(after);
        let mut argument = None;
        if at.next_if(|c| c == '(').is_some() {
            let (name, after) =
                at.0.split_once(')')
                    .ok_or_else(|| invalid("incomplete format key"))?;
            at = Cursor(after);
            let map = args.first().filter(|map| map.kind() == ValueKind::Map);
            let map = map.ok_or_else(|| invalid("format requires a mapping"))?;
            argument = Some(map.get_item(&Value::from(name))?);
            named = true;
        }
        let mut spec = Spec {
            align: Some('>'),
            ..Spec::NONE
        };
        while let Some(flag) = at.next_if(|c| "-+ 0#".contains(c)) {
            match flag {
                '-' => (spec.fill, spec.align) = (' ', Some('<')),
                '0' if spec.align != Some('<') => (spec.fill, spec.align) = ('0', Some('=')),
                '#' => spec.alternate = true,
                '+' => spec.sign = Some('+'),
                ' ' => spec.sign = spec.sign.or(Some(' ')),
                _ => {}
            }
        }
        spec.width = at.number()?.unwrap_or(0);
        if at.next_if(|c| c == '.').is_some() {
            spec.precision = Some(at.number()?.unwrap_or(0));
        }
        let kind = at
            .next_if(|_| true)
            .ok_or_else(|| invalid("incomplete format"))?;
        rest = at.0;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match argument {
            Some(value) => value,
            None => next
                .next()
                .cloned()
                .ok_or_else(|| invalid("not enough arguments"))?,
        };
        let field = percent_field(budget, &value, kind, spec)?;
        budget.charge_string(Some(field.len()))?;
        match safe {
            true => out.push_str(&escaped(budget, &field)?),
            false => out.push_str(&field),
        }
    }
    let left_over = next
        .next()
        .is_some_and(|value| value.kind() != ValueKind::Map);
    if left_over && !named {
        return Err(invalid("not all arguments converted"));
    }
    out.push_str(rest);
    Ok(if safe {
        Value::from_safe_string(out)
    } else {
        Value::from(out)
    })
}

fn percent_field(budget: &Budget, value: &Value, kind: char, mut spec: Spec) -> Result<String> {
    spec.kind = Some(kind);
    match kind {
        's' | 'r' | 'a' => {
            spec.kind = Some('s');
            if spec.align == Some('=') {
                (spec.fill, spec.align) = (' ', Some('>'));
            }
            let written = match kind {
                's' => text(budget, value)?,
                _ => Cow::Owned(repr(budget, value)?),
            };
            Ok(padded_text(&written, spec))
        }
        'c' => Ok(padded_text(&text(budget, value)?, spec)),
        'd' | 'i' | 'u' => {
            if !is_number(value) {
                return Err(invalid("%d: a number is required"));
            }
            spec.kind = Some('d');
            let whole = match value.is_integer() || value.kind() == ValueKind::Bool {
                true => value.clone(),
                false => truncated(f64::try_from(value.clone())?)?,
            };
            written_number(&whole, spec)
        }
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' if is_number(value) => {
            written_number(value, spec)
        }
        _ => Err(invalid("unsupported format character")),
    }
}

fn truncated(number: f64) -> Result<Value> {
    let whole = number.trunc();
    if whole.abs() < 1e18 {
        return Ok(Value::from(whole as i64));
    }
    Err(invalid("cannot convert this float to an integer"))
}

/// Rest of a format.
struct Cursor<'f>(&'f str);

impl Cursor<'_> {
    fn next_if(&mut self, accept: impl FnOnce(char) -> bool) -> Option<char> {
        let c = self.0.chars().next().filter(|c| accept(*c))?;
        self.0 = &self.0[c.len_utf8()..];
        Some(c)
    }

    fn number(&mut self) -> Result<Option<usize>> {
        let mut n = None;
        while let Some(digit) = self.next_if(|c| c.is_ascii_digit()) {
            n = Some(n.unwrap_or(0) * 10 + digit.to_digit(10).unwrap_or(0) as usize);
            if n > Some(MAX_WIDTH) {
                return Err(invalid("a field of a format is too wide"));
            }
        }
        Ok(n)
    }
}

/// Evaluates `format.format(*args, **named)`.
pub(super) fn braces(
    budget: &Budget,
    format: &str,
    safe: bool,
    args: &[Value],
    named: &Value,
) -> Result<Value> {
    budget.charge_string(Some(format.len()))?;
    let mut out = String::with_capacity(format.len());
    let (mut rest, mut next) = (format, 0);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let (brace, after) = after.split_at(1);
        if after.starts_with(brace) {
            out.push_str(brace);
            rest = &after[1..];
            continue;
        }
        if brace == "}" {
            return Err(invalid("single '}' in a format"));
        }
        let (field, after) = after
            .split_once('}')
            .ok_or_else(|| invalid("expected '}' in a format"))?;
        if field.contains('{') {
            return Err(invalid(
                "fields inside fields of a format are not supported",
            ));
        }
        let field = brace_field(budget, field, args, named, &mut next)?;
        budget.charge_string(Some(field.len()))?;
        match safe {
            true => out.push_str(&escaped(budget, &field)?),
            false => out.push_str(&field),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(if safe {
        Value::from_safe_string(out)
    } else {
        Value::from(out)
    })
}

fn brace_field(
    budget: &Budget,
    field: &str,
    args: &[Value],
    named: &Value,
    next: &mut usize,
) -> Result<String> {
    let (field, spec) = field.split_once(':').unwrap_or((field, ""));
    let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut path) = field.split_at(end);
    let missing = || invalid("the format has a field that no argument is for");
    let mut value = if name.is_empty() {
        *next += 1;
        args.get(*next - 1).cloned().ok_or_else(missing)?
    } else if let Ok(i) = name.parse::<usize>() {
        args.get(i).cloned().ok_or_else(missing)?
    } else {
        Some(named.get_attr(name)?)
            .filter(|value| !value.is_undefined())
            .ok_or_else(missing)?
    };
    while !path.is_empty() {
        let (key, after) = match path.strip_prefix('[') {
            Some(path) => path.split_once(']').ok_or_else(missing)?,
            None => {
                let path = &path[1..];
                path.split_at(path.find(['.', '[']).unwrap_or(path.len()))
            }
        };
        value = match key.parse::<i64>() {
            Ok(i) if path.starts_with('[') => value.get_item(&Value::from(i))?,
            _ => value.get_attr(key)?,
        };
        path = after;
    }
    match conversion {
        "" => {}
        "s" => value = Value::from(text(budget, &value)?.into_owned()),
        "r" | "a" => value = Value::from(repr(budget, &value)?),
        _ => return Err(invalid("unknown conversion in a format")),
    }
    let spec = parse_spec(spec)?;
    match spec {
        None => Ok(text(budget, &value)?.into_owned()),
        Some(spec) if value.as_str().is_some() => Ok(padded_text(&text(budget, &value)?, spec)),
        Some(spec) if is_number(&value) => written_number(&value, spec),
        Some(_) => Err(invalid("this value takes no format specification")),
    }
}

/// Parses `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
fn parse_spec(text: &str) -> Result<Option<Spec>> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut spec = Spec::NONE;
    let mut at = Cursor(text);
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    let aligns = |c: Option<char>| c.is_some_and(|c| "<>=^".contains(c));
    if aligns(second) {
        (spec.fill, spec.align) = (first.unwrap_or(' '), second);
        at = Cursor(ahead.as_str());
    } else if aligns(first) {
        spec.align = at.next_if(|_| true);
    }
    spec.sign = at.next_if(|c| "+- ".contains(c));
    spec.alternate = at.next_if(|c| c == '#').is_some();
    if at.next_if(|c| c == '0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    spec.width = at.number()?.unwrap_or(0);
    spec.grouping = at.next_if(|c| ",_".contains(c));
    if at.next_if(|c| c == '.').is_some() {
        let precision = at.number()?;
        spec.precision = Some(precision.ok_or_else(|| invalid("format lacks a precision"))?);
    }
    spec.kind = at.next_if(|_| true);
    match at.0 {
        "" => Ok(Some(spec)),
        _ => Err(invalid("invalid format specification")),
    }
}

fn padded_text(text: &str, spec: Spec) -> String {
    let cut: String = match spec.precision {
        Some(n) => text.chars().take(n).collect(),
        None => text.to_owned(),
    };
    padded("", &cut, spec, '<')
}

/// Joins the sign and the text, padded to the width.
fn padded(sign: &str, text: &str, spec: Spec, align: char) -> String {
    let fill = spec
        .width
        .saturating_sub(sign.chars().count() + text.chars().count());
    let filled = |n: usize| spec.fill.to_string().repeat(n);
    match spec.align.unwrap_or(align) {
        '<' => format!("{sign}{text}{}", filled(fill)),
        '^' => format!(
            "{}{sign}{text}{}",
            filled(fill / 2),
            filled(fill - fill / 2)
        ),
        '=' => format!("{sign}{}{text}", filled(fill)),
        _ => format!("{}{sign}{text}", filled(fill)),
    }
}

fn written_number(value: &Value, spec: Spec) -> Result<String> {
    let integer = value.is_integer() || value.kind() == ValueKind::Bool;
    let kind = match (spec.kind, integer) {
        (None, true) if spec.precision.is_none() => 'd',
        (Some('n'), true) => 'd',
        (kind, _) => kind.unwrap_or(' '),
    };
    if "dxXob".contains(kind) {
        if !integer {
            return Err(invalid("this format needs an integer"));
        }
        return Ok(written_integer(i128::try_from(value.clone())?, kind, spec));
    }
    let number = f64::try_from(value.clone())?;
    let size = number.abs();
    let precision = spec.precision.unwrap_or(6);
    let mut digits = match kind {
        _ if !number.is_finite() => float(size),
        'f' | 'F' => format!("{size:.precision$}"),
        '%' => format!("{:.precision$}%", size * 100.0),
        'e' | 'E' => exponent_of_two_digits(&format!("{size:.precision$e}")),
        'g' | 'G' => general(size, precision, false),
        ' ' if spec.precision.is_none() => float(size),
        ' ' => general(size, precision, true),
        _ => return Err(invalid("unknown format code for a number")),
    };
    if kind.is_ascii_uppercase() {
        digits.make_ascii_uppercase();
    }
    Ok(padded(
        sign_of(number.is_sign_negative(), spec),
        &grouped(&digits, spec, 3),
        spec,
        '>',
    ))
}

fn sign_of(negative: bool, spec: Spec) -> &'static str {
    match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
}

fn written_integer(number: i128, kind: char, spec: Spec) -> String {
    let size = number.unsigned_abs();
    let (prefix, digits, group) = match kind {
        'x' => ("0x", format!("{size:x}"), 4),
        'X' => ("0X", format!("{size:X}"), 4),
        'o' => ("0o", format!("{size:o}"), 4),
        'b' => ("0b", format!("{size:b}"), 4),
        _ => ("", size.to_string(), 3),
    };
    let least = spec.precision.unwrap_or(0);
    let digits = format!("{digits:0>least$}");
    let prefix = if spec.alternate { prefix } else { "" };
    let sign = format!("{}{prefix}", sign_of(number < 0, spec));
    padded(&sign, &grouped(&digits, spec, group), spec, '>')
}

/// Groups the digits before a point, if the format asks for it.
fn grouped(digits: &str, spec: Spec, group: usize) -> String {
    let Some(mark) = spec.grouping else {
        return digits.to_owned();
    };
    let end = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % group == 0 {
            out.push(mark);
        }
        out.push(digit);
    }
    out + rest
}

/// Formats like C's `%g`: `precision` digits without trailing zeros, with an exponent for small or
/// large numbers. Python's float without a type but with a precision retains one digit after the
/// point (`keep_point`).
fn general(size: f64, precision: usize, keep_point: bool) -> String {
    let precision = precision.max(1);
    let scientific = format!("{size:.*e}", precision - 1);
    let exponent: i32 = scientific
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse().ok())
        .unwrap_or(0);
    let digits_before = i32::try_from(precision).unwrap_or(i32::MAX);
    let most = if keep_point {
        digits_before - 1
    } else {
        digits_before
    };
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= most.max(1) {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return exponent_of_two_digits(&format!("{}e{power}", without_zeros(digits)));
    }
    let places = usize::try_from(digits_before - 1 - exponent).unwrap_or(0);
    let text = without_zeros(&format!("{size:.places$}"));
    if keep_point && !text.contains('.') {
        text + ".0"
    } else {
        text
    }
}
