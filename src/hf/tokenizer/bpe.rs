//! Byte-level BPE: words split by regular expressions, bytes mapped to letters, and merges.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::{Files, NORMAL, Specials, Tokens, own};
use octavo_text::tokenizer::Tokenizer;

/// Pattern of a `ByteLevel` step that splits by itself: GPT-2's.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// Pattern of `Punctuation`: Unicode's, and the symbols of ASCII.
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";

/// Sets the keys of the vocabulary.
pub(super) fn declare(files: &Files, config: &Config, view: &mut View) -> Result<Specials, Error> {
    view.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", pre(files, config.row.pre)?);
    let mut tokens = Tokens::new(config)?;
    for (text, id) in files.vocab()? {
        tokens.put(&files.file, id.as_u64(), text, NORMAL)?;
    }
    tokens.put_all_added(files)?;
    let by_text = tokens.declare(view, own);
    let merges: Result<Vec<String>, Error> = files
        .merges()
        .map(|m| m.map(|(a, b)| format!("{a} {b}")))
        .collect();
    view.set("tokenizer.ggml.merges", merges?);
    Ok(Specials {
        by_text,
        ..Specials::default()
    })
}

/// Collects the patterns that split text into words, each applied to the pieces of the one before.
fn patterns(files: &Files, step: &Value, out: &mut Vec<String>) -> Result<(), Error> {
    match step["type"].as_str() {
        Some("Sequence") => {
            for step in step["pretokenizers"].as_array().into_iter().flatten() {
                patterns(files, step, out)?;
            }
        }
        Some("Split") if step["behavior"] == "Isolated" && step["invert"] != true => {
            let pattern = step["pattern"]["Regex"].as_str();
            out.push(
                pattern
                    .ok_or_else(|| files.bad("pre_tokenizer", "a Split by a Regex", step))?
                    .to_owned(),
            );
        }
        Some("Digits") => {
            let each = step["individual_digits"] == true;
            out.push(if each { r"\p{N}" } else { r"\p{N}+" }.to_owned());
        }
        Some("Punctuation") if step["behavior"] == "Contiguous" => {
            out.push(PUNCTUATION.to_owned());
        }
        Some("ByteLevel") if step["add_prefix_space"] != true => {
            // it splits unless it says otherwise
            if step["use_regex"] != false {
                out.push(GPT2.to_owned());
            }
        }
        _ => {
            return Err(files.bad(
                "pre_tokenizer",
                "Split, Digits, Punctuation or ByteLevel, isolated and without spaces added",
                step,
            ));
        }
    }
    Ok(())
}

/// Returns GGUF's name for the pre-tokenizer of the folder.
fn pre(files: &Files, expected: &[&'static str]) -> Result<&'static str, Error> {
    let step = &files.tokenizer["pre_tokenizer"];
    let mut regexes = Vec::new();
    patterns(files, step, &mut regexes)?;
    // llama.cpp's converter recognizes Falcon by its hash, and leaves out the step that splits
    // numbers from spaces
    if let [punctuation, _, numbers, _] = regexes.as_slice()
        && (punctuation.as_str(), numbers.as_str()) == (PUNCTUATION, r"\p{N}+")
    {
        regexes.remove(2);
    }
    let normalizer = files.tokenizer["normalizer"]["type"].as_str();
    if normalizer.is_some_and(|kind| kind != "NFC") {
        return Err(files.bad("normalizer", "none, or NFC", normalizer.unwrap_or_default()));
    }
    let ignore_merges = files.tokenizer["model"]["ignore_merges"] == true;
    Tokenizer::recognise_pre(&regexes, ignore_merges, expected).ok_or_else(|| {
        files.bad(
            "pre_tokenizer",
            "one that llama.cpp has a name for",
            regexes.join("  and  "),
        )
    })
}
