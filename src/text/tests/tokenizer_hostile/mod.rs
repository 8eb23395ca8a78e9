//! Artificial tokenizers: those refused, with their errors, and those accepted.

mod specials;

use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_text::tokenizer::{ENDS_KEY, EncodeOptions, Error, Tokenizer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn open(writer: Writer<'_>) -> Result<Tokenizer, Error> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let gguf = Gguf::from_bytes(bytes, "test.gguf", &OpenOptions::default()).expect("it opens");
    Tokenizer::from_gguf(&gguf)
}

fn texts(tokens: &[(&str, i32)]) -> Vec<String> {
    tokens.iter().map(|(text, _)| (*text).to_owned()).collect()
}

/// Builds a BPE file: printable ASCII, then `more`.
fn bpe<'a>(more: &[(&str, i32)], merges: &[&str]) -> Writer<'a> {
    let ascii: Vec<String> = (0x21_u8..0x7F)
        .map(|byte| char::from(byte).to_string())
        .chain(["Ġ".to_owned()])
        .collect();
    let types: Vec<i32> = ascii
        .iter()
        .map(|_| NORMAL)
        .chain(more.iter().map(|(_, kind)| *kind))
        .collect();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2");
    writer.set(
        "tokenizer.ggml.tokens",
        ascii.into_iter().chain(texts(more)).collect::<Vec<_>>(),
    );
    writer.set("tokenizer.ggml.token_type", types);
    writer.set(
        "tokenizer.ggml.merges",
        merges
            .iter()
            .map(|m| (*m).to_owned())
            .collect::<Vec<String>>(),
    );
    writer
}

/// The first id after `bpe`'s own tokens.
const FIRST: u32 = 95;

/// Builds an SPM file with all byte tokens, then `more` with scores.
fn spm<'a>(more: &[(&str, i32, f32)]) -> Writer<'a> {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN, 0.0),
        ("<s>".to_owned(), CONTROL, 0.0),
        ("</s>".to_owned(), CONTROL, 0.0),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE, 0.0)));
    tokens.extend(
        more.iter()
            .map(|(text, kind, score)| ((*text).to_owned(), *kind, *score)),
    );
    let mut writer = Writer::new();
    writer.set("tokenizer.ggml.model", "llama");
    writer.set(
        "tokenizer.ggml.tokens",
        tokens.iter().map(|t| t.0.clone()).collect::<Vec<_>>(),
    );
    writer.set(
        "tokenizer.ggml.token_type",
        tokens.iter().map(|t| t.1).collect::<Vec<_>>(),
    );
    writer.set(
        "tokenizer.ggml.scores",
        tokens.iter().map(|t| t.2).collect::<Vec<_>>(),
    );
    writer
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode(text.as_bytes(), EncodeOptions::PIECE)
        .expect("ids")
}

fn parsed(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions::PROMPT;
    tokenizer.encode(text.as_bytes(), options).expect("ids")
}

/// Returns the one-line error for a refused file.
fn refused(writer: Writer<'_>) -> String {
    let message = open(writer).expect_err("it is refused").to_string();
    assert!(
        message.starts_with("test.gguf") && !message.contains('\n'),
        "{message}"
    );
    message
}

#[test]
fn what_is_missing_or_of_another_type_is_named() {
    let refused_after = |change: &dyn Fn(&mut Writer<'_>)| {
        let mut writer = bpe(&[], &[]);
        change(&mut writer);
        refused(writer)
    };
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        let message = refused_after(&|w| {
            w.remove(key);
        });
        assert!(
            message.contains(key) && message.contains("missing"),
            "{message}"
        );
        let message = refused_after(&|w| {
            w.set(key, 7_u32);
        });
        assert!(
            message.contains(key) && message.contains("u32"),
            "{message}"
        );
    }
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let message = refused_after(&|w| {
            w.set(key, vec![1_i32]);
        });
        assert!(
            message.contains(key) && message.contains("string") && message.contains("i32"),
            "{message}"
        );
    }
    // Treating an i8 array as i32 would read up to four times past its end.
    for key in ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"] {
        let message = refused_after(&|w| {
            w.set(key, vec![1_i8; 95]);
        });
        assert!(message.contains(key) && message.contains("i8"), "{message}");
        let message = refused_after(&|w| {
            w.set(key, vec![1_i32; 94]);
        });
        assert!(
            message.contains(key) && message.contains("94") && message.contains("95"),
            "{message}"
        );
    }
    for key in [
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
    ] {
        let message = refused_after(&|w| {
            w.set(key, "yes");
        });
        assert!(message.contains(key), "{message}");
    }
    let message = refused_after(&|w| {
        w.set("tokenizer.ggml.tokens", Vec::<String>::new());
    });
    assert!(message.contains("0 tokens"), "{message}");
    let mut writer = spm(&[]);
    writer.remove("tokenizer.ggml.scores");
    assert!(refused(writer).contains("tokenizer.ggml.scores"));
}

/// As in llama.cpp, entries beyond the number of tokens are not read.
#[test]
fn what_is_said_beyond_the_tokens_is_not_read() {
    let mut writer = spm(&[("a", NORMAL, -1.0)]);
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    types.extend([BYTE; 256]);
    types.extend([NORMAL, CONTROL, USER_DEFINED]);
    let mut scores = vec![0_f32; 259];
    scores.extend([-1.0, f32::NAN]);
    writer
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.scores", scores);
    let long = open(writer).expect("it loads");
    let plain = open(spm(&[("a", NORMAL, -1.0)])).expect("it loads");
    assert_eq!(ids(&long, "a<s>b"), ids(&plain, "a<s>b"));
    assert_eq!(parsed(&long, "a<s>b"), parsed(&plain, "a<s>b"));
}

#[test]
fn further_ends_of_generation_are_tokens() {
    let mut writer = bpe(&[], &[]);
    writer.set(ENDS_KEY, vec![3_u32, 5]);
    let tokenizer = open(writer).expect("it loads");
    assert_eq!(tokenizer.eog_ids(), [3, 5]);
    for wrong in [95, u32::MAX] {
        let mut writer = bpe(&[], &[]);
        writer.set(ENDS_KEY, vec![3_u32, wrong]);
        let message = refused(writer);
        assert!(
            message.contains(ENDS_KEY) && message.contains(&wrong.to_string()),
            "{message}"
        );
    }
}

#[test]
fn other_models_and_pre_tokenizers_are_refused_by_name() {
    for model in ["t6", "plamo2", "no_vocab", "", "GPT2"] {
        let mut writer = bpe(&[], &[]);
        writer.set("tokenizer.ggml.model", model);
        assert!(refused(writer).contains(&format!("'{model}'")));
    }
    for pre in ["nonsense", "Qwen2", "qwen2 ", "a\nb"] {
        let mut writer = bpe(&[], &[]);
        writer.set("tokenizer.ggml.pre", pre);
        assert!(refused(writer).contains(&pre.escape_debug().to_string()));
    }
    for pre in Tokenizer::pre_tokenizers() {
        let mut writer = bpe(&[], &[]);
        writer.set("tokenizer.ggml.pre", pre);
        let tokenizer = open(writer).unwrap_or_else(|e| panic!("{pre}: {e}"));
        assert_eq!(tokenizer.pre_name(), pre);
    }
    for change in [None, Some("")] {
        let mut writer = bpe(&[], &[]);
        writer.remove("tokenizer.ggml.pre");
        change.map(|pre| writer.set("tokenizer.ggml.pre", pre));
        let tokenizer = open(writer).expect("it loads");
        assert_eq!(tokenizer.pre_name(), "default");
        assert!(
            tokenizer
                .warnings()
                .iter()
                .any(|w| w.contains("tokenizer.ggml.pre")),
            "{:?}",
            tokenizer.warnings()
        );
    }
}

/// As in llama.cpp's map from texts to ids, the last of equal texts is found; each id still has its
/// text. Gemma 4's QAT files are like this.
#[test]
fn of_equal_texts_the_last_is_found() {
    let tokens = [
        ("ab", NORMAL),
        ("<s>", CONTROL),
        ("ab", NORMAL),
        ("<s>", CONTROL),
    ];
    let tokenizer = open(bpe(&tokens, &["a b"])).expect("it loads");
    let line = "tokens 95 and 97 have the same text 'ab': it stands for the latter (1 more such \
                tokens)";
    assert!(
        tokenizer.warnings().iter().any(|w| w == line),
        "{:?}",
        tokenizer.warnings()
    );
    let options = EncodeOptions {
        parse_special: true,
        ..EncodeOptions::PIECE
    };
    let ids = tokenizer.encode(b"ab<s>", options).expect("a short text");
    assert_eq!(ids, [FIRST + 2, FIRST + 3]);
    assert_eq!(tokenizer.piece(FIRST), tokenizer.piece(FIRST + 2));
}

#[test]
fn odd_byte_tokens_are_refused() {
    for text in ["<0x-1>", "<0x>", "<0xZZ>", "0x0A", "a", "<0x0A"] {
        let message = refused(bpe(&[("<0x00>", BYTE), (text, BYTE)], &[]));
        assert!(message.contains("byte token 96"), "{message}");
    }
    let mut writer = spm(&[("a", NORMAL, f32::NAN)]);
    writer.set("tokenizer.ggml.bos_token_id", 1_u32);
    assert!(refused(writer).contains("token 259"));
}

#[test]
fn special_ids_that_do_not_exist_are_none() {
    for name in [
        "bos",
        "eos",
        "eot",
        "eom",
        "unknown",
        "seperator",
        "padding",
        "mask",
        "fim_pre",
        "fim_sep",
        "suffix",
    ] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        for id in [95_u32, u32::MAX] {
            let mut writer = bpe(&[], &[]);
            writer.set(&key, id);
            let tokenizer = open(writer).expect("it loads");
            let usual = open(bpe(&[], &[])).expect("it loads");
            assert_eq!(tokenizer.special(), usual.special());
            let line = format!("{key} = {id} is ignored: there are 95 tokens");
            let said = tokenizer.warnings().contains(&line);
            assert!(said, "{:?}", tokenizer.warnings());
        }
        let mut writer = bpe(&[], &[]);
        writer.set(&key, -1_i32);
        assert!(refused(writer).contains(&key));
    }
    // a default remains
    let mut writer = spm(&[]);
    writer.set("tokenizer.ggml.unknown_token_id", u32::MAX);
    assert_eq!(open(writer).expect("it loads").unk(), Some(0));
    let mut writer = bpe(&[], &[]);
    writer.set("tokenizer.ggml.eos_token_id", 94_u32);
    let tokenizer = open(writer).expect("it loads");
    assert_eq!(
        (tokenizer.eos(), tokenizer.is_eog(94), tokenizer.eog_ids()),
        (Some(94), true, [94].as_slice())
    );
}

#[test]
fn defaults_are_taken_only_where_they_fit() {
    let plain = open(bpe(&[], &[])).expect("it loads");
    assert_eq!((plain.bos(), plain.eos(), plain.unk()), (None, None, None));
    assert!(plain.warnings().iter().any(|w| w.contains("EOS")));
    assert!(!plain.add_bos() && parsed(&plain, "a") == ids(&plain, "a"));
    let mut asks = bpe(&[], &[]);
    asks.set("tokenizer.ggml.add_bos_token", true);
    let asks = open(asks).expect("it loads");
    assert!(!asks.add_bos() && asks.warnings().iter().any(|w| w.contains("BOS")));
    let tokenizer = open(spm(&[])).expect("it loads");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.unk()),
        (Some(1), Some(2), Some(0))
    );
    assert_eq!(parsed(&tokenizer, ""), [1]);
    // Tokens 0, 1 and 2 are ordinary here.
    let mut writer = spm(&[]);
    writer.set(
        "tokenizer.ggml.tokens",
        vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
    );
    writer
        .set("tokenizer.ggml.token_type", vec![NORMAL; 3])
        .set("tokenizer.ggml.scores", vec![0_f32; 3]);
    let tokenizer = open(writer).expect("it loads");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.unk()),
        (None, None, None)
    );
    let error = tokenizer
        .encode(b"x", EncodeOptions::PIECE)
        .expect_err("no token for it");
    assert!(error.to_string().contains("0xE2"), "{error}");
}

#[test]
fn empty_tokens_load_never_match_and_print_nothing() {
    let tokenizer = open(bpe(
        &[("", NORMAL), ("", CONTROL), ("", USER_DEFINED)],
        &["a ", " a", "ab"],
    ))
    .expect("it loads");
    assert_eq!(tokenizer.piece(FIRST), Some(b"".as_slice()));
    assert_eq!(tokenizer.decode(&[FIRST, FIRST + 1, FIRST + 2], true), b"");
    assert_eq!(tokenizer.token_to_id(b""), None);
    assert_eq!(parsed(&tokenizer, "[EMPTY_95]").len(), 10);
    assert!(
        tokenizer
            .warnings()
            .iter()
            .any(|w| w.contains("3 tokens have no text"))
    );
}

#[test]
fn merges_go_by_rank_and_then_from_the_left() {
    let more = [
        ("ab", NORMAL),
        ("bc", NORMAL),
        ("abc", NORMAL),
        ("aa", NORMAL),
        ("aaaa", NORMAL),
    ];
    let [ab, bc, abc, aa, aaaa] = [FIRST, FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 4];
    let merges = ["b c", "a b", "a bc", "ab c", "a a", "aa aa", "x y", "b c"];
    let tokenizer = open(bpe(&more, &merges)).expect("it loads");
    let single = |text: &str| tokenizer.token_to_id(text.as_bytes()).expect("a token");
    assert_eq!(ids(&tokenizer, "abc"), [abc]);
    assert_eq!(ids(&tokenizer, "abbc"), [ab, bc]);
    assert_eq!(ids(&tokenizer, "aaaaaaa"), [aaaa, aa, single("a")]);
    // A merge whose result is not a token falls back to bytes.
    assert_eq!(
        ids(&tokenizer, "axy"),
        [single("a"), single("x"), single("y")]
    );
    // Bytes without a token are dropped, as in llama.cpp.
    assert_eq!(ids(&tokenizer, "aéb"), [single("a"), single("b")]);
    let ignoring = |pre: &str| {
        let mut writer = bpe(&more, &["b c"]);
        writer.set("tokenizer.ggml.pre", pre);
        ids(&open(writer).expect("it loads"), "abc")
    };
    assert_eq!(ignoring("llama-bpe"), [abc]);
    assert_eq!(ignoring("qwen2"), [single("a"), bc]);
}

#[test]
fn spm_goes_by_score_and_then_from_the_left() {
    let tokens = [
        ("▁", NORMAL, -9.0),
        ("a", NORMAL, -9.0),
        ("b", NORMAL, -9.0),
        ("ab", NORMAL, -2.0),
        ("ba", NORMAL, -1.0),
        ("aa", NORMAL, -3.0),
        ("▁a", NORMAL, -4.0),
        ("bb", NORMAL, -3.0),
    ];
    let tokenizer = open(spm(&tokens)).expect("it loads");
    let text = |ids: Vec<u32>| {
        ids.iter()
            .map(|id| String::from_utf8_lossy(tokenizer.token_text(*id)).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(text(ids(&tokenizer, "aba")), ["▁a", "ba"]);
    assert_eq!(text(ids(&tokenizer, "aaabb")), ["▁", "aa", "ab", "b"]);
    assert_eq!(text(ids(&tokenizer, "é")), ["▁", "<0xC3>", "<0xA9>"]);
    let bytes = tokenizer
        .encode(b"\xFFa\xE2\x96", EncodeOptions::PIECE)
        .expect("ids");
    // As in llama.cpp, a first byte claims the number of bytes it announces, valid or not: 0xFF
    // claims four.
    assert_eq!(text(bytes), ["▁", "<0xFF>", "<0x61>", "<0xE2>", "<0x96>"]);
    // A space in front, and again after every special token.
    assert_eq!(
        text(parsed(&tokenizer, "a</s>a<s>")),
        ["<s>", "▁a", "</s>", "▁a", "<s>"]
    );
    let mut writer = spm(&tokens);
    writer
        .set("tokenizer.ggml.add_space_prefix", false)
        .set("tokenizer.ggml.add_eos_token", true);
    writer.set("tokenizer.ggml.add_bos_token", false);
    let plain = open(writer).expect("it loads");
    assert_eq!(text(parsed(&plain, "a")), ["a", "</s>"]);
}
