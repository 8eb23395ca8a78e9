//! Images in requests, with the shared folder's small vision model.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::shared;
use octavo_kernels::KvType;
use octavo_server::{ModelOptions, Options};
use octavo_vision::pixels::{Limits, TokenLimits};
use octavo_vision::{Encoder, EncoderCache};
use serde_json::{Value, json};

use crate::client::{Server, small};

/// Starts a server with vision; `None` if the shared folder is absent.
pub(crate) fn seeing(options: Options) -> Option<Server> {
    let folder: PathBuf = shared("vision")?;
    let of_engine = octavo_engine::EngineOptions {
        kv_type: KvType::F32.both(),
        ..small()
    };
    let source = ModelSource::Path(folder.join("vl-a-text-F32.gguf"));
    let engine = Engine::load(&source, &of_engine, &mut |_| {}).expect("it loads");
    let tower = Gguf::open(
        &folder.join("vl-a-mmproj-F32.gguf"),
        &OpenOptions::default(),
    );
    let of_tower = EngineOptions {
        threads: Some(2),
        ..EngineOptions::default()
    };
    let tower = Arc::new(tower.expect("a tower"));
    let encoder = Encoder::load(&tower, &of_tower, 256, &mut |_| {}).expect("it loads");
    let (limits, cells) = (Limits::default(), TokenLimits::default());
    let encoder_cache =
        EncoderCache::new(&engine, encoder, limits, cells).expect("made for the model");
    Some(Server::with(
        engine,
        ModelOptions {
            encoder_cache: Some(Arc::new(encoder_cache)),
            ..ModelOptions::default()
        },
        options,
    ))
}

/// Returns the path of an image in the shared folder.
pub(crate) fn image_path(name: &str) -> PathBuf {
    let path = shared(&format!("vision/images/{name}.png")).expect("it is there");
    path.canonicalize().expect("a file")
}

/// Returns an image as a data URL.
fn url(name: &str) -> String {
    let bytes = std::fs::read(image_path(name)).expect("a file");
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

pub(crate) fn image(name: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url(name) } })
}

pub(crate) fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

pub(crate) fn asked(parts: Vec<Value>) -> Value {
    json!({
        "messages": [{ "role": "user", "content": parts }],
        "temperature": 0,
        "max_tokens": 8,
        "return_token_ids": true,
    })
}

#[test]
fn a_completion_takes_images_where_its_text_has_markers() {
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    let ask = |text: &str, data: Value| {
        let prompt = json!({ "prompt_string": text, "multimodal_data": data });
        let body = json!({ "prompt": prompt, "n_predict": 4, "temperature": 0 });
        server.post("/completion", &body)
    };
    let data = |name: &str| {
        let url = url(name);
        json!([url.split_once(',').expect("a data URL").1])
    };
    let answer = ask("What is <__media__>?", data("photo"));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let counts = answer.json()["tokens_evaluated"].as_u64();
    let alone = ask("What is ?", json!([])).json()["tokens_evaluated"].as_u64();
    assert!(counts > alone, "{counts:?} {alone:?}");
    assert!(answer.json()["content"].is_string());
    for (text, data) in [
        ("What is this?", data("photo")),
        ("<__media__>", json!(["malformed"])),
        ("<__media__>", json!([1])),
    ] {
        let answer = ask(text, data);
        assert_eq!(answer.status, 400, "{text}");
        assert!(answer.param().starts_with("prompt.multimodal_data"));
    }
    let props = server.get("/props").json();
    assert_eq!(props["media_marker"], "<__media__>");
}

#[test]
fn embeddings_take_images_where_a_text_has_markers() {
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    let seen =
        |name: &str| json!({ "prompt_string": "<__media__>?", "multimodal_data": [url(name)] });
    let body = json!({ "content": [seen("photo"), "?", seen("photo"), seen("tall")] });
    let answer = server.post("/embeddings", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let vector = |at: usize| &answer[at]["embedding"][0];
    assert!(vector(0).as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(vector(0), vector(2));
    assert_ne!(vector(0), vector(1));
    assert_ne!(vector(0), vector(3));
    // OpenAI's route has the same; one prompt needs no list
    let one = server.post("/v1/embeddings", &json!({ "input": seen("photo") }));
    assert_eq!(one.status, 200, "{}", one.text);
    assert_eq!(&one.json()["data"][0]["embedding"], vector(0));
    let bad = json!({ "prompt_string": "<__media__>?", "multimodal_data": ["malformed"] });
    let refused = server.post("/embeddings", &json!({ "content": ["?", bad] }));
    let place = "content[1].multimodal_data[0]".to_owned();
    assert_eq!((refused.status, refused.param()), (400, place));
    server.idle();
}

#[test]
fn images_may_be_files_of_the_servers_folder() {
    let options = Options {
        media_folder: shared("vision/images"),
        ..Options::default()
    };
    let Some(server) = seeing(options) else {
        return;
    };
    let file = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    let ask = |image: Value| {
        let parts = vec![text("What is in "), image, text("?")];
        server.post("/v1/chat/completions", &asked(parts))
    };
    let choices = |image: Value| ask(image).json()["choices"].clone();
    assert_eq!(choices(file("file://wide.png")), choices(image("wide")));
    let refused = ask(file("file://../wide.png"));
    let place = "messages[0].content[1].image_url.url".to_owned();
    assert_eq!(
        (refused.status, refused.param()),
        (400, place),
        "{}",
        refused.text
    );
}

/// Returns llama.cpp's greedy continuation of a golden.
fn golden(name: &str) -> Vec<i32> {
    let path = shared(&format!("vision/goldens/{name}.safetensors")).expect("it is there");
    let bytes = std::fs::read(path).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let array = file.tensor("generated").expect("it goes on");
    let values = array.data().chunks_exact(4);
    values
        .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
        .collect()
}

#[test]
fn answers_about_images_are_llama_cpps() {
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    assert_eq!(server.get("/props").json()["modalities"]["vision"], true);
    let one = asked(vec![text("What is in "), image("wide"), text("?")]);
    let two = asked(vec![
        text("Compare "),
        image("photo"),
        text("\nand "),
        image("tall"),
        text(". Which is larger?"),
    ]);
    for (body, name, prompt) in [(&one, "one", 33), (&two, "two", 70), (&one, "one", 33)] {
        let answer = server.post("/v1/chat/completions", body).json();
        assert_eq!(answer["usage"]["prompt_tokens"], prompt, "{answer}");
        assert_eq!(
            answer["choices"][0]["token_ids"],
            json!(golden(name)),
            "{answer}"
        );
    }
    // the third image was sent before: its pages are cached
    let again = server.post("/v1/chat/completions", &one).json();
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached, 32, "{again}");
    // the same through the responses API, whose image is a string
    let body = json!({
        "input": [{ "role": "user", "content": [
            { "type": "input_text", "text": "What is in " },
            { "type": "input_image", "image_url": url("wide") },
            { "type": "input_text", "text": "?" },
        ] }],
        "temperature": 0,
        "max_output_tokens": 8,
    });
    let other = server.post("/v1/responses", &body).json();
    assert_eq!(
        other["output"][0]["content"][0]["text"], again["choices"][0]["message"]["content"],
        "{other}"
    );
}

#[test]
fn images_that_are_none_are_named() {
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    let part = |url: Value| json!({ "type": "image_url", "image_url": url });
    for (bad, field) in [
        (
            part(json!({ "url": "https://example.org/a.png" })),
            "image_url.url",
        ),
        (
            part(json!({ "url": "data:image/png;base64,AAAA" })),
            "image_url.url",
        ),
        (part(json!("file:///etc/passwd")), "image_url"),
        (part(json!({ "uri": "x" })), "image_url"),
        (part(Value::Null), "image_url"),
    ] {
        let answer = server.post("/v1/chat/completions", &asked(vec![text("a"), bad]));
        let param = format!("messages[0].content[1].{field}");
        assert_eq!(
            (answer.status, answer.param()),
            (400, param),
            "{}",
            answer.text
        );
    }
    let many = vec![image("wide"); 65];
    assert_eq!(
        server.post("/v1/chat/completions", &asked(many)).status,
        400
    );
    // user text is never parsed as an image marker
    let answer = server.post("/v1/chat/completions", &asked(vec![text("<__media__>")]));
    assert_eq!(answer.status, 200, "{}", answer.text);
    // and image tokens cannot be given by id
    let body = json!({ "prompt": [2_147_483_648u32], "max_tokens": 1 });
    assert_eq!(server.post("/v1/completions", &body).status, 400);
    server.idle();
}
