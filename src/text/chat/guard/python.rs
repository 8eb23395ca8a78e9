//! Python operations on values, charged to the budget before they run.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::error::invalid;
use super::text::{like, same_sequence};
use super::{Budget, Result};

/// Evaluates Python's slices. The engine's own fail on an empty list read backwards.
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
    // Bounds of the first and last index, for either direction.
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
        Some(text) => like(
            value,
            taken
                .iter()
                .filter_map(|at| text.get(*at))
                .collect::<String>(),
        ),
        None => {
            let taken = taken.iter().filter_map(|at| items.get(*at).cloned());
            same_sequence(value, taken.collect())
        }
    })
}

/// Returns a lazy range of integers of limited length: each costs the instructions of a loop.
pub(super) fn range(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value> {
    pub(super) const MAX_NUMBERS: i128 = 100_000;
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
    if n > MAX_NUMBERS {
        return Err(invalid("a range of more than 100000 numbers"));
    }
    // Within two i64, like the bounds themselves.
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
        return Ok(like(what, text.repeat(times)));
    }
    let Some(len) = what.len() else {
        return Err(invalid("cannot repeat a sequence of unknown length"));
    };
    budget.charge_elements(len.saturating_mul(times))?;
    let items: Vec<Value> = what.try_iter()?.collect();
    let repeated = (0..times).flat_map(|_| items.iter().cloned());
    Ok(same_sequence(what, repeated.collect()))
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

/// Returns whether a value is a number, or a bool, which counts as one.
pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Iterates over a value, if Python can.
pub(super) fn iterable(budget: &Budget, value: &Value) -> Result<minijinja::value::ValueIter> {
    iterated(budget, value)?;
    value.try_iter()
}

/// Refuses values that Python cannot iterate; the engine would treat `none` as an empty list.
pub(super) fn iterated(budget: &Budget, value: &Value) -> Result<()> {
    budget.flat(value)?;
    match value.is_none() || is_number(value) {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{} is not iterable", value.kind()),
        )),
        false => Ok(()),
    }
}
