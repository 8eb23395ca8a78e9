//! InternVL 2.5 and later, as transformers names their tensors, and as OpenGVLab does.

use super::super::Error;
use super::{Family, Tower, USUAL_EPS, VIT, key, narrow};

pub(super) const FAMILY: Family = Family {
    projector: "internvl",
    names: &["internvl"],
    prefixes: &[
        ("vision_tower.", ""),
        ("multi_modal_projector.", "projector."),
    ],
    // it stands for patches that are hidden in training
    skipped: &["embeddings.mask_token"],
    defaults: &[
        ("hidden_size", 1024),
        ("intermediate_size", 4096),
        ("num_hidden_layers", 24),
        ("num_attention_heads", 16),
        ("patch_size", 14),
        ("image_size", 448),
    ],
    activations: &[("gelu", "use_gelu"), ("silu", "use_silu")],
    keys,
    blocks: "encoder.layer.",
    block: &[
        ("layernorm_before", "ln1"),
        ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"),
        ("attention.v_proj", "attn_v"),
        ("attention.q_norm", "attn_q_norm"),
        ("attention.k_norm", "attn_k_norm"),
        ("attention.projection_layer", "attn_out"),
        ("lambda_1", "ls1.weight"),
        ("layernorm_after", "ln2"),
        ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"),
        ("lambda_2", "ls2.weight"),
    ],
    modules: &[
        ("embeddings.cls_token", "v.class_embd"),
        ("embeddings.patch_embeddings.projection", "v.patch_embd"),
        ("embeddings.position_embeddings", "v.position_embd.weight"),
        ("projector.layer_norm", "mm.model.mlp.0"),
        ("projector.linear_1", "mm.model.mlp.1"),
        ("projector.linear_2", "mm.model.mlp.3"),
    ],
    ..VIT
};

pub(super) const CHAT: Family = Family {
    names: &["internvl_chat"],
    prefixes: &[("vision_model.", ""), ("mlp1.", "mlp1.")],
    blocks: "encoder.layers.",
    qkv: Some("attn.qkv"),
    block: &[
        ("norm1", "ln1"),
        ("attn.q_norm", "attn_q_norm"),
        ("attn.k_norm", "attn_k_norm"),
        ("attn.proj", "attn_out"),
        ("ls1", "ls1.weight"),
        ("norm2", "ln2"),
        ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"),
        ("ls2", "ls2.weight"),
    ],
    modules: &[
        ("embeddings.class_embedding", "v.class_embd"),
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd.weight"),
        ("mlp1.0", "mm.model.mlp.0"),
        ("mlp1.1", "mm.model.mlp.1"),
        ("mlp1.3", "mm.model.mlp.3"),
    ],
    ..FAMILY
};

fn keys(tower: &mut Tower) -> Result<(), Error> {
    const RATIO: &str = "downsample_ratio";
    tower.text_is(&key("norm_type"), "layer_norm")?;
    tower.text_is("projector_hidden_act", "gelu")?;
    // version 1 joins squares of patches in another order
    tower.text_is("ps_version", "v2")?;
    tower.number_is("vision_feature_layer", -1.0)?;
    tower.number_is("select_layer", -1.0)?;
    tower.put_eps(&key("layer_norm_eps"), USUAL_EPS)?;
    let expected = "a fraction of 1, as 0.5";
    let ratio = tower.settings.double(RATIO)?;
    let ratio = tower.settings.must(RATIO, expected, ratio)?;
    let merge = 1.0 / ratio;
    if !(1.0..=1e3).contains(&merge) {
        return Err(tower.settings.bad(RATIO, expected, ratio));
    }
    tower.put("vision.projector.scale_factor", narrow(merge as usize));
    for (name, key) in [
        ("min_dynamic_patch", "vision.preproc_min_tiles"),
        ("max_dynamic_patch", "vision.preproc_max_tiles"),
    ] {
        if let Some(tiles) = tower.settings.whole(name)?.filter(|n| *n > 0) {
            tower.put(key, narrow(tiles));
        }
    }
    Ok(())
}
