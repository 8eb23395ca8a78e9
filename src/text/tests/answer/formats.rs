//! Every tool call format: as written by templates, and as written by models.

use octavo_text::chat::answer::CallFormat::{self, *};

use super::{FORMATS, answer};

/// Calls of `f` with city = "Bern", days = 2 and of `now` without arguments, as templates write
/// them; only the first one in formats of one call at a time.
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
        Lfm2,
        "<|tool_call_start|>[f(city=\"Bern\", days=2), now()]<|tool_call_end|>",
    ),
    (Pythonic, "[f(city='Bern', days=2), now()]"),
    (
        Pythonic,
        "<|python_start|>[f(city=\"Bern\", days = 2), now()]<|python_end|>",
    ),
    (
        Llama3,
        "<|python_tag|>[f(city=\"Bern\", days=2), now()]<|eom_id|>",
    ),
    (
        SeedTag,
        "<seed:tool_call>\n<function=f>\n<parameter=city>Bern</parameter>\n<parameter=days>2\
         </parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n\
         </function>\n</seed:tool_call>",
    ),
    (
        Hunyuan,
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n\
         <arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Bern\
         </arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n\
         <arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n\
         <tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n\
         </tool_calls:opensource>",
    ),
    (
        MiniMaxM3,
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>Bern\
         ]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n\
         ]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    (
        DsmlV4,
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"city\" \
         string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2\
         </｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n\
         </｜DSML｜tool_calls>",
    ),
    (
        Muse,
        " to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter \
         name=\"city\">Bern</atem:parameter>\n<atem:parameter name=\"days\">2</atem:parameter>\n\
         </atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=now<|message|>\
         <atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n\
         </atem:function_calls><|eot|>",
    ),
    (
        KimiK3,
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument \
         key=\"city\" type=\"string\"<|sep|>Bern<|close|>argument<|sep|><|open|>argument \
         key=\"days\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>\
         <|open|>call tool=\"now\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{}\
         <|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
    ),
    (
        Solar,
        "<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>{\"city\": \
         \"Bern\", \"days\": 2}<|tool_call:end|><|tool_call:begin|>2<|tool_call:name|>now\
         <|tool_call:args|>{}<|tool_call:end|><|calls|>",
    ),
    (
        Granite,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, \
         {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        Granite,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, \
         {\"name\": \"now\", \"arguments\": {}}]<|/tool_call|>",
    ),
    (
        Functools,
        " functools[{\"name\": \"f\", \"arguments\": {\"city\": \"Bern\", \"days\": 2}}, \
         {\"name\": \"now\", \"arguments\": {}}]",
    ),
    (
        CommandR,
        "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": \
         {\"city\": \"Bern\", \"days\": 2}\n    },\n    {\"tool_name\": \"now\", \
         \"parameters\": {}}\n]\n```",
    ),
    (
        GigaChat3,
        "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": \
         {\"city\": \"Bern\", \"days\": 2}}<|message_sep|>\n\nfunction call<|role_sep|>\n\
         {\"name\": \"now\", \"arguments\": {}}",
    ),
    (
        Functionary,
        "f\n{\"city\": \"Bern\", \"days\": 2}\n>>>now\n{}",
    ),
    (
        Harmony,
        "<|channel|>commentary to=functions.f code<|message|>{\"city\": \"Bern\", \"days\": 2}\
         <|call|><|start|>assistant<|channel|>analysis to=now <|constrain|>json<|message|>{}",
    ),
    (
        ParamTag,
        "<function name=\"f\"><param name=\"city\"><![CDATA[Bern]]></param><param name=\"days\">2\
         </param></function>\n<function name=\"now\"></function>",
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

/// Removes spaces from the arguments: Gemma writes none.
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
            Muse | Functionary => continue,
            _ => "<think>hm</think>",
        };
        let said = format!("{thought}I look.\n{text}");
        if !text.starts_with(['{', '[']) || text.starts_with("[TOOL_CALLS]") {
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
        (FunctionTag, "Use <tool_call> and </tool_call>."),
        (FunctionTag, "<tool_call>\n</tool_call>"),
        (Invoke, "Write <minimax:tool_call> <b>"),
        (Lfm2, "Use [link text](url), or [f(1)](url)."),
        (Pythonic, "[link](url)"),
        (Pythonic, "[g(x=1)]"),
        (Pythonic, "[1, 2]"),
        (Functools, "Use functools.reduce."),
        (Granite, "<|tool_call|> none"),
        (Functionary, ">>> f(1)\n2"),
        (Functionary, "f is a function"),
        (Functionary, "g\n{}"),
        (MiniMaxM3, "]<]minimax[>[<tool_call>]<]minimax[>[<in"),
        (
            Muse,
            "<atem:function_calls><atem:invoke name=\"now\"></atem:invoke>",
        ),
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
    // Without its closing marker, the next call is still read.
    let text = format!("{begun}}}\n{begun}}}</tool_call>");
    assert_eq!(answer(Hermes, &text).calls.len(), 2);
    // Interrupted tags are completed; at the end of an answer they are not.
    let text = "<function=f><parameter=city>Bern</parameter>oh";
    let broken = answer(FunctionTag, text);
    assert_eq!(broken.calls, [call("f", "{\"city\": \"Bern\"}")]);
    assert_eq!(broken.content, "oh");
    let cut = answer(FunctionTag, "<function=f><parameter=city>Bern</par");
    assert_eq!(cut.calls, [call("f", "{\"city\": \"Bern</par")]);
}
