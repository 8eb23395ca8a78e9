//! Parsing of options: escapes, negative numbers, and shell completions.

use super::{bad, folder, good, json, octavo, stderr};

/// The example of stop strings in `octavo run --help`, with another model and text, stops at them.
#[test]
fn the_example_of_stop_strings_stops() {
    let help = good(&["run", "--help"]);
    let line = help
        .lines()
        .find(|line| line.contains("--stop \""))
        .expect("an example")
        .trim();
    let example = "octavo run model.gguf -f prompt.txt -e --stop \"\\n\\n\" --json";
    assert_eq!(line, example);
    let dir = folder();
    let prompt = dir.path().join("prompt.txt");
    std::fs::write(&prompt, "1+1=").expect("written");
    let prompt = prompt.to_str().expect("UTF-8");
    let feed = good(&["tokenize", "-p", "\n", "--ids"]);
    // generates only line feeds, up to eight tokens or to the second one
    let bias = format!("{}+1000", feed.trim().trim_matches(['[', ']']));
    let run = |more: &[&str]| {
        let args = [
            "run",
            "-f",
            prompt,
            "--json",
            "-n",
            "8",
            "--ignore-eos",
            "--logit-bias",
            &bias,
        ];
        json(&[&args[..], more].concat())
    };
    let stopped = run(&["-e", "--stop", r"\n\n"]);
    assert_eq!(
        (stopped["text"].as_str(), stopped["finish_reason"].as_str()),
        (Some(""), Some("stop")),
        "{stopped}"
    );
    let literal = run(&["--stop", r"\n\n"]);
    assert_eq!(literal["finish_reason"], "length", "{literal}");
    let both = json(&[
        "run",
        "-e",
        "-p",
        r"1+1=\x32",
        "--stop",
        r"\x0a",
        "--json",
        "-n",
        "20",
        "--ignore-eos",
    ]);
    assert_eq!(both["finish_reason"], "stop", "{both}");
    assert!(
        !both["text"].as_str().expect("text").contains('\n'),
        "{both}"
    );
    assert!(
        bad(&["run", "-p", "x", "-e", "--stop", r"\xff"], 2).contains("--stop 1: expected UTF-8")
    );
    assert!(bad(&["run", "-f", prompt, "-e"], 2).contains("--escape"));
    assert!(bad(&["tokenize", "-f", prompt, "-e"], 2).contains("--escape"));
    assert!(bad(&["chat", "-e"], 2).contains("--stop"));
}

#[test]
fn escapes_reach_the_stop_strings_of_a_chat() {
    let feed = good(&["tokenize", "-p", "\n", "--ids"]);
    let bias = format!("{}+1000", feed.trim().trim_matches(['[', ']']));
    let answer = |stop: &[&str]| {
        let args = [
            "chat",
            "--no-history",
            "-n",
            "6",
            "--ignore-eos",
            "--logit-bias",
            &bias,
        ];
        let mut command = octavo(&[&args[..], stop].concat());
        let output = command.write_stdin("Hi!\n").output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout)
            .expect("UTF-8")
            .matches('\n')
            .count()
    };
    assert!(answer(&["-e", "--stop", r"\n\n"]) <= 1);
    assert!(answer(&["--stop", r"\n\n"]) >= 6);
}

#[test]
fn numbers_below_0_are_values() {
    let greedy = [
        "run",
        "-p",
        "1+1=",
        "-n",
        "40",
        "--ignore-eos",
        "--repeat-penalty",
        "1.5",
        "--repeat-last-n",
    ];
    let with = |n: &str| good(&[&greedy[..], &[n]].concat());
    // -1 is the whole context, which is shorter than 4096
    assert_eq!(with("-1"), with("4096"));
    assert_ne!(with("-1"), with("0"));
    for (line, says) in [
        (
            "run -p x --repeat-last-n -2",
            "--repeat-last-n <N>': expected a whole number from -1 to",
        ),
        ("run -p x -t -1", "--threads <N>': -1 is not in 1..=1024"),
        ("run -p x -c -5", "--ctx-size <N>': -5 is not in 0.."),
        ("run -p x -b -5", "--batch-size <N>': -5 is not in 1.."),
        ("run -p x --gpu -1", "--gpu <N>': -1 is not in 0.."),
        ("run -p x -ngl -1", "--gpu-layers <N>': -1 is not in 0.."),
        ("run -p x --stop-id -1", "--stop-id <ID>': -1 is not in 0.."),
        ("run -p x -l -5", "expected a token id"),
        ("logits -p x --top -1", "--top <K>': -1 is not in 0.."),
        ("logits --tokens -1", "--tokens <IDS>': -1 is not in 0.."),
        ("bench -r -1", "--repetitions <N>': -1 is not in 1..=1000"),
        ("bench -p -1", "--n-prompt <N>': -1 is not in 0.."),
        ("diff --tol-nmse -1", "--tol-nmse <X>': expected "),
        (
            "quantize a b awq --group -1",
            "--group <N>': -1 is not in 0..",
        ),
        ("perplexity -f x --chunks -2", "or -1 for all"),
        ("imatrix -f x -o y --chunks -2", "or -1 for all"),
        ("quant-report m -f x --chunks -2", "or -1 for all"),
    ] {
        let error = bad(&line.split(' ').collect::<Vec<_>>(), 2);
        assert!(error.contains(says), "{line}: {error}");
    }
    // -1 is all chunks, as for llama-imatrix
    let dir = folder();
    let text = dir.path().join("text");
    std::fs::write(&text, "It was the best of times.\n".repeat(60)).expect("written");
    let (text, out) = (text.to_str().expect("UTF-8"), dir.path().join("im.gguf"));
    good(&[
        "imatrix",
        "-f",
        text,
        "-o",
        out.to_str().expect("UTF-8"),
        "-c",
        "64",
        "--chunks",
        "-1",
    ]);
}

#[test]
fn completions_offer_values() {
    let values = [
        ("--isa", "avx2"),
        ("--kv-type", "q8_0"),
        ("--prompt-bits", "16"),
        ("--cache-type-k", "bf16"),
        ("--device", "cuda"),
        ("--output-tensor-type", "Q6_K"),
        ("--token-embedding-type", "Q8_0"),
        ("--sensitivity", "IQ4_XS"),
        ("--type", "q4_1"),
        ("--b-isa", "avx512"),
    ];
    let script = good(&["completions", "bash"]);
    for (option, value) in values {
        let case = format!("{option})");
        let mut after = script
            .split(&case)
            .skip(1)
            .map(|rest| rest.split("return 0").next());
        assert!(
            after.any(|offer| offer.is_some_and(|offer| offer.contains(value))),
            "bash: {option} {value}"
        );
    }
    let script = good(&["completions", "zsh"]);
    for (option, value) in values {
        let offers = |line: &&str| line.contains(&format!("{option}=[")) && line.contains(value);
        assert!(
            script.lines().any(|line| offers(&line)),
            "zsh: {option} {value}"
        );
    }
    assert!(
        script
            .lines()
            .any(|line| line.contains("target") && line.contains("Q4_K_M") && line.contains("awq"))
    );
    let script = good(&["completions", "fish"]);
    for (option, value) in values {
        let option = format!("-l {}", option.trim_start_matches('-'));
        let mut blocks = script.split("complete -c octavo");
        assert!(
            blocks.any(|block| block.contains(&option) && block.contains(value)),
            "fish: {option} {value}"
        );
    }
    // the help lists the values once, in its own words
    let help = good(&["run", "--help"]);
    assert!(!help.contains("[possible values: auto, scalar"), "{help}");
}
