//! Gemma 4's BPE, which merges characters by rank and falls back to bytes for those without a
//! token.

use std::path::Path;

use gguf_rs_lite::View;

use super::super::Error;
use super::super::config::Config;
use super::spm::{add, from_json, prefix_of};
use super::{Files, Specials, Tokens, USER_DEFINED, bad, ids, own};
use octavo_text::tokenizer::SpacePrefix;

/// Tokens that llama.cpp's converter makes visible though the folder calls them special, because
/// answers are parsed by them.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Score that the converter gives every token; it is not used.
const SCORE: f32 = -1000.0;

/// Sets the keys of the vocabulary.
pub(super) fn declare(
    dir: &Path,
    files: &Files,
    config: &Config,
    view: &mut View,
) -> Result<Specials, Error> {
    if files.tokenizer["model"]["byte_fallback"] != true {
        let got = &files.tokenizer["model"]["byte_fallback"];
        return Err(files.bad("model.byte_fallback", "true", got));
    }
    let mut tokens = Tokens::new(config)?;
    let mut specials = from_json(files, &mut tokens)?;
    add(dir, files, &mut tokens)?;
    for token in tokens.places.iter_mut().flatten() {
        if VISIBLE.contains(&token.0.as_str()) {
            token.1 = USER_DEFINED;
        }
    }
    if prefix_of(files)? != SpacePrefix::Never {
        let got = &files.tokenizer["normalizer"];
        return Err(files.bad("normalizer", "Replace alone, of ▁ for spaces", got));
    }
    let merges = files
        .merges()
        .map(|merge| merge.map(|(a, b)| format!("{a} {b}")));
    let merges: Vec<String> = merges.collect::<Result<_, _>>()?;
    view.set("tokenizer.ggml.model", "gemma4")
        .set("tokenizer.ggml.merges", merges)
        .set("tokenizer.ggml.scores", vec![SCORE; tokens.places.len()])
        .set("tokenizer.ggml.add_space_prefix", false);
    let suppressed = &files.generation["suppress_tokens"];
    if !suppressed.is_null() {
        let file = dir.join("generation_config.json").display().to_string();
        let wrong = || bad(&file, "suppress_tokens", "ids of tokens", suppressed);
        let ids = ids(suppressed).ok_or_else(wrong)?.into_iter();
        // the key has signed ids; ids too large for it are in no vocabulary
        let ids: Vec<i32> = ids.filter_map(|id| i32::try_from(id).ok()).collect();
        view.set("tokenizer.ggml.suppress_tokens", ids);
    }
    specials.by_text = tokens.declare(view, own);
    specials.add_bos = Some(true);
    Ok(specials)
}
