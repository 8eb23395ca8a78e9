//! Call ids written by models.

use octavo_text::chat::answer::CallFormat::*;

use super::answer;

#[test]
fn identifiers_of_models_are_kept() {
    for (format, text, ids) in [
        (
            Kimi,
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
             <|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
            ["functions.f:0", "functions.now:1"],
        ),
        (
            MistralArgs,
            "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]now[CALL_ID]abcdefghj[ARGS]{}",
            ["abcdefghi", "abcdefghj"],
        ),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}, \
             {\"name\": \"now\", \"id\": \"abcdefghj\"}]",
            ["abcdefghi", "abcdefghj"],
        ),
        (
            Cohere,
            "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {}}, \
             {\"tool_call_id\": 1, \"tool_name\": \"now\", \"parameters\": {}}]<|END_ACTION|>",
            ["0", "1"],
        ),
        (
            Solar,
            "<|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>\
             <|tool_call:begin|>a2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>",
            ["a1", "a2"],
        ),
    ] {
        let answer = answer(format, text);
        let found: Vec<&str> = answer.ids.iter().flatten().map(String::as_str).collect();
        assert_eq!(found, ids, "{format:?}");
    }
}

#[test]
fn an_identifier_names_one_call() {
    let one = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let answer = answer(Kimi, &one.repeat(2));
    assert_eq!(answer.ids, [Some("functions.f:0".to_owned()), None]);
}

#[test]
fn a_call_that_is_cut_short_before_its_identifier_is_one() {
    let answer = answer(
        Mistral,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"city\": \"B",
    );
    assert_eq!(
        answer.calls,
        [("f".to_owned(), "{\"city\": \"B".to_owned())]
    );
    assert_eq!((answer.ids, answer.content.as_str()), (vec![None], ""));
}
