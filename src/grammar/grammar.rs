//! Builds grammars of whole answers.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::built::Built;
use crate::error::Error;
use crate::rule::{Demand, Rule};
use crate::schema::{self, Prepared};
use crate::vocabulary::{Vocabulary, quoted};
use crate::{call, gbnf};

/// Name of the grammar of an answer's text.
const ANSWER: &str = "answer";

/// Builds the grammar of an answer after its reasoning; `None` if anything is allowed.
pub(crate) fn whole(vocabulary: &Vocabulary, demand: &Demand) -> Result<Option<Built>, Error> {
    let text = demand.text.as_ref().map(of_rule).transpose()?;
    let leads = &demand.reasoning.leads;
    let is_led = leads.iter().any(|lead| !lead.is_empty());
    let calls = demand
        .calls
        .as_ref()
        .filter(|calls| !calls.tools.is_empty());
    let (text, calls) = match (text, calls) {
        (None, None) => return Ok(None),
        (Some(built), None) if !is_led => return Ok(Some(built)),
        (text, calls) => (text, calls),
    };
    let mut start = Vec::new();
    let mut rules = String::new();
    let mut built = Built {
        grammar: TopLevelGrammar {
            grammars: Vec::new(),
            max_tokens: None,
        },
        schemas: Vec::new(),
        rule: None,
        n_call_bytes: 0,
        unheld: Vec::new(),
    };
    let must_call = calls.is_some_and(|calls| calls.required);
    if let Some(text) = text.filter(|_| !must_call) {
        start.push(format!("{} @{ANSWER}", choice(vocabulary, leads)));
        built.schemas = text.schemas;
        built.rule = text.rule;
        built.unheld = text.unheld;
        built.grammar.grammars = text.grammar.grammars;
        for grammar in &mut built.grammar.grammars {
            grammar.name = Some(ANSWER.to_owned());
        }
    }
    if let Some(calls) = calls {
        let leads = choice(vocabulary, &demand.reasoning.call_leads);
        let of_calls = call::whole(vocabulary, calls);
        start.push(format!("{leads} calls"));
        built.n_call_bytes = of_calls.rules.len();
        rules = of_calls.rules;
        built.schemas.extend(of_calls.schemas);
        built.unheld.extend(of_calls.unheld);
    }
    let lark = format!("start: {}\n{rules}", start.join(" | "));
    built
        .grammar
        .grammars
        .insert(0, GrammarWithLexer::from_lark(lark));
    Ok(Some(built))
}

/// Returns a Lark expression for one of several texts.
fn choice(vocabulary: &Vocabulary, texts: &[String]) -> String {
    let some: Vec<String> = texts
        .iter()
        .filter(|text| !text.is_empty())
        .map(|text| vocabulary.literal(text))
        .collect();
    if some.is_empty() {
        return String::new();
    }
    let mark = if some.len() < texts.len() { "?" } else { "" };
    format!("({}){mark}", some.join(" | "))
}

/// Builds the grammar of a single rule.
fn of_rule(rule: &Rule) -> Result<Built, Error> {
    let plain = |grammar: TopLevelGrammar| Built {
        grammar,
        schemas: Vec::new(),
        rule: Some(rule.clone()),
        n_call_bytes: 0,
        unheld: Vec::new(),
    };
    Ok(match rule {
        Rule::JsonObject => of_schema(&json!({ "type": "object" })),
        Rule::Schema(schema) => of_schema(schema),
        Rule::Lark(text) => plain(TopLevelGrammar::from_lark(text.clone())),
        Rule::Gbnf(text) => {
            let lark = gbnf::to_lark(text).map_err(Error::Rule)?;
            plain(TopLevelGrammar::from_lark(lark))
        }
        Rule::Regex(pattern) => plain(TopLevelGrammar::from_regex(pattern)),
        Rule::Choice(texts) => {
            if texts.is_empty() {
                return Err(Error::Rule(
                    "expected at least one choice, got none".to_owned(),
                ));
            }
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            let lark = format!("start: {}", texts.join(" | "));
            plain(TopLevelGrammar::from_lark(lark))
        }
    })
}

fn of_schema(schema: &Value) -> Built {
    let Prepared {
        schema,
        checked,
        unheld,
    } = schema::prepare(schema);
    Built {
        grammar: TopLevelGrammar::from_json_schema(schema::compact(schema)),
        schemas: vec![checked],
        rule: None,
        n_call_bytes: 0,
        unheld,
    }
}
