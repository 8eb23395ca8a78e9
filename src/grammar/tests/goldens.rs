//! Grammars against llama.cpp's verdicts: which are grammars, which texts they take, and which
//! tokens may come next.

use octavo_fixtures::shared;
use octavo_grammar::{Demand, Rule};
use serde_json::Value;

use crate::support::{Pen, compiler, engine};

fn cases() -> Option<Vec<Value>> {
    let path = shared("feat/samplers/gbnf.json")?;
    let text = std::fs::read_to_string(path).expect("a table");
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// Returns what differs in the texts of a case.
fn texts(demand: &Demand, case: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for text in case["texts"].as_array().into_iter().flatten() {
        let written = text["text"].as_str().expect("a text");
        let mut pen = Pen::new(demand);
        let rest = pen.write(written);
        let result = match (rest.is_empty(), pen.may_end()) {
            (true, true) => "accepted",
            (true, false) => "incomplete",
            (false, _) => "refused",
        };
        let taken = written.chars().count() - rest.chars().count();
        let at = text["at"].as_u64();
        if text["result"] != result || at.is_some_and(|at| at != taken as u64) {
            wrong.push(format!("{written:?}: {result} at {taken}, expected {text}"));
        } else if let Some(may_go_on) = text["may_go_on"].as_bool()
            && pen.may_go_on() != may_go_on
        {
            wrong.push(format!(
                "{written:?}: may go on: {}, expected {text}",
                !may_go_on
            ));
        }
    }
    wrong
}

/// Returns what differs in the tokens of a case that may come next.
fn next(demand: &Demand, case: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let n_vocab = u32::try_from(engine().hparams().n_vocab()).expect("32 bits");
    for one in case["next"].as_array().into_iter().flatten() {
        let mut pen = Pen::new(demand);
        let tokens: Vec<u32> = serde_json::from_value(one["tokens"].clone()).expect("ids");
        let is_taken = tokens.iter().all(|id| pen.write_first(&[*id]).is_some());
        let ours: Option<Vec<u32>> = is_taken.then(|| {
            let allowed = pen.0.allowed().expect("it can tell");
            let may_come = |id: &u32| allowed.as_ref().is_none_or(|set| set.contains(*id));
            (0..n_vocab).filter(may_come).collect()
        });
        // llama.cpp takes bytes that begin no character, and never a zero byte
        let differs = |id: &u32| {
            let piece = engine().tokenizer().piece(*id).unwrap_or_default();
            matches!(piece.first(), Some(0 | 0xc0 | 0xc1 | 0xf5..))
        };
        let same = |ids: Vec<u32>| {
            ids.into_iter()
                .filter(|id| !differs(id))
                .collect::<Vec<_>>()
        };
        let ours = ours.map(same);
        let theirs: Option<Vec<u32>> = serde_json::from_value(one["allowed"].clone()).ok();
        let theirs = theirs.map(same);
        if ours != theirs {
            wrong.push(format!("after {tokens:?}: {ours:?}, expected {theirs:?}"));
        }
    }
    wrong
}

/// Grammars that take no text at all, which are refused here.
const NOTHING: [&str; 3] = ["root ::= [^]", "root ::= []", "root ::= [z-a]"];

#[test]
fn verdicts_are_those_of_llama_cpp() {
    let Some(cases) = cases() else {
        return;
    };
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let grammar = case["grammar"].as_str().expect("a grammar");
        let demand = Demand::from(Rule::Gbnf(grammar.to_owned()));
        let is_grammar = compiler().compile(&demand).is_ok();
        if NOTHING.contains(&grammar) {
            assert!(!is_grammar, "{grammar}");
            continue;
        }
        let mut here = Vec::new();
        if case["parsed"]
            .as_bool()
            .is_some_and(|parsed| parsed != is_grammar)
        {
            here.push(format!("a grammar: {is_grammar}"));
        } else if is_grammar {
            here = texts(&demand, case);
            here.extend(next(&demand, case));
        }
        wrong.extend(
            here.into_iter()
                .map(|what| format!("{number} {grammar:?}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() > 70, "{} grammars", cases.len());
}
