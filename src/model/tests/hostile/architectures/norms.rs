//! Architectures with other norms, sinks in every layer, limits, and parallel blocks by a key.

use super::super::broken;
use super::check;
use super::files::{norms, with_experts};
use crate::support::{File, Val};

/// The architectures of this file.
pub(super) const ARCHITECTURES: [&str; 6] = [
    "granite_swa",
    "phimoe",
    "gptneox",
    "stablelm",
    "olmo",
    "gpt2",
];

/// Makes a valid file of an architecture from one of the usual tensors.
pub(super) fn valid(arch: &str, f: &mut File) {
    if ["gptneox", "stablelm", "olmo", "gpt2"].contains(&arch) {
        f.unset("attention.layer_norm_rms_epsilon");
        f.set("attention.layer_norm_epsilon", Val::F32(1e-5));
    }
    match arch {
        "granite_swa" => {
            f.set("logit_scale", Val::F32(3.0));
            f.set("attention.sliding_window", Val::U32(16));
            f.set("attention.sliding_window_pattern", vec![true, false]);
            norms(f, &[("attn_sinks.weight", 4)]);
        }
        "phimoe" => {
            with_experts(f);
            f.set("feed_forward_length", Val::U32(24));
            norms(f, &[("attn_norm.bias", 64), ("ffn_norm.bias", 64)]);
            f.add("output_norm.bias", &[64]);
            let rows = f.tensor("token_embd.weight").dims[1] as u32;
            f.add("output.bias", &[rows]);
        }
        "gpt2" => {
            f.add("position_embd.weight", &[64, 512]);
            for l in 0..2 {
                f.remove(&format!("blk.{l}.ffn_gate.weight"));
            }
        }
        "gptneox" => {
            f.set("use_parallel_residual", Val::Bool(true));
            for l in 0..2 {
                f.remove(&format!("blk.{l}.ffn_gate.weight"));
            }
        }
        "stablelm" => norms(f, &[("attn_norm.bias", 64), ("ffn_norm.bias", 64)]),
        _ => {
            f.set("attention.clamp_kqv", Val::F32(8.0));
            f.remove("output_norm.weight");
            for l in 0..2 {
                f.remove(&format!("blk.{l}.attn_norm.weight"));
                f.remove(&format!("blk.{l}.ffn_norm.weight"));
            }
        }
    }
}

#[test]
fn norms_and_biases() {
    check(
        "phimoe",
        &[
            (
                "a norm without a bias",
                |f| f.remove("blk.1.ffn_norm.bias"),
                &["missing tensor blk.1.ffn_norm.bias"],
            ),
            (
                "logits without a bias",
                |f| f.remove("output.bias"),
                &["missing tensor output.bias"],
            ),
        ],
    );
    check(
        "stablelm",
        &[(
            "blocks in parallel",
            |f| f.remove("blk.0.ffn_norm.weight"),
            &["missing tensor blk.0.ffn_norm.weight"],
        )],
    );
    check(
        "olmo",
        &[
            (
                "a limit below zero",
                |f| f.set("attention.clamp_kqv", Val::F32(-1.0)),
                &["olmo.attention.clamp_kqv", "from 0 on", "got -1"],
            ),
            (
                "a norm with weights",
                |f| f.add("output_norm.weight", &[64]),
                &["output_norm.weight", "no such tensor"],
            ),
        ],
    );
}

#[test]
fn arrangements() {
    check(
        "granite_swa",
        &[
            (
                "a layer without sinks",
                |f| f.remove("blk.1.attn_sinks.weight"),
                &["missing tensor blk.1.attn_sinks.weight"],
            ),
            (
                "flags of other layers",
                |f| f.set("attention.rope_pattern", vec![true]),
                &[
                    "granite_swa.attention.rope_pattern",
                    "2 layers",
                    "array of 1",
                ],
            ),
            (
                "one flag for all layers",
                |f| f.set("attention.rope_pattern", Val::Bool(true)),
                &[
                    "granite_swa.attention.rope_pattern",
                    "a flag for each layer",
                    "true",
                ],
            ),
        ],
    );
    check(
        "gptneox",
        &[
            (
                "nothing about parallel blocks",
                |f| f.unset("use_parallel_residual"),
                &["missing key gptneox.use_parallel_residual"],
            ),
            (
                "a number of parallel blocks",
                |f| f.set("use_parallel_residual", Val::U32(1)),
                &["gptneox.use_parallel_residual", "true or false", "got 1"],
            ),
        ],
    );
    check(
        "gpt2",
        &[
            (
                "no positions",
                |f| f.remove("position_embd.weight"),
                &["missing tensor position_embd.weight", "[64, 512]"],
            ),
            (
                "fewer positions than the context has",
                |f| f.tensor("position_embd.weight").dims = vec![64, 256],
                &["position_embd.weight", "[64, 512]", "[64, 256]"],
            ),
        ],
    );
    broken(
        File::new("baichuan", 2),
        &(
            "positions by layers",
            |_| (),
            &["baichuan.block_count = 2", "32 layers"],
        ),
    );
}
