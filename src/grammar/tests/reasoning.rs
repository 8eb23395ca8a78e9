//! Rules that are enforced after the model's reasoning.

use octavo_grammar::{Demand, Reasoning, Rule};
use octavo_text::chat::answer::CallFormat;
use serde_json::json;

use crate::support::{Pen, engine, meets};

/// Template of a model with reasoning.
const TEMPLATE: &str = "{% if x %}<think></think>{% endif %}";

fn demand(prompt: &str) -> Demand {
    Demand {
        text: Some(Rule::Schema(json!({ "const": { "a": 42 } }))),
        reasoning: Reasoning::of(TEMPLATE, prompt),
        ..Demand::default()
    }
}

#[test]
fn a_rule_holds_behind_the_thought_that_the_prompt_has_opened() {
    let demand = demand("<|im_start|>assistant\n<think>\n");
    assert!(meets(&demand, "Well, {I} count.\n</think>\n\n{\"a\": 42}"));
    assert!(meets(&demand, "</think>{\"a\": 42}"));
    let mut pen = Pen::new(&demand);
    // reasoning is not the answer, even if it looks like one
    assert_eq!(pen.write("{\"a\": 42}"), "");
    assert!(!pen.may_end());
    assert_eq!(pen.write("</thin</think>no"), "no");
    assert_eq!(pen.write("{\"a\": 43"), "3");
}

#[test]
fn white_space_behind_a_thought_is_bounded() {
    let mut pen = Pen::new(&demand("<think>"));
    assert_eq!(pen.write(&format!("</think>{}", "\n".repeat(9))), "\n");
    assert_eq!(pen.write("{\"a\": 42}"), "");
    assert!(pen.may_end());
}

#[test]
fn a_rule_holds_at_once_where_the_prompt_has_closed_the_thought() {
    let demand = demand("<think>\n\n</think>\n\n");
    assert!(meets(&demand, "{\"a\": 42}"));
    assert_eq!(Pen::new(&demand).write("<think>"), "<think>");
}

#[test]
fn a_model_that_opens_thoughts_itself_may_think_or_not() {
    let demand = demand("<|im_start|>assistant\n");
    assert!(meets(&demand, "{\"a\": 42}"));
    assert!(meets(&demand, "<think>\nhm <b>\n</think>\n\n{\"a\": 42}"));
    assert_eq!(Pen::new(&demand).write("<thumb"), "umb");
    // no second reasoning block
    let mut pen = Pen::new(&demand);
    assert_eq!(pen.write("<think>a</think><think>"), "<think>");
}

#[test]
fn a_rule_that_begins_as_a_thought_does_is_told_apart() {
    let demand = Demand {
        text: Some(Rule::Choice(vec![
            "<that>".to_owned(),
            "<think!".to_owned(),
        ])),
        reasoning: Reasoning::of(TEMPLATE, "assistant\n"),
        ..Demand::default()
    };
    for text in ["<that>", "<think!", "<think>x</think>\n<that>"] {
        assert!(meets(&demand, text), "{text}");
    }
    assert!(!meets(&demand, "<think>"));
}

#[test]
fn channels_come_before_the_answer_of_gpt_oss() {
    let template = "<|channel|>analysis<|message|> <|channel|>commentary to=<|message|><|end|>";
    assert_eq!(CallFormat::of(template), CallFormat::Harmony);
    let demand = Demand {
        text: Some(Rule::Schema(json!({ "type": "integer" }))),
        reasoning: Reasoning::of(template, "<|start|>assistant"),
        ..Demand::default()
    };
    let last = "<|channel|>final<|message|>7";
    let thought = "<|channel|>analysis<|message|>I count.<|end|><|start|>assistant";
    assert!(meets(&demand, last));
    assert!(meets(&demand, &format!("{thought}{last}")));
    assert!(meets(&demand, &format!("{thought}{thought}{last}")));
    let with_type = "<|channel|>final <|constrain|>json<|message|>7";
    assert!(meets(&demand, with_type));
    assert!(!meets(&demand, "7"));
    assert!(!meets(&demand, thought));
}

#[test]
fn forks_go_their_own_ways() {
    let mut pen = Pen::new(&demand("<think>"));
    assert_eq!(pen.write("a</thi"), "");
    let mut other = Pen(pen.0.fork());
    assert_eq!(pen.write("nk>{"), "");
    assert_eq!(other.write("s</think>{\"a\": 42}"), "");
    assert!(other.may_end() && !pen.may_end());
}

#[test]
fn a_model_that_would_end_inside_its_thought_closes_it() {
    let mut pen = Pen::new(&demand("<think>"));
    assert_eq!(pen.write("enough"), "");
    assert!(!pen.may_end() && pen.0.closes_at_end());
    let mut next = pen.0.close();
    while let Some(id) = next {
        assert!(!pen.0.closes_at_end());
        assert_eq!(pen.write_first(&[id]), Some(id));
        let allowed = pen.0.allowed().expect("it can tell").expect("not all");
        let n_vocab = u32::try_from(engine().hparams().n_vocab()).expect("32 bits");
        let all: Vec<u32> = (0..n_vocab).filter(|id| allowed.contains(*id)).collect();
        next = (all.len() == 1).then(|| all[0]);
    }
    assert_eq!(pen.write("{\"a\": 42}"), "");
    assert!(pen.may_end());
}
