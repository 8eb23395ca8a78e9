//! Tensors: missing, of other shapes and types, and unexpected.

use super::{Row, check};
use gguf_rs_lite::TensorType;

/// Missing tensors, and wrong shapes.
const SHAPES: &[Row] = &[
    (
        "embedding missing",
        |f| f.remove("token_embd.weight"),
        &["missing tensor token_embd.weight", "[64, 7]"],
    ),
    (
        "norm missing",
        |f| f.remove("output_norm.weight"),
        &["missing tensor output_norm.weight", "[64]"],
    ),
    (
        "q norm missing",
        |f| f.remove("blk.1.attn_q_norm.weight"),
        &["missing tensor blk.1.attn_q_norm.weight", "[32]"],
    ),
    (
        "matrix missing",
        |f| f.remove("blk.1.ffn_down.weight"),
        &["missing tensor blk.1.ffn_down.weight", "[96, 64]"],
    ),
    (
        "transposed",
        |f| f.tensor("blk.0.ffn_up.weight").dims = vec![96, 64],
        &[
            "blk.0.ffn_up.weight",
            "expected shape [64, 96], got [96, 64]",
        ],
    ),
    (
        "a third dimension",
        |f| f.tensor("blk.0.ffn_up.weight").dims = vec![64, 96, 2],
        &[
            "blk.0.ffn_up.weight",
            "expected shape [64, 96], got [64, 96, 2]",
        ],
    ),
    (
        "dimension 0",
        |f| f.tensor("output.weight").dims = vec![64, 0],
        &["output.weight", "expected shape [64, 7], got [64, 0]"],
    ),
    (
        "short norm",
        |f| f.tensor("blk.0.attn_norm.weight").dims = vec![63],
        &["blk.0.attn_norm.weight", "expected shape [64], got [63]"],
    ),
];

/// Wrong types, and values that are not finite.
const TYPES: &[Row] = &[
    (
        "norm as Q8_0",
        |f| f.tensor("blk.0.attn_norm.weight").ty = TensorType::Q8_0,
        &["blk.0.attn_norm.weight", "expected type F32, got Q8_0"],
    ),
    (
        "matrix as I32",
        |f| f.tensor("blk.0.attn_q.weight").ty = TensorType::I32,
        &[
            "blk.0.attn_q.weight",
            "expected type F32, F16, BF16 or a quantized",
            "got I32",
        ],
    ),
    (
        "matrix as Q8_1",
        |f| f.tensor("output.weight").ty = TensorType::Q8_1,
        &["output.weight", "got Q8_1"],
    ),
    (
        "NaN in a norm",
        |f| {
            let mut values = vec![1.0; 64];
            values[5] = f32::NAN;
            f.tensor("blk.1.ffn_norm.weight").values = Some(values);
        },
        &["blk.1.ffn_norm.weight", "element 5", "finite", "got NaN"],
    ),
];

/// Unexpected tensors.
const UNEXPECTED: &[Row] = &[
    (
        "extra",
        |f| f.add("blk.0.attn_q.bias2", &[64]),
        &["unexpected tensor blk.0.attn_q.bias2", "qwen3", "26"],
    ),
    (
        "scale of no matrix",
        |f| f.add("blk.0.ffn_upper.scale", &[1]),
        &[
            "unexpected tensor blk.0.ffn_upper.scale",
            "there is no matrix that it scales",
        ],
    ),
    (
        "scale of a table",
        |f| f.add("token_embd.scale", &[1]),
        &["unexpected tensor token_embd.scale"],
    ),
    (
        "two scales",
        |f| f.add("blk.0.ffn_up.scale", &[2]),
        &["blk.0.ffn_up.scale", "[1], got [2]"],
    ),
    (
        "experts",
        |f| f.add("blk.0.ffn_gate_inp.weight", &[64, 8]),
        &["ffn_gate_inp.weight", "no experts in this architecture"],
    ),
    (
        "rope_freqs",
        |f| f.add("rope_freqs.weight", &[16]),
        &["unexpected tensor rope_freqs.weight"],
    ),
];

/// Faults for this architecture only.
const OF_LLAMA: &[Row] = &[
    (
        "rope_freqs too long",
        |f| f.add("rope_freqs.weight", &[16]),
        &["rope_freqs.weight", "[8], got [16]"],
    ),
    (
        "rope_freqs 0",
        |f| {
            f.add("rope_freqs.weight", &[8]);
            f.tensor("rope_freqs.weight").values =
                Some(vec![1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        },
        &["rope_freqs.weight", "element 1", "above 0", "got 0"],
    ),
    (
        "longrope factors",
        |f| f.add("rope_factors_long.weight", &[8]),
        &["rope_factors_long", "longrope"],
    ),
    (
        "q norm",
        |f| f.add("blk.0.attn_q_norm.weight", &[16]),
        &["unexpected tensor blk.0.attn_q_norm.weight"],
    ),
    (
        "both fused and separate",
        |f| f.add("blk.0.attn_qkv.weight", &[64, 128]),
        &["unexpected tensor blk.0.attn_q.weight"],
    ),
    (
        "half the biases beside a fused matrix",
        |f| {
            ["q", "k", "v"]
                .iter()
                .for_each(|n| f.remove(&format!("blk.0.attn_{n}.weight")));
            f.add("blk.0.attn_qkv.weight", &[64, 128]);
            f.add("blk.0.attn_k.bias", &[32]);
        },
        &["missing tensor blk.0.attn_q.bias", "[64]"],
    ),
];

#[test]
fn tensors() {
    for rows in [SHAPES, TYPES, UNEXPECTED] {
        check("qwen3", rows);
    }
    check("llama", OF_LLAMA);
}
