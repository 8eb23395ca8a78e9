//! Number filters and tests, as Jinja defines them.

use std::sync::Arc;

use minijinja::value::{Kwargs, ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::error::invalid;
use super::ops;
use super::python::is_number;
use super::text::{Sequence, is_space, sequence};
use super::{Budget, Result, collections};

pub(super) fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    install_filters(environment, budget);
    install_tests(environment);
}

fn install_filters(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    environment.add_filter("sum", move |value: Value, options: Rest<Value>| {
        sum(&b, &value, &options)
    });
    environment.add_filter("round", |value: Value, options: Rest<Value>| {
        round(&value, &options)
    });
    let b = Arc::clone(budget);
    environment.add_filter(
        "int",
        move |value: Value,
              default: Option<Value>,
              base: Option<u32>,
              options: Kwargs|
              -> Result<Value> {
            let default = default
                .or(options.get("default")?)
                .unwrap_or_else(|| Value::from(0));
            let base = base.or(options.get("base")?).unwrap_or(10);
            options.assert_all_used()?;
            b.flat(&value)?;
            Ok(integer(&value, base)?.unwrap_or(default))
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "float",
        move |value: Value, default: Option<Value>, options: Kwargs| -> Result<Value> {
            let default = default
                .or(options.get("default")?)
                .unwrap_or_else(|| Value::from(0.0));
            options.assert_all_used()?;
            b.flat(&value)?;
            if value.is_undefined() {
                return Err(Error::from(ErrorKind::UndefinedError));
            }
            Ok(real(&value).map_or(default, Value::from))
        },
    );
}

fn sum(budget: &Budget, value: &Value, options: &[Value]) -> Result<Value> {
    let (attribute, start, named): (Option<Value>, Option<Value>, Kwargs) =
        minijinja::value::from_args(options)?;
    let attribute = attribute
        .or(named.get("attribute")?)
        .filter(|name| !name.is_none());
    let start = start
        .or(named.get("start")?)
        .unwrap_or_else(|| Value::from(0));
    named.assert_all_used()?;
    if start.as_str().is_some() {
        return Err(invalid("texts have no sum"));
    }
    value.try_iter()?.try_fold(start, |sum, item| {
        let item = match &attribute {
            Some(name) => item.get_item(name)?,
            None => item,
        };
        ops::add(budget, &sum, &item)
    })
}

/// Evaluates `round(value, precision=0, method='common')`: halves round to even, as in Python.
fn round(value: &Value, options: &[Value]) -> Result<Value> {
    let (precision, method, named): (Option<i32>, Option<Value>, Kwargs) =
        minijinja::value::from_args(options)?;
    let precision = precision
        .or(named.get("precision")?)
        .unwrap_or(0)
        .clamp(-20, 20);
    let method = method.or(named.get("method")?);
    let method = method.as_ref().and_then(Value::as_str).unwrap_or("common");
    named.assert_all_used()?;
    if !is_number(value) {
        return Err(invalid("only numbers can be rounded"));
    }
    if value.is_integer() && method == "common" && precision >= 0 {
        return Ok(value.clone());
    }
    let number = f64::try_from(value.clone())?;
    let scale = 10f64.powi(precision);
    Ok(Value::from(match method {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        "common" => match usize::try_from(precision) {
            Ok(places) => format!("{number:.places$}").parse().unwrap_or(number),
            Err(_) => (number * scale).round_ties_even() / scale,
        },
        _ => return Err(invalid("expected common, ceil or floor")),
    }))
}

/// Evaluates Python's `int(value)`, then `int(float(value))`.
fn integer(value: &Value, base: u32) -> Result<Option<Value>> {
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Ok(Some(Value::from(i64::from(value.is_true())))),
        ValueKind::Number if value.is_integer() => Ok(Some(value.clone())),
        ValueKind::String if (2..=36).contains(&base) => {
            let digits = value.as_str().unwrap_or_default().trim_matches(is_space);
            let whole = digits_of(digits).and_then(|digits| {
                let digits = match base {
                    16 => digits.replacen("0x", "", 1),
                    8 => digits.replacen("0o", "", 1),
                    2 => digits.replacen("0b", "", 1),
                    _ => digits,
                };
                i128::from_str_radix(&digits, base).ok()
            });
            let whole = whole
                .map(number)
                .or_else(|| real(value).and_then(truncated));
            Ok(whole)
        }
        _ => Ok(real(value).and_then(truncated)),
    }
}

/// Removes the underscores that Python allows between digits.
fn digits_of(text: &str) -> Option<String> {
    let wrong = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!wrong).then(|| text.replace('_', ""))
}

fn number(whole: i128) -> Value {
    i64::try_from(whole).map_or_else(|_| Value::from(whole), Value::from)
}

fn truncated(real: f64) -> Option<Value> {
    (real.abs() < 1e36).then(|| number(real.trunc() as i128))
}

fn real(value: &Value) -> Option<f64> {
    if let Some(text) = value.as_str() {
        let digits = digits_of(text.trim_matches(is_space))?;
        return digits.parse().ok();
    }
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ if is_number(value) => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn install_tests(environment: &mut Environment<'_>) {
    environment.add_test("iterable", |value: Value| {
        !value.is_none() && !is_number(&value) && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: Value| {
        let view = matches!(
            sequence(&value),
            Some(Sequence::View(_) | Sequence::Generator)
        );
        let has_places = matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq
        );
        (has_places && !view) || collections::is_dictionary(&value)
    });
    environment.add_test("callable", |value: Value| {
        let object = value.as_object();
        object.is_some_and(|object| object.repr() == ObjectRepr::Plain)
    });
    environment.add_test("mapping", |value: Value| collections::is_dictionary(&value));
    environment.add_test("number", |value: Value| is_number(&value));
    environment.add_test("integer", |value: Value| value.is_integer());
    environment.add_test("float", |value: Value| {
        value.kind() == ValueKind::Number && !value.is_integer()
    });
}
