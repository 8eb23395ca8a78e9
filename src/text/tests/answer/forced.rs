//! Calls in the form that grammars force.

use octavo_text::chat::answer::Arguments;
use octavo_text::chat::answer::CallFormat::{self, *};
use serde_json::Value;

use super::{FORMATS, answer};

const ARGUMENTS: &str = r#"{"city": "Bern", "days": 2}"#;

/// Writes the arguments in the form that a grammar would force for a format.
fn arguments(format: CallFormat, arguments: Arguments) -> String {
    let Arguments::Parameters { between } = arguments else {
        return ARGUMENTS.to_owned();
    };
    let is_quoted = matches!(format, Lfm2 | Pythonic);
    let city = if is_quoted { "\"Bern\"" } else { "Bern" };
    let around = |key: &str, is_text: bool, value: &str| {
        let (before, after) = format.around_value(key, is_text);
        format!("{before}{value}{after}")
    };
    let (city, days) = (around("city", true, city), around("days", false, "2"));
    format!("{city}{between}{days}")
}

#[test]
fn what_a_grammar_forces_is_read() {
    for format in FORMATS {
        let call = format.call("f");
        let arguments = arguments(format, call.arguments);
        let one = format!("{}{arguments}{}", call.before, call.after);
        let section = format.section();
        for n in [1, 3] {
            let calls = vec![one.as_str(); n].join(section.between);
            let text = format!("{}{calls}{}", section.open, section.close);
            let answer = answer(format, &text);
            assert_eq!(answer.calls.len(), n, "{format:?}: {text}");
            for (name, found) in &answer.calls {
                let compact = |text: &str| text.replace(' ', "");
                assert_eq!(name, "f", "{format:?}: {text}");
                assert_eq!(compact(found), compact(ARGUMENTS), "{format:?}: {text}");
            }
            assert_eq!(answer.content, "", "{format:?}: {text}");
        }
        let is_bare = matches!(format, Json | Llama3 | Pythonic | Functionary);
        let text = format!("{}{one}", section.open);
        let shows = |opener: &&str| text.contains(opener.trim());
        assert!(is_bare || format.openers().iter().any(shows), "{format:?}");
    }
}

#[test]
fn forced_texts_may_hold_anything_but_their_end() {
    for format in FORMATS {
        let Some(end) = format.text_end("city") else {
            continue;
        };
        let text = "if a < b && c > d: return '<p>'\n\n</";
        assert!(!text.contains(&end));
        let call = format.call("f");
        let (before, after) = format.around_value("city", true);
        let section = format.section();
        let written = format!(
            "{}{}{before}{text}{after}{}{}",
            section.open, call.before, call.after, section.close
        );
        let answer = answer(format, &written);
        let arguments: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        assert_eq!(arguments["city"], text, "{format:?}: {written}");
        assert!(after.contains(&end), "{format:?}");
    }
}
