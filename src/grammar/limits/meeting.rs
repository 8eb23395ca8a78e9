//! Limits on intersections of schemas. The compiler builds an intersection state by state, and the
//! number of states is the product of those of its parts: patterns, and the remainders of
//! `multipleOf`. Besides `allOf`, references and alternatives are intersected with their sibling
//! keywords, also inside nested objects and lists. Alternatives are followed in parallel, which
//! multiplies the states again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::slice::from_ref;

use serde_json::{Map, Value};

use crate::schema::FORMATS;

/// Maximum patterns and formats that apply to one value.
const MAX_PATTERNS: usize = 8;

/// Maximum remainders to distinguish at one position of the text, and at all positions of a rule.
const MAX_REMAINDERS: u64 = 10_000;
const MAX_ALL_REMAINDERS: u64 = 100_000;

/// Maximum decimals of a `multipleOf`.
const MAX_DECIMALS: u32 = 9;

/// Maximum steps of the search for intersections: the compiler has the same limit.
const MAX_STEPS: usize = 50_000;

type Object = Map<String, Value>;

/// Refuses demands that are too large for one value, or for all of them. Several schemas may be
/// alternatives.
pub(super) fn check(schemas: &[Value]) -> Result<(), String> {
    let choice = (schemas.len() > 1).then_some(schemas.as_ptr());
    let mut search = Search::default();
    for root in schemas {
        search.root = Some(root);
        search.enqueue(vec![root], choice);
        while let Some(place) = search.todo.pop() {
            search.step(place)?;
        }
    }
    Ok(())
}

/// A value, and the schemas that apply to it.
#[derive(Clone, Default)]
struct ValueSchemas<'a> {
    holding: Vec<&'a Object>,
    /// Lists of alternatives; one schema of each list applies.
    open: Vec<&'a [Value]>,
    /// Outermost alternatives it belongs to.
    choice: Option<Choice>,
}

/// Alternatives, identified by address.
type Choice = *const Value;

#[derive(Default)]
struct Search<'a> {
    root: Option<&'a Value>,
    todo: Vec<ValueSchemas<'a>>,
    /// Sets of schemas already visited, by address.
    seen: HashSet<(Option<Choice>, Vec<*const Value>)>,
    steps: usize,
    /// Combined `multipleOf` of the values in each choice of alternatives.
    choices: HashMap<Choice, Decimal>,
    remainders: u64,
}

impl<'a> Search<'a> {
    /// Queues a value with the schemas that apply to it, unless it was visited.
    fn enqueue(&mut self, schemas: Vec<&'a Value>, choice: Option<Choice>) {
        self.steps += 1;
        let mut key: Vec<*const Value> = schemas.iter().map(|schema| *schema as _).collect();
        key.sort_unstable();
        if !schemas.is_empty() && self.seen.insert((choice, key)) {
            self.todo.push(ValueSchemas {
                choice,
                holding: Vec::new(),
                open: schemas.into_iter().map(from_ref).collect(),
            });
        }
    }

    fn step(&mut self, mut place: ValueSchemas<'a>) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err("expected fewer schemas that hold for the same values".to_owned());
        }
        let Some(alternatives) = place.open.pop() else {
            self.weigh(&place)?;
            self.enter(&place);
            return Ok(());
        };
        if alternatives.len() > 1 {
            place.choice = place.choice.or(Some(alternatives.as_ptr()));
        }
        for schema in alternatives {
            let mut place = place.clone();
            let object = schema.as_object();
            // references may be cyclic
            let is_new =
                |object: &&Object| !place.holding.iter().any(|o| std::ptr::eq(*o, *object));
            if let Some(object) = object.filter(is_new) {
                place.holding.push(object);
                let list = |name: &str| object.get(name).and_then(Value::as_array);
                place
                    .open
                    .extend(list("allOf").into_iter().flatten().map(from_ref));
                let target = object
                    .get("$ref")
                    .and_then(|reference| self.resolve(reference));
                place.open.extend(target.map(from_ref));
                let choices = ["anyOf", "oneOf"].into_iter().filter_map(list);
                place.open.extend(choices.map(Vec::as_slice));
            }
            self.todo.push(place);
        }
        Ok(())
    }

    /// Resolves a reference: a path from the root, as in the compiler.
    fn resolve(&self, reference: &Value) -> Option<&'a Value> {
        let path = reference.as_str()?.strip_prefix('#')?;
        if path.is_empty() || path == "/" {
            return self.root;
        }
        let mut names = path.strip_prefix('/')?.split('/');
        names.try_fold(self.root?, |value, name| match value {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?),
            other => other.get(name),
        })
    }

    /// Refuses a value if the schemas that apply to it demand too much.
    fn weigh(&mut self, place: &ValueSchemas<'a>) -> Result<(), String> {
        let holding = &place.holding;
        let is_known = |format: &Value| FORMATS.iter().any(|known| format == known);
        let patterns = holding.iter().map(|object| {
            let format = object.get("format").is_some_and(is_known);
            usize::from(object.contains_key("pattern")) + usize::from(format)
        });
        let patterns: usize = patterns.sum();
        if patterns > MAX_PATTERNS {
            return Err(format!(
                "pattern: expected at most {MAX_PATTERNS} patterns and formats for one value, \
                 got {patterns}"
            ));
        }
        let multiples = holding.iter().filter_map(|object| object.get("multipleOf"));
        let mut all: Option<Decimal> = None;
        for number in multiples.filter(|number| number.is_number()) {
            let own = Decimal::of(number.as_f64().unwrap_or_default().abs());
            let one = own
                .filter(|own| own.digits <= MAX_REMAINDERS)
                .ok_or_else(|| {
                    format!(
                        "multipleOf {number}: expected at most {MAX_REMAINDERS} without its point"
                    )
                })?;
            all = Some(together(all, one).ok_or_else(|| too_many(number))?);
            if let Some(choice) = place.choice {
                let before = self.choices.get(&choice).copied();
                let both = together(before, one).ok_or_else(|| too_many(number))?;
                self.choices.insert(choice, both);
            }
        }
        self.remainders += all.map_or(0, |all| all.digits);
        match self.remainders <= MAX_ALL_REMAINDERS {
            true => Ok(()),
            false => Err(format!(
                "multipleOf: expected a sum of at most {MAX_ALL_REMAINDERS} in all"
            )),
        }
    }

    /// Queues the values inside a value, with the schemas that apply to them.
    fn enter(&mut self, place: &ValueSchemas<'a>) {
        let ValueSchemas {
            holding, choice, ..
        } = place;
        let named = |object: &&'a Object, of: &str| {
            let inner = object.get(of).and_then(Value::as_object);
            inner.into_iter().flatten()
        };
        for of in ["properties", "patternProperties"] {
            let names = holding.iter().flat_map(|object| named(object, of));
            let names: BTreeSet<&str> = names.map(|(name, _)| name.as_str()).collect();
            for name in names {
                let schemas = holding.iter().flat_map(|object| {
                    let own = object.get(of).and_then(|inner| inner.get(name));
                    let others = named(object, "patternProperties").map(|(_, schema)| schema);
                    // patterns are not matched against names: all count
                    let others = others.filter(|_| of == "properties");
                    let others = others.chain(object.get("additionalProperties"));
                    let is_alone = holding.len() == 1;
                    let others = others.filter(|_| own.is_none() && !is_alone);
                    own.into_iter().chain(others).collect::<Vec<_>>()
                });
                self.enqueue(schemas.collect(), *choice);
            }
        }
        let additional = holding.iter().filter_map(|o| o.get("additionalProperties"));
        self.enqueue(additional.collect(), *choice);
        let lists: Vec<List<'a>> = holding.iter().map(|object| List::of(object)).collect();
        let longest = lists.iter().map(|list| list.first.len()).max();
        for i in 0..longest.unwrap_or(0) {
            let at = |list: &List<'a>| list.first.get(i).or(list.rest);
            self.enqueue(lists.iter().filter_map(at).collect(), *choice);
        }
        let rest = lists.iter().filter_map(|list| list.rest);
        self.enqueue(rest.collect(), *choice);
    }
}

/// Schemas for the elements of a list.
struct List<'a> {
    first: &'a [Value],
    rest: Option<&'a Value>,
}

impl<'a> List<'a> {
    fn of(object: &'a Object) -> List<'a> {
        match (object.get("prefixItems"), object.get("items")) {
            (_, Some(Value::Array(first))) => List {
                first,
                rest: object.get("additionalItems"),
            },
            (Some(Value::Array(first)), rest) => List { first, rest },
            (_, rest) => List { first: &[], rest },
        }
    }
}

/// A decimal number as in the compiler: digits, the last `decimals` of which are after the point.
#[derive(Clone, Copy)]
struct Decimal {
    digits: u64,
    decimals: u32,
}

impl Decimal {
    fn of(mut number: f64) -> Option<Decimal> {
        let mut decimals = 0;
        while number.fract() != 0.0 {
            number *= 10.0;
            decimals += 1;
            if decimals > MAX_DECIMALS {
                return None;
            }
        }
        let mut digits = number as u64;
        while decimals > 0 && digits.is_multiple_of(10) {
            digits /= 10;
            decimals -= 1;
        }
        Some(Decimal { digits, decimals })
    }
}

/// Returns the least common multiple with the previous ones; `None` if it is too large.
fn together(before: Option<Decimal>, one: Decimal) -> Option<Decimal> {
    let Some(other) = before else {
        return Some(one);
    };
    let decimals = one.decimals.max(other.decimals);
    let scaled = |own: Decimal| own.digits * 10_u64.pow(decimals - own.decimals);
    let (a, b) = (scaled(one), scaled(other));
    // the compiler multiplies in 32 bits
    let product = a.checked_mul(b);
    let product = product.filter(|product| u32::try_from(*product).is_ok())?;
    let digits = product / gcd(a, b).max(1);
    (digits <= MAX_REMAINDERS).then_some(Decimal { digits, decimals })
}

fn too_many(number: &Value) -> String {
    format!(
        "multipleOf {number}: expected a least common multiple of at most {MAX_REMAINDERS} with \
         others that hold for the same value or an alternative to it"
    )
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
