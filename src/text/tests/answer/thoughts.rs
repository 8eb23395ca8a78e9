//! Separation of reasoning and content.

use octavo_text::chat::answer::{AnswerParser, CallFormat, Wants};

use super::{ALL, Answer, read, template, tools};

#[test]
fn thoughts_are_told_from_what_is_said() {
    let split = |prompt: &str, wants: Wants, parts: &[&str]| {
        let answer = read(
            AnswerParser::new("<think>", prompt, wants),
            parts.iter().copied(),
        );
        (answer.content, answer.reasoning)
    };
    let pair = |content: &str, reasoning: &str| (content.to_owned(), reasoning.to_owned());
    let parts = ["<thi", "nk>\na < b", "\n</", "think>\n\nc</t"];
    assert_eq!(split("user: ", ALL, &parts), pair("c</t", "a < b"));
    let parts = ["a < b</think>", "c</t "];
    assert_eq!(split("<think>\n", ALL, &parts), pair("c</t ", "a < b"));
    assert_eq!(split("<think>", ALL, &["a", " </th"]), pair("", "a </th"));
    // Separation was not requested.
    let parts = ["<think>\na\n</think>\n b"];
    let joined = parts.concat();
    assert_eq!(split("", Wants::default(), &parts), pair(&joined, ""));
    let tools = Wants {
        tools: true,
        reasoning: false,
    };
    assert_eq!(split("", tools, &parts), pair(&joined, ""));
    // The marker that the prompt ends with belongs to the thought, as in llama-server.
    let parts = ["a\n</think>", "\n b"];
    for wants in [tools, Wants::default()] {
        let whole = pair("<think>\na\n</think>\n b", "");
        assert_eq!(split("user: <think>\n", wants, &parts), whole);
    }
    // Without a text there is no thought.
    assert_eq!(split("<think>", Wants::default(), &[]), pair("", ""));
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let parser = AnswerParser::new("<think></think><tool_call>", "<think>", tools);
    let answer = read(parser, [call]);
    assert_eq!((answer.content.as_str(), answer.calls.len()), ("", 1));
}

#[test]
fn other_tags_are_known_too() {
    for (template, text) in [
        ("[THINK] [/THINK]", "[THINK]a[/THINK]b"),
        ("<seed:think></seed:think>", "<seed:think>a</seed:think>b"),
        (
            "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
            "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        ),
        (
            template(CallFormat::Harmony),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant\
             <|channel|>final<|message|>b<|return|>",
        ),
    ] {
        let answer = read(AnswerParser::new(template, "", ALL), [text]);
        assert_eq!(
            (answer.content.as_str(), answer.reasoning.as_str()),
            ("b", "a")
        );
    }
}

fn split(template: &str, prompt: &str, text: &str) -> Answer {
    let new = || AnswerParser::new(template, prompt, ALL).with_tools(&tools());
    let whole = read(new(), [text]);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let by_character = read(new(), characters.iter().map(String::as_str));
    assert_eq!(whole, by_character, "{text}");
    whole
}

/// Returns content and reasoning.
fn pair(answer: &Answer) -> (&str, &str) {
    (&answer.content, &answer.reasoning)
}

#[test]
fn an_answer_that_names_the_tags_keeps_them() {
    let named = "Use <think> to open and </think> to close. Bye.";
    let code = "```py\nif '<think>' in s: s = s.split('</think>')[1]\n```";
    for template in ["", "<think></think>", "<tool_call> <think></think>"] {
        assert_eq!(pair(&split(template, "", named)), (named, ""));
        let text = format!("<think>\nok\n</think>\n\n{code}");
        assert_eq!(pair(&split(template, "", &text)), (code, "ok"));
        let text = format!("ok\n</think>\n\n{named}");
        assert_eq!(pair(&split(template, "<think>\n", &text)), (named, "ok"));
    }
    for (template, text) in [
        ("[THINK][/THINK]", "I write [THINK] and [/THINK]."),
        (
            "<seed:think></seed:think>",
            "I write <seed:think> and </seed:think>.",
        ),
        (
            "<think></think><response></response>",
            "I write <response> and </response>.",
        ),
    ] {
        assert_eq!(split(template, "", text).content, text);
    }
}

#[test]
fn a_thought_that_is_not_closed_is_whole() {
    let text = "I count: 1, 2, 3.\n\n";
    let template = "<think></think>";
    assert_eq!(split(template, "<think>\n", text).reasoning, text);
    let opened = format!("<think>{text}");
    assert_eq!(split(template, "", &opened).reasoning, text);
    // At the beginning of an answer, the end marker of an unopened thought is dropped.
    let answer = split("<mm:think></mm:think>", "", "</mm:think>Hi </mm:think>");
    assert_eq!(pair(&answer), ("Hi </mm:think>", ""));
}

#[test]
fn thoughts_of_other_models_are_told_from_content() {
    for (template, text) in [
        (
            "<think:opensource></think:opensource>",
            "<think:opensource>a</think:opensource>b",
        ),
        (
            "'<think{}>'.format(HYTK) ':opensource'",
            "<think:opensource>a</think:opensource>b",
        ),
        (
            "<|open|>think<|sep|> <|close|> <|end_of_msg|> open_tag('think')",
            "<|open|>think<|sep|>a<|open|>response<|sep|>b<|close|>response<|sep|>\
             <|close|>message<|sep|><|end_of_msg|>",
        ),
        (
            "<|think|><|content|><|end|><|tool_call:begin|><|tool_call:args|>",
            "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>",
        ),
        (
            "<think></think><response></response>",
            "<think>a</think><response>b</response>",
        ),
        (
            "Here are my reasoning steps: [BEGIN FINAL RESPONSE]",
            "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\nb",
        ),
        (
            template(CallFormat::Muse),
            " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>",
        ),
        (
            "<|channel>thought <channel|> <|tool_call>call:",
            "<|channel><|channel>thought\na<channel|>b<|channel>thought\n<channel|><channel|>",
        ),
        (
            "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
            "<|START_THINKING|>a<|START_TEXT|>b<|END_TEXT|>",
        ),
    ] {
        assert_eq!(pair(&split(template, "", text)), ("b", "a"), "{text}");
    }
}

#[test]
fn headers_say_whom_a_message_is_for() {
    let harmony = template(CallFormat::Harmony);
    let end = "<|start|>assistant<|channel|>final<|message|>b<|return|>";
    for text in [
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>a<|end|>",
        // An unknown tool.
        "<|channel|>commentary to=python <|constrain|>code<|message|>a<|call|>",
    ] {
        let text = format!("{text}{end}");
        assert_eq!(pair(&split(harmony, "", &text)), ("b", "a"), "{text}");
    }
    // A truncated header is dropped, and text without a header is content.
    assert_eq!(split(harmony, "", "<|channel|>comm").content, "");
    assert_eq!(split(harmony, "", "a to=b").content, "a to=b");
    let functionary = template(CallFormat::Functionary);
    let answer = split(functionary, "", "all\nHi\n>>>f\n{}");
    assert_eq!((answer.content.as_str(), answer.calls.len()), ("Hi", 1));
}

#[test]
fn a_call_inside_an_open_thought_is_a_call() {
    for (open, template, call) in [
        (
            "<think>",
            "<think></think><tool_call><function=<parameter=",
            "<tool_call>\n<function=f>\n<parameter=city>\nBern\n</parameter>\n</function>\n\
             </tool_call>",
        ),
        (
            "<think>",
            "<think></think><tool_call><arg_key>",
            "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
        ),
        (
            "<|START_THINKING|>",
            "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
            "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"city\": \"Bern\"}}]\
             <|END_ACTION|>",
        ),
    ] {
        let text = format!("I look.\n{call}");
        let answer = split(template, open, &text);
        assert_eq!(answer.calls.len(), 1, "{template}");
        assert_eq!(pair(&answer), ("", "I look."));
        // Calls of unknown functions, and text that only mentions the tags, are not calls.
        let named = "I could <function=g> or <tool_call> or {\"name\": \"f\"}.";
        let answer = split(template, open, named);
        assert_eq!((answer.calls.len(), pair(&answer)), (0, ("", named)));
    }
}

#[test]
fn calls_that_thoughts_name_are_none() {
    for (thoughts, template, call) in [
        (
            ("<think>", "</think>"),
            "<tool_call>",
            "<tool_call>{\"name\": \"now\"}</tool_call>",
        ),
        (
            ("[THINK]", "[/THINK]"),
            "[TOOL_CALLS][ARGS]",
            "[TOOL_CALLS]now[ARGS]{}",
        ),
        (
            ("<think>", "</think>"),
            "<|tool_call_start|>",
            "<|tool_call_start|>[now()]<|tool_call_end|>",
        ),
    ] {
        let (open, close) = thoughts;
        let template = format!("{open}{close}{template}");
        let answer = split(&template, "", &format!("{open}a {call} b{close}{call}"));
        assert_eq!(pair(&answer), ("", format!("a {call} b").as_str()));
        assert_eq!(answer.calls.len(), 1);
    }
}

#[test]
fn a_call_ends_the_thought_that_it_stands_in() {
    let template = "<think></think><tool_call><arg_key>";
    let call = "<tool_call>now\n</tool_call>";
    for end in ["", "\n</think>\n"] {
        let answer = split(template, "<think>\n", &format!("a\n{call}{end}\nb"));
        assert_eq!(pair(&answer), ("b", "a"));
        assert_eq!(answer.calls.len(), 1);
    }
}

#[test]
fn control_tokens_around_content_are_left_out_of_what_stays_together() {
    let split = |template: &str, text: &str| {
        let parser = AnswerParser::new(template, "", Wants::default());
        read(parser, [text]).content
    };
    let harmony = template(CallFormat::Harmony);
    let thought = "<|channel|>analysis<|message|>a<|end|>";
    let text = format!("{thought}<|start|>assistant<|channel|>final<|message|>b<|return|>");
    assert_eq!(split(harmony, &text), format!("{thought}b"));
    let cohere = "<|START_THINKING|><|END_THINKING|><|START_ACTION|>";
    let thought = "<|START_THINKING|>a<|END_THINKING|>";
    let text = format!("{thought}<|START_RESPONSE|>b<|END_RESPONSE|>");
    assert_eq!(split(cohere, &text), format!("{thought}b"));
}
