//! Monitoring routes, and the shutdown as they report it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, read, small};

/// Returns a request with enough texts to take seconds.
fn long(texts: usize) -> Value {
    json!({ "prompt": vec!["What is 1+1? "; texts], "temperature": 0, "max_tokens": 450,
        "ignore_eos": true })
}

/// Sends a request, and waits until it runs.
fn begin(server: &Server, body: &Value) -> TcpStream {
    let stream = server.send("POST", "/v1/completions", "", body.to_string().as_bytes());
    while server.get("/cache").json()["requests"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {}
    stream
}

/// Sends a request on a keep-alive connection; returns its status, and whether the server announces
/// that it closes the connection.
fn ask_on(connection: &mut BufReader<TcpStream>, path: &str) -> (String, bool) {
    let address = connection.get_ref().peer_addr().expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let sent = connection.get_mut().write_all(request.as_bytes());
    sent.expect("it reads");
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).expect("a head");
        assert!(!line.is_empty(), "closed before it answered: {head}");
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    connection
        .read_exact(&mut vec![0; length])
        .expect("the body");
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    (status, head.contains("connection: close"))
}

#[test]
fn who_watches_is_told_at_once_that_it_will_end() {
    let mut server = Server::usual();
    let mut kept = BufReader::new(server.connect());
    for path in ["/health", "/v1/health", "/ready", "/live"] {
        assert_eq!(ask_on(&mut kept, path), ("200".to_owned(), false), "{path}");
    }
    let under_way = begin(&server, &long(8));
    server.stop.stop();
    // no signal handler and no thread in between: the next request sees it
    while server.get("/ready").status == 200 {}
    for path in ["/health", "/v1/health"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 503, "{path}: {}", answer.text);
        assert!(answer.text.contains("shutting down"), "{}", answer.text);
    }
    assert_eq!(server.get("/live").status, 200);
    let refused = server.post("/v1/completions", &json!({ "prompt": "1+1=" }));
    assert_eq!(refused.status, 503, "{}", refused.text);
    let head = refused.head.to_ascii_lowercase();
    assert!(head.contains("\r\nretry-after: "), "{head}");
    // the connection is closed rather than left for a request that would get no answer
    let last = ("503".to_owned(), true);
    assert_eq!(ask_on(&mut kept, "/health"), last);
    assert_eq!(kept.read(&mut [0]).expect("it is closed"), 0);
    let answer = read(under_way);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 8 * 450);
    server.join();
}

#[test]
fn the_time_for_answers_is_limited_and_a_second_word_ends_it() {
    for (drain, times) in [(Duration::from_millis(200), 1), (Duration::from_mins(1), 2)] {
        let options = Options {
            drain,
            ..Options::default()
        };
        let mut server = Server::new(small(), options);
        let under_way = begin(&server, &long(64));
        let start = Instant::now();
        (0..times).for_each(|_| server.stop.stop());
        let answer = read(under_way);
        assert_eq!(answer.status, 503, "{drain:?}: {}", answer.text);
        assert!(answer.text.contains("shutting down"), "{}", answer.text);
        server.join();
        let took = start.elapsed();
        assert!(times == 2 || took >= drain, "{took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// Returns the names in `/metrics` with their values, without labels.
fn numbers(server: &Server) -> Vec<(String, String)> {
    let text = server.get("/metrics").text;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let name = name.split('{').next().unwrap_or(name);
        (name.to_owned(), value.to_owned())
    };
    lines.map(pair).collect()
}

/// vLLM's names that routers and autoscalers read, each with our equivalent name.
const READ: [(&str, &str); 14] = [
    ("vllm:num_requests_running", "octavo_requests_running"),
    ("vllm:num_requests_waiting", "octavo_requests_waiting"),
    ("vllm:kv_cache_usage_perc", "octavo_kv_cache_usage_ratio"),
    ("vllm:gpu_cache_usage_perc", "octavo_kv_cache_usage_ratio"),
    (
        "vllm:prefix_cache_queries_total",
        "octavo_prefix_cache_queries_total",
    ),
    (
        "vllm:prefix_cache_hits_total",
        "octavo_prefix_cache_hits_total",
    ),
    (
        "vllm:gpu_prefix_cache_queries_total",
        "octavo_prefix_cache_queries_total",
    ),
    (
        "vllm:gpu_prefix_cache_hits_total",
        "octavo_prefix_cache_hits_total",
    ),
    ("vllm:prompt_tokens_total", "octavo_prompt_tokens_total"),
    (
        "vllm:generation_tokens_total",
        "octavo_generation_tokens_total",
    ),
    ("vllm:request_success_total", "octavo_request_success_total"),
    (
        "vllm:time_to_first_token_seconds_count",
        "octavo_time_to_first_token_seconds_count",
    ),
    ("vllm:gpu_prefix_cache_hit_rate", ""),
    ("vllm:cache_config_info", ""),
];

#[test]
fn numbers_have_our_names_and_vllms_where_they_are_asked_for() {
    let ask = |server: &Server| {
        let prompt = "What is 5+6? ".repeat(20);
        let body = json!({ "prompt": prompt, "max_tokens": 3, "ignore_eos": true });
        for _ in 0..2 {
            assert_eq!(server.post("/v1/completions", &body).status, 200);
        }
        server.idle();
    };
    let server = Server::usual();
    ask(&server);
    let ours = numbers(&server);
    let is_ours = |name: &str| name.starts_with("octavo_") || name.starts_with("llamacpp:");
    let foreign = ours.iter().find(|(name, _)| !is_ours(name));
    assert_eq!(foreign, None);

    let both = Options {
        vllm_names: true,
        ..Options::default()
    };
    let server = Server::new(small(), both);
    ask(&server);
    let found = numbers(&server);
    let value = |metric: &str| {
        let one = found.iter().find(|(name, _)| name == metric);
        let (_, value) = one.unwrap_or_else(|| panic!("{metric} is not there"));
        value.parse::<f64>().expect("a number")
    };
    for (theirs, own) in READ {
        let theirs = value(theirs);
        if !own.is_empty() {
            assert!((theirs - value(own)).abs() < 1e-9, "{own}");
        }
    }
    for (name, _) in ours {
        value(&name);
    }
    let (queries, hits) = (
        value("octavo_prefix_cache_queries_total"),
        value("octavo_prefix_cache_hits_total"),
    );
    let rate = value("vllm:gpu_prefix_cache_hit_rate");
    assert!(hits > 0.0 && (rate - hits / queries).abs() < 1e-9, "{rate}");
    let text = server.get("/metrics").text;
    assert!(
        text.contains("# TYPE vllm:cache_config_info gauge") && text.contains("block_size=\"16\""),
        "{text}"
    );
}
