//! Lists that a template changes with `append` and `pop`. transformers forbids that, but llama.cpp
//! does not, and templates in GGUF files do it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind, from_args};

use super::error::invalid;
use super::text::{is_namespace, same_sequence};
use super::{Budget, Result};

/// A list literal of a template with such calls.
///
/// It keeps copies of what is appended, in which all lists are of the usual kind. So it can never
/// contain itself, and appending to an inner list makes no value deeper than twice the limit.
#[derive(Debug)]
struct List(Mutex<Vec<Value>>);

impl List {
    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}

/// Makes a list that can be changed.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(Mutex::new(items)))
}

/// Calls a method that changes a list; `None` if the value cannot be changed, or if there is no
/// such method.
pub(super) fn change(
    budget: &Budget,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>> {
    let Some(list) = value.downcast_object_ref::<List>() else {
        return Ok(None);
    };
    Ok(Some(match name {
        "append" => {
            let (item,): (&Value,) = from_args(args)?;
            budget.deep(item, 0)?;
            let item = copy(item)?;
            list.items().push(item);
            Value::from(())
        }
        "pop" => {
            let (at,): (Option<i64>,) = from_args(args)?;
            let at = at.unwrap_or(-1);
            let mut items = list.items();
            budget.charge_elements(items.len())?;
            let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
            let at = if at < 0 { at.saturating_add(len) } else { at };
            let at = usize::try_from(at).ok().filter(|at| *at < items.len());
            items.remove(at.ok_or_else(|| invalid("the list has no such element"))?)
        }
        _ => return Ok(None),
    }))
}

/// Returns a copy without lists that can be changed.
fn copy(value: &Value) -> Result<Value> {
    match value.kind() {
        ValueKind::Seq => {
            let items = value.try_iter()?.map(|item| copy(&item));
            Ok(same_sequence(value, items.collect::<Result<_>>()?))
        }
        ValueKind::Map if is_namespace(value) => {
            Err(invalid("a namespace cannot be an element of a list"))
        }
        ValueKind::Map => {
            let pair = |key: Value| Ok((key.clone(), copy(&value.get_item(&key)?)?));
            let pairs = value.try_iter()?.map(pair);
            Ok(Value::from_iter(pairs.collect::<Result<Vec<_>>>()?))
        }
        _ => Ok(value.clone()),
    }
}
