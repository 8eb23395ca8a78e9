//! What an answer must be.

use octavo_text::chat::answer::CallFormat;
use serde_json::Value;

use crate::error::Error;
use crate::gbnf;
use crate::reasoning::Reasoning;

/// What a text must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    Schema(Value),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A grammar in llama.cpp's notation, GBNF.
    Gbnf(String),
    /// A regular expression for the whole text.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Rule {
    /// The rule of a grammar: GBNF begins at the rule `root`, Lark at the rule `start`.
    pub fn of_grammar(text: &str) -> Rule {
        let is_root = |line: &str| {
            let rest = line.trim_start().strip_prefix("root");
            rest.is_some_and(|rest| rest.trim_start().starts_with("::="))
        };
        match text.lines().any(is_root) {
            true => Rule::Gbnf(text.to_owned()),
            false => Rule::Lark(text.to_owned()),
        }
    }

    /// Checks what can be checked without a vocabulary: the notation of a GBNF grammar.
    ///
    /// # Errors
    /// If the grammar is not well-formed.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Rule::Gbnf(text) => gbnf::to_lark(text).map(drop).map_err(Error::Rule),
            _ => Ok(()),
        }
    }
}

/// Calls of tools as a model writes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How they are written.
    pub format: CallFormat,
    /// The tools that may be called, as requests define them.
    pub tools: Vec<Value>,
    /// Whether an answer may have more than one call.
    pub several: bool,
    /// Whether the answer must be a call. Otherwise a call that has begun is held to its tool.
    pub required: bool,
}

/// What an answer must be, text and calls and the reasoning before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// What its text must be; any if there is none.
    pub text: Option<Rule>,
    /// Calls that it may have instead of the text, or must have.
    pub calls: Option<Calls>,
    /// How the model may think before.
    pub reasoning: Reasoning,
    /// Whether everything that schemas demand must be held.
    pub strict: bool,
}

impl From<Rule> for Demand {
    /// The demand for a text without any reasoning.
    fn from(rule: Rule) -> Demand {
        Demand {
            text: Some(rule),
            ..Demand::default()
        }
    }
}
