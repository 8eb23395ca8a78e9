//! Vocabularies that cannot be expressed, each refused by name.

use super::*;

/// Makes a folder without `tokenizer.model`, of the small vocabulary.
fn by_json() -> Folder {
    let folder = Folder::of(&small());
    std::fs::remove_file(folder.path.join("tokenizer.model")).expect("there");
    folder
}

#[test]
fn merges_that_scores_cannot_express_are_refused_by_name() {
    let folder = by_json();
    let sound = folder.open().expect("sound");
    let ids = |text: &str| {
        sound
            .tokenizer()
            .encode(text.as_bytes(), EncodeOptions::PIECE)
            .expect("ids")
    };
    assert_eq!(ids("abc"), [266]);
    assert_eq!(ids("cab\u{e9}"), [267, 270, 262, 3 + 0xC3, 3 + 0xA9]);
    let refuses =
        |says: &[&str], change: &dyn Fn(&mut Value)| folder.refuses("tokenizer.json", says, change);
    let position = |t: &Value, merge: Value| {
        t["model"]["merges"]
            .as_array()
            .expect("a list")
            .iter()
            .position(|m| *m == merge)
            .expect("there")
    };
    // by scores, "abc" must be made of some two parts
    refuses(
        &[
            "model.merges",
            "token \"abc\": never by merges, \"ab\" \"c\" by scores",
        ],
        &|t| {
            let merge = position(t, json!(["ab", "c"]));
            t["model"]["merges"]
                .as_array_mut()
                .expect("a list")
                .remove(merge);
        },
    );
    // a merge that never happens may be missing
    let result = folder.with("tokenizer.json", |t| {
        let merge = position(t, json!(["a", "bc"]));
        t["model"]["merges"]
            .as_array_mut()
            .expect("a list")
            .remove(merge);
    });
    result.expect("the same tokens");
    refuses(&["model.merges", "\"z\" in \"z\" \"z\""], &|t| {
        t["model"]["merges"][0] = json!("z z")
    });
    refuses(&["model.merges", "pairs"], &|t| {
        t["model"]["merges"][0] = json!("a b c")
    });
}

#[test]
fn what_scores_and_spaces_cannot_express_is_refused_by_name() {
    let folder = by_json();
    let refuses =
        |says: &[&str], change: &dyn Fn(&mut Value)| folder.refuses("tokenizer.json", says, change);
    refuses(&["model.vocab", "no <0x41>"], &|t| {
        t["model"]["vocab"]
            .as_object_mut()
            .expect("a map")
            .shift_remove("<0x41>");
    });
    refuses(&["model.ignore_merges", "true"], &|t| {
        t["model"]["ignore_merges"] = json!(true)
    });
    refuses(&["model.dropout", "0.1"], &|t| {
        t["model"]["dropout"] = json!(0.1)
    });
    refuses(&["model.type", "WordLevel"], &|t| {
        t["model"]["type"] = json!("WordLevel")
    });
    refuses(&["normalizer", "NFKC"], &|t| {
        t["normalizer"]["normalizers"][0] = json!({ "type": "NFKC" })
    });
    refuses(&["pre_tokenizer", "ByteLevel"], &|t| {
        t["pre_tokenizer"] = json!({ "type": "ByteLevel" })
    });
    refuses(&["pre_tokenizer"], &|t| t["normalizer"] = Value::Null);
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first" });
    refuses(&["pre_tokenizer.split", "▁▁"], &|t| {
        t["pre_tokenizer"] = metaspace.clone()
    });
    refuses(&["prepend_scheme", "second"], &|t| {
        t["normalizer"] = Value::Null;
        t["pre_tokenizer"] = json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "second", "split": false
        });
    });
    refuses(&["added_tokens", "inside of words"], &|t| {
        t["added_tokens"][1]["single_word"] = json!(true)
    });
    refuses(&["added_tokens", "not normalized", "</s>"], &|t| {
        t["added_tokens"][2]["normalized"] = json!(true)
    });
    refuses(&["at most 512 bytes"], &|t| {
        t["model"]["vocab"]
            .as_object_mut()
            .expect("a map")
            .shift_remove("▁abc");
        t["model"]["merges"]
            .as_array_mut()
            .expect("a list")
            .retain(|m| {
                [&m[0], &m[1]]
                    .map(|part| part.as_str().expect("a text"))
                    .concat()
                    != "▁abc"
            });
        t["model"]["vocab"]["a".repeat(600)] = json!(266);
    });
    // both files: the same tokens
    let both = Folder::of(&small());
    both.refuses(
        "tokenizer.json",
        &["model.vocab", "\"▁a\" for 261, as tokenizer.model has it"],
        |t| {
            t["model"]["vocab"]
                .as_object_mut()
                .expect("a map")
                .shift_remove("▁a");
            t["model"]["vocab"]["xy"] = json!(261);
        },
    );
}

const TRAINER: u8 = 0x12;
const NORMALIZER: u8 = 0x1A;

/// Fields, their values, and parts of the error.
const OTHER_KINDS: [(u8, &[u8], &str); 10] = [
    (
        TRAINER,
        &[0x18, 1],
        "trainer_spec.model_type: expected BPE, got UNIGRAM",
    ),
    (
        TRAINER,
        &[0x18, 4],
        "trainer_spec.model_type: expected BPE, got CHAR",
    ),
    (
        TRAINER,
        &[0x18, 99],
        "trainer_spec.model_type: expected BPE, got 99",
    ),
    (TRAINER, &[0xC0, 1, 1], "treat_whitespace_as_suffix"),
    (
        NORMALIZER,
        b"\x0A\x08nmt_nfkc",
        "normalizer_spec: expected identity",
    ),
    (
        NORMALIZER,
        &[0x12, 1, 7],
        "normalizer_spec: expected identity",
    ),
    (
        NORMALIZER,
        &[0x20, 1],
        "remove_extra_whitespaces: expected false",
    ),
    (NORMALIZER, &[0x28, 0], "escape_whitespaces: expected true"),
    (
        0x0A,
        &[0x0A, 1, b'u', 0x18, 4],
        "pieces: expected user-defined tokens that other files add",
    ),
    (
        0x0A,
        &[0x0A, 1, b'x', 0x18, 9],
        "pieces: expected types from 1 to 6, got 9 of token 271",
    ),
];

/// Fields at the end override earlier ones: values in the model, and the errors about them.
#[test]
fn models_of_another_kind_are_refused_by_name() {
    let folder = Folder::of(&small());
    let path = folder.path.join("tokenizer.model");
    let sound = std::fs::read(&path).expect("there");
    for (field, message, says) in OTHER_KINDS {
        let all = [&sound[..], &[field, message.len() as u8], message].concat();
        std::fs::write(&path, all).expect("written");
        let error = folder.open().map(drop).expect_err("of another kind");
        assert!(
            error.contains("tokenizer.model: ") && error.contains(says),
            "{error}"
        );
    }
    // one token more than the embedding has rows
    std::fs::write(
        &path,
        [&sound[..], &[0x0A, 3, 0x0A, 1, b'x'].repeat(2)].concat(),
    )
    .expect("written");
    let error = folder.open().map(drop).expect_err("too many");
    assert!(
        error.contains(
            "tokenizer.model: vocabulary: expected ids below config.json's vocab_size, 272"
        ),
        "{error}"
    );
    // the file that LLaMA 3 has under this name
    std::fs::remove_file(folder.path.join("tokenizer.json")).expect("there");
    std::fs::write(&path, "IQ== 0\nIg== 1\n").expect("written");
    let error = folder.open().map(drop).expect_err("no protobuf");
    assert!(
        error.contains("tokenizer.model: not a SentencePiece model"),
        "{error}"
    );
}
