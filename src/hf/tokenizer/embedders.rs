//! Special tokens of models that map texts to vectors: around texts, between them, and for what is
//! missing.

use gguf_rs_lite::View;

use super::super::Error;
use super::{Files, Specials};

/// Settings, and their keys in GGUF, which spells one of them otherwise.
const KEYS: [(&str, &str); 5] = [
    ("unk_token", "unknown_token_id"),
    ("pad_token", "padding_token_id"),
    ("cls_token", "cls_token_id"),
    ("sep_token", "seperator_token_id"),
    ("mask_token", "mask_token_id"),
];

/// Returns the texts of these tokens: those of the settings, or else the `usual` ones.
pub(super) fn texts<'a>(files: &'a Files, usual: [&'a str; 5]) -> [&'a str; 5] {
    let mut texts = usual;
    for (text, (setting, _)) in texts.iter_mut().zip(KEYS) {
        let value = &files.settings[setting];
        *text = value.as_str().or(value["content"].as_str()).unwrap_or(text);
    }
    texts
}

/// Sets the keys of these tokens, which the vocabulary must have. Texts begin with CLS and end with
/// SEP, as BOS and EOS.
pub(super) fn declare(
    files: &Files,
    texts: [&str; 5],
    specials: &mut Specials,
    view: &mut View,
) -> Result<(), Error> {
    for ((setting, key), text) in KEYS.into_iter().zip(texts) {
        let id = specials.by_text.get(text).copied();
        let id = id.ok_or_else(|| files.bad(setting, "a token of the vocabulary", text))?;
        view.set(&format!("tokenizer.ggml.{key}"), id);
        match setting {
            "cls_token" => specials.bos = Some(id),
            "sep_token" => specials.eos = Some(id),
            _ => {}
        }
    }
    Ok(())
}
