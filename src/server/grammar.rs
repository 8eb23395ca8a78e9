//! JSON schemas, regular expressions and grammars as constraints on what may be generated, by
//! llguidance.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use octavo_engine::Engine;
use octavo_engine::sample::{Constraint, ConstraintError, TokenSet};
use octavo_engine::sequence::Vocabulary;
use octavo_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::limits;
use crate::schema::compact;

/// Room for whoever compiles a rule: llguidance follows references on the stack.
const STACK_BYTES: usize = 256 << 20;

/// Rules that are kept compiled.
const KEPT: usize = 16;

/// What a text must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    Schema(Value),
    /// llguidance's dialect of Lark.
    Lark(String),
    /// A regular expression for the whole text.
    Regex(String),
    /// A call of a tool: a grammar in that dialect, and the schemas that stand in it.
    Call {
        grammar: String,
        schemas: Vec<Value>,
    },
}

/// Makes constraints for one vocabulary, which is prepared when it is first needed.
pub(crate) struct Grammars {
    engine: Engine,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The latest rules, compiled.
    kept: Mutex<VecDeque<(Rule, Box<dyn Constraint>)>>,
}

impl Grammars {
    pub(crate) fn new(engine: &Engine) -> Grammars {
        Grammars {
            engine: engine.clone(),
            factory: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    /// Compiles a rule on a thread of its own with a stack that is large enough. Takes up to a
    /// second or so: not for threads that others wait for.
    pub(crate) fn compile(
        &self,
        rule: &Rule,
        param: &str,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        if let Some(kept) = self.find(rule) {
            return Ok(kept);
        }
        limits::check(rule).map_err(|expected| ApiError::bad_field(param, expected))?;
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, || self.compile_here(rule, param));
            let thread = thread.map_err(|error| ApiError::unavailable(error.to_string()))?;
            let failed = |_| Err(ApiError::bad_field(param, TOO_COMPLEX));
            thread.join().unwrap_or_else(failed)
        })?;
        self.keep(rule, &*compiled);
        Ok(compiled)
    }

    /// A constraint of a rule that is kept.
    pub(crate) fn find(&self, rule: &Rule) -> Option<Box<dyn Constraint>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|(other, _)| other == rule);
        found.map(|(_, constraint)| constraint.fork())
    }

    fn keep(&self, rule: &Rule, constraint: &dyn Constraint) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((rule.clone(), constraint.fork()));
    }

    fn compile_here(&self, rule: &Rule, param: &str) -> Result<Box<dyn Constraint>, ApiError> {
        let factory = self.factory.get_or_init(|| factory(&self.engine));
        let factory = factory.as_ref().map_err(|error| {
            ApiError::not_supported(format!("this vocabulary takes no grammars: {error}"))
        })?;
        let grammar = match rule {
            Rule::JsonObject => TopLevelGrammar::from_json_schema(compact(json!({
                "type": "object"
            }))),
            Rule::Schema(schema) => TopLevelGrammar::from_json_schema(compact(schema.clone())),
            Rule::Lark(text) | Rule::Call { grammar: text, .. } => {
                TopLevelGrammar::from_lark(text.clone())
            }
            Rule::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
        };
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(ApiError::bad_field(param, shorten(&error)));
        }
        // a grammar that allows nothing is an error now, not in the middle of a step
        match matcher.compute_mask_or_eos() {
            Ok(_) => Ok(Box::new(Restriction(matcher))),
            Err(error) => Err(ApiError::bad_field(param, shorten(&error.to_string()))),
        }
    }
}

fn factory(engine: &Engine) -> Result<ParserFactory, String> {
    let tokenizer = engine.tokenizer();
    let words: Vec<Vec<u8>> = (0..engine.hparams().n_vocab())
        .map(|id| word(tokenizer, u32::try_from(id).unwrap_or(u32::MAX)))
        .collect();
    let n_vocab = u32::try_from(words.len()).map_err(|error| error.to_string())?;
    let ends = tokenizer.eog_ids();
    let eos = tokenizer.eos().or(ends.first().copied());
    let eos = eos.ok_or("it has no token that ends a text")?;
    let mut trie = TokTrie::from(&TokRxInfo::new(n_vocab, eos), &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(ends);
    }
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let capabilities = InferenceCapabilities::default();
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory =
        ParserFactory::new(&env, capabilities, &slices).map_err(|error| error.to_string())?;
    factory.quiet();
    // nobody's grammar may hold up everybody's step
    let limits = factory.limits_mut();
    limits.initial_lexer_fuel = 1_000_000;
    limits.step_lexer_fuel = 200_000;
    limits.step_max_items = 50_000;
    limits.max_lexer_states = 50_000;
    limits.max_grammar_size = 200_000;
    limits.verbose_errors = false;
    limits.precompute_large_lexemes = false;
    Ok(factory)
}

/// A token as grammars see it: control tokens behind a byte that no text has.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    if tokenizer.is_special(id) {
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(tokenizer.token_text(id));
        return word;
    }
    Vocabulary::piece(tokenizer, id).to_vec()
}

const TOO_COMPLEX: &str = "the rule is too complex, or cannot be met";

/// The first line of an error, not longer than people read.
fn shorten(error: &str) -> String {
    const LONGEST: usize = 300;
    // the compiler's own words about itself
    if error.contains("panic") || error.contains("NoExtensionBias") {
        return TOO_COMPLEX.to_owned();
    }
    let line = error
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it is not valid");
    line.chars().take(LONGEST).collect()
}

/// A grammar on its way through a text.
struct Restriction(Matcher);

impl fmt::Debug for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restriction")
    }
}

impl Constraint for Restriction {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        let mask = self.0.compute_mask_or_eos().map_err(error)?;
        Ok(Some(TokenSet::from_words(mask.as_slice().to_vec())))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        if self.0.is_stopped() {
            return Ok(());
        }
        self.0.consume_token(id).map_err(error)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Restriction(self.0.deep_clone()))
    }
}

fn error(error: impl fmt::Display) -> ConstraintError {
    ConstraintError(shorten(&error.to_string()))
}
