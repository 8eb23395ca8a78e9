//! Answers, which must be the same whole and streamed.

use serde_json::{Value, json};

use crate::client::Server;

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "octavo",
        "messages": [{ "role": "user", "content": "1+1=" }],
        "temperature": 0,
        "max_tokens": 12,
    });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn chunks(pieces: &[String]) -> Vec<Value> {
    let (last, rest) = pieces.split_last().expect("pieces");
    assert_eq!(last, "[DONE]");
    rest.iter()
        .map(|piece| serde_json::from_str(piece).expect("JSON"))
        .collect()
}

#[test]
fn a_chat_answers_all_at_once_as_it_does_piece_by_piece() {
    let server = Server::usual();
    let fields = json!({ "logprobs": true, "top_logprobs": 2, "ignore_eos": true });
    let whole = server
        .post("/v1/chat/completions", &chat(fields.clone()))
        .json();
    let choice = &whole["choices"][0];
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let tokens = choice["logprobs"]["content"]
        .as_array()
        .expect("log-probabilities");
    assert_eq!(tokens.len(), 12);
    assert!(
        tokens
            .iter()
            .all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(2))
    );

    let mut fields = fields;
    fields["stream"] = json!(true);
    fields["stream_options"] = json!({ "include_usage": true });
    let chunks = chunks(&server.stream("/v1/chat/completions", &chat(fields)));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let mut text = String::new();
    let mut streamed = Vec::new();
    for chunk in &chunks {
        text.push_str(
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default(),
        );
        let logprobs = chunk["choices"][0]["logprobs"]["content"].as_array();
        streamed.extend(logprobs.cloned().unwrap_or_default());
    }
    assert_eq!(text, choice["message"]["content"].as_str().expect("text"));
    assert_eq!(&streamed, tokens);
    let last = chunks.last().expect("the usage");
    assert_eq!(
        (&last["choices"], &last["usage"]),
        (&json!([]), &whole["usage"])
    );
    let ends = chunks
        .iter()
        .filter(|c| !c["choices"][0]["finish_reason"].is_null());
    assert_eq!(ends.count(), 1);
}

#[test]
fn completions_number_their_texts_by_prompt_and_choice() {
    let server = Server::usual();
    let prompts = ["1+1=", "2+3=", "What is"];
    let ask = |prompt: Value, n: usize, seed: u64| {
        let body = json!({
            "prompt": prompt, "n": n, "seed": seed, "temperature": 1, "max_tokens": 8,
        });
        server.post("/v1/completions", &body).json()
    };
    let all = ask(json!(prompts), 3, 7);
    let choices = all["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 9);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
        // each text depends only on its prompt and its seed
        let alone = ask(json!(prompts[i / 3]), 1, 7 + i as u64 % 3);
        assert_eq!(choice["text"], alone["choices"][0]["text"], "{i}");
    }
    let one = |i: usize| ask(json!(prompts[i]), 1, 7)["usage"]["prompt_tokens"].as_u64();
    let sum: u64 = (0..3).filter_map(one).sum();
    assert_eq!(all["usage"]["prompt_tokens"], sum);
}

#[test]
fn an_echo_has_a_probability_for_every_token_but_the_first() {
    let server = Server::usual();
    let body = json!({
        "prompt": "1+1=2 and 2+2=4", "echo": true, "logprobs": 1, "max_tokens": 3,
        "temperature": 0, "ignore_eos": true,
    });
    let whole = server.post("/v1/completions", &body).json();
    let choice = &whole["choices"][0];
    let text = choice["text"].as_str().expect("text");
    assert!(text.starts_with("1+1=2 and 2+2=4"), "{text}");
    let logprobs = &choice["logprobs"];
    let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let [tokens, own, top, offsets] = lists.map(|n| logprobs[n].as_array().expect("a list"));
    let n = whole["usage"]["total_tokens"].as_u64().expect("a number") as usize;
    assert!(
        [tokens, own, top, offsets]
            .iter()
            .all(|list| list.len() == n)
    );
    assert!(own[0].is_null() && top[0].is_null());
    for i in 1..n {
        let best = top[i].as_object().expect("alternatives").values();
        let best = best
            .filter_map(Value::as_f64)
            .fold(f64::NEG_INFINITY, f64::max);
        assert!(own[i].as_f64().expect("a number") <= best);
        let at = offsets[i].as_u64().expect("a place") as usize;
        assert!(
            text[at..].starts_with(tokens[i].as_str().expect("text")),
            "{i}"
        );
    }
    // tokens chosen are the most likely ones
    assert!((n - 3..n).all(|i| own[i] == top[i][tokens[i].as_str().expect("text")]));

    let mut body = body;
    body["stream"] = json!(true);
    let chunks = chunks(&server.stream("/v1/completions", &body));
    let part = |name: &str| -> Vec<Value> {
        let lists = chunks
            .iter()
            .filter_map(|c| c["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    for (name, list) in lists.iter().zip([tokens, own, top, offsets]) {
        assert_eq!(&part(name), list, "{name}");
    }
}

#[test]
fn no_stop_string_is_seen_wherever_it_is_cut() {
    let server = Server::usual();
    let ask = |stop: &str, stream: bool| {
        let mut body = json!({
            "prompt": "What is 3+4? What is 1+2?", "max_tokens": 24, "temperature": 0,
            "ignore_eos": true, "stream": stream,
        });
        if !stop.is_empty() {
            body["stop"] = json!([stop]);
        }
        body
    };
    let text = |body: &Value| {
        let all = server.post("/v1/completions", body).json();
        all["choices"][0]["text"].as_str().expect("text").to_owned()
    };
    let free = text(&ask("", false));
    assert!(free.chars().count() > 6, "{free:?}");
    let ends: Vec<usize> = free
        .char_indices()
        .map(|(i, _)| i)
        .skip(2)
        .step_by(3)
        .collect();
    for at in ends {
        let stop: String = free[at..].chars().take(3).collect();
        let expected = free.split(&stop).next().expect("text");
        assert_eq!(text(&ask(&stop, false)), expected, "{stop:?}");
        let pieces = chunks(&server.stream("/v1/completions", &ask(&stop, true)));
        let joined = pieces
            .iter()
            .filter_map(|p| p["choices"][0]["text"].as_str());
        assert_eq!(joined.collect::<String>(), expected, "{stop:?}");
    }
}

#[test]
fn embeddings_have_length_1_and_two_spellings() {
    use base64::Engine as _;
    let server = Server::usual();
    for pooling in ["last", "mean", "cls"] {
        let ask = |format: &str| {
            let body = json!({
                "input": ["1+1=", "a longer text, to be cut into pieces"],
                "encoding_format": format, "pooling": pooling,
            });
            server.post("/v1/embeddings", &body).json()
        };
        let (floats, coded) = (ask("float"), ask("base64"));
        for i in 0..2 {
            let vector = floats["data"][i]["embedding"].as_array().expect("numbers");
            let vector: Vec<f32> = vector
                .iter()
                .map(|x| x.as_f64().expect("a") as f32)
                .collect();
            let length: f32 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            let text = coded["data"][i]["embedding"].as_str().expect("text");
            let bytes = base64::prelude::BASE64_STANDARD
                .decode(text)
                .expect("base64");
            let read = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|four| f32::from_le_bytes(*four));
            assert_eq!(read.collect::<Vec<_>>(), vector);
        }
    }
}

#[test]
fn embedding_models_answer_nothing_else() {
    let Some(path) = octavo_fixtures::shared("arch/models/bert-F32.gguf") else {
        return;
    };
    let source = octavo_engine::ModelSource::Path(path);
    let options = octavo_engine::EngineOptions {
        batch: Some(64),
        ..crate::client::small()
    };
    let server = Server::of(&source, options, octavo_server::Options::default());
    let ask = |input: Value| server.post("/v1/embeddings", &json!({ "input": input }));
    let both = ask(json!(["the fox", "a tree"])).json();
    for (i, text) in ["the fox", "a tree"].into_iter().enumerate() {
        assert_eq!(
            both["data"][i]["embedding"],
            ask(json!(text)).json()["data"][0]["embedding"]
        );
    }
    let answer = ask(json!("fox ".repeat(100)));
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("at most 64"), "{}", answer.text);
    let answer = server.post(
        "/v1/completions",
        &json!({ "prompt": "fox", "max_tokens": 4 }),
    );
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("architecture bert"), "{}", answer.text);
}

#[test]
fn a_response_has_the_text_of_the_chat() {
    let server = Server::usual();
    let body = json!({ "input": "1+1=", "temperature": 0, "max_output_tokens": 12 });
    let whole = server.post("/v1/responses", &body).json();
    let chat = server.post("/v1/chat/completions", &chat(json!({}))).json();
    let text = &whole["output"][0]["content"][0]["text"];
    assert_eq!(text, &chat["choices"][0]["message"]["content"]);
    let mut body = body;
    body["stream"] = json!(true);
    let pieces = server.stream("/v1/responses", &body);
    let events: Vec<Value> = pieces
        .iter()
        .map(|piece| serde_json::from_str(piece).expect("JSON"))
        .collect();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let joined: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(json!(joined), *text);
    let last = events.last().expect("an end");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], *text);
}

#[test]
fn a_response_names_and_repeats_what_was_sent() {
    let server = Server::usual();
    let message = json!({ "role": "robot", "content": "a" });
    let tool = json!({ "type": "function", "name": "a b" });
    let format = json!({ "type": "json_schema", "schema": { "multipleOf": 99991 } });
    for (param, mut body) in [
        ("max_output_tokens", json!({ "max_output_tokens": -2 })),
        (
            "input[1].role",
            json!({ "input": [{ "type": "reasoning" }, message] }),
        ),
        (
            "tools[1].name",
            json!({ "tools": [{ "type": "web_search" }, tool] }),
        ),
        ("text.format", json!({ "text": { "format": format } })),
        (
            "text.format.type",
            json!({ "text": { "format": { "type": "xml" } } }),
        ),
        ("metadata", json!({ "metadata": 1 })),
    ] {
        body["instructions"] = json!("a");
        if body.get("input").is_none() {
            body["input"] = json!("a");
        }
        let answer = server.post("/v1/responses", &body);
        assert_eq!(
            (answer.status, answer.param().as_str()),
            (400, param),
            "{}",
            answer.text
        );
        let text = answer.json()["error"]["message"].to_string();
        assert!(text.starts_with(&format!("\"{param}: ")), "{text}");
    }
    let told = json!({
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" } }],
        "tool_choice": "none", "parallel_tool_calls": false, "metadata": { "a": "b" },
    });
    let mut body = told.clone();
    body["input"] = json!("a");
    body["max_output_tokens"] = json!(4);
    body["ignore_eos"] = json!(true);
    let whole = server.post("/v1/responses", &body).json();
    for (name, value) in told.as_object().expect("fields") {
        assert_eq!(whole[name], *value, "{name}");
    }
    body["stream"] = json!(true);
    let events = server.stream("/v1/responses", &body);
    let events = events
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).expect("JSON"));
    let deltas = events.filter(|event| event["type"] == "response.output_text.delta");
    assert!(
        deltas
            .map(|delta| assert_eq!(delta["logprobs"], json!([])))
            .count()
            > 0
    );
}

#[test]
fn tokens_go_there_and_back() {
    let server = Server::usual();
    for text in ["1+1=", "ünïcödé \u{1f600} text", ""] {
        let tokens = server.post("/tokenize", &json!({ "content": text })).json();
        let body = json!({ "tokens": tokens["tokens"] });
        assert_eq!(server.post("/detokenize", &body).json()["content"], text);
    }
    let native = json!({ "prompt": "1+1=", "n_predict": 4, "temperature": 0 });
    let answer = server.post("/completion", &native).json();
    assert!(
        answer["content"]
            .as_str()
            .is_some_and(|text| text.starts_with('2')),
        "{answer}"
    );
    // reason for the end, in llama-server's terms
    let ended = |answer: &Value| (answer["stop_type"].clone(), answer["stopping_word"].clone());
    assert_eq!(ended(&answer), (json!("eos"), json!("")));
    for stream in [false, true] {
        let body = json!({
            "prompt": "1+1=", "temperature": 0, "stop": ["x", "2"], "stream": stream,
        });
        let answer = match stream {
            false => server.post("/completion", &body).json(),
            true => {
                let pieces = server.stream("/completion", &body);
                serde_json::from_str(pieces.last().expect("an end")).expect("JSON")
            }
        };
        assert_eq!(ended(&answer), (json!("word"), json!("2")));
    }
    let text = |seed: Value| {
        let body = json!({ "prompt": "Once", "seed": seed, "temperature": 1.5, "n_predict": 12 });
        server.post("/completion", &body).json()["content"].clone()
    };
    assert_eq!(text(json!(42.0)), text(json!(42)));
}

#[test]
fn a_message_is_continued_where_it_ends() {
    let server = Server::usual();
    for text in ["e", "im", "|", "", " two words "] {
        let body = json!({
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": text },
            ],
            "continue_final_message": true,
        });
        let prompt = server.post("/apply-template", &body).json();
        let prompt = prompt["prompt"].as_str().expect("a prompt");
        assert!(
            prompt.ends_with(&format!("assistant\n{text}")),
            "{prompt:?}"
        );
        let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
        let told = server
            .post("/detokenize", &json!({ "tokens": tokens }))
            .json();
        assert_eq!(told["content"], prompt);
    }
}

#[test]
fn a_beam_search_answers_with_the_best_texts() {
    let server = Server::usual();
    let ask = |more: Value| {
        let mut body = json!({
            "prompt": ["1+1=", "What is"], "max_tokens": 6, "use_beam_search": true, "logprobs": 1,
        });
        let body_fields = body.as_object_mut().expect("an object");
        body_fields.extend(more.as_object().expect("an object").clone());
        server.post("/v1/completions", &body)
    };
    let all = ask(json!({ "n": 2, "best_of": 3, "temperature": 0 })).json();
    let choices = all["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    let mean = |choice: &Value| {
        let all = choice["logprobs"]["token_logprobs"]
            .as_array()
            .expect("a list");
        all.iter().filter_map(Value::as_f64).sum::<f64>() / all.len() as f64
    };
    for pair in choices.chunks(2) {
        assert!(mean(&pair[0]) >= mean(&pair[1]) - 1e-9, "the best first");
    }
    // nothing is sampled, so a temperature changes nothing
    let again = ask(json!({ "n": 2, "best_of": 3, "temperature": 1.5, "seed": 3 })).json();
    assert_eq!(again["choices"], all["choices"]);
    let greedy = json!({ "prompt": "What is", "max_tokens": 6, "temperature": 0 });
    let greedy = server.post("/v1/completions", &greedy).json();
    let one = ask(json!({})).json();
    assert_eq!(one["choices"][1]["text"], greedy["choices"][0]["text"]);

    let chat = |more: Value| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "1+1=" }], "max_tokens": 6, "n": 2,
        });
        let body_fields = body.as_object_mut().expect("an object");
        body_fields.extend(more.as_object().expect("an object").clone());
        server.post("/v1/chat/completions", &body)
    };
    let answer = chat(json!({ "use_beam_search": true, "length_penalty": 0.5 }));
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["choices"].as_array().map(Vec::len), Some(2));
    let beams = json!({ "use_beam_search": true, "stream": true });
    for (answer, param) in [
        (chat(beams.clone()), "stream"),
        (ask(beams), "stream"),
        (ask(json!({ "best_of": 16 })), "best_of"),
        (ask(json!({ "length_penalty": 11 })), "length_penalty"),
        (ask(json!({ "use_beam_search": "yes" })), "use_beam_search"),
        (
            chat(json!({ "use_beam_search": true, "best_of": 1 })),
            "best_of",
        ),
    ] {
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text);
    }
}
