//! Python's output: `python.json` has templates with the output of jinja2 3.1, configured as in
//! transformers, and templates that it refuses.

use super::{conversation, render, template};

#[derive(serde::Deserialize)]
struct Cases {
    rendered: Vec<(String, String)>,
    refused: Vec<String>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("python.json")).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn everything_is_printed_as_python_prints_it() {
    for (source, expected) in cases().rendered {
        assert_eq!(render(&source), expected, "{source}");
    }
}

#[test]
fn what_python_refuses_is_refused() {
    for source in cases().refused {
        let result = template(&source).and_then(|t| t.render(&conversation(), true));
        assert!(result.is_err(), "{source}: {result:?}");
    }
}
