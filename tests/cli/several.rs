//! `octavo run` with many prompts, and with many texts of one: as if each were alone.

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
    }
    let best = ask(&["--n", "1", "--best-of", "4", "--seed", "5"]);
    assert!(best.len() == 1 && several.iter().any(|one| one["tokens"] == best[0]["tokens"]));
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
