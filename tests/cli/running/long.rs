//! Texts and conversations longer than the context.

use octavo_fixtures::workspace_root;
use serde_json::Value;

use crate::cli::{json, octavo, stderr, stdout};

/// Template whose prompt has the messages of users and nothing else.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]\
                        {% endif %}{% endfor %}";

fn model() -> String {
    let path = workspace_root().join("reference/models/rnd-llama-Q4_K_M.gguf");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_text_goes_on_when_the_context_is_full() {
    let model = model();
    let text = |more: &[&str]| -> Value {
        let usual = ["run", &model, "-p", "Once", "--json", "--ignore-eos"];
        json(&[&usual, more].concat())
    };
    let short = text(&["-c", "32"]);
    assert_eq!(short["finish_detail"], "context_full");
    assert_eq!(short["metrics"]["discarded_tokens"], 0);
    let long = text(&["-c", "32", "-n", "70", "--context-shift"]);
    assert_eq!(long["finish_detail"], "max_tokens");
    assert_eq!(long["tokens"].as_array().map(Vec::len), Some(70));
    let discarded = long["metrics"]["discarded_tokens"].as_u64();
    assert!(discarded.is_some_and(|n| n > 40), "{discarded:?}");
    let n = short["tokens"].as_array().expect("tokens").len();
    let first = &long["tokens"].as_array().expect("tokens")[..n];
    assert_eq!(first, &short["tokens"].as_array().expect("tokens")[..]);
    // most tokens are kept, so that each shift drops few
    let kept = text(&["-c", "32", "-n", "70", "--context-shift", "--keep", "24"]);
    assert!(kept["metrics"]["discarded_tokens"].as_u64() < discarded);
    assert_ne!(kept["tokens"], long["tokens"]);

    let args = [
        "run",
        &model,
        "-p",
        "Once",
        "-c",
        "32",
        "-n",
        "70",
        "--ignore-eos",
    ];
    let output = octavo(&[&args[..], &["--context-shift"]].concat())
        .output()
        .expect("runs");
    let notes = stderr(&output);
    let expected = format!(
        "context full: {} earlier tokens were dropped",
        discarded.unwrap_or(0)
    );
    assert!(notes.contains(&expected), "{notes}");
}

#[test]
fn a_conversation_loses_its_oldest_turns() {
    let model = model();
    let lines: String = (0..12)
        .map(|n| format!("Question number {n}, please\n"))
        .collect();
    let chat = |more: &[&str]| {
        let usual = [
            "chat",
            &model,
            "--no-history",
            "-c",
            "96",
            "-n",
            "4",
            "--temp",
            "0",
        ];
        let all = [&usual[..], &["--chat-template", TEMPLATE], more].concat();
        octavo(&all)
            .write_stdin(lines.clone())
            .output()
            .expect("runs")
    };
    let ended = chat(&[]);
    assert!(!ended.status.success());
    assert!(
        stderr(&ended).contains("context of 96"),
        "{}",
        stderr(&ended)
    );
    let output = chat(&["--context-shift"]);
    let notes = stderr(&output);
    assert!(output.status.success(), "{notes}");
    assert!(
        notes.contains("turns dropped from the beginning"),
        "{notes}"
    );
    assert!(stdout(&output).len() > stdout(&ended).len());
    // one message that is too long stays an error
    let long = "a b c d e f g h i j k l m n o p q r s t u v w x y z ".repeat(4);
    let usual = [
        "chat",
        &model,
        "--no-history",
        "-c",
        "96",
        "--context-shift",
    ];
    let all = [&usual[..], &["--chat-template", TEMPLATE]].concat();
    let refused = octavo(&all).write_stdin(long).output().expect("runs");
    assert!(
        stderr(&refused).contains("context of 96"),
        "{}",
        stderr(&refused)
    );
}
