//! Unigram vocabularies: llama.cpp's ids and texts, and damaged maps of characters.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cpu_time::ThreadTime;
use gguf_rs_lite::{Gguf, OpenOptions, OwnedArray, Writer};
use octavo_fixtures::shared;
use octavo_text::tokenizer::{DetokenizeOptions, EncodeOptions, Tokenizer};
use serde_json::Value;

use crate::tokenizer_wpm::unhex;

fn vocabularies() -> Vec<PathBuf> {
    let Some(folder) = shared("feat/embed/vocabs") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "gguf"))
        .collect();
    all.sort();
    assert_eq!(all.len(), 3);
    all
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).expect("a sound file")
}

#[test]
fn every_pair_is_llama_cpps() {
    let mut pairs = 0;
    for path in vocabularies() {
        let tokenizer = Tokenizer::from_gguf(&open(&path)).expect("a tokenizer");
        assert_eq!(tokenizer.model_name(), "t5");
        let said = std::fs::read(path.with_extension("json")).expect("the pairs");
        let said: Vec<Value> = serde_json::from_slice(&said).expect("JSON");
        for pair in &said {
            let hex = pair["hex"].as_str().map(unhex);
            let text = hex.unwrap_or_else(|| {
                let text = pair["text"].as_str().expect("a text");
                text.as_bytes().to_vec()
            });
            let what = format!("{}: {:?}", path.display(), String::from_utf8_lossy(&text));
            let flag = |key: &str| pair[key].as_bool().expect("a flag");
            let options = EncodeOptions {
                add_special: flag("add_special"),
                parse_special: flag("parse_special"),
            };
            let ids = tokenizer.encode(&text, options).expect("ids");
            assert_eq!(serde_json::json!(ids), pair["ids"], "{what}");
            let options = DetokenizeOptions {
                remove_special: false,
                unparse_special: true,
            };
            let back = tokenizer.detokenize(&ids, options);
            let expected = unhex(pair["detok_hex"].as_str().expect("hex"));
            assert_eq!(
                String::from_utf8_lossy(&back),
                String::from_utf8_lossy(&expected),
                "{what}"
            );
            pairs += 1;
        }
    }
    println!("{pairs} pairs");
    assert!(pairs == 0 || pairs > 200, "{pairs}");
}

/// Damage in the map of characters is an error in one line, when the file or a text is read.
#[test]
fn damaged_maps_are_refused() {
    const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
    let Some(path) = vocabularies().pop() else {
        return;
    };
    let gguf = open(&path);
    let map: Vec<u8> = match gguf.array(MAP).expect("an array").expect("there") {
        array if array.u8s().is_some() => array.u8s().expect("bytes").collect(),
        array => array.i8s().expect("bytes").map(|b| b as u8).collect(),
    };
    let text = "Über ﬁne ＡＢＣ\u{200b}\t½ 日本".as_bytes();
    let (mut refused, mut read) = (0, 0);
    for step in 0..300 {
        let mut damaged = map.clone();
        match step % 3 {
            0 => damaged.truncate(map.len() * step / 300),
            1 => damaged[step / 3 * 7 % 64] ^= 0x55,
            _ => {
                let places = (step * 997..).step_by(4001).take(200);
                places.for_each(|at| damaged[at % map.len()] ^= 0xA5);
            }
        }
        let mut writer = Writer::new();
        for (key, value) in gguf.keys().filter(|(key, _)| *key != MAP) {
            writer.set(key, value);
        }
        writer.set(MAP, OwnedArray::U8(damaged));
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).expect("written");
        let file = Gguf::from_bytes(bytes, "damaged", &OpenOptions::default()).expect("a file");
        let ids = Tokenizer::from_gguf(&file).and_then(|t| t.encode(text, EncodeOptions::PIECE));
        match ids {
            Ok(_) => read += 1,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("precompiled_charsmap") && !error.contains('\n'));
                refused += 1;
            }
        }
    }
    assert!(refused > 50 && read > 5, "{refused} refused, {read} read");
}

#[test]
fn a_megabyte_takes_seconds() {
    for path in vocabularies() {
        let tokenizer = Tokenizer::from_gguf(&open(&path)).expect("a tokenizer");
        for part in ["a", " ", "ab c", "\u{FFFD}", "日"] {
            let text = part.repeat((1 << 20) / part.len());
            let start = ThreadTime::now();
            tokenizer
                .encode(text.as_bytes(), EncodeOptions::PIECE)
                .expect("ids");
            let took = start.elapsed();
            assert!(took < Duration::from_secs(3), "{part:?}: {took:?}");
        }
    }
}
