//! WPM tokenizers: recorded ids of llama-tokenize, for texts in many scripts and for invalid ones,
//! with and without lower-casing and accent stripping; refused files; linear time.

use cpu_time::ThreadTime;
use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_text::tokenizer::{EncodeOptions, Error, Tokenizer};
use serde_json::Value;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Ids of the special tokens: padding, unknown, CLS, SEP, mask.
const SPECIALS: [(&str, u32); 5] = [
    ("padding", 0),
    ("unknown", 1),
    ("bos", 2),
    ("seperator", 3),
    ("mask", 4),
];

/// Builds a file with these tokens, the first five special.
fn wpm<'a>(tokens: &[String]) -> Writer<'a> {
    let mut writer = Writer::new();
    let types = (0..tokens.len()).map(|id| if id < 5 { CONTROL } else { NORMAL });
    writer
        .set("tokenizer.ggml.model", "bert")
        .set("tokenizer.ggml.tokens", tokens.to_vec())
        .set("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
    for (name, id) in SPECIALS {
        writer.set(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    writer
}

fn open(writer: Writer<'_>) -> Result<Tokenizer, Error> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let gguf = Gguf::from_bytes(bytes, "test.gguf", &OpenOptions::default()).expect("it opens");
    Tokenizer::from_gguf(&gguf)
}

fn small() -> Vec<String> {
    let tokens = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a", "b", "bc",
    ];
    tokens.map(str::to_owned).to_vec()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("two digits");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

#[test]
fn ids_are_those_of_llama_tokenize() {
    let recorded: Value = serde_json::from_str(include_str!("wpm.json")).expect("JSON");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let tokens: Vec<String> = list(&recorded["tokens"])
        .iter()
        .map(|token| token.as_str().expect("a text").to_owned())
        .collect();
    let mut n = 0;
    for variant in list(&recorded["variants"]) {
        let mut writer = wpm(&tokens);
        for key in ["lowercase", "strip_accents"] {
            if let Some(flag) = variant[key].as_bool() {
                writer.set(&format!("tokenizer.ggml.normalizer.{key}"), flag);
            }
        }
        let tokenizer = open(writer).expect("a tokenizer");
        for case in list(&variant["cases"]) {
            let text = unhex(case[0].as_str().expect("digits"));
            let expected: Vec<u64> = list(&case[1]).iter().filter_map(Value::as_u64).collect();
            let ids = tokenizer.encode(&text, EncodeOptions::PROMPT).expect("ids");
            let ids: Vec<u64> = ids.into_iter().map(u64::from).collect();
            assert_eq!(ids, expected, "{:?}", String::from_utf8_lossy(&text));
            n += 1;
        }
    }
    assert!(n >= 100, "{n} texts");
}

#[test]
fn texts_are_surrounded_only_on_request_and_come_back() {
    let tokenizer = open(wpm(&small())).expect("a tokenizer");
    let ids = |text: &str, options| tokenizer.encode(text.as_bytes(), options).expect("ids");
    assert_eq!(ids("Abc ab", EncodeOptions::default()), [2, 5, 7, 5, 6, 3]);
    assert_eq!(ids("abcb ax", EncodeOptions::PIECE), [5, 7, 6, 1]);
    assert_eq!(ids("a[MASK]a", EncodeOptions::PROMPT), [2, 5, 4, 5, 3]);
    assert_eq!(ids("", EncodeOptions::PROMPT), [2, 3]);
    assert_eq!(tokenizer.decode(&[5, 7, 5, 6], false), b" abc ab");
    assert!(
        tokenizer.warnings().is_empty(),
        "{:?}",
        tokenizer.warnings()
    );
    assert_eq!(tokenizer.model_name(), "bert");
}

#[test]
fn what_surrounds_a_text_must_be_there() {
    for (key, id) in [("bos", 101), ("seperator", 102), ("unknown", 100)] {
        let mut writer = wpm(&small());
        let key = format!("tokenizer.ggml.{key}_token_id");
        writer.set(&key, id);
        let error = open(writer)
            .map(|_| ())
            .expect_err("an id outside the vocabulary");
        assert!(error.to_string().contains(&key), "{error}");
    }
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", "bert")
        .set("tokenizer.ggml.tokens", small());
    let error = open(writer).map(|_| ()).expect_err("no CLS");
    assert!(error.to_string().contains("bos_token_id"), "{error}");
}

/// One endless word, which begins like a long token everywhere, and words without matching tokens.
#[test]
fn time_is_linear() {
    let mut tokens = small();
    tokens.push("b".repeat(300));
    let tokenizer = open(wpm(&tokens)).expect("a tokenizer");
    let time = |text: &str| {
        let start = ThreadTime::now();
        let ids = tokenizer.encode(text.as_bytes(), EncodeOptions::PIECE);
        assert!(!ids.expect("ids").is_empty());
        start.elapsed().as_secs_f64()
    };
    for text in ["abbbbbbc", "ab\u{301}x", "aé ", "你"] {
        let short = time(&text.repeat(10_000)).max(1e-3);
        let long = time(&text.repeat(80_000));
        assert!(
            long < 24.0 * short,
            "{text}: {short} s, eight times as much {long} s"
        );
    }
}
