//! `tokenizer.json` and what stands beside it, under GGUF's keys.
//!
//! Byte-level BPE vocabularies only. What GGUF calls `pre`, the way text is cut into words, is recognised by its patterns
//! and flags; a tokenizer that cuts in a way of its own is refused, because a wrong guess changes tokens without a word.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::{Array, Gguf, View};
use serde_json::{Map, Value, json};

use super::config::Config;
use super::{Error, MAX_SETTINGS, MAX_TOKENIZER, read_json};
use crate::tokenizer::Tokenizer;

/// GGUF's types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The most entries of a vocabulary: memory is taken for all of them before any is read.
const MAX_TOKENS: usize = 1 << 24;

/// The pattern of a `ByteLevel` that cuts by itself: GPT-2's.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// A token id, or a list of them.
pub(super) fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().map(id).collect(),
        value => Some(vec![id(value)?]),
    }
}

/// The folder's JSON files that say something about tokens.
struct Files {
    file: String,
    tokenizer: Value,
    settings: Value,
    generation: Value,
}

impl Files {
    fn bad(&self, key: &str, expected: &str, got: impl ToString) -> Error {
        let got = got.to_string().chars().take(120).collect();
        Error::Value { file: self.file.clone(), key: key.to_owned(), expected: expected.to_owned(), got }
    }
}

/// Sets every key of the tokenizer.
pub(super) fn declare(dir: &Path, config: &Config, view: &mut View) -> Result<(), Error> {
    let file = dir.join("tokenizer.json").display().to_string();
    let expected = "the vocabulary of a Hugging Face model";
    let read = |name: &str| Ok::<_, Error>(read_json(dir, name, MAX_SETTINGS)?.unwrap_or_default());
    let files = Files {
        tokenizer: read_json(dir, "tokenizer.json", MAX_TOKENIZER)?
            .ok_or_else(|| Error::Missing { file: file.clone(), expected })?,
        file,
        settings: read("tokenizer_config.json")?,
        generation: read("generation_config.json")?,
    };
    let model = &files.tokenizer["model"];
    // files from before there was a choice do not say what they are
    if model["type"].as_str().is_some_and(|kind| kind != "BPE") || !model["merges"].is_array() {
        return Err(files.bad("model.type", "BPE", &model["type"]));
    }
    let pre = pre(&files)?;
    let (tokens, types, by_text) = tokens(&files, config)?;
    view.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
    view.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
    view.set("tokenizer.ggml.merges", merges(&files)?);
    special(&files, config, &by_text, view)?;
    let template = dir.join("chat_template.jinja");
    match std::fs::read_to_string(&template) {
        Ok(text) => {
            view.set("tokenizer.chat_template", text.as_str());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some(text) = chat_template(&files.settings) {
                view.set("tokenizer.chat_template", text);
            }
        }
        Err(source) => return Err(Error::Io { file: template.display().to_string(), source }),
    }
    Ok(())
}

/// The template that the settings have: one, or the default of several.
fn chat_template(settings: &Value) -> Option<&str> {
    let template = &settings["chat_template"];
    let default = || template.as_array()?.iter().find(|t| t["name"] == "default")?["template"].as_str();
    template.as_str().or_else(default)
}

/// The patterns that cut text into words, one inside the pieces of the one before.
fn patterns(files: &Files, step: &Value, out: &mut Vec<String>) -> Result<(), Error> {
    match step["type"].as_str() {
        Some("Sequence") => {
            for step in step["pretokenizers"].as_array().into_iter().flatten() {
                patterns(files, step, out)?;
            }
        }
        Some("Split") if step["behavior"] == "Isolated" && step["invert"] != true => {
            let pattern = step["pattern"]["Regex"].as_str();
            out.push(pattern.ok_or_else(|| files.bad("pre_tokenizer", "a Split by a Regex", step))?.to_owned());
        }
        Some("Digits") if step["individual_digits"] == true => out.push(r"\p{N}".to_owned()),
        Some("ByteLevel") if step["add_prefix_space"] != true => {
            // it cuts unless it says that it does not
            if step["use_regex"] != false {
                out.push(GPT2.to_owned());
            }
        }
        _ => {
            return Err(files.bad(
                "pre_tokenizer",
                "Split, Digits or ByteLevel, isolated and without spaces added",
                step,
            ));
        }
    }
    Ok(())
}

fn pre(files: &Files) -> Result<&'static str, Error> {
    let step = &files.tokenizer["pre_tokenizer"];
    let mut regexes = Vec::new();
    patterns(files, step, &mut regexes)?;
    let normalizer = files.tokenizer["normalizer"]["type"].as_str();
    if normalizer.is_some_and(|kind| kind != "NFC") {
        return Err(files.bad("normalizer", "none, or NFC", normalizer.unwrap_or_default()));
    }
    let ignore_merges = files.tokenizer["model"]["ignore_merges"] == true;
    Tokenizer::recognise_pre(&regexes, ignore_merges)
        .ok_or_else(|| files.bad("pre_tokenizer", "one that llama.cpp has a name for", regexes.join("  and  ")))
}

/// Texts and types of all tokens, and their ids by text.
type Tokens = (Vec<String>, Vec<i32>, BTreeMap<String, u32>);

fn tokens<'a>(files: &'a Files, config: &Config) -> Result<Tokens, Error> {
    let n = config.vocab_size()?;
    let vocab = files.tokenizer["model"]["vocab"].as_object();
    let vocab = vocab.ok_or_else(|| files.bad("model.vocab", "tokens and their ids", "nothing"))?;
    let added = files.tokenizer["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    if n > MAX_TOKENS {
        return Err(config.bad("vocab_size", format!("at most {MAX_TOKENS}"), n));
    }
    let mut texts: Vec<Option<(&str, i32)>> = vec![None; n];
    let mut put = |id: &Value, text: &'a str, ty: i32| {
        let Some(place) = id.as_u64().and_then(|id| texts.get_mut(usize::try_from(id).ok()?)) else {
            let expected = format!("ids below config.json's vocab_size, {n}");
            return Err(files.bad("vocabulary", &expected, format!("{text:?}: {id}")));
        };
        if let Some((other, _)) = place.filter(|place| place.0 != text) {
            return Err(files.bad("vocabulary", "one token for an id", format!("{other:?} and {text:?} for {id}")));
        }
        *place = Some((text, ty));
        Ok(())
    };
    for (text, id) in vocab {
        put(id, text, NORMAL)?;
    }
    for token in added {
        let text =
            token["content"].as_str().ok_or_else(|| files.bad("added_tokens", "tokens with a content", token))?;
        let special = token["special"] == true || looks_special(text);
        put(&token["id"], text, if special { CONTROL } else { USER_DEFINED })?;
    }
    let by_text = texts.iter().zip(0..).filter_map(|(t, id)| t.map(|t| (t.0.to_owned(), id))).collect();
    let types = texts.iter().map(|t| t.map_or(UNUSED, |t| t.1)).collect();
    // rows of the embedding that no text leads to
    let texts = texts.iter().enumerate().map(|(id, t)| t.map_or_else(|| format!("[PAD{id}]"), |t| t.0.to_owned()));
    Ok((texts.collect(), types, by_text))
}

/// llama.cpp's converter takes tokens of these forms for control tokens, whatever the file says.
fn looks_special(text: &str) -> bool {
    let between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

fn merges(files: &Files) -> Result<Vec<String>, Error> {
    let merges = files.tokenizer["model"]["merges"].as_array().map_or(&[][..], Vec::as_slice);
    let pair = |merge: &Value| {
        let text = match merge {
            Value::String(text) => Some(text.clone()),
            // newer files keep the two apart; the byte alphabet has no space
            Value::Array(two) => match two.as_slice() {
                [Value::String(a), Value::String(b)] => Some(format!("{a} {b}")),
                _ => None,
            },
            _ => None,
        };
        let two = text.filter(|text| text.split(' ').filter(|part| !part.is_empty()).count() == 2);
        two.ok_or_else(|| files.bad("model.merges", "pairs of tokens", merge))
    };
    merges.iter().map(pair).collect()
}

fn special(files: &Files, config: &Config, by_text: &BTreeMap<String, u32>, view: &mut View) -> Result<(), Error> {
    let text_of = |value: &Value| value.as_str().or(value["content"].as_str()).map(str::to_owned);
    let by_setting = |key: &str| -> Result<Option<u32>, Error> {
        let Some(text) = text_of(&files.settings[key]) else { return Ok(None) };
        by_text.get(&text).copied().map(Some).ok_or_else(|| files.bad(key, "a token of the vocabulary", text))
    };
    for (key, to, fallback) in [
        ("bos_token", "bos_token_id", Some("bos_token_id")),
        ("unk_token", "unknown_token_id", None),
        ("pad_token", "padding_token_id", Some("pad_token_id")),
    ] {
        let given = fallback.map_or(Ok(Vec::new()), |key| config.ids(key))?;
        if let Some(id) = by_setting(key)?.or(given.first().copied()) {
            view.set(&format!("tokenizer.ggml.{to}"), id);
        }
    }
    let mut ends: Vec<u32> = by_setting("eos_token")?.into_iter().collect();
    let generation = ids(&files.generation["eos_token_id"]).unwrap_or_default();
    for id in config.ids("eos_token_id")?.into_iter().chain(generation) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    // GGUF has three keys for tokens that end a generation
    for (id, key) in ends.into_iter().zip(["eos", "eot", "eom"]) {
        view.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    for (key, at) in [("add_bos_token", 0), ("add_eos_token", 1)] {
        if let Some(add) =
            files.settings[key].as_bool().or_else(|| template_adds(&files.tokenizer["post_processor"], at))
        {
            view.set(&format!("tokenizer.ggml.{key}"), add);
        }
    }
    Ok(())
}

/// Whether a post-processor puts a token before (0) or behind (1) a text; `None` if it does not say.
fn template_adds(processor: &Value, at: usize) -> Option<bool> {
    if processor["type"] == "Sequence" {
        return processor["processors"].as_array()?.iter().find_map(|p| template_adds(p, at));
    }
    let single = (processor["type"] == "TemplateProcessing").then(|| processor["single"].as_array())??;
    let text = single.iter().position(|piece| piece.get("Sequence").is_some())?;
    Some(if at == 0 { text > 0 } else { text + 1 < single.len() })
}

/// The folder's files about tokens, from GGUF's keys.
pub(super) fn files(gguf: &Gguf) -> Result<Vec<(&'static str, Value)>, Error> {
    let bad = |key: &str, expected: &str, got: String| Error::Value {
        file: gguf.name().to_owned(),
        key: format!("tokenizer.ggml.{key}"),
        expected: expected.to_owned(),
        got,
    };
    let text = |key: &str| Ok::<_, Error>(gguf.str(&format!("tokenizer.ggml.{key}"))?.unwrap_or_default());
    let strings = |key: &str| -> Result<Vec<String>, Error> {
        let array = gguf.array(&format!("tokenizer.ggml.{key}"))?;
        let strings = array.as_ref().and_then(Array::strings);
        let strings = strings.ok_or_else(|| bad(key, "an array of strings", "something else".to_owned()))?;
        let utf8 = |s: &[u8]| String::from_utf8(s.to_vec()).map_err(|e| bad(key, "UTF-8", e.to_string()));
        strings.map(utf8).collect()
    };
    if text("model")? != "gpt2" {
        return Err(bad("model", "gpt2 (byte-level BPE)", text("model")?.to_owned()));
    }
    let pre = text("pre")?;
    let expected = "one that cuts text by patterns alone";
    let (regexes, ignore_merges) =
        Tokenizer::patterns_of_pre(pre).ok_or_else(|| bad("pre", expected, pre.to_owned()))?;
    let tokens = strings("tokens")?;
    let types = gguf.array("tokenizer.ggml.token_type")?;
    let types: Vec<i32> = types.as_ref().and_then(Array::i32s).map_or(vec![NORMAL; tokens.len()], Iterator::collect);
    let of_type = |kinds: &'static [i32]| {
        tokens
            .iter()
            .zip(&types)
            .enumerate()
            .filter(move |t| kinds.contains(t.1.1))
            .map(|(id, (text, ty))| (id, text, *ty))
    };
    let vocab: Map<String, Value> =
        of_type(&[NORMAL, CONTROL, USER_DEFINED]).map(|(id, text, _)| (text.clone(), json!(id))).collect();
    let added: Vec<Value> = of_type(&[CONTROL, USER_DEFINED])
        .map(|(id, text, ty)| {
            let special = ty == CONTROL;
            json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special })
        })
        .collect();
    let merges: Vec<Value> =
        strings("merges")?.iter().map(|m| m.split_once(' ').map_or(json!(m), |(a, b)| json!([a, b]))).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let mut steps: Vec<Value> = regexes
        .iter()
        .map(|r| json!({ "type": "Split", "pattern": { "Regex": r }, "behavior": "Isolated", "invert": false }))
        .collect();
    steps.push(byte_level.clone());
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps }, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": vocab, "merges": merges },
    });
    let mut settings = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    if let Some(template) = gguf.str("tokenizer.chat_template")? {
        settings["chat_template"] = json!(template);
    }
    let id = |key: &str| gguf.u32(&format!("tokenizer.ggml.{key}_token_id"));
    for (key, to) in [("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")] {
        if let Some(text) = id(key)?.and_then(|id| tokens.get(id as usize)) {
            settings[to] = json!(text);
        }
    }
    for key in ["add_bos_token", "add_eos_token"] {
        if let Some(add) = gguf.bool(&format!("tokenizer.ggml.{key}"))? {
            settings[key] = json!(add);
        }
    }
    let mut ends = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ends.extend(id(key)?);
    }
    let generation = json!({ "eos_token_id": ends });
    Ok(vec![("tokenizer.json", tokenizer), ("tokenizer_config.json", settings), ("generation_config.json", generation)])
}
