//! Selective scans, time mixing, scores that fall with distance, and feed-forward blocks of other
//! functions and norms.

use super::check;
use super::files::norms;
use crate::support::{File, Val};
use octavo_fixtures::tiny::N_FF;

/// The architectures of this file.
pub(super) const ARCHITECTURES: [&str; 8] = [
    "apertus", "bitnet", "bloom", "mpt", "mamba", "jamba", "plamo2", "rwkv7",
];

/// Makes a valid file of an architecture from one of the usual tensors.
pub(super) fn valid(arch: &str, f: &mut File) {
    if ["bloom", "mpt", "rwkv7"].contains(&arch) {
        f.unset("attention.layer_norm_rms_epsilon");
        f.set("attention.layer_norm_epsilon", Val::F32(1e-5));
    }
    match arch {
        "apertus" => {
            norms(f, &[("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)]);
            without(f, 0..2, &["ffn_gate"]);
            for (name, value) in [("alpha_p", 0.5), ("alpha_n", 0.25), ("beta", 0.5)] {
                f.kv.push((format!("xielu.{name}"), Val::F32(value)));
            }
            f.kv.push(("xielu.eps".to_owned(), vec![-1e-6f32; 2].into()));
        }
        "bitnet" => {
            f.remove("output.weight");
            norms(
                f,
                &[("attn_sub_norm.weight", 64), ("ffn_sub_norm.weight", N_FF)],
            );
            f.add("blk.1.ffn_down.scale", &[1]);
        }
        "bloom" => {
            without(f, 0..2, &["ffn_gate"]);
            f.add("token_embd_norm.weight", &[64]);
            f.add("token_embd_norm.bias", &[64]);
        }
        "mpt" => {
            without(f, 0..2, &["ffn_gate"]);
            f.set("attention.max_alibi_bias", Val::F32(8.0));
            f.set("attention.clamp_kqv", Val::F32(4.0));
        }
        "mamba" => {
            f.set("feed_forward_length", Val::U32(0));
            f.set("attention.head_count", Val::U32(0));
            f.unset("attention.head_count_kv");
            without(f, 0..2, &ATTENTION);
            without(f, 0..2, &["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]);
            sizes_of_mamba(f);
            (0..2).for_each(|l| scan(f, l));
        }
        "jamba" => {
            f.set("attention.head_count_kv", vec![0u32, 2]);
            without(f, 0..1, &ATTENTION);
            sizes_of_mamba(f);
            scan(f, 0);
            for (name, n) in [("dt", 8), ("b", 4), ("c", 4)] {
                f.add(&format!("blk.0.ssm_{name}_norm.weight"), &[n]);
            }
        }
        "plamo2" => plamo2(f),
        _ => rwkv7(f),
    }
}

const ATTENTION: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_output"];

fn without(f: &mut File, layers: std::ops::Range<u32>, names: &[&str]) {
    for l in layers {
        for name in names {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
    }
}

fn sizes_of_mamba(f: &mut File) {
    for (key, value) in [
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 4),
        ("ssm.time_step_rank", 8),
    ] {
        f.set(key, Val::U32(value));
    }
}

/// A selective scan of 128 values with 4 numbers each.
fn scan(f: &mut File, l: u32) {
    for (name, dims) in [
        ("ssm_in.weight", &[64, 256][..]),
        ("ssm_conv1d.weight", &[4, 128]),
        ("ssm_conv1d.bias", &[128]),
        ("ssm_x.weight", &[128, 16]),
        ("ssm_dt.weight", &[8, 128]),
        ("ssm_dt.bias", &[128]),
        ("ssm_a", &[4, 128]),
        ("ssm_d", &[128]),
        ("ssm_out.weight", &[128, 64]),
    ] {
        f.add(&format!("blk.{l}.{name}"), dims);
    }
}

/// Four heads of 32 values, and a layer of attention.
fn plamo2(f: &mut File) {
    f.set("attention.head_count_kv", vec![0u32, 2]);
    sizes_of_mamba(f);
    f.set("ssm.time_step_rank", Val::U32(4));
    f.set("ssm.group_count", Val::U32(0));
    without(f, 0..1, &ATTENTION);
    without(f, 0..2, &["ffn_gate"]);
    for l in 0..2 {
        f.tensor(&format!("blk.{l}.ffn_up.weight")).dims = vec![64, 2 * u64::from(N_FF)];
        f.add(&format!("blk.{l}.post_attention_norm"), &[64]);
        f.add(&format!("blk.{l}.post_ffw_norm"), &[64]);
    }
    for (name, dims) in [
        ("0.ssm_in.weight", &[64, 256][..]),
        ("0.ssm_conv1d.weight", &[4, 128]),
        ("0.ssm_x.weight", &[128, 72]),
        ("0.ssm_dt.weight", &[64, 4]),
        ("0.ssm_dt.bias", &[4]),
        ("0.ssm_a", &[4]),
        ("0.ssm_d", &[4]),
        ("0.ssm_out.weight", &[128, 64]),
        ("0.ssm_dt_norm", &[64]),
        ("0.ssm_b_norm", &[4]),
        ("0.ssm_c_norm", &[4]),
        ("1.attn_q_norm.weight", &[16, 4]),
        ("1.attn_k_norm.weight", &[16, 2]),
    ] {
        f.add(&format!("blk.{name}"), dims);
    }
}

/// Two heads of 32 values.
fn rwkv7(f: &mut File) {
    f.set("attention.head_count", Val::U32(0));
    f.unset("attention.head_count_kv");
    f.set("wkv.head_size", Val::U32(32));
    for (name, rank) in [
        ("decay", 4),
        ("iclr", 6),
        ("value_residual_mix", 5),
        ("gate", 8),
    ] {
        f.set(&format!("attention.{name}_lora_rank"), Val::U32(rank));
    }
    f.add("token_embd_norm.weight", &[64]);
    f.add("token_embd_norm.bias", &[64]);
    without(f, 0..2, &ATTENTION);
    without(f, 0..2, &["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]);
    for l in 0..2 {
        let mut add = |name: &str, dims: &[u32]| {
            f.add(&format!("blk.{l}.{name}.weight"), dims);
        };
        for name in ["w0", "a0", "v0", "k_k", "k_a", "r_k", "ln"] {
            add(&format!("time_mix_{name}"), &[64]);
        }
        let of_values = if l == 0 { 6 } else { 5 };
        for (letter, rank) in [("w", 4), ("a", 6), ("v", of_values), ("g", 8)] {
            add(&format!("time_mix_{letter}1"), &[64, rank]);
            add(&format!("time_mix_{letter}2"), &[rank, 64]);
        }
        for name in ["receptance", "key", "value", "output"] {
            add(&format!("time_mix_{name}"), &[64, 64]);
        }
        add("time_mix_lerp_fused", &[64, 1, 1, 6]);
        add("channel_mix_lerp_k", &[64, 1, 1]);
        add("channel_mix_key", &[64, N_FF]);
        add("channel_mix_value", &[N_FF, 64]);
        add("attn_norm_2", &[64]);
        f.add(&format!("blk.{l}.time_mix_ln.bias"), &[64]);
    }
}

#[test]
fn functions_and_norms_of_feed_forward_blocks() {
    check(
        "apertus",
        &[
            (
                "no coefficient of the line",
                |f| f.kv.retain(|(key, _)| key != "xielu.beta"),
                &["missing key xielu.beta"],
            ),
            (
                "coefficients of other layers",
                |f| {
                    f.kv.retain(|(key, _)| key != "xielu.eps");
                    f.kv.push(("xielu.eps".to_owned(), vec![-1e-6f32; 3].into()));
                },
                &["xielu.eps", "one value per layer (2)", "array of 3"],
            ),
            (
                "a coefficient in words",
                |f| {
                    f.kv.retain(|(key, _)| key != "xielu.alpha_n");
                    f.kv.push(("xielu.alpha_n".to_owned(), "half".into()));
                },
                &["xielu.alpha_n", "finite numbers", "\"half\""],
            ),
            (
                "a gate",
                |f| f.add("blk.0.ffn_gate.weight", &[64, N_FF]),
                &["blk.0.ffn_gate.weight", "no such tensor"],
            ),
        ],
    );
    check(
        "bitnet",
        &[
            (
                "no norm of attention's result",
                |f| f.remove("blk.1.attn_sub_norm.weight"),
                &["missing tensor blk.1.attn_sub_norm.weight"],
            ),
            (
                "a norm as wide as the embedding",
                |f| f.tensor("blk.0.ffn_sub_norm.weight").dims = vec![64],
                &["blk.0.ffn_sub_norm.weight", "[96]", "[64]"],
            ),
            (
                "an output of its own",
                |f| f.add("output.weight", &[64, 7]),
                &["output.weight", "no such tensor"],
            ),
        ],
    );
}

#[test]
fn scores_that_fall_with_distance() {
    check(
        "bloom",
        &[(
            "embeddings without a norm",
            |f| f.remove("token_embd_norm.weight"),
            &["missing tensor token_embd_norm.weight"],
        )],
    );
    check(
        "mpt",
        &[
            (
                "scores that rise",
                |f| f.set("attention.max_alibi_bias", Val::F32(-8.0)),
                &["mpt.attention.max_alibi_bias", "from 0 on", "got -8"],
            ),
            (
                "factors of an activation",
                |f| f.add("blk.0.ffn.act.scales", &[N_FF]),
                &["blk.0.ffn.act.scales", "no such tensor"],
            ),
        ],
    );
}

#[test]
fn selective_scans() {
    check(
        "mamba",
        &[
            (
                "no rank of time steps",
                |f| f.unset("ssm.time_step_rank"),
                &["missing key mamba.ssm.time_step_rank"],
            ),
            (
                "a state of no end",
                |f| f.set("ssm.state_size", Val::U32(1 << 24)),
                &["mamba.ssm.state_size", "state", "got 16777216"],
            ),
            (
                "a number for a flag",
                |f| f.set("ssm.dt_b_c_rms", Val::U32(1)),
                &["mamba.ssm.dt_b_c_rms", "true or false", "got 1"],
            ),
            (
                "rates of heads",
                |f| f.tensor("blk.1.ssm_a").dims = vec![1, 128],
                &["blk.1.ssm_a", "[4, 128]", "[1, 128]"],
            ),
            (
                "a convolution without a bias",
                |f| f.remove("blk.0.ssm_conv1d.bias"),
                &["missing tensor blk.0.ssm_conv1d.bias"],
            ),
        ],
    );
    check(
        "jamba",
        &[
            (
                "no norm of time steps",
                |f| f.remove("blk.0.ssm_dt_norm.weight"),
                &["missing tensor blk.0.ssm_dt_norm.weight"],
            ),
            (
                "a router of no experts",
                |f| f.add("blk.1.ffn_gate_inp.weight", &[64, 6]),
                &["blk.1.ffn_gate_inp.weight"],
            ),
        ],
    );
    check(
        "plamo2",
        &[
            (
                "groups",
                |f| f.set("ssm.group_count", Val::U32(1)),
                &["plamo2.ssm.group_count", "got 1"],
            ),
            (
                "heads of unequal width",
                |f| f.set("ssm.time_step_rank", Val::U32(3)),
                &["plamo2.ssm.inner_size", "3 heads", "got 128"],
            ),
            (
                "a norm for all heads",
                |f| f.tensor("blk.1.attn_q_norm.weight").dims = vec![16],
                &["blk.1.attn_q_norm.weight", "[16, 4]", "[16]"],
            ),
        ],
    );
}

#[test]
fn time_mixing() {
    check(
        "rwkv7",
        &[
            (
                "heads that do not fill the width",
                |f| f.set("wkv.head_size", Val::U32(48)),
                &["rwkv7.wkv.head_size", "embedding_length 64", "got 48"],
            ),
            (
                "one row before",
                |f| f.set("token_shift_count", Val::U32(1)),
                &["rwkv7.token_shift_count", "from 2 to 2", "got 1"],
            ),
            (
                "no rank of gates",
                |f| f.unset("attention.gate_lora_rank"),
                &["missing key rwkv7.attention.gate_lora_rank"],
            ),
            (
                "five shares",
                |f| f.tensor("blk.1.time_mix_lerp_fused.weight").dims = vec![64, 1, 1, 5],
                &["blk.1.time_mix_lerp_fused.weight", "[64, 1, 1, 6]"],
            ),
            (
                "a second layer like the first",
                |f| f.tensor("blk.1.time_mix_v1.weight").dims = vec![64, 6],
                &["blk.1.time_mix_v1.weight", "[64, 5]", "[64, 6]"],
            ),
            (
                "no factors of a head's own values",
                |f| f.remove("blk.0.time_mix_r_k.weight"),
                &["missing tensor blk.0.time_mix_r_k.weight"],
            ),
        ],
    );
}
