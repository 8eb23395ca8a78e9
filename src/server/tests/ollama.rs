//! Ollama's interface: answers, which must be the same whole and streamed, and those of chats.

use octavo_engine::EngineOptions;
use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, ok, small};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// Returns a conversation that the built-in model answers with 2, and other fields.
fn asked(more: Value) -> Value {
    let mut body = json!({
        "model": "octavo",
        "options": { "temperature": 0, "num_predict": 12 },
        "messages": [{ "role": "user", "content": "1+1=" }],
    });
    for (name, value) in more.as_object().expect("fields") {
        match (&mut body[name], value) {
            (Value::Object(own), Value::Object(more)) => own.extend(more.clone()),
            (own, value) => *own = value.clone(),
        }
    }
    body
}

/// Returns the objects of a streamed answer, one on each line.
fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.ends_with('\n'));
    let line = |line: &str| serde_json::from_str(line).expect("JSON");
    answer.text.lines().map(line).collect()
}

/// Asserts that an answer is the same whole and streamed, but for times, and returns it.
fn both(server: &Server, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    let streamed = lines(server, path, &body);
    body["stream"] = json!(false);
    let whole = ok(server, path, &body);
    let (last, pieces) = streamed.split_last().expect("a last object");
    assert!(pieces.iter().all(|piece| piece["done"] == false));
    let fields = |object: &Value| match path {
        CHAT => object["message"].clone(),
        _ => json!({ "content": object["response"], "thinking": object["thinking"] }),
    };
    let text = |name: &str| -> String {
        let all = streamed.iter().map(fields);
        all.filter_map(|object| object[name].as_str().map(str::to_owned))
            .collect()
    };
    for name in ["content", "thinking"] {
        let own = fields(&whole);
        assert_eq!(text(name), own[name].as_str().unwrap_or_default(), "{name}");
    }
    let calls = |objects: &[Value]| -> Vec<Value> {
        let lists = objects
            .iter()
            .map(|object| &object["message"]["tool_calls"]);
        let calls = lists.filter_map(Value::as_array).flatten();
        calls.map(|call| call["function"].clone()).collect()
    };
    assert_eq!(calls(&streamed), calls(std::slice::from_ref(&whole)));
    for name in [
        "model",
        "done",
        "done_reason",
        "prompt_eval_count",
        "eval_count",
    ] {
        assert_eq!(last[name], whole[name], "{name}");
        assert!(!whole[name].is_null(), "{name}");
    }
    // the first token belongs to the prompt's time
    let several = whole["eval_count"].as_u64() > Some(1);
    let of_text = several.then_some("eval_duration");
    for name in ["total_duration", "prompt_eval_duration"]
        .into_iter()
        .chain(of_text)
    {
        assert!(whole[name].as_u64().is_some_and(|time| time > 0), "{name}");
    }
    whole
}

/// Returns the answer of a chat in OpenAI's format.
fn chat(server: &Server, body: &Value) -> Value {
    ok(server, "/v1/chat/completions", body)
}

#[test]
fn an_answer_has_the_text_of_the_chat() {
    let server = Server::usual();
    let answer = both(&server, CHAT, &asked(json!({})));
    let messages = asked(json!({}))["messages"].clone();
    let chat = chat(&server, &json!({ "messages": messages, "temperature": 0 }));
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(answer["message"]["content"], *text);
    assert_eq!(answer["message"]["role"], "assistant");
    assert_eq!(answer["done_reason"], "stop");
    assert_eq!(answer["prompt_eval_count"], chat["usage"]["prompt_tokens"]);
    assert_eq!(answer["eval_count"], chat["usage"]["completion_tokens"]);

    let prompt = asked(json!({ "messages": null, "prompt": "1+1=" }));
    let generated = both(&server, GENERATE, &prompt);
    assert_eq!(generated["response"], *text);
    assert_eq!(generated["prompt_eval_count"], answer["prompt_eval_count"]);
    // a system message of the prompt is one of the chat
    let system = asked(json!({ "messages": null, "prompt": "1+1=", "system": "Add." }));
    let generated = both(&server, GENERATE, &system);
    let messages = json!([
        { "role": "system", "content": "Add." }, { "role": "user", "content": "1+1=" },
    ]);
    let answer = both(&server, CHAT, &asked(json!({ "messages": messages })));
    assert_eq!(generated["prompt_eval_count"], answer["prompt_eval_count"]);
    assert_eq!(generated["response"], answer["message"]["content"]);
}

#[test]
fn a_raw_prompt_is_continued() {
    let server = Server::usual();
    let raw = asked(json!({ "messages": null, "prompt": "1+1=", "raw": true }));
    let generated = both(&server, GENERATE, &raw);
    let body = json!({ "prompt": "1+1=", "temperature": 0, "max_tokens": 12 });
    let completion = ok(&server, "/v1/completions", &body);
    assert_eq!(generated["response"], completion["choices"][0]["text"]);
    let tokens = &completion["usage"]["prompt_tokens"];
    assert_eq!(generated["prompt_eval_count"], *tokens);
    // the built-in vocabulary has no tokens to fill in the middle
    let middle = asked(json!({ "prompt": "1+", "suffix": "=2" }));
    let refused = server.post(GENERATE, &middle);
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("suffix"), "{}", refused.text);
}

#[test]
fn options_are_those_of_chats() {
    let server = Server::usual();
    let one = asked(json!({ "options": { "num_predict": 1 } }));
    assert_eq!(both(&server, CHAT, &one)["done_reason"], "length");
    let stopped = asked(json!({ "options": { "stop": ["2"] } }));
    let answer = both(&server, CHAT, &stopped);
    assert_eq!(answer["message"]["content"], "");
    let sampled = json!({ "temperature": 2.0, "seed": 7, "top_k": 40, "num_predict": -1 });
    let answer = both(&server, CHAT, &asked(json!({ "options": sampled })));
    let messages = asked(json!({}))["messages"].clone();
    let body = json!({ "messages": messages, "temperature": 2.0, "seed": 7, "top_k": 40 });
    let text = &chat(&server, &body)["choices"][0]["message"]["content"];
    assert_eq!(answer["message"]["content"], *text);

    let old = json!({ "tfs_z": 0.5, "num_ctx": 8192, "num_gpu": 99 });
    let body = asked(json!({ "options": old, "keep_alive": "5m", "template": "{{ .Prompt }}" }));
    let warnings = &both(&server, CHAT, &body)["warnings"];
    let warnings = warnings.as_array().expect("warnings");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(warnings[0], "options.tfs_z is ignored");
}

#[test]
fn probabilities_come_with_each_token() {
    let server = Server::usual();
    let body = asked(json!({ "logprobs": true, "top_logprobs": 3, "stream": false }));
    let answer = ok(&server, CHAT, &body);
    let tokens = answer["logprobs"].as_array().expect("a list");
    assert_eq!(tokens[0]["token"], "2");
    assert_eq!(tokens[0]["top_logprobs"].as_array().map(Vec::len), Some(3));
    let streamed = lines(&server, CHAT, &asked(json!({ "logprobs": true })));
    assert_eq!(streamed[0]["logprobs"][0]["token"], "2", "{streamed:?}");
}

#[test]
fn an_answer_has_the_format_that_is_asked_for() {
    let server = Server::usual();
    let schema = json!({ "const": { "a": 1 } });
    let options = json!({ "num_predict": 60 });
    let answer = both(
        &server,
        CHAT,
        &asked(json!({ "format": schema, "options": options })),
    );
    assert_eq!(answer["message"]["content"], "{\"a\": 1}");
    let body = asked(json!({ "prompt": "x", "format": schema, "options": options }));
    for raw in [false, true] {
        let mut body = body.clone();
        body["raw"] = json!(raw);
        assert_eq!(both(&server, GENERATE, &body)["response"], "{\"a\": 1}");
    }
    let refused = server.post(CHAT, &asked(json!({ "format": "xml" })));
    let expected = json!({ "error": "format: expected json, or a JSON schema" });
    assert_eq!((refused.status, refused.json()), (400, expected));
}

#[test]
fn tools_are_called_and_answered() {
    let server = Server::usual();
    let tool = json!({
        "type": "function",
        "function": {
            "name": "roll",
            "description": "rolls a die",
            "parameters": {
                "type": "object",
                "properties": { "sides": { "enum": [6] } },
                "required": ["sides"],
            },
        },
    });
    let body = asked(json!({
        "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
        "options": { "num_predict": 200 },
    }));
    let answer = both(&server, CHAT, &body);
    let call = &answer["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "roll", "{answer}");
    assert_eq!(call["function"]["arguments"], json!({ "sides": 6 }));

    // results belong to calls by id, or else by name, or else in order
    let template = "{% for m in messages %}{{ m.role }}:\
        {% for c in m.tool_calls %}{{ c.id }}={{ c.function.name }};{% endfor %}\
        {{ m.tool_call_id }}{{ m.content }}|{% endfor %}";
    let server = Server::chatting(template);
    let call = |name: &str| json!({ "function": { "name": name, "arguments": {} } });
    let body = json!({
        "model": "octavo",
        "messages": [
            { "role": "user", "content": "?" },
            { "role": "assistant", "content": "", "tool_calls": [call("a"), call("b")] },
            { "role": "tool", "tool_name": "b", "content": "!" },
            { "role": "tool", "content": "?" },
        ],
        "options": { "num_predict": 1, "temperature": 0 },
    });
    let with_ids = json!({ "messages": [
        { "role": "user", "content": "?" },
        { "role": "assistant", "content": "", "tool_calls": [
            { "id": "call00001", "function": { "name": "a", "arguments": "{}" } },
            { "id": "call00002", "function": { "name": "b", "arguments": "{}" } },
        ] },
        { "role": "tool", "tool_call_id": "call00002", "content": "!" },
        { "role": "tool", "tool_call_id": "call00001", "content": "?" },
    ] });
    let counted = ok(&server, "/v1/chat/completions/input_tokens", &with_ids);
    let answer = both(&server, CHAT, &body);
    assert_eq!(answer["prompt_eval_count"], counted["input_tokens"]);
}

#[test]
fn thoughts_are_apart() {
    let template = "{% for m in messages %}<{{ m.role }}>\
        {% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}\
        {% endfor %}{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}\
        {# </think> #}";
    let server = Server::chatting(template);
    let body = |think: Value| asked(json!({ "think": think, "options": { "num_predict": 6 } }));
    let message = both(&server, CHAT, &body(json!(true)))["message"].clone();
    assert_ne!(message["thinking"].as_str().unwrap_or_default(), "");
    assert_eq!(message["content"], "");
    let message = both(&server, CHAT, &body(json!(false)))["message"].clone();
    assert!(message["thinking"].is_null(), "{message}");
    assert_ne!(message["content"], "");

    let mut thought = asked(json!({ "think": false, "options": { "num_predict": 1 } }));
    thought["messages"] = json!([
        { "role": "user", "content": "?" },
        { "role": "assistant", "content": "yes", "thinking": "hm" },
        { "role": "user", "content": "!" },
    ]);
    let answer = both(&server, CHAT, &thought);
    let mut chat = thought.clone();
    chat["messages"][1]["reasoning_content"] = json!("hm");
    chat["enable_thinking"] = json!(false);
    let counted = ok(&server, "/v1/chat/completions/input_tokens", &chat);
    assert_eq!(answer["prompt_eval_count"], counted["input_tokens"]);
    let shown = ok(&server, "/api/show", &json!({ "model": "octavo" }));
    let capabilities = shown["capabilities"].to_string();
    assert!(capabilities.contains("thinking"), "{capabilities}");
}

#[test]
fn the_model_is_listed_and_described() {
    let server = Server::named(&["sums", "sums:small"], Options::default());
    let tags = server.get("/api/tags").json();
    let names: Vec<&Value> = (0..2).map(|i| &tags["models"][i]["name"]).collect();
    assert_eq!(names, ["sums:latest", "sums:small"]);
    let details = &tags["models"][0]["details"];
    for (name, value) in [("format", "gguf"), ("family", "qwen3")] {
        assert_eq!(details[name], value, "{details}");
    }
    for name in ["sums", "sums:latest", "sums:small"] {
        let body = asked(json!({ "model": name, "stream": false }));
        assert_eq!(ok(&server, CHAT, &body)["model"], name);
        let shown = ok(&server, "/api/show", &json!({ "model": name }));
        assert_eq!(shown["model_info"]["general.architecture"], "qwen3");
        assert!(shown["model_info"]["tokenizer.ggml.tokens"].is_null());
        assert_eq!(shown["details"], *details);
    }
    let all = ok(
        &server,
        "/api/show",
        &json!({ "model": "sums", "verbose": true }),
    );
    assert!(all["model_info"]["tokenizer.ggml.tokens"].is_array());
    let missing = server.post("/api/show", &json!({ "model": "other" }));
    assert_eq!(missing.status, 404);
    assert!(missing.json()["error"].is_string());
    let loaded = server.get("/api/ps").json();
    assert_eq!(loaded["models"][0]["name"], "sums:latest");
    assert!(server.get("/api/version").json()["version"].is_string());
    // clients load a model by a request without a prompt
    for path in [CHAT, GENERATE] {
        let answer = ok(&server, path, &json!({ "model": "sums" }));
        assert_eq!(answer["done_reason"], "load", "{answer}");
    }
    let pulled = server.post("/api/pull", &json!({ "model": "llama3.2" }));
    assert_eq!(pulled.status, 501);
    assert!(pulled.json()["error"].is_string());
}

#[test]
fn texts_become_vectors() {
    let options = EngineOptions {
        ctx: Some(64),
        ..small()
    };
    let server = Server::new(options, Options::default());
    let body = |input: Value| json!({ "model": "octavo", "input": input });
    let answer = ok(&server, "/api/embed", &body(json!(["a", "b"])));
    let expected = ok(&server, "/v1/embeddings", &body(json!(["a", "b"])));
    for i in 0..2 {
        assert_eq!(answer["embeddings"][i], expected["data"][i]["embedding"]);
    }
    assert_eq!(
        answer["prompt_eval_count"],
        expected["usage"]["prompt_tokens"]
    );
    let one = ok(&server, "/api/embed", &body(json!("a")));
    assert_eq!(one["embeddings"][0], answer["embeddings"][0]);
    let older = json!({ "model": "octavo", "prompt": "a" });
    let older = ok(&server, "/api/embeddings", &older);
    assert_eq!(older["embedding"], answer["embeddings"][0]);

    // texts are cut to the context unless the client says otherwise
    let long = "1+1=".repeat(10_000);
    let answer = ok(&server, "/api/embed", &body(json!([long])));
    assert_eq!(answer["prompt_eval_count"], 64);
    let mut body = body(json!(long));
    body["truncate"] = json!(false);
    let refused = server.post("/api/embed", &body);
    assert_eq!(refused.status, 400, "{}", refused.text);
}
