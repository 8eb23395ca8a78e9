//! The text models of vision-language models: heads are rotated by the axes of an image (M-RoPE).
//! Their vision encoders are files of their own ([`super::super::tower`]).

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
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
