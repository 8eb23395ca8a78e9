//! Numeric keys: the norms' epsilon, and those of positions.

use super::{Row, check};
use crate::support::Val;

/// Epsilon of the norms.
const EPSILON: &[Row] = &[
    (
        "eps NaN",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(f32::NAN)),
        &["rms_epsilon", "got NaN"],
    ),
    (
        "eps negative",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(-1e-5)),
        &["rms_epsilon", "got -0.00001"],
    ),
    (
        "eps 0",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(0.0)),
        &["rms_epsilon", "got 0"],
    ),
    (
        "eps 1",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(1.0)),
        &["rms_epsilon", "got 1"],
    ),
    (
        "eps below f32",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::F64(1e-60)),
        &["rms_epsilon"],
    ),
    (
        "eps an integer",
        |f| f.set("attention.layer_norm_rms_epsilon", Val::U32(1)),
        &["rms_epsilon", "got 1"],
    ),
    (
        "eps missing",
        |f| f.unset("attention.layer_norm_rms_epsilon"),
        &["missing key", "layer_norm_rms_epsilon"],
    ),
];

/// RoPE base and number of rotated dimensions.
const ROTATION: &[Row] = &[
    (
        "base 0",
        |f| f.set("rope.freq_base", Val::F32(0.0)),
        &["llama.rope.freq_base", "got 0"],
    ),
    (
        "base NaN",
        |f| f.set("rope.freq_base", Val::F32(f32::NAN)),
        &["llama.rope.freq_base", "got NaN"],
    ),
    (
        "base inf",
        |f| f.set("rope.freq_base", Val::F32(f32::INFINITY)),
        &["llama.rope.freq_base", "got inf"],
    ),
    (
        "base negative",
        |f| f.set("rope.freq_base", Val::F32(-1.0)),
        &["llama.rope.freq_base", "got -1"],
    ),
    (
        "rope dim 0",
        |f| f.set("rope.dimension_count", Val::U32(0)),
        &["llama.rope.dimension_count", "got 0"],
    ),
    (
        "rope dim past head",
        |f| f.set("rope.dimension_count", Val::U32(18)),
        &["rope.dimension_count", "got 18"],
    ),
    (
        "rope dim partial",
        |f| f.set("rope.dimension_count", Val::U32(8)),
        &["rope.dimension_count", "16", "got 8"],
    ),
];

/// Position scaling for long contexts.
const SCALING: &[Row] = &[
    (
        "scaling unknown",
        |f| f.set("rope.scaling.type", "su"),
        &["rope.scaling.type", "yarn", "\"su\""],
    ),
    (
        "scaling a number",
        |f| f.set("rope.scaling.type", Val::U32(2)),
        &["rope.scaling.type", "a string", "got 2"],
    ),
    (
        "factor an empty array",
        |f| f.set("rope.scaling.factor", Vec::<f32>::new()),
        &["llama.rope.scaling.factor", "an array of 0 values"],
    ),
    (
        "factor negative",
        |f| f.set("rope.scaling.factor", Val::F32(-2.0)),
        &["llama.rope.scaling.factor", "got -2"],
    ),
    (
        "factor NaN",
        |f| f.set("rope.scaling.factor", Val::F32(f32::NAN)),
        &["rope.scaling.factor", "got NaN"],
    ),
    (
        "old factor inf",
        |f| f.set("rope.scale_linear", Val::F32(f32::INFINITY)),
        &["rope.scale_linear", "got inf"],
    ),
    (
        "attn factor",
        |f| f.set("rope.scaling.attn_factor", Val::F32(-1.0)),
        &["rope.scaling.attn_factor", "got -1"],
    ),
    (
        "original 0",
        |f| f.set("rope.scaling.original_context_length", Val::U32(0)),
        &["original_context_length", "got 0"],
    ),
    (
        "yarn on base 1",
        |f| {
            f.set("rope.scaling.type", "yarn");
            f.set("rope.scaling.factor", Val::F32(2.0));
            f.set("rope.freq_base", Val::F32(1.0));
        },
        &["llama.rope.freq_base", "above 1", "got 1"],
    ),
];

#[test]
fn numbers() {
    for rows in [EPSILON, ROTATION, SCALING] {
        check("llama", rows);
    }
    check(
        "qwen3",
        &[(
            "rope dim odd",
            |f| f.set("rope.dimension_count", Val::U32(7)),
            &["qwen3.rope.dimension_count", "even", "got 7"],
        )],
    );
    check(
        "qwen2",
        &[(
            "heads past width",
            |f| f.set("attention.key_length", Val::U32(32)),
            &["value_length = 16", "key_length, 32"],
        )],
    );
}
