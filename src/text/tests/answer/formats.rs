//! Every format of calls: what templates write, and what models make of it.

use octavo_text::chat::answer::CallFormat::{self, *};
use serde_json::Value;

use super::{FORMATS, answer};

/// Calls of `f` with city = "Bern", days = 2 and of `now` without arguments, as templates write
/// them; for formats that know one call at a time, the first alone.
const TWO_CALLS: &[(CallFormat, &str)] = &[
    (
        Hermes,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\n\
         </tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        Hermes,
        "<tool_call>{\"arguments\": {\"city\": \"Bern\", \"days\": 2}, \"id\": [1], \"name\": \
         \"f\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>",
    ),
    (
        Llama3,
        "{\"name\": \"f\", \"parameters\": {\"city\": \"Bern\", \"days\": 2}}; \
         {\"name\": \"now\", \"parameters\": {}}",
    ),
    (
        Llama3,
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": \
         {\"city\": \"Bern\", \"days\": 2}}\n{\"name\": \"now\", \"parameters\": {}}<|eom_id|>",
    ),
    (
        Mistral,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}, \"id\": \
         \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghj\"}]",
    ),
    (
        MistralArgs,
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"city\": \"Bern\", \"days\": 2}\
         [TOOL_CALLS]now[ARGS]{}",
    ),
    (
        MistralArgs,
        "[TOOL_CALLS]f{\"city\": \"Bern\", \"days\": 2}[TOOL_CALLS]now{}",
    ),
    (
        FunctionTag,
        "<tool_call>\n<function=f>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n\
         </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n\
         </tool_call>",
    ),
    (
        FunctionTag,
        "<function=f><parameter=city>Bern</parameter><parameter=days>2</parameter></function>\
         <function=now></function>",
    ),
    (
        FunctionJson,
        "<function=f>{\"city\": \"Bern\", \"days\": 2}</function><function=now>{}</function>",
    ),
    (
        ArgKey,
        "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days\
         </arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    ),
    (
        Invoke,
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">Bern</parameter>\n\
         <parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n\
         </minimax:tool_call>",
    ),
    (
        Dsml,
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"city\" \
         string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2\
         </｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n\
         </｜DSML｜function_calls>",
    ),
    (
        DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 2}\
         <｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>\
         <｜tool▁calls▁end｜>",
    ),
    (
        DeepSeekR1,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"city\": \
         \"Bern\", \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n\
         ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        Kimi,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>\
         {\"city\": \"Bern\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1\
         <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        ToolCalls,
        "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, \
         {\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
    ),
    (
        ToolCalls,
        "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\n\
         {\"name\": \"now\", \"arguments\": {}}\n</tool_calls>",
    ),
    (
        Nemotron,
        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, \
         {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
    ),
    (
        Cohere,
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": \
         {\"city\": \"Bern\", \"days\": 2}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \
         \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        Apertus,
        "<|tools_prefix|>[{\"f\": {\"city\": \"Bern\", \"days\": 2}}, {\"now\": {}}]\
         <|tools_suffix|>",
    ),
    (
        Harmony,
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>\
         {\"city\": \"Bern\", \"days\": 2}<|call|><|start|>assistant to=functions.now<|channel|>\
         commentary json<|message|>{}<|call|>",
    ),
    (
        ParamTag,
        "<function name=\"f\"><param name=\"city\">Bern</param><param name=\"days\">2</param>\
         </function>\n<function name=\"now\"></function>",
    ),
    (
        FunctionCall,
        "<|function_call|>{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\
         <|message_sep|><|function_call|>{\"name\": \"now\", \"arguments\": {}}",
    ),
    (
        Gemma,
        "<|tool_call>call:f{city:<|\"|>Bern<|\"|>,days:2}<tool_call|><|tool_call>call:now{}\
         <tool_call|>",
    ),
    (
        Json,
        "{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}\n\
         {\"name\": \"now\", \"arguments\": \"{}\"}",
    ),
];

const ARGUMENTS: &str = r#"{"city": "Bern", "days": 2}"#;

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

/// Calls without the spaces in their arguments: Gemma writes none.
fn compact(calls: Vec<(String, String)>) -> Vec<(String, String)> {
    let compact = |(name, text): (String, String)| (name, text.replace(' ', ""));
    calls.into_iter().map(compact).collect()
}

#[test]
fn calls_are_read_as_templates_write_them() {
    for (format, text) in TWO_CALLS {
        let answer = answer(*format, text);
        let expected = [call("f", ARGUMENTS), call("now", "{}")];
        assert_eq!(
            compact(answer.calls),
            compact(expected.to_vec()),
            "{format:?}"
        );
        assert_eq!(answer.content, "", "{format:?}");
        let thought = match format {
            Harmony => "<|channel|>analysis<|message|>hm<|end|>",
            _ => "<think>hm</think>",
        };
        let said = format!("{thought}I look.\n{text}");
        if !text.starts_with('{') {
            let answer = super::answer(*format, &said);
            assert_eq!(
                compact(answer.calls),
                compact(expected.to_vec()),
                "{format:?}"
            );
            assert_eq!(answer.content, "I look.", "{format:?}");
            assert_eq!(answer.reasoning, "hm", "{format:?}");
        }
    }
    for format in FORMATS {
        assert!(
            TWO_CALLS
                .iter()
                .any(|(with_calls, _)| *with_calls == format)
        );
    }
}

#[test]
fn what_a_grammar_forces_is_read() {
    for format in FORMATS {
        let opening = format.opening();
        assert!(!opening.is_empty());
        let text = match format.around("f") {
            Some((before, after)) => {
                assert!(before.starts_with(opening), "{format:?}: {before}");
                format!("{before}{ARGUMENTS}{after}")
            }
            None => {
                let (_, text) = TWO_CALLS
                    .iter()
                    .find(|(with, _)| *with == format)
                    .expect("one");
                assert!(text.starts_with(opening), "{format:?}: {text}");
                continue;
            }
        };
        let answer = answer(format, &text);
        assert_eq!(answer.calls, [call("f", ARGUMENTS)], "{format:?}");
        assert_eq!(answer.content, "", "{format:?}");
    }
}

#[test]
fn values_in_tags_become_json() {
    let read = |value: &str, key: &str| {
        let text = format!("<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>");
        let answer = answer(FunctionTag, &text);
        let arguments: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        arguments[key].to_string()
    };
    // The schema says what it is.
    assert_eq!(read("5", "city"), "\"5\"");
    assert_eq!(read("5", "days"), "5");
    assert_eq!(read("True", "exact"), "true");
    assert_eq!(read("five", "days"), "\"five\"");
    assert_eq!(
        read("a\n\"b\"\\\n</param\n", "city"),
        r#""a\n\"b\"\\\n</param\n""#
    );
    assert_eq!(read("", "city"), "\"\"");
    // Or nothing does.
    assert_eq!(read("5", "other"), "5");
    assert_eq!(read("{\"a\": [1]}", "other"), "{\"a\":[1]}");
    assert_eq!(read("\"5\"", "other"), r#""\"5\"""#);
    assert_eq!(read("True", "other"), "\"True\"");
}

#[test]
fn what_is_no_call_is_content() {
    for (format, text) in [
        (Hermes, "a <tool_call> b"),
        (Hermes, "<tool_call>\n{\"name\": 5}</tool_call>\n"),
        (Hermes, "<tool_call>{\"nam\": \"f\"}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": 5 6}"),
        (Hermes, " <tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"argum"),
        (Llama3, "{\"temperature\": 5}"),
        (Llama3, " {\"name\": \"f\" oh"),
        (Llama3, "So {\"name\": \"f\", \"parameters\": {}}"),
        (Llama3, "{\"name\": \"Bob\", \"parameters\": {}}"),
        (Json, "{\"name\": \"Bob\", \"age\": 5}"),
        (Json, "[1, 2]"),
        (Json, "{}"),
        (Mistral, "[TOOL_CALLS] {\"a\": 1}, "),
        (MistralArgs, "[TOOL_CALLS]a b[ARGS]{}"),
        (FunctionTag, "<function=a b>"),
        (FunctionTag, "<function=f>\n<oh>"),
        (ArgKey, "<tool_call>{\"name\": \"f\"}</tool_call>"),
        (DeepSeek, "<｜tool▁call▁begin｜>f"),
        (Kimi, "<|tool_call_begin|><|tool_call_begin|>"),
    ] {
        let answer = answer(format, text);
        assert_eq!(answer.calls, [], "{format:?}: {text}");
        assert_eq!(answer.content, text, "{format:?}");
    }
}

#[test]
fn a_call_that_goes_wrong_ends_there() {
    let begun = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}";
    for (rest, content) in [
        ("} oh </tool_call>", "oh </tool_call>"),
        (" oh", "oh"),
        ("}\n<tool_ca", "<tool_ca"),
        ("}", ""),
        ("", ""),
    ] {
        let answer = answer(Hermes, &format!("{begun}{rest}"));
        assert_eq!(answer.calls, [call("f", "{\"a\": 1}")], "{rest}");
        assert_eq!(answer.content, content, "{rest}");
    }
    // Without its closing marker, the next call is read all the same.
    let text = format!("{begun}}}\n{begun}}}</tool_call>");
    assert_eq!(answer(Hermes, &text).calls.len(), 2);
    // Tags that break off are completed; an answer that ends is not.
    let text = "<function=f><parameter=city>Bern</parameter>oh";
    let broken = answer(FunctionTag, text);
    assert_eq!(broken.calls, [call("f", "{\"city\": \"Bern\"}")]);
    assert_eq!(broken.content, "oh");
    let cut = answer(FunctionTag, "<function=f><parameter=city>Bern</par");
    assert_eq!(cut.calls, [call("f", "{\"city\": \"Bern</par")]);
}
