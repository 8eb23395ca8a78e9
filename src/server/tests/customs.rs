//! Requests that clients send to other servers, and those servers accept.

use octavo_server::{ModelOptions, Options};
use serde_json::{Value, json};

use crate::client::{Server, ok, read, small};

const CHAT: &str = "/v1/chat/completions";

fn chat(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "1+1=" }], "temperature": 0, "max_tokens": 4,
    });
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn prompt(server: &Server, body: &Value) -> String {
    let answer = ok(server, "/apply-template", body);
    answer["prompt"].as_str().expect("a prompt").to_owned()
}

#[test]
fn no_limit_is_minus_one() {
    let server = Server::usual();
    let base = json!({ "messages": [{ "role": "user", "content": "1+1=" }], "temperature": 0 });
    let unlimited = ok(&server, CHAT, &base);
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let mut body = base.clone();
        body[name] = json!(-1);
        let answer = ok(&server, CHAT, &body);
        assert_eq!(answer["choices"], unlimited["choices"], "{name}");
        body[name] = json!(2);
        let answer = ok(&server, CHAT, &body);
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{name}");
    }
    let body = json!({ "prompt": "1+1=", "temperature": 0, "max_tokens": -1, "ignore_eos": true });
    let answer = ok(&server, "/v1/completions", &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["usage"]["completion_tokens"].as_u64() > Some(16));
    let body = json!({ "input": "1+1=", "temperature": 0, "max_output_tokens": -1 });
    let answer = ok(&server, "/v1/responses", &body);
    assert_eq!(answer["status"], "completed");
}

#[test]
fn empty_stops_stop_nothing_and_many_are_taken() {
    let server = Server::usual();
    let usual = ok(&server, CHAT, &chat(json!({})));
    let many: Vec<String> = (0..20).map(|i| format!("<{i}>")).collect();
    for stop in [
        json!(""),
        json!([]),
        json!(["", ""]),
        json!(many),
        Value::Null,
    ] {
        let answer = ok(&server, CHAT, &chat(json!({ "stop": stop })));
        assert_eq!(answer["choices"], usual["choices"], "{stop}");
    }
}

#[test]
fn null_content_and_older_roles_are_taken() {
    let server = Server::usual();
    let user = json!({ "role": "user", "content": "a" });
    let call = json!({ "name": "f", "arguments": "{\"a\": 1}" });
    let newer = json!([
        user,
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": call }] },
        { "role": "tool", "tool_call_id": "1", "name": "f", "content": "" },
    ]);
    let expected = prompt(&server, &json!({ "messages": newer }));
    assert!(
        !expected.contains("None") && !expected.contains("null"),
        "{expected}"
    );
    let mut without = newer.clone();
    without[2]["content"] = Value::Null;
    assert_eq!(prompt(&server, &json!({ "messages": without })), expected);
    let older = json!([
        user,
        { "role": "assistant", "content": null, "function_call": call },
        { "role": "function", "name": "f", "content": "" },
    ]);
    assert_eq!(prompt(&server, &json!({ "messages": older })), expected);
    for role in ["system", "user", "assistant"] {
        let message = |content: Value| json!({ "role": role, "content": content });
        let body = |content: Value| {
            json!({
                "messages": [message(content), user], "continue_final_message": false,
            })
        };
        let expected = prompt(&server, &body(json!("")));
        assert_eq!(prompt(&server, &body(Value::Null)), expected, "{role}");
    }
}

#[test]
fn tools_are_chosen_by_objects_too() {
    let server = Server::usual();
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let tools = json!([tool("first"), tool("second")]);
    let with = |choice: Value| {
        json!({
            "messages": [{ "role": "user", "content": "a" }], "tools": tools,
            "tool_choice": choice,
        })
    };
    let auto = prompt(&server, &with(json!("auto")));
    let none = prompt(&server, &with(json!("none")));
    assert!(auto.contains("first") && auto.contains("second") && !none.contains("first"));
    assert_eq!(prompt(&server, &with(json!({ "type": "auto" }))), auto);
    assert_eq!(prompt(&server, &with(json!({ "type": "none" }))), none);
    assert_eq!(prompt(&server, &with(json!({ "type": "required" }))), auto);
    let named = |name: &str| json!({ "type": "tool", "name": name });
    assert_eq!(prompt(&server, &with(named("second"))), auto);
    // the model sees the allowed tools only
    let list = json!([tool("second")]);
    let inner = json!({ "mode": "auto", "tools": list });
    let nested = prompt(
        &server,
        &with(json!({ "type": "allowed_tools", "allowed_tools": inner })),
    );
    assert!(
        nested.contains("second") && !nested.contains("first"),
        "{nested}"
    );
    let flat = json!({ "type": "allowed_tools", "mode": "auto", "tools": [
        { "type": "function", "name": "second" }] });
    assert_eq!(prompt(&server, &with(flat)), nested);
    for (choice, param) in [
        (json!({ "type": "file_search" }), "tool_choice"),
        (
            json!({ "type": "function", "function": { "name": "third" } }),
            "tool_choice.function.name",
        ),
        (
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [tool("third")] }),
            "tool_choice.tools[0].name",
        ),
        (
            json!({ "type": "allowed_tools", "mode": "never", "tools": [] }),
            "tool_choice.mode",
        ),
    ] {
        let answer = server.post("/apply-template", &with(choice));
        assert_eq!(
            (answer.status, answer.param().as_str()),
            (400, param),
            "{}",
            answer.text
        );
    }
}

#[test]
fn halves_of_characters_are_replaced() {
    let server = Server::usual();
    let body = r#"{"messages": [{"role": "user", "content": "a\ud83d b"}]}"#;
    let answer = read(server.send("POST", "/apply-template", "", body.as_bytes())).json();
    assert!(
        answer["prompt"]
            .as_str()
            .is_some_and(|text| text.contains("a\u{fffd} b")),
        "{answer}"
    );
}

#[test]
fn models_of_other_names_are_taken_unless_names_are_strict() {
    let body = chat(json!({ "model": "gpt-4o-mini" }));
    let server = Server::usual();
    assert_eq!(ok(&server, CHAT, &body)["model"], "octavo");
    let strict = Options {
        strict_model: true,
        ..Options::default()
    };
    let server = Server::new(small(), strict);
    let answer = server.post(CHAT, &body);
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].clone()),
        (404, json!("model_not_found"))
    );
    ok(&server, CHAT, &chat(json!({ "model": "octavo" })));
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let server = Server::usual();
    let user = json!({ "role": "user", "content": "a" });
    let with = |content: Value| json!([user, { "role": "assistant", "content": content }]);
    let expected = prompt(
        &server,
        &json!({
            "messages": with(json!("2 and")), "continue_final_message": true,
        }),
    );
    assert!(expected.ends_with("assistant\n2 and"), "{expected}");
    let parts = json!([{ "type": "text", "text": "2 and" }]);
    for content in [json!("2 and"), parts] {
        assert_eq!(
            prompt(&server, &json!({ "messages": with(content) })),
            expected
        );
    }
    let begun = prompt(
        &server,
        &json!({
            "messages": with(json!("2 and")), "continue_final_message": false,
        }),
    );
    assert!(begun.ends_with("assistant\n"), "{begun}");
    let options = ModelOptions {
        prefill_assistant: false,
        ..ModelOptions::default()
    };
    let server = Server::of_model(small(), options);
    assert_eq!(
        prompt(&server, &json!({ "messages": with(json!("2 and")) })),
        begun
    );
    let answer = server.post(
        CHAT,
        &json!({ "messages": [user], "continue_final_message": true }),
    );
    assert_eq!(
        (answer.status, answer.param()),
        (400, "continue_final_message".to_owned())
    );
}

#[test]
fn the_items_of_a_turn_are_one_message() {
    let template = "{% for m in messages %}<{{ m.role }}>\
        {% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}\
        {% for c in m.tool_calls %}({{ c.function.arguments|tojson }}){% endfor %}{% endfor %}";
    let server = Server::chatting(template);
    let tokens =
        |path: &str, body: &Value, name: &str| ok(&server, path, body)["usage"][name].clone();
    let call = |id: &str| {
        json!({ "id": id, "type": "function", "function": {
        "name": "f", "arguments": "{\"a\": 1}" } })
    };
    let messages = json!([
        { "role": "user", "content": "?" },
        { "role": "assistant", "content": "I look.", "reasoning_content": "hm\nso",
          "tool_calls": [call("1"), call("2")] },
        { "role": "tool", "tool_call_id": "1", "content": "cold\ndry" },
        { "role": "tool", "tool_call_id": "2", "content": "warm" },
    ]);
    let item = |id: &str| {
        json!({ "type": "function_call", "call_id": id, "name": "f",
        "arguments": "{\"a\": 1}" })
    };
    let thought = json!([{ "type": "reasoning_text", "text": "hm" }]);
    let summary = json!([{ "type": "summary_text", "text": "so" }]);
    let said = json!([{ "type": "output_text", "text": "I look.", "annotations": [] }]);
    let parts =
        json!([{ "type": "input_text", "text": "cold" }, { "type": "input_text", "text": "dry" }]);
    let input = json!([
        { "role": "user", "content": "?" },
        { "type": "reasoning", "id": "r", "summary": [], "content": thought },
        { "type": "reasoning", "id": "s", "summary": summary },
        { "type": "message", "role": "assistant", "content": said },
        item("1"),
        item("2"),
        { "type": "function_call_output", "call_id": "1", "output": parts },
        { "type": "function_call_output", "call_id": "2", "output": "warm" },
    ]);
    let chat = json!({ "messages": messages, "max_tokens": 1 });
    let expected = tokens(CHAT, &chat, "prompt_tokens");
    let body = json!({ "input": input, "max_output_tokens": 1 });
    assert_eq!(tokens("/v1/responses", &body, "input_tokens"), expected);
    // an error inside an item names the item
    let mut body = body;
    body["input"][5]["name"] = json!(1);
    let answer = server.post("/v1/responses", &body);
    assert_eq!(
        (answer.status, answer.param().as_str()),
        (400, "input[5].name"),
        "{}",
        answer.text
    );
}

#[test]
fn many_texts_are_embedded_at_once_and_vectors_cut() {
    let server = Server::usual();
    let texts: Vec<String> = (0..200).map(|i| format!("{i}")).collect();
    let all = ok(&server, "/v1/embeddings", &json!({ "input": texts }));
    let data = all["data"].as_array().expect("vectors");
    assert_eq!(data.len(), 200);
    let short = ok(
        &server,
        "/v1/embeddings",
        &json!({ "input": texts[7], "dimensions": 8 }),
    );
    let numbers = |value: &Value| -> Vec<f64> {
        let list = value["embedding"].as_array().expect("numbers").iter();
        list.filter_map(Value::as_f64).collect()
    };
    let (whole, short) = (numbers(&data[7]), numbers(&short["data"][0]));
    assert_eq!(short.len(), 8);
    let length = short.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let scale = whole[..8].iter().map(|x| x * x).sum::<f64>().sqrt();
    let same = whole
        .iter()
        .zip(&short)
        .all(|(whole, short)| (whole / scale - short).abs() < 1e-5);
    assert!(same, "{short:?}");
    let wide = json!({ "input": "a", "dimensions": whole.len() + 1 });
    assert_eq!(server.post("/v1/embeddings", &wide).param(), "dimensions");
    let many = json!({ "input": vec!["a"; 2049] });
    assert_eq!(server.post("/v1/embeddings", &many).param(), "input");
}

#[test]
fn a_completion_answers_several_prompts() {
    let server = Server::usual();
    let ask = |prompt: Value| {
        let body = json!({ "prompt": prompt, "n_predict": 4, "temperature": 0 });
        ok(&server, "/completion", &body)
    };
    let all = ask(json!(["1+1=", "2+3="]));
    let all = all.as_array().expect("two texts");
    for (i, prompt) in ["1+1=", "2+3="].into_iter().enumerate() {
        let alone = ask(json!(prompt));
        assert_eq!(all[i]["content"], alone["content"]);
        assert_eq!(
            (all[i]["index"].as_u64(), alone["index"].as_u64()),
            (Some(i as u64), Some(0))
        );
    }
    // ids and texts in one list are one prompt
    let ids = ok(&server, "/tokenize", &json!({ "content": "1+" }))["tokens"].clone();
    let mut mixed = ids.as_array().expect("ids").clone();
    mixed.push(json!("1="));
    let mixed = ask(json!(mixed));
    assert!(
        mixed["content"].is_string()
            && mixed["prompt"]
                .as_str()
                .is_some_and(|p| p.ends_with("1+1="))
    );
    let body =
        json!({ "prompt": ["1+1=", "2+3="], "n_predict": 4, "temperature": 0, "stream": true });
    let mut texts = [String::new(), String::new()];
    for piece in server.stream("/completion", &body) {
        let piece: Value = serde_json::from_str(&piece).expect("JSON");
        let index = piece["index"].as_u64().expect("a place") as usize;
        texts[index].push_str(piece["content"].as_str().unwrap_or_default());
    }
    assert_eq!(
        texts.map(Value::from),
        [all[0]["content"].clone(), all[1]["content"].clone()]
    );
}

#[test]
fn settings_and_slots_have_llama_servers_names() {
    let server = Server::usual();
    let body = json!({ "prompt": "1+1=", "n_predict": 3, "temperature": 0.5, "stop": ["x"] });
    let answer = ok(&server, "/completion", &body);
    let settings = &answer["generation_settings"];
    assert_eq!(
        (
            &settings["n_predict"],
            &settings["temperature"],
            &settings["stop"]
        ),
        (&json!(3), &json!(0.5), &json!(["x"]))
    );
    assert!(
        settings["samplers"]
            .as_array()
            .is_some_and(|names| names.contains(&json!("top_k")))
    );
    for name in ["prompt_per_token_ms", "predicted_per_token_ms"] {
        assert!(answer["timings"][name].is_number(), "{name}");
    }
    let props = server.get("/props").json();
    let defaults = &props["default_generation_settings"];
    assert!(defaults["params"]["top_p"].is_number() && defaults["n_ctx"].is_number());
    assert!(props["model_path"].is_string() && props["chat_template"].is_string());
    let slots = server.get("/slots").json();
    let slots = slots.as_array().expect("places");
    assert_eq!(json!(slots.len()), props["total_slots"]);
    assert!(
        slots
            .iter()
            .all(|slot| slot["is_processing"] == false && slot["n_ctx"].is_number())
    );
}

#[test]
fn pieces_have_times_and_answers_the_fields_that_are_asked_for() {
    let server = Server::usual();
    for (path, fields) in [
        ("/completion", json!({ "prompt": "1+1=", "n_predict": 4 })),
        (
            "/v1/completions",
            json!({ "prompt": "1+1=", "max_tokens": 4 }),
        ),
        (CHAT, chat(json!({ "max_tokens": 4 }))),
    ] {
        let mut body = fields;
        body["stream"] = json!(true);
        body["timings_per_token"] = json!(true);
        body["ignore_eos"] = json!(true);
        // under load a piece may have several tokens
        let counts: Vec<u64> = server
            .stream(path, &body)
            .iter()
            .filter_map(|piece| serde_json::from_str(piece).ok())
            .filter_map(|piece: Value| piece["timings"]["predicted_n"].as_u64())
            .collect();
        assert!(counts.len() > 1 && counts.is_sorted(), "{path}: {counts:?}");
        assert_eq!(counts.last(), Some(&4), "{path}");
    }
    let fields_asked = ["content", "generation_settings/n_predict", "no/such"];
    let body = json!({ "prompt": "1+1=", "n_predict": 3, "response_fields": fields_asked });
    let answer = ok(&server, "/completion", &body);
    let fields: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    assert_eq!(fields, [fields_asked[0], fields_asked[1]]);
    assert_eq!(answer[fields_asked[1]], 3);
}

#[test]
fn tools_without_a_place_that_do_not_fit_are_left_out_with_a_warning() {
    let server = Server::usual();
    let tool = |i: usize| {
        let function = json!({ "name": format!("t{i}"), "parameters": { "type": "object" } });
        json!({ "type": "function", "function": function })
    };
    let all: Vec<Value> = (0..150).map(tool).collect();
    let without = ok(&server, CHAT, &chat(json!({})));
    let answer = ok(&server, CHAT, &chat(json!({ "tools": all })));
    assert_eq!(answer["choices"], without["choices"]);
    let warning = answer["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("the tools are left out"), "{answer}");
    assert_eq!(without.get("warnings"), None, "{without}");
    // a forced call needs the tools
    let fields = json!({ "tools": all, "tool_choice": "required" });
    let refused = server.post(CHAT, &chat(fields));
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
}
