//! Pixtral and Mistral Small 3.1 and later: heads rotated by rows and columns, and the text model's
//! embedding of the token that ends a line.

use serde_json::Value;

use super::super::order::Order;
use super::super::rows::Plain;
use super::super::{Error, MAX_SETTINGS, MAX_TOKENIZER, read_json};
use super::{Edit, Family, Tower, VIT, key, narrow};

/// Epsilon of its norms in transformers, where it is no setting.
const EPS: f32 = 1e-5;
/// Base of its rotations that is implemented.
const ROPE_BASE: f64 = 10_000.0;
/// Token that ends a line of an image.
const LINE_END: &str = "[IMG_BREAK]";

pub(super) const FAMILY: Family = Family {
    projector: "pixtral",
    names: &["mistral3", "llava"],
    vision_type: Some("pixtral"),
    prefixes: &[
        ("vision_tower.", ""),
        ("multi_modal_projector.", "projector."),
        ("language_model.model.embed_tokens.", "embed_tokens."),
        ("language_model.embed_tokens.", "embed_tokens."),
    ],
    defaults: &[
        ("hidden_size", 1024),
        ("intermediate_size", 4096),
        ("num_hidden_layers", 24),
        ("num_attention_heads", 16),
        ("patch_size", 16),
        ("image_size", 1024),
    ],
    activations: &[("gelu", "use_gelu"), ("silu", "use_silu")],
    keys,
    blocks: "transformer.layers.",
    block: &[
        ("attention_norm", "ln1"),
        ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"),
        ("attention.v_proj", "attn_v"),
        ("attention.o_proj", "attn_out"),
        ("ffn_norm", "ln2"),
        ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.down_proj", "ffn_down"),
    ],
    modules: &[
        ("patch_conv", "v.patch_embd"),
        ("ln_pre", "v.pre_ln"),
        ("projector.norm", "mm.input_norm"),
        ("projector.patch_merger.merging_layer", "mm.patch_merger"),
        ("projector.linear_1", "mm.1"),
        ("projector.linear_2", "mm.2"),
    ],
    tensors: line_end,
    edit: |name| match name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight") {
        true => Edit::Heads,
        false => Edit::Nothing,
    },
    ..VIT
};

fn keys(tower: &mut Tower) -> Result<(), Error> {
    tower.text_is("projector_hidden_act", "gelu")?;
    tower.number_is("vision_feature_layer", -1.0)?;
    tower.text_is("vision_feature_select_strategy", "full")?;
    for name in ["rope_theta", "rope_parameters.rope_theta"] {
        tower.number_is(&key(name), ROPE_BASE)?;
    }
    let head_dim = tower.count("hidden_size")? as f64 / tower.count("num_attention_heads")? as f64;
    tower.number_is(&key("head_dim"), head_dim)?;
    tower.put_eps(&key("layer_norm_eps"), EPS)?;
    let merge = tower.settings.optional_count("spatial_merge_size")?;
    // only one of the two types has such a setting, and transformers' default for it
    let is_merged = tower.settings.string("model_type")?.as_deref() == Some("mistral3");
    if let Some(merge) = merge.or(is_merged.then_some(2)) {
        tower.put("vision.spatial_merge_size", narrow(merge));
    }
    Ok(())
}

/// Adds the row of the text model's embedding that follows every line of an image.
fn line_end(tower: &mut Tower) -> Result<(), Error> {
    const FROM: &str = "embed_tokens.weight";
    let id = line_end_id(tower)?;
    let Some(found) = tower.sources.remove(FROM) else {
        let expected = format!("the text model's {FROM}, for the row of {LINE_END}");
        return Err(tower
            .settings
            .bad("text_config", expected, "no such tensor"));
    };
    let [rows, width] = found.source.shape[..] else {
        return Err(found.refused("a matrix"));
    };
    if id >= rows || Plain::of(&found.name, &found.source).is_err() {
        return Err(found.refused(format!("a plain row of {LINE_END}, number {id}")));
    }
    let order = Order::Cut {
        of: rows * width,
        take: width,
        start: id * width,
        step: 1,
    };
    tower.part(&found, "v.token_embd.img_break", &[width], order)
}

/// Returns the id of the token that ends a line, from the files of the tokenizer.
fn line_end_id(tower: &Tower) -> Result<usize, Error> {
    let dir = &tower.dir;
    let decoder = read_json(dir, "tokenizer_config.json", MAX_SETTINGS)?;
    let listed = decoder.as_ref().and_then(|file| {
        let tokens = file.get("added_tokens_decoder")?.as_object()?;
        let is_meant = |token: &Value| token.get("content").is_some_and(|t| t == LINE_END);
        let (id, _) = tokens.iter().find(|(_, token)| is_meant(token))?;
        id.parse().ok()
    });
    if let Some(id) = listed {
        return Ok(id);
    }
    let tokenizer = read_json(dir, "tokenizer.json", MAX_TOKENIZER)?;
    let added = tokenizer.as_ref().and_then(|file| {
        let tokens = file.get("added_tokens")?.as_array()?;
        let token = tokens
            .iter()
            .find(|token| token.get("content").is_some_and(|t| t == LINE_END))?;
        token.get("id")?.as_u64()
    });
    let id = added.and_then(|id| usize::try_from(id).ok());
    id.ok_or_else(|| Error::Missing {
        file: dir.join("tokenizer.json").display().to_string(),
        expected: "the token [IMG_BREAK] among added_tokens",
    })
}
