//! For any model output: no text is lost, the result does not depend on how the text is split, and
//! parsing takes time linear in the text.

use std::time::Duration;

use cpu_time::ThreadTime;
use octavo_text::chat::answer::CallFormat::*;
use octavo_text::chat::answer::{AnswerParser, Wants};
use proptest::prelude::*;

use super::{FORMATS, parser, read, template};

/// Fragments that answers are composed of, in any order.
const WORDS: [&str; 76] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"name\": \"f\", \"parameters\": ",
    "{\"x\": 1}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    ":",
    " ",
    "\n",
    "a",
    "é",
    "[TOOL_CALLS]",
    "[ARGS]",
    "f",
    "<function=f>",
    "<function=",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<invoke name=\"f\">",
    "<parameter name=\"a\">",
    "</invoke>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "\n```json\n",
    "<｜tool▁call▁end｜>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|python_tag|>",
    "<",
    "<tool",
    "\"name\"",
    "\"arguments\"",
    "<|message|>",
    "<|tool_call>call:f{",
    "<|\"|>",
    "a:",
    "<tool_call|>",
    "<param name=\"a\">",
    "</param>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "f(",
    "a=",
    "'",
    ")",
    "<|channel|>",
    "<|start|>assistant",
    " to=functions.f",
    " to=self",
    "<|end|>",
    "<|eom|>",
    "analysis",
    ">>>",
    "all",
    "f\n",
    "]<]minimax[>[",
    "<invoke name=\"f\">",
    "<city>",
    "</city>",
    "<atem:invoke name=\"f\">",
    "<|open|>call tool=\"f\"<|sep|>",
    "<|tool_call|>",
    "<![CDATA[",
];

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS[..]), 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn splits_do_not_matter(
        text in text(),
        format in prop::sample::select(&FORMATS[..]),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = read(parser(format), [text.as_str()]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.retain(|cut| text.is_char_boundary(*cut));
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(read(parser(format), parts), whole.clone());
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters = characters.iter().map(String::as_str);
        prop_assert_eq!(read(parser(format), characters), whole);
    }

    #[test]
    fn nothing_is_lost(text in text(), format in prop::sample::select(&FORMATS[..])) {
        let tools = Wants { tools: true, reasoning: false };
        let answer = read(AnswerParser::new(template(format), "", tools), [text.as_str()]);
        let markers = format!("{format:?}");
        // Control tokens without a meaning of their own, and message headers, are left out.
        let marked = matches!(
            format,
            Cohere | Harmony | Muse | Functionary | Solar | KimiK3 | Gemma
        );
        if answer.calls.is_empty() && !marked {
            prop_assert_eq!(&answer.content, &text, "{}", markers);
        }
        // Content is a subsequence of the text.
        let mut rest = text.chars();
        for c in answer.content.chars() {
            prop_assert!(rest.any(|other| other == c));
        }
        let thoughts = Wants { tools: false, reasoning: true };
        let answer = read(AnswerParser::new("", "", thoughts), [text.as_str()]);
        prop_assert!(answer.calls.is_empty());
        let bare = |text: &str| {
            text.replace("<think>", "").replace("</think>", "")
                .chars().filter(|c| !c.is_whitespace()).count()
        };
        prop_assert_eq!(bare(&answer.content) + bare(&answer.reasoning), bare(&text));
    }
}

#[test]
fn hostile_answers_take_linear_time() {
    for (format, pattern) in [
        (Hermes, "<tool_call>{\"name\": \"f\", "),
        (Hermes, "<tool_call>{\"arguments\":{\""),
        (Hermes, "<tool_call>{\"arguments\": \""),
        (Hermes, "<tool_call>{\"id\": \""),
        (Hermes, "<tool_call"),
        (Hermes, "<tool_call>\n\n\n"),
        (Hermes, " "),
        (Hermes, "<think>"),
        (Hermes, "<think> </think> "),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        ),
        (Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}"),
        (
            Hermes,
            "<tool_call>[{\"name\":\"f\",\"arguments\":{},\"id\":[[",
        ),
        (Json, "{\"name\": {"),
        (Json, "{\"name\": \"f\", \"arguments\": {\"a"),
        (MistralArgs, "[TOOL_CALLS]aaaaaaaa"),
        (FunctionTag, "<function=aaaa"),
        (FunctionTag, "<function=f><parameter=city>\n"),
        (FunctionTag, "<function=f><parameter=other>\n</para"),
        (ArgKey, "<tool_call>f<arg_key>"),
        (DeepSeek, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
        (Gemma, "<|tool_call>call:f{a:"),
        (Gemma, "<|tool_call>call:f{a:<|\"|>"),
        (Gemma, "<|tool_call>call:f{a:[[["),
        (Lfm2, "<|tool_call_start|>[f(a='"),
        (Lfm2, "<|tool_call_start|>[f(a=[[["),
        (Pythonic, "[f(a={'a':"),
        (
            MiniMaxM3,
            "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>",
        ),
        (
            MiniMaxM3,
            "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>]<]minimax[",
        ),
        (Harmony, "<|channel|>"),
        (Harmony, "<|channel|>analysis to=functions.f<|message|>{"),
        (Muse, "<|start|>assistant to=f<|message|>"),
        (Functionary, ">>>f"),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [[",
        ),
        (
            ParamTag,
            "<function name=\"f\"><param name=\"city\"><![CDATA[",
        ),
        (KimiK3, "<|open|>tools<|sep|>"),
        (FunctionTag, "<tool_call>"),
        (FunctionTag, "<think><tool_call>\n<function=g>"),
    ] {
        let text = pattern.repeat(200_000 / pattern.len());
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let start = ThreadTime::now();
        let whole = read(parser(format), [text.as_str()]);
        let by_character = read(parser(format), characters.iter().map(String::as_str));
        let took = start.elapsed();
        assert!(
            took < Duration::from_secs(3),
            "{format:?} {pattern}: took {took:?}"
        );
        assert!(whole == by_character, "{format:?} {pattern}");
        println!("{format:?} {pattern:?}: {took:?}");
    }
}
