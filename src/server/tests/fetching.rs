//! Images given by URL, in whole requests.

use std::time::Duration;

use octavo_server::{ImageHost, Options};
use serde_json::{Value, json};

use crate::images::{asked, image, image_path, seeing, text};
use crate::web::Web;

fn remote(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

fn from(hosts: &[&str]) -> Options {
    let hosts = hosts.iter().map(|host| host.parse().expect("a host"));
    Options {
        image_hosts: hosts.collect::<Vec<ImageHost>>(),
        ..Options::default()
    }
}

fn web() -> Option<Web> {
    octavo_fixtures::shared("vision")?;
    Some(Web::new(
        &std::fs::read(image_path("wide")).expect("a file"),
    ))
}

#[test]
fn an_image_is_the_same_from_wherever_it_comes() {
    let Some(web) = web() else { return };
    let server = seeing(from(&[&web.host()])).expect("the same folder");
    let ask = |image| {
        let parts = vec![text("What is in "), image, text("?")];
        server.post("/v1/chat/completions", &asked(parts)).json()
    };
    let fetched = ask(remote(&web.url("/to/2")));
    let embedded = ask(image("wide"));
    let ids = |answer: &Value| answer["choices"][0]["token_ids"].clone();
    assert_eq!(ids(&fetched).as_array().map(Vec::len), Some(8), "{fetched}");
    assert_eq!(ids(&fetched), ids(&embedded));
    // fetched images are cached by content
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(&fetched), cached(&embedded)), (json!(0), json!(32)));
    assert_eq!(cached(&ask(remote(&web.url("/bytes")))), 32);
    let body = json!({
        "input": [{ "role": "user", "content": [
            { "type": "input_text", "text": "What is in " },
            { "type": "input_image", "image_url": web.url("/image") },
            { "type": "input_text", "text": "?" },
        ] }],
        "temperature": 0,
        "max_output_tokens": 8,
    });
    let other = server.post("/v1/responses", &body).json();
    assert_eq!(
        other["output"][0]["content"][0]["text"], embedded["choices"][0]["message"]["content"],
        "{other}"
    );
    assert_eq!(
        web.asked(),
        ["/to/2", "/to/1", "/to/0", "/image", "/bytes", "/image"]
    );
}

#[test]
fn nothing_is_fetched_unless_it_is_allowed() {
    let Some(web) = web() else { return };
    let body = asked(vec![text("a"), remote(&web.url("/image"))]);
    for (options, expected) in [
        (
            Options::default(),
            "only by servers that were started with hosts to fetch images from",
        ),
        (
            from(&["public"]),
            "expected a host with a public address, found 127.0.0.1",
        ),
        (
            from(&["example.org"]),
            "expected a host that this server may fetch images from, found 127.0.0.1",
        ),
    ] {
        let server = seeing(options).expect("the same folder");
        let answer = server.post("/v1/chat/completions", &body);
        let field = "messages[0].content[1].image_url.url";
        assert_eq!((answer.status, answer.param().as_str()), (400, field));
        assert!(answer.text.contains(expected), "{}", answer.text);
        assert!(!answer.text.contains("--"), "{}", answer.text);
    }
    assert_eq!(web.asked(), [""; 0]);
}

#[test]
fn what_is_fetched_is_read_as_any_image_is() {
    let Some(good) = web() else { return };
    let bad = Web::new(b"no image at all");
    let server = seeing(from(&[&good.host(), &bad.host()])).expect("the same folder");
    // the second image is the wrong one, and the responses API has its own name for it
    let body = json!({ "input": [{ "role": "user", "content": [
        { "type": "input_image", "image_url": good.url("/image") },
        { "type": "input_image", "image_url": bad.url("/image") },
    ] }] });
    let answer = server.post("/v1/responses", &body);
    let field = "input[0].content[1].image_url";
    assert_eq!((answer.status, answer.param().as_str()), (400, field));
    let body = asked(vec![remote(&bad.url("/text"))]);
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 400);
    assert!(
        answer.text.contains("found \\\"text/html"),
        "{}",
        answer.text
    );
    server.idle();
}

#[test]
fn who_leaves_ends_the_fetching_and_who_stays_is_not_held_up() {
    let Some(web) = web() else { return };
    let server = seeing(from(&[&web.host()])).expect("the same folder");
    let body = asked(vec![remote(&web.url("/slow"))]).to_string();
    let client = server.send("POST", "/v1/chat/completions", "", body.as_bytes());
    while web.asked().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // other requests are answered meanwhile, with and without images
    for parts in [
        vec![text("a")],
        vec![image("wide")],
        vec![remote(&web.url("/image"))],
    ] {
        let answer = server.post("/v1/chat/completions", &asked(parts));
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    drop(client);
    web.wait_left(1);
}
