//! Cross-check against Hugging Face's `tokenizers`, built from the same vocabulary with its own
//! regular expressions.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::shared;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use regex::Regex;

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = concat!(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

fn strings(gguf: &Gguf, key: &str) -> Vec<String> {
    let array = gguf.array(key).expect("an array").expect("it is there");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    array.strings().expect("strings").map(text).collect()
}

fn witness(gguf: &Gguf, regex: &str, ignore_merges: bool) -> tokenizers::Tokenizer {
    let vocab: serde_json::Map<String, serde_json::Value> = strings(gguf, "tokenizer.ggml.tokens")
        .into_iter()
        .zip((0..).map(serde_json::Value::from))
        .collect();
    let file = serde_json::json!({
        "version": "1.0",
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": strings(gguf, "tokenizer.ggml.merges"),
            "ignore_merges": ignore_merges,
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": { "Regex": regex },
                    "behavior": "Isolated",
                    "invert": false,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": false,
                    "trim_offsets": false,
                    "use_regex": false,
                },
            ],
        },
    });
    tokenizers::Tokenizer::from_bytes(file.to_string()).expect("a tokenizer")
}

/// Generates difficult text: pieces of every class that the patterns distinguish.
fn text() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        2 => "[0-9]{1,5}",
        3 => "[ \t\r\n]{1,4}",
        2 => "[!-/:-@\\[-`{-~]{1,3}",
        1 => "'(s|S|t|re|Ve|LL|d|x)",
        2 => any::<char>().prop_map(String::from),
        1 => "[\u{a0}\u{2003}\u{3000}\u{85}\u{2028}]{1,2}",
        1 => "[À-žЀ-ӿא-ת一-鿿가-힣ぁ-ヿ]{1,4}",
        1 => "[\u{300}-\u{36f}٠-٩²½Ⅷ]{1,2}",
        1 => "[😀-🙏]{1,2}",
    ];
    prop::collection::vec(unit, 0..12).prop_map(|units| units.concat())
}

fn compare(file: &str, regex: &str, ignore_merges: bool) {
    let Some(folder) = shared("vocabs") else {
        return;
    };
    let gguf = Gguf::open(&folder.join(file), &OpenOptions::default()).expect("a vocabulary");
    let ours = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let theirs = witness(&gguf, regex, ignore_merges);
    // The library has a later Unicode version; characters only it knows are left out.
    let known = Regex::new(r"^[\p{age=15.1}\P{assigned}]*$").expect("a valid class");
    let mut runner = TestRunner::new(Config {
        cases: 3000,
        ..Config::default()
    });
    let result = runner.run(&text(), |text| {
        prop_assume!(known.is_match(&text));
        let expected = theirs
            .encode_fast(text.as_str(), false)
            .expect("ids")
            .get_ids()
            .to_vec();
        prop_assert_eq!(
            ours.encode(text.as_bytes(), EncodeOptions::PIECE)
                .expect("ids"),
            expected
        );
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{file}: {e}"));
}

#[test]
fn qwen2() {
    compare(
        "ggml-vocab-qwen2.gguf",
        &LLAMA_3.replace("{1,3}", ""),
        false,
    );
}

#[test]
fn llama_3() {
    compare("ggml-vocab-llama-bpe.gguf", LLAMA_3, true);
}

#[test]
fn gpt_2() {
    compare("ggml-vocab-gpt-2.gguf", GPT_2, false);
}

#[test]
fn qwen35() {
    let regex = LLAMA_3
        .replace("{1,3}", "")
        .replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")
        .replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]");
    compare("ggml-vocab-qwen35.gguf", &regex, false);
}
