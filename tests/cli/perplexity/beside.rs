//! Comparisons with a model that is loaded beside, without a base file.

use serde_json::Value;

use crate::cli::{bad, folder, good, json, with_other_tokens};
use octavo_fixtures::workspace_root;

/// Writes quantizations of the demo model, and a text.
pub(super) fn desk() -> tempfile::TempDir {
    let dir = folder();
    let demo = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    for (name, ty) in [("f16", "F16"), ("q8", "Q8_0"), ("q2", "Q2_K")] {
        let to = dir.path().join(name);
        let paths = [&demo, &to].map(|path| path.to_str().expect("UTF-8"));
        good(&[
            "quantize",
            paths[0],
            paths[1],
            ty,
            "--allow-requantize",
            "-q",
        ]);
    }
    let text = "Once there was a red fox. The fox lived under the tree.\n3+4=7\n".repeat(30);
    std::fs::write(dir.path().join("text"), text).expect("written");
    dir
}

/// Expands a command line: a word that begins with `@` is a file in the folder.
fn words(dir: &tempfile::TempDir, line: &str) -> Vec<String> {
    let word = |word: &str| match word.strip_prefix('@') {
        Some(name) => dir.path().join(name).to_str().expect("UTF-8").to_owned(),
        None => word.to_owned(),
    };
    format!("perplexity {line}")
        .split_whitespace()
        .map(word)
        .collect()
}

/// Runs a command line that must succeed; returns its output.
pub(super) fn works(dir: &tempfile::TempDir, line: &str) -> String {
    let words = words(dir, line);
    good(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a command line that prints JSON.
pub(super) fn object(dir: &tempfile::TempDir, line: &str) -> Value {
    let words = words(dir, line);
    json(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a command line that must fail with this code and a message that contains `says`.
pub(super) fn fails(dir: &tempfile::TempDir, line: &str, code: i32, says: &str) {
    let words = words(dir, line);
    let error = bad(&words.iter().map(String::as_str).collect::<Vec<_>>(), code);
    assert!(error.contains(says), "{line}: {error}");
}

pub(super) fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("a number, got {value}"))
}

#[test]
fn a_model_beside_gives_the_figures_of_its_base() {
    let dir = desk();
    works(&dir, "@f16 -f @text -c 64 --kl-divergence-base @base");
    let of_base = object(
        &dir,
        "@q2 --kl-divergence-base @base --kl-divergence --json",
    );
    let beside = object(&dir, "@q2 --against @f16 -f @text -c 64 --json");
    assert!(number(&beside["kld"]["value"]) > 0.01, "{}", beside["kld"]);
    assert_eq!(
        [&beside["chunks"], &beside["scored"]],
        [&of_base["chunks"], &of_base["scored"]]
    );
    assert!(beside["cut"].is_null());
    // 16 bits in the base, and what it cuts off
    for (key, bound) in [
        ("kld", 2e-4),
        ("ln_ratio", 2e-4),
        ("ppl_base", 2e-3),
        ("dp", 1e-4),
    ] {
        let [ours, theirs] = [&beside, &of_base].map(|object| number(&object[key]["value"]));
        assert!((ours - theirs).abs() < bound, "{key}: {ours} and {theirs}");
    }
    assert_eq!(beside["ppl"], of_base["ppl"]);
    let interval = &beside["intervals_95"]["kld"];
    let mean = number(&beside["kld"]["value"]);
    assert!(number(&interval["low"]) < mean && mean < number(&interval["high"]));
    // several models in one pass have the digits of each alone
    let both = object(&dir, "@q8 --also @q2 --against @f16 -f @text -c 64 --json");
    let models = both["models"].as_array().expect("a list");
    assert_eq!(models.len(), 2);
    assert_eq!(models[1]["kld"], beside["kld"]);
    let [q8, q2] = [0, 1].map(|i| number(&models[i]["kld"]["value"]));
    assert!(0.0 < q8 && q8 < q2 / 10.0, "{q8} and {q2}");
}

#[test]
fn a_model_does_not_differ_from_itself() {
    let dir = desk();
    let same = object(&dir, "@q2 --against @q2 -f @text -c 64 --json");
    assert!(
        number(&same["kld"]["maximum"]).abs() < 1e-9,
        "{}",
        same["kld"]
    );
    assert_eq!(same["same_top"]["value"], 1.0);
    let text = works(&dir, "@q8 --against @f16 -f @text -c 64");
    for part in [
        "\nchunk ",
        "Mean    KLD: ",
        "====== 95 % intervals, by chunks ======\nMean KLD  ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn models_that_cannot_be_compared_are_refused() {
    let dir = desk();
    with_other_tokens(&dir, "other");
    for (line, code, says) in [
        (
            "@q2 --against @other -f @text -c 64",
            1,
            "expected the same vocabulary",
        ),
        ("@q2 --against @none -f @text", 1, "--against "),
        ("@q2 --also @q8 -f @text", 2, "--against"),
        (
            "@q2 --against @f16 -f @text --kl-divergence-base @b",
            2,
            "--kl-divergence-base has no effect: expected no --against with it",
        ),
    ] {
        fails(&dir, line, code, says);
    }
}
