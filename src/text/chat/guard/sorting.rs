//! Filters that order values or look up attributes by a path, as Jinja defines them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Value};

use super::error::invalid;
use super::python::iterable;
use super::{Budget, Result};

/// Installs `sort`, `min` and `max`.
pub(super) fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    environment.add_filter(
        "sort",
        move |value: Value,
              reverse: Option<Value>,
              case_sensitive: Option<Value>,
              attribute: Option<Value>,
              options: Kwargs|
              -> Result<Value> {
            let reverse = reverse.or(options.get("reverse")?);
            let order = Order::new(case_sensitive, attribute, &options)?;
            let mut keyed = order.keyed(&b, &value)?;
            // equal elements stay in order both ways, as in Python's sort
            match reverse.is_some_and(|reverse| reverse.is_true()) {
                true => keyed.sort_by(|a, b| compare(&b.0, &a.0)),
                false => keyed.sort_by(|a, b| compare(&a.0, &b.0)),
            }
            let items: Vec<Value> = keyed.into_iter().map(|(_, item)| item).collect();
            Ok(Value::from(items))
        },
    );
    for (name, ordering) in [("min", Ordering::Less), ("max", Ordering::Greater)] {
        let b = Arc::clone(budget);
        environment.add_filter(
            name,
            move |value: Value,
                  case_sensitive: Option<Value>,
                  attribute: Option<Value>,
                  options: Kwargs|
                  -> Result<Value> {
                let order = Order::new(case_sensitive, attribute, &options)?;
                let keyed = order.keyed(&b, &value)?;
                let first = keyed.into_iter().reduce(|best, other| {
                    match compare(&other.0, &best.0) == ordering {
                        true => other,
                        false => best,
                    }
                });
                Ok(first.map_or(Value::UNDEFINED, |(_, item)| item))
            },
        );
    }
}

/// Order of values: by themselves or by attributes, case-sensitive or not.
struct Order {
    case_sensitive: bool,
    attributes: Vec<Value>,
}

impl Order {
    fn new(
        case_sensitive: Option<Value>,
        attribute: Option<Value>,
        options: &Kwargs,
    ) -> Result<Order> {
        let case_sensitive = case_sensitive.or(options.get("case_sensitive")?);
        let attribute = attribute.or(options.get("attribute")?);
        options.assert_all_used()?;
        let attributes = match attribute.filter(|attribute| !attribute.is_none()) {
            None => Vec::new(),
            Some(attribute) => match attribute.as_str() {
                Some(names) => names.split(',').map(Value::from).collect(),
                None => vec![attribute],
            },
        };
        Ok(Order {
            case_sensitive: case_sensitive.is_some_and(|value| value.is_true()),
            attributes,
        })
    }

    /// Returns the elements of `value`, each with its sort keys.
    fn keyed(&self, budget: &Budget, value: &Value) -> Result<Vec<(Vec<Value>, Value)>> {
        budget.deep(value, 0)?;
        let items = iterable(budget, value)?;
        items
            .map(|item| {
                let keys = match self.attributes.as_slice() {
                    [] => vec![self.key(budget, item.clone())?],
                    attributes => attributes
                        .iter()
                        .map(|name| self.key(budget, attribute(&item, name)?))
                        .collect::<Result<_>>()?,
                };
                Ok((keys, item))
            })
            .collect()
    }

    fn key(&self, budget: &Budget, value: Value) -> Result<Value> {
        let Some(text) = value.as_str().filter(|_| !self.case_sensitive) else {
            return Ok(value);
        };
        budget.charge_string(text.len().checked_mul(3))?;
        Ok(Value::from(text.to_lowercase()))
    }
}

fn compare(a: &[Value], b: &[Value]) -> Ordering {
    a.cmp(b)
}

/// Returns the attribute of a value at a path: a name, an index, or several joined by dots.
pub(super) fn attribute(value: &Value, path: &Value) -> Result<Value> {
    let Some(names) = path.as_str() else {
        return match path.is_integer() {
            true => element(value, path),
            false => Err(invalid("an attribute is a name or an index")),
        };
    };
    let mut found = Cow::Borrowed(value);
    for name in names.split('.') {
        let index = name.bytes().all(|byte| byte.is_ascii_digit());
        let index = name.parse::<i64>().ok().filter(|_| index);
        found = Cow::Owned(match index {
            Some(index) => element(&found, &Value::from(index))?,
            None => found.get_attr(name)?,
        });
    }
    Ok(found.into_owned())
}

/// Returns the element of a list at an index, from its end if negative.
fn element(value: &Value, index: &Value) -> Result<Value> {
    let from_end = i64::try_from(index.clone()).ok().filter(|index| *index < 0);
    match (from_end, value.len()) {
        (Some(index), Some(len)) if value.kind() == ValueKind::Seq => {
            let at = i64::try_from(len).unwrap_or(i64::MAX) + index;
            value.get_item(&Value::from(at))
        }
        _ => value.get_item(index),
    }
}
