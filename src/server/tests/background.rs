//! Responses in the background that are streamed, dropped and streamed again.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Server, ok, read};

const PATH: &str = "/v1/responses";

/// Returns a request for an answer of `n` tokens.
fn asked(server: &Server, n: usize) -> Value {
    let ends = json!({ "content": "<|im_end|><|endoftext|>", "parse_special": true });
    let ends = ok(server, "/tokenize", &ends)["tokens"].take();
    let ends = ends.as_array().expect("ids").iter();
    let bias = ends.map(|id| (id.to_string(), json!(-100)));
    json!({
        "input": "1+1=", "temperature": 0, "max_output_tokens": n, "background": true,
        "stream": true, "logit_bias": bias.collect::<serde_json::Map<_, _>>(),
    })
}

fn events(pieces: &[String]) -> Vec<Value> {
    let value = |piece: &String| serde_json::from_str(piece).expect("JSON");
    pieces.iter().map(value).collect()
}

fn streamed(server: &Server, path: &str) -> Vec<Value> {
    let answer = server.get(path);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.head.contains("text/event-stream"), "{}", answer.head);
    let lines = answer.text.lines();
    let pieces = lines.filter_map(|line| line.strip_prefix("data: "));
    events(&pieces.map(str::to_owned).collect::<Vec<_>>())
}

fn number(event: &Value) -> u64 {
    event["sequence_number"].as_u64().expect("a number")
}

#[test]
fn a_stream_is_the_same_as_in_the_foreground_and_is_resumed_anywhere() {
    let server = Server::usual();
    let all = events(&server.stream(PATH, &asked(&server, 24)));
    let mut foreground = asked(&server, 24);
    foreground["background"] = json!(false);
    let plain = events(&server.stream(PATH, &foreground));
    let deltas = |events: &[Value]| -> String {
        let texts = events.iter().filter_map(|event| event["delta"].as_str());
        texts.collect()
    };
    assert_eq!(deltas(&all), deltas(&plain));
    let last = all.last().expect("an end");
    assert_eq!(last["type"], "response.incomplete");
    let numbers: Vec<u64> = all.iter().map(number).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());

    let id = all[0]["response"]["id"].as_str().expect("an id");
    let path = format!("{PATH}/{id}");
    assert_eq!(server.get(&path).json(), last["response"]);
    assert_eq!(streamed(&server, &format!("{path}?stream=true")), all);
    let after = |n: usize| streamed(&server, &format!("{path}?stream=true&starting_after={n}"));
    for n in [0, 3, all.len() - 2] {
        assert_eq!(after(n), all[n + 1..], "after {n}");
    }
    for n in [all.len() - 1, 99999, usize::MAX] {
        assert!(after(n).is_empty(), "after {n}");
    }
    for (query, param) in [
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("starting_after=1", "starting_after"),
    ] {
        let answer = server.get(&format!("{path}?{query}"));
        assert_eq!((answer.status, &*answer.param()), (400, param), "{query}");
    }
    // one that was not streamed from the background has no events
    let whole = json!({ "input": "1", "max_output_tokens": 1 });
    let whole = ok(&server, PATH, &whole);
    let id = whole["id"].as_str().expect("an id");
    let answer = server.get(&format!("{PATH}/{id}?stream=true"));
    assert_eq!((answer.status, &*answer.param()), (400, "stream"));
    let answer = server.get(&format!("{PATH}/resp_0?stream=true"));
    assert_eq!(answer.status, 404);
}

/// Begins a stream, and reads it up to the response's id; returns that and the rest.
fn begun(server: &Server, body: &Value) -> (String, impl Read + use<>) {
    let stream = server.send("POST", PATH, "", body.to_string().as_bytes());
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        let n = reader.read_line(&mut line).expect("a line");
        assert!(n > 0, "it ended");
        if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).expect("JSON");
            let id = event["response"]["id"].as_str().expect("an id");
            return (id.to_owned(), reader);
        }
    }
}

#[test]
fn the_work_goes_on_without_its_client() {
    let server = Server::usual();
    let (id, rest) = begun(&server, &asked(&server, 300));
    drop(rest);
    let path = format!("{PATH}/{id}?stream=true&starting_after=1");
    // two that listen to the rest at the same time get the same
    let both = std::thread::scope(|scope| {
        let listen = || streamed(&server, &path);
        let both = [scope.spawn(listen), scope.spawn(listen)];
        both.map(|thread| thread.join().expect("a stream"))
    });
    assert_eq!(both[0], both[1]);
    let last = both[0].last().expect("an end");
    assert_eq!(last["response"]["usage"]["output_tokens"], 300);
    assert_eq!(number(&both[0][0]), 2);
}

#[test]
fn a_cancelled_stream_ends() {
    let server = Server::usual();
    let mut body = asked(&server, 450);
    body["temperature"] = json!(1);
    let (id, mut rest) = begun(&server, &body);
    let path = format!("{PATH}/{id}");
    let cancelled = ok(&server, &format!("{path}/cancel"), &json!({}));
    let (start, mut text) = (Instant::now(), Vec::new());
    rest.read_to_end(&mut text).expect("an end");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(server.get(&path).json(), cancelled);

    // so does one that is deleted
    let (id, mut rest) = begun(&server, &body);
    let deleted = read(server.send("DELETE", &format!("{PATH}/{id}"), "", b""));
    assert_eq!(deleted.status, 200);
    rest.read_to_end(&mut text).expect("an end");
    server.idle();
}
