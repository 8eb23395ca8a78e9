//! Structured output: the JSON schema or grammar that generated text must follow.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use clap::Args;
use octavo_engine::Engine;
use octavo_engine::sample::Constraint;
use octavo_grammar::{Compiler, Demand, Reasoning, ReasoningBudget, Rule};

use super::Failure;
use crate::terminal;

/// Options of structured output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Structured output")]
pub(crate) struct ConstraintArgs {
    /// Generate JSON that follows this schema; {} is any JSON object
    #[arg(short = 'j', long, value_name = "SCHEMA", group = "rule")]
    json_schema: Option<String>,
    /// Read the JSON schema from FILE (also: -jf FILE)
    #[arg(long, value_name = "FILE", group = "rule", value_hint = clap::ValueHint::FilePath)]
    json_schema_file: Option<PathBuf>,
    /// Generate text that follows this grammar: GBNF, which begins at the rule root, or
    /// llguidance's Lark, which begins at the rule start
    #[arg(
        long,
        value_name = "GRAMMAR",
        group = "rule",
        allow_hyphen_values = true
    )]
    grammar: Option<String>,
    /// Read the grammar from FILE
    #[arg(long, value_name = "FILE", group = "rule", value_hint = clap::ValueHint::FilePath)]
    grammar_file: Option<PathBuf>,
}

/// A rule, and the option or file that gave it, for messages.
#[derive(Debug)]
pub(crate) struct RuleArg {
    rule: Rule,
    origin: String,
}

impl ConstraintArgs {
    /// Returns whether an option sets a rule.
    pub(crate) fn is_set(&self) -> bool {
        let files = [&self.json_schema_file, &self.grammar_file];
        let texts = [&self.json_schema, &self.grammar];
        files.iter().any(|file| file.is_some()) || texts.iter().any(|text| text.is_some())
    }

    /// Reads the rule and checks as much of it as is possible without a model.
    pub(crate) fn read(&self) -> Result<Option<RuleArg>, Failure> {
        let schema = |(text, origin): (String, String)| match schema(&text) {
            Ok(rule) => Ok(RuleArg { rule, origin }),
            Err(fault) => Err(wrong(&origin, fault)),
        };
        let grammar = |(text, origin): (String, String)| RuleArg {
            rule: Rule::of_grammar(&text),
            origin,
        };
        let arg = match self {
            ConstraintArgs {
                json_schema: Some(text),
                ..
            } => schema((text.clone(), "--json-schema".to_owned()))?,
            ConstraintArgs {
                json_schema_file: Some(path),
                ..
            } => schema(read("--json-schema-file", path)?)?,
            ConstraintArgs {
                grammar: Some(text),
                ..
            } => grammar((text.clone(), "--grammar".to_owned())),
            ConstraintArgs {
                grammar_file: Some(path),
                ..
            } => grammar(read("--grammar-file", path)?),
            _ => return Ok(None),
        };
        let checked = arg.rule.check();
        checked.map_err(|error| wrong(&arg.origin, error))?;
        Ok(Some(arg))
    }
}

fn wrong(origin: &str, fault: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{origin}: {fault}"))
}

/// Reads a file; returns its text and its name for messages.
fn read(option: &str, path: &Path) -> Result<(String, String), Failure> {
    let origin = format!("{option} {}", path.display());
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((text, origin)),
        Err(error) => Err(Failure::Input(format!("{origin}: {error}"))),
    }
}

/// Parses a schema; an empty one is any JSON object, as in llama.cpp.
fn schema(text: &str) -> Result<Rule, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let schema = serde_json::from_str(text);
    let schema = schema.map_err(|error| format!("expected a JSON schema: {error}"))?;
    let expected = || "expected a JSON schema, which is an object".to_owned();
    Rule::of_schema(schema).ok_or_else(expected)
}

/// Makes the constraint of each text of a run, from the rule and the reasoning budget of the
/// options.
pub(crate) struct Constraints {
    compiler: Compiler,
    arg: Option<RuleArg>,
    budget: ReasoningBudget,
    has_warned: Cell<bool>,
}

impl Constraints {
    /// Creates constraints for the vocabulary of a model.
    pub(crate) fn new(
        engine: &Engine,
        arg: Option<RuleArg>,
        budget: ReasoningBudget,
    ) -> Constraints {
        Constraints {
            compiler: Compiler::new(engine),
            arg,
            budget,
            has_warned: Cell::new(false),
        }
    }

    /// Makes the constraint of a text, after reasoning of this kind. Warns once of the parts of the
    /// rule that no constraint can enforce.
    pub(crate) fn make(
        &self,
        reasoning: Reasoning,
    ) -> Result<Option<Box<dyn Constraint>>, Failure> {
        let reasoning = reasoning.within(self.budget.clone());
        if self.arg.is_none() && !reasoning.is_limited() {
            return Ok(None);
        }
        let arg = self.arg.as_ref();
        let origin = arg.map_or("--reasoning-budget-message", |arg| &arg.origin);
        let demand = Demand {
            text: arg.map(|arg| arg.rule.clone()),
            reasoning,
            ..Demand::default()
        };
        let compiled = self.compiler.compile(&demand);
        let compiled = compiled.map_err(|error| match error {
            octavo_grammar::Error::Rule(_) => wrong(origin, error),
            other => Failure::Input(format!("{origin}: {other}")),
        })?;
        if let Some(warning) = compiled.warning
            && !self.has_warned.replace(true)
        {
            terminal::warn([format!("{origin}: {warning}")]);
        }
        Ok(compiled.constraint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        constraint: ConstraintArgs,
    }

    fn read(arguments: &[&str]) -> Result<Option<RuleArg>, Failure> {
        let words = std::iter::once(&"octavo").chain(arguments);
        let line = Line::try_parse_from(words).expect("it parses");
        assert_eq!(line.constraint.is_set(), !arguments.is_empty());
        line.constraint.read()
    }

    #[test]
    fn each_option_gives_its_rule() {
        assert!(read(&[]).expect("nothing is wrong").is_none());
        let dir = std::env::temp_dir().join(format!("octavo-rules-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("a file");
            path.to_str().expect("UTF-8").to_owned()
        };
        let schema = Rule::Schema(serde_json::json!({"type": "integer"}));
        let gbnf = "root ::= \"a\"";
        let lark = "start: \"a\"";
        let integer = r#"{"type": "integer"}"#;
        let cases = [
            ("--json-schema", integer.to_owned(), schema.clone()),
            ("--json-schema", "{}".to_owned(), Rule::JsonObject),
            ("--json-schema-file", file("s.json", integer), schema),
            ("--grammar", gbnf.to_owned(), Rule::Gbnf(gbnf.to_owned())),
            (
                "--grammar-file",
                file("g", lark),
                Rule::Lark(lark.to_owned()),
            ),
        ];
        for (option, value, rule) in cases {
            let arg = read(&[option, &value]).expect("nothing is wrong");
            assert_eq!(arg.expect("a rule").rule, rule, "{option} {value}");
        }
        std::fs::remove_dir_all(&dir).expect("it is removed");
    }

    #[test]
    fn refusals_name_the_option() {
        for (arguments, expected) in [
            (
                ["--json-schema", "[1]"],
                "--json-schema: expected a JSON schema, which is",
            ),
            (
                ["--json-schema", "{"],
                "--json-schema: expected a JSON schema: EOF",
            ),
            (["--grammar", "root ::= ("], "--grammar: "),
            (["--grammar-file", "/nowhere"], "--grammar-file /nowhere: "),
        ] {
            let failure = read(&arguments).expect_err("it is refused");
            let message = failure.message();
            assert!(message.starts_with(expected), "{message}");
        }
        let both = ["octavo", "--grammar", "a", "--json-schema", "{}"];
        assert!(Line::try_parse_from(both).is_err());
    }
}
