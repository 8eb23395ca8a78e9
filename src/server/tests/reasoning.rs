//! Reasoning before constrained answers, and its limit.

use serde_json::json;

use crate::client::Server;
use crate::constraints::{content, template, with_question};

/// Returns a template of a reasoning model, whose prompts end with this.
fn thinking(end: &str) -> String {
    let end = format!("{{% if add_generation_prompt %}}{end}{{% endif %}}");
    template("<tool_call>") + &end + "{# <think> </think> #}"
}

#[test]
fn what_a_rule_demands_is_no_thought_where_the_prompt_has_closed_it() {
    let server = Server::chatting(&thinking("<think>\n\n</think>\n\n"));
    let schema = json!({ "enum": [{ "a": "<think>b" }] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let answer = content(&server, json!({ "response_format": format }));
    let message = &answer["message"];
    assert_eq!(message["content"], "{\"a\": \"<think>b\"}", "{answer}");
    assert!(message.get("reasoning_content").is_none(), "{answer}");
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let answer = content(
        &server,
        json!({ "tools": tools, "tool_choice": "required" }),
    );
    assert_eq!(
        answer["message"]["tool_calls"][0]["function"]["name"], "f",
        "{answer}"
    );
}

#[test]
fn a_model_thinks_before_what_a_rule_demands() {
    let server = Server::chatting(&thinking("<think>\n"));
    let format = json!({ "type": "json_object" });
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    for fields in [
        json!({ "response_format": format }),
        json!({ "tools": tools, "tool_choice": "required" }),
        json!({ "guided_choice": ["yes"] }),
    ] {
        let mut body = fields.clone();
        body["max_tokens"] = json!(6);
        // a truncated thought is returned, as without a constraint
        let answer = content(&server, body);
        assert_eq!(answer["message"]["content"], "", "{answer}");
        assert_eq!(answer["finish_reason"], "length", "{answer}");
        let thought = answer["message"]["reasoning_content"].as_str();
        assert!(
            thought.is_some_and(|thought| !thought.is_empty()),
            "{answer}"
        );
    }
    let body = json!({
        "input": "1+1=", "max_output_tokens": 6, "temperature": 1,
        "text": { "format": { "type": "json_object" } },
    });
    let answer = server.post("/v1/responses", &body).json();
    assert_eq!(answer["output"][0]["type"], "reasoning", "{answer}");
}

#[test]
fn reasoning_ends_where_its_budget_does() {
    let server = Server::chatting(&thinking("<think>\n"));
    for name in [
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
        "thinking_token_budget",
    ] {
        for budget in [0, 3] {
            let mut body = json!({ "max_tokens": 24, "reasoning_budget_message": "Stop." });
            body[name] = json!(budget);
            let answer = content(&server, body.clone());
            let thought = answer["message"]["reasoning_content"].as_str();
            let thought = thought.unwrap_or_default();
            assert!(thought.ends_with("Stop."), "{answer}");
            assert_eq!(thought == "Stop.", budget == 0, "{answer}");
            assert_ne!(answer["message"]["content"], "", "{answer}");
            // the rule of the answer holds behind it
            body["guided_choice"] = json!(["yes"]);
            let answer = content(&server, body);
            assert_eq!(answer["message"]["content"], "yes", "{answer}");
            assert_eq!(answer["message"]["reasoning_content"], thought, "{answer}");
        }
    }
    for (fields, expected) in [
        (
            json!({ "reasoning_budget_tokens": -2 }),
            "expected a whole number from 0",
        ),
        (
            json!({ "reasoning_budget_message": "a".repeat(5000) }),
            "at most 4096 bytes",
        ),
    ] {
        let error = server
            .post("/v1/chat/completions", &with_question(fields))
            .json();
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_budget_of_a_model_without_reasoning_is_a_warning() {
    let server = Server::usual();
    let body = with_question(json!({ "max_tokens": 1, "reasoning_budget_tokens": 3 }));
    let answer = server.post("/v1/chat/completions", &body).json();
    let warnings = answer["warnings"].to_string();
    assert!(
        warnings.contains("the reasoning budget is ignored"),
        "{answer}"
    );
}
