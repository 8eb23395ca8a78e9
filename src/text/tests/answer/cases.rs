//! llama.cpp's own answer cases, extracted from the source of its test-chat program.
//! `OCTAVO_CHAT_CASES` names the file: a list of objects with the template's path below llama.cpp's
//! source, the prompt, the tools, the model's output, and the expected result.

use std::fs;
use std::path::Path;

use octavo_fixtures::{Lacks, llama_cpp_sources, skip};
use octavo_text::chat::answer::{AnswerParser, Wants};
use serde_json::Value;

use super::{Answer, read};

/// Number of cases, among those without a message to continue and without a schema for the content,
/// with the same result as in llama.cpp. The others leave reasoning verbatim in the content, which
/// `reasoning: none` does not mean here, or drop text addressed to an unknown tool.
const LEAST: usize = 365;

#[test]
fn answers_come_out_as_in_llama_cpp() {
    let Some(file) = std::env::var_os("OCTAVO_CHAT_CASES") else {
        return skip(
            Lacks::LlamaCpp,
            "OCTAVO_CHAT_CASES names no cases of answers",
        );
    };
    let Some(templates) = llama_cpp_sources("models/templates") else {
        return;
    };
    let text = fs::read_to_string(file).expect("the cases can be read");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("a list of cases");
    let (mut total, mut right) = (0, 0);
    for case in &cases {
        if case["continue_final_message"] != "none" || !case["json_schema"].is_null() {
            continue;
        }
        total += 1;
        let template = case["template"].as_str().unwrap_or_default();
        let name = Path::new(template).file_name().expect("a name");
        let source = fs::read_to_string(templates.join(name)).expect("its template");
        let found = answer_of(case, &source);
        if is_right(case, &found) {
            right += 1;
        } else {
            println!("{} {template}: {}", case["n"], case["reasoning_format"]);
            println!(
                "  input {}\n  expected {}\n  found {found:?}",
                case["input"], case["expect"]
            );
        }
    }
    println!("{right} of {total} answers come out as in llama.cpp");
    assert!(right >= LEAST, "{right} of {total}");
}

fn answer_of(case: &Value, template: &str) -> Answer {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    let tools = case["tools"].as_array().cloned().unwrap_or_default();
    let wants = Wants {
        tools: !tools.is_empty() && text("tool_choice") != "none",
        reasoning: text("reasoning_format") != "none",
    };
    let parser = AnswerParser::new(template, text("prompt"), wants).with_tools(&tools);
    read(parser, [text("input")])
}

fn is_right(case: &Value, found: &Answer) -> bool {
    let expected = &case["expect"];
    let is_same = |key: &str, text: &str| expected[key].as_str().unwrap_or_default().trim() == text;
    let arguments = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let calls = expected["tool_calls"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    is_same("content", found.content.trim())
        && is_same("reasoning_content", found.reasoning.trim())
        && calls.len() == found.calls.len()
        && calls
            .iter()
            .zip(&found.calls)
            .enumerate()
            .all(|(i, (call, (name, text)))| {
                let id = call["id"].as_str().filter(|id| !id.is_empty());
                call["name"] == name.as_str()
                    && arguments(call["arguments"].as_str().unwrap_or_default()) == arguments(text)
                    && id.is_none_or(|id| found.ids[i].as_deref() == Some(id))
            })
}
