//! SentencePiece's BPE: tokens with scores from `tokenizer.model`, or from `tokenizer.json` and the
//! order of its merges.

use std::path::Path;

use gguf_rs_lite::View;
use serde_json::{Value, json};

use super::super::config::Config;
use super::super::{Error, MAX_SETTINGS, read_json};
use super::order::{LONGEST, Ranks, Token, places};
use super::proto::{self, ModelProto, Piece};
use super::{
    BYTE, CONTROL, Files, NORMAL, SPACE, Specials, Tokens, UNKNOWN, USER_DEFINED, bad, own, padding,
};
use octavo_text::tokenizer::SpacePrefix;

/// Score that llama.cpp's converter gives to added tokens,
const ADDED_SCORE: f32 = -1000.0;
/// and to rows without a token.
const PADDING_SCORE: f32 = -10_000.0;

/// Sets the keys of the vocabulary.
pub(super) fn declare(
    dir: &Path,
    files: &Files,
    config: &Config,
    view: &mut View,
) -> Result<Specials, Error> {
    let mut tokens = Tokens::new(config)?;
    let model = ModelProto::read(dir)?;
    let json = !files.tokenizer.is_null();
    let mut specials = match &model {
        Some(model) => from_model(dir, model, &mut tokens)?,
        None if json => from_json(files, &mut tokens)?,
        None => {
            let expected = "the vocabulary of a Hugging Face model; tokenizer.model would do, too";
            return Err(Error::Missing {
                file: files.file.clone(),
                expected,
            });
        }
    };
    add(dir, files, &mut tokens)?;
    let scores = match &model {
        Some(model) if json => {
            agree(files, model, &tokens)?;
            scores_of(model, &tokens)
        }
        Some(model) => scores_of(model, &tokens),
        None => scores_of_merges(files, &tokens)?,
    };
    let prefix = if json {
        prefix_of(files)?
    } else {
        prefix_of_settings(files, model.as_ref())
    };
    if prefix == SpacePrefix::Every {
        no_space_behind(dir, files, model.as_ref(), &tokens)?;
    }
    view.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.pre", "default");
    view.set("tokenizer.ggml.scores", scores);
    view.set(
        "tokenizer.ggml.add_space_prefix",
        prefix != SpacePrefix::Never,
    );
    if let Some(scheme) = prefix.scheme() {
        view.set(SpacePrefix::KEY, scheme);
    }
    specials.by_text = tokens.declare(view, own);
    Ok(specials)
}

/// Reads the tokens of `tokenizer.model`, without scores.
fn from_model(dir: &Path, model: &ModelProto, tokens: &mut Tokens) -> Result<Specials, Error> {
    let file = dir.join(proto::FILE).display().to_string();
    for (id, piece) in (0..).zip(&model.pieces) {
        tokens.put(&file, Some(id), &piece.text, piece.ty.unwrap_or(NORMAL))?;
    }
    if let Some(byte) = byte_without_token(tokens) {
        return Err(bad(
            &file,
            "pieces",
            "tokens for all bytes",
            format!("no <0x{byte:02X}>"),
        ));
    }
    let trainer = model.trainer.clone().unwrap_or_default();
    let id = |id: i32| {
        u32::try_from(id)
            .ok()
            .filter(|id| (*id as usize) < model.pieces.len())
    };
    Ok(Specials {
        bos: id(trainer.bos_id.unwrap_or(1)),
        eos: id(trainer.eos_id.unwrap_or(2)),
        unk: id(trainer.unk_id.unwrap_or(0)),
        pad: id(trainer.pad_id.unwrap_or(-1)),
        ..Specials::default()
    })
}

/// Checks that `tokenizer.json` has the same tokens.
fn agree(files: &Files, model: &ModelProto, tokens: &Tokens) -> Result<(), Error> {
    for (text, id) in files.vocab()? {
        let at = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let piece = at
            .and_then(|at| model.pieces.get(at))
            .map(|piece| piece.text.as_str());
        let named = || {
            at.and_then(|at| tokens.places.get(at)?.as_ref())
                .map(|t| t.0.as_str())
        };
        let other = piece.or_else(named);
        if other != Some(text) {
            let expected = other.map_or("nothing".to_owned(), |other| format!("{other:?}"));
            let expected = format!("{expected} for {id}, as {} has it", proto::FILE);
            return Err(files.bad("model.vocab", &expected, format!("{text:?}")));
        }
    }
    Ok(())
}

/// Returns the scores of the model, and the converter's for added tokens.
fn scores_of(model: &ModelProto, tokens: &Tokens) -> Vec<f32> {
    let mut scores: Vec<f32> = model.pieces.iter().map(|piece| piece.score).collect();
    scores.resize(tokens.places.len(), PADDING_SCORE);
    tokens
        .added
        .iter()
        .for_each(|id| scores[*id as usize] = ADDED_SCORE);
    scores
}

/// Returns whether a token is split off before anything is joined.
fn is_cut(token: &Option<(String, i32)>) -> bool {
    token
        .as_ref()
        .is_some_and(|t| [CONTROL, USER_DEFINED].contains(&t.1))
}

/// Returns the first byte without a token.
fn byte_without_token(tokens: &Tokens) -> Option<u8> {
    let known: std::collections::BTreeSet<&str> = tokens
        .places
        .iter()
        .flatten()
        .map(|t| t.0.as_str())
        .collect();
    (0..=u8::MAX).find(|byte| !known.contains(format!("<0x{byte:02X}>").as_str()))
}

/// Reads the tokens of `tokenizer.json`, without scores, which need all tokens.
pub(super) fn from_json(files: &Files, tokens: &mut Tokens) -> Result<Specials, Error> {
    let model = &files.tokenizer["model"];
    for (key, harmless) in [
        ("dropout", Value::from(0.0)),
        ("continuing_subword_prefix", "".into()),
        ("end_of_word_suffix", "".into()),
        ("ignore_merges", false.into()),
    ] {
        if !model[key].is_null() && model[key] != harmless {
            return Err(files.bad(&format!("model.{key}"), "nothing", &model[key]));
        }
    }
    let unk = model["unk_token"].as_str();
    let byte = |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
    let mut specials = Specials::default();
    for (text, id) in files.vocab()? {
        let ty = match text {
            _ if Some(text.as_str()) == unk => UNKNOWN,
            _ if byte(text) && text[3..5].bytes().all(|c| c.is_ascii_hexdigit()) => BYTE,
            _ => NORMAL,
        };
        tokens.put(&files.file, id.as_u64(), text, ty)?;
        if ty == UNKNOWN {
            specials.unk = id.as_u64().and_then(|id| u32::try_from(id).ok());
        }
    }
    if let Some(byte) = byte_without_token(tokens) {
        return Err(files.bad(
            "model.vocab",
            "tokens for all bytes, with byte_fallback",
            format!("no <0x{byte:02X}>"),
        ));
    }
    // this class adds only what the post-processor says; LLaMA's own class adds BOS
    if files.settings["tokenizer_class"] == "PreTrainedTokenizerFast" {
        specials.add_bos = Some(false);
    }
    Ok(specials)
}

/// Adds the added tokens of all files that may have some.
pub(super) fn add(dir: &Path, files: &Files, tokens: &mut Tokens) -> Result<(), Error> {
    let name = "added_tokens.json";
    let file = dir.join(name).display().to_string();
    for (text, id) in read_json(dir, name, MAX_SETTINGS)?
        .as_ref()
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        tokens.put_added(&file, id.as_u64(), &json!({ "content": text }))?;
    }
    let file = dir.join("tokenizer_config.json").display().to_string();
    for (id, token) in files.settings["added_tokens_decoder"]
        .as_object()
        .into_iter()
        .flatten()
    {
        tokens.put_added(&file, id.parse().ok(), token)?;
    }
    tokens.put_all_added(files)?;
    // they are matched in the original text
    for token in tokens
        .places
        .iter_mut()
        .flatten()
        .filter(|t| t.1 == USER_DEFINED)
    {
        token.0 = token.0.replace(SPACE, " ");
    }
    Ok(())
}

/// Refuses tokens that are matched after spaces are replaced: GGUF's SPM would add a space after
/// them.
fn no_space_behind(
    dir: &Path,
    files: &Files,
    model: Option<&ModelProto>,
    tokens: &Tokens,
) -> Result<(), Error> {
    let Some(model) = model else {
        let mut added = files.tokenizer["added_tokens"]
            .as_array()
            .into_iter()
            .flatten();
        return match added.find(|token| token["normalized"] == true) {
            Some(token) => Err(files.bad(
                "added_tokens",
                "tokens that are not normalized",
                &token["content"],
            )),
            None => Ok(()),
        };
    };
    let own =
        |(id, piece): &(u32, &Piece)| piece.ty == Some(USER_DEFINED) && !tokens.added.contains(id);
    match (0..).zip(&model.pieces).find(own) {
        Some((_, piece)) => {
            let file = dir.join(proto::FILE).display().to_string();
            Err(bad(
                &file,
                "pieces",
                "user-defined tokens that other files add, too",
                format!("{:?}", piece.text),
            ))
        }
        None => Ok(()),
    }
}

/// Returns scores that are equivalent to the merges.
fn scores_of_merges(files: &Files, tokens: &Tokens) -> Result<Vec<f32>, Error> {
    let vocab = files.vocab()?;
    let mut ranks = Ranks::new();
    for (merge, rank) in files.merges().zip(0..) {
        let (a, b) = merge?;
        let joined = format!("{a}{b}");
        if let Some(other) = [a, b, &joined]
            .into_iter()
            .find(|text| !vocab.contains_key(*text))
        {
            return Err(files.bad(
                "model.merges",
                "tokens of the vocabulary",
                format!("{other:?} in {a:?} {b:?}"),
            ));
        }
        ranks.insert((a, b), rank);
    }
    let texts: Vec<String> = (0..)
        .zip(&tokens.places)
        .map(|(id, t)| t.as_ref().map_or_else(|| padding(id), |t| t.0.clone()))
        .collect();
    let all: Vec<Token<'_>> = texts
        .iter()
        .zip(&tokens.places)
        .map(|(text, t)| Token {
            text,
            cut: is_cut(t),
        })
        .collect();
    if let Some(long) = all.iter().find(|t| !t.cut && t.text.len() > LONGEST) {
        return Err(files.bad(
            "model.vocab",
            &format!("tokens of at most {LONGEST} bytes"),
            long.text,
        ));
    }
    let places = places(&all, &ranks).map_err(|error| {
        files.bad(
            "model.merges",
            "an order of merges that scores can express",
            error,
        )
    })?;
    Ok(places.into_iter().map(|place| -(place as f32)).collect())
}

/// Returns where `tokenizer.model` adds a space to a text, as transformers reads it with the
/// settings beside it.
fn prefix_of_settings(files: &Files, model: Option<&ModelProto>) -> SpacePrefix {
    let dummy = model
        .and_then(|m| m.normalizer.as_ref()?.add_dummy_prefix)
        .unwrap_or(true);
    match files.settings["add_prefix_space"]
        .as_bool()
        .unwrap_or(dummy)
    {
        false => SpacePrefix::Never,
        true if files.settings["legacy"] == false => SpacePrefix::First,
        true => SpacePrefix::Every,
    }
}

/// Returns where `tokenizer.json` adds a space to a text.
pub(super) fn prefix_of(files: &Files) -> Result<SpacePrefix, Error> {
    let (normalizer, cutter) = (
        &files.tokenizer["normalizer"],
        &files.tokenizer["pre_tokenizer"],
    );
    let steps = normalizer["normalizers"]
        .as_array()
        .map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    let (mut prepends, mut replaces) = (false, false);
    for step in steps.iter().filter(|step| !step.is_null()) {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE.to_string() => prepends = true,
            Some("Replace")
                if step["pattern"]["String"] == " " && step["content"] == SPACE.to_string() =>
            {
                replaces = true;
            }
            _ => return Err(files.bad("normalizer", "Prepend and Replace, of ▁ for spaces", step)),
        }
    }
    let prefix = if prepends {
        SpacePrefix::Every
    } else {
        SpacePrefix::Never
    };
    // Gemma's splits at spaces, of which none are left
    let at_spaces = cutter["type"] == "Split" && cutter["pattern"]["String"] == " ";
    if (cutter.is_null() || at_spaces) && replaces {
        return Ok(prefix);
    }
    if cutter["type"] != "Metaspace" || cutter["replacement"] != SPACE.to_string() {
        return Err(files.bad("pre_tokenizer", "none, or Metaspace with ▁", cutter));
    }
    // it splits unless it says otherwise: before each ▁, which changes nothing if no token has one
    // inside
    let inside = |text: &&String| text.chars().skip(1).any(|c| c == SPACE);
    if let Some(text) = files
        .vocab()?
        .keys()
        .find(inside)
        .filter(|_| cutter["split"] != false)
    {
        return Err(files.bad(
            "pre_tokenizer.split",
            &format!("false, as there is the token {text:?}"),
            "true",
        ));
    }
    let older = if cutter["add_prefix_space"] == false {
        "never"
    } else {
        "always"
    };
    match cutter["prepend_scheme"].as_str().unwrap_or(older) {
        _ if prepends => Ok(prefix),
        "always" => Ok(SpacePrefix::Always),
        "first" => Ok(SpacePrefix::First),
        "never" => Ok(SpacePrefix::Never),
        other => Err(files.bad(
            "pre_tokenizer.prepend_scheme",
            "always, first or never",
            other,
        )),
    }
}
