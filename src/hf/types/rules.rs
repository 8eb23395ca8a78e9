//! Rules of single model types.

use gguf_rs_lite::View;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::Rule;
use super::super::order::{HeadOrder, Order, Parts};

/// Permutes the rows of queries and keys: RoPE rotates the two halves of a head together in the
/// folder, neighbours in GGUF.
pub(super) fn turned(config: &Config, name: &str) -> Result<Rule, Error> {
    let head_dim = config.head_dim;
    let turns = name.ends_with(".attn_q") || name.ends_with(".attn_k");
    Ok(match turns {
        true => Rule::Heads(HeadOrder { head_dim }),
        false => Rule::Same,
    })
}

/// Separates Falcon's and GPT-NeoX's fused queries, keys and values, which are grouped by KV head.
pub(super) fn falcon_groups(config: &Config, name: &str) -> Result<Rule, Error> {
    let (groups, head_dim) = (config.heads_kv, config.head_dim);
    let queries = config.heads / groups * head_dim;
    Ok(match name.ends_with(".attn_qkv") {
        true => gathered(Parts {
            of: queries + 2 * head_dim,
            heads: groups,
            start: 0,
            lens: [queries, head_dim, head_dim],
        }),
        false => Rule::Same,
    })
}

/// Returns the rule that gathers parts of all heads, one part after the other.
pub(super) fn gathered(parts: Parts) -> Rule {
    let [from, left] = parts.rows();
    Rule::Rows {
        order: Order::Parts(parts),
        from,
        left,
    }
}

/// Checks that every fourth layer of SmolLM3 has no RoPE: GGUF has no key for these layers.
pub(super) fn no_rope_every_fourth(config: &Config, _: &mut View) -> Result<(), Error> {
    let turns = config.flags("no_rope_layers", |v| v.as_u64().map(|v| v != 0))?;
    config.every("no_rope_layers", turns, 4, "1 for layers but every fourth")?;
    config.number_is("no_rope_layer_interval", 4.0)
}

/// Checks the scale of attention scores, which has no key in GGUF: it follows from the head width,
/// or in models of `n_layer` layers from the embedding width divided by the number of heads.
pub(super) fn scores_by_width(config: &Config, n_layer: usize) -> Result<(), Error> {
    let width = match config.count("num_hidden_layers")? == n_layer {
        true => config.count("hidden_size")? / config.heads,
        false => config.head_dim,
    };
    config.number_is("query_pre_attn_scalar", width as f64)
}

/// Sets the context length from which the long divisors apply, and their factor on magnitudes.
pub(super) fn phi3_scaling(config: &Config, view: &mut View) -> Result<(), Error> {
    let context = config.count("max_position_embeddings")?;
    let original = config.original_context()?.unwrap_or(context);
    view.set(
        &config.key("rope.scaling.original_context_length"),
        u32::try_from(original).unwrap_or(u32::MAX),
    );
    let Some((group, _)) = config.scaling()? else {
        return Ok(());
    };
    let factor = match context as f64 / original as f64 {
        scale if scale > 1.0 => (1.0 + scale.ln() / (original as f64).ln()).sqrt(),
        _ => 1.0,
    };
    config.number_is(&format!("{group}.attention_factor"), factor)?;
    view.set(&config.key("rope.scaling.attn_factor"), factor as f32);
    Ok(())
}

/// Applies the scaling by `alpha`, which is another base; the context length is that of the
/// training.
pub(super) fn hunyuan_base(config: &Config, view: &mut View) -> Result<(), Error> {
    let Some((group, _)) = config.scaling()? else {
        return Ok(());
    };
    let path = format!("{group}.alpha");
    let alpha = config
        .double(&path)?
        .ok_or_else(|| config.bad(&path, "a number", "nothing"))?;
    let base = f64::from(config.rope_base()?.unwrap_or(10_000.0));
    let n = config.head_dim as f64;
    let scaled = base * alpha.powf(n / (n - 2.0));
    view.set(&config.key("rope.freq_base"), scaled as f32)
        .set(&config.key("rope.scaling.type"), "none")
        .set(&config.key("rope.scaling.factor"), 1.0_f32)
        .set(
            &config.key("rope.scaling.original_context_length"),
            262_144_u32,
        )
        .set(&config.key("context_length"), 262_144_u32);
    Ok(())
}

/// Returns the number of KV heads: newer models give it, older ones have one for all queries.
pub(super) fn falcon_heads_kv(config: &Config, heads: usize) -> Result<usize, Error> {
    if config.flag("new_decoder_architecture")?.unwrap_or(false) {
        return Ok(config.optional_count("num_kv_heads")?.unwrap_or(heads));
    }
    match config.flag("multi_query")?.unwrap_or(true) {
        true => Ok(1),
        false => Err(config.bad("multi_query", "true", "false")),
    }
}

/// Checks the layers with windows, which llama.cpp and this engine derive from the number of
/// layers.
pub(super) fn exaone4_windows(config: &Config, _: &mut View) -> Result<(), Error> {
    match config.optional_count("sliding_window")? {
        Some(window) if config.count("num_hidden_layers")? != 64 => {
            let expected = "nothing in models of other than 64 layers";
            Err(config.bad("sliding_window", expected, window))
        }
        _ => Ok(()),
    }
}

pub(super) fn minicpm_scales(config: &Config, view: &mut View) -> Result<(), Error> {
    let number = |name: &str| -> Result<f64, Error> {
        let value = config.double(name)?;
        value.ok_or_else(|| config.bad(name, "a number", "nothing"))
    };
    let layers = config.count("num_hidden_layers")? as f64;
    let residual = number("scale_depth")? / layers.sqrt();
    let logits = config.count("hidden_size")? as f64 / number("dim_model_base")?;
    view.set(&config.key("residual_scale"), residual as f32)
        .set(&config.key("logit_scale"), logits as f32);
    let Some((group, _)) = config.scaling()?.filter(|s| s.1 == "longrope") else {
        return Ok(());
    };
    // GGUF has no key here for where the long divisors begin to apply, nor for the magnitude
    let path = format!("{group}.original_max_position_embeddings");
    config.number_is(&path, config.count("max_position_embeddings")? as f64)
}
