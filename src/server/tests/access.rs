//! Access: keys, origins, and host names.

use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, read, small};

const MODEL_ROUTES: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/completion",
    "/infill",
];

#[test]
fn with_a_key_nothing_of_the_model_is_open() {
    let options = Options {
        keys: vec!["right".to_owned(), "other".to_owned()],
        ..Options::default()
    };
    let server = Server::new(small(), options);
    let ask = |path: &str, headers: &str| {
        let method = if MODEL_ROUTES.contains(&path) {
            "POST"
        } else {
            "GET"
        };
        read(server.send(method, path, headers, b"{}")).status
    };
    let shown = [
        "/v1/models",
        "/v1/models/octavo",
        "/props",
        "/slots",
        "/metrics",
    ];
    for path in MODEL_ROUTES.into_iter().chain(shown) {
        for headers in [
            "",
            "authorization: Bearer wrong\r\n",
            "authorization: Basic right\r\n",
            "authorization: right\r\n",
            "x-api-key: wrong\r\n",
        ] {
            assert_eq!(ask(path, headers), 401, "{path} {headers}");
        }
        for headers in ["authorization: Bearer right\r\n", "x-api-key: other\r\n"] {
            assert_ne!(ask(path, headers), 401, "{path} {headers}");
        }
    }
    for path in ["/health", "/v1/health", "/ready", "/live", "/"] {
        assert_eq!(ask(path, ""), 200, "{path}");
    }
    // a client still sending a large body sees the error too
    let much = vec![b' '; 6 << 20];
    for _ in 0..10 {
        let answer = read(server.send("POST", "/v1/chat/completions", "", &much));
        assert_eq!(answer.status, 401);
    }
}

#[test]
fn pages_of_other_sites_are_turned_away() {
    let server = Server::usual();
    let body = br#"{"content": "a"}"#;
    let ask = |headers: &str| read(server.send("POST", "/tokenize", headers, body)).status;
    assert_eq!(ask(""), 200);
    assert_eq!(ask("origin: https://example.org\r\n"), 403);
    assert_eq!(ask(&format!("origin: http://{}\r\n", server.address)), 200);
    // a foreign host name that was pointed at this machine
    let mut stream = server.connect();
    let text = "GET /slots HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, text.as_bytes()).expect("it reads");
    assert_eq!(read(stream).status, 403);
    let open = Options {
        origins: vec!["https://example.org".to_owned()],
        ..Options::default()
    };
    let server = Server::new(small(), open);
    let headers = "origin: https://example.org\r\n";
    // the browser sends a preflight request
    let asked = read(server.send("OPTIONS", "/tokenize", headers, b""));
    assert_eq!(asked.status, 200);
    let with_names =
        format!("{headers}access-control-request-headers: content-type, x-stainless-os\r\n");
    let more = read(server.send("OPTIONS", "/tokenize", &with_names, b""));
    let all = "Access-Control-Allow-Headers: content-type, x-stainless-os\r";
    assert!(more.head.contains(all), "{}", more.head);
    let allowed = "access-control-allow-origin: https://example.org";
    assert!(
        asked.head.to_ascii_lowercase().contains(allowed),
        "{}",
        asked.head
    );
    let foreign = read(server.send("OPTIONS", "/tokenize", "origin: https://a.b\r\n", b""));
    assert_eq!(foreign.status, 200);
    let head = foreign.head.to_ascii_lowercase();
    assert!(!head.contains("access-control"), "{head}");
    assert_eq!(
        read(server.send("POST", "/tokenize", headers, body)).status,
        200
    );
}

#[test]
fn pages_of_this_machine_can_be_allowed_on_any_port() {
    let options = Options {
        origins: vec!["localhost".to_owned()],
        ..Options::default()
    };
    let server = Server::new(small(), options);
    let is_allowed = |origin: &str| {
        let headers = format!("origin: {origin}\r\n");
        let asked = read(server.send("OPTIONS", "/tokenize", &headers, b""));
        let body = br#"{"content": "a"}"#;
        let status = read(server.send("POST", "/tokenize", &headers, body)).status;
        let line = format!("access-control-allow-origin: {origin}\r");
        let is_shared = asked.head.to_ascii_lowercase().contains(&line);
        assert_eq!((asked.status, status == 200), (200, is_shared), "{origin}");
        is_shared
    };
    for own in [
        "http://localhost",
        "https://localhost:5173",
        "http://127.0.0.1:3000",
        "http://[::1]:3000",
    ] {
        assert!(is_allowed(own), "{own}");
    }
    for other in [
        "http://notlocalhost",
        "http://localhost.evil.com",
        "http://10.0.0.1:3000",
        "localhost",
        "null",
    ] {
        assert!(!is_allowed(other), "{other}");
    }
}

#[test]
fn a_model_is_known_by_its_names() {
    let options = Options {
        strict_model: true,
        ..Options::default()
    };
    let server = Server::named(&["a", "b/c"], options);
    let ask = |model: Value| {
        let body = json!({ "prompt": "1", "max_tokens": 1, "model": model });
        server.post("/v1/completions", &body).status
    };
    for (model, status) in [("a", 200), ("b/c", 200), ("", 200), ("gpt", 404)] {
        assert_eq!(ask(json!(model)), status, "{model}");
    }
    assert_eq!((ask(Value::Null), ask(json!(1))), (200, 400));
    // answers have the requested model name
    for (path, input) in [
        ("/v1/completions", "prompt"),
        ("/completion", "prompt"),
        ("/v1/embeddings", "input"),
        ("/v1/responses", "input"),
    ] {
        for (asked, told) in [("a", "a"), ("b/c", "b/c"), ("", "a")] {
            let body =
                json!({ (input): "1", "model": asked, "max_tokens": 1, "max_output_tokens": 1 });
            assert_eq!(
                server.post(path, &body).json()["model"],
                told,
                "{path} {asked}"
            );
        }
    }
    assert_eq!(server.get("/v1/models/b/c").json()["id"], "b/c");
    assert_eq!(server.get("/v1/models/gpt").status, 404);
    assert_eq!(
        server.get("/v1/models/%ff").json()["error"]["code"],
        "model_not_found"
    );
    // one model is listed once
    let list = server.get("/v1/models").json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["data"][0]["id"], "a");
    assert_eq!(list["data"][0]["aliases"], json!(["a", "b/c"]));
    assert_eq!(list["models"][0]["capabilities"], json!(["completion"]));
}

#[test]
fn the_page_may_load_nothing_but_itself() {
    let page = Server::usual().get("/");
    assert_eq!(page.status, 200);
    let head = page.head.to_ascii_lowercase();
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(page.text.contains("<title>"));
}

/// Requests a route under a host name; returns status and text.
fn by_name(server: &Server, path: &str, host: &str) -> (u16, String) {
    let mut stream = server.connect();
    let text = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, text.as_bytes()).expect("it reads");
    let answer = read(stream);
    (answer.status, answer.text)
}

#[test]
fn a_name_of_this_machine_is_allowed_by_name_and_probes_by_any() {
    let usual = Server::usual();
    let port = usual.address.port();
    for host in [
        "localhost".to_owned(),
        format!("LOCALHOST:{port}"),
        format!("[::1]:{port}"),
    ] {
        assert_eq!(by_name(&usual, "/v1/models", &host).0, 200, "{host}");
    }
    let (status, text) = by_name(&usual, "/v1/models", "llm.example.org");
    assert_eq!(status, 403);
    assert!(
        text.contains("llm.example.org") && text.contains("allow-host"),
        "{text}"
    );
    for path in ["/health", "/v1/health", "/ready", "/live"] {
        assert_eq!(by_name(&usual, path, "llm.example.org").0, 200, "{path}");
    }
    let named = |name: &str| {
        let options = Options {
            allowed_hosts: vec![name.to_owned()],
            ..Options::default()
        };
        Server::new(small(), options)
    };
    let server = named("llm.example.org");
    assert_eq!(by_name(&server, "/v1/models", "LLM.example.org:443").0, 200);
    assert_eq!(by_name(&server, "/v1/models", "example.org").0, 403);
    assert_eq!(by_name(&named("*"), "/v1/models", "example.org").0, 200);
}

#[test]
fn all_routes_stand_behind_a_prefix() {
    let options = Options {
        prefix: "/octavo/one".to_owned(),
        ..Options::default()
    };
    let server = Server::new(small(), options);
    assert_eq!(server.get("/octavo/one/health").status, 200);
    assert_eq!(server.get("/octavo/one/v1/models").status, 200);
    let body = json!({ "prompt": "1", "max_tokens": 1 });
    assert_eq!(server.post("/octavo/one/v1/completions", &body).status, 200);
    for path in [
        "/",
        "/health",
        "/v1/models",
        "/octavo",
        "/octavo/one/nothing",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.json()["error"]["message"].is_string(), "{path}");
    }
    assert!(server.get("/octavo/one/").text.contains("<title>"));
    // relative addresses of the page resolve from there
    let bare = server.get("/octavo/one");
    assert_eq!(bare.status, 308);
    assert!(
        bare.head
            .to_ascii_lowercase()
            .contains("location: /octavo/one/\r"),
        "{}",
        bare.head
    );
}
