//! `generation_config.json`: the sampling settings that a folder's authors recommend, under the
//! keys that llama.cpp's converter gives them.

use std::path::Path;

use gguf_rs_lite::{Gguf, View};
use serde_json::Value;

use super::{Error, MAX_SETTINGS, read_json};
use crate::sample::{SamplerDefaults, Stage};

/// Settings with a fraction: the key after `general.sampling.`, and their names in the folder.
const NUMBERS: [(&str, &[&str]); 4] = [
    ("temp", &["temperature"]),
    ("top_p", &["top_p"]),
    ("min_p", &["min_p"]),
    ("penalty_repeat", &["penalty_repeat", "repetition_penalty"]),
];

/// Settings that are integers, with the same name in both.
const WHOLE: [&str; 2] = ["top_k", "penalty_last_n"];

/// Sets the keys of recommended settings. A value of another type is ignored, as in llama.cpp's
/// converter: it changes how a model is used, not what it computes.
pub(super) fn declare(dir: &Path, view: &mut View) -> Result<(), Error> {
    let Some(settings) = read_json(dir, "generation_config.json", MAX_SETTINGS)? else {
        return Ok(());
    };
    let key = |name: &str| format!("general.sampling.{name}");
    for (name, from) in NUMBERS {
        let number = from.iter().find_map(|from| settings[*from].as_f64());
        if let Some(number) = number {
            view.set(&key(name), number as f32);
        }
    }
    for name in WHOLE {
        let number = settings[name].as_i64();
        if let Some(number) = number.and_then(|n| i32::try_from(n).ok()) {
            view.set(&key(name), number);
        }
    }
    if let Some(sequence) = settings["sequence"].as_str() {
        view.set(&key("sequence"), sequence);
    }
    Ok(())
}

/// Returns the sampling settings that a file recommends, under the key names of folders.
pub(super) fn recommended(gguf: &Gguf) -> Vec<(&'static str, Value)> {
    let (defaults, _) = SamplerDefaults::from_gguf(gguf);
    // the decimal number that was meant, not the nearest binary one
    let number = |x: f32| Value::from(x.to_string().parse::<f64>().unwrap_or(f64::from(x)));
    let names = |order: Vec<Stage>| {
        let names: Vec<&str> = order.into_iter().map(Stage::name).collect();
        Value::from(names.join(";"))
    };
    let window = |n: usize| i32::try_from(n).unwrap_or(-1);
    let all = [
        ("temperature", defaults.temperature.map(number)),
        ("top_k", defaults.top_k.map(Value::from)),
        ("top_p", defaults.top_p.map(number)),
        ("min_p", defaults.min_p.map(number)),
        ("repetition_penalty", defaults.repeat_penalty.map(number)),
        (
            "penalty_last_n",
            defaults.penalty_window.map(|n| Value::from(window(n))),
        ),
        ("sequence", defaults.order.map(names)),
    ];
    let given = all.into_iter();
    given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}
