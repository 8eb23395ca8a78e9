//! Methods of Python's dicts and lists.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::error::invalid;
use super::text::{Method, Sequence, Sequenced, is_namespace, tuple};
use super::{Budget, Result, list, strings};

/// Methods of dicts: such a name after a dot is the method even if the dict has a key of that name.
const OF_DICTIONARIES: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// Returns whether calls of a method with this name go to [`call`].
pub(in crate::chat) fn is_method(name: &str) -> bool {
    name == "append" || OF_DICTIONARIES.contains(&name) || strings::METHODS.contains(&name)
}

/// Returns whether this name after a dot goes to [`attribute`].
pub(in crate::chat) fn is_attribute(name: &str) -> bool {
    OF_DICTIONARIES.contains(&name)
}

/// Returns whether a value is a dict in Python's sense.
pub(super) fn is_dictionary(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_namespace(value)
}

/// Evaluates `value.name`, where dicts have a method of that name.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value> {
    match is_dictionary(value) {
        true => Ok(Value::from_object(Method(name.to_owned()))),
        false => value.get_attr(name),
    }
}

/// Evaluates `value.name(args)`.
pub(super) fn call(
    budget: &Budget,
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value> {
    let found = match value.kind() {
        ValueKind::String => strings::method(budget, value, name, args)?,
        ValueKind::Map if is_dictionary(value) => of_dictionary(budget, value, name, args)?,
        ValueKind::Seq => of_list(budget, value, name, args)?,
        _ => return value.call_method(state, name, args),
    };
    let unknown = || {
        Error::new(
            ErrorKind::UnknownMethod,
            format!("there is no method {name}"),
        )
    };
    found.ok_or_else(unknown)
}

/// Returns keys with their values, as tuples.
pub(super) fn items(budget: &Budget, value: &Value) -> Result<Vec<Value>> {
    budget.charge_elements(value.len().unwrap_or(1).saturating_mul(3))?;
    let pair = |key: Value| value.get_item(&key).map(|item| tuple(vec![key, item]));
    value.try_iter()?.map(pair).collect()
}

fn of_dictionary(
    budget: &Budget,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>> {
    let view = |name: &'static str, items: Vec<Value>| {
        Value::from_object(Sequenced {
            sequence: Sequence::View(name),
            items,
        })
    };
    if matches!(name, "items" | "keys" | "values" | "copy") {
        let () = from_args(args)?;
        budget.charge_elements(value.len().unwrap_or(1))?;
    }
    Ok(Some(match name {
        "items" => view("dict_items", items(budget, value)?),
        "keys" => view("dict_keys", value.try_iter()?.collect()),
        "values" => {
            let values = value.try_iter()?.map(|key| value.get_item(&key));
            view("dict_values", values.collect::<Result<_>>()?)
        }
        "copy" => value.clone(),
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = value.get_item(key)?;
            match found.is_undefined() {
                true => default.unwrap_or_else(|| Value::from(())),
                false => found,
            }
        }
        _ => return Ok(None),
    }))
}

fn of_list(budget: &Budget, value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>> {
    Ok(Some(match name {
        "count" => {
            let (what,): (&Value,) = from_args(args)?;
            Value::from(value.try_iter()?.filter(|item| item == what).count())
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            Value::from(at.ok_or_else(|| invalid("the list has no such element"))?)
        }
        _ => return list::change(budget, value, name, args),
    }))
}
