//! Compiles the demand on an answer to a token constraint, with llguidance.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use octavo_engine::Engine;
use octavo_engine::sample::Constraint;

use crate::budget::Budgeted;
use crate::call;
use crate::constraint::Restriction;
use crate::deferred::Deferred;
use crate::error::{Error, TOO_COMPLEX, shorten};
use crate::marker::Trigger;
use crate::rule::{Calls, Demand};
use crate::vocabulary::Vocabulary;
use crate::{grammar, limits};

/// Stack of the compiling thread in bytes: llguidance follows references recursively.
const STACK_BYTES: usize = 256 << 20;

/// Compiled demands in the cache.
const MAX_CACHED: usize = 16;

/// A constraint, and a warning about demands it does not enforce.
#[derive(Debug, Default)]
pub struct Compiled {
    /// Restricts the tokens of an answer; `None` where nothing is demanded.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Demands that the constraint does not enforce, in one line; `None` if it enforces all.
    pub warning: Option<String>,
}

impl Compiled {
    fn fork(&self) -> Compiled {
        Compiled {
            constraint: self.constraint.as_ref().map(|constraint| constraint.fork()),
            warning: self.warning.clone(),
        }
    }
}

/// Compiles constraints for one vocabulary, which is prepared on first use.
pub struct Compiler {
    engine: Engine,
    vocabulary: OnceLock<Result<Vocabulary, String>>,
    /// Cache of the latest demands, compiled.
    cache: Mutex<VecDeque<(Demand, Compiled)>>,
}

impl Compiler {
    /// Creates a compiler for the vocabulary of a model.
    pub fn new(engine: &Engine) -> Compiler {
        Compiler {
            engine: engine.clone(),
            vocabulary: OnceLock::new(),
            cache: Mutex::default(),
        }
    }

    /// Compiles a demand on a separate thread with a large stack. Takes up to about a second: do
    /// not call it on threads that others wait for.
    ///
    /// # Errors
    /// If a rule is invalid, too large, or cannot be met. For optional tool calls this is a warning
    /// instead.
    pub fn compile(&self, demand: &Demand) -> Result<Compiled, Error> {
        if let Some(compiled) = self.find(demand) {
            return Ok(compiled);
        }
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, || self.compile_here(demand))?;
            let failed = |_| Err(Error::Rule(TOO_COMPLEX.to_owned()));
            thread.join().unwrap_or_else(failed)
        })?;
        self.keep(demand, &compiled);
        Ok(compiled)
    }

    /// Returns the constraint of a recently compiled demand from the cache.
    pub fn find(&self, demand: &Demand) -> Option<Compiled> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache.iter().find(|(other, _)| other == demand);
        found.map(|(_, compiled)| compiled.fork())
    }

    fn keep(&self, demand: &Demand, compiled: &Compiled) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() == MAX_CACHED {
            cache.pop_front();
        }
        cache.push_back((demand.clone(), compiled.fork()));
    }

    fn compile_here(&self, demand: &Demand) -> Result<Compiled, Error> {
        let compiled = match demand.text.is_none() && demand.calls.is_none() {
            true => Compiled::default(),
            false => self.compile_rules(demand)?,
        };
        Ok(Compiled {
            constraint: Budgeted::around(compiled.constraint, &self.engine, &demand.reasoning)?,
            ..compiled
        })
    }

    fn compile_rules(&self, demand: &Demand) -> Result<Compiled, Error> {
        let vocabulary = self
            .vocabulary
            .get_or_init(|| Vocabulary::new(&self.engine));
        let refused = |error: &String| Error::Vocabulary(error.clone());
        let vocabulary = vocabulary.as_ref().map_err(refused)?;
        match &demand.calls {
            Some(calls) if demand.text.is_none() && !calls.required => {
                lazily(vocabulary, calls, demand.strict)
            }
            _ => at_once(vocabulary, demand),
        }
    }
}

/// Compiles a demand that applies from the end of the reasoning on.
fn at_once(vocabulary: &Vocabulary, demand: &Demand) -> Result<Compiled, Error> {
    let Some(built) = grammar::whole(vocabulary, demand)? else {
        return Ok(Compiled {
            constraint: None,
            warning: None,
        });
    };
    limits::check(&built)?;
    let warning = warning(&built.unheld, demand.strict)?;
    let matcher = matcher(vocabulary, built.grammar)?;
    let constraint: Box<dyn Constraint> = match demand.reasoning.is_possible() {
        true => Box::new(Deferred::after_reasoning(
            vocabulary,
            &demand.reasoning,
            matcher,
        )),
        false => Box::new(Restriction(matcher)),
    };
    Ok(Compiled {
        constraint: Some(constraint),
        warning,
    })
}

/// Compiles optional tool calls: the constraint is inactive until a call begins.
fn lazily(vocabulary: &Vocabulary, calls: &Calls, strict: bool) -> Result<Compiled, Error> {
    let mut triggers = Vec::new();
    let mut unheld = Vec::new();
    for begun in call::begun(vocabulary, calls) {
        let compiled = limits::check(&begun.built)
            .and_then(|()| matcher(vocabulary, begun.built.grammar.clone()));
        match compiled {
            Ok(matcher) => {
                for what in begun.built.unheld {
                    if !unheld.contains(&what) {
                        unheld.push(what);
                    }
                }
                triggers.push(Trigger::new(
                    vocabulary,
                    &begun.opener,
                    begun.at_start,
                    matcher,
                ));
            }
            Err(error) if strict => return Err(error),
            Err(error) => {
                // optional tool calls must not make a conversation fail
                let warning = Some(format!("calls are not held to their schemas: {error}"));
                return Ok(Compiled {
                    constraint: None,
                    warning,
                });
            }
        }
    }
    let warning = warning(&unheld, strict)?;
    let constraint: Option<Box<dyn Constraint>> = match triggers.is_empty() {
        true => None,
        false => Some(Box::new(Deferred::until_called(
            vocabulary,
            triggers,
            calls.several,
        ))),
    };
    Ok(Compiled {
        constraint,
        warning,
    })
}

/// Returns one line about demands that are not enforced, or an error if `strict`.
fn warning(unheld: &[String], strict: bool) -> Result<Option<String>, Error> {
    const SHOWN: usize = 8;
    if unheld.is_empty() {
        return Ok(None);
    }
    let mut list = unheld
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if unheld.len() > SHOWN {
        list.push_str(&format!(", and {} more", unheld.len() - SHOWN));
    }
    match strict {
        true => Err(Error::Rule(format!(
            "strict, but this cannot be held: {list}"
        ))),
        false => Ok(Some(format!(
            "passed over, for no grammar can hold it: {list}"
        ))),
    }
}

fn matcher(vocabulary: &Vocabulary, grammar: TopLevelGrammar) -> Result<Matcher, Error> {
    let mut matcher = Matcher::new(vocabulary.factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(Error::Rule(shorten(&error)));
    }
    // a grammar that allows nothing must fail now, not in the middle of a step
    match matcher.compute_mask_or_eos() {
        Ok(_) => Ok(matcher),
        Err(error) => Err(Error::Rule(shorten(&error.to_string()))),
    }
}
