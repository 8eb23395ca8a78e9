//! Demands on an answer.

use octavo_text::chat::answer::CallFormat;
use serde_json::Value;

use crate::error::Error;
use crate::gbnf;
use crate::reasoning::Reasoning;

/// A rule for a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
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
    /// Returns the rule of a grammar: GBNF begins at the rule `root`, Lark at the rule `start`.
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

    /// Returns the rule of a JSON schema: an empty one is any JSON object, as in llama.cpp. `None`
    /// if the value is no schema.
    pub fn of_schema(schema: Value) -> Option<Rule> {
        match schema {
            Value::Object(object) if object.is_empty() => Some(Rule::JsonObject),
            Value::Object(_) | Value::Bool(true) => Some(Rule::Schema(schema)),
            _ => None,
        }
    }

    /// Checks as much as is possible without a vocabulary: the syntax of a GBNF grammar.
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

/// Tool calls as a model writes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// Format of a call.
    pub format: CallFormat,
    /// The available tools, as requests define them.
    pub tools: Vec<Value>,
    /// Whether an answer may have more than one call.
    pub several: bool,
    /// Whether the answer must be a call. Otherwise calls are optional, and follow their tool's
    /// schema once begun.
    pub required: bool,
}

/// Demands on an answer: text, calls and the reasoning before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// Rule for its text; `None` allows any.
    pub text: Option<Rule>,
    /// Calls that are allowed instead of the text, or required.
    pub calls: Option<Calls>,
    /// Reasoning allowed before.
    pub reasoning: Reasoning,
    /// Whether schema keywords that cannot be enforced are errors.
    pub strict: bool,
}

impl From<Rule> for Demand {
    /// Demands a text without reasoning.
    fn from(rule: Rule) -> Demand {
        Demand {
            text: Some(rule),
            ..Demand::default()
        }
    }
}
