//! Qwen 3 VL and Qwen 3.5: patches of two frames, and projections of some blocks' outputs
//! (DeepStack).

use serde_json::Value;

use super::super::Error;
use super::super::order::Order;
use super::{COLOURS, Family, Names, Tower, USUAL_EPS, VIT, key, narrow};

/// Frames of a temporal patch, each with kernels of its own.
pub(super) const FRAMES: usize = 2;
/// Number of positions if no setting gives one.
const POSITIONS: usize = 2304;
const DEEPSTACK: &str = "deepstack_visual_indexes";

pub(super) const FAMILY: Family = Family {
    projector: "qwen3vl_merger",
    names: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
    prefixes: &[("visual.", "")],
    skipped: &["rotary_pos_emb.inv_freq"],
    depth: "depth",
    heads: "num_heads",
    only: &[
        ("in_channels", COLOURS),
        ("in_chans", COLOURS),
        ("temporal_patch_size", FRAMES),
    ],
    activations: &[("gelu_pytorch_tanh", "use_gelu")],
    image_size: |tower| {
        let side = tower.settings.optional_count(&key("image_size"))?;
        let positions = tower
            .settings
            .optional_count(&key("num_position_embeddings"))?;
        let patches = (positions.unwrap_or(POSITIONS) as f64).sqrt();
        let patch = tower.count("patch_size")?;
        Ok(side.unwrap_or((patches * patch as f64) as usize))
    },
    keys: |tower| {
        if let Some(merge) = tower.settings.optional_count(&key("spatial_merge_size"))? {
            tower.put("vision.spatial_merge_size", narrow(merge));
        }
        tower.put_eps("text_config.rms_norm_eps", USUAL_EPS)?;
        let listed = list_of_blocks(tower, DEEPSTACK)?.unwrap_or_default();
        let marks = (0..tower.blocks).map(|block| listed.contains(&block));
        let marks: Vec<bool> = marks.collect();
        tower.put("vision.is_deepstack_layers", marks);
        Ok(())
    },
    blocks: "blocks.",
    block: &[
        ("norm1", "ln1"),
        ("attn.qkv", "attn_qkv"),
        ("attn.proj", "attn_out"),
        ("norm2", "ln2"),
        ("mlp.linear_fc1", "ffn_up"),
        ("mlp.linear_fc2", "ffn_down"),
    ],
    modules: &[
        ("pos_embed", "v.position_embd"),
        ("merger.norm", "v.post_ln"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.linear_fc2", "mm.2"),
    ],
    tensors: |tower| {
        frames(tower)?;
        let listed = list_of_blocks(tower, DEEPSTACK)?.unwrap_or_default();
        for (i, block) in listed.into_iter().enumerate() {
            let from = format!("deepstack_merger_list.{i}.");
            tower.modules(&from, &format!("v.deepstack.{block}."), DEEPSTACK_MODULES)?;
        }
        Ok(())
    },
    ..VIT
};

const DEEPSTACK_MODULES: Names = &[
    ("norm", "norm"),
    ("linear_fc1", "fc1"),
    ("linear_fc2", "fc2"),
];

/// Adds the patch kernels: one tensor for each frame of a temporal patch.
pub(super) fn frames(tower: &mut Tower) -> Result<(), Error> {
    if let Some(found) = tower.sources.remove("patch_embed.proj.weight") {
        let [kernels, COLOURS, FRAMES, height, width] = found.source.shape[..] else {
            return Err(found.refused("kernels of 3 colours and 2 frames"));
        };
        let names = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        for (frame, name) in names.into_iter().enumerate() {
            let order = Order::Cut {
                of: FRAMES * height,
                take: height,
                start: frame * height,
                step: 1,
            };
            tower.part(&found, name, &[kernels, COLOURS, height, width], order)?;
        }
    }
    tower.module("patch_embed.proj", "v.patch_embd")
}

/// Reads a list of blocks, each once and in order.
pub(super) fn list_of_blocks(tower: &Tower, name: &str) -> Result<Option<Vec<usize>>, Error> {
    let blocks = tower.blocks;
    let expected = format!("numbers below {blocks}, each larger than the one before");
    let read = |v: &Value| {
        let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        let all: Vec<usize> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
        let is_sound = all.is_sorted_by(|a, b| a < b) && all.iter().all(|n| *n < blocks);
        is_sound.then_some(all)
    };
    tower.settings.typed(&key(name), &expected, read)
}
