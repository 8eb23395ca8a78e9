//! Round trips: every code point, every token, and long texts in linear time.

use std::time::Duration;

use cpu_time::ThreadTime;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::{shared, some_of};
use octavo_text::tokenizer::{DetokenizeOptions, EncodeOptions, Tokenizer, Utf8Stream};
use proptest::prelude::*;

/// Returns all vocabulary files, by name.
fn vocabularies() -> Vec<(String, Tokenizer)> {
    let Some(folder) = shared("vocabs") else {
        return Vec::new();
    };
    let paths = std::fs::read_dir(folder)
        .expect("the folder can be read")
        .map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "gguf"))
        .collect();
    paths.sort();
    let load = |path: std::path::PathBuf| {
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a vocabulary file");
        (
            path.display().to_string(),
            Tokenizer::from_gguf(&gguf).expect("its tokenizer"),
        )
    };
    paths.into_iter().map(load).collect()
}

fn there_and_back(tokenizer: &Tokenizer, text: &[u8]) -> Vec<u8> {
    let ids = tokenizer.encode(text, EncodeOptions::PIECE).expect("ids");
    let text = tokenizer.detokenize(
        &ids,
        DetokenizeOptions {
            unparse_special: true,
            ..Default::default()
        },
    );
    let plain = tokenizer.decode(&ids, true);
    // Without clean-up the two differ only by the leading space.
    assert!(plain == text || plain.strip_prefix(b" ") == Some(&text) || plain.len() > text.len());
    text
}

#[test]
fn every_code_point_survives() {
    for (turn, (name, tokenizer)) in vocabularies().into_iter().enumerate() {
        let mut buffer = [0; 4];
        // each in a third of the vocabularies
        for c in some_of('\0'..=char::MAX, turn, 3) {
            // SPM writes spaces as U+2581, so the two cannot be distinguished.
            let expected: &[u8] = if c == '\u{2581}' && tokenizer.model_name() == "llama" {
                b" "
            } else {
                c.encode_utf8(&mut buffer).as_bytes()
            };
            let text = c.to_string();
            assert_eq!(
                there_and_back(&tokenizer, text.as_bytes()),
                expected,
                "{name}: U+{:04X}",
                u32::from(c)
            );
        }
    }
}

#[test]
fn every_token_survives() {
    for (name, tokenizer) in vocabularies() {
        for id in 0..u32::try_from(tokenizer.n_vocab()).expect("a count") {
            let piece = tokenizer.piece(id).expect("a piece").to_vec();
            // Bytes that are not UTF-8 become U+FFFD in BPE.
            if std::str::from_utf8(&piece).is_ok() && !tokenizer.is_special(id) {
                let ids = tokenizer.encode(&piece, EncodeOptions::PIECE).expect("ids");
                let back = tokenizer.decode(&ids, true);
                let back = if tokenizer.model_name() == "llama" {
                    back.strip_prefix(b" ").unwrap_or(&back)
                } else {
                    &back
                };
                assert_eq!(back, piece, "{name}: token {id}");
            }
        }
        assert_eq!(tokenizer.piece(u32::MAX), None);
        assert_eq!(tokenizer.decode(&[u32::MAX], true), b"");
    }
}

#[test]
fn a_megabyte_of_anything_takes_less_than_a_second() {
    let units = [
        "a",
        " ",
        "\n",
        "^",
        "🙂",
        "1",
        "'",
        "中",
        "\u{301}",
        "\u{3000}",
        "ab",
        "a ",
        "a\n",
        " \n",
        "1a",
        "'s",
        "\t ",
        "\r\n",
        "a1 ",
        "中a",
        "<|im_start",
        "<|endoftext|>",
        "the quick ",
        "\u{378}",
        "-=",
        "\0",
    ];
    // A debug build is a few times slower.
    let limit = Duration::from_millis(if cfg!(debug_assertions) { 4000 } else { 1000 });
    for (turn, (name, tokenizer)) in vocabularies().into_iter().enumerate() {
        let mut slowest = (Duration::ZERO, "");
        for unit in some_of(units, turn, 3) {
            let text = unit.repeat((1 << 20) / unit.len());
            // searching for special tokens is additional work
            let start = ThreadTime::now();
            let ids = tokenizer.encode(
                text.as_bytes(),
                EncodeOptions {
                    add_special: false,
                    parse_special: true,
                },
            );
            let took = start.elapsed();
            slowest = slowest.max((took, unit));
            assert!(took < limit, "{name}: {unit:?} took {took:?}");
            let back = tokenizer.decode(&ids.expect("ids"), true);
            let back = back
                .strip_prefix(b" ")
                .filter(|_| tokenizer.model_name() == "llama")
                .unwrap_or(&back);
            assert!(
                back == text.as_bytes(),
                "{name}: {unit:?} came back different"
            );
        }
        println!("{name}: slowest {slowest:?}");
    }
}

proptest! {
    #[test]
    fn a_stream_gives_whole_characters(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        cuts in prop::collection::vec(1_usize..5, 1..60),
    ) {
        check_stream(&bytes, &cuts)?;
    }

    #[test]
    fn a_stream_of_text_is_that_text(
        text in "\\PC{0,30}",
        cuts in prop::collection::vec(1_usize..4, 1..40),
    ) {
        check_stream(text.as_bytes(), &cuts)?;
    }
}

fn check_stream(bytes: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    let mut stream = Utf8Stream::new();
    let (mut text, mut rest, mut cuts) = (String::new(), bytes, cuts.iter().cycle());
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(rest.len().min(*cuts.next().expect("it cycles")));
        text.push_str(&stream.push(head));
        rest = tail;
    }
    text.push_str(&stream.finish());
    prop_assert!(!stream.is_incomplete());
    // Compare with the standard library's decoding of the whole.
    prop_assert_eq!(text, String::from_utf8_lossy(bytes));
    Ok(())
}

#[test]
fn a_stream_holds_back_an_incomplete_character_and_nothing_else() {
    let mut stream = Utf8Stream::new();
    assert_eq!(stream.push("a🙂".as_bytes().split_at(4).0), "a");
    assert!(stream.is_incomplete());
    assert_eq!(stream.push("a🙂b".as_bytes().split_at(4).1), "🙂b");
    assert_eq!(stream.push(b"\xF0\x9F"), "");
    assert_eq!(stream.push(b"x"), "\u{FFFD}x");
    assert_eq!(stream.push(b"\xE2\x82"), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
}
