//! Attention by one narrow row for all heads: its widths and its scale, from their keys.

use super::super::architecture::Architecture;
use super::MAX_WIDTH;
use super::heads::{Heads, check_width};
use super::keys::Keys;
use crate::Error;

/// The widths of latent attention.
#[derive(Debug)]
pub(in super::super) struct Latent {
    /// Of the row that queries are made from, where that is not the stream.
    pub(in super::super) query_rank: Option<usize>,
    /// Of the row that keys and values are made from.
    pub(in super::super) rank: usize,
    /// What is not rotated of a head's query or key: it comes first.
    pub(in super::super) plain: usize,
    /// What is: the keys of all heads have it in common.
    pub(in super::super) rotated: usize,
    /// A head's value.
    pub(in super::super) value: usize,
    /// Heads read the row itself, by a matrix for queries and one for values.
    pub(in super::super) absorbed: bool,
}

const KEY: [&str; 2] = ["attention.key_length_mla", "attention.key_length"];
const VALUE: [&str; 2] = ["attention.value_length_mla", "attention.value_length"];

/// The first key that the file has; 0 stands for none.
fn keyed<'k>(keys: &Keys<'_>, names: [&'k str; 2]) -> Result<Option<(&'k str, usize)>, Error> {
    for name in names {
        if let Some(value) = keys.integer(name)?.filter(|&value| value > 0) {
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}

/// The width of a head's query and key before anything is absorbed.
pub(super) fn read_key_dim(
    keys: &Keys<'_>,
    n_embd: usize,
    n_head: &[usize],
) -> Result<usize, Error> {
    let (key, dim) = keyed(keys, KEY)?.unwrap_or((KEY[1], n_embd / n_head[0]));
    check_width(keys, key, n_head, dim)?;
    Ok(dim)
}

pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
    heads: &Heads,
) -> Result<Option<Latent>, Error> {
    if !architecture.latent {
        return Ok(None);
    }
    let n_head = &heads.n_head;
    let rotated = keys.count("rope.dimension_count")?;
    let plain = heads.dim.saturating_sub(rotated);
    if plain == 0 {
        let expected = format!("fewer than the {} of a head", heads.dim);
        return Err(keys.bad("rope.dimension_count", expected, rotated));
    }
    let rank = keys.count("attention.kv_lora_rank")?;
    let widest = rank.saturating_add(rotated);
    check_width(keys, "attention.kv_lora_rank", n_head, widest)?;
    let (key, value) = keyed(keys, VALUE)?.unwrap_or((VALUE[1], n_embd / n_head[0]));
    if value == 0 {
        return Err(keys.bad(key, "at least 1", value));
    }
    check_width(keys, key, n_head, plain.saturating_add(value))?;
    let absorbed = |name| Ok::<_, Error>(keys.integer(name)?.is_some_and(|value| value > 0));
    Ok(Some(Latent {
        query_rank: read_query_rank(keys)?,
        rank,
        plain,
        rotated,
        value,
        absorbed: absorbed(KEY[0])? && absorbed(VALUE[0])?,
    }))
}

/// Files of smaller models may have the key without the tensors.
fn read_query_rank(keys: &Keys<'_>) -> Result<Option<usize>, Error> {
    const RANK: &str = "attention.q_lora_rank";
    if keys.gguf.tensor("blk.0.attn_q_a.weight").is_none() {
        return Ok(None);
    }
    let rank = keys.count(RANK)?;
    if rank > MAX_WIDTH {
        return Err(keys.bad(RANK, format!("at most {MAX_WIDTH}"), rank));
    }
    Ok(Some(rank))
}

/// What longer contexts make of scores, beside the root of a head's width: the square of what they
/// make of the magnitude, and of what the multiplier, stored as a tenth, makes.
pub(super) fn read_score_scale(
    keys: &Keys<'_>,
    head_dim: usize,
    magnitude: f64,
) -> Result<f64, Error> {
    let plain = 1.0 / (head_dim as f64).sqrt();
    if keys.gguf.str(&keys.name("rope.scaling.type"))? != Some("yarn") {
        return Ok(plain);
    }
    let multiplier = keys.number("rope.scaling.yarn_log_multiplier")?;
    let factor = keys.factor("rope.scaling.factor")?.unwrap_or(1.0);
    let scale = magnitude * (1.0 + multiplier.unwrap_or(0.0) * factor.ln());
    Ok(scale * scale * plain)
}
