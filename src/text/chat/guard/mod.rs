//! The budget a template works from, and the functions and filters that draw on it.

mod python;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::{json, rewrite};
use crate::time;
use python::{
    add_numbers, indent, invalid, join, method_call, multiply, range, replace, slice, split,
};

/// Bytes of work, plus a multiple of what the messages hold.
const WORK: u64 = 24 << 20;
const WORK_PER_INPUT_BYTE: u64 = 64;

/// What a value inside another one counts, on top of its bytes.
const ELEMENT: u64 = 64;

/// How deep lists and maps may be nested: everything that walks or drops values recurses this far.
const MAX_VALUE_DEPTH: u32 = 100;

/// Filters that are of no use in a chat template and hard to bound.
const REMOVED_FILTERS: [&str; 7] = [
    "batch", "slice", "format", "pprint", "lines", "chain", "zip",
];

type Result<T> = std::result::Result<T, Error>;

/// What is left to a template, and what it said when it refused a conversation.
pub(super) struct Budget {
    left: AtomicU64,
    spent: std::sync::atomic::AtomicBool,
    refusal: Mutex<Option<String>>,
}

impl Budget {
    /// The budget for messages of `input` bytes.
    pub(super) fn new(input: usize) -> Budget {
        Budget {
            left: AtomicU64::new(WORK + WORK_PER_INPUT_BYTE * input as u64),
            spent: false.into(),
            refusal: Mutex::new(None),
        }
    }

    /// Whether the template asked for more than there was.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// What the template said when it raised an exception.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes `amount` from the budget.
    pub(super) fn charge(&self, amount: u64) -> Result<()> {
        // One thread draws on a budget, so reading and writing need not be one step.
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

    /// The whole value: bytes of strings and every element, refused where it is nested too deep.
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
            // Lazy: a sum of lists or a range. What it yields is charged where it is used.
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

    /// A string of `n` bytes is about to be made.
    fn charge_string(&self, n: Option<usize>) -> Result<()> {
        self.charge(n.map_or(u64::MAX, |n| n as u64))
    }
}

/// Sets up an environment for one rendering.
pub(super) fn install(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    install_guards(environment, budget);
    install_functions(environment, budget);
    install_filters(environment, budget);
    let b = Arc::clone(budget);
    environment.set_formatter(move |out, state, value| {
        b.deep(value, 0)?;
        minijinja::escape_formatter(out, state, value)
    });
    let b = Arc::clone(budget);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        method_call(&b, state, value, method, args)
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
    environment.add_function(rewrite::MUL, move |left: Value, right: Value| {
        multiply(&b, &left, &right)
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
        b.deep(&message, 0)?;
        *b.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.to_string());
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

fn values(named: &Kwargs) -> Result<Vec<Value>> {
    named.args().map(|name| named.get::<Value>(name)).collect()
}

fn install_filters(environment: &mut Environment<'_>, budget: &Arc<Budget>) {
    for name in REMOVED_FILTERS {
        environment.remove_filter(name);
    }
    let b = Arc::clone(budget);
    environment.add_filter(
        "tojson",
        move |value: Value, indent: Option<Value>, options: Kwargs| {
            json::tojson(&b, &value, indent, &options)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "replace",
        move |text: Value, from: Value, to: Value| -> Result<String> {
            replace(
                &b,
                &text.to_string(),
                &from.to_string(),
                &to.to_string(),
                None,
            )
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter("join", move |value: Value, separator: Option<Value>| {
        join(
            &b,
            &value,
            &separator.map(|s| s.to_string()).unwrap_or_default(),
        )
    });
    let b = Arc::clone(budget);
    environment.add_filter(
        "split",
        move |text: &str, separator: Option<&str>, most: Option<i64>| {
            split(&b, text, separator, most)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "list",
        move |state: &State<'_, '_>, value: Value| -> Result<Value> {
            let n = value.as_str().map(str::len).or(value.len());
            b.charge_elements(n.unwrap_or(1))?;
            minijinja::filters::list(state, value)
        },
    );
    let b = Arc::clone(budget);
    environment.add_filter(
        "indent",
        move |text: String,
              width: Option<usize>,
              first: Option<bool>,
              blank: Option<bool>,
              options: Kwargs| { indent(&b, &text, width, first, blank, &options) },
    );
    // Nothing can be taken from `none`: the engine would let it pass for an empty list.
    environment.add_test("iterable", |value: Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_filter(
        "sum",
        |value: Value, start: Option<Value>| -> Result<Value> {
            let start = start.unwrap_or_else(|| Value::from(0));
            value
                .try_iter()?
                .try_fold(start, |sum, item| add_numbers(&sum, &item))
        },
    );
}
