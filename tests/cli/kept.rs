//! Files that a command writes under names of its own: the folder of `diff --llama-cpp`, and a
//! suite's goldens.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command as Plain;

use super::outputs::Desk;
use super::{octavo, stderr};

const NOTES: &[u8] = b"octavo is what these notes are about\n";

/// Writes a fake llama-results that takes its logits from a file beside the model, or runs
/// `script`.
pub(super) fn program(desk: &Desk, script: &str) {
    let path = desk.at("llama-results");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
}

/// Script that copies the logits; its fourth argument is the file to write.
const COPIES: &str = "test \"$1\" = --version && exit; echo said; cp \"${2%.gguf}.logits\" \"$4\"";

fn compare(desk: &Desk, more: &[&str]) -> (Option<i32>, String) {
    let (model, programs, keep) = (desk.name("model.gguf"), desk.name(""), desk.name("keep"));
    let args = ["diff", &model, "--llama-cpp", &programs, "--keep", &keep];
    let output = octavo(&[&args[..], more].concat())
        .output()
        .expect("the program runs");
    (output.status.code(), stderr(&output))
}

fn desk() -> Desk {
    let desk = Desk::new();
    desk.good(
        "logits @model.gguf -p 1+1= --kv-type f32 --dump @OUT",
        "model.logits",
    );
    program(&desk, COPIES);
    desk
}

const KEPT: [&str; 5] = [
    "commands.txt",
    "prompt.txt",
    "llama-results.log",
    "llama-results.gguf",
    "report.txt",
];

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("lists");
    let mut names: Vec<String> = entries
        .map(|e| {
            e.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_kept_takes_the_place_of_what_was_kept_and_nothing_else() {
    let desk = desk();
    let (code, text) = compare(&desk, &["-p", "1+1="]);
    assert_eq!(code, Some(0), "{text}");
    let mut all = KEPT.to_vec();
    all.sort_unstable();
    assert_eq!(names(&desk.at("keep")), all);
    assert_eq!(
        fs::read(desk.at("keep/llama-results.log")).expect("there"),
        b"said\n"
    );
    let commands = fs::read_to_string(desk.at("keep/commands.txt")).expect("there");
    assert!(
        commands.contains("keep/llama-results.gguf "),
        "the name under which it stays: {commands}"
    );
    // run it again
    let (code, text) = compare(&desk, &["-p", "1+1="]);
    assert_eq!(code, Some(0), "{text}");
    // the text is one of the kept files
    let (code, text) = compare(&desk, &["-f", &desk.name("keep/prompt.txt"), "--force"]);
    assert!(
        code == Some(2) && text.contains("keep/prompt.txt: is the input itself"),
        "{text}"
    );
    // a link to the model
    fs::remove_file(desk.at("keep/llama-results.gguf")).expect("removed");
    symlink(desk.at("model.gguf"), desk.at("keep/llama-results.gguf")).expect("linked");
    let model = fs::read(desk.at("model.gguf")).expect("there");
    let (code, text) = compare(&desk, &["-p", "1+1=", "--force"]);
    assert!(
        code == Some(2) && text.contains("keep/llama-results.gguf: is the input itself"),
        "{text}"
    );
    assert!(fs::read(desk.at("model.gguf")).expect("there") == model);
    // a pipe, which cannot be read again
    fs::remove_file(desk.at("keep/llama-results.gguf")).expect("removed");
    assert!(
        Plain::new("mkfifo")
            .arg(desk.at("keep/llama-results.gguf"))
            .status()
            .expect("runs")
            .success()
    );
    let (code, text) = compare(&desk, &["-p", "1+1=", "--force"]);
    assert!(
        code == Some(2) && text.contains("expected a file, which is read again"),
        "{text}"
    );
    let pipe = fs::symlink_metadata(desk.at("keep/llama-results.gguf")).expect("there");
    assert!(pipe.file_type().is_fifo());
    fs::remove_file(desk.at("keep/llama-results.gguf")).expect("removed");
    // the page is one of the kept files
    let (code, text) = compare(
        &desk,
        &[
            "-p",
            "1+1=",
            "--html",
            &desk.name("keep/report.txt"),
            "--force",
        ],
    );
    assert!(
        code == Some(2) && text.contains("keep/report.txt: is another output of this run"),
        "{text}"
    );
}

#[test]
fn other_files_of_these_names_take_force() {
    for name in KEPT {
        let desk = desk();
        fs::create_dir(desk.at("keep")).expect("made");
        let path = desk.at("keep").join(name);
        fs::write(&path, NOTES).expect("written");
        let (code, text) = compare(&desk, &["-p", "1+1="]);
        assert!(
            code == Some(2) && text.contains(name) && text.contains("--force replaces it"),
            "{text}"
        );
        assert_eq!(
            (fs::read(&path).expect("there"), names(&desk.at("keep"))),
            (NOTES.to_vec(), vec![name.to_owned()])
        );
        let (code, text) = compare(&desk, &["-p", "1+1=", "--force"]);
        assert_eq!(code, Some(0), "{text}");
        assert_ne!(fs::read(&path).expect("there"), NOTES);
    }
}

#[test]
fn a_failure_keeps_the_result_of_before_and_tells_what_was_said() {
    let desk = desk();
    assert_eq!(compare(&desk, &["-p", "1+1="]).0, Some(0));
    let before = fs::read(desk.at("keep/llama-results.gguf")).expect("there");
    program(&desk, "echo half > \"$4\"; echo no such layer >&2; exit 3");
    let (code, text) = compare(&desk, &["-p", "1+1="]);
    assert!(
        code == Some(2) && text.contains("it last said: no such layer"),
        "{text}"
    );
    assert!(fs::read(desk.at("keep/llama-results.gguf")).expect("there") == before);
    assert_eq!(names(&desk.at("keep")).len(), 5, "nothing else is left");
}

#[test]
fn goldens_take_the_place_of_goldens_and_nothing_else() {
    let desk = desk();
    let suite = "models = [\"model.gguf\"]\ngoldens = \"goldens\"\n[prompts]\nsum = \"1+1=\"\n";
    fs::write(desk.at("suite.toml"), suite).expect("written");
    let suite = desk.name("suite.toml");
    let bless = |more: &[&str]| {
        let output = octavo(&[&["diff", "--suite", &suite, "--bless"], more].concat())
            .output()
            .expect("it runs");
        (output.status.code(), stderr(&output))
    };
    let (programs, keep) = (desk.name(""), desk.name("keep"));
    let by_llama = ["--llama-cpp", &programs, "--keep", &keep];
    for more in [&[][..], &[], &by_llama, &by_llama, &[]] {
        let (code, text) = bless(more);
        assert_eq!(code, Some(0), "{more:?}: {text}");
        assert_eq!(
            names(&desk.at("goldens/model")),
            ["sum.cmd.txt", "sum.gguf"]
        );
    }
    for name in ["goldens/model/sum.gguf", "goldens/model/sum.cmd.txt"] {
        let path = desk.at(name);
        let golden = fs::read(&path).expect("there");
        fs::write(&path, NOTES).expect("written");
        let (code, text) = bless(&[]);
        assert!(
            code == Some(2) && text.contains(name) && text.contains("--force replaces it"),
            "{text}"
        );
        assert_eq!(fs::read(&path).expect("there"), NOTES);
        assert_eq!(bless(&["--force"]).0, Some(0));
        assert_eq!(fs::read(&path).expect("there"), golden);
        fs::remove_file(&path).expect("removed");
        fs::hard_link(desk.at("model.gguf"), &path).expect("linked");
        let (code, text) = bless(&["--force"]);
        assert!(
            code == Some(2) && text.contains("is the input itself"),
            "{text}"
        );
        fs::remove_file(&path).expect("removed");
    }
}
