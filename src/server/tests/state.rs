//! `/props` and `/slots`: llama-server's fields, and what they say while requests run.

use std::time::{Duration, Instant};

use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, ok, read, small};

/// Fields of llama-server's `/props` that this server has none of.
const LEFT_OUT: [&str; 1] = ["chat_template_caps"];

#[test]
fn props_have_llama_servers_fields() {
    let server = Server::usual();
    let props = server.get("/props").json();
    let fields = [
        "default_generation_settings",
        "total_slots",
        "model_alias",
        "model_ftype",
        "model_path",
        "modalities",
        "media_marker",
        "endpoint_slots",
        "endpoint_props",
        "endpoint_metrics",
        "ui",
        "ui_settings",
        "chat_template",
        "bos_token",
        "eos_token",
        "build_info",
        "is_sleeping",
        "cors_proxy_enabled",
    ];
    for name in fields {
        assert!(!props[name].is_null(), "{name}: {props}");
    }
    for name in LEFT_OUT {
        assert_eq!(props.get(name), None);
    }
    // a model without such a token has an empty text
    assert!(props["bos_token"].is_string() && props["eos_token"].is_string());
    let params = &props["default_generation_settings"]["params"];
    for name in [
        "seed",
        "temperature",
        "dynatemp_range",
        "dynatemp_exponent",
        "top_k",
        "top_p",
        "min_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_target",
        "adaptive_decay",
        "max_tokens",
        "n_predict",
        "n_keep",
        "ignore_eos",
        "stream",
        "n_probs",
        "min_keep",
        "samplers",
        "timings_per_token",
        "post_sampling_probs",
        "backend_sampling",
        "lora",
    ] {
        assert!(!params[name].is_null(), "{name}: {params}");
    }
}

/// Returns the slots once a condition holds of them.
fn slots_when(server: &Server, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let slots = server.get("/slots").json();
        let slots = slots.as_array().expect("slots");
        if holds(slots) {
            return slots.clone();
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{slots:?}");
    }
}

#[test]
fn slots_say_what_runs() {
    let mut engine = small();
    engine.sessions = 2;
    let server = Server::new(engine, Options::default());
    let prompt = "1+1=2 ".repeat(20);
    // its pages are cached
    let short = json!({ "prompt": prompt, "n_predict": 1, "temperature": 0 });
    ok(&server, "/completion", &short);
    server.idle();
    let mut body = short;
    body["n_predict"] = json!(300);
    body["ignore_eos"] = json!(true);
    body["stream"] = json!(true);
    let send = || server.send("POST", "/completion", "", body.to_string().as_bytes());
    let begun = |slot: &Value| slot["next_token"][0]["n_decoded"].as_u64() > Some(0);
    let first = send();
    let slots = slots_when(&server, |slots| begun(&slots[0]));
    assert_eq!(slots.len(), 2);
    let slot = &slots[0];
    assert_eq!(slot["is_processing"], true);
    assert_eq!(slots[1]["is_processing"], false);
    let number = |name: &str| slot[name].as_u64().expect("a number");
    assert!(number("n_prompt_tokens_cache") > 0, "{slot}");
    assert_eq!(
        number("n_prompt_tokens"),
        number("n_prompt_tokens_cache") + number("n_prompt_tokens_processed"),
    );
    let next = &slot["next_token"][0];
    assert_eq!(next["has_next_token"], true);
    assert!(next["n_remain"].is_number(), "{next}");
    // no text, and nothing of the other's
    assert!(slot.get("prompt").is_none() && slots[1].get("id_task").is_none());

    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    let second = send();
    slots_when(&server, |slots| {
        slots.iter().all(|slot| slot["is_processing"] == true)
    });
    let full = server.get("/slots?fail_on_no_slot=1");
    let is_done = |slots: &[Value]| slots.iter().any(|slot| slot["is_processing"] == false);
    if full.status != 503 {
        // both may have ended meanwhile
        slots_when(&server, is_done);
    } else {
        assert_eq!(full.json()["error"]["message"], "no slot available");
    }
    assert_eq!(server.get("/slots?fail_on_no_slot=").status, 200);
    for stream in [first, second] {
        assert_eq!(read(stream).status, 200);
    }
}
