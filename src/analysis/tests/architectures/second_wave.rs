//! The same for architectures of the second folder: gates, limits, other widths, and delta nets
//! with decays by dimension of keys.

use super::{Case, Verdict, backend, case, compare, parts, parts_from_oracle};
use octavo_analysis::diff::OracleExecution;
use octavo_fixtures::shared;
use octavo_kernels::Isa;

const MODELS: [&str; 23] = [
    "afmoe",
    "apertus",
    "bitnet",
    "bloom",
    "deepseek32",
    "glm-dsa",
    "gpt2",
    "gptneox",
    "granite_swa",
    "jamba",
    "kimi-linear",
    "llama4",
    "mamba",
    "mimo2",
    "minimax-m2",
    "mpt",
    "nemotron_h_moe",
    "olmo",
    "phimoe",
    "plamo2",
    "rwkv7",
    "smallthinker",
    "step35",
];

fn named(name: &str) -> Option<Case> {
    shared(&format!("arch2/models/{name}-F32.gguf")).map(case)
}

#[test]
fn these_are_within_their_bounds_of_the_oracle() {
    for name in MODELS {
        let Some(Case { gguf, tokens, .. }) = named(name) else {
            return;
        };
        for isa in [Isa::Scalar, Isa::best()] {
            let mut oracle = OracleExecution::new(gguf.clone()).expect("a model");
            let mut engine = backend(&gguf, isa);
            let tokens = (&tokens[..]).into();
            let c = compare(&mut oracle, &mut engine, tokens, &mut |_, _| {});
            let c = c.unwrap_or_else(|e| panic!("{name}: {e}"));
            let first = c.first_divergence;
            assert_eq!(c.verdict, Verdict::Within, "{name} {isa}: {first:?}");
        }
    }
}

/// Each of the new parts with another weight is found at the value that it makes.
#[test]
fn another_weight_is_found() {
    for (model, tensor, at) in [
        ("kimi-linear", "blk.0.ssm_dt.bias", "kda_g1-0"),
        ("deepseek32", "blk.1.indexer.attn_q_b.weight", "indexer_q-1"),
        (
            "deepseek32",
            "blk.0.indexer.proj.weight",
            "indexer_weights-0",
        ),
        ("glm-dsa", "blk.2.indexer.k_norm.bias", "indexer_k-2"),
        ("afmoe", "blk.1.attn_gate.weight", "attn_gate_proj-1"),
        ("step35", "blk.1.attn_gate.weight", "attn_gate-1"),
        ("mimo2", "blk.1.attn_v.weight", "Vcur-1"),
        ("phimoe", "blk.0.ffn_norm.bias", "ffn_norm-0"),
        ("gpt2", "position_embd.weight", "inpL"),
        ("bitnet", "blk.1.attn_sub_norm.weight", "attn_sub_norm-1"),
        ("bitnet", "blk.0.ffn_sub_norm.weight", "ffn_sub_norm-0"),
        ("jamba", "blk.0.ssm_dt_norm.weight", "ffn_norm-0"),
        ("plamo2", "blk.0.ssm_d", "mamba_y_add_d-0"),
        ("plamo2", "blk.1.attn_q_norm.weight", "Qcur_normed-1"),
        ("rwkv7", "blk.0.time_mix_r_k.weight", "ffn_inp-0"),
        ("rwkv7", "blk.0.time_mix_lerp_fused.weight", "norm_w"),
        ("rwkv7", "blk.1.time_mix_v0.weight", "norm_w"),
        ("rwkv7", "blk.0.channel_mix_lerp_k.weight", "l_out-0"),
    ] {
        let Some(case) = named(model) else {
            return;
        };
        let found = parts(&case, &[], |name, values| {
            if name == tensor {
                values.iter_mut().for_each(|x| *x = 1.5 * *x + 0.25);
            }
        });
        assert_eq!(found, at, "{model}, {tensor}");
    }
}

/// Another key than the best in one row is found, although every choice is possible in general.
#[test]
fn another_key_is_found() {
    for (model, layer, at) in [
        ("deepseek32", 1, "selected_keys-1"),
        ("glm-dsa", 0, "selected_keys-0"),
    ] {
        let Some(case) = named(model) else {
            return;
        };
        let found = parts_from_oracle(&case, move |tap, width, values| {
            if tap.name == "selected_keys" && tap.layer == Some(layer) {
                let row = &mut values[10 * width..][..width];
                let missing = (0..=10u8).map(f64::from).find(|p| !row.contains(p));
                row[0] = missing.expect("fewer are chosen");
                row.sort_by(f64::total_cmp);
            }
        });
        assert_eq!(found, at, "{model}");
    }
}
