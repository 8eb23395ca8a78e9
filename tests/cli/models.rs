//! `octavo serve --models`: several models from a folder, a TOML file or a preset of llama.cpp's,
//! as a program.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::serve::{Serving, read, serve, serve_in};
use super::{bad, folder};
use crate::standin::Standin;
use octavo_engine::demo_model;
use octavo_fixtures::shared;
use octavo_fixtures::tiny::File;

/// Writes small models of random weights.
fn write(folder: &Path, names: &[&str]) {
    for name in names {
        fs::write(folder.join(name), File::running("qwen3").bytes()).expect("written");
    }
}

/// Sends a GET request, or a POST request with a body, and returns the answer's status and JSON.
fn ask(serving: &Serving, path: &str, body: Option<&str>) -> (u16, Value) {
    let answer = read(serving.send(path, body));
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let json = serde_json::from_str(body).unwrap_or(Value::Null);
    (status.expect("a status"), json)
}

/// Returns the ids of the models with their states.
fn models(serving: &Serving) -> Vec<(String, String)> {
    let (_, list) = ask(serving, "/v1/models", None);
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let models = list["data"].as_array().expect("a list").iter();
    models
        .map(|model| (text(&model["id"]), text(&model["status"]["value"])))
        .collect()
}

fn completion(serving: &Serving, model: &str) -> (u16, Value) {
    let body = format!(r#"{{"model": {model:?}, "prompt": "a", "max_tokens": 2}}"#);
    ask(serving, "/v1/completions", Some(&body))
}

#[test]
fn a_file_of_models_has_their_options() {
    let dir = folder();
    write(dir.path(), &["one.gguf", "two.gguf"]);
    let file = dir.path().join("models.toml");
    let text = r#"
version = 1
["*"]
parallel = 2
c = 64
[first]
path = "one.gguf"
aliases = ["uno", "x:1b"]
ctx-size = 32
temp = 0.5
lookup = "off"
chat-template-kwargs = { enable_thinking = false }
[second]
model = "two.gguf"
no-cache-prompt = true
reuse-generated = false
load-on-startup = true
[broken]
path = "missing.gguf"
"#;
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let serving = serve(&["--models", file, "--models-max", "2", "--top-k", "7"]);
    let (status, props) = ask(&serving, "/props?model=uno", None);
    assert_eq!(status, 200, "{props}");
    let settings = &props["default_generation_settings"];
    // the model's own, the file's for all, and the command line's
    assert_eq!(
        (&settings["n_ctx"], &props["total_slots"]),
        (&32.into(), &2.into())
    );
    let params = &settings["params"];
    assert_eq!(
        (&params["temperature"], &params["top_k"]),
        (&0.5.into(), &7.into())
    );
    let (_, props) = ask(&serving, "/props?model=second", None);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 64);
    assert_eq!(completion(&serving, "x:1b").0, 200);
    let (status, error) = completion(&serving, "broken");
    let message = error["error"]["message"].as_str().expect("text").to_owned();
    assert_eq!(status, 500);
    assert!(
        message.contains("\"broken\"") && message.contains("missing.gguf"),
        "{message}"
    );
    let state = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    let expected = [
        state("broken", "unloaded"),
        state("first", "loaded"),
        state("second", "loaded"),
    ];
    let mut found = models(&serving);
    found.sort();
    assert_eq!(found, expected);
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn a_preset_of_llama_cpps_has_its_models() {
    let dir = folder();
    write(dir.path(), &["one.gguf", "two.gguf"]);
    let file = dir.path().join("presets.ini");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (one, two) = (at("one.gguf"), at("two.gguf"));
    let text = format!(
        "version = 1\n[*]\nnp = 2 ; for all\njinja = true\nmmap = 1\nflash-attn = on\n\
         [first]\nm = {one}\nLLAMA_ARG_CTX_SIZE = 32\ntemp = 0.5\ncont-batching = 1\n\
         chat-template-kwargs = {{\"enable_thinking\": false}}\n\
         [second]\nmodel = {two}\nc = 64\nmmap = 0\nload-on-startup = 1\n\
         [none/of-these:q8_0]\nc = 16\n"
    );
    fs::write(&file, &text).expect("written");
    let path = file.to_str().expect("UTF-8");
    let serving = serve_in(&[("OCTAVO_TOP_K", "7")], &["--models", path, "--offline"]);
    let (status, props) = ask(&serving, "/props?model=first", None);
    assert_eq!(status, 200, "{props}");
    let settings = &props["default_generation_settings"];
    let found = (&settings["n_ctx"], &props["total_slots"]);
    assert_eq!(found, (&32.into(), &2.into()));
    // the environment comes before files, too
    let found = (
        &settings["params"]["temperature"],
        &settings["params"]["top_k"],
    );
    assert_eq!(found, (&0.5.into(), &7.into()));
    assert_eq!(completion(&serving, "second").0, 200);
    let (_, error) = completion(&serving, "none/of-these:Q8_0");
    let message = error["error"]["message"].as_str().expect("text");
    assert!(message.contains("none/of-these"), "{message}");
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));

    for (text, says) in [
        ("c = 1\n", "presets.ini: line 1: expected [NAME] before c"),
        (
            "[a]\nc = 1\n",
            "presets.ini: [a] path: expected the model's file or name",
        ),
        (
            "[a]\nm = m.gguf\ncolour = red\n",
            "line 3: [a] colour: expected an option",
        ),
        (
            "[a]\nm = m.gguf\nport = 80\n",
            "line 3: [a] port: expected a model's option",
        ),
        (
            "[a]\nm = m.gguf\nnuma = x\n",
            "line 3: [a] numa: octavo has no --numa",
        ),
        ("[a]\nm = m.gguf\nc = many\n", "[a] invalid value 'many'"),
    ] {
        fs::write(&file, text).expect("written");
        let error = bad(&["serve", "--models", path, "--port", "0"], 1);
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn a_folder_has_its_models_and_no_other_files() {
    let Some(images) = shared("vision") else {
        return;
    };
    let dir = folder();
    write(
        dir.path(),
        &["b.gguf", "part-00001-of-00002.gguf", ".hidden.gguf"],
    );
    fs::write(dir.path().join("part-00002-of-00002.gguf"), "second").expect("written");
    fs::write(dir.path().join("notes.txt"), "none").expect("written");
    let mut adapter = File::running("qwen3");
    adapter.set("general.type", "adapter");
    fs::write(dir.path().join("adapter.gguf"), adapter.bytes()).expect("written");
    let inner = dir.path().join("seeing");
    fs::create_dir(&inner).expect("created");
    for (name, from) in [
        ("seeing.gguf", "vl-a-text-F32.gguf"),
        ("mmproj-F32.gguf", "vl-a-mmproj-F32.gguf"),
    ] {
        fs::copy(images.join(from), inner.join(name)).expect("copied");
    }
    let path = dir.path().to_str().expect("UTF-8");
    let serving = serve(&["--models-dir", path, "-c", "64", "--parallel", "2"]);
    let names: Vec<String> = models(&serving).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["b", "part", "seeing"]);
    assert!(
        models(&serving)
            .iter()
            .all(|(_, state)| state == "unloaded")
    );
    assert_eq!(completion(&serving, "b").0, 200);
    let (_, props) = ask(&serving, "/props?model=seeing", None);
    assert_eq!(props["modalities"]["vision"], true, "{props}");
    assert_eq!(completion(&serving, "part").0, 200);
    assert_eq!(completion(&serving, "../b").0, 404);
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn the_hubs_cache_has_models_by_repository_and_type() {
    let dir = folder();
    let commit = "0123456789012345678901234567890123456789";
    let snapshot = dir.path().join("models--user--repo/snapshots").join(commit);
    fs::create_dir_all(&snapshot).expect("created");
    write(
        &snapshot,
        &["m-Q8_0.gguf", "m-Q4_0.gguf", "other-Q4_0.gguf"],
    );
    let environment = [("HF_HUB_CACHE", dir.path().to_str().expect("UTF-8"))];
    let serving = serve_in(&environment, &["--models", "hf:", "-c", "64"]);
    let mut names: Vec<String> = models(&serving).into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "user/repo/other-Q4_0.gguf",
            "user/repo:Q4_0",
            "user/repo:Q8_0"
        ]
    );
    assert_eq!(completion(&serving, "user/repo:Q8_0").0, 200);
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn models_of_the_hub_are_downloaded_listed_and_deleted() {
    let standin = Standin::start();
    standin.add("u/r", "tiny-Q4_K_M.gguf", demo_model());
    let home = folder();
    let cache = home.path().join("hub");
    let environment = [
        ("HF_ENDPOINT", standin.url.as_str()),
        ("HF_HUB_CACHE", cache.to_str().expect("UTF-8")),
    ];
    let serving = serve_in(&environment, &["--models-max", "1", "-c", "64"]);
    assert_eq!(models(&serving), []);
    let body = r#"{"model": "u/r:Q4_K_M"}"#;
    assert_eq!(ask(&serving, "/models", Some(body)).0, 200);
    let state = |state: &str| [("u/r:Q4_K_M".to_owned(), state.to_owned())];
    let start = Instant::now();
    while models(&serving) != state("unloaded") {
        let found = models(&serving);
        assert!(start.elapsed() < Duration::from_secs(30), "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(completion(&serving, "u/r:Q4_K_M").0, 200);
    for (body, says) in [
        (r#"{"model": "../../etc"}"#, "USER/REPO"),
        (r#"{"model": "hf:https://u/r"}"#, "USER/REPO"),
        (r#"{"model": 1}"#, "a string"),
        ("{}", "model"),
    ] {
        let (status, answer) = ask(&serving, "/models", Some(body));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(says), "{answer}");
    }
    let deleted = serving.send_as("DELETE", "/models?model=u/r:Q4_K_M", "");
    let deleted = read(deleted.expect("it listens"));
    assert!(deleted.contains(r#"{"success":true}"#), "{deleted}");
    assert_eq!(models(&serving), []);
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn the_only_model_is_unloaded_and_loaded_again_with_its_options() {
    let dir = folder();
    write(dir.path(), &["only.gguf"]);
    let path = dir.path().join("only.gguf");
    let path = path.to_str().expect("UTF-8");
    let options = ["--idle-unload", "1", "-c", "48", "--alias", "a,b"];
    let serving = serve(&[&[path][..], &options].concat());
    let loaded = |state: &str| [("a".to_owned(), state.to_owned())];
    assert_eq!(models(&serving), loaded("loaded"));
    let start = Instant::now();
    while models(&serving) != loaded("unloaded") {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (status, props) = ask(&serving, "/props", None);
    assert_eq!((status, &props["model_path"]), (200, &path.into()));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 48);
    assert_eq!(completion(&serving, "b").1["model"], "b");
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

/// Files of models that are wrong, and parts of their errors.
const WRONG: &[(&str, &str)] = &[
    ("[a", "models.toml: line 1: "),
    ("x = 1\n", "models.toml: x: expected a table"),
    ("version = 2\n", "version: expected a table"),
    ("[a]\n", "[a] path: expected the model's file or name"),
    (
        "[\"\"]\npath = \"m.gguf\"\n",
        "expected a model's name, found an empty one",
    ),
    (
        "[a]\npath = \"m.gguf\"\nctx-sise = 4\n",
        "[a] ctx-sise: expected an option",
    ),
    (
        "[a]\npath = \"m.gguf\"\nctx-size = \"many\"\n",
        "[a] invalid value 'many' for '--ctx-size",
    ),
    (
        "[a]\npath = \"m.gguf\"\nctx-size = true\n",
        "'true' for '--ctx-size",
    ),
    (
        "[a]\npath = \"m.gguf\"\nctx-size = 1979-05-27\n",
        "[a] ctx-size: expected a text",
    ),
    (
        "[a]\npath = \"m.gguf\"\nc = 4\nctx-size = 5\n",
        "ctx-size: expected the option once",
    ),
    (
        "[a]\npath = \"m.gguf\"\nno-mmap = 1\n",
        "[a] no-mmap: expected true or false",
    ),
    (
        "[a]\npath = \"m.gguf\"\nport = 80\n",
        "[a] port: expected a model's option",
    ),
    (
        "[a]\npath = \"m.gguf\"\nmodels = \"x\"\n",
        "[a] models: expected a model's option",
    ),
    (
        "[a]\npath = \"m.gguf\"\nno-jinja = true\n",
        "[a] no-jinja: octavo has no --no-jinja",
    ),
    (
        "[a]\npath = \"m.gguf\"\n--temp = 1\n",
        "[a] --temp: expected an option",
    ),
    (
        "[a]\npath = \"m.gguf\"\ndraft = \"none.gguf\"\n",
        "none.gguf",
    ),
    (
        "[a]\npath = \"m.gguf\"\nload-on-startup = 1\n",
        "load-on-startup: expected true or false",
    ),
    (
        "[a]\npath = \"m.gguf\"\nalias = \"b\"\n[b]\npath = \"m.gguf\"\n",
        "found \"b\" for \"a\" and \"b\"",
    ),
];

#[test]
fn a_wrong_file_of_models_is_refused_with_its_key() {
    let dir = folder();
    write(dir.path(), &["m.gguf"]);
    let file = dir.path().join("models.toml");
    for &(text, says) in WRONG {
        fs::write(&file, text).expect("written");
        let path = file.to_str().expect("UTF-8");
        let error = bad(&["serve", "--models", path, "--port", "0"], 1);
        assert!(error.contains(says), "{text}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
}

#[test]
fn a_file_of_models_that_is_none_is_refused() {
    let dir = folder();
    let file = dir.path().join("models.toml");
    fs::write(&file, [0xff, 0xfe, 0]).expect("written");
    let path = file.to_str().expect("UTF-8");
    assert!(bad(&["serve", "--models", path, "--port", "0"], 1).contains("models.toml: "));
    assert!(
        bad(&["serve", "--models", "/nowhere/models", "--port", "0"], 1)
            .contains("/nowhere/models: ")
    );
    bad(&["serve", "m.gguf", "--models", path], 2);
    bad(&["serve", "m.gguf", "--models-max", "2"], 2);
}
