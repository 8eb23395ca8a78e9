//! `tokenizer.json`, `tokenizer.model` and the files that belong to them, under GGUF's keys.
//!
//! Supported are byte-level BPE, whose pre-tokenizer (GGUF's `pre`) is recognized by its patterns
//! and flags, SentencePiece's BPE, from either file, Gemma 4's, which merges characters, BERT's
//! WordPiece, and Unigram. Any other tokenizer is refused, because a wrong assumption would
//! silently change tokens.

mod bpe;
mod embedders;
mod files;
mod gemma4;
mod order;
mod proto;
mod spm;
mod templates;
mod unigram;
mod wordpiece;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gguf_rs_lite::View;
use serde_json::{Map, Value};

use super::config::Config;
use super::{Error, MAX_SETTINGS, MAX_TOKENIZER, read_json};
pub(super) use files::files;
use octavo_text::tokenizer::{ENDS_KEY, STRIP_KEYS};

/// GGUF's token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Replacement for a space in SentencePiece's tokens.
const SPACE: char = '\u{2581}';

/// Maximum number of entries of a vocabulary, sixteen times the largest known: memory for all is
/// allocated before any is read.
const MAX_TOKENS: usize = 1 << 22;

/// Reads a token id, or a list of them.
pub(super) fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().map(id).collect(),
        value => Some(vec![id(value)?]),
    }
}

/// The folder's JSON files with settings of tokens.
struct Files {
    file: String,
    /// `tokenizer.json`, null if there is none.
    tokenizer: Value,
    settings_file: String,
    settings: Value,
    generation_file: String,
    generation: Value,
}

impl Files {
    fn bad(&self, key: &str, expected: &str, got: impl ToString) -> Error {
        bad(&self.file, key, expected, got)
    }

    /// Returns the tokens and ids of `tokenizer.json`.
    fn vocab(&self) -> Result<&Map<String, Value>, Error> {
        let vocab = self.tokenizer["model"]["vocab"].as_object();
        vocab.ok_or_else(|| self.bad("model.vocab", "tokens and their ids", "nothing"))
    }

    /// Returns its merges as pairs.
    fn merges(&self) -> impl Iterator<Item = Result<(&str, &str), Error>> {
        let merges = self.tokenizer["model"]["merges"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        merges.iter().map(|merge| {
            let two = match merge {
                // a space is never part of a token: both alphabets have another character for it
                Value::String(text) => text.split_once(' '),
                Value::Array(two) => match two.as_slice() {
                    [Value::String(a), Value::String(b)] => Some((a.as_str(), b.as_str())),
                    _ => None,
                },
                _ => None,
            };
            let part = |text: &str| !text.is_empty() && !text.contains(' ');
            two.filter(|(a, b)| part(a) && part(b))
                .ok_or_else(|| self.bad("model.merges", "pairs of tokens", merge))
        })
    }
}

fn bad(file: &str, key: &str, expected: &str, got: impl ToString) -> Error {
    let got = got.to_string().chars().take(120).collect();
    Error::Value {
        file: file.to_owned(),
        key: key.to_owned(),
        expected: expected.to_owned(),
        got,
    }
}

/// Sets every key of the tokenizer.
pub(super) fn declare(dir: &Path, config: &Config, view: &mut View) -> Result<(), Error> {
    let read = |name: &str| Ok::<_, Error>(read_json(dir, name, MAX_SETTINGS)?.unwrap_or_default());
    let files = Files {
        file: dir.join("tokenizer.json").display().to_string(),
        settings_file: dir.join("tokenizer_config.json").display().to_string(),
        generation_file: dir.join("generation_config.json").display().to_string(),
        tokenizer: read_json(dir, "tokenizer.json", MAX_TOKENIZER)?.unwrap_or_default(),
        settings: read("tokenizer_config.json")?,
        generation: read("generation_config.json")?,
    };
    let specials = vocabulary(dir, &files, config, view)?;
    special(&files, config, &specials, view)?;
    templates::declare(dir, &files.settings, view)
}

/// Sets the keys of the vocabulary, by the kind of tokenizer.
fn vocabulary(
    dir: &Path,
    files: &Files,
    config: &Config,
    view: &mut View,
) -> Result<Specials, Error> {
    let model = &files.tokenizer["model"];
    let is_list = || {
        let file = |name: &str| dir.join(name).is_file();
        files.tokenizer.is_null() && file(wordpiece::LIST) && !file("tokenizer.model")
    };
    if model["type"] == "WordPiece" || is_list() {
        return wordpiece::declare(dir, files, config, view);
    }
    if model["type"] == "Unigram" {
        return unigram::declare(files, config, view);
    }
    // old files do not give the type of the model
    if model["type"].as_str().is_some_and(|t| t != "BPE") {
        return Err(files.bad("model.type", "BPE, WordPiece or Unigram", &model["type"]));
    }
    if !files.tokenizer.is_null() && !model["merges"].is_array() {
        let got = match &model["merges"] {
            Value::Null => "nothing".to_owned(),
            other => other.to_string(),
        };
        return Err(files.bad("model.merges", "a list of pairs", got));
    }
    if config.row.arch == "gemma4" {
        gemma4::declare(dir, files, config, view)
    } else if files.tokenizer.is_null() || model["byte_fallback"] == true {
        spm::declare(dir, files, config, view)
    } else {
        bpe::declare(files, config, view)
    }
}

/// The tokens of a vocabulary, collected from several files.
struct Tokens {
    places: Vec<Option<(String, i32)>>,
    /// Tokens that are matched in texts before anything else.
    added: BTreeSet<u32>,
    /// Tokens that strip the white space before them, and after them.
    strips: [BTreeSet<u32>; 2],
}

impl Tokens {
    fn new(config: &Config) -> Result<Tokens, Error> {
        match config.vocab_size()? {
            n if n > MAX_TOKENS => {
                Err(config.bad("vocab_size", format!("at most {MAX_TOKENS}"), n))
            }
            n => Ok(Tokens {
                places: vec![None; n],
                added: BTreeSet::new(),
                strips: Default::default(),
            }),
        }
    }

    /// Sets a token; a later type replaces an earlier one, a different text is an error.
    fn put(&mut self, file: &str, id: Option<u64>, text: &str, ty: i32) -> Result<(), Error> {
        let n = self.places.len();
        let Some(place) = id.and_then(|id| self.places.get_mut(usize::try_from(id).ok()?)) else {
            let expected = format!("ids below config.json's vocab_size, {n}");
            let id = id.map_or("no id".to_owned(), |id| id.to_string());
            return Err(bad(
                file,
                "vocabulary",
                &expected,
                format!("{text:?}: {id}"),
            ));
        };
        let spaces = |text: &str| text.replace(SPACE, " ");
        if let Some((other, _)) = place
            .as_ref()
            .filter(|place| spaces(&place.0) != spaces(text))
        {
            let got = format!("{other:?} and {text:?} for {}", id.unwrap_or_default());
            return Err(bad(file, "vocabulary", "one token for an id", got));
        }
        *place = Some((text.to_owned(), ty));
        Ok(())
    }

    /// Sets a token that is matched in texts before anything else.
    fn put_added(&mut self, file: &str, id: Option<u64>, token: &Value) -> Result<(), Error> {
        let text = token["content"].as_str();
        let text = text.ok_or_else(|| bad(file, "added_tokens", "tokens with a content", token))?;
        if token["single_word"] == true {
            return Err(bad(
                file,
                "added_tokens",
                "tokens that are found inside of words, too",
                token,
            ));
        }
        let narrow = id.and_then(|id| u32::try_from(id).ok());
        self.added.extend(narrow);
        for (strips, key) in self.strips.iter_mut().zip(["lstrip", "rstrip"]) {
            strips.extend(narrow.filter(|_| token[key] == true));
        }
        let special = token["special"] == true || looks_special(text);
        self.put(file, id, text, if special { CONTROL } else { USER_DEFINED })
    }

    /// Sets the added tokens of `tokenizer.json`.
    fn put_all_added(&mut self, files: &Files) -> Result<(), Error> {
        let added = files.tokenizer["added_tokens"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        added
            .iter()
            .try_for_each(|token| self.put_added(&files.file, token["id"].as_u64(), token))
    }

    /// Sets the keys of texts, as `shown` returns them for the text and type of a token, and of
    /// types; returns the ids by text. Rows of the embedding without a token get padding texts.
    fn declare(
        self,
        view: &mut View,
        shown: impl Fn(&str, i32) -> String,
    ) -> BTreeMap<String, u32> {
        let by_text = self
            .places
            .iter()
            .zip(0..)
            .filter_map(|(t, id)| t.as_ref().map(|t| (t.0.clone(), id)))
            .collect();
        let types: Vec<i32> = self
            .places
            .iter()
            .map(|t| t.as_ref().map_or(UNUSED, |t| t.1))
            .collect();
        let texts = self.places.iter().enumerate().map(|(id, t)| match t {
            Some((text, ty)) => shown(text, *ty),
            None => shown(&padding(id), UNUSED),
        });
        view.set("tokenizer.ggml.tokens", texts.collect::<Vec<_>>())
            .set("tokenizer.ggml.token_type", types);
        for (strips, key) in self
            .strips
            .into_iter()
            .zip(STRIP_KEYS)
            .filter(|s| !s.0.is_empty())
        {
            view.set(key, strips.into_iter().collect::<Vec<u32>>());
        }
        by_text
    }
}

/// Returns a token's text as it is.
fn own(text: &str, _: i32) -> String {
    text.to_owned()
}

/// Returns the text of a row without a token.
fn padding(id: usize) -> String {
    format!("[PAD{id}]")
}

/// Returns whether llama.cpp's converter makes a token of this form a control token, whatever the
/// file says.
fn looks_special(text: &str) -> bool {
    let between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// Special tokens by the vocabulary itself, for files without settings of them.
#[derive(Default)]
struct Specials {
    by_text: BTreeMap<String, u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    /// Whether a text begins with BOS if no file says so.
    add_bos: Option<bool>,
}

/// Returns the text of a token in settings, which give the text alone or with flags.
fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or(value["content"].as_str())
}

fn special(files: &Files, config: &Config, vocab: &Specials, view: &mut View) -> Result<(), Error> {
    let by_setting = |key: &str| -> Result<Option<u32>, Error> {
        let Some(text) = text_of(&files.settings[key]) else {
            return Ok(None);
        };
        vocab
            .by_text
            .get(text)
            .copied()
            .map(Some)
            .ok_or_else(|| files.bad(key, "a token of the vocabulary", text))
    };
    for (key, to, fallback, own) in [
        ("bos_token", "bos_token_id", Some("bos_token_id"), vocab.bos),
        ("unk_token", "unknown_token_id", None, vocab.unk),
        (
            "pad_token",
            "padding_token_id",
            Some("pad_token_id"),
            vocab.pad,
        ),
    ] {
        let fallback = fallback.map_or(Ok(Vec::new()), |key| config.ids(key))?;
        if let Some(id) = by_setting(key)?.or(fallback.first().copied()).or(own) {
            view.set(&format!("tokenizer.ggml.{to}"), id);
        }
    }
    let first = by_setting("eos_token")?;
    declare_ends(files, config, first, vocab.eos, view)?;
    for (key, at, own) in [
        ("add_bos_token", 0, vocab.add_bos),
        ("add_eos_token", 1, None),
    ] {
        let processor = &files.tokenizer["post_processor"];
        let by_file = || template_adds(processor, at).or_else(|| adds_nothing(processor));
        if let Some(add) = files.settings[key].as_bool().or_else(by_file).or(own) {
            view.set(&format!("tokenizer.ggml.{key}"), add);
        }
    }
    Ok(())
}

/// Sets the keys of the tokens that end a generation: `first`, then those in either settings file,
/// or else the vocabulary's `own`.
fn declare_ends(
    files: &Files,
    config: &Config,
    first: Option<u32>,
    own: Option<u32>,
    view: &mut View,
) -> Result<(), Error> {
    const KEY: &str = "eos_token_id";
    let mut ends: Vec<u32> = first.into_iter().collect();
    let of_config = config.ids(KEY)?;
    let of_generation = ids(&files.generation[KEY]).unwrap_or_default();
    let n = config.vocab_size()?;
    let outside = |ids: &[u32]| ids.iter().copied().find(|id| *id as usize >= n);
    let expected = format!("token ids below {n}");
    if let Some(id) = outside(&of_config) {
        return Err(config.bad(KEY, expected, id));
    }
    if let Some(id) = outside(&of_generation) {
        return Err(bad(&files.generation_file, KEY, &expected, id));
    }
    for id in of_config.into_iter().chain(of_generation) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    if ends.is_empty() {
        ends.extend(own);
    }
    // llama.cpp has three keys for them
    const KEYS: [&str; 3] = ["eos", "eot", "eom"];
    for (id, key) in ends.iter().zip(KEYS) {
        view.set(&format!("tokenizer.ggml.{key}_token_id"), *id);
    }
    if let Some(more) = ends.get(KEYS.len()..).filter(|more| !more.is_empty()) {
        view.set(ENDS_KEY, more.to_vec());
    }
    Ok(())
}

/// Returns `Some(false)` for a post-processor that has a `ByteLevel` step, which adds no tokens.
/// The names of some pre-tokenizers imply BOS unless a file says otherwise.
fn adds_nothing(processor: &Value) -> Option<bool> {
    let steps = processor["processors"].as_array();
    let steps = steps.map_or(std::slice::from_ref(processor), Vec::as_slice);
    let has_byte_level = steps.iter().any(|step| step["type"] == "ByteLevel");
    has_byte_level.then_some(false)
}

/// Returns whether a post-processor adds a token before (0) or after (1) a text; `None` if it does
/// not say.
fn template_adds(processor: &Value, at: usize) -> Option<bool> {
    if processor["type"] == "Sequence" {
        return processor["processors"]
            .as_array()?
            .iter()
            .find_map(|p| template_adds(p, at));
    }
    let single =
        (processor["type"] == "TemplateProcessing").then(|| processor["single"].as_array())??;
    let text = single
        .iter()
        .position(|piece| piece.get("Sequence").is_some())?;
    Some(if at == 0 {
        text > 0
    } else {
        text + 1 < single.len()
    })
}
