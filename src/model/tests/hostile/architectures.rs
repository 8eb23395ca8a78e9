//! Features of some architectures only: windows, factors, experts, sinks, other norms.

mod files;
mod gates;
mod mixtures;
mod norms;
mod recurrences;

use super::{Row, broken};
use crate::support::{Load, Val};
use files::valid;

const ARCHITECTURES: [&str; 13] = [
    "bert",
    "gemma-embedding",
    "gemma2",
    "gemma4",
    "qwen3moe",
    "minimax-m2",
    "bailingmoe2",
    "exaone-moe",
    "nemotron_h_moe",
    "gpt-oss",
    "granite",
    "starcoder2",
    "phi3",
];

fn check(arch: &'static str, rows: &[Row]) {
    valid(arch).load().unwrap_or_else(|e| panic!("{arch}: {e}"));
    for row in rows {
        broken(valid(arch), row);
    }
}

#[test]
fn windows() {
    check(
        "gemma2",
        &[
            (
                "none",
                |f| f.set("attention.sliding_window", Val::U32(0)),
                &["gemma2.attention.sliding_window", "from 1", "got 0"],
            ),
            (
                "negative",
                |f| f.set("attention.sliding_window", Val::I32(-1)),
                &["gemma2.attention.sliding_window", "got -1"],
            ),
            (
                "flags of other layers",
                |f| f.set("attention.sliding_window_pattern", vec![true]),
                &["sliding_window_pattern", "2 layers", "array of 1"],
            ),
            (
                "a pattern in words",
                |f| f.set("attention.sliding_window_pattern", "every other"),
                &["sliding_window_pattern", "\"every other\""],
            ),
            (
                "a cap of nothing",
                |f| f.set("attn_logit_softcapping", Val::F32(0.0)),
                &["gemma2.attn_logit_softcapping", "above 0", "got 0"],
            ),
            (
                "a cap that is no number",
                |f| f.set("final_logit_softcapping", Val::F32(f32::NAN)),
                &["gemma2.final_logit_softcapping", "NaN"],
            ),
            (
                "no norm behind attention",
                |f| f.remove("blk.1.post_attention_norm.weight"),
                &["missing tensor blk.1.post_attention_norm.weight"],
            ),
        ],
    );
}

#[test]
fn layers_of_two_kinds() {
    check(
        "gemma4",
        &[
            (
                "no pattern",
                |f| f.unset("attention.sliding_window_pattern"),
                &["missing key gemma4.attention.sliding_window_pattern"],
            ),
            (
                "heads of an odd width",
                |f| f.set("attention.key_length_swa", Val::U32(15)),
                &["gemma4.attention.key_length_swa", "even", "got 15"],
            ),
            (
                "values of another width",
                |f| f.set("attention.value_length_swa", Val::U32(8)),
                &["gemma4.attention.key_length_swa", "value_length_swa (8)"],
            ),
            (
                "heads that no matrix has",
                |f| f.set("attention.key_length_swa", Val::U32(32)),
                &["blk.0.attn_q.weight", "[64, 64]"],
            ),
            (
                "keys of a layer of the other kind",
                |f| f.set("attention.shared_kv_layers", Val::U32(1)),
                &["gemma4.attention.shared_kv_layers", "layer 1", "got 1"],
            ),
            (
                "no layer with keys",
                |f| f.set("attention.shared_kv_layers", Val::U32(2)),
                &["gemma4.attention.shared_kv_layers", "got 2"],
            ),
            (
                "inputs of layers that overflow",
                |f| f.set("embedding_length_per_layer_input", Val::U32(u32::MAX)),
                &["gemma4.embedding_length_per_layer_input", "got 4294967295"],
            ),
            (
                "inputs of layers without a table",
                |f| f.set("embedding_length_per_layer_input", Val::U32(8)),
                &["missing tensor per_layer_token_embd.weight", "[16, 7]"],
            ),
            (
                "more dimensions that turn than there are",
                |f| f.set("rope.dimension_count_swa", Val::U32(18)),
                &["gemma4.rope.dimension_count_swa", "got 18"],
            ),
        ],
    );
}

#[test]
fn factors() {
    check(
        "granite",
        &[
            (
                "no factor of logits",
                |f| f.unset("logit_scale"),
                &["missing key granite.logit_scale"],
            ),
            (
                "a factor of nothing",
                |f| f.set("logit_scale", Val::F32(0.0)),
                &["granite.logit_scale", "other than 0"],
            ),
            (
                "an endless factor",
                |f| f.set("embedding_scale", Val::F32(f32::INFINITY)),
                &["granite.embedding_scale", "finite"],
            ),
            (
                "turning in words",
                |f| f.set("rope.scaling.finetuned", "no"),
                &["granite.rope.scaling.finetuned", "true or false"],
            ),
        ],
    );
}

#[test]
fn experts() {
    check(
        "qwen3moe",
        &[
            (
                "no experts",
                |f| f.set("expert_count", Val::U32(0)),
                &["qwen3moe.expert_count", "from 1", "got 0"],
            ),
            (
                "no number of experts",
                |f| f.unset("expert_count"),
                &["missing key qwen3moe.expert_count"],
            ),
            (
                "more used than there are",
                |f| f.set("expert_used_count", Val::U32(7)),
                &["qwen3moe.expert_used_count", "from 1 to 6", "got 7"],
            ),
            (
                "none used",
                |f| f.set("expert_used_count", Val::U32(0)),
                &["qwen3moe.expert_used_count", "got 0"],
            ),
            (
                "more than anybody has",
                |f| f.set("expert_count", Val::U32(u32::MAX)),
                &["qwen3moe.expert_count", "got 4294967295"],
            ),
            (
                "no width",
                |f| f.set("expert_feed_forward_length", Val::U32(0)),
                &["qwen3moe.expert_feed_forward_length", "got 0"],
            ),
            (
                "layers that use unequal numbers",
                |f| f.set("expert_used_count", vec![2u32, 3]),
                &["qwen3moe.expert_used_count = [2,3]", "all layers"],
            ),
            (
                "layers of unequal widths",
                |f| f.set("expert_feed_forward_length", vec![24u32, 32]),
                &["expert_feed_forward_length = [24,32]", "all layers"],
            ),
            (
                "numbers of other layers",
                |f| f.set("expert_used_count", vec![2u32, 2, 2]),
                &["qwen3moe.expert_used_count", "layer (2)", "array of 3"],
            ),
            (
                "groups that do not divide",
                |f| f.set("expert_group_count", Val::U32(4)),
                &["qwen3moe.expert_group_count", "got 4"],
            ),
            (
                "groups with too few experts",
                |f| {
                    f.set("expert_group_count", Val::U32(3));
                    f.set("expert_used_count", Val::U32(3));
                    f.set("expert_group_used_count", Val::U32(1));
                },
                &["qwen3moe.expert_group_used_count", "got 1"],
            ),
            (
                "shared experts beyond counting",
                |f| f.set("expert_shared_count", Val::U32(1024)),
                &["missing tensor blk.0.ffn_gate_shexp.weight"],
            ),
        ],
    );
}

/// Router keys have no effect on an architecture for which llama.cpp supports a single way of
/// routing.
#[test]
fn keys_of_other_routers_change_nothing() {
    let mut f = valid("qwen3moe");
    let usual = f.load().unwrap_or_else(|e| panic!("{e}")).hparams.experts;
    f.set("expert_gating_func", Val::U32(4));
    f.set("expert_weights_scale", Val::F32(2.5));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(m.hparams.experts, usual);
    for (key, value) in [("gating_func", "4"), ("weights_scale", "2.5")] {
        let line = format!("qwen3moe.expert_{key} = {value} is not applied");
        let said = m.warnings().iter().any(|w| w.contains(&line));
        assert!(said, "{:?}", m.warnings());
    }
    f.set("expert_gating_func", Val::U32(1));
    f.set("expert_weights_scale", Val::F32(1.0));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.warnings().is_empty(), "{:?}", m.warnings());
}

#[test]
fn tensors_of_experts() {
    check(
        "qwen3moe",
        &[
            (
                "an expert too few",
                |f| f.tensor("blk.1.ffn_up_exps.weight").dims = vec![64, 24, 5],
                &["blk.1.ffn_up_exps.weight", "[64, 24, 6]", "[64, 24, 5]"],
            ),
            (
                "experts in two dimensions",
                |f| f.tensor("blk.0.ffn_down_exps.weight").dims = vec![24, 384],
                &["blk.0.ffn_down_exps.weight", "[24, 64, 6]", "[24, 384]"],
            ),
            (
                "no experts' tensor",
                |f| f.remove("blk.0.ffn_gate_exps.weight"),
                &["missing tensor blk.0.ffn_gate_exps.weight"],
            ),
            (
                "no router",
                |f| f.remove("blk.1.ffn_gate_inp.weight"),
                &["missing tensor blk.1.ffn_gate_inp.weight"],
            ),
            (
                "a block for all tokens beside them",
                |f| f.add("blk.0.ffn_up.weight", &[64, 96]),
                &["blk.0.ffn_up.weight"],
            ),
        ],
    );
}

#[test]
fn sinks_and_biases_of_experts() {
    check(
        "gpt-oss",
        &[
            (
                "no sinks",
                |f| f.remove("blk.0.attn_sinks.weight"),
                &["missing tensor blk.0.attn_sinks.weight", "[4]"],
            ),
            (
                "a sink too many",
                |f| f.tensor("blk.1.attn_sinks.weight").dims = vec![5],
                &["blk.1.attn_sinks.weight", "[4]", "[5]"],
            ),
            (
                "a bias of other experts",
                |f| f.add("blk.0.ffn_down_exps.bias", &[64, 5]),
                &["blk.0.ffn_down_exps.bias", "[64, 6]", "[64, 5]"],
            ),
        ],
    );
}

#[test]
fn other_norms_and_angles() {
    check(
        "starcoder2",
        &[
            (
                "the other norm's epsilon",
                |f| {
                    f.unset("attention.layer_norm_epsilon");
                    f.set("attention.layer_norm_rms_epsilon", Val::F32(1e-5));
                },
                &["missing key starcoder2.attention.layer_norm_epsilon"],
            ),
            (
                "a short bias",
                |f| f.tensor("blk.0.attn_norm.bias").dims = vec![32],
                &["blk.0.attn_norm.bias", "[64]", "[32]"],
            ),
        ],
    );
    check(
        "phi3",
        &[
            (
                "one list of factors",
                |f| f.remove("rope_factors_long.weight"),
                &["missing tensor rope_factors_long.weight", "[8]"],
            ),
            (
                "a factor of nothing",
                |f| f.tensor("rope_factors_short.weight").values = Some(vec![0.0; 8]),
                &["rope_factors_short.weight", "above 0"],
            ),
        ],
    );
}

#[test]
fn rows_without_logits() {
    check(
        "bert",
        &[
            (
                "nobody says what is seen",
                |f| f.unset("attention.causal"),
                &["missing key bert.attention.causal", "false"],
            ),
            (
                "only what was before is seen",
                |f| f.set("attention.causal", Val::Bool(true)),
                &["bert.attention.causal = true", "false"],
            ),
            (
                "seen in words",
                |f| f.set("attention.causal", "no"),
                &["bert.attention.causal", "true or false"],
            ),
            (
                "pooling that is unknown",
                |f| f.set("pooling_type", Val::U32(5)),
                &["bert.pooling_type", "from 0 to 4", "got 5"],
            ),
            (
                "no types of tokens",
                |f| f.unset("tokenizer.ggml.token_type_count"),
                &["missing key tokenizer.ggml.token_type_count"],
            ),
            (
                "a negative number of types",
                |f| f.set("tokenizer.ggml.token_type_count", Val::I32(-2)),
                &["tokenizer.ggml.token_type_count", "got -2"],
            ),
            (
                "other types of tokens",
                |f| f.set("tokenizer.ggml.token_type_count", Val::U32(3)),
                &["token_types.weight", "[64, 3]", "[64, 2]"],
            ),
            (
                "no positions",
                |f| f.remove("position_embd.weight"),
                &["missing tensor position_embd.weight", "[64, 512]"],
            ),
            (
                "a position too few",
                |f| f.tensor("position_embd.weight").dims = vec![64, 511],
                &["position_embd.weight", "[64, 512]", "[64, 511]"],
            ),
            (
                "no norm of a sum",
                |f| f.remove("blk.1.layer_output_norm.weight"),
                &["missing tensor blk.1.layer_output_norm.weight"],
            ),
        ],
    );
}

#[test]
fn classifiers() {
    check(
        "bert",
        &[
            (
                "a classifier of another width",
                |f| f.add("cls.output.weight", &[63, 1]),
                &["cls.output.weight", "[64, 1]", "[63, 1]"],
            ),
            (
                "a hidden layer that does not fit its output",
                |f| {
                    f.add("cls.weight", &[64, 32]);
                    f.add("cls.output.weight", &[64, 1]);
                },
                &["cls.weight", "[64, 32]"],
            ),
            (
                "a bias of another length",
                |f| {
                    f.add("cls.output.weight", &[64, 1]);
                    f.add("cls.output.bias", &[2]);
                },
                &["cls.output.bias", "[1]", "[2]"],
            ),
            (
                "more labels than outputs",
                |f| {
                    f.add("cls.output.weight", &[64, 1]);
                    f.set(
                        "classifier.output_labels",
                        vec!["no".to_owned(), "yes".to_owned()],
                    );
                },
                &["cls.output.weight", "[64, 1]"],
            ),
            (
                "labels that are numbers",
                |f| f.set("classifier.output_labels", vec![1u32, 2]),
                &["bert.classifier.output_labels", "strings"],
            ),
        ],
    );
}

#[test]
fn rows_that_are_multiplied_in_the_end() {
    check(
        "gemma-embedding",
        &[
            (
                "a product from another width",
                |f| f.set("dense_2_feat_in", Val::U32(32)),
                &["gemma-embedding.dense_2_feat_in", "from 64 to 64", "got 32"],
            ),
            (
                "products that do not meet",
                |f| f.set("dense_3_feat_in", Val::U32(95)),
                &["gemma-embedding.dense_3_feat_in", "from 96 to 96", "got 95"],
            ),
            (
                "one product",
                |f| f.remove("dense_3.weight"),
                &["missing tensor dense_3.weight", "[96, 64]"],
            ),
            (
                "only what was before is seen",
                |f| f.set("attention.causal", Val::Bool(true)),
                &["gemma-embedding.attention.causal = true"],
            ),
        ],
    );
}

/// Loading returns a result, never a panic, whichever single key or tensor is dropped or altered.
#[test]
fn no_single_change_panics() {
    let more = gates::ARCHITECTURES.into_iter().chain(norms::ARCHITECTURES);
    let more = more.chain(recurrences::ARCHITECTURES);
    for arch in ARCHITECTURES.into_iter().chain(more) {
        super::bend_everything(&valid(arch));
    }
}
