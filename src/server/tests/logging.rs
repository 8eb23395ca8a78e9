//! The server's request log.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use octavo_server::{LogEvent, LogSink, Options, RequestRecord};
use serde_json::json;

use crate::client::{Server, read, small};

/// Request id of a warning, if any, and its text.
type Warning = (Option<String>, String);

/// Records and warnings, in order.
#[derive(Clone, Default)]
struct LogRecords {
    records: Arc<Mutex<Vec<RequestRecord>>>,
    warnings: Arc<Mutex<Vec<Warning>>>,
}

impl LogRecords {
    fn server(&self) -> Server {
        let records = self.clone();
        let log = LogSink::new(move |event| match event {
            LogEvent::Request(record) => records.records.lock().expect("held").push(record.clone()),
            LogEvent::Warning { request, text } => {
                let warning = (request.map(str::to_owned), text.to_owned());
                records.warnings.lock().expect("held").push(warning);
            }
        });
        let options = Options {
            log,
            ..Options::default()
        };
        Server::new(small(), options)
    }

    /// Returns the record of a request by id; it may arrive after the answer.
    fn of(&self, id: &str) -> RequestRecord {
        let start = Instant::now();
        loop {
            let records = self.records.lock().expect("held");
            if let Some(record) = records.iter().find(|record| record.id == id) {
                return record.clone();
            }
            drop(records);
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "no record of {id}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn each_request_has_a_record_and_its_name_comes_back() {
    let records = LogRecords::default();
    let server = records.server();
    for (id, stream) in [("whole", false), ("streamed", true)] {
        let body = json!({ "prompt": "What is 1+1? What is 2+2?", "max_tokens": 5, "n": 2,
                           "ignore_eos": true, "stream": stream });
        let headers = format!("x-request-id: {id}\r\n");
        let body = body.to_string();
        let path = "/v1/completions?key=secret";
        let answer = read(server.send("POST", path, &headers, body.as_bytes()));
        assert_eq!(answer.status, 200, "{}", answer.text);
        let head = answer.head.to_ascii_lowercase();
        assert!(head.contains(&format!("x-request-id: {id}\r")), "{head}");
        let record = records.of(id);
        assert_eq!(
            (&*record.method, &*record.route),
            ("POST", "/v1/completions")
        );
        assert_eq!((record.status, record.is_whole), (200, true));
        assert_eq!(record.generated_tokens, 10, "{record:?}");
        assert!(record.prompt_tokens > 10 && record.cached_tokens < record.prompt_tokens);
        assert!(
            record
                .first_token
                .is_some_and(|first| first <= record.duration)
        );
        assert_eq!(record.error, None);
        assert!(!record.is_probe);
    }
}

#[test]
fn what_fails_says_why_and_what_is_hostile_is_harmless() {
    let records = LogRecords::default();
    let server = records.server();
    let ask = |id: &str, path: &str, body: &str| {
        let headers = format!("x-request-id: {id}\r\n");
        read(server.send("POST", path, &headers, body.as_bytes()))
    };
    let bad = json!({ "prompt": "a", "temperature": "\u{1b}[31m\nforged" }).to_string();
    assert_eq!(ask("bad", "/v1/completions", &bad).status, 400);
    let record = records.of("bad");
    assert_eq!(record.status, 400);
    let error = record.error.expect("a reason");
    assert!(error.starts_with("temperature"), "{error}");
    assert!(!error.chars().any(char::is_control), "{error:?}");

    let long = format!("/{}", "x".repeat(5000));
    assert_eq!(ask("long", &long, "{}").status, 404);
    assert!(records.of("long").route.chars().count() < 200);

    // an invalid id is replaced by a generated one
    let answer = ask("two words", "/tokenize", r#"{"content": "a"}"#);
    let head = answer.head.to_ascii_lowercase();
    assert!(head.contains("x-request-id: req-"), "{head}");

    read(server.send("GET", "/health", "x-request-id: probe\r\n", b""));
    assert!(records.of("probe").is_probe);
}

#[test]
fn whoever_leaves_early_is_told_of() {
    let records = LogRecords::default();
    let server = records.server();
    let body = json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let body = body.to_string();
    let headers = "x-request-id: left\r\n";
    let mut stream = server.send("POST", "/v1/completions", headers, body.as_bytes());
    std::io::Read::read_exact(&mut stream, &mut [0; 64]).expect("it begins");
    drop(stream);
    assert!(!records.of("left").is_whole);
}

#[test]
fn a_warning_names_its_request() {
    let records = LogRecords::default();
    let server = records.server();
    let body = json!({ "prompt": "a", "max_tokens": 1, "samplers": ["top_k", "a\nb"] });
    let headers = "x-request-id: warned\r\n";
    let body = body.to_string();
    read(server.send("POST", "/v1/completions", headers, body.as_bytes()));
    records.of("warned");
    let warnings = records.warnings.lock().expect("held");
    let [(request, text)] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert_eq!(request.as_deref(), Some("warned"));
    assert!(text.contains("samplers") && !text.contains('\n'), "{text}");
}

#[test]
fn demands_that_no_grammar_holds_are_told_of_in_the_answer_and_the_log() {
    let records = LogRecords::default();
    let server = records.server();
    let schema = json!({ "type": "array", "uniqueItems": true, "items": { "type": "integer" },
                         "maxItems": 2 });
    let body = json!({ "prompt": "a", "max_tokens": 20, "guided_json": schema }).to_string();
    // the second time the constraint is already compiled
    for id in ["first", "second"] {
        let headers = format!("x-request-id: {id}\r\n");
        let answer = read(server.send("POST", "/v1/completions", &headers, body.as_bytes()));
        assert!(answer.text.contains("uniqueItems"), "{}", answer.text);
        records.of(id);
        let warnings = records.warnings.lock().expect("held");
        let (request, text) = warnings.last().expect("a warning");
        assert_eq!(request.as_deref(), Some(id));
        assert!(text.contains("uniqueItems"), "{text}");
    }
}
