//! Mixtures with gates of attention's result, other widths of values, chunks, and delta nets with
//! decays by key.

use super::check;
use super::files::{norms, sigmoid_after_dense, with_experts};
use crate::support::{File, Val};
use octavo_fixtures::tiny::N_FF;

/// The architectures of this file.
pub(super) const ARCHITECTURES: [&str; 6] = [
    "afmoe",
    "mimo2",
    "step35",
    "llama4",
    "smallthinker",
    "kimi-linear",
];

/// Makes a valid file of an architecture from one of the usual tensors.
pub(super) fn valid(arch: &str, f: &mut File) {
    match arch {
        "afmoe" => {
            sigmoid_after_dense(f, 24);
            f.set("expert_shared_count", Val::U32(1));
            f.add("blk.1.exp_probs_b.bias", &[6]);
            norms(
                f,
                &[
                    ("post_attention_norm.weight", 64),
                    ("post_ffw_norm.weight", 64),
                ],
            );
            for l in 0..2 {
                f.add(&format!("blk.{l}.attn_gate.weight"), &[64, 64]);
            }
        }
        "mimo2" => {
            routed_in_the_last(f);
            windowed(f);
            f.set("attention.key_length", Val::U32(16));
            f.set("attention.value_length", Val::U32(8));
            for l in 0..2 {
                f.tensor(&format!("blk.{l}.attn_v.weight")).dims = vec![64, 16];
                f.tensor(&format!("blk.{l}.attn_output.weight")).dims = vec![32, 64];
            }
        }
        "step35" => {
            routed_in_the_last(f);
            windowed(f);
            for l in 0..2 {
                f.add(&format!("blk.{l}.attn_gate.weight"), &[64, 4]);
            }
        }
        "llama4" => {
            routed_in_the_last(f);
            f.set("interleave_moe_layer_step", Val::U32(2));
            for (name, dims) in [("gate", [64, 24]), ("up", [64, 24]), ("down", [24, 64])] {
                f.add(&format!("blk.1.ffn_{name}_shexp.weight"), &dims);
            }
        }
        "smallthinker" => {
            with_experts(f);
            f.set("expert_gating_func", Val::U32(2));
        }
        _ => kimi_linear(f),
    }
}

fn windowed(f: &mut File) {
    f.set("attention.sliding_window", Val::U32(16));
    f.set("attention.sliding_window_pattern", vec![false, true]);
}

/// Adds experts to the last layer.
fn routed_in_the_last(f: &mut File) {
    with_experts(f);
    for name in [
        "ffn_gate_inp",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    ] {
        f.remove(&format!("blk.0.{name}.weight"));
    }
    f.add("blk.0.ffn_gate.weight", &[64, N_FF]);
    f.add("blk.0.ffn_up.weight", &[64, N_FF]);
    f.add("blk.0.ffn_down.weight", &[N_FF, 64]);
}

/// A delta net with four heads of 8 values, and a layer of latent attention with experts.
fn kimi_linear(f: &mut File) {
    routed_in_the_last(f);
    f.set("leading_dense_block_count", Val::U32(1));
    f.set("expert_gating_func", Val::U32(2));
    f.add("blk.1.exp_probs_b.bias", &[6]);
    f.set("attention.head_count_kv", vec![0u32, 1]);
    f.set("ssm.conv_kernel", Val::U32(4));
    for (key, value) in [
        ("kda.head_dim", 8),
        ("attention.key_length_mla", 24),
        ("attention.value_length_mla", 16),
        ("attention.kv_lora_rank", 32),
        ("rope.dimension_count", 8),
    ] {
        f.set(key, Val::U32(value));
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        for l in 0..2 {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
    }
    for (name, dims) in [
        ("0.attn_q.weight", &[64, 32][..]),
        ("0.attn_k.weight", &[64, 32]),
        ("0.attn_v.weight", &[64, 32]),
        ("0.ssm_conv1d_q.weight", &[4, 1, 32]),
        ("0.ssm_conv1d_k.weight", &[4, 1, 32]),
        ("0.ssm_conv1d_v.weight", &[4, 1, 32, 1]),
        ("0.ssm_f_a.weight", &[64, 8]),
        ("0.ssm_f_b.weight", &[8, 32]),
        ("0.ssm_beta.weight", &[64, 4]),
        ("0.ssm_a", &[1, 4]),
        ("0.ssm_dt.bias", &[32]),
        ("0.ssm_g_a.weight", &[64, 8]),
        ("0.ssm_g_b.weight", &[8, 32]),
        ("0.ssm_norm.weight", &[8]),
        ("0.attn_output.weight", &[32, 64]),
        ("1.attn_q.weight", &[64, 96]),
        ("1.attn_kv_a_mqa.weight", &[64, 40]),
        ("1.attn_kv_a_norm.weight", &[32]),
        ("1.attn_k_b.weight", &[16, 32, 4]),
        ("1.attn_v_b.weight", &[32, 16, 4]),
        ("1.attn_output.weight", &[64, 64]),
    ] {
        f.add(&format!("blk.{name}"), dims);
    }
}

#[test]
fn gates_of_attention() {
    check(
        "afmoe",
        &[
            (
                "no gate",
                |f| f.remove("blk.1.attn_gate.weight"),
                &["missing tensor blk.1.attn_gate.weight"],
            ),
            (
                "a gate for each head",
                |f| f.tensor("blk.1.attn_gate.weight").dims = vec![64, 4],
                &["blk.1.attn_gate.weight", "[64, 64]", "[64, 4]"],
            ),
            (
                "no bias to choose by",
                |f| f.remove("blk.1.exp_probs_b.bias"),
                &["blk.1.exp_probs_b.bias"],
            ),
        ],
    );
    check(
        "step35",
        &[
            (
                "half of an odd number of pairs",
                |f| f.set("rope.dimension_count", Val::U32(6)),
                &["step35.rope.dimension_count", "a multiple of 4", "got 6"],
            ),
            (
                "limits of other layers",
                |f| f.set("swiglu_clamp_exp", vec![1.0f32; 3]),
                &[
                    "step35.swiglu_clamp_exp",
                    "one value per layer (2)",
                    "array of 3",
                ],
            ),
            (
                "a limit below zero",
                |f| f.set("swiglu_clamp_shexp", Val::F32(-1.0)),
                &["step35.swiglu_clamp_shexp", "from 0 on", "got -1"],
            ),
            (
                "a gate for each value",
                |f| f.tensor("blk.0.attn_gate.weight").dims = vec![64, 64],
                &["blk.0.attn_gate.weight", "[64, 4]", "[64, 64]"],
            ),
        ],
    );
}

#[test]
fn values_of_another_width() {
    check(
        "mimo2",
        &[
            (
                "an odd width",
                |f| f.set("attention.value_length", Val::U32(7)),
                &["mimo2.attention.value_length", "even", "got 7"],
            ),
            (
                "values as wide as keys",
                |f| f.set("attention.value_length", Val::U32(16)),
                &["blk.0.attn_v.weight", "[64, 32]", "[64, 16]"],
            ),
            (
                "no flags of windows",
                |f| f.set("attention.sliding_window_pattern", Val::U32(2)),
                &[
                    "mimo2.attention.sliding_window_pattern",
                    "a flag for each layer",
                ],
            ),
        ],
    );
}

#[test]
fn chunks_and_early_routers() {
    check(
        "llama4",
        &[
            (
                "no chunks",
                |f| f.set("attention.sliding_window", Val::U32(0)),
                &["llama4.attention.sliding_window = 0", "chunks"],
            ),
            (
                "nothing about layers with experts",
                |f| f.unset("interleave_moe_layer_step"),
                &["missing key llama4.interleave_moe_layer_step"],
            ),
            (
                "no shared expert",
                |f| f.remove("blk.1.ffn_up_shexp.weight"),
                &["missing tensor blk.1.ffn_up_shexp.weight"],
            ),
        ],
    );
    check(
        "smallthinker",
        &[(
            "no function of the router",
            |f| f.unset("expert_gating_func"),
            &["missing key smallthinker.expert_gating_func"],
        )],
    );
}

#[test]
fn delta_nets_with_decays_by_key() {
    check(
        "kimi-linear",
        &[
            (
                "no width of keys",
                |f| f.unset("kda.head_dim"),
                &["missing key kimi-linear.kda.head_dim"],
            ),
            (
                "another width of keys",
                |f| f.set("kda.head_dim", Val::U32(16)),
                &["blk.0.attn_q.weight", "[64, 64]", "[64, 32]"],
            ),
            (
                "keys of no end",
                |f| f.set("kda.head_dim", Val::U32(u32::MAX)),
                &["kimi-linear.kda.head_dim", "got 4294967295"],
            ),
            (
                "a state of no end",
                |f| f.set("kda.head_dim", Val::U32(1 << 20)),
                &["kimi-linear.kda.head_dim", "state", "got 1048576"],
            ),
            (
                "weights that are not absorbed",
                |f| f.unset("attention.value_length_mla"),
                &["missing key kimi-linear.attention.value_length_mla"],
            ),
            (
                "a decay for all heads",
                |f| f.tensor("blk.0.ssm_a").dims = vec![1, 1],
                &["blk.0.ssm_a", "[1, 4]"],
            ),
        ],
    );
}
