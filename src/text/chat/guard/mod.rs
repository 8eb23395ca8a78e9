//! Work budget of a template, and the functions and filters charged to it.

mod collections;
mod error;
mod filters;
mod format;
mod list;
mod numbers;
mod ops;
mod python;
mod sorting;
mod strings;
mod text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

pub(super) use collections::{is_attribute, is_method};
use error::invalid;
use python::{multiply, range, slice};
pub(super) use text::float;

use super::rewrite;
use crate::time;

/// Budget in bytes of work, plus a multiple of the messages' size.
const WORK: u64 = 24 << 20;
const WORK_PER_INPUT_BYTE: u64 = 64;

/// Cost of a value inside another one, on top of its bytes.
const ELEMENT: u64 = 64;

/// Deepest nesting of lists and maps: all code that walks or drops values recurses this far.
const MAX_VALUE_DEPTH: u32 = 100;

type Result<T> = std::result::Result<T, Error>;

/// Remaining budget of a template, and its message if it refused the conversation.
pub(super) struct Budget {
    left: AtomicU64,
    spent: std::sync::atomic::AtomicBool,
    refusal: Mutex<Option<String>>,
}

impl Budget {
    /// Creates the budget for messages of `input` bytes.
    pub(super) fn new(input: usize) -> Budget {
        Budget {
            left: AtomicU64::new(WORK + WORK_PER_INPUT_BYTE * input as u64),
            spent: false.into(),
            refusal: Mutex::new(None),
        }
    }

    /// Returns whether the template exceeded the budget.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Returns the message of an exception that the template raised.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes `amount` from the budget.
    pub(super) fn charge(&self, amount: u64) -> Result<()> {
        // One thread uses a budget, so reading and writing need not be one atomic step.
        match self.left.load(Ordering::Relaxed).checked_sub(amount) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => {
                self.spent.store(true, Ordering::Relaxed);
                Err(invalid("the template uses too much memory"))
            }
        }
    }

    fn charge_elements(&self, n: usize) -> Result<()> {
        self.charge(ELEMENT.saturating_mul(n as u64))
    }

    /// Charges a whole value: bytes of strings and every element; refuses one nested too deeply.
    fn deep(&self, value: &Value, depth: u32) -> Result<()> {
        if depth > MAX_VALUE_DEPTH {
            return Err(invalid("values are nested too deep"));
        }
        match value.kind() {
            ValueKind::Seq => {
                self.charge_elements(value.len().unwrap_or(1))?;
                value
                    .try_iter()?
                    .try_for_each(|item| self.deep(&item, depth + 1))
            }
            ValueKind::Map => {
                self.charge_elements(2 * value.len().unwrap_or(1))?;
                for key in value.try_iter()? {
                    self.deep(&value.get_item(&key)?, depth + 1)?;
                    self.deep(&key, depth + 1)?;
                }
                Ok(())
            }
            // Lazy: a sum of lists or a range. Its items are charged where they are used.
            ValueKind::Iterable => {
                self.charge_elements(value.len().unwrap_or(1))?;
                match value.len() {
                    Some(_) => value
                        .try_iter()?
                        .try_for_each(|item| self.deep(&item, depth + 1)),
                    None => Ok(()),
                }
            }
            _ => self.flat(value),
        }
    }

    fn flat(&self, value: &Value) -> Result<()> {
        match (value.as_str(), value.len()) {
            (Some(text), _) => self.charge(text.len() as u64),
            (None, Some(n)) => self.charge_elements(n),
            (None, None) => self.charge(1),
        }
    }

    fn item(&self, value: &Value) -> Result<()> {
        match (value.kind(), value.as_str()) {
            (_, Some(text)) => self.charge(text.len() as u64),
            (ValueKind::Iterable, _) => self.charge_elements(value.len().unwrap_or(1)),
            _ => self.charge(1),
        }
    }

    /// Charges a string of `n` bytes that is about to be created.
    fn charge_string(&self, n: Option<usize>) -> Result<()> {
        self.charge(n.map_or(u64::MAX, |n| n as u64))
    }
}

/// Sets up an environment for one rendering.
pub(super) fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    install_guards(environment, budget);
    install_operators(environment, budget);
    install_functions(environment, budget);
    filters::install(environment, budget);
    let b = Arc::clone(budget);
    environment.set_formatter(move |out, _, value| {
        let text = text::text(&b, value)?;
        out.write_str(&text).map_err(Error::from)
    });
}

fn install_guards(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    environment.add_function(rewrite::DEEP, move |value: Value| {
        b.deep(&value, 0).map(|()| value)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::FLAT, move |value: Value| {
        b.flat(&value).map(|()| value)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::ITEM, move |value: Value| {
        b.item(&value).map(|()| value)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::ITERATED, move |value: Value| {
        python::iterated(&b, &value).map(|()| value)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::METHOD, {
        move |state: &State<'_, '_>, value: Value, name: &str, Rest(args): Rest<Value>| {
            collections::call(&b, state, &value, name, &args)
        }
    });
    environment.add_function(rewrite::ATTRIBUTE, |value: Value, name: &str| {
        collections::attribute(&value, name)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::TUPLE, move |Rest(items): Rest<Value>| {
        b.charge_elements(items.len()).map(|()| text::tuple(items))
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::LIST, move |Rest(items): Rest<Value>| {
        b.charge_elements(items.len()).map(|()| list::list(items))
    });
    environment.add_function(rewrite::PASS, |value: Value| match value.is_undefined() {
        true => Value::from_object(Passed),
        false => value,
    });
    environment.add_function(rewrite::PASSED, |value: Value| {
        match value.downcast_object_ref::<Passed>() {
            Some(_) => Value::UNDEFINED,
            None => value,
        }
    });
}

/// An undefined value passed to a macro, which then does not use the parameter's default.
#[derive(Debug)]
struct Passed;

impl minijinja::value::Object for Passed {}

fn install_operators(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = Arc::clone(budget);
    environment.add_function(rewrite::MUL, move |left: Value, right: Value| {
        multiply(&b, &left, &right)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::ADD, move |left: Value, right: Value| {
        ops::add(&b, &left, &right)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::CONCAT, move |left: Value, right: Value| {
        ops::concat(&b, &left, &right)
    });
    let b = Arc::clone(budget);
    environment.add_function(rewrite::REM, move |left: Value, right: Value| {
        ops::remainder(&b, &left, &right)
    });
    environment.add_function(rewrite::POW, |left: Value, right: Value| {
        ops::power(&left, &right)
    });
    environment.add_function(rewrite::DIV, |left: Value, right: Value| {
        ops::divide(&left, &right)
    });
    environment.add_function(rewrite::FLOOR_DIV, |left: Value, right: Value| {
        ops::floor_divide(&left, &right)
    });
    let b = Arc::clone(budget);
    environment.add_function(
        rewrite::SLICE,
        move |value: Value, start: Value, stop: Value, step: Value| {
            slice(&b, &value, &[start, stop, step])
        },
    );
}

fn install_functions(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    environment.remove_global("debug");
    environment.add_function("range", range);
    let b = Arc::clone(budget);
    environment.add_function("raise_exception", move |message: Value| -> Result<Value> {
        let text = text::text(&b, &message)?.into_owned();
        *b.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        Err(invalid("the template raised an exception"))
    });
    let b = Arc::clone(budget);
    environment.add_function("strftime_now", move |format: &str| -> Result<String> {
        b.charge_string(format.len().checked_mul(time::LONGEST_FIELD))?;
        Ok(time::strftime(format, time::now()))
    });
    let b = Arc::clone(budget);
    environment.add_function(
        "dict",
        move |value: Option<Value>, named: Kwargs| -> Result<Value> {
            for arg in value.iter().cloned().chain(values(&named)?) {
                b.deep(&arg, 0)?;
            }
            let value = value.map(|value| pairs(&value)).transpose()?;
            minijinja::functions::dict(value, named)
        },
    );
    let b = Arc::clone(budget);
    environment.add_function(
        "namespace",
        move |value: Option<Value>, named: Kwargs| -> Result<Value> {
            for arg in value.iter().cloned().chain(values(&named)?) {
                b.deep(&arg, 0)?;
            }
            named.assert_all_used()?;
            minijinja::functions::namespace(Some(minijinja::functions::dict(value, named)?))
        },
    );
}

/// Converts a list of pairs to a dict; returns other values unchanged.
fn pairs(value: &Value) -> Result<Value> {
    if value.kind() != ValueKind::Seq {
        return Ok(value.clone());
    }
    let pair = |pair: Value| {
        let mut items = pair.try_iter()?;
        match (items.next(), items.next(), items.next()) {
            (Some(key), Some(value), None) => Ok((key, value)),
            _ => Err(invalid("a dictionary is made of pairs")),
        }
    };
    let pairs: Result<Vec<(Value, Value)>> = value.try_iter()?.map(pair).collect();
    Ok(Value::from_iter(pairs?))
}

fn values(named: &Kwargs) -> Result<Vec<Value>> {
    named.args().map(|name| named.get::<Value>(name)).collect()
}
