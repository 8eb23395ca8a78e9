//! Responses that are stored: fetched, continued, computed in the background, forgotten.

use std::time::{Duration, Instant};

use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Answer, Server, ok, read, small};

const PATH: &str = "/v1/responses";

fn asked(more: Value) -> Value {
    let mut body = json!({ "input": "1+1=", "temperature": 0, "max_output_tokens": 16 });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn id(response: &Value) -> String {
    response["id"].as_str().expect("an id").to_owned()
}

fn delete(server: &Server, path: &str) -> Answer {
    read(server.send("DELETE", path, "", b""))
}

#[test]
fn a_response_is_fetched_as_it_was_sent() {
    let server = Server::usual();
    let response = ok(&server, PATH, &asked(json!({ "metadata": { "a": "b" } })));
    assert_eq!(response["store"], true);
    let path = format!("{PATH}/{}", id(&response));
    assert_eq!(server.get(&path).json(), response);
    let items = server.get(&format!("{path}/input_items")).json();
    assert_eq!(items["data"][0]["content"], "1+1=");
    assert_eq!(items["data"][0]["role"], "user");
    assert_eq!(items["first_id"], items["data"][0]["id"]);

    // streamed ones too
    let events = server.stream(PATH, &asked(json!({ "stream": true })));
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("JSON");
    let last = last["response"].clone();
    assert_eq!(last["status"], "completed");
    assert_eq!(server.get(&format!("{PATH}/{}", id(&last))).json(), last);

    let gone = delete(&server, &path).json();
    assert_eq!(gone["deleted"], true);
    assert_eq!(server.get(&path).status, 404);
    assert_eq!(delete(&server, &path).status, 404);

    let unstored = ok(&server, PATH, &asked(json!({ "store": false })));
    let path = format!("{PATH}/{}", id(&unstored));
    assert_eq!(server.get(&path).status, 404);
}

/// A response that continues another has the prompt of the whole conversation.
#[test]
fn a_response_continues_the_one_before() {
    let server = Server::usual();
    let first = ok(&server, PATH, &asked(json!({ "instructions": "Add." })));
    let text = first["output"][0]["content"][0]["text"].clone();
    let second = ok(
        &server,
        PATH,
        &asked(json!({ "input": "2+2=", "previous_response_id": id(&first) })),
    );
    assert_eq!(second["previous_response_id"], first["id"]);
    // instructions are not carried over
    let whole = json!([
        { "role": "user", "content": "1+1=" },
        { "role": "assistant", "content": text },
        { "role": "user", "content": "2+2=" },
    ]);
    let expected = ok(&server, PATH, &asked(json!({ "input": whole })));
    let tokens = |response: &Value| response["usage"]["input_tokens"].clone();
    assert_eq!(tokens(&second), tokens(&expected));
    assert_eq!(
        second["output"][0]["content"],
        expected["output"][0]["content"]
    );
    let items = server.get(&format!("{PATH}/{}/input_items", id(&second)));
    let items = items.json()["data"].as_array().cloned().expect("a list");
    assert_eq!(items.len(), 3);
    assert_eq!(items[0]["content"], "2+2=");

    let counted = ok(
        &server,
        "/v1/responses/input_tokens",
        &json!({ "input": "2+2=", "previous_response_id": id(&first) }),
    );
    assert_eq!(counted["input_tokens"], tokens(&second));
    let refused = server.post(PATH, &asked(json!({ "previous_response_id": "resp_none" })));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    let refused = server.post(PATH, &asked(json!({ "conversation": "c" })));
    assert_eq!(refused.json()["error"]["param"], "conversation");
}

#[test]
fn a_response_in_the_background_is_fetched_later() {
    let server = Server::usual();
    let background = asked(json!({ "background": true }));
    let begun = ok(&server, PATH, &background);
    assert_eq!(begun["status"], "in_progress");
    let path = format!("{PATH}/{}", id(&begun));
    let start = Instant::now();
    let response = loop {
        let response = server.get(&path).json();
        if response["status"] != "in_progress" {
            break response;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{response}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let whole = ok(&server, PATH, &asked(json!({})));
    assert_eq!(response["status"], "completed");
    assert_eq!(response["id"], begun["id"]);
    assert_eq!(
        response["output"][0]["content"],
        whole["output"][0]["content"]
    );
    // what has ended stays as it is
    let cancelled = ok(&server, &format!("{path}/cancel"), &json!({}));
    assert_eq!(cancelled, response);

    let long = asked(json!({
        "background": true, "max_output_tokens": 400, "ignore_eos": true, "temperature": 1.0,
    }));
    let begun = ok(&server, PATH, &long);
    let path = format!("{PATH}/{}", id(&begun));
    let cancelled = ok(&server, &format!("{path}/cancel"), &json!({}));
    assert!(cancelled["status"] == "cancelled" || cancelled["status"] == "completed");
    assert_eq!(server.get(&path).json(), cancelled);
    server.idle();

    let unstored = asked(json!({ "background": true, "store": false }));
    assert_eq!(server.post(PATH, &unstored).status, 400);
}

#[test]
fn callers_do_not_see_each_others_responses() {
    let options = Options {
        keys: vec!["a".to_owned(), "b".to_owned()],
        ..Options::default()
    };
    let server = Server::new(small(), options);
    let send = |method: &str, path: &str, key: &str, body: &Value| {
        let header = format!("authorization: Bearer {key}\r\n");
        let body = match method {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        read(server.send(method, path, &header, body.as_bytes()))
    };
    let response = send("POST", PATH, "a", &asked(json!({}))).json();
    let path = format!("{PATH}/{}", id(&response));
    let statuses = |key: &str| {
        let more = asked(json!({ "previous_response_id": id(&response) }));
        [
            send("GET", &path, key, &Value::Null).status,
            send("GET", &format!("{path}/input_items"), key, &Value::Null).status,
            send("POST", PATH, key, &more).status,
        ]
    };
    assert_eq!(statuses("b"), [404, 404, 400]);
    assert_eq!(statuses("a"), [200, 200, 200]);
    assert_eq!(send("DELETE", &path, "b", &Value::Null).status, 404);
    assert_eq!(send("DELETE", &path, "a", &Value::Null).status, 200);
}
