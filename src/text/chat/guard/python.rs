//! What templates may do with values as in Python, with its work counted before it is done.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::{Budget, Result};

pub(super) fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Python's slices. The engine's own fail on an empty list that is read backwards.
pub(super) fn slice(budget: &Budget, value: &Value, bounds: &[Value; 3]) -> Result<Value> {
    let text: Option<Vec<char>> = value.as_str().map(|text| text.chars().collect());
    let items: Vec<Value> = match (&text, value.kind()) {
        (Some(_), _) => Vec::new(),
        (None, ValueKind::Seq | ValueKind::Iterable) => {
            budget.charge_elements(value.len().unwrap_or(1))?;
            value.try_iter()?.collect()
        }
        _ => return Err(invalid("only strings and lists have slices")),
    };
    let len = text.as_ref().map_or(items.len(), Vec::len);
    budget.charge_string(len.checked_mul(4))?;
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => value
            .as_i64()
            .map(Some)
            .ok_or_else(|| invalid("the bounds of a slice must be integers")),
    };
    let [start, stop, step] = [bound(&bounds[0])?, bound(&bounds[1])?, bound(&bounds[2])?];
    let step = step.unwrap_or(1);
    // Where reading may begin and must end, for either direction.
    let (low, high) = match step.signum() {
        0 => return Err(invalid("the step of a slice must not be zero")),
        1 => (0, len),
        _ => (-1, len - 1),
    };
    let place = |bound: i64| {
        (if bound < 0 {
            bound.saturating_add(len)
        } else {
            bound
        })
        .clamp(low, high)
    };
    let (first, end) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, end) = (start.map_or(first, place), stop.map_or(end, place));
    let mut taken = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        taken.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    Ok(match text {
        Some(text) => Value::from(
            taken
                .iter()
                .filter_map(|at| text.get(*at))
                .collect::<String>(),
        ),
        None => Value::from_iter(taken.iter().filter_map(|at| items.get(*at).cloned())),
    })
}

/// Whole numbers, lazily, and not too many: each costs the instructions of a loop.
pub(super) fn range(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value> {
    pub(super) const MOST: i128 = 100_000;
    let (start, stop) = stop.map_or((0, first), |stop| (first, stop));
    let (start, stop, step) = (
        i128::from(start),
        i128::from(stop),
        i128::from(step.unwrap_or(1)),
    );
    if step == 0 {
        return Err(invalid("the step of a range must not be zero"));
    }
    let n = ((stop - start) * step.signum()).max(0);
    let n = (n + step.abs() - 1) / step.abs();
    if n > MOST {
        return Err(invalid("a range of more than 100000 numbers"));
    }
    // Between two i64, like the bounds themselves.
    let number = move |i: i128| i64::try_from(start + i * step).unwrap_or_default();
    Ok(Value::make_iterable(move || {
        (0..usize::try_from(n).unwrap_or_default()).map(move |i| number(i as i128))
    }))
}

pub(super) fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let sequence = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let repeated = [(left, right), (right, left)]
        .into_iter()
        .find(|(what, _)| what.as_str().is_some() || sequence(what));
    let Some((what, times)) = repeated else {
        return multiply_numbers(left, right);
    };
    let Some(times) = times.as_i64() else {
        return Err(invalid("only an integer can say how often to repeat"));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = what.as_str() {
        budget.charge_string(text.len().checked_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    let Some(len) = what.len() else {
        return Err(invalid("cannot repeat a sequence of unknown length"));
    };
    budget.charge_elements(len.saturating_mul(times))?;
    let items: Vec<Value> = what.try_iter()?.collect();
    Ok(Value::from_iter(
        (0..times).flat_map(|_| items.iter().cloned()),
    ))
}

pub(super) fn multiply_numbers(left: &Value, right: &Value) -> Result<Value> {
    numbers(left, right, i128::checked_mul, |a, b| a * b)
}

pub(super) fn add_numbers(left: &Value, right: &Value) -> Result<Value> {
    numbers(left, right, i128::checked_add, |a, b| a + b)
}

pub(super) fn numbers(
    left: &Value,
    right: &Value,
    whole: fn(i128, i128) -> Option<i128>,
    real: fn(f64, f64) -> f64,
) -> Result<Value> {
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return Err(invalid("expected numbers"));
    }
    let float = |v: &Value| v.kind() == ValueKind::Number && !v.is_integer();
    if float(left) || float(right) {
        return Ok(Value::from(real(
            f64::try_from(left.clone())?,
            f64::try_from(right.clone())?,
        )));
    }
    let result = whole(
        i128::try_from(left.clone())?,
        i128::try_from(right.clone())?,
    );
    let result = result.ok_or_else(|| invalid("integer overflow"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

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

pub(super) fn join(budget: &Budget, value: &Value, separator: &str) -> Result<String> {
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            budget.charge_string(Some(separator.len()))?;
            out.push_str(separator);
        }
        budget.deep(&item, 0)?;
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&item.to_string()),
        }
    }
    Ok(out)
}

pub(super) fn split(
    budget: &Budget,
    text: &str,
    separator: Option<&str>,
    most: Option<i64>,
) -> Result<Value> {
    if separator == Some("") {
        return Err(invalid("an empty separator"));
    }
    let most = most.and_then(|most| usize::try_from(most).ok());
    let parts = match separator {
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    budget.charge_elements(parts.min(most.unwrap_or(usize::MAX)).saturating_add(1))?;
    budget.charge_string(Some(text.len()))?;
    let most = most.and_then(|most| i64::try_from(most).ok());
    minijinja::filters::split(&Value::from(text), separator.map(Into::into), most)
}

pub(super) fn indent(
    budget: &Budget,
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: &Kwargs,
) -> Result<String> {
    let width = width
        .or(options.get::<Option<usize>>("width")?)
        .unwrap_or(4);
    let first = first
        .or(options.get::<Option<bool>>("first")?)
        .unwrap_or(false);
    let blank = blank
        .or(options.get::<Option<bool>>("blank")?)
        .unwrap_or(false);
    options.assert_all_used()?;
    let lines: Vec<&str> = text.split('\n').collect();
    budget.charge_elements(lines.len())?;
    budget.charge_string(
        lines
            .len()
            .checked_mul(width)
            .and_then(|n| n.checked_add(text.len())),
    )?;
    let padding = " ".repeat(width);
    let mut out = String::with_capacity(text.len());
    for (i, line) in lines.iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        let padded = if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        out.push_str(if padded { &padding } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// Methods of Python's strings, lists and dicts. Those whose cost the arguments decide are done
/// here.
pub(super) fn method_call(
    budget: &Budget,
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> std::result::Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "replace" => {
            let (from, to, most): (&str, &str, Option<i64>) = minijinja::value::from_args(args)?;
            replace(
                budget,
                text,
                from,
                to,
                most.and_then(|most| usize::try_from(most).ok()),
            )
            .map(Value::from)
        }
        "join" => {
            let (items,): (Value,) = minijinja::value::from_args(args)?;
            join(budget, &items, text).map(Value::from)
        }
        "split" => {
            let (separator, most): (Option<&str>, Option<i64>) = minijinja::value::from_args(args)?;
            split(budget, text, separator, most)
        }
        "splitlines" => {
            budget.charge_elements(text.matches('\n').count().saturating_add(1))?;
            pycompat::unknown_method_callback(state, value, method, args)
        }
        "count" => {
            let (what,): (&str,) = minijinja::value::from_args(args)?;
            Ok(Value::from(text.matches(what).count()))
        }
        "strip" | "lstrip" | "rstrip" => {
            let Rest(chars): Rest<Value> = minijinja::value::from_args::<(Rest<Value>,)>(args)?.0;
            if chars
                .iter()
                .any(|set| set.as_str().is_some_and(|set| set.len() > 256))
            {
                return Err(invalid("too many characters to strip"));
            }
            pycompat::unknown_method_callback(state, value, method, args)
        }
        "format" => {
            // Widths and precisions come after a colon; without them each field costs what its
            // argument is long.
            if text.contains(':') {
                return Err(invalid("format specifications are not supported"));
            }
            let fields = text.matches('{').count() as u64;
            (0..=fields).try_for_each(|_| args.iter().try_for_each(|arg| budget.deep(arg, 0)))?;
            pycompat::unknown_method_callback(state, value, method, args)
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}
