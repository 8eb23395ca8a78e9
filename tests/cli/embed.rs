//! `octavo embed`: output, files and refusals.

use octavo_fixtures::shared;
use safetensors::SafeTensors;
use serde_json::Value;

use super::{bad, folder, good, json};

fn vectors(text: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| {
        let words = line.split(' ');
        words.map(|word| word.parse().expect("a number")).collect()
    };
    text.lines().map(numbers).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn vectors_are_lines_of_numbers_of_length_1() {
    let one = vectors(&good(&["embed", "-p", "1+1="]));
    assert_eq!((one.len(), one[0].len()), (1, 256));
    assert!((length(&one[0]) - 1.0).abs() < 1e-5);
    let raw = vectors(&good(&["embed", "-p", "1+1=", "--no-normalize"]));
    let factor = length(&raw[0]);
    assert!((factor - 1.0).abs() > 0.01);
    for (raw, one) in raw[0].iter().zip(&one[0]) {
        assert!((raw / factor - one).abs() < 1e-5);
    }
    let rows = vectors(&good(&["embed", "-p", "1+1=", "--pooling", "none"]));
    let last = vectors(&good(&["embed", "-p", "1+1=", "--pooling", "last"]));
    assert_eq!(rows.last(), last.first());
    let mean = vectors(&good(&["embed", "-p", "1+1=", "--pooling", "mean"]));
    assert_eq!(mean, one, "the default");
    let first = vectors(&good(&["embed", "-p", "1+1=", "--pooling", "cls"]));
    assert_eq!(rows.first(), first.first());
}

#[test]
fn lines_are_texts_of_their_own() {
    let dir = folder();
    let path = dir.path().join("texts.txt");
    std::fs::write(&path, "1+1=\n\nan other text\r\n2+2=").expect("written");
    let path = path.to_str().expect("text");
    let common = ["embed", "--json", "--pooling", "mean"];
    let all = good(&[&common[..], &["-f", path, "--lines"]].concat());
    let all: Vec<Value> = all
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(all.len(), 3);
    let texts = [(0, "1+1="), (2, "an other text"), (3, "2+2=")];
    for (one, (line, text)) in all.iter().zip(texts) {
        let mut alone = json(&[&common[..], &["-p", text]].concat());
        assert_eq!(alone["line"], 0);
        alone["line"] = line.into();
        assert_eq!(&alone, one);
        assert_eq!(one["pooling"], "mean");
        assert_eq!(one["normalized"], true);
        assert_eq!(one["version"], 1);
    }
}

#[test]
fn dumps_replace_nothing_but_dumps() {
    let dir = folder();
    let path = dir.path().join("out.safetensors");
    let out = path.to_str().expect("text");
    for text in ["1+1=", "more"] {
        assert_eq!(good(&["embed", "-p", text, "--dump", out]), "");
    }
    let bytes = std::fs::read(&path).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let shape = |name: &str| file.tensor(name).expect("a tensor").shape().to_vec();
    let n = shape("tokens")[0];
    assert_eq!((shape("embd"), shape("pooled")), (vec![n, 256], vec![256]));
    let rows = file.tensor("embd").expect("a tensor").data();
    let pooled = file.tensor("pooled").expect("a tensor").data();
    let n_bytes = pooled.len();
    assert!(rows[rows.len() - n_bytes..] != *pooled, "their mean");
    good(&["embed", "-p", "more", "--dump", out, "--pooling", "last"]);
    let bytes = std::fs::read(&path).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let pooled = file.tensor("pooled").expect("a tensor").data();
    assert_eq!(&rows[rows.len() - n_bytes..], pooled);
    std::fs::write(&path, "something else").expect("written");
    let line = bad(&["embed", "-p", "1+1=", "--dump", out], 1);
    assert!(
        line.contains("file of embeddings") && line.contains("--force"),
        "{line}"
    );
    good(&[
        "embed",
        "-p",
        "1+1=",
        "--dump",
        out,
        "--force",
        "--pooling",
        "none",
    ]);
    let bytes = std::fs::read(&path).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    assert!(file.tensor("pooled").is_err());
    assert!(bad(&["embed", "-p", "x", "--dump", out, "--json"], 2).contains("--json"));
    assert!(bad(&["embed"], 2).contains("no text"));
    assert!(bad(&["embed", "-p", "x", "--pooling", "max"], 2).contains("max"));
}

#[test]
fn embedding_models_embed_and_do_nothing_else() {
    let Some(path) = shared("arch/models/bert-F32.gguf") else {
        return;
    };
    let model = path.to_str().expect("text");
    let said = json(&["embed", model, "-p", "fox", "--json"]);
    assert_eq!(said["pooling"], "cls");
    let tokens = said["tokens"].as_array().expect("a list");
    assert_eq!((&tokens[0], tokens.last()), (&2.into(), Some(&3.into())));
    let dir = folder();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, format!("fox\n{}\n", "fox ".repeat(300))).expect("written");
    let text = text.to_str().expect("text");
    let args = ["embed", model, "-f", text, "--lines"];
    let output = super::octavo(&args).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(super::stdout(&output).lines().count(), 1);
    let line = super::stderr(&output);
    assert!(line.contains("line 2: ") && line.contains("512"), "{line}");
    let output = super::octavo(&[&args[..], &["--json"]].concat()).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let last = super::stdout(&output);
    let last: Value = serde_json::from_str(last.lines().last().expect("two")).expect("JSON");
    assert_eq!(last["line"], 1);
    assert!(last["error"].as_str().is_some_and(|e| e.contains("512")));
    let out = dir.path().join("out.gguf");
    let out = out.to_str().expect("text");
    for command in [
        &["run", model, "-p", "fox"][..],
        &["run", model, "-f", text, "--lines"],
        &["chat", model],
        &["logits", model, "-p", "fox"],
        &["perplexity", model, "-f", text],
        &["imatrix", model, "-f", text, "-o", out],
    ] {
        let line = bad(command, 1);
        assert!(
            line.contains("bert-F32.gguf: architecture bert: expected"),
            "{line}"
        );
        assert!(line.contains("octavo embed"), "{line}");
    }
    let long = "fox ".repeat(40);
    let line = bad(&["embed", model, "-p", &long, "-b", "16"], 1);
    assert!(
        line.contains("at most 16") && line.contains("-b N"),
        "{line}"
    );
    let line = bad(&["embed", model, "-p", &"fox ".repeat(300)], 1);
    assert!(line.contains("the context of 512"), "{line}");
    let line = bad(&["embed", model, "-p", "fox", "-c", "513"], 1);
    assert!(line.contains("the 512 positions"), "{line}");
}

#[test]
fn inspect_tells_what_embedding_models_give() {
    for (model, expected) in [
        (
            "bert-F32",
            &[
                "not causal: tokens see all of their text",
                "none: positions are embedded",
                "of the sums after blocks",
                "no logits: a row of 64 for each token, pooling cls",
                "This file loads and runs on ",
            ][..],
        ),
        (
            "gemma-embedding-Q8_0",
            &[
                "10 positions on either side in all layers but every 3rd from 2",
                "a row of 96 for each token, after products through 288, pooling mean",
            ],
        ),
    ] {
        let Some(path) = shared(&format!("arch/models/{model}.gguf")) else {
            return;
        };
        let said = good(&["inspect", path.to_str().expect("text"), "--tensors"]);
        for part in expected {
            assert!(said.contains(part), "{model}: no {part:?} in {said}");
        }
        let table = said
            .lines()
            .find(|line| line.contains("position_embd.weight"));
        assert!(
            table.is_none_or(|line| line.ends_with("row look-up")),
            "{said}"
        );
        assert!(!said.contains("bert.rope."), "{said}");
    }
}
