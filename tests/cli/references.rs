//! `octavo diff --reference` with the file of every llama.cpp program.

use std::path::PathBuf;

use super::{bad, folder, octavo, stderr, stdout};
use octavo_fixtures::{committed_goldens, workspace_root};

fn file(name: &str) -> String {
    committed_goldens()
        .join("formats")
        .join(name)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

fn model(name: &str) -> String {
    workspace_root()
        .join("reference")
        .join(name)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

const DEMO: &str = "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf";
const OTHER: &str = "models/rnd-llama-Q4_K_M.gguf";

/// Files with the text that each needs, and its name and number of compared tensors.
const FILES: [(&str, &[&str], &str); 8] = [
    ("debug.bin", &[], "(llama-debug, 4 tokens)"),
    ("debug-embeddings.bin", &[], "1 tensors"),
    (
        "eval-callback.txt",
        &["-p", "1+1="],
        "(llama-eval-callback)",
    ),
    ("prompt-cache.bin", &[], "8 tensors"),
    ("completion.json", &[], "(llama-server)"),
    ("base.kld", &[], "(llama-perplexity base)"),
    ("imatrix.gguf", &["-f", "TEXT"], "28 tensors"),
    (
        "chat.json",
        &[
            "-p",
            "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n",
        ],
        "(llama-server)",
    ),
];

fn run(model: &str, name: &str, text: &[&str], more: &[&str]) -> (Option<i32>, String) {
    let reference = file(name);
    let text: Vec<String> = text
        .iter()
        .map(|t| {
            if *t == "TEXT" {
                file("text.txt")
            } else {
                (*t).to_owned()
            }
        })
        .collect();
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    let args = [&["diff", model, "--reference", &reference][..], &text, more].concat();
    let output = octavo(&args).output().expect("the program runs");
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn every_kind_of_file_agrees_with_its_model() {
    for (name, text, says) in FILES {
        let (code, out) = run(&model(DEMO), name, text, &[]);
        assert_eq!(code, Some(0), "{name}: {out}");
        assert!(
            out.contains("verdict: within tolerance") && out.contains(says),
            "{name}: {out}"
        );
        // llama.cpp's rounding of activations to 8 bits is detected
        let (code, out) = run(
            &model(DEMO),
            name,
            text,
            &["--tol-nmse", "1e-12", "--tol-kl", "1e-9", "--json"],
        );
        assert_eq!(code, Some(1), "{name}: {out}");
        let json: serde_json::Value =
            serde_json::from_str(out.lines().next().expect("a line")).expect("JSON");
        assert_eq!(json["verdict"], "outside", "{name}");
    }
}

#[test]
fn another_model_is_found_out() {
    for (name, text, _) in FILES {
        let (code, out) = run(&model(OTHER), name, text, &[]);
        assert!(matches!(code, Some(1 | 2)), "{name}: {code:?} {out}");
    }
}

#[test]
fn files_without_a_text_ask_for_it() {
    for name in ["eval-callback.txt", "imatrix.gguf", "chat.json"] {
        let line = bad(&["diff", &model(DEMO), "--reference", &file(name)], 2);
        assert!(
            line.contains("has no text: expected -p TEXT or -f FILE"),
            "{line}"
        );
    }
}

#[test]
fn damaged_files_give_one_line() {
    let dir = folder();
    let path: PathBuf = dir.path().join("damaged");
    let damaged = path.to_str().expect("UTF-8");
    for (name, _, _) in FILES {
        let sound = std::fs::read(file(name)).expect("a committed file");
        for part in [0, 1, 5, 9, 37, 50, 99] {
            // after a cut the text may not fit, or the file has no known kind: only the form of the
            // message matters
            std::fs::write(&path, &sound[..sound.len() * part / 100]).expect("written");
            let output = octavo(&["diff", &model(DEMO), "--reference", damaged, "-p", "1+1="])
                .output()
                .expect("it runs");
            let text = stderr(&output);
            assert!(
                matches!(output.status.code(), Some(0..=2)),
                "{name} {part} %: {text}"
            );
            assert!(!text.contains("internal error"), "{name} {part} %: {text}");
            if output.status.code() == Some(2) {
                assert_eq!(
                    text.lines()
                        .filter(|line| line.starts_with("octavo: error: "))
                        .count(),
                    1,
                    "{text}"
                );
            }
        }
        for seed in 0..40_usize {
            let mut bytes = sound.clone();
            let at = (seed * 2_654_435_761) % bytes.len().min(400);
            bytes[at] ^= 1 << (seed % 8);
            std::fs::write(&path, &bytes).expect("written");
            let output = octavo(&["diff", &model(DEMO), "--reference", damaged, "-p", "1+1="])
                .output()
                .expect("it runs");
            let text = stderr(&output);
            assert!(
                matches!(output.status.code(), Some(0..=2)),
                "{name} byte {at}: {text}"
            );
            assert!(!text.contains("internal error"), "{name} byte {at}: {text}");
        }
    }
}
