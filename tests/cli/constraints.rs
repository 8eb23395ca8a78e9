//! run and chat with a JSON schema or a grammar, and with reasoning.

use serde_json::{Value, json};

use super::{bad, folder, good, octavo, stderr, stdout};

/// Chat template whose prompt begins the reasoning.
const THINKING: &str = "{{ messages[-1].content }}<think>\n{# </think> #}";

/// Returns the objects that a run prints, one per line.
fn objects(args: &[&str]) -> Vec<Value> {
    let lines = good(args);
    let parse = |line: &str| serde_json::from_str(line).expect("an object a line");
    lines.lines().map(parse).collect()
}

#[test]
fn texts_follow_a_schema_or_a_grammar() {
    let schema = r#"{"type": "object", "required": ["a", "b"], "properties":
        {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}}}"#;
    let text = good(&["run", "-p", "1+1=", "--json-schema", schema]);
    let object: Value = serde_json::from_str(&text).expect("JSON");
    assert!(
        object["a"].is_boolean() && object["b"].is_string(),
        "{text}"
    );
    let short = good(&["run", "-p", "1+1=", "-j", schema]);
    assert_eq!(short, text);

    let grammar = r#"root ::= "no" | "never""#;
    let text = good(&["run", "-p", "1+1=", "--grammar", grammar]);
    assert!(["no", "never"].contains(&text.as_str()), "{text}");
    // draft tokens follow it as well
    let drafted = ["run", "-p", "1+1=", "--grammar", grammar, "--lookup", "on"];
    assert_eq!(good(&drafted), text);

    let dir = folder();
    let file = dir.path().join("rule");
    std::fs::write(&file, schema).expect("a file");
    let name = file.to_str().expect("UTF-8");
    let of_file = good(&["run", "-p", "1+1=", "-jf", name]);
    assert_eq!(of_file, short);
    std::fs::write(&file, grammar).expect("a file");
    let of_file = good(&["run", "-p", "1+1=", "--grammar-file", name]);
    assert_eq!(of_file, text);
}

#[test]
fn each_of_several_texts_follows_the_rule() {
    let schema = r#"{"enum": ["left", "right"]}"#;
    let choices = [json!("left"), json!("right")];
    for how in [
        &["--n", "3", "--temp", "1", "--json"][..],
        &["--best-of", "3", "--json"],
        &["--beams", "2", "--n", "2", "--json"],
    ] {
        let args = [&["run", "-p", "1+1=", "-j", schema], how].concat();
        for object in objects(&args) {
            let text = object["text"].as_str().expect("a text");
            let value: Value = serde_json::from_str(text).expect("JSON");
            assert!(choices.contains(&value), "{how:?}: {text}");
        }
    }
    let args = ["run", "--lines", "-j", schema];
    let output = octavo(&args).write_stdin("1+1=\n2+2=\n").output();
    let output = output.expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = stdout(&output);
    assert_eq!(lines.matches(r#"t\""#).count(), 2, "{lines}");
}

#[test]
fn chat_follows_the_rule_in_every_turn() {
    let args = ["chat", "--no-history", "--grammar", r#"root ::= "well""#];
    let template = ["--chat-template", "{{ messages[-1].content }}"];
    let output = octavo(&[&args[..], &template].concat())
        .write_stdin("1+1=\n2+2=\n")
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "well\nwell\n");
}

#[test]
fn rules_are_checked_before_the_model_and_by_the_vocabulary() {
    for command in ["run", "chat"] {
        let refused = |rule: &[&str]| {
            let text: &[&str] = if command == "run" { &["-p", "a"] } else { &[] };
            bad(&[&[command, "no-such-model.gguf"], text, rule].concat(), 2)
        };
        assert!(refused(&["--grammar", "root ::= ("]).contains("--grammar: "));
        assert!(refused(&["--json-schema", "["]).contains("--json-schema: expected"));
        let two = refused(&["--grammar", "root ::= \"a\"", "--json-schema", "{}"]);
        assert!(two.contains("cannot be used with"), "{two}");
    }
    let schema = r#"{"type": "string", "pattern": "("}"#;
    let message = bad(&["run", "-p", "a", "--json-schema", schema], 2);
    assert!(message.contains("--json-schema: "), "{message}");
    // parts that no grammar can enforce are ignored, with a warning
    let schema = r#"{"type": "array", "uniqueItems": true, "maxItems": 1}"#;
    let output = octavo(&["run", "-p", "a", "-n", "40", "-j", schema]).output();
    let notes = stderr(&output.expect("runs"));
    assert!(
        notes.contains("--json-schema: ") && notes.contains("uniqueItems"),
        "{notes}"
    );
}

#[test]
fn thoughts_are_left_out_of_an_answer_unless_a_person_reads_it() {
    let args = ["run", "--chat", "--chat-template", THINKING, "-p", "1+1="];
    let args = [&args[..], &["-n", "6", "--ignore-eos"]].concat();
    let with = |more: &[&'static str]| [&args[..], more].concat();
    assert_eq!(good(&args), "");
    let thought = good(&with(&["--special"]));
    assert!(!thought.trim().is_empty());
    for more in [&["--json"][..], &["--n", "2", "--json"]] {
        for object in objects(&with(more)) {
            assert_eq!(object["text"], "", "{object}");
            assert_eq!(object["reasoning"], thought, "{object}");
        }
    }
}
