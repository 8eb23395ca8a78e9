//! `generation_config.json`: the sampling settings that a folder's authors recommend, under the
//! keys that llama.cpp's converter gives them.

use std::path::Path;

use gguf_rs_lite::{Gguf, View};
use octavo_model::keys::{json_f32, number};
use serde_json::Value;

use super::{Error, MAX_SETTINGS, read_json};

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

/// Returns the sampling settings that a file recommends, under the key names of folders. A value of
/// another type is left out.
pub(super) fn recommended(gguf: &Gguf) -> Vec<(&'static str, Value)> {
    let key = |name: &str| format!("general.sampling.{name}");
    let numbers = NUMBERS.iter().filter_map(|(name, folder)| {
        let (number, folder) = (number(&gguf.get(&key(name))?)? as f32, folder.last()?);
        number.is_finite().then(|| (*folder, json_f32(number)))
    });
    let whole = WHOLE.iter().filter_map(|name| {
        let number = i32::try_from(gguf.get(&key(name))?.as_int()?).ok()?;
        Some((*name, Value::from(number)))
    });
    let sequence = gguf.str(&key("sequence")).ok().flatten();
    let sequence = sequence.map(|order| ("sequence", Value::from(order)));
    numbers.chain(whole).chain(sequence).collect()
}
