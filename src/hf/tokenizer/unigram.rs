//! Unigram, from `tokenizer.json`: the tokenizer of XLM-R and of multilingual embedding models.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gguf_rs_lite::{OwnedArray, View};
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::{Files, NORMAL, Specials, Tokens, UNKNOWN, embedders, own};

/// Usual texts of the tokens for what is missing, padding, beginnings, ends and masks.
const USUAL: [&str; 5] = ["<unk>", "<pad>", "<s>", "</s>", "<mask>"];

/// Score that llama.cpp's converter gives to rows without a token.
const PADDING_SCORE: f32 = -10_000.0;

/// Sets the keys of the vocabulary, of normalization and of special tokens.
pub(super) fn declare(files: &Files, config: &Config, view: &mut View) -> Result<Specials, Error> {
    view.set("tokenizer.ggml.model", "t5")
        .set("tokenizer.ggml.pre", "default");
    let mut tokens = Tokens::new(config)?;
    let mut scores = vec![PADDING_SCORE; config.vocab_size()?];
    let model = &files.tokenizer["model"];
    let list = model["vocab"].as_array();
    let list =
        list.ok_or_else(|| files.bad("model.vocab", "tokens and their scores", "nothing"))?;
    for (id, token) in (0..).zip(list) {
        let (Some(text), Some(score)) = (token[0].as_str(), token[1].as_f64()) else {
            return Err(files.bad("model.vocab", "pairs of a text and a number", token));
        };
        tokens.put(&files.file, Some(id), text, NORMAL)?;
        if let Some(place) = scores.get_mut(id as usize) {
            *place = score as f32;
        }
    }
    tokens.put_all_added(files)?;
    let unknown = model["unk_id"].as_u64();
    let text = unknown.and_then(|id| list.get(usize::try_from(id).ok()?)?[0].as_str());
    let text = text.ok_or_else(|| files.bad("model.unk_id", "a token", &model["unk_id"]))?;
    tokens.put(&files.file, unknown, text, UNKNOWN)?;
    if model["byte_fallback"] == true {
        return Err(files.bad("model.byte_fallback", "false", "true"));
    }
    let joins_spaces = normalization(files, view)?;
    let splits_words = spaces(files)?;
    view.set("tokenizer.ggml.add_space_prefix", true).set(
        "tokenizer.ggml.remove_extra_whitespaces",
        joins_spaces || splits_words,
    );
    view.set("tokenizer.ggml.scores", scores);
    let mut specials = Specials {
        by_text: tokens.declare(view, own),
        ..Specials::default()
    };
    let texts = embedders::texts(files, USUAL);
    embedders::declare(files, texts, &mut specials, view)?;
    // a pair is <s> a </s></s> b </s>
    view.set("tokenizer.ggml.add_sep_token", true);
    Ok(specials)
}

/// Returns the steps of a sequence, or the only step.
fn steps<'a>(step: &'a Value, list: &str) -> Vec<&'a Value> {
    match &step[list] {
        Value::Array(steps) => steps.iter().collect(),
        _ if step.is_null() => Vec::new(),
        _ => vec![step],
    }
}

/// Sets the map of characters; returns whether several spaces become one.
fn normalization(files: &Files, view: &mut View) -> Result<bool, Error> {
    let mut joins_spaces = false;
    for step in steps(&files.tokenizer["normalizer"], "normalizers") {
        let is_join = step["pattern"]["Regex"] == " {2,}" && step["content"] == " ";
        match step["type"].as_str() {
            Some("Precompiled") => {
                let text = step["precompiled_charsmap"].as_str().unwrap_or_default();
                let map = STANDARD.decode(text).map_err(|error| {
                    files.bad("normalizer.precompiled_charsmap", "base64", error)
                })?;
                let map = OwnedArray::U8(map);
                view.set("tokenizer.ggml.precompiled_charsmap", map);
            }
            Some("Replace") if is_join => joins_spaces = true,
            // spaces at the end vanish with those that are joined
            Some("Strip") if step["strip_left"] != true => {}
            _ => return Err(files.bad("normalizer", "Precompiled", step)),
        }
    }
    Ok(joins_spaces)
}

/// Checks that words begin with a space; returns whether text is split into words first.
fn spaces(files: &Files) -> Result<bool, Error> {
    const KEY: &str = "pre_tokenizer";
    let (mut splits, mut begins) = (false, false);
    for step in steps(&files.tokenizer[KEY], "pretokenizers") {
        let is_first = step["prepend_scheme"]
            .as_str()
            .is_none_or(|s| s == "always");
        match step["type"].as_str() {
            Some("WhitespaceSplit") => splits = true,
            Some("Metaspace") if is_first && step["add_prefix_space"] != false => begins = true,
            _ => return Err(files.bad(KEY, "WhitespaceSplit and Metaspace", step)),
        }
    }
    if !begins {
        return Err(files.bad(KEY, "Metaspace, with a space before texts", "none"));
    }
    Ok(splits)
}
