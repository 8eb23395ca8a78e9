//! Limited reasoning.

use octavo_grammar::{Demand, Reasoning, ReasoningBudget, Rule};
use octavo_text::tokenizer::EncodeOptions;
use serde_json::json;

use crate::support::{Pen, compiler, engine};

/// Template of a model with reasoning.
const TEMPLATE: &str = "{% if x %}<think></think>{% endif %}";

/// Returns the demand for a text with this many tokens of reasoning at most.
fn demand(template: &str, prompt: &str, tokens: usize, message: &str) -> Demand {
    let budget = ReasoningBudget {
        tokens: Some(tokens),
        message: message.to_owned(),
    };
    Demand {
        reasoning: Reasoning::of(template, prompt).within(budget),
        ..Demand::default()
    }
}

/// Returns the only token that may come next; `None` if there are several.
fn forced(pen: &mut Pen) -> Option<u32> {
    assert_eq!(
        pen.0.allows_all(),
        pen.0.allowed().expect("known").is_none()
    );
    let allowed = pen.0.allowed().expect("it can tell")?;
    let n_vocab = u32::try_from(engine().hparams().n_vocab()).expect("32 bits");
    let mut all = (0..n_vocab).filter(|id| allowed.contains(*id));
    let first = all.next();
    first.filter(|_| all.next().is_none())
}

/// Writes all that is forced; returns it as text.
fn finish(pen: &mut Pen) -> String {
    let mut bytes = Vec::new();
    while let Some(id) = forced(pen) {
        bytes.extend_from_slice(engine().tokenizer().piece(id).expect("a token"));
        pen.0.accept(id).expect("it may come");
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Returns the number of tokens of a text that is written character by character.
fn count(text: &str) -> usize {
    let encode = |c: char| {
        let ids = engine()
            .tokenizer()
            .encode(c.to_string().as_bytes(), EncodeOptions::PIECE);
        ids.expect("tokens").len()
    };
    text.chars().map(encode).sum()
}

#[test]
fn reasoning_is_closed_when_its_budget_is_used_up() {
    let text = "Well, I count";
    for message in ["", " ... that is enough.\n"] {
        let mut pen = Pen::new(&demand(TEMPLATE, "<think>", count(text), message));
        let (most, last) = text.split_at(text.len() - 1);
        assert_eq!(pen.write(most), "");
        assert_eq!(finish(&mut pen), "");
        assert_eq!(pen.write(last), "");
        assert_eq!(finish(&mut pen), format!("{message}</think>"));
        // there is no second block, and the answer is as long as it likes
        assert_eq!(pen.write("<think>".repeat(9).as_str()), "");
        assert!(pen.may_end() && pen.may_go_on());
    }
}

#[test]
fn reasoning_that_ends_by_itself_is_left_alone() {
    let text = "short</think>";
    let mut pen = Pen::new(&demand(TEMPLATE, "<think>", count(text), "no"));
    assert_eq!(pen.write(text), "");
    assert_eq!(pen.write("and a long answer, which has no limit"), "");
    assert_eq!(finish(&mut pen), "");
}

#[test]
fn tokens_before_reasoning_do_not_count() {
    let limit = demand(TEMPLATE, "assistant\n", 3, "");
    let mut pen = Pen::new(&limit);
    assert_eq!(pen.write("\n <think>ab"), "");
    assert_eq!(finish(&mut pen), "");
    assert_eq!(pen.write("c"), "");
    assert_eq!(finish(&mut pen), "</think>");
    let mut pen = Pen::new(&limit);
    assert_eq!(
        pen.write("an answer that speaks of <think> and goes on"),
        ""
    );
    assert_eq!(finish(&mut pen), "");
}

#[test]
fn no_budget_closes_reasoning_at_once() {
    let mut pen = Pen::new(&demand(TEMPLATE, "<think>\n", 0, ""));
    assert_eq!(finish(&mut pen), "</think>");
    let mut pen = Pen::new(&demand(TEMPLATE, "assistant\n", 0, "No."));
    assert_eq!(pen.write("<think>"), "");
    assert_eq!(finish(&mut pen), "No.</think>");
}

#[test]
fn a_character_is_completed_first() {
    let text = "🦀";
    let n = count(text);
    assert!(n > 1, "the vocabulary has no token for it");
    let mut pen = Pen::new(&demand(TEMPLATE, "<think>", n - 1, ""));
    assert_eq!(pen.write(text), "");
    assert_eq!(finish(&mut pen), "</think>");
}

#[test]
fn every_block_of_a_model_that_repeats_them_has_the_budget() {
    let template = "<|channel|>analysis<|message|> <|channel|>commentary to=<|message|><|end|>";
    let mut pen = Pen::new(&demand(template, "<|start|>assistant", 4, ""));
    for _ in 0..2 {
        assert_eq!(pen.write("<|channel|>analysis<|message|>1234"), "");
        assert_eq!(finish(&mut pen), "<|end|>");
        assert_eq!(pen.write("<|start|>assistant"), "");
    }
    // remarks before calls are no reasoning
    assert_eq!(
        pen.write("<|channel|>commentary<|message|>12345678<|end|>"),
        ""
    );
    assert_eq!(
        pen.write("<|start|>assistant<|channel|>final<|message|>12345"),
        ""
    );
    assert_eq!(finish(&mut pen), "");
}

#[test]
fn the_rule_of_the_answer_holds_after_it() {
    let demand = Demand {
        text: Some(Rule::Schema(json!({ "const": { "a": 42 } }))),
        ..demand(TEMPLATE, "<think>", 3, "Enough")
    };
    let mut pen = Pen::new(&demand);
    assert_eq!(pen.write("ab"), "");
    let mut other = Pen(pen.0.fork());
    assert_eq!(pen.write("c"), "");
    assert!(!pen.0.closes_at_end(), "its end is forced already");
    assert_eq!(finish(&mut pen), "Enough</think>");
    assert_eq!(pen.write("{\"a\": 43"), "3");
    // a model that would end inside its reasoning closes it without the message
    assert!(other.0.closes_at_end());
    let first = other.0.close().expect("a token");
    other.0.accept(first).expect("it may come");
    assert!("</think>".ends_with(&finish(&mut other)));
    assert_eq!(other.write("{\"a\": 42}"), "");
    assert!(other.may_end());
}

#[test]
fn without_reasoning_there_is_nothing_to_limit() {
    for (template, prompt) in [("{{ x }}", ""), (TEMPLATE, "<think>\n\n</think>\n\n")] {
        let demand = demand(template, prompt, 1, "");
        assert!(!demand.reasoning.is_limited());
        let compiled = compiler().compile(&demand).expect("it compiles");
        assert!(compiled.constraint.is_none());
    }
}
