//! SentencePiece's vocabularies: llama.cpp's token ids from either file, the same as the GGUF
//! file's and the tokenizers library's, and files that cannot be converted.

mod refused;

use super::hostile::Folder;
use super::*;
use std::sync::Arc;

use gguf_rs_lite::RowSource;
use serde_json::{Value, json};

struct Zeros;

impl RowSource for Zeros {
    fn fill(&self, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
}

/// Makes a model of one small layer with hardly any weights, around a vocabulary.
pub(super) fn model_around(vocabulary: &Gguf, change: impl FnOnce(&mut View)) -> Gguf {
    let n_vocab = vocabulary
        .array("tokenizer.ggml.tokens")
        .expect("an array")
        .expect("tokens")
        .len() as u64;
    let mut view = View::new(Path::new("model.gguf"));
    for (key, value) in vocabulary
        .keys()
        .filter(|(key, _)| key.starts_with("tokenizer.") || *key == "general.name")
    {
        view.set(key, value);
    }
    view.set("general.architecture", "llama")
        .set("llama.context_length", 64_u32)
        .set("llama.block_count", 1_u32);
    view.set("llama.embedding_length", 32_u32)
        .set("llama.feed_forward_length", 32_u32);
    view.set("llama.attention.head_count", 2_u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    let mut add = |name: &str, dims: &[u64], ty| {
        view.made(name, dims, ty, "model.gguf", Arc::new(Zeros))
            .expect("a sound tensor");
    };
    add("token_embd.weight", &[32, n_vocab], TensorType::F16);
    add("output_norm.weight", &[32], TensorType::F32);
    for name in ["attn_norm", "ffn_norm"] {
        add(&format!("blk.0.{name}.weight"), &[32], TensorType::F32);
    }
    for name in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        add(&format!("blk.0.{name}.weight"), &[32, 32], TensorType::F16);
    }
    change(&mut view);
    view.open().expect("a sound model")
}

/// Makes a folder with one file of the tokenizer, with the other, and with both.
fn folders(dir: &TempDir, model: &Gguf) -> Vec<(PathBuf, &'static str)> {
    let routes = [
        ("both", ""),
        ("json", "tokenizer.model"),
        ("model", "tokenizer.json"),
    ];
    let make = |(name, without): (&'static str, &str)| {
        let folder = dir.path().join(name);
        hf::write(model, &folder).expect("written");
        if !without.is_empty() {
            std::fs::remove_file(folder.join(without)).expect("there");
        }
        (folder, name)
    };
    routes.map(make).into()
}

fn tokenizer(folder: &Path) -> Tokenizer {
    Tokenizer::from_gguf(&hf::open(folder, &OpenOptions::default()).expect("read"))
        .expect("a tokenizer")
}

/// Makes a vocabulary of a few tokens, whose scores make "abc" of "▁ab" and "c".
pub(super) fn small() -> Gguf {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(
        [
            "▁▁",
            "▁▁▁",
            "▁a",
            "ab",
            "▁ab",
            "bc",
            "abc",
            "▁abc",
            "▁",
            "a",
            "b",
            "c",
            "[PAD271]",
        ]
        .map(str::to_owned),
    );
    let ty = |id: usize| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        271 => 5,
        _ => 1,
    };
    let types: Vec<i32> = (0..tokens.len()).map(ty).collect();
    let scores: Vec<f32> = (0..tokens.len())
        .map(|id| if id < 259 { 0.0 } else { 259.0 - id as f32 })
        .collect();
    let mut view = View::new(Path::new("vocabulary"));
    view.set("general.architecture", "llama")
        .set("tokenizer.ggml.model", "llama");
    view.set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.scores", scores);
    view.set("tokenizer.ggml.token_type", types);
    model_around(&view.open().expect("sound"), |_| {})
}

/// Seeded text of everything that is hard: runs of spaces, bytes without tokens, special tokens,
/// space marks.
struct Texts(u64);

impl Texts {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn next(&mut self) -> String {
        const WORDS: [&str; 24] = [
            "the",
            " The",
            "fox",
            "isn't",
            " ",
            "  ",
            "\n",
            "\t",
            "====",
            "\u{2581}",
            "12",
            "3.5e-7",
            "你好",
            "Über",
            "é",
            "e\u{301}",
            "🙂",
            "👩‍👧",
            "\u{0}",
            "ﬁ",
            "</s>",
            "<s>",
            "<|end|>",
            "<0x0A>",
        ];
        let mut text = String::new();
        for _ in 0..self.below(14) {
            match self.below(5) {
                0 => text += &" ".repeat(self.below(40)),
                1 => {
                    text.extend((0..self.below(9)).map(|_| char::from(b'a' + self.below(26) as u8)))
                }
                2 => text.extend(char::from_u32(self.below(0x30000) as u32)),
                _ => text += WORDS[self.below(WORDS.len())],
            }
        }
        text
    }
}

/// Returns the vocabularies, in models.
fn vocabularies() -> Vec<(String, Gguf)> {
    let Some(folder) = shared("vocabs") else {
        return Vec::new();
    };
    let names = ["ggml-vocab-llama-spm.gguf", "ggml-vocab-phi-3.gguf"];
    names
        .map(|name| {
            (
                folder.join(name).display().to_string(),
                model_around(&open(&folder.join(name)), |_| {}),
            )
        })
        .into()
}

#[test]
fn either_file_gives_the_tokens_of_llama_cpp() {
    for (name, model) in vocabularies() {
        let dir = TempDir::new().expect("a folder");
        let file = Tokenizer::from_gguf(&model).expect("a tokenizer");
        let read =
            |suffix: &str| std::fs::read_to_string(format!("{name}.{suffix}")).expect("the pairs");
        let (inputs, outputs) = (read("inp"), read("out"));
        for (folder, route) in folders(&dir, &model) {
            let ours = tokenizer(&folder);
            let mut pairs = 0;
            for (input, output) in inputs.split("\n__ggml_vocab_test__\n").zip(outputs.lines()) {
                let expected: Vec<u32> = output
                    .split_ascii_whitespace()
                    .map(|id| id.parse().expect("an id"))
                    .collect();
                let ids = ours
                    .encode(input.as_bytes(), EncodeOptions::PIECE)
                    .expect("ids");
                assert_eq!(ids, expected, "{name} by {route}: {input:?}");
                pairs += 1;
            }
            assert!(pairs > 40, "{pairs} pairs");
            let mut texts = Texts(1);
            for turn in 0..4000 {
                let text = texts.next();
                let options = EncodeOptions {
                    add_special: turn % 2 == 0,
                    parse_special: turn % 3 != 0,
                };
                let [a, b] =
                    [&ours, &file].map(|t| t.encode(text.as_bytes(), options).expect("ids"));
                assert_eq!(a, b, "{name} by {route}: {text:?}");
                assert_eq!(
                    ours.decode(&a, true),
                    file.decode(&b, true),
                    "{name} by {route}: {text:?}"
                );
            }
            assert_eq!(
                (ours.bos(), ours.eos(), ours.unk()),
                (file.bos(), file.eos(), file.unk()),
                "{name}"
            );
            assert_eq!(
                (ours.add_bos(), ours.add_eos()),
                (file.add_bos(), file.add_eos()),
                "{name}"
            );
            assert_eq!(ours.eog_ids(), file.eog_ids(), "{name}");
        }
    }
}

/// The tokenizers library, for which tokenizer.json is written, reads the same from it, with every
/// way to add a space to texts.
#[test]
fn the_tokenizers_library_agrees() {
    for (name, model) in vocabularies() {
        for scheme in ["", "never", "always", "first"] {
            let dir = TempDir::new().expect("a folder");
            let model = model_around(&model, |view| match scheme {
                "" => {}
                "never" => {
                    view.set("tokenizer.ggml.add_space_prefix", false);
                }
                scheme => {
                    view.set("tokenizer.octavo.prepend_scheme", scheme);
                }
            });
            for (folder, route) in folders(&dir, &model) {
                let ours = tokenizer(&folder);
                let file = Tokenizer::from_gguf(&model).expect("a tokenizer");
                let theirs =
                    tokenizers::Tokenizer::from_file(dir.path().join("both/tokenizer.json"))
                        .expect("read");
                // tokenizer.model can express all schemes but `always`
                let all = !(route == "model" && scheme == "always");
                let mut texts = Texts(7);
                for _ in 0..if all { 2000 } else { 0 } {
                    let text = texts.next();
                    // tokens that strip spaces also strip other white space in their library
                    if text.contains("|>") && name.contains("phi") {
                        continue;
                    }
                    let options = EncodeOptions::PROMPT;
                    let ids = ours.encode(text.as_bytes(), options).expect("ids");
                    assert_eq!(
                        ids,
                        file.encode(text.as_bytes(), options).expect("ids"),
                        "{name} {scheme}: {text:?}"
                    );
                    let encoding = theirs.encode(text.as_str(), true).expect("ids");
                    assert_eq!(
                        ids,
                        encoding.get_ids(),
                        "{name} {scheme} by {route}: {text:?}"
                    );
                }
            }
        }
    }
}

/// Added tokens and rows without a token have the texts and scores that llama.cpp's converter gives
/// them.
#[test]
fn added_tokens_and_padding_are_those_of_llama_cpp() {
    let folder = Folder::of(&small());
    std::fs::remove_file(folder.path.join("tokenizer.json")).expect("there");
    std::fs::remove_file(folder.path.join("generation_config.json")).expect("there");
    let write = |name: &str, value: Value| {
        std::fs::write(folder.path.join(name), value.to_string()).expect("written")
    };
    let mut config = folder.json("config.json");
    config["vocab_size"] = json!(275);
    config["tie_word_embeddings"] = json!(true);
    write("config.json", config);
    write(
        "added_tokens.json",
        json!({ "<tool>": 271, "<|end|>": 272 }),
    );
    let token = |text: &str| json!({ "content": text, "special": false, "rstrip": true });
    write(
        "tokenizer_config.json",
        json!({ "added_tokens_decoder": { "271": token("<tool>"), "273": token("▁▁x") } }),
    );
    let view = hf::open(&folder.path, &OpenOptions::default()).expect("read");
    let tokens = Tokenizer::from_gguf(&view).expect("a tokenizer");
    let texts = ["<tool>", "<|end|>", "  x", "[PAD274]"];
    assert_eq!(
        (271..275)
            .map(|id| String::from_utf8_lossy(tokens.token_text(id)).into_owned())
            .collect::<Vec<_>>(),
        texts
    );
    let scores: Vec<f32> = view
        .array("tokenizer.ggml.scores")
        .expect("an array")
        .expect("there")
        .f32s()
        .expect("f32")
        .collect();
    assert_eq!(scores[271..], [-1000.0, -1000.0, -1000.0, -10_000.0]);
    assert_eq!(scores[1..3], [0.0, 0.0], "no file adds them");
    let types: Vec<i32> = view
        .array("tokenizer.ggml.token_type")
        .expect("an array")
        .expect("there")
        .i32s()
        .expect("i32")
        .collect();
    assert_eq!(types[271..], [4, 3, 4, 5]);
    assert_eq!(
        (tokens.bos(), tokens.eos(), tokens.unk(), tokens.add_bos()),
        (Some(1), Some(2), Some(0), true)
    );
    let ids = tokens
        .encode("a<tool>  a  x".as_bytes(), EncodeOptions::PIECE)
        .expect("ids");
    assert_eq!(
        ids,
        [261, 271, 261, 273],
        "spaces behind <tool> are its own"
    );
}
