//! A writer that writes only text a constraint allows.

use std::sync::OnceLock;

use octavo_engine::sample::Constraint;
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_grammar::{Compiler, Demand, Rule};
use octavo_text::tokenizer::EncodeOptions;
use serde_json::Value;

/// Returns an engine with the built-in model.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions {
            threads: Some(1),
            ..EngineOptions::default()
        };
        Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("it loads")
    })
}

/// Returns a compiler for this engine.
pub(crate) fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::new(engine()))
}

/// An answer in progress.
pub(crate) struct Pen(pub(crate) Box<dyn Constraint>);

impl Pen {
    /// Starts an answer with this demand.
    pub(crate) fn new(demand: &Demand) -> Pen {
        let compiled = compiler().compile(demand).expect("it compiles");
        Pen(compiled.constraint.expect("something is demanded"))
    }

    /// Writes a text as far as it is allowed; returns the rest.
    pub(crate) fn write<'t>(&mut self, text: &'t str) -> &'t str {
        let tokenizer = engine().tokenizer();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (piece, after) = rest.split_at(c.len_utf8());
            let ids = tokenizer
                .encode(piece.as_bytes(), EncodeOptions::PIECE)
                .expect("tokens");
            for id in ids {
                let allowed = self.0.allowed().expect("it can tell");
                if allowed.is_some_and(|set| !set.contains(id)) {
                    return rest;
                }
                self.0.accept(id).expect("it may come");
            }
            rest = after;
        }
        rest
    }

    /// Writes the first of these tokens that is allowed, and returns it.
    pub(crate) fn write_first(&mut self, ids: &[u32]) -> Option<u32> {
        let allowed = self.0.allowed().expect("it can tell");
        let may_come = |id: &&u32| allowed.as_ref().is_none_or(|set| set.contains(**id));
        let id = *ids.iter().find(may_come)?;
        self.0.accept(id).expect("it may come");
        Some(id)
    }

    /// Returns whether the text may end here.
    pub(crate) fn may_end(&mut self) -> bool {
        let ends = engine().tokenizer().eog_ids();
        let allowed = self.0.allowed().expect("it can tell");
        allowed.is_none_or(|set| ends.iter().any(|id| set.contains(*id)))
    }

    /// Returns whether any token but the end is allowed.
    pub(crate) fn may_go_on(&mut self) -> bool {
        let ends = engine().tokenizer().eog_ids();
        let n_vocab = u32::try_from(engine().hparams().n_vocab()).expect("32 bits");
        let allowed = self.0.allowed().expect("it can tell");
        allowed.is_none_or(|set| (0..n_vocab).any(|id| set.contains(id) && !ends.contains(&id)))
    }
}

/// Returns whether a whole answer meets a demand.
pub(crate) fn meets(demand: &Demand, text: &str) -> bool {
    let mut pen = Pen::new(demand);
    pen.write(text).is_empty() && pen.may_end()
}

/// Returns the demand for JSON that matches a schema.
pub(crate) fn schema(schema: Value) -> Demand {
    Demand::from(Rule::Schema(schema))
}

/// Returns the warning of a demand that is not fully enforced.
pub(crate) fn warning(demand: &Demand) -> Option<String> {
    Compiler::new(engine())
        .compile(demand)
        .expect("it compiles")
        .warning
}

/// Returns the error of a demand that is refused.
pub(crate) fn refusal(demand: &Demand) -> String {
    match compiler().compile(demand) {
        Ok(_) => panic!("it compiles"),
        Err(error) => error.to_string(),
    }
}
