//! Bad input gives one line and the right exit code, never a backtrace.

use super::{bad, folder, octavo, stderr, variant};

#[test]
fn mistakes_in_the_arguments_exit_with_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["frobnicate"], "frobnicate"),
        (&["run"], "-p TEXT, -f FILE or a pipe"),
        (&["tokenize"], "-p TEXT, -f FILE or a pipe"),
        (&["logits"], "--tokens"),
        (&["run", "-p", "a", "-f", "b"], "--file"),
        (&["run", "-f", "b", "-e"], "--escape"),
        (&["run", "a.gguf", "-m", "b.gguf", "-p", "x"], "MODEL"),
        (&["run", "-p", "x", "--temp", "-1"], "--temp"),
        (&["run", "-p", "x", "--temp", "nan"], "--temp"),
        (&["run", "-p", "x", "--top-p", "0"], "--top-p"),
        (&["run", "-p", "x", "--min-p", "1.5"], "--min-p"),
        (&["run", "-p", "x", "--top-k", "-3"], "--top-k"),
        (
            &["run", "-p", "x", "--repeat-penalty", "0"],
            "--repeat-penalty",
        ),
        (&["run", "-p", "x", "--samplers", "infill"], "infill"),
        (
            &[
                "run",
                "-p",
                "x",
                "--samplers",
                "temperature",
                "--top-k",
                "3",
            ],
            "--top-k",
        ),
        (&["run", "-p", "x", "-n", "-7"], "-n"),
        (&["run", "-p", "x", "-t", "0"], "-t"),
        (&["run", "-p", "x", "--isa", "mmx"], "mmx"),
        (&["run", "-p", "x", "--kv-type", "q4_1"], "q4_1"),
        (&["run", "-p", "x", "--prompt-bits", "4"], "8, 13 or 16"),
        (&["run", "-p", "x", "-ctk", "q4_1"], "q4_1"),
        (
            &["run", "-p", "x", "--kv-type", "f16", "-ctv", "q8_0"],
            "--cache-type-v",
        ),
        (&["run", "-p", "x", "--stop", ""], "--stop"),
        (&["run", "-p", "x", "--logprobs", "3"], "--json"),
        (&["logits", "--tokens", "1,x"], "x"),
        (&["logits", "--tokens", "1", "-p", "x"], "--tokens"),
        (&["completions", "tcsh"], "tcsh"),
    ];
    for (args, part) in cases {
        let line = bad(args, 2);
        assert!(line.contains(part), "{args:?}: expected {part} in {line}");
    }
    let nothing = octavo(&[]).output().expect("runs");
    assert_eq!(nothing.status.code(), Some(2));
    assert!(stderr(&nothing).contains("Usage:"), "help for a bare call");
}

#[test]
fn files_that_are_no_model_exit_with_1_and_are_named() {
    let dir = folder();
    let path = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let demo = octavo_engine::demo_model();
    let files = [
        path("text.gguf", b"this is no model"),
        path("empty.gguf", b""),
        path(
            "big-endian.gguf",
            b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ),
        path("cut.gguf", &demo[..demo.len() / 2]),
        dir.path().to_str().expect("UTF-8").to_owned(),
        dir.path()
            .join("absent.gguf")
            .to_str()
            .expect("UTF-8")
            .to_owned(),
    ];
    for file in &files {
        for command in [
            &["run", "-p", "x"][..],
            &["inspect"],
            &["tokenize", "-p", "x"],
            &["logits", "-p", "x"],
            &["chat"],
        ] {
            let args = [&command[..1], &[file.as_str()], &command[1..]].concat();
            let line = bad(&args, 1);
            assert!(
                line.contains(file.as_str()),
                "{args:?}: the file is not named in {line}"
            );
        }
    }
    assert!(
        bad(&["tokenize", "-f", &files[5]], 1).contains("absent.gguf"),
        "a text that is not there"
    );
}

#[test]
fn a_faulty_key_is_named_with_expected_and_got() {
    let dir = folder();
    let file = variant(&dir, "heads.gguf", true, |w| {
        w.set("qwen3.attention.head_count_kv", 3u32);
    });
    let line = bad(&["run", file.to_str().expect("UTF-8"), "-p", "x"], 1);
    for part in [
        "heads.gguf",
        "qwen3.attention.head_count_kv",
        "expected",
        "got 3",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[test]
fn prompts_that_do_not_fit_say_both_numbers() {
    let long = "1+1=".repeat(20);
    for command in ["run", "logits"] {
        let line = bad(&[command, "-p", &long, "-c", "16"], 1);
        assert!(
            line.contains("80 tokens") && line.contains("context of 16"),
            "{line}"
        );
        assert!(bad(&[command, "-p", ""], 1).contains("no tokens"));
    }
    assert!(
        bad(&["logits", "--tokens", "1,5000"], 1).contains("5000"),
        "an id outside the vocabulary"
    );
    assert!(bad(&["run", "-p", "x", "--logit-bias", "5000+1"], 1).contains("5000"));
    assert!(bad(&["run", "-p", "x", "--stop-id", "5000"], 1).contains("5000"));
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let path = folder().path().join("absent/out.gguf");
    let line = bad(
        &["logits", "-p", "x", "--dump", path.to_str().expect("UTF-8")],
        1,
    );
    assert!(line.contains("absent"), "{line}");
}
