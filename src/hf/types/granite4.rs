//! Granite 4: Mamba 2 in most layers, attention in the others; with experts or without.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::Rule;
use super::super::settings::Settings;
use super::dense::GRANITE_FIVE;
use super::lfm2::keys_by_layer;
use super::mamba::{
    MAMBA, RENAMED, SSM_GROUPS, SSM_HEADS, SSM_KERNEL, SSM_STATE, mamba_shapes, set_inner,
};
use super::mixtures::{GRANITE_MOE, GRANITE_SHARED_WIDTH, LOCAL, USED};
use super::{Cut, Is, Key, LLAMA, ModelType, names, only, rules};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        when: |settings| has_mamba(settings) && has_experts(settings),
        keys: MIXTURE_KEYS,
        cuts: GRANITE_MOE.cuts,
        n_ff: LLAMA.n_ff,
        ..GRANITE_HYBRID
    },
    ModelType {
        when: has_mamba,
        ..GRANITE_HYBRID
    },
    // models of the same type without any Mamba layer are those of older architectures
    ModelType {
        name: "granitemoehybrid",
        when: has_experts,
        extra: |config, _| rotates(config),
        ..GRANITE_MOE
    },
    ModelType {
        name: "granitemoehybrid",
        arch: "granite",
        pre: &["refact"],
        keys: &GRANITE_FIVE,
        n_ff: |config| config.count("shared_intermediate_size").map(Some),
        extra: |config, _| rotates(config),
        awq: false,
        modules: names::GRANITE,
        cuts: SHARED_CUTS,
        order: rules::turned,
        biases: &[names::ATTENTION_BIAS],
        ..LLAMA
    },
];

const GRANITE_HYBRID: ModelType = ModelType {
    name: "granitemoehybrid",
    arch: "granitehybrid",
    pre: &["refact"],
    keys: &{
        let [rms, scale, embedding, residual, logits] = GRANITE_FIVE;
        [
            rms, scale, embedding, residual, logits, SSM_KERNEL, SSM_STATE, SSM_GROUPS, SSM_HEADS,
        ]
    },
    only: &[
        only("mamba_proj_bias", Is::False(false)),
        only("mamba_conv_bias", Is::True(true)),
        only("position_embedding_type", Is::Text("nope")),
        only("normalization_function", Is::Text("rmsnorm")),
    ],
    n_ff: |config| config.count("shared_intermediate_size").map(Some),
    extra: granite_hybrid_keys,
    awq: false,
    renamed: &RENAMED,
    modules: names::GRANITE,
    cuts: SHARED_CUTS,
    order: |config, name| match rules::turned(config, name)? {
        Rule::Same => mamba_shapes(config, name, MAMBA),
        turned => Ok(turned),
    },
    biases: &[],
    ..LLAMA
};

const MIXTURE_KEYS: &[Key] = &{
    let [rms, scale, embedding, residual, logits] = GRANITE_FIVE;
    [
        rms,
        scale,
        embedding,
        residual,
        logits,
        SSM_KERNEL,
        SSM_STATE,
        SSM_GROUPS,
        SSM_HEADS,
        LOCAL,
        USED,
        GRANITE_SHARED_WIDTH,
    ]
};

/// The feed-forward block of models without experts is called shared.
const SHARED_CUTS: &[(&str, &str, Cut)] = &[
    ("shared_mlp.input_linear", "ffn_gate", Cut::FirstHalf),
    ("shared_mlp.input_linear", "ffn_up", Cut::SecondHalf),
    ("shared_mlp.output_linear", "ffn_down", Cut::Ordered),
];

/// Returns whether any layer has Mamba 2, as all have unless the settings say otherwise.
/// Transformers 5 calls such layers `linear_attention`.
fn has_mamba(settings: &Settings) -> bool {
    let types = settings.get("layer_types").and_then(Value::as_array);
    let is_mamba = |kind: &Value| kind == "mamba" || kind == "linear_attention";
    types.is_none_or(|types| types.iter().any(is_mamba))
}

fn has_experts(settings: &Settings) -> bool {
    let count = settings.get("num_local_experts").and_then(Value::as_u64);
    count.is_some_and(|n| n > 0)
}

/// Checks that queries and keys are rotated, which GGUF has no key for here.
fn rotates(config: &Config) -> Result<(), Error> {
    const KEY: &str = "position_embedding_type";
    match config.string(KEY)? {
        Some(kind) if kind == "rope" => Ok(()),
        kind => {
            let got = kind.unwrap_or("nothing".to_owned());
            Err(config.bad(KEY, "rope in a model without Mamba layers", got))
        }
    }
}

/// Sets the keys of layers. Nothing is rotated, so that texts may be of any length.
fn granite_hybrid_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    view.set(&config.key("context_length"), 1_u32 << 20)
        .set(&config.key("rope.scaling.finetuned"), false);
    keys_by_layer(config, view)?;
    set_inner(config, MAMBA[0], "mamba_d_head", view)
}
