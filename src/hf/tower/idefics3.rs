//! Idefics 3 and SmolVLM: SigLIP on tiles, and a projector of one matrix.

use super::super::rows::Plain;
use super::{Family, SIGLIP_BLOCK, USUAL_EPS, VIT, key, narrow};

/// Side in patches of the square that becomes a token, if no setting gives it.
const MERGE: usize = 2;

pub(super) const FAMILY: Family = Family {
    projector: "idefics3",
    names: &["idefics3", "smolvlm"],
    prefixes: &[("vision_model.", ""), ("connector.", "connector.")],
    defaults: &[
        ("hidden_size", 1152),
        ("intermediate_size", 3072),
        ("num_hidden_layers", 12),
        ("num_attention_heads", 16),
        ("patch_size", 32),
        ("image_size", 224),
    ],
    keys: |tower| {
        tower.put_eps(&key("layer_norm_eps"), USUAL_EPS)?;
        let merge = tower.settings.optional_count("scale_factor")?;
        let merge = merge.unwrap_or(MERGE);
        tower.put("vision.projector.scale_factor", narrow(merge));
        let longest = match tower.preprocessor.with("size") {
            Some(settings) => settings.optional_count("size.longest_edge")?,
            None => None,
        };
        let longest = longest.map_or_else(|| tower.side("image_size"), Ok)?;
        tower.put("vision.preproc_image_size", narrow(longest));
        Ok(())
    },
    block: SIGLIP_BLOCK,
    modules: &[
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
        ("connector.modality_projection.proj", "mm.model.fc"),
    ],
    fixed: &[("v.patch_embd.weight", Plain::F32)],
    ..VIT
};
