//! Tokens that end generation, and special tokens: found by the documented rule, in linear time.

use cpu_time::ThreadTime;
use proptest::prelude::*;

use super::{CONTROL, FIRST, NORMAL, USER_DEFINED, bpe, ids, open, parsed};

#[test]
fn ends_of_generation_by_key_and_by_text() {
    let more = [
        ("<|im_end|>", NORMAL),
        ("<|endoftext|>", CONTROL),
        ("<|fim_pad|>", CONTROL),
        ("<|start|>", CONTROL),
        ("x", CONTROL),
    ];
    let more: Vec<_> = more.into_iter().filter(|(text, _)| *text != "x").collect();
    let tokenizer = open(bpe(&more, &[])).expect("it loads");
    assert_eq!(tokenizer.eog_ids(), [FIRST, FIRST + 1, FIRST + 2]);
    assert_eq!(tokenizer.eot(), Some(FIRST));
    assert!(
        tokenizer.is_special(FIRST),
        "a control token whatever its type says"
    );
    assert!(!tokenizer.is_special(FIRST + 3), "always shown");
    let harmony = [
        ("<|return|>", CONTROL),
        ("<|call|>", CONTROL),
        ("<|end|>", CONTROL),
    ];
    let tokenizer = open(bpe(&harmony, &[])).expect("it loads");
    assert_eq!(tokenizer.eog_ids(), [FIRST, FIRST + 1]);
    let gemma = [("</s>", NORMAL), ("<|tool_response>", CONTROL)];
    let tokenizer = open(bpe(&gemma, &[])).expect("it loads");
    assert_eq!(tokenizer.eog_ids(), [FIRST + 1]);
}

#[test]
fn control_tokens_only_on_request_user_defined_ones_always() {
    let tokenizer = open(bpe(&[("<c>", CONTROL), ("<u>", USER_DEFINED)], &[])).expect("it loads");
    assert_eq!(ids(&tokenizer, "<u>"), [FIRST + 1]);
    assert_eq!(ids(&tokenizer, "<c>").len(), 3);
    assert_eq!(parsed(&tokenizer, "<c><u>"), [FIRST, FIRST + 1]);
    assert_eq!(tokenizer.decode(&[FIRST, FIRST + 1], false), b"<u>");
    assert_eq!(tokenizer.decode(&[FIRST, FIRST + 1], true), b"<c><u>");
}

/// Finds special tokens by the rule literally: for each token, longest first, every occurrence in
/// the remaining text.
fn naive(specials: &[(String, u32)], text: &str) -> Vec<Result<u32, String>> {
    let mut parts = vec![Err(text.to_owned())];
    for (special, id) in specials {
        let split = |part: Result<u32, String>| match part {
            Ok(id) => vec![Ok(id)],
            Err(text) => {
                let pieces = text
                    .split(special.as_str())
                    .map(|piece| Err(piece.to_owned()));
                let mut out: Vec<_> = pieces.flat_map(|piece| [piece, Ok(*id)]).collect();
                out.pop();
                out
            }
        };
        parts = parts.into_iter().flat_map(split).collect();
    }
    parts
}

proptest! {
    #[test]
    fn special_tokens_are_found_as_by_a_naive_search(
        specials in prop::collection::btree_set("[abc]{2,6}", 0..8),
        text in "[abc]{0,200}",
    ) {
        let marked = specials.iter().map(|text| (text.as_str(), USER_DEFINED));
        let more: Vec<(&str, i32)> = marked.collect();
        let tokenizer = open(bpe(&more, &[])).expect("it loads");
        let mut ordered: Vec<(String, u32)> = specials.iter().cloned().zip(FIRST..).collect();
        ordered.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        let single = |c: char| tokenizer.token_to_id(c.to_string().as_bytes()).expect("a token");
        let expected: Vec<u32> = naive(&ordered, &text).into_iter().flat_map(|part| match part {
            Ok(id) => vec![id],
            Err(text) => text.chars().map(single).collect(),
        }).collect();
        prop_assert_eq!(ids(&tokenizer, &text), expected);
    }
}

#[test]
fn special_tokens_that_eat_white_space() {
    let tokenizer = |name: &str, pre: &str| {
        let mut writer = bpe(
            &[("<mask>", CONTROL), ("</s>", CONTROL), ("<s>", CONTROL)],
            &[],
        );
        writer
            .set("general.name", name)
            .set("tokenizer.ggml.pre", pre);
        open(writer).expect("it loads")
    };
    let a = 0x61 - 0x21;
    let space = 94;
    let (mask, end, begin) = (FIRST, FIRST + 1, FIRST + 2);
    assert_eq!(
        parsed(&tokenizer("any", "gpt-2"), "a <mask> a"),
        [a, space, mask, space, a]
    );
    assert_eq!(
        parsed(&tokenizer("any", "jina-v2-de"), "a \n <mask> a"),
        [a, mask, space, a]
    );
    assert_eq!(
        parsed(
            &tokenizer("Phi-3 mini", "gpt-2"),
            "a </s> \n a<s> a</s>  </s>"
        ),
        [a, space, end, a, begin, space, a, end, end]
    );
}

#[test]
fn a_long_run_of_nested_special_tokens_stays_linear() {
    let runs: Vec<String> = (2..32).map(|n| " ".repeat(n)).collect();
    let more: Vec<(&str, i32)> = runs
        .iter()
        .map(|run| (run.as_str(), USER_DEFINED))
        .collect();
    let tokenizer = open(bpe(&more, &[])).expect("it loads");
    let seconds = |n: usize| {
        let start = ThreadTime::now();
        let ids = ids(&tokenizer, &" ".repeat(n));
        let took = start.elapsed();
        assert_eq!(ids.len(), n / 31 + 1);
        took.as_secs_f64()
    };
    // take the best of several runs of each: speed varies from one moment to the next
    let times = [(); 3].map(|()| (seconds(1 << 16), seconds(1 << 18)));
    let [part, whole] = [times.map(|t| t.0), times.map(|t| t.1)]
        .map(|t| t.into_iter().fold(f64::INFINITY, f64::min));
    // 4 times as long if linear, 16 times if quadratic
    assert!(whole < 8.0 * part, "a quarter took {part} s, all {whole} s");
}
