//! A small valid file of each architecture.

use crate::support::{File, Val};
use octavo_fixtures::tiny::N_FF;

/// Returns a valid file of an architecture.
pub(super) fn valid(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    match arch {
        "gemma2" => norms(
            &mut f,
            &[
                ("post_attention_norm.weight", 64),
                ("post_ffw_norm.weight", 64),
            ],
        ),
        "gemma4" => gemma4(&mut f),
        "qwen3moe" => {
            norms(
                &mut f,
                &[("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)],
            );
            with_experts(&mut f);
        }
        "minimax-m2" => minimax_m2(&mut f),
        "bailingmoe2" => bailingmoe2(&mut f),
        "exaone-moe" => exaone_moe(&mut f),
        "nemotron_h_moe" => nemotron_h_moe(&mut f),
        _ if super::gates::ARCHITECTURES.contains(&arch) => super::gates::valid(arch, &mut f),
        _ if super::recurrences::ARCHITECTURES.contains(&arch) => {
            super::recurrences::valid(arch, &mut f);
        }
        _ if super::norms::ARCHITECTURES.contains(&arch) => super::norms::valid(arch, &mut f),
        "gpt-oss" => gpt_oss(&mut f),
        "bert" => bert(&mut f),
        "gemma-embedding" => gemma_embedding(&mut f),
        "granite" => f.set("logit_scale", Val::F32(3.0)),
        "starcoder2" => starcoder2(&mut f),
        "phi3" => phi3(&mut f),
        other => panic!("{other}"),
    }
    f
}

/// Adds vectors to every layer.
pub(super) fn norms(f: &mut File, names: &[(&str, u32)]) {
    for l in 0..2 {
        for (name, n) in names {
            f.add(&format!("blk.{l}.{name}"), &[*n]);
        }
    }
}

/// Replaces every layer's feed-forward block with experts.
pub(super) fn with_experts(f: &mut File) {
    f.set("expert_count", Val::U32(6));
    f.set("expert_used_count", Val::U32(2));
    f.set("expert_feed_forward_length", Val::U32(24));
    for l in 0..2 {
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
        f.add(&format!("blk.{l}.ffn_gate_inp.weight"), &[64, 6]);
        f.add(&format!("blk.{l}.ffn_gate_exps.weight"), &[64, 24, 6]);
        f.add(&format!("blk.{l}.ffn_up_exps.weight"), &[64, 24, 6]);
        f.add(&format!("blk.{l}.ffn_down_exps.weight"), &[24, 64, 6]);
    }
}

fn minimax_m2(f: &mut File) {
    with_experts(f);
    f.set("feed_forward_length", Val::U32(24));
    f.set("expert_gating_func", Val::U32(2));
    norms(
        f,
        &[
            ("attn_q_norm.weight", 64),
            ("attn_k_norm.weight", 32),
            ("exp_probs_b.bias", 6),
        ],
    );
}

/// A dense layer, and one with experts and two shared ones of half a width each.
fn bailingmoe2(f: &mut File) {
    sigmoid_after_dense(f, 24);
    f.set("expert_shared_count", Val::U32(2));
    f.set("expert_shared_feed_forward_length", Val::U32(12));
}

fn exaone_moe(f: &mut File) {
    sigmoid_after_dense(f, 24);
    f.set("attention.sliding_window", Val::U32(16));
}

/// Norms of heads, a dense layer, and one with experts and a shared one of `shared` values.
pub(super) fn sigmoid_after_dense(f: &mut File, shared: u32) {
    norms(f, &[("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)]);
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
    f.set("leading_dense_block_count", Val::U32(1));
    f.set("expert_gating_func", Val::U32(2));
    f.add("blk.1.ffn_gate_shexp.weight", &[64, shared]);
    f.add("blk.1.ffn_up_shexp.weight", &[64, shared]);
    f.add("blk.1.ffn_down_shexp.weight", &[shared, 64]);
}

/// A layer of attention, and one of experts that read fewer values.
fn nemotron_h_moe(f: &mut File) {
    f.set("attention.layer_norm_epsilon", Val::F32(1e-5));
    f.set("attention.key_length", Val::U32(16));
    f.set("attention.value_length", Val::U32(16));
    f.set("attention.head_count_kv", vec![2u32, 0]);
    f.set("feed_forward_length", vec![0u32, 24]);
    for (key, value) in [
        ("conv_kernel", 4),
        ("inner_size", 64),
        ("state_size", 16),
        ("time_step_rank", 4),
        ("group_count", 2),
    ] {
        f.set(&format!("ssm.{key}"), Val::U32(value));
    }
    f.set("expert_count", Val::U32(6));
    f.set("expert_used_count", Val::U32(2));
    f.set("expert_feed_forward_length", vec![0u32, 24]);
    f.set("expert_shared_feed_forward_length", Val::U32(32));
    f.set("moe_latent_size", Val::U32(20));
    for name in ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"] {
        for l in 0..2 {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        f.remove(&format!("blk.1.{name}.weight"));
    }
    for (name, dims) in [
        ("ffn_gate_inp.weight", &[64, 6][..]),
        ("exp_probs_b.bias", &[6]),
        ("ffn_latent_down.weight", &[64, 20]),
        ("ffn_latent_up.weight", &[20, 64]),
        ("ffn_up_exps.weight", &[20, 24, 6]),
        ("ffn_down_exps.weight", &[24, 20, 6]),
        ("ffn_up_shexp.weight", &[64, 32]),
        ("ffn_down_shexp.weight", &[32, 64]),
    ] {
        f.add(&format!("blk.1.{name}"), dims);
    }
}

fn gemma4(f: &mut File) {
    norms(
        f,
        &[
            ("attn_q_norm.weight", 16),
            ("attn_k_norm.weight", 16),
            ("post_attention_norm.weight", 64),
            ("post_ffw_norm.weight", 64),
        ],
    );
    f.set("attention.sliding_window", Val::U32(16));
    f.set("attention.sliding_window_pattern", vec![true, false]);
}

fn gpt_oss(f: &mut File) {
    norms(
        f,
        &[
            ("post_attention_norm.weight", 64),
            ("attn_output.bias", 64),
            ("attn_sinks.weight", 4),
        ],
    );
    with_experts(f);
    f.set("attention.sliding_window", Val::U32(16));
    for l in 0..2 {
        f.remove(&format!("blk.{l}.ffn_norm.weight"));
    }
}

fn bert(f: &mut File) {
    norms(
        f,
        &[
            ("attn_output_norm.weight", 64),
            ("attn_output_norm.bias", 64),
            ("layer_output_norm.weight", 64),
            ("layer_output_norm.bias", 64),
        ],
    );
    for name in ["output_norm.weight", "output.weight"] {
        f.remove(name);
    }
    for l in 0..2 {
        for name in ["attn_norm", "ffn_norm", "ffn_gate"] {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
    }
    f.add("position_embd.weight", &[64, 512]);
    f.add("token_types.weight", &[64, 2]);
    f.add("token_embd_norm.weight", &[64]);
    f.add("token_embd_norm.bias", &[64]);
    f.set("tokenizer.ggml.token_type_count", Val::U32(2));
    f.set("attention.causal", Val::Bool(false));
    f.set("pooling_type", Val::U32(2));
    f.unset("attention.layer_norm_rms_epsilon");
    f.set("attention.layer_norm_epsilon", Val::F32(1e-12));
}

fn gemma_embedding(f: &mut File) {
    norms(
        f,
        &[
            ("attn_q_norm.weight", 16),
            ("attn_k_norm.weight", 16),
            ("post_attention_norm.weight", 64),
            ("post_ffw_norm.weight", 64),
        ],
    );
    f.set("attention.sliding_window", Val::U32(16));
    f.set("pooling_type", Val::U32(1));
    for (key, n) in [("2_feat_in", 64), ("2_feat_out", 96), ("3_feat_in", 96)] {
        f.set(&format!("dense_{key}"), Val::U32(n));
    }
    f.set("dense_3_feat_out", Val::U32(64));
    f.add("dense_2.weight", &[64, 96]);
    f.add("dense_3.weight", &[96, 64]);
}

fn starcoder2(f: &mut File) {
    norms(f, &[("attn_norm.bias", 64), ("ffn_norm.bias", 64)]);
    f.unset("attention.layer_norm_rms_epsilon");
    f.set("attention.layer_norm_epsilon", Val::F32(1e-5));
    for l in 0..2 {
        f.remove(&format!("blk.{l}.ffn_gate.weight"));
    }
}

fn phi3(f: &mut File) {
    for l in 0..2 {
        f.remove(&format!("blk.{l}.ffn_gate.weight"));
        f.remove(&format!("blk.{l}.ffn_up.weight"));
        f.add(&format!("blk.{l}.ffn_up.weight"), &[64, 192]);
    }
    f.add("rope_factors_short.weight", &[8]);
    f.add("rope_factors_long.weight", &[8]);
}
