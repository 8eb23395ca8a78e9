//! Features of architectures with recurrent layers: states, convolutions, gates of attention.

mod files;

use super::{Row, broken};
use crate::support::{Load, Val};
use files::valid;

const ARCHITECTURES: [&str; 6] = [
    "qwen35",
    "qwen3next",
    "mamba2",
    "falcon-h1",
    "granitehybrid",
    "lfm2",
];

fn check(arch: &'static str, rows: &[Row]) {
    valid(arch).load().unwrap_or_else(|e| panic!("{arch}: {e}"));
    for row in rows {
        broken(valid(arch), row);
    }
}

#[test]
fn sizes_of_states() {
    check(
        "qwen35",
        &[
            (
                "no heads",
                |f| f.set("ssm.time_step_rank", Val::U32(0)),
                &["qwen35.ssm.time_step_rank", "from 1", "got 0"],
            ),
            (
                "more keys than heads",
                |f| f.set("ssm.group_count", Val::U32(8)),
                &["qwen35.ssm.group_count", "from 1 to 4", "got 8"],
            ),
            (
                "keys that heads do not share alike",
                |f| f.set("ssm.group_count", Val::U32(3)),
                &["qwen35.ssm.group_count", "divisor of the 4 heads", "got 3"],
            ),
            (
                "heads that do not fill the width",
                |f| f.set("ssm.inner_size", Val::U32(65)),
                &["qwen35.ssm.inner_size", "4 heads of 16 values", "got 65"],
            ),
            (
                "a state beyond memory",
                |f| {
                    f.set("ssm.state_size", Val::U32(1 << 20));
                    f.set("ssm.inner_size", Val::U32(4 << 20));
                },
                &["qwen35.ssm.state_size", "at most 67108864", "got 1048576"],
            ),
            (
                "a kernel of nothing",
                |f| f.set("ssm.conv_kernel", Val::U32(0)),
                &["qwen35.ssm.conv_kernel", "from 1 to 64", "got 0"],
            ),
            (
                "a kernel without an end",
                |f| f.set("ssm.conv_kernel", Val::U32(u32::MAX)),
                &["qwen35.ssm.conv_kernel", "got 4294967295"],
            ),
            (
                "no layer of attention at any time",
                |f| f.set("full_attention_interval", Val::U32(0)),
                &["qwen35.full_attention_interval", "from 1", "got 0"],
            ),
            (
                "flags of other layers",
                |f| f.set("attention.recurrent_layers", vec![true]),
                &["qwen35.attention.recurrent_layers", "each of 2 layers"],
            ),
            (
                "no sections",
                |f| f.unset("rope.dimension_sections"),
                &["missing key qwen35.rope.dimension_sections"],
            ),
            (
                "sections of nothing",
                |f| f.set("rope.dimension_sections", vec![0u32, 0, 0, 0]),
                &["qwen35.rope.dimension_sections", "four counts"],
            ),
            (
                "sections in words",
                |f| f.set("rope.dimension_sections", "three"),
                &["qwen35.rope.dimension_sections", "\"three\""],
            ),
        ],
    );
}

#[test]
fn sizes_of_states_and_kernels_elsewhere() {
    check(
        "mamba2",
        &[
            (
                "heads of unequal width",
                |f| f.set("ssm.inner_size", Val::U32(66)),
                &["mamba2.ssm.inner_size", "equal width", "got 66"],
            ),
            (
                "no state",
                |f| f.unset("ssm.state_size"),
                &["missing key mamba2.ssm.state_size"],
            ),
        ],
    );
    check(
        "lfm2",
        &[
            (
                "no kernel",
                |f| f.unset("shortconv.l_cache"),
                &["missing key lfm2.shortconv.l_cache"],
            ),
            (
                "heads for no keys",
                |f| f.set("attention.head_count_kv", vec![0u32, 3]),
                &["lfm2.attention.head_count_kv", "divisor of", "got 3"],
            ),
        ],
    );
}

#[test]
fn tensors_of_states() {
    check(
        "qwen35",
        &[
            (
                "no convolution",
                |f| f.remove("blk.0.ssm_conv1d.weight"),
                &["missing tensor blk.0.ssm_conv1d.weight", "[4, 128]"],
            ),
            (
                "a convolution of other columns",
                |f| f.tensor("blk.0.ssm_conv1d.weight").dims = vec![4, 127],
                &["blk.0.ssm_conv1d.weight", "[4, 128]", "[4, 127]"],
            ),
            (
                "no rates",
                |f| f.remove("blk.0.ssm_alpha.weight"),
                &["missing tensor blk.0.ssm_alpha.weight", "[64, 4]"],
            ),
            (
                "queries without gates",
                |f| f.tensor("blk.1.attn_q.weight").dims = vec![64, 64],
                &["blk.1.attn_q.weight", "[64, 128]", "[64, 64]"],
            ),
            (
                "attention in a layer with a state",
                |f| f.add("blk.0.attn_q.weight", &[64, 128]),
                &["blk.0.attn_q.weight", "no such tensor"],
            ),
            (
                "a rate that is no number",
                |f| f.tensor("blk.0.ssm_a").values = Some(vec![f32::NAN; 4]),
                &["blk.0.ssm_a", "finite"],
            ),
        ],
    );
    check(
        "qwen3next",
        &[
            (
                "gates and what they gate of other experts",
                |f| f.tensor("blk.0.ffn_gate_up_exps.weight").dims = vec![64, 48, 5],
                &[
                    "blk.0.ffn_gate_up_exps.weight",
                    "[64, 48, 6]",
                    "[64, 48, 5]",
                ],
            ),
            (
                "one matrix of other rows",
                |f| f.tensor("blk.0.ssm_in.weight").dims = vec![64, 191],
                &["blk.0.ssm_in.weight", "[64, 192]", "[64, 191]"],
            ),
        ],
    );
}

#[test]
fn tensors_of_mambas() {
    check(
        "mamba2",
        &[
            (
                "rates in a row",
                |f| f.tensor("blk.0.ssm_a").dims = vec![4],
                &["blk.0.ssm_a", "[1, 4]", "[4]"],
            ),
            (
                "no norm",
                |f| f.remove("blk.1.ssm_norm.weight"),
                &["missing tensor blk.1.ssm_norm.weight", "[32, 2]"],
            ),
        ],
    );
    check(
        "falcon-h1",
        &[(
            "a norm of its usual name",
            |f| {
                f.remove("blk.0.ffn_norm");
                f.add("blk.0.ffn_norm.weight", &[64]);
            },
            &["missing tensor blk.0.ffn_norm "],
        )],
    );
}

/// Loading returns a result, never a panic, whichever single key or tensor is dropped or altered.
#[test]
fn no_single_change_panics() {
    for arch in ARCHITECTURES {
        let file = valid(arch);
        file.load().unwrap_or_else(|e| panic!("{arch}: {e}"));
        super::bend_everything(&file);
    }
}
