//! Special tokens of models that map texts to vectors: around texts, between them, and for what is
//! missing.

use gguf_rs_lite::View;

use super::super::Error;
use super::{Files, Specials, text_of};

/// Names of these tokens in settings.
const SETTINGS: [&str; 5] = [
    "unk_token",
    "pad_token",
    "cls_token",
    "sep_token",
    "mask_token",
];

/// Returns the texts of these tokens: those of the settings, or else the `usual` ones.
pub(super) fn texts<'a>(files: &'a Files, usual: [&'a str; 5]) -> [&'a str; 5] {
    let mut texts = usual;
    for (text, setting) in texts.iter_mut().zip(SETTINGS) {
        *text = text_of(&files.settings[setting]).unwrap_or(text);
    }
    texts
}

/// Finds these tokens, which the vocabulary must have, and sets the keys of those that other models
/// do not have. Texts begin with CLS and end with SEP, as BOS and EOS.
pub(super) fn declare(
    files: &Files,
    texts: [&str; 5],
    specials: &mut Specials,
    view: &mut View,
) -> Result<(), Error> {
    let mut ids = [0; SETTINGS.len()];
    for (place, (setting, text)) in ids.iter_mut().zip(SETTINGS.into_iter().zip(texts)) {
        let id = specials.by_text.get(text).copied();
        *place = id.ok_or_else(|| files.bad(setting, "a token of the vocabulary", text))?;
    }
    let [unk, pad, cls, sep, mask] = ids;
    // GGUF spells one of them otherwise
    view.set("tokenizer.ggml.cls_token_id", cls)
        .set("tokenizer.ggml.seperator_token_id", sep)
        .set("tokenizer.ggml.mask_token_id", mask);
    (specials.unk, specials.pad) = (Some(unk), Some(pad));
    (specials.bos, specials.eos) = (Some(cls), Some(sep));
    Ok(())
}
