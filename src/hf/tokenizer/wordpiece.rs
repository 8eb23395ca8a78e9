//! WordPiece, the tokenizer of BERT: from `tokenizer.json`, or from the list of tokens `vocab.txt`.

use std::path::Path;

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::config::Config;
use super::super::{Error, MAX_TOKENIZER, read_bytes};
use super::{CONTROL, Files, NORMAL, SPACE, Specials, Tokens, bad, embedders};

/// File with a token per line, in folders without `tokenizer.json`.
pub(super) const LIST: &str = "vocab.txt";

/// Prefix of tokens that continue a word.
const CONTINUES: &str = "##";

/// Usual texts of the tokens for what is missing, padding, beginnings, ends and masks.
const USUAL: [&str; 5] = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"];

/// Sets the keys of the vocabulary, of normalization and of special tokens.
pub(super) fn declare(
    dir: &Path,
    files: &Files,
    config: &Config,
    view: &mut View,
) -> Result<Specials, Error> {
    // llama.cpp's converter recognizes BERT's vocabulary by this name, and does not use it
    view.set("tokenizer.ggml.model", "bert")
        .set("tokenizer.ggml.pre", "bert-bge");
    let mut tokens = Tokens::new(config)?;
    match files.tokenizer.is_null() {
        true => put_list(dir, files, &mut tokens)?,
        false => {
            check_steps(files)?;
            for (text, id) in files.vocab()? {
                tokens.put(&files.file, id.as_u64(), text, NORMAL)?;
            }
            tokens.put_all_added(files)?;
        }
    }
    normalization(files, view)?;
    let by_text = tokens.declare(view, |text, ty| match text.strip_prefix(CONTINUES) {
        _ if ty == CONTROL => text.to_owned(),
        Some(rest) => rest.to_owned(),
        None => format!("{SPACE}{text}"),
    });
    let mut specials = Specials {
        by_text,
        ..Specials::default()
    };
    let texts = embedders::texts(files, USUAL);
    embedders::declare(files, texts, &mut specials, view)?;
    // a pair is [CLS] a [SEP] b [SEP]: the keys of llama.cpp's converter
    view.set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.ggml.add_eos_token", true)
        .set("tokenizer.ggml.add_sep_token", false);
    Ok(specials)
}

/// Sets the tokens of the list; those that settings name are special.
fn put_list(dir: &Path, files: &Files, tokens: &mut Tokens) -> Result<(), Error> {
    let file = dir.join(LIST).display().to_string();
    let list = read_bytes(dir, LIST, MAX_TOKENIZER)?.unwrap_or_default();
    let list = String::from_utf8(list)
        .map_err(|_| bad(&file, "vocabulary", "tokens in UTF-8", "other bytes"))?;
    let specials = embedders::texts(files, USUAL);
    for (id, text) in (0..).zip(list.lines()) {
        let ty = match specials.contains(&text) {
            true => CONTROL,
            false => NORMAL,
        };
        tokens.put(&file, Some(id), text, ty)?;
    }
    Ok(())
}

/// Checks the steps of `tokenizer.json`: words and their parts follow from GGUF's kind of tokenizer
/// alone.
fn check_steps(files: &Files) -> Result<(), Error> {
    let model = &files.tokenizer["model"];
    let expected = |value: &Value, expected: &str| value.is_null() || value == expected;
    if !expected(&model["continuing_subword_prefix"], CONTINUES) {
        let got = &model["continuing_subword_prefix"];
        return Err(files.bad("model.continuing_subword_prefix", CONTINUES, got));
    }
    for (step, kind) in [
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
    ] {
        let got = &files.tokenizer[step]["type"];
        if got != kind {
            return Err(files.bad(step, kind, got));
        }
    }
    let normalizer = &files.tokenizer["normalizer"];
    for key in ["clean_text", "handle_chinese_chars"] {
        if normalizer[key] == false {
            return Err(files.bad(&format!("normalizer.{key}"), "true", "false"));
        }
    }
    Ok(())
}

/// Sets the keys of normalization: whether letters become lower case, and lose their accents.
fn normalization(files: &Files, view: &mut View) -> Result<(), Error> {
    let (file, of, names) = match files.tokenizer.is_null() {
        true => (
            &files.settings_file,
            &files.settings,
            ["do_lower_case", "strip_accents"],
        ),
        false => (
            &files.file,
            &files.tokenizer["normalizer"],
            ["lowercase", "strip_accents"],
        ),
    };
    let flag = |name: &str| match &of[name] {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        other => Err(bad(file, name, "true or false", other)),
    };
    let lowercase = flag(names[0])?.unwrap_or(true);
    view.set("tokenizer.ggml.normalizer.lowercase", lowercase);
    if let Some(strips) = flag(names[1])? {
        view.set("tokenizer.ggml.normalizer.strip_accents", strips);
    }
    Ok(())
}
