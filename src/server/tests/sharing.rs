//! Concurrent requests: same texts as alone, returned pages, and a shutdown that waits for running
//! requests.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use octavo_engine::{BatchOptions, EngineOptions};
use octavo_server::{ModelOptions, Options};
use serde_json::{Value, json};

use crate::client::{Server, chunk, read, small};

fn prompts() -> Vec<String> {
    let stem = "What is 1+1? What is 2+2? What is 3+3? What is 4+4? ";
    (0..24)
        .map(|i| format!("{}{i}+{}=", &stem[..(i * 7) % stem.len()], i % 5))
        .collect()
}

fn body(prompt: &str) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": true })
}

fn text(server: &Server, prompt: &str) -> Value {
    let answer = server.post("/v1/completions", &body(prompt));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["choices"][0]["text"].clone()
}

fn batch(prefill_budget: u64, prefixes: bool) -> ModelOptions {
    ModelOptions {
        batch: BatchOptions {
            prefill_budget: Duration::from_millis(prefill_budget),
            prefixes,
            ..ModelOptions::default().batch
        },
        ..ModelOptions::default()
    }
}

#[test]
fn texts_are_the_same_beside_any_others_and_with_few_pages() {
    let alone = Server::usual();
    let expected: Vec<Value> = prompts()
        .iter()
        .map(|prompt| text(&alone, prompt))
        .collect();
    let mut preempted = false;
    for (pages, prefill_budget, prefixes, threads) in
        [(400, 100, true, 2), (14, 1, true, 1), (14, 1000, false, 2)]
    {
        let engine = EngineOptions {
            kv_positions: Some(pages * 16),
            threads: Some(threads),
            ..small()
        };
        let server = Server::of_model(engine, batch(prefill_budget, prefixes));
        std::thread::scope(|scope| {
            let ask = |prompt: String| {
                scope.spawn({
                    let server = &server;
                    move || text(server, &prompt)
                })
            };
            let threads: Vec<_> = prompts().into_iter().map(ask).collect();
            for (thread, expected) in threads.into_iter().zip(&expected) {
                assert_eq!(
                    &thread.join().expect("an answer"),
                    expected,
                    "{pages} pages"
                );
            }
        });
        let slots = server.idle();
        let kept = slots["pages_free"]
            .as_u64()
            .zip(slots["pages_cached"].as_u64());
        assert_eq!(kept.map(|(free, cached)| free + cached), Some(pages as u64));
        let metrics = server.get("/metrics").text;
        let line = metrics
            .lines()
            .find(|l| l.starts_with("octavo_num_preemptions_total"));
        preempted |= line.is_some_and(|line| !line.ends_with(" 0.0"));
    }
    assert!(preempted, "with 14 pages somebody had to give way");
}

#[test]
fn a_prompt_that_begins_like_another_is_not_read_again() {
    let server = Server::usual();
    let ask = || {
        let prompt = "What is 5+6? ".repeat(20);
        let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0 });
        let answer = server.post("/v1/completions", &body).json();
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        (
            answer["choices"][0]["text"].clone(),
            usage["prompt_tokens"].as_u64(),
            cached,
        )
    };
    let (cold, warm) = (ask(), ask());
    assert_eq!((cold.2, &warm.0), (Some(0), &cold.0));
    let n = cold.1.expect("a number");
    assert_eq!(
        warm.2,
        Some((n - 1) / 16 * 16),
        "all full pages but the last token's"
    );
}

/// Runs two chat turns, with a pause before the second; returns the answers, the tokens of the
/// first prompt and answer, and the number of the second's that came from the cache.
fn chat(server: &Server) -> ([Value; 2], u64, u64) {
    let first = json!({ "role": "user", "content": "What is 1+1? And what is 2+2?" });
    let ask = |messages: Value| {
        let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 100,
            "ignore_eos": true });
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let one = ask(json!([first]));
    let said = one["choices"][0]["message"].clone();
    wait_until_pages_rest(server);
    let second = json!({ "role": "user", "content": "And what is 3+3?" });
    let two = ask(json!([first, said, second]));
    let total = one["usage"]["total_tokens"].as_u64().expect("a number");
    let cached = two["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let texts = [
        said["content"].clone(),
        two["choices"][0]["message"]["content"].clone(),
    ];
    (texts, total, cached.unwrap_or(0))
}

/// Waits until the cache has not changed for a while.
fn wait_until_pages_rest(server: &Server) {
    let cached = || server.get("/cache").json()["pages_cached"].as_u64();
    let (mut before, mut same) = (cached(), 0);
    while same < 10 {
        std::thread::sleep(Duration::from_millis(30));
        let now = cached();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    let metrics = server.get("/metrics").text;
    let running = metrics
        .lines()
        .find(|line| line.starts_with("octavo_requests_running"));
    assert!(
        running.is_some_and(|line| line.ends_with(" 0.0")),
        "{running:?}"
    );
}

#[test]
fn an_answer_is_in_the_cache_when_the_chat_goes_on() {
    let server = Server::usual();
    let (texts, total, cached) = chat(&server);
    // the template's text after an answer fills at most one page
    assert!(
        cached + 16 >= total,
        "{cached} cached of a first turn of {total} tokens"
    );
    // the last answer is prefilled as a prompt, which uses a page meanwhile
    wait_until_pages_rest(&server);
    let slots = server.get("/cache").json();
    let sum = slots["pages_free"]
        .as_u64()
        .zip(slots["pages_cached"].as_u64());
    assert_eq!(
        sum.map(|(free, cached)| free + cached),
        slots["pages_total"].as_u64()
    );
    let (expected, _, none) = chat(&Server::of_model(small(), batch(100, false)));
    assert_eq!((texts, none), (expected, 0));
}

#[test]
fn who_leaves_frees_place_and_pages_at_once() {
    let engine = EngineOptions {
        sessions: 2,
        ..small()
    };
    let server = Server::new(engine, Options::default());
    for stage in 0..12 {
        let mut long = body("What is 1+1? ");
        long["max_tokens"] = json!(400);
        long["stream"] = json!(stage % 2 == 0);
        let bytes = long.to_string();
        let stream = server.send("POST", "/v1/completions", "", bytes.as_bytes());
        if stage % 2 == 0 {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).expect("a head");
            }
            for _ in 0..stage / 2 {
                chunk(&mut reader).expect("a piece");
            }
        }
        // the connection is dropped here
    }
    let slots = server.idle();
    let sum = slots["pages_free"]
        .as_u64()
        .zip(slots["pages_cached"].as_u64());
    assert_eq!(
        sum.map(|(free, cached)| free + cached),
        slots["pages_total"].as_u64()
    );
}

#[test]
fn who_is_under_way_is_answered_before_it_ends() {
    let mut server = Server::usual();
    let mut long = body("What is 1+1? ");
    long["max_tokens"] = json!(300);
    let stream = server.send("POST", "/v1/completions", "", long.to_string().as_bytes());
    while server.get("/cache").json()["requests"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {}
    server.stop.stop();
    let answer = read(stream);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 300);
    server.join();
}

#[test]
fn who_finds_no_place_is_told_when_to_come_back() {
    let engine = EngineOptions {
        sessions: 2,
        ..small()
    };
    let options = Options {
        queue: 0,
        ..Options::default()
    };
    let server = Server::new(engine, options);
    // one request with many texts does not wait for others
    let many = json!({ "prompt": vec!["1+1="; 32], "max_tokens": 2 });
    assert_eq!(server.post("/v1/completions", &many).status, 200);
    let mut long = body("What is 1+1? ");
    long["max_tokens"] = json!(480);
    let bytes = long.to_string();
    let under_way: Vec<_> = (0..2)
        .map(|_| server.send("POST", "/v1/completions", "", bytes.as_bytes()))
        .collect();
    while server.get("/cache").json()["requests"]
        .as_array()
        .is_none_or(|all| all.len() < 2)
    {}
    let answer = server.post("/v1/completions", &body("1+1="));
    assert_eq!(answer.status, 429, "{}", answer.text);
    assert!(
        answer.head.to_ascii_lowercase().contains("retry-after"),
        "{}",
        answer.head
    );
    drop(under_way);
}
