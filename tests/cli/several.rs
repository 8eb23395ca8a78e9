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
