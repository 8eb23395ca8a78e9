//! Tests of the `octavo` program: output and exit codes.

mod bad_input;
mod bench;
mod bit_allocation;
mod constraints;
mod devices;
mod diff;
mod embed;
mod facts;
mod folders;
mod gguf;
mod graph;
mod hostile;
mod hub;
mod images;
mod kept;
mod keys;
mod lacking;
#[cfg(unix)]
mod listening;
mod llama_options;
mod lora;
mod messages;
mod models;
mod nodes;
mod options;
mod outputs;
mod perplexity;
mod prompt_cache;
mod quant_report;
mod quantize;
#[path = "../../tools/xtask/src/busy/quota.rs"]
mod quota;
mod references;
mod refusals;
mod running;
mod serve;
mod several;
mod shards;
mod signals;
mod speculative;
mod threads;

use std::path::PathBuf;
use std::process::{Output, Stdio};

use assert_cmd::Command;
use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use tempfile::TempDir;

/// Returns a command that runs the program without any configuration of the user.
fn octavo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command
        .args(args)
        .env("XDG_STATE_HOME", "/dev/null/none")
        .env_remove("RUST_BACKTRACE");
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8 on stdout")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8 on stderr")
}

/// Runs a command that must succeed; returns its output.
pub(crate) fn good(args: &[&str]) -> String {
    let output = octavo(args).output().expect("the program runs");
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

pub(crate) fn json(args: &[&str]) -> serde_json::Value {
    let text = good(args);
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Runs a command that must fail with this code and one line of error, without text on stdout;
/// returns the line.
pub(crate) fn bad(args: &[&str], code: i32) -> String {
    let output = octavo(args).output().expect("the program runs");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert_eq!(stdout(&output), "", "{args:?}");
    let notes = [
        "octavo: no MODEL given",
        "octavo: on the CPU: ",
        // printed only on a very busy machine
        "octavo: loading: ",
    ];
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| !notes.iter().any(|note| line.starts_with(note)))
        .collect();
    assert_eq!(errors.len(), 1, "{args:?}: expected one line, got {text}");
    assert!(errors[0].starts_with("octavo: error: "), "{text}");
    errors[0].to_owned()
}

/// Runs a command with a closed reader of stdout: an error, because its text is lost.
fn fails_unread(args: &[&str]) {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_octavo"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    let said = stderr(&output);
    let error = "octavo: error: stdout: closed before everything was written\n";
    assert!(said.ends_with(error), "{args:?}: {said}");
}

/// Writes a file with the demo model's keys, changed by `change`, and its tensors if `tensors`.
fn variant(
    dir: &TempDir,
    name: &str,
    tensors: bool,
    change: impl FnOnce(&mut Writer<'_>),
) -> PathBuf {
    let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default())
        .expect("sound");
    let path = dir.path().join(name);
    let mut writer = Writer::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    for t in demo.tensors().iter().filter(|_| tensors) {
        writer.tensor(&t.name, &t.dims, t.ty, demo.data(t));
    }
    change(&mut writer);
    writer.write_file(&path).expect("written");
    path
}

/// Writes the demo model with two tokens swapped.
fn with_other_tokens(dir: &TempDir, name: &str) -> PathBuf {
    variant(dir, name, true, |writer| {
        let demo = octavo_engine::demo_model();
        let demo = Gguf::from_bytes(demo, "demo", &OpenOptions::default()).expect("sound");
        let tokens = demo
            .array("tokenizer.ggml.tokens")
            .expect("an array")
            .expect("tokens");
        let mut tokens: Vec<String> = tokens
            .strings()
            .into_iter()
            .flatten()
            .map(|t| String::from_utf8_lossy(t).into_owned())
            .collect();
        tokens.swap(20, 21);
        writer.set("tokenizer.ggml.tokens", tokens);
    })
}

fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder")
}
