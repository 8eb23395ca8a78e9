//! Python's operators.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::error::invalid;
use super::format::percent;
use super::python::{add_numbers, is_number, numbers};
use super::text::{Sequence, escaped, sequence, text, tuple};
use super::{Budget, Result};

/// Evaluates `left + right`.
pub(super) fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget.charge_string(a.len().checked_add(b.len()))?;
        let safe = match (left.is_safe(), right.is_safe()) {
            (false, false) => return Ok(Value::from([a, b].concat())),
            (true, true) => [a, b].concat(),
            (true, false) => [a, &escaped(budget, b)?].concat(),
            (false, true) => [&escaped(budget, a)?, b].concat(),
        };
        return Ok(Value::from_safe_string(safe));
    }
    let is_list = |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable);
    if is_list(left) && is_list(right) {
        let n = [left, right].map(|list| list.len().unwrap_or(1));
        budget.charge_elements(n[0].saturating_add(n[1]))?;
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        let tuples = [left, right].map(|list| sequence(list) == Some(Sequence::Tuple));
        return match tuples {
            [true, true] => Ok(tuple(items)),
            [false, false] => Ok(Value::from(items)),
            _ => Err(invalid("a list and a tuple cannot be added")),
        };
    }
    add_numbers(left, right).map_err(|error| match is_number(left) && is_number(right) {
        true => error,
        false => cannot("add", left, right),
    })
}

/// Evaluates `left ~ right`.
pub(super) fn concat(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let (left, right) = (text(budget, left)?, text(budget, right)?);
    budget.charge_string(left.len().checked_add(right.len()))?;
    Ok(Value::from([&*left, &*right].concat()))
}

/// Evaluates `left % right`: a remainder with the sign of `right`, or string formatting.
pub(super) fn remainder(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    if let Some(format) = left.as_str() {
        let args = match right.downcast_object_ref::<super::text::Sequenced>() {
            Some(sequenced) => sequenced.items.clone(),
            None => vec![right.clone()],
        };
        return percent(budget, format, left.is_safe(), &args);
    }
    if is_zero(right) {
        return Err(invalid("division by zero"));
    }
    let whole = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        Some(if rest != 0 && (rest < 0) != (b < 0) {
            rest + b
        } else {
            rest
        })
    };
    numbers(left, right, whole, |a, b| {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }
    })
}

/// Evaluates `left // right`, rounded down.
pub(super) fn floor_divide(left: &Value, right: &Value) -> Result<Value> {
    if is_zero(right) {
        return Err(invalid("division by zero"));
    }
    let whole = |a: i128, b: i128| {
        let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
        Some(quotient - i128::from(rest != 0 && (rest < 0) != (b < 0)))
    };
    numbers(left, right, whole, |a, b| (a / b).floor())
}

/// Evaluates `left / right`, always a float.
pub(super) fn divide(left: &Value, right: &Value) -> Result<Value> {
    if !is_number(left) || !is_number(right) {
        return Err(cannot("divide", left, right));
    }
    if is_zero(right) {
        return Err(invalid("division by zero"));
    }
    let float = |value: &Value| f64::try_from(value.clone());
    Ok(Value::from(float(left)? / float(right)?))
}

/// Evaluates `left ** right`: a float where `right` is negative.
pub(super) fn power(left: &Value, right: &Value) -> Result<Value> {
    if !is_number(left) || !is_number(right) {
        return Err(cannot("raise", left, right));
    }
    let float = |value: &Value| f64::try_from(value.clone());
    let exponent = right.as_i64().filter(|_| left.as_i64().is_some());
    match exponent.map(u32::try_from) {
        Some(Ok(exponent)) => {
            let result = i128::try_from(left.clone())?.checked_pow(exponent);
            let result = result.ok_or_else(|| invalid("integer overflow"))?;
            Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
        }
        _ => Ok(Value::from(float(left)?.powf(float(right)?))),
    }
}

fn is_zero(value: &Value) -> bool {
    is_number(value) && !value.is_true()
}

fn cannot(what: &str, left: &Value, right: &Value) -> minijinja::Error {
    let what = format!("cannot {what} {} and {}", left.kind(), right.kind());
    minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, what)
}
