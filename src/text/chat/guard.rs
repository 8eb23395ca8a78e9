//! The budget a template works from, and the functions and filters that draw on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::{json, rewrite};
use crate::time;

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

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
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

/// Python's slices. The engine's own fail on an empty list that is read backwards.
fn slice(budget: &Budget, value: &Value, bounds: &[Value; 3]) -> Result<Value> {
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
fn range(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value> {
    const MOST: i128 = 100_000;
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

fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
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

fn multiply_numbers(left: &Value, right: &Value) -> Result<Value> {
    numbers(left, right, i128::checked_mul, |a, b| a * b)
}

fn add_numbers(left: &Value, right: &Value) -> Result<Value> {
    numbers(left, right, i128::checked_add, |a, b| a + b)
}

fn numbers(
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

fn replace(
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

fn join(budget: &Budget, value: &Value, separator: &str) -> Result<String> {
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

fn split(budget: &Budget, text: &str, separator: Option<&str>, most: Option<i64>) -> Result<Value> {
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

fn indent(
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
fn method_call(
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
