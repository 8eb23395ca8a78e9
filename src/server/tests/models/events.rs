//! `/models/sse`: the changes of the models' states.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use octavo_server::ModelLimits;
use serde_json::{Value, json};

use super::support::{COMPLETIONS, asks, demo, serving};
use crate::client::{Server, ok};

/// Reads the next event of a stream.
pub(super) fn next(reader: &mut impl BufRead) -> Option<Value> {
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).expect("a line") == 0 {
            return None;
        }
        if let Some(data) = line.strip_prefix("data: ") {
            return Some(serde_json::from_str(data).expect("JSON"));
        }
    }
}

/// Begins to read the events.
pub(super) fn begin(server: &Server) -> BufReader<TcpStream> {
    let mut reader = BufReader::new(server.send("GET", "/models/sse", "", b""));
    // until the stream has begun
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).expect("a head");
    }
    reader
}

#[test]
fn changes_of_models_are_streamed() {
    let (a, b) = (demo(), demo());
    let server = serving(
        &[(&["a", "alias"], &a), (&["b"], &b)],
        ModelLimits::default(),
    );
    let mut reader = begin(&server);
    let expect = |reader: &mut BufReader<_>, model: &str, status: Value| {
        // states before it may be told too
        loop {
            let event = next(reader).expect("an event");
            assert_eq!(
                (&event["model"], &event["event"]),
                (&json!(model), &json!("model_status"))
            );
            if event["data"] == status {
                return;
            }
        }
    };
    a.set_open(false);
    let waiting = super::support::send(&server, COMPLETIONS, &asks("alias"));
    expect(&mut reader, "a", json!({ "status": "loading" }));
    a.set_open(true);
    expect(&mut reader, "a", json!({ "status": "loaded" }));
    assert_eq!(crate::client::read(waiting).status, 200);
    ok(&server, "/models/unload", &json!({ "model": "a" }));
    expect(&mut reader, "a", json!({ "status": "unloaded" }));
    b.failures.store(1, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(server.post(COMPLETIONS, &asks("b")).status, 500);
    expect(
        &mut reader,
        "b",
        json!({ "status": "unloaded", "failed": true }),
    );
    // it ends with the server
    server.stop.stop();
    while next(&mut reader).is_some() {}
}
