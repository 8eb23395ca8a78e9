//! Speculative decoding: the same text, its counts in JSON, and drafts that are refused.

use std::path::PathBuf;

use serde_json::Value;

use super::{bad, folder, json, with_other_tokens};

fn own(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn count(object: &Value, key: &str) -> u64 {
    object["metrics"][key].as_u64().expect("a number")
}

/// Prompt that repeats itself, so that lookup finds draft tokens.
const PROMPT: &str = "1+1=2\n2+2=4\n1+1=2\n2+2=4\n1+1=2\n2+2=4\n1+1=";

#[test]
fn drafts_change_no_text_and_are_counted() {
    let draft = own("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let draft = draft.to_str().expect("text");
    for sampling in [&["--temp", "0"][..], &["--temp", "0.7", "--seed", "3"]] {
        let run = |more: &[&str]| {
            let common = ["run", "-p", PROMPT, "-n", "48", "--ignore-eos", "--json"];
            json(&[&common[..], sampling, more].concat())
        };
        let plain = run(&["--lookup", "off"]);
        assert_eq!(count(&plain, "draft_tokens"), 0);
        assert_eq!(plain["tokens"].as_array().map(Vec::len), Some(48));
        for more in [
            &["--lookup", "on"][..],
            &["--lookup", "auto"],
            &["--lookup", "off", "--draft", draft],
            &["--draft", draft],
        ] {
            let drafted = run(more);
            assert_eq!(drafted["tokens"], plain["tokens"], "{more:?}");
            assert_eq!(drafted["text"], plain["text"], "{more:?}");
            let accepted = count(&drafted, "accepted_tokens");
            assert!(accepted <= count(&drafted, "draft_tokens"), "{more:?}");
            // the number of draft tokens depends on measured times; some are tried in any case
            if more != ["--lookup", "auto"] {
                assert!(count(&drafted, "draft_tokens") > 0, "{more:?}");
            }
        }
    }
}

#[test]
fn a_draft_of_another_vocabulary_is_refused_by_its_first_other_token() {
    let dir = folder();
    let other = with_other_tokens(&dir, "other.gguf");
    let other = other.to_str().expect("text");
    for command in [
        &["run", "-p", "1+1=", "-n", "2"][..],
        &["serve", "--port", "0"],
    ] {
        let line = bad(&[command, &["--draft", other]].concat(), 1);
        assert!(
            line.contains("other.gguf: token 20 is another one"),
            "{line}"
        );
    }
    let line = bad(&["run", "-p", "1", "--draft", "/nowhere/draft.gguf"], 1);
    assert!(line.contains("/nowhere/draft.gguf"), "{line}");
    let line = bad(&["run", "-p", "1", "--lookup", "often"], 2);
    assert!(line.contains("often"), "{line}");
}

/// The MTP layer of the model's own file, and of a file of its own, by any of its
/// options.
#[test]
fn an_mtp_layer_changes_no_text() {
    let Some(models) = octavo_fixtures::shared("feat/mtp/models") else {
        return;
    };
    let path = |name: &str| models.join(name).to_str().expect("text").to_owned();
    let (model, own) = (path("qwen35-mtp-F32.gguf"), path("mtp-qwen35-F32.gguf"));
    let run = |more: &[&str]| {
        let common = [
            "run",
            &model,
            "-p",
            "1+1=",
            "-n",
            "40",
            "--ignore-eos",
            "--json",
        ];
        json(&[&common[..], &["--temp", "0", "--lookup", "off"], more].concat())
    };
    let plain = run(&[]);
    assert_eq!(count(&plain, "draft_tokens"), 0);
    let of_file = format!("--draft-mtp={own}");
    for more in [
        &["--draft-mtp"][..],
        &["--mtp", "--spec-draft-n-max", "3"],
        &["--draft-mtp", "--draft-max", "3"],
        &[&of_file, "--draft-max", "3"],
        &["--draft", &own, "--draft-max", "3"],
    ] {
        let drafted = run(more);
        assert_eq!(drafted["tokens"], plain["tokens"], "{more:?}");
        // llama.cpp accepts 6 of 95 with three at a time
        if more.len() > 1 {
            assert!(count(&drafted, "accepted_tokens") > 0, "{more:?}");
        }
    }
    let line = bad(&["run", "-p", "1", "--draft-mtp"], 1);
    assert!(line.contains("MTP layers are not supported"), "{line}");
    let line = bad(&["run", "-p", "1", "--draft-mtp=/nowhere/mtp.gguf"], 1);
    assert!(line.contains("/nowhere/mtp.gguf"), "{line}");
}

/// An assistant drafts by any option that names its file, and is refused beside another model.
#[test]
fn an_assistant_changes_no_text() {
    let Some(models) = octavo_fixtures::shared("feat/mtp/models") else {
        return;
    };
    let path = |name: &str| models.join(name).to_str().expect("text").to_owned();
    let model = path("gemma4-target-F32.gguf");
    let assistant = path("gemma4-assistant-F32.gguf");
    let run = |more: &[&str]| {
        let common = ["run", &model, "-p", "1+1=", "-n", "40", "--ignore-eos"];
        let common = [&common[..], &["--json", "--temp", "0", "--lookup", "off"]].concat();
        json(&[&common[..], more].concat())
    };
    let plain = run(&[]);
    assert_eq!(count(&plain, "draft_tokens"), 0);
    let of_file = format!("--draft-mtp={assistant}");
    for more in [
        &["--draft", &assistant, "--draft-max", "3"][..],
        &["-md", &assistant, "--spec-draft-n-max", "3"],
        &[&of_file, "--draft-max", "1"],
    ] {
        let drafted = run(more);
        assert_eq!(drafted["tokens"], plain["tokens"], "{more:?}");
        assert!(count(&drafted, "draft_tokens") > 30, "{more:?}");
    }
    let line = bad(&["run", "-p", "1", "--draft", &assistant], 1);
    assert!(line.contains("expected an assistant for qwen3"), "{line}");
    let line = bad(&["run", &assistant, "-p", "1"], 1);
    assert!(
        line.contains("expected the model that it belongs to"),
        "{line}"
    );
}
