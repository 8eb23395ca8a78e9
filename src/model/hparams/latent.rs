//! Multi-head latent attention (MLA): its widths and its scale.

use crate::arch::Spec;
use crate::error::Error;
use crate::keys::{Keys, PerLayer};

use super::layers::is_head_dim;
use super::{Hparams, MAX_HEAD_DIM, MAX_WIDTH, ScalingKind, Temperature};

const RANK: &str = "attention.kv_lora_rank";
const ROTATED: &str = "rope.dimension_count";
/// A head's widths before weight absorption: the key of newer files, then that of old ones.
const KEY: [&str; 2] = ["attention.key_length_mla", "attention.key_length"];
const VALUE: [&str; 2] = ["attention.value_length_mla", "attention.value_length"];

/// The widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHparams {
    /// Width of the low-rank row of queries (`q_lora_rank`), where they have one.
    pub query_rank: Option<usize>,
    /// Width of the latent row that keys and values come from (`kv_lora_rank`).
    pub rank: usize,
    /// Dimensions of a head's query or key without RoPE; they come first.
    pub plain: usize,
    /// Rotated dimensions; all heads share those of the key.
    pub rotated: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Weights are absorbed: queries are projected so that heads read the latent row itself.
    /// Otherwise keys and values are expanded from it for each head.
    pub absorbed: bool,
}

impl LatentHparams {
    /// Returns the width of a head's query before absorption.
    pub fn query(&self) -> usize {
        self.plain + self.rotated
    }

    /// Returns the width of a cached key.
    pub fn key(&self) -> usize {
        match self.absorbed {
            true => self.rank + self.rotated,
            false => self.query(),
        }
    }

    /// Returns the number of KV heads for `heads` query heads.
    pub(super) fn key_heads(&self, heads: usize) -> usize {
        match self.absorbed {
            true => 1,
            false => heads,
        }
    }
}

/// Reads the widths, where an architecture uses MLA.
pub(super) fn read(
    k: &mut Keys<'_>,
    spec: &Spec,
    n_embd: usize,
    n_head: &PerLayer,
) -> Result<Option<LatentHparams>, Error> {
    if !spec.latent {
        return Ok(None);
    }
    let default = n_embd / n_head.iter().max().unwrap_or(1).max(1);
    let query = width(k, KEY, default)?;
    let value = width(k, VALUE, default)?;
    let rotated = k
        .count(ROTATED, 2..=query.saturating_sub(1).max(2), None)?
        .value;
    let plain = query.saturating_sub(rotated);
    if plain == 0 || !rotated.is_multiple_of(2) {
        let expected = format!("an even number below the {query} values of a head");
        return Err(k.bad(k.full(ROTATED), expected, rotated.to_string()));
    }
    let rank = k.count(RANK, 1..=MAX_WIDTH, None)?.value;
    let latent = LatentHparams {
        query_rank: query_rank(k)?,
        rank,
        plain,
        rotated,
        value,
        absorbed: KEY[..1]
            .iter()
            .chain(&VALUE[..1])
            .all(|key| is_keyed(k, key)),
    };
    check(k, &latent)?;
    Ok(Some(latent))
}

/// Returns whether the file has a key with a value other than 0.
fn is_keyed(k: &Keys<'_>, key: &str) -> bool {
    let value = k.get(key).and_then(|value| value.as_int());
    value.is_some_and(|value| value != 0)
}

/// Reads a width from the first of two keys that is set and not 0.
fn width(k: &mut Keys<'_>, keys: [&'static str; 2], default: usize) -> Result<usize, Error> {
    let key = if is_keyed(k, keys[0]) {
        keys[0]
    } else {
        keys[1]
    };
    Ok(k.count(key, 1..=MAX_HEAD_DIM, Some(default))?.value)
}

/// Reads the rank of queries. Files of smaller models may have the key without the tensors.
fn query_rank(k: &mut Keys<'_>) -> Result<Option<usize>, Error> {
    if k.gguf.tensor("blk.0.attn_q_a.weight").is_none() {
        return Ok(None);
    }
    let rank = k.count("attention.q_lora_rank", 1..=MAX_WIDTH, None)?;
    Ok(Some(rank.value))
}

fn check(k: &Keys<'_>, latent: &LatentHparams) -> Result<(), Error> {
    let &LatentHparams {
        rank,
        rotated,
        value,
        absorbed,
        ..
    } = latent;
    if absorbed && !is_head_dim(latent.key()) {
        let expected = format!("an even width, with the {rotated} rotated at most {MAX_HEAD_DIM}");
        return Err(k.bad(k.full(RANK), expected, rank.to_string()));
    }
    if absorbed {
        return Ok(());
    }
    if !is_head_dim(latent.key()) {
        let expected = format!("an even width up to {MAX_HEAD_DIM}");
        return Err(k.bad(k.full(KEY[1]), expected, latent.key().to_string()));
    }
    // values are cached in rows as long as keys, padded with the keys' part without RoPE
    if !(rotated..=latent.key()).contains(&value) {
        let expected = format!("{rotated} to {} values of a head", latent.key());
        return Err(k.unsupported(VALUE[1], expected, value.to_string()));
    }
    Ok(())
}

/// Sets the scale of scores without RoPE. Old files' keys are in another order than their queries,
/// in llama.cpp, so only absorbed weights are taken.
pub(crate) fn unrotated_latent(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let latent = h.latent.expect("its architecture has it");
    require_absorbed(k, &latent)?;
    h.set_attention_scale(1.0 / (latent.query() as f32).sqrt());
    Ok(())
}

/// Refuses files whose weights are not absorbed.
pub(super) fn require_absorbed(k: &Keys<'_>, latent: &LatentHparams) -> Result<(), Error> {
    if latent.absorbed {
        return Ok(());
    }
    let key = if is_keyed(k, KEY[0]) {
        VALUE[0]
    } else {
        KEY[0]
    };
    Err(k.missing(k.full(key), "a width, in files with absorbed weights"))
}

/// Sets the scale of scores under YaRN, `mscale^2 / sqrt(width)`, and the position-dependent scale
/// of queries. `rope.scaling.yarn_log_multiplier` stores a tenth of the multiplier of `ln(factor)`;
/// where it is set, rotated values get no magnitude of their own.
pub(crate) fn latent_scores(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let latent = h.latent.expect("its architecture has it");
    let multiplier = k.not_negative("rope.scaling.yarn_log_multiplier", 0.0)?;
    let rope = &mut h.ropes[0];
    let mut scale = 1.0 / (latent.query() as f64).sqrt();
    if rope.scaling.value == ScalingKind::Yarn {
        let more = f64::from(rope.factor.value).max(1.0).ln();
        let magnitude = match multiplier > 0.0 {
            true => 1.0,
            false => 1.0 + 0.1 * more,
        };
        if multiplier > 0.0 {
            // cancels the magnitude completely
            rope.log_multiplier = 1.0;
        }
        let factor = f64::from(rope.attn_factor.value) * magnitude;
        scale *= (factor * (1.0 + f64::from(multiplier) * more)).powi(2);
    }
    h.set_attention_scale(scale as f32);
    let rate = k.not_negative("attention.temperature_scale", 0.0)?;
    if rate > 0.0 {
        let range = 1..=i32::MAX as usize;
        let step = k.count("attention.temperature_length", range, None)?.value;
        h.temperature = Some(Temperature {
            rate,
            step,
            offset: 0,
            unrotated_only: false,
        });
    }
    Ok(())
}
