//! Gemma 4's tokenizer: characters merged by rank, byte tokens for those without a token.

use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

fn tokenizer(pre: &str) -> Tokenizer {
    let tokens = [
        "<bos>", "a", "b", "ab", "▁", "▁a", "\n", "\n\n", "<0xC3>", "<0xBC>", "▁ab",
    ];
    let types = [
        CONTROL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, BYTE, BYTE, NORMAL,
    ];
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", "gemma4")
        .set("tokenizer.ggml.pre", pre)
        .set("tokenizer.ggml.tokens", tokens.map(str::to_owned).to_vec())
        .set("tokenizer.ggml.token_type", types.to_vec())
        .set(
            "tokenizer.ggml.merges",
            ["▁ a", "a b"].map(str::to_owned).to_vec(),
        )
        .set("tokenizer.ggml.bos_token_id", 0_u32)
        .set("tokenizer.ggml.add_bos_token", false);
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let gguf = Gguf::from_bytes(bytes, "test.gguf", &OpenOptions::default()).expect("it opens");
    Tokenizer::from_gguf(&gguf).expect("a tokenizer")
}

#[test]
fn characters_are_joined_by_rank() {
    // llama.cpp decides by the model name alone, and adds BOS whatever the file says
    for pre in ["gemma4", "default"] {
        let tokenizer = tokenizer(pre);
        assert_eq!(tokenizer.pre_name(), "gemma4");
        let encode = |text: &str, options| tokenizer.encode(text.as_bytes(), options);
        let ids = |text: &str| encode(text, EncodeOptions::PIECE).expect("short");
        // the space merges with its letter before the letters merge
        assert_eq!(ids("ab ab"), [3, 5, 2]);
        assert_eq!(ids("a\n\nü"), [1, 7, 8, 9]);
        assert_eq!(encode("a", EncodeOptions::PROMPT).expect("short"), [0, 1]);
        assert_eq!(tokenizer.piece(5), Some(&b" a"[..]));
    }
}
