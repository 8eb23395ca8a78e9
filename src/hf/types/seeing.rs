//! The text models of vision-language models: those whose heads are rotated by the axes of an image
//! (M-RoPE), and those that are text models of other types. Their vision encoders are files of
//! their own ([`super::super::tower`]).

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::dense::VISION;
use super::mixtures::QWEN3_MOE;
use super::{Is, LLAMA, ModelType, Windows, names, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        name: "qwen2_vl",
        ..QWEN2_VL
    },
    QWEN2_VL,
    ModelType {
        name: "qwen3_vl",
        arch: "qwen3vl",
        scalings: SCALINGS,
        windows: Windows::Refused(Some("use_sliding_window")),
        extra: axes_and_layers,
        skipped: TOWER,
        ..LLAMA
    },
    ModelType {
        name: "qwen3_vl_moe",
        arch: "qwen3vlmoe",
        // transformers 5 always normalizes the weights, without a setting
        only: &[
            only("norm_topk_prob", Is::True(true)),
            QWEN3_MOE.only[1],
            QWEN3_MOE.only[2],
        ],
        scalings: SCALINGS,
        extra: axes_and_layers,
        skipped: TOWER,
        // experts in one tensor have their inputs in its rows
        transposed: true,
        ..QWEN3_MOE
    },
];

const QWEN2_VL: ModelType = ModelType {
    name: "qwen2_5_vl",
    arch: "qwen2vl",
    scalings: SCALINGS,
    windows: Windows::Refused(Some("use_sliding_window")),
    extra: axes,
    skipped: TOWER,
    biases: &[names::QWEN2_BIAS],
    ..LLAMA
};

/// The first is no scaling: it says that heads are rotated by axes.
const SCALINGS: &[&str] = &["mrope", "yarn"];

const TOWER: &[&str] = &["model.visual.", "visual."];

fn axes(config: &Config, view: &mut View) -> Result<(), Error> {
    let expected = "at most four numbers of pairs";
    let axes = config.must("rope_scaling.mrope_section", expected, config.axes()?)?;
    view.set(&config.key("rope.dimension_sections"), axes);
    Ok(())
}

/// Sets the axes, and how many of the first layers add DeepStack features to an image's rows.
fn axes_and_layers(config: &Config, view: &mut View) -> Result<(), Error> {
    axes(config, view)?;
    let listed = config.typed(
        "vision_config.deepstack_visual_indexes",
        "a list",
        Value::as_array,
    )?;
    let layers = listed.map_or(0, Vec::len);
    let layers = u32::try_from(layers).unwrap_or(u32::MAX);
    view.set(&config.key("n_deepstack_layers"), layers);
    Ok(())
}

/// A vision-language model's `model_type` whose text model is of another type.
pub(in super::super) struct Wrapper {
    /// Name of the `model_type`.
    pub(in super::super) name: &'static str,
    /// Section of the text model's settings.
    pub(in super::super) section: &'static str,
    /// Values of the section's `model_type`.
    pub(in super::super) texts: &'static [&'static str],
    /// Default values in transformers of the text model's settings.
    pub(in super::super) defaults: &'static [(&'static str, f64)],
    /// Prefixes of tensors that are not part of the text model.
    pub(in super::super) skipped: &'static [&'static str],
}

pub(in super::super) const WRAPPERS: &[Wrapper] = &[
    IDEFICS3,
    Wrapper {
        name: "smolvlm",
        ..IDEFICS3
    },
    INTERNVL,
    Wrapper {
        name: "internvl_chat",
        section: "llm_config",
        skipped: &["vision_model.", "mlp1."],
        ..INTERNVL
    },
    Wrapper {
        name: "llava",
        section: "text_config",
        texts: &["mistral", "llama"],
        defaults: HEADS,
        skipped: VISION,
    },
];

const IDEFICS3: Wrapper = Wrapper {
    name: "idefics3",
    section: "text_config",
    texts: &["llama"],
    defaults: HEADS,
    skipped: &["model.vision_model.", "model.connector."],
};

const INTERNVL: Wrapper = Wrapper {
    name: "internvl",
    section: "text_config",
    texts: &["qwen2", "qwen3", "qwen3_moe", "llama"],
    defaults: &[],
    skipped: VISION,
};

/// The number of heads of LLaMA and Mistral, which SmolVLM's and Pixtral's folders leave out.
const HEADS: &[(&str, f64)] = &[("num_attention_heads", 32.0)];
