//! Compares the results file with the one that llama-results writes.

use octavo_fixtures as fixtures;
use octavo_reference::results::Results;
use octavo_reference::{Error, metrics};
use std::process::{Command, Stdio};

fn small() -> Results {
    Results {
        path_model: "m.gguf".into(),
        tokens: vec![2, 0],
        n_vocab: 3,
        logits: vec![0.5, 1., 2., 3., 4., f32::MIN],
    }
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.gguf");
    for results in [
        small(),
        Results {
            tokens: vec![1],
            n_vocab: 2,
            logits: vec![-0.0, 1e-40],
            ..small()
        },
    ] {
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
    }
}

#[test]
fn half_a_row_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.gguf");
    let error = Results {
        logits: vec![0.; 5],
        ..small()
    }
    .write(&path)
    .unwrap_err();
    assert_eq!(error.to_string(), "logits: expected 6 values, got 5");
    assert!(!path.exists());
}

#[test]
fn a_model_or_a_wrong_id_is_not_read() {
    let model = fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let error = Results::read(&model).unwrap_err().to_string();
    assert!(
        error.ends_with(r#"key "path_model": expected the model's path, got nothing"#),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.gguf");
    Results {
        tokens: vec![2, 3],
        ..small()
    }
    .write(&path)
    .unwrap();
    assert!(matches!(
        Results::read(&path),
        Err(Error::Element { index: 1, .. })
    ));
}

/// For the same model and prompt, our file with llama.cpp's values equals llama.cpp's file, and
/// llama.cpp accepts ours.
#[test]
fn the_layout_is_that_of_llama_results() {
    let Some(program) = fixtures::llama_cpp("llama-results") else {
        return;
    };
    let reference = fixtures::workspace_root().join("reference");
    let golden = fixtures::committed_goldens().join("tiny-qwen3-Q4_K_M/sum.safetensors");
    let golden = octavo_reference::golden::Full::read(&golden).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = |out: &str, check: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(&reference).args([
            "-m",
            "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
            "-p",
            "1+1=",
            "-t",
            "1",
        ]);
        command.args([
            "-ctk",
            "f32",
            "-ctv",
            "f32",
            "-fa",
            "off",
            "--no-repack",
            "-c",
            "2048",
        ]);
        command.arg("-o").arg(dir.path().join(out)).args(check);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    assert!(run("theirs.gguf", &[]));
    let theirs = Results::read(&dir.path().join("theirs.gguf")).unwrap();
    assert_eq!(
        (&theirs.tokens, theirs.n_vocab),
        (&golden.tokens, golden.n_vocab)
    );
    assert!(metrics::nmse(&theirs.logits, &golden.logits).unwrap() < 1e-6);
    theirs.write(&dir.path().join("ours.gguf")).unwrap();
    let bytes = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(
        bytes("ours.gguf") == bytes("theirs.gguf"),
        "the files differ"
    );
    assert!(
        run("ours.gguf", &["--check"]),
        "llama-results refuses our file"
    );
    let mut far = theirs.clone();
    far.logits.iter_mut().for_each(|logit| *logit += 0.5);
    far.write(&dir.path().join("far.gguf")).unwrap();
    assert!(
        !run("far.gguf", &["--check"]),
        "llama-results accepts anything"
    );
}
