//! Gemma 3: SigLIP, and a projector whose norm has its weights less one.

use super::super::Error;
use super::super::rows::Plain;
use super::{Edit, Family, SIGLIP_BLOCK, Tower, USUAL_EPS, VIT, key, narrow};

/// Tokens of an image if no setting gives them.
const TOKENS: usize = 256;
/// Side in patches of the square that becomes a token, if a file has no such key.
const MERGE: usize = 4;

pub(super) const FAMILY: Family = Family {
    projector: "gemma3",
    names: &["gemma3"],
    prefixes: &[
        // transformers 5 writes the encoder's names without the second part
        ("vision_tower.vision_model.", ""),
        ("vision_tower.", ""),
        ("multi_modal_projector.", "projector."),
    ],
    // it classifies whole images
    skipped: &["head."],
    defaults: &[
        ("hidden_size", 768),
        ("intermediate_size", 3072),
        ("num_hidden_layers", 12),
        ("num_attention_heads", 12),
        ("patch_size", 16),
        ("image_size", 224),
    ],
    keys: |tower| {
        tower.put_eps(&key("layer_norm_eps"), USUAL_EPS)?;
        let merge = merge(tower)?;
        if merge != MERGE {
            tower.put("vision.projector.scale_factor", narrow(merge));
        }
        Ok(())
    },
    block: SIGLIP_BLOCK,
    modules: &[
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
        ("projector.mm_soft_emb_norm", "mm.soft_emb_norm"),
        (
            "projector.mm_input_projection_weight",
            "mm.input_projection.weight",
        ),
    ],
    edit: |name| match name {
        "mm.soft_emb_norm.weight" => Edit::Plus(1.0),
        _ => Edit::Nothing,
    },
    fixed: &[
        ("v.patch_embd.weight", Plain::F32),
        ("mm.input_projection.weight", Plain::F16),
    ],
    ..VIT
};

/// Returns the side in patches of the square that becomes a token, from the tokens of an image.
fn merge(tower: &Tower) -> Result<usize, Error> {
    const OWN: &str = "mm_tokens_per_image";
    const SHARED: &str = "image_seq_length";
    let own = (&tower.settings, OWN);
    let shared = tower.preprocessor.with(SHARED);
    let (settings, name) = shared.map_or(own, |settings| (settings, SHARED));
    let tokens = settings.optional_count(name)?.unwrap_or(TOKENS);
    let side = tokens.isqrt();
    let patches = tower.side("image_size")? / tower.side("patch_size")?;
    match side * side == tokens && patches >= side && patches.is_multiple_of(side) {
        true => Ok(patches / side),
        false => {
            let expected = format!("the square of a divisor of {patches}, the patches per line");
            Err(settings.bad(name, expected, tokens))
        }
    }
}
