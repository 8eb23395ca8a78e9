//! Runs the examples of docs/clusters.md, extracted from the page: one shard of eight is killed the
//! first time, and the merged output equals that of one run.
#![cfg(unix)]

mod slurm;

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use octavo_fixtures::{Lacks, skip};

use super::*;

/// Wrapper found on the path before the program: shard 3 is killed the first time, as if its
/// machine had failed.
const WRAPPER: &str = r#"#!/bin/sh
case "$*" in *"--shard 3/8 "*)
    if mkdir killed 2>/dev/null; then
        "$OCTAVO" "$@" &
        kill -9 $!
        wait $!
        exit $?
    fi
esac
exec "$OCTAVO" "$@"
"#;

/// Returns the output of one run.
fn whole(desk: &Desk) -> String {
    desk.good("perplexity @model.gguf -f @text.txt -t 1")
}

/// Creates a folder as the examples have it, with text for a few chunks of 512 tokens more than
/// there are shards.
fn site() -> Desk {
    let desk = Desk::new();
    let text = std::fs::read(desk.at("text.txt")).expect("there");
    std::fs::write(desk.at("text.txt"), text.repeat(12)).expect("written");
    std::fs::create_dir(desk.at("bin")).expect("made");
    std::fs::write(desk.at("bin/octavo"), WRAPPER).expect("written");
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(desk.at("bin/octavo"), all).expect("changed");
    desk
}

/// Returns the block of the page that has this name.
fn example(name: &str) -> String {
    let page = workspace_root().join("docs/clusters.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let marked = page.split(&format!("clusters.rs: {name} -->")).nth(1);
    let block = marked.and_then(|rest| rest.split("```").nth(1));
    let block = block.unwrap_or_else(|| panic!("{name} is on the page"));
    let (_, lines) = block.split_once('\n').expect("a language");
    lines.to_owned()
}

/// Runs a program in the folder, with our program on its path.
fn run_in(desk: &Desk, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Plain::new(program)
        .args(args)
        .current_dir(desk.0.path())
        .env("PATH", format!("{}:{path}", desk.name("bin")))
        .env("HOME", desk.0.path())
        .env("OCTAVO", env!("CARGO_BIN_EXE_octavo"))
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn runs(program: &str, args: &[&str], says: &str) -> bool {
    let output = Plain::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success() && stdout(&output).contains(says))
}

fn is_merged(desk: &Desk) {
    assert!(desk.at("killed").is_dir(), "no shard was killed");
    let merged = std::fs::read_to_string(desk.at("perplexity.txt")).expect("merged");
    assert_eq!(merged, whole(desk));
}

#[test]
fn gnu_parallel() {
    if !runs("parallel", &["--version"], "GNU parallel") {
        skip(Lacks::System, "GNU parallel is not installed");
        return;
    }
    let desk = site();
    let output = run_in(&desk, "bash", &["-c", &example("parallel")], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    is_merged(&desk);
}

/// Runs the command of the Job for each index, again for the killed one.
#[test]
fn an_indexed_job() {
    let page = example("kubernetes");
    let (_, command) = page.split_once(">-\n").expect("a command");
    let (command, _) = command.split_once("volumeMounts").expect("an end");
    let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let desk = site();
    for index in 0..8 {
        let index = index.to_string();
        let run = || {
            let variables = [("JOB_COMPLETION_INDEX", index.as_str())];
            run_in(&desk, "sh", &["-c", &command], &variables)
                .status
                .code()
        };
        let tries: Vec<Option<i32>> = [run(), run()].to_vec();
        assert_eq!(tries[1], Some(0), "{index}");
        assert_eq!(tries[0] == Some(0), index != "2", "{index}: {tries:?}");
    }
    let shards: String = (1..=8).map(|i| format!(" @{i}.shard")).collect();
    assert_eq!(desk.good(&format!("merge{shards}")), whole(&desk));
}

#[test]
fn ray_tasks() {
    if !runs("python3", &["-c", "import ray; print('ray')"], "ray") {
        skip(Lacks::System, "Python's ray is not installed");
        return;
    }
    let desk = site();
    let output = run_in(&desk, "python3", &["-c", &example("ray")], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    is_merged(&desk);
}
