//! `POST /slots/{id}`: pages of a slot in a file, and the prompt cache's figures.

use std::path::Path;

use octavo_engine::{EngineOptions, PromptCacheOptions};
use octavo_server::{ModelOptions, Options};
use serde_json::{Value, json};

use crate::client::{Answer, Server, small};

fn start(folder: Option<&Path>) -> Server {
    start_with(folder, &[])
}

fn start_with(folder: Option<&Path>, keys: &[&str]) -> Server {
    let engine = EngineOptions {
        slot_dir: folder.map(Path::to_owned),
        ..small()
    };
    let options = Options {
        slot_folder: folder.map(Path::to_owned),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..Options::default()
    };
    Server::new(engine, options)
}

fn prompt(n: usize) -> String {
    format!("{n}+1=2 1+{n}=3 ").repeat(12)
}

/// Returns the text and the number of cached tokens.
fn ask(server: &Server, prompt: &str, slot: i64) -> (Value, u64) {
    let body = json!({
        "prompt": prompt, "n_predict": 4, "temperature": 0, "id_slot": slot,
    });
    let answer = server.post("/completion", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let cached = answer["tokens_cached"].as_u64().expect("a number");
    (answer["content"].clone(), cached)
}

fn act(server: &Server, slot: &str, action: &str, body: &Value) -> Answer {
    server.post(&format!("/slots/{slot}?action={action}"), body)
}

#[test]
fn a_slot_goes_on_in_another_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = json!({ "filename": "one.bin" });
    let first = start(Some(folder.path()));
    let (text, _) = ask(&first, &prompt(1), 1);
    // who names no slot has the first
    let (other, _) = ask(&first, &prompt(2), -1);
    let saved = act(&first, "1", "save", &name).json();
    let pages = saved["n_saved"].as_u64().expect("tokens");
    assert!(pages > 64 && pages.is_multiple_of(16), "{saved}");
    let bytes = std::fs::metadata(folder.path().join("one.bin"))
        .expect("a file")
        .len();
    assert_eq!(saved["n_written"], bytes);
    assert_eq!(
        (&saved["id_slot"], &saved["filename"]),
        (&json!(1), &json!("one.bin"))
    );
    assert!(saved["timings"]["save_ms"].is_number());
    let two = act(&first, "0", "save", &json!({ "filename": "two.bin" })).json();
    assert!(two["n_saved"].as_u64() > Some(64), "{two}");
    // the same again writes over its own file
    assert_eq!(act(&first, "1", "save", &name).status, 200);
    drop(first);
    let second = start(Some(folder.path()));
    let restored = act(&second, "0", "restore", &name).json();
    assert_eq!(restored["n_restored"], pages, "{restored}");
    assert_eq!(restored["n_read"], bytes);
    assert!(restored["timings"]["restore_ms"].is_number());
    let (again, cached) = ask(&second, &prompt(1), 0);
    assert_eq!(again, text);
    assert!(cached + 16 >= pages, "{cached} of {pages}");
    assert_eq!(ask(&second, &prompt(2), 1), (other, 0));
    // a slot that was erased is computed again
    second.idle();
    let erased = act(&second, "0", "erase", &json!({})).json();
    assert!(erased["n_erased"].as_u64() >= Some(pages), "{erased}");
    assert_eq!(ask(&second, &prompt(1), 0), (text, 0));
}

#[test]
fn bad_actions_and_files_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(Some(folder.path()));
    let good = json!({ "filename": "good" });
    let check = |answer: Answer, status: u16, word: &str| {
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.text.contains(word), "{word}: {}", answer.text);
    };
    check(act(&server, "0", "save", &good), 400, "no full page");
    ask(&server, &prompt(1), 0);
    assert_eq!(act(&server, "0", "save", &good).status, 200);
    for name in [
        "",
        "../up",
        "a/b",
        "a\\b",
        "..",
        ".",
        "a:b",
        " a",
        "a\n",
        &"x".repeat(256),
    ] {
        for action in ["save", "restore"] {
            let body = json!({ "filename": name });
            check(act(&server, "0", action, &body), 400, "without a path");
        }
    }
    check(act(&server, "0", "save", &json!({})), 400, "filename");
    check(
        act(&server, "0", "restore", &json!({ "filename": 7 })),
        400,
        "filename",
    );
    check(act(&server, "99", "save", &good), 400, "slot 99");
    check(act(&server, "x", "save", &good), 400, "slot x");
    check(act(&server, "0", "melt", &good), 400, "erase");
    check(
        act(&server, "0", "restore", &json!({ "filename": "none" })),
        400,
        "none",
    );
    // a file of something else is neither read nor written over
    std::fs::write(folder.path().join("notes"), "keep me").expect("written");
    let notes = json!({ "filename": "notes" });
    check(act(&server, "0", "save", &notes), 400, "notes");
    check(act(&server, "0", "restore", &notes), 400, "damaged");
    let path = folder.path().join("good");
    let mut bytes = std::fs::read(&path).expect("a file");
    for at in [60, bytes.len() - 1] {
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        check(act(&server, "0", "restore", &good), 400, "damaged");
        bytes[at] ^= 1;
    }
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .collect();
    assert_eq!(names.len(), 2, "good and notes: {names:?}");
    check(
        act(&start(None), "0", "save", &good),
        501,
        "folder for slots",
    );
}

/// Which prompts were computed is told by how long an answer takes, so a key has its own slots.
#[test]
fn a_key_sees_no_slots_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_with(Some(folder.path()), &["one", "two"]);
    let send = |key: &str, path: &str, body: &Value| {
        let headers = format!("authorization: Bearer {key}\r\n");
        let body = body.to_string();
        crate::client::read(server.send("POST", path, &headers, body.as_bytes()))
    };
    let body = json!({ "prompt": prompt(1), "n_predict": 1, "id_slot": 0 });
    assert_eq!(send("one", "/completion", &body).status, 200);
    let name = json!({ "filename": "mine" });
    assert_eq!(send("two", "/slots/0?action=save", &name).status, 400);
    assert_eq!(send("one", "/slots/0?action=save", &name).status, 200);
    let answer = send("two", "/slots/0?action=restore", &name);
    assert!(
        answer.status == 400 && answer.text.contains("API key"),
        "{}",
        answer.text
    );
    assert_eq!(send("one", "/slots/0?action=restore", &name).status, 200);
    assert_eq!(send("none", "/slots/0?action=restore", &name).status, 401);
}

#[test]
fn the_prompt_cache_on_disk_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = EngineOptions {
        prompt_cache: Some(PromptCacheOptions {
            dir: folder.path().to_owned(),
            max_bytes: 1 << 30,
        }),
        ..small()
    };
    let serve = || Server::of_model(engine.clone(), ModelOptions::default());
    let text = ask(&serve(), &prompt(1), 0).0;
    let server = serve();
    let (again, cached) = ask(&server, &prompt(1), 0);
    assert_eq!(again, text);
    assert!(cached > 64 && cached.is_multiple_of(16), "{cached}");
    let disk = server.get("/cache").json()["disk"].clone();
    assert_eq!(disk["restored_tokens"], cached, "{disk}");
    assert!(
        disk["bytes"].as_u64() > Some(0) && disk["files"].as_u64() > Some(0),
        "{disk}"
    );
    assert_eq!(disk["last_failure"], Value::Null);
    let metrics = server.get("/metrics").text;
    for name in ["restored_tokens_total", "bytes", "files", "failures_total"] {
        assert!(
            metrics.contains(&format!("octavo_prompt_cache_{name}{{")),
            "{name}: {metrics}"
        );
    }
    let plain = Server::usual();
    assert_eq!(plain.get("/cache").json()["disk"], Value::Null);
    assert!(!plain.get("/metrics").text.contains("octavo_prompt_cache"));
}
