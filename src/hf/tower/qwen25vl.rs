//! Qwen 2.5 VL: blocks with windows and some without, gates, and no positions but rotations.

use super::super::Error;
use super::qwen3vl::{self, frames, list_of_blocks};
use super::{Family, Tower, USUAL_EPS, key, narrow};

pub(super) const FAMILY: Family = Family {
    projector: "qwen2.5vl_merger",
    names: &["qwen2_5_vl"],
    only: &[
        qwen3vl::FAMILY.only[0],
        qwen3vl::FAMILY.only[1],
        qwen3vl::FAMILY.only[2],
        ("window_size", 112),
        ("spatial_merge_size", 2),
    ],
    activations: &[("silu", "use_silu")],
    image_size: |tower| {
        let side = tower.settings.optional_count(&key("image_size"))?;
        Ok(side.unwrap_or(560))
    },
    keys: |tower| {
        let every = whole_every(tower)?;
        tower.put("vision.n_wa_pattern", narrow(every));
        tower.put_eps("rms_norm_eps", USUAL_EPS)
    },
    qkv: Some("attn.qkv"),
    block: &[
        ("norm1", "ln1"),
        ("attn.proj", "attn_out"),
        ("norm2", "ln2"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ],
    modules: &[
        ("merger.ln_q", "v.post_ln"),
        ("merger.mlp.0", "mm.0"),
        ("merger.mlp.2", "mm.2"),
    ],
    tensors: frames,
    ..qwen3vl::FAMILY
};

/// Returns the period of blocks with full attention over the image: the last block of each period.
fn whole_every(tower: &Tower) -> Result<usize, Error> {
    const NAME: &str = "fullatt_block_indexes";
    let key = key(NAME);
    let expected = "the last of every so many blocks";
    let listed = list_of_blocks(tower, NAME)?.unwrap_or_default();
    let Some(first) = listed.first() else {
        return Err(tower.settings.bad(&key, expected, "nothing"));
    };
    let every = first + 1;
    let regular = (0..tower.blocks).filter(|block| (block + 1).is_multiple_of(every));
    match regular.eq(listed.iter().copied()) {
        true => Ok(every),
        false => Err(tower.settings.bad(&key, expected, format!("{listed:?}"))),
    }
}
