//! RWKV tokenizers: the longest token at each place, escapes, control tokens, damaged files, time.

use std::time::Duration;

use cpu_time::ThreadTime;
use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_text::tokenizer::{EncodeOptions, Error, Tokenizer};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// The first id after the control token and the 256 bytes.
const FIRST: u32 = 257;

/// Builds a file as converters write it: a control token, all bytes, then `more`.
fn rwkv<'a>(more: &[(&str, i32)]) -> Writer<'a> {
    let byte = |byte: u8| match byte {
        b'\\' => r"\\".to_owned(),
        0x20..0x7F => char::from(byte).to_string(),
        _ => format!(r"\x{byte:02x}"),
    };
    let mut tokens = vec![("<s>".to_owned(), CONTROL)];
    tokens.extend((0..=255).map(|value| (byte(value), NORMAL)));
    tokens.extend(more.iter().map(|(text, kind)| ((*text).to_owned(), *kind)));
    let (texts, types): (Vec<String>, Vec<i32>) = tokens.into_iter().unzip();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", "rwkv")
        .set("tokenizer.ggml.tokens", texts)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.bos_token_id", 0_u32)
        .set("tokenizer.ggml.eos_token_id", 0_u32);
    writer
}

fn open(writer: Writer<'_>) -> Result<Tokenizer, Error> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let gguf = Gguf::from_bytes(bytes, "test.gguf", &OpenOptions::default()).expect("it opens");
    Tokenizer::from_gguf(&gguf)
}

/// Two words of which one begins the other, line ends, a Chinese character and half of another.
const MORE: [(&str, i32); 7] = [
    ("ab", NORMAL),
    ("abcde", NORMAL),
    (r"\n\n", NORMAL),
    (r"\xe6\xb1\x89", NORMAL),
    (r"\xe6\xb1", NORMAL),
    ("[PAD]", UNUSED),
    (r"\\\'", NORMAL),
];

#[test]
fn the_longest_token_is_taken_at_each_place() {
    let tokenizer = open(rwkv(&MORE)).expect("a tokenizer");
    let ids = |text: &[u8]| {
        tokenizer
            .encode(text, EncodeOptions::default())
            .expect("ids")
    };
    let byte = |byte: u8| u32::from(byte) + 1;
    let [ab, abcde, lines, han, half] = [0, 1, 2, 3, 4].map(|at| FIRST + at);
    // "abcd" begins "abcde" but is none: back to "ab"
    assert_eq!(ids(b"abcdeabcd"), [abcde, ab, byte(b'c'), byte(b'd')]);
    assert_eq!(ids(b"\n\n\n"), [lines, byte(b'\n')]);
    assert_eq!(ids("汉".as_bytes()), [han]);
    assert_eq!(ids("汊".as_bytes()), [half, byte(0x8A)]);
    assert_eq!(ids(b"\\'\\"), [FIRST + 6, byte(b'\\')]);
    assert_eq!(ids(b"\xFF\x00"), [byte(0xFF), byte(0)]);
    assert_eq!(ids(b""), [0_u32; 0]);
    // an unused token is never made of text
    assert_eq!(ids(b"[PAD]").len(), 5);
    assert_eq!(
        (tokenizer.model_name(), tokenizer.add_bos()),
        ("rwkv", false)
    );
    assert!(
        tokenizer.warnings().is_empty(),
        "{:?}",
        tokenizer.warnings()
    );
}

/// Control tokens come from text on request alone.
#[test]
fn control_tokens_are_parsed_on_request() {
    let tokenizer = open(rwkv(&MORE)).expect("a tokenizer");
    let ids = |options| tokenizer.encode(b"<s>ab", options).expect("ids");
    assert_eq!(ids(EncodeOptions::PROMPT), [0, FIRST]);
    assert_eq!(ids(EncodeOptions::PIECE).len(), 4);
    assert!(tokenizer.is_eog(0));
    assert_eq!(tokenizer.decode(&[0, FIRST], false), b"ab");
    assert_eq!(tokenizer.decode(&[0, FIRST], true), b"<s>ab");
}

#[test]
fn every_text_comes_back() {
    let tokenizer = open(rwkv(&MORE)).expect("a tokenizer");
    let all: Vec<u8> = (0..=255).collect();
    for text in [&all[..], "abcdx 汉汊\n\n\n\\'".as_bytes()] {
        let ids = tokenizer.encode(text, EncodeOptions::PIECE).expect("ids");
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

#[test]
fn damaged_vocabularies_are_refused() {
    for bad in [r"a\x4", r"\xzz", r"a\"] {
        let error = open(rwkv(&[(bad, NORMAL)])).map(|_| ()).expect_err(bad);
        let error = error.to_string();
        let names_it = error.contains("token 257") && error.contains("hexadecimal");
        assert!(names_it && !error.contains('\n'), "{error}");
    }
    let few = |unknown: Option<u32>| {
        let mut writer = Writer::new();
        writer.set("tokenizer.ggml.model", "rwkv").set(
            "tokenizer.ggml.tokens",
            vec!["?".to_owned(), "ab".to_owned()],
        );
        unknown.map(|id| writer.set("tokenizer.ggml.unknown_token_id", id));
        let tokenizer = open(writer).expect("a tokenizer");
        tokenizer.encode(b"abac", EncodeOptions::PIECE)
    };
    assert_eq!(few(Some(0)).expect("ids"), [1, 0, 0]);
    let error = few(None).expect_err("no token").to_string();
    assert!(error.contains("0x61"), "{error}");
}

#[test]
fn a_megabyte_takes_seconds() {
    let long = "ab".repeat(100) + "c";
    let tokenizer = open(rwkv(&[("ab", NORMAL), (&long, NORMAL)])).expect("a tokenizer");
    for part in ["a", "ab", "\u{FFFD}"] {
        let text = part.repeat((1 << 20) / part.len());
        let start = ThreadTime::now();
        tokenizer
            .encode(text.as_bytes(), EncodeOptions::PIECE)
            .expect("ids");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{part:?}: {took:?}");
    }
}
