//! The number of threads and the reason given for it.

use std::process::Command;

use octavo_fixtures::{Lacks, skip};
use serde_json::Value;

use super::quota::QuotaGroup;
use super::{good, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_octavo");

/// Returns the number of threads and the reason that `inspect --devices` reports when this command,
/// which ends in the program, starts it.
fn told(mut command: Command, more: &[&str]) -> (u64, String) {
    let output = command
        .args(["inspect", "--devices", "--json"])
        .args(more)
        .output()
        .expect("the program runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let object: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let cpu = &object["cpu"];
    (
        cpu["threads"].as_u64().expect("a number"),
        cpu["threads_reason"].as_str().expect("a reason").to_owned(),
    )
}

/// Returns the number of CPUs that this process may use, as -t limits it.
fn cpus() -> u64 {
    told(Command::new(PROGRAM), &["-t", "1024"]).0
}

#[test]
fn what_is_given_is_capped_and_told() {
    let cpus = cpus();
    assert_eq!(
        told(Command::new(PROGRAM), &["-t", "1"]),
        (1, "given".to_owned())
    );
    let reason = format!(
        "1024 given, of {cpus} CPU{} allowed",
        if cpus == 1 { "" } else { "s" }
    );
    assert_eq!(
        told(Command::new(PROGRAM), &["-t", "1024"]),
        (cpus, reason.clone())
    );
    let threads = format!(
        "{cpus} thread{} ({reason})",
        if cpus == 1 { "" } else { "s" }
    );
    let text = good(&["inspect", "--devices", "-t", "1024"]);
    assert!(
        text.lines()
            .next()
            .is_some_and(|line| line.ends_with(&threads)),
        "{text}"
    );
    assert!(good(&["inspect", "-t", "1024"]).contains(&format!(" with {threads}.\n")));
    let octavo = &json(&["inspect", "--json", "-t", "1024"])["octavo"];
    assert_eq!(
        (
            octavo["threads"].as_u64(),
            octavo["threads_reason"].as_str()
        ),
        (Some(cpus), Some(&*reason))
    );
    let bench = [
        "bench",
        "-p",
        "0",
        "-n",
        "1",
        "-r",
        "1",
        "--no-limits",
        "-t",
        "1,1024",
    ];
    let text = good(&bench);
    let last = text.lines().last().expect("a line");
    assert!(
        last.contains("1 thread (given): not measured; ") && last.contains(&threads),
        "{text}"
    );
    let records: Value =
        serde_json::from_str(&good(&[&bench[..], &["-o", "json"]].concat())).expect("an array");
    let of = |i: usize| {
        (
            records[i]["n_threads"].as_u64(),
            records[i]["threads_reason"].as_str(),
        )
    };
    assert_eq!(
        [of(0), of(1)],
        [(Some(1), Some("given")), (Some(cpus), Some(&*reason))]
    );
}

#[test]
fn affinity_decides() {
    let under_taskset = || {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", PROGRAM]);
        command
    };
    if !under_taskset()
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(Lacks::System, "no taskset, or not on CPU 0");
    }
    let (threads, reason) = told(under_taskset(), &[]);
    assert_eq!(threads, 1);
    // on a machine with one CPU all CPUs are allowed
    assert!(
        reason.starts_with("1 of ") && reason.ends_with(" allowed") || reason == "all CPUs",
        "{reason}"
    );
    assert_eq!(
        told(under_taskset(), &["-t", "2"]),
        (1, "2 given, of 1 CPU allowed".to_owned())
    );
}

#[test]
fn a_quota_decides() {
    for (time, threads, quota) in [(50_000, 1, "0.5"), (150_000, 2, "1.5")] {
        let group = match QuotaGroup::new(time) {
            Ok(group) => group,
            Err(why) => return skip(Lacks::System, why),
        };
        let (without, reason) = told(Command::new(PROGRAM), &[]);
        let expected = if threads < without {
            (threads, format!("a quota of {quota} CPUs"))
        } else {
            (without, reason)
        };
        assert_eq!(told(group.command(PROGRAM.as_ref()), &[]), expected);
        // a given number is not limited by the quota
        let cpus = cpus();
        assert_eq!(
            told(group.command(PROGRAM.as_ref()), &["-t", "1024"]).0,
            cpus
        );
    }
}

#[test]
fn the_rule_is_in_the_help() {
    for command in ["run", "bench", "quantize", "convert", "inspect", "diff"] {
        let help = good(&[command, "--help"])
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        for part in [
            "one for each physical performance core",
            "quota of CPUs",
            "count",
        ] {
            assert!(help.contains(part), "{command}: {help}");
        }
    }
}
