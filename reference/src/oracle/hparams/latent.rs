//! Reads the widths and the scale of multi-head latent attention (MLA).

use super::super::architecture::Architecture;
use super::super::rope::RopePairs;
use super::MAX_WIDTH;
use super::keys::{Keys, check_width};
use super::windows;
use crate::Error;

/// The widths of latent attention.
#[derive(Debug)]
pub(in super::super) struct Latent {
    /// Width of the low-rank row of queries (`q_lora_rank`), where they have one.
    pub(in super::super) query_rank: Option<usize>,
    /// Width of the latent row of keys and values (`kv_lora_rank`).
    pub(in super::super) rank: usize,
    /// Dimensions of a head's query or key without RoPE; they come first.
    pub(in super::super) plain: usize,
    /// Rotated dimensions; all heads share those of the key.
    pub(in super::super) rotated: usize,
    /// Width of a head's value.
    pub(in super::super) value: usize,
    /// Weights are absorbed: heads read the latent row itself, with one matrix for queries and one
    /// for values.
    pub(in super::super) absorbed: bool,
    /// Choice of the keys that attention sees, where the architecture has one.
    pub(in super::super) indexer: Option<Indexer>,
}

/// Indexers of sparse attention.
#[derive(Debug)]
pub(in super::super) struct Indexer {
    pub(in super::super) n_head: usize,
    /// Width of a head, and of the one key.
    pub(in super::super) key_dim: usize,
    /// Keys that a row sees, at most.
    pub(in super::super) n_keys: usize,
    /// Epsilon of the norm of keys.
    pub(in super::super) eps: f64,
    /// Pairs that are rotated.
    pub(in super::super) pairs: RopePairs,
    /// Which layers have one of their own; the others use the last one's choice.
    pub(in super::super) own: Vec<bool>,
}

const KEY: [&str; 2] = ["attention.key_length_mla", "attention.key_length"];
const VALUE: [&str; 2] = ["attention.value_length_mla", "attention.value_length"];

/// Returns the first key that is set; 0 counts as missing.
fn keyed<'k>(keys: &Keys<'_>, names: [&'k str; 2]) -> Result<Option<(&'k str, usize)>, Error> {
    for name in names {
        if let Some(value) = keys.integer(name)?.filter(|&value| value > 0) {
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}

/// Reads the width of a head's query and key before weight absorption.
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
    n_head: &[usize],
    head_dim: usize,
) -> Result<Option<Latent>, Error> {
    if !architecture.latent {
        return Ok(None);
    }
    let rotated = keys.count("rope.dimension_count")?;
    let plain = head_dim.saturating_sub(rotated);
    if plain == 0 {
        let expected = format!("fewer than the {head_dim} of a head");
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
        indexer: read_indexer(keys, architecture, n_head.len(), rotated)?,
    }))
}

/// Reads the sizes of indexers, and which layers have one.
fn read_indexer(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
    rotated: usize,
) -> Result<Option<Indexer>, Error> {
    const TYPES: &str = "attention.indexer.types";
    let Some(facts) = architecture.indexer else {
        return Ok(None);
    };
    for key in [KEY[0], VALUE[0]] {
        keys.count(key)?;
    }
    let count = |name: &str| {
        let key = format!("attention.indexer.{name}");
        match keys.count(&key)? {
            value if value > MAX_WIDTH => {
                Err(keys.bad(&key, format!("at most {MAX_WIDTH}"), value))
            }
            value => Ok(value),
        }
    };
    let (n_head, key_dim, n_keys) = (count("head_count")?, count("key_length")?, count("top_k")?);
    check_width(keys, "attention.indexer.head_count", &[n_head], key_dim)?;
    if key_dim < rotated {
        let expected = format!("at least the {rotated} that are rotated");
        return Err(keys.bad("attention.indexer.key_length", expected, key_dim));
    }
    let is_long = keys
        .integer("context_length")?
        .is_some_and(|n| n >= 1 << 20);
    let own: Vec<bool> = match keys.array(TYPES, 0)? {
        _ if !facts.shared => vec![true; n_layer],
        Some(_) => windows::read_flags(keys, TYPES)?,
        // GLM 5.2
        None if is_long => (0..n_layer)
            .map(|il| il == 0 || il == 1 || (il + 2) % 4 == 0)
            .collect(),
        None => vec![true; n_layer],
    };
    if own.len() < n_layer || !own[0] {
        let expected = format!("a flag for each of {n_layer} layers, the first one set");
        return Err(keys.bad(TYPES, expected, "others"));
    }
    Ok(Some(Indexer {
        n_head,
        key_dim,
        n_keys,
        eps: facts.eps,
        pairs: facts.pairs,
        own,
    }))
}

/// Reads the rank of queries. Files of smaller models may have the key without the tensors.
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

/// Reads the factor on scores: beside `1 / sqrt(width)`, the square of the YaRN magnitude and of
/// the multiplier's term. The key stores a tenth of the multiplier.
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
