//! Adapters and control vectors on the command line: applied, merged, and refused.

use std::path::{Path, PathBuf};

use octavo_fixtures::{Lacks, shared_dir, skip};

use super::{bad, good};

struct Files {
    base: String,
    dir: PathBuf,
}

impl Files {
    fn open() -> Option<Files> {
        let shared = shared_dir().filter(|dir| dir.join("feat/lora").is_dir());
        let Some(shared) = shared else {
            skip(Lacks::Fixtures, "LoRA on the command line");
            return None;
        };
        Some(Files {
            base: text(&shared.join("models/tiny-qwen3-F32.gguf")),
            dir: shared.join("feat/lora/models"),
        })
    }

    fn adapter(&self, name: &str) -> String {
        text(&self.dir.join(name))
    }

    fn logits(&self, more: &[&str]) -> String {
        self.logits_of(&self.base, more)
    }

    fn logits_of(&self, model: &str, more: &[&str]) -> String {
        let line = ["logits", model, "-p", "1+1=", "-t", "1", "--top", "5"];
        good(&[&line[..], more].concat())
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the logits of an output of `octavo logits`.
fn numbers(out: &str) -> Vec<f64> {
    let lines = out.lines().skip(1);
    lines
        .map(|line| line.split_whitespace().next_back().expect("a number"))
        .map(|number| number.parse().expect("a number"))
        .collect()
}

#[test]
fn adapters_change_logits_by_their_scale() {
    let Some(files) = Files::open() else { return };
    let (all, other) = (
        files.adapter("tiny-qwen3-all.gguf"),
        files.adapter("tiny-qwen3-noalpha.gguf"),
    );
    let none = files.logits(&[]);
    let one = files.logits(&["--lora", &all]);
    assert_ne!(one, none);
    assert_eq!(files.logits(&["--lora-scaled", &format!("{all}:1.0")]), one);
    assert_eq!(files.logits(&["--lora-scaled", &format!("{all}:0")]), none);
    assert_eq!(
        files.logits(&["--lora", &all, "--lora-init-without-apply"]),
        none
    );
    let both = files.logits(&["--lora", &format!("{all},{other}")]);
    assert_ne!(both, one);
    assert_eq!(files.logits(&["--lora", &all, "--lora", &other]), both);
    let vector = files.adapter("cvec-tiny-a.gguf");
    let steered = files.logits(&["--control-vector", &vector]);
    assert_ne!(steered, none);
    let range = ["--control-vector", &vector, "--control-vector-layer-range"];
    assert_eq!(files.logits(&[&range[..], &["1", "3"]].concat()), steered);
    assert_ne!(files.logits(&[&range[..], &["1", "1"]].concat()), steered);
    assert_eq!(files.logits(&[&range[..], &["9", "9"]].concat()), none);
    let run = ["run", &files.base, "-p", "1+1=", "-n", "12", "--ignore-eos"];
    let with = good(&[&run[..], &["--lora", &all]].concat());
    assert_ne!(with, good(&run));
}

#[test]
fn merged_weights_have_the_logits_of_the_adapters() {
    let Some(files) = Files::open() else { return };
    let (all, other) = (
        files.adapter("tiny-qwen3-all.gguf"),
        files.adapter("tiny-qwen3-noalpha.gguf"),
    );
    let dir = tempfile::tempdir().expect("a folder");
    let merged = text(&dir.path().join("merged.gguf"));
    let scaled = format!("{other}:0.5");
    let adapters = ["--lora", &all, "--lora-scaled", &scaled];
    good(&[&["convert", &files.base, &merged][..], &adapters].concat());
    let applied = numbers(&files.logits(&adapters));
    let of_merged = numbers(&files.logits_of(&merged, &[]));
    assert_eq!(applied.len(), 5);
    for (a, b) in applied.iter().zip(&of_merged) {
        assert!((a - b).abs() < 1e-3, "{applied:?}, {of_merged:?}");
    }
    // an output is not written over an adapter
    let line = ["convert", &files.base, &all, "--lora", &all, "--force"];
    assert!(bad(&line, 1).contains("tiny-qwen3-all.gguf"));
}

#[test]
fn what_does_not_fit_is_refused_in_one_line() {
    let Some(files) = Files::open() else { return };
    let of = |more: &[&str], code| {
        let line = ["run", &files.base, "-p", "x"];
        bad(&[&line[..], more].concat(), code)
    };
    let experts = files.adapter("qwen3moe-experts.gguf");
    let error = of(&["--lora", &experts], 1);
    assert!(
        error.contains("general.architecture: expected \"qwen3\""),
        "{error}"
    );
    let error = of(&["--lora", "none.gguf"], 1);
    assert!(error.contains("--lora none.gguf"), "{error}");
    let error = of(&["--control-vector", "none.gguf"], 1);
    assert!(error.contains("--control-vector none.gguf"), "{error}");
    let all = files.adapter("tiny-qwen3-all.gguf");
    let error = of(&["--control-vector", &all], 1);
    assert!(error.contains("expected \"controlvector\""), "{error}");
    for wrong in ["a", "a:x", ":1"] {
        let error = of(&["--lora-scaled", wrong], 2);
        assert!(error.contains("FILE:SCALE"), "{error}");
    }
    let error = bad(
        &[
            "convert",
            &files.base,
            "o.gguf",
            "--lora",
            &all,
            "--type",
            "f16",
        ],
        2,
    );
    assert!(error.contains("--type"), "{error}");
}
