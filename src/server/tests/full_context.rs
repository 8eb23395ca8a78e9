//! Texts that fill the context.

use octavo_engine::{ContextShift, EngineOptions};
use octavo_server::ModelOptions;
use serde_json::{Value, json};

use crate::client::{Server, ok, small};

#[test]
fn a_full_context_is_shifted_if_the_server_does_that() {
    let options = ModelOptions {
        context_shift: Some(ContextShift::default()),
        ..ModelOptions::default()
    };
    let engine = EngineOptions {
        ctx: Some(64),
        ..small()
    };
    let server = Server::of_model(engine, options);
    let body = |fields: Value| {
        let mut body = json!({ "prompt": "1+1=", "n_predict": 150, "ignore_eos": true });
        for (name, value) in fields.as_object().expect("fields") {
            body[name] = value.clone();
        }
        ok(&server, "/completion", &body)
    };
    let answer = body(json!({ "temperature": 0 }));
    assert_eq!(answer["tokens_predicted"], 150, "{answer}");
    assert_eq!(answer["truncated"], true, "{answer}");
    let count = |answer: &Value, name: &str| answer["timings"][name].as_u64().expect("a count");
    assert_eq!(answer["generation_settings"]["n_keep"], -1, "{answer}");
    let few = body(json!({ "temperature": 0, "n_keep": 4, "n_discard": 3 }));
    assert_eq!(few["generation_settings"]["n_keep"], 4, "{few}");
    // shifts that drop less come more often
    assert!(count(&few, "discarded_n").is_multiple_of(3), "{few}");
    let recomputed = [&answer, &few].map(|answer| count(answer, "recomputed_n"));
    assert!(recomputed[0] < recomputed[1], "{recomputed:?}");
    assert_eq!(few["warnings"], Value::Null, "{few}");
    let short = body(json!({ "n_predict": 3 }));
    assert_eq!(short["truncated"], false, "{short}");
}
