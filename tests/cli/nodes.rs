//! Tensor-parallel ranks in one process, as on a machine with several NUMA nodes.

use octavo_fixtures::{Lacks, skip};

use super::{bad, good, json};

/// Returns whether there are two CPUs, which two ranks need; reports the skipped test if not.
fn has_two_cpus() -> bool {
    let cpu = json(&["inspect", "--devices", "--json", "-t", "1024"]);
    let has_two = cpu["cpu"]["threads"].as_u64() >= Some(2);
    if !has_two {
        skip(Lacks::System, "a second CPU");
    }
    has_two
}

#[test]
fn two_ranks_say_what_one_says() {
    if !has_two_cpus() {
        return;
    }
    let commands: [&[&str]; 4] = [
        &[
            "run",
            "-p",
            "1+1=",
            "-n",
            "40",
            "--temp",
            "0",
            "--ignore-eos",
        ],
        &[
            "run", "-p", "Once", "-n", "40", "--temp", "0.9", "--seed", "3", "--isa", "scalar",
        ],
        &[
            "logits",
            "-p",
            "The sun rose over the hill",
            "--all",
            "--json",
        ],
        &[
            "perplexity",
            "-f",
            concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"),
            "--chunks",
            "2",
        ],
    ];
    for command in commands {
        let on_ranks = [command, &["--numa", "ranks=2", "-t", "1"]].concat();
        assert_eq!(good(command), good(&on_ranks), "{command:?}");
    }
    let table = good(&[
        "bench", "-p", "16", "-n", "4", "-r", "1", "--numa", "ranks=2",
    ]);
    assert!(table.contains("tg4"), "{table}");
}

#[test]
fn one_rank_is_the_program_as_always() {
    let run = ["run", "-p", "1+1=", "-n", "8", "--temp", "0"];
    assert_eq!(
        good(&run),
        good(&[&run[..], &["--numa", "ranks=1"]].concat())
    );
}

#[test]
fn what_cannot_be_divided_is_refused() {
    for what in ["nodes", "ranks=", "ranks=0", "ranks=x", "ranks2"] {
        let line = bad(&["run", "-p", "x", "--numa", what], 2);
        assert!(
            line.contains("expected ranks, or ranks=N with N from 1"),
            "{line}"
        );
    }
    let line = bad(&["run", "-p", "x", "--numa", "ranks=100000"], 2);
    assert!(
        line.contains("--numa ranks=100000: expected at most"),
        "{line}"
    );
    let line = bad(&["tokenize", "x", "--numa", "ranks"], 2);
    assert!(line.contains("--numa"), "{line}");
}
