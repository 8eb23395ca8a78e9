//! `octavo run` with many prompts, and with many texts of one: the same as if each ran alone.

use std::io::{BufRead, BufReader, Write};

use serde_json::Value;

use super::{good, json, octavo, stderr};

fn objects(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

#[test]
fn every_line_is_answered_as_if_it_were_alone_and_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompts.txt");
    let prompts: Vec<String> = (0..40).map(|i| format!("{}+{}=", i % 9, i % 7)).collect();
    std::fs::write(&path, format!("{}\r\n", prompts.join("\r\n"))).expect("it is written");
    let path = path.to_str().expect("text");
    let all = objects(&good(&[
        "run",
        "-f",
        path,
        "--lines",
        "-n",
        "6",
        "--ignore-eos",
    ]));
    assert_eq!(all.len(), prompts.len());
    for (i, (object, prompt)) in all.iter().zip(&prompts).enumerate() {
        assert_eq!(object["line"], i);
        if i % 8 == 0 {
            let alone = json(&["run", "-p", prompt, "-n", "6", "--ignore-eos", "--json"]);
            assert_eq!(
                (&object["text"], &object["tokens"]),
                (&alone["text"], &alone["tokens"])
            );
        }
    }
}

#[test]
fn several_texts_have_seeds_one_above_the_other() {
    let ask = |more: &[&str]| {
        let common = ["run", "-p", "What is", "-n", "8", "--temp", "1", "--json"];
        objects(&good(&[&common, more].concat()))
    };
    let several = ask(&["--n", "4", "--seed", "5"]);
    assert_eq!(several.len(), 4);
    for (i, object) in several.iter().enumerate() {
        let alone = ask(&["--seed", &(5 + i).to_string()]);
        assert_eq!(object["tokens"], alone[0]["tokens"], "{i}");
        assert_eq!(object["metrics"]["seed"], 5 + i);
    }
    let best = ask(&["--n", "1", "--best-of", "4", "--seed", "5"]);
    assert!(best.len() == 1 && several.iter().any(|one| one["tokens"] == best[0]["tokens"]));
}

/// One text and many have objects with the same fields.
#[test]
fn one_text_and_many_have_the_same_fields() {
    fn fields(object: &Value) -> Vec<&String> {
        object.as_object().expect("an object").keys().collect()
    }
    let common = ["run", "-p", "What is", "-n", "8", "--json"];
    let ask = |more: &[&str]| objects(&good(&[&common, more].concat()));
    let drawn = ["--temp", "1", "--seed", "5"];
    let alone = &ask(&drawn)[0];
    assert_eq!(alone["version"], 1);
    for more in [&["--n", "2"][..], &["--lines"], &["--best-of", "2"]] {
        for object in ask(&[more, &drawn].concat()) {
            assert_eq!(fields(&object), fields(alone), "{more:?}");
            assert_eq!(fields(&object["metrics"]), fields(&alone["metrics"]));
        }
    }
    let found = &ask(&["--beams", "2"])[0];
    let own: Vec<&String> = fields(alone);
    let with_scores: Vec<&String> = fields(found);
    assert_eq!(with_scores[..own.len()], own[..]);
    assert_eq!(with_scores[own.len()..], ["logprob", "score"]);
}

#[test]
fn every_line_has_a_seed_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompts.txt");
    std::fs::write(&path, "What is\n\nWhat is\r\n").expect("it is written");
    let path = path.to_str().expect("text");
    let common = ["run", "-n", "12", "--temp", "1.5", "--seed", "5"];
    let all = objects(&good(&[&common[..], &["-f", path, "--lines"]].concat()));
    let seeds: Vec<_> = all
        .iter()
        .map(|one| one["metrics"]["seed"].as_u64())
        .collect();
    assert_eq!(seeds, [Some(5), Some(7)]);
    assert_eq!((&all[0]["line"], &all[1]["line"]), (&0.into(), &2.into()));
    assert_ne!(all[0]["tokens"], all[1]["tokens"]);
    let alone = [
        "run", "-p", "What is", "-n", "12", "--temp", "1.5", "--json",
    ];
    let alone = json(&[&alone[..], &["--seed", "7"]].concat());
    assert_eq!(alone["tokens"], all[1]["tokens"]);
}

/// A program that sends one line and waits gets its answer.
#[test]
fn lines_are_answered_as_they_come() {
    for (command, field) in [("run", "text"), ("embed", "vectors")] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_octavo"))
            .args([command, "--lines", "-f", "-", "--json"])
            .args(["-n", "2"].iter().filter(|_| command == "run"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("starts");
        let mut to = child.stdin.take().expect("piped");
        let mut from = BufReader::new(child.stdout.take().expect("piped")).lines();
        for line in 0..3 {
            writeln!(to, "{line}+1=").expect("taken");
            let answer = from.next().expect("an answer").expect("text");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!(answer["line"], line);
            assert!(!answer[field].is_null(), "{answer}");
        }
        drop(to);
        assert!(from.next().is_none());
        assert!(child.wait().expect("ends").success());
    }
}

#[test]
fn a_line_that_cannot_be_answered_is_said_in_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompts.txt");
    let long = "1+1=".repeat(400);
    std::fs::write(&path, format!("1+1=\n{long}\n2+2=")).expect("it is written");
    let path = path.to_str().expect("text");
    let output = octavo(&["run", "-f", path, "--lines", "-n", "1"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let all = objects(&super::stdout(&output));
    assert_eq!(
        (&all[0]["text"], &all[2]["text"]),
        (&"2".into(), &"4".into())
    );
    assert!(
        all[1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("512")),
        "{all:?}"
    );
    let output = octavo(&["run", "-p", "a", "--n", "3", "--best-of", "2"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn beams_are_searched_for_each_line_as_if_it_were_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompts.txt");
    let prompts = [
        "1+1=",
        "What is",
        "The opposite of hot is",
        "2+3=",
        "What is 1+1?",
    ];
    std::fs::write(&path, prompts.join("\n")).expect("it is written");
    let path = path.to_str().expect("text");
    let beams = |more: &[&str]| {
        let common = ["run", "-n", "8", "--beams", "3", "--json"];
        objects(&good(&[&common, more].concat()))
    };
    let all = beams(&["-f", path, "--lines", "--n", "2"]);
    assert_eq!(all.len(), 2 * prompts.len());
    for (line, prompt) in prompts.iter().enumerate() {
        let alone = beams(&["-p", prompt, "--n", "2", "--threads", "1"]);
        for (choice, alone) in alone.iter().enumerate() {
            let one = &all[2 * line + choice];
            assert_eq!(
                (&one["line"], &one["choice"]),
                (&line.into(), &choice.into())
            );
            for field in ["text", "tokens", "finish_reason", "logprob", "score"] {
                assert_eq!(one[field], alone[field], "{prompt} {field}");
            }
        }
        let scores: Vec<_> = alone.iter().map(|one| one["score"].as_f64()).collect();
        assert!(scores[0] >= scores[1]);
    }
}

#[test]
fn one_beam_is_the_greedy_text_and_a_penalty_says_how_long() {
    let run = |more: &[&str]| {
        let common = ["run", "-p", "What is", "-n", "12", "--json"];
        objects(&good(&[&common, more].concat())).remove(0)
    };
    assert_eq!(run(&["--beams", "1"])["tokens"], run(&[])["tokens"]);
    let score = |penalty: &str| {
        let found = run(&["--beams", "4", "--length-penalty", penalty]);
        let n = found["tokens"].as_array().map_or(0, Vec::len) as f64;
        let [sum, score] = ["logprob", "score"].map(|name| found[name].as_f64().expect("a number"));
        let power: f64 = penalty.parse().expect("a number");
        assert!((score - sum / n.powf(power)).abs() < 1e-12, "{found}");
    };
    ["0", "1", "-1.5", "2"].into_iter().for_each(score);
}

#[test]
fn beams_are_refused_where_they_cannot_be() {
    for (more, code, expected) in [
        (
            &["--beams", "2", "--n", "3"][..],
            2,
            "--beams 2: expected at least --n, which is 3",
        ),
        (&["--beams", "2", "--best-of", "3"], 2, "--best-of"),
        (&["--length-penalty", "1"], 2, "--beams"),
        (&["--beams", "2", "--echo"], 2, "--echo"),
        (&["--beams", "0"], 2, "1..=128"),
        (
            &["--beams", "2", "--length-penalty", "11"],
            1,
            "length_penalty: expected a number",
        ),
    ] {
        let output = octavo(&[&["run", "-p", "a", "-n", "2"], more].concat()).output();
        let output = output.expect("it runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(expected), "{more:?}: {said}");
    }
}
