//! Sizes: layers, heads, widths, of the whole model and layer by layer.

use super::{Row, check};
use crate::support::Val;

/// Number of layers.
const LAYERS: &[Row] = &[
    (
        "no layers",
        |f| f.set("block_count", Val::U32(0)),
        &["llama.block_count", "1 to 1024", "got 0"],
    ),
    (
        "too many layers",
        |f| f.set("block_count", Val::U32(1025)),
        &["llama.block_count", "got 1025"],
    ),
    (
        "more layers than tensors",
        |f| f.set("block_count", Val::U32(8)),
        &["llama.block_count", "21 tensors", "got 8"],
    ),
    (
        "one layer too few",
        |f| f.set("block_count", Val::U32(1)),
        &["unexpected tensor blk.1.attn_norm.weight"],
    ),
    (
        "layers as text",
        |f| f.set("block_count", "2"),
        &["llama.block_count", "got \"2\""],
    ),
    (
        "negative layers",
        |f| f.set("block_count", Val::I8(-1)),
        &["llama.block_count", "got -1"],
    ),
    (
        "layers past u64",
        |f| f.set("block_count", Val::U64(u64::MAX)),
        &["llama.block_count", "18446744073709551615"],
    ),
    (
        "no block count",
        |f| f.unset("block_count"),
        &["missing key llama.block_count"],
    ),
];

/// Number and width of heads.
const HEADS: &[Row] = &[
    (
        "no heads",
        |f| f.set("attention.head_count", Val::U32(0)),
        &["llama.attention.head_count", "got 0"],
    ),
    (
        "heads missing",
        |f| f.unset("attention.head_count"),
        &["missing key llama.attention.head_count"],
    ),
    (
        "no kv heads",
        |f| f.set("attention.head_count_kv", Val::U32(0)),
        &["llama.attention.head_count_kv", "got 0"],
    ),
    (
        "kv 3 of 4",
        |f| f.set("attention.head_count_kv", Val::U32(3)),
        &["head_count_kv", "divisor", "(4)", "got 3"],
    ),
    (
        "kv 8 of 4",
        |f| f.set("attention.head_count_kv", Val::U32(8)),
        &["head_count_kv", "divisor", "got 8"],
    ),
    (
        "odd head",
        |f| f.set("attention.head_count", Val::U32(64)),
        &["llama.attention.head_count", "got 64"],
    ),
    (
        "heads do not fill",
        |f| f.set("attention.head_count", Val::U32(6)),
        &["head_count", "64", "got 6"],
    ),
    (
        "huge heads",
        |f| f.set("attention.head_count", Val::U32(u32::MAX)),
        &["head_count", "got 4294967295"],
    ),
    (
        "odd key length",
        |f| f.set("attention.key_length", Val::U32(15)),
        &["attention.key_length", "even", "got 15"],
    ),
    (
        "key length 0",
        |f| f.set("attention.key_length", Val::U32(0)),
        &["attention.key_length", "got 0"],
    ),
    (
        "key length 1026",
        |f| f.set("attention.key_length", Val::U32(1026)),
        &["attention.key_length", "got 1026"],
    ),
    (
        "value length differs",
        |f| f.set("attention.value_length", Val::U32(8)),
        &["value_length = 8", "key_length, 16"],
    ),
];

/// Widths, context and vocabulary.
const WIDTHS: &[Row] = &[
    (
        "width 0",
        |f| f.set("embedding_length", Val::U32(0)),
        &["llama.embedding_length", "got 0"],
    ),
    (
        "width past the cap",
        |f| f.set("embedding_length", Val::U32(1 << 31)),
        &["embedding_length", "got 2147483648"],
    ),
    (
        "other width",
        |f| f.set("embedding_length", Val::U32(128)),
        &["token_embd.weight", "[128, 7]", "[64, 7]"],
    ),
    (
        "ffn 0",
        |f| f.set("feed_forward_length", Val::U32(0)),
        &["llama.feed_forward_length", "got 0"],
    ),
    (
        "ffn missing",
        |f| f.unset("feed_forward_length"),
        &["missing key llama.feed_forward_length"],
    ),
    (
        "context 0",
        |f| f.set("context_length", Val::U32(0)),
        &["llama.context_length", "got 0"],
    ),
    (
        "context missing",
        |f| f.unset("context_length"),
        &["missing key llama.context_length"],
    ),
    (
        "vocabulary empty",
        |f| f.set("tokenizer.ggml.tokens", Vec::<String>::new()),
        &["tokenizer.ggml.tokens", "got 0"],
    ),
    (
        "tokens as text",
        |f| f.set("tokenizer.ggml.tokens", "x"),
        &["tokenizer.ggml.tokens", "got \"x\""],
    ),
];

#[test]
fn sizes() {
    for rows in [LAYERS, HEADS, WIDTHS] {
        check("llama", rows);
    }
}

#[test]
fn per_layer_arrays() {
    check(
        "qwen2",
        &[
            (
                "heads differ",
                |f| f.set("attention.head_count", vec![4u32, 2]),
                &["attention.key_length", "unequal heads"],
            ),
            (
                "ffn differs",
                |f| f.set("feed_forward_length", vec![96u32, 64]),
                &["blk.1.ffn_gate.weight", "[64, 64]", "[64, 96]"],
            ),
            (
                "too short",
                |f| f.set("attention.head_count_kv", vec![2u32]),
                &["head_count_kv", "(2)", "array of 1"],
            ),
            (
                "empty",
                |f| f.set("attention.head_count", Vec::<u32>::new()),
                &["head_count", "an array of 0"],
            ),
            (
                "one is 0",
                |f| f.set("attention.head_count", vec![4u32, 0]),
                &["attention.head_count", "got 0"],
            ),
            (
                "floats",
                |f| f.set("feed_forward_length", vec![96f32; 2]),
                &["feed_forward_length", "got 96"],
            ),
        ],
    );
}
