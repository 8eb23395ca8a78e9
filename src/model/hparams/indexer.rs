//! Indexers: they score cached keys, and attention sees those that score highest.

use octavo_kernels::Pairing;

use crate::error::Error;
use crate::keys::Keys;

use super::{Hparams, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, windows};

/// Sizes of a model's indexers (DeepSeek V3.2's sparse attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexerHparams {
    /// Query heads.
    pub n_head: usize,
    /// Width of a query head and of the one key; the first values are rotated.
    pub key_dim: usize,
    /// Keys that a row of attention sees, at most.
    pub n_keys: usize,
    /// Epsilon of the norm of keys.
    pub eps: f32,
    /// Index in [`Hparams::ropes`] of their rotary embedding.
    pub rope: usize,
}

/// Keys that attention of a layer sees, of those that its scores allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChoice {
    /// All.
    All,
    /// Those that its own indexer chooses.
    Own,
    /// Those that the last indexer before it has chosen.
    Last,
}

/// Differences between architectures with indexers.
#[derive(Clone, Copy)]
pub(crate) struct IndexerRules {
    pub(crate) pairing: Pairing,
    pub(crate) eps: f32,
    /// Later layers may use the choice of an earlier one.
    pub(crate) shares: bool,
}

/// Context length from which files without the key mean [`is_own_by_default`].
const LONG_CONTEXT: usize = 1 << 20;

/// Reads the keys of the indexers, of which every layer has one or uses an earlier one's choice.
/// They read the low-rank rows of queries, and their attention is latent with absorbed weights.
pub(crate) fn indexers(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    rules: IndexerRules,
) -> Result<(), Error> {
    let latent = h.latent.as_mut().expect("its architecture has it");
    super::latent::require_absorbed(k, latent)?;
    if latent.query_rank.is_none() {
        // so that the tensor is missed
        let rank = k.count("attention.q_lora_rank", 1..=MAX_WIDTH, None)?;
        latent.query_rank = Some(rank.value);
    }
    let n_head = k.count("attention.indexer.head_count", 1..=MAX_HEADS, None)?;
    let rotated = latent.rotated;
    const KEY_LENGTH: &str = "attention.indexer.key_length";
    let key_dim = k.count(KEY_LENGTH, rotated..=MAX_HEAD_DIM, None)?.value;
    if !key_dim.is_multiple_of(2) {
        return Err(k.bad(k.full(KEY_LENGTH), "an even number", key_dim.to_string()));
    }
    let n_keys = k.count("attention.indexer.top_k", 1..=MAX_WIDTH, None)?;
    let mut rope = h.ropes[0].clone();
    rope.pairing = rules.pairing;
    let known = h.ropes.iter().position(|of| *of == rope);
    let rope = known.unwrap_or_else(|| {
        h.ropes.push(rope);
        h.ropes.len() - 1
    });
    h.indexer = Some(IndexerHparams {
        n_head: n_head.value,
        key_dim,
        n_keys: n_keys.value,
        eps: rules.eps,
        rope,
    });
    let own = match rules.shares {
        true => own_indexers(k, h)?,
        false => vec![true; h.n_layer()],
    };
    for (layer, own) in h.layers.iter_mut().zip(own) {
        layer.choice = if own { KeyChoice::Own } else { KeyChoice::Last };
    }
    Ok(())
}

/// Returns which layers have an indexer of their own.
fn own_indexers(k: &mut Keys<'_>, h: &Hparams) -> Result<Vec<bool>, Error> {
    const KEY: &str = "attention.indexer.types";
    let own = match windows::flags(k, KEY, h.n_layer())? {
        Some(own) => own,
        None if k.get(KEY).is_some() => vec![k.count(KEY, 0..=1, None)?.value == 1; h.n_layer()],
        None if h.n_ctx_train() < LONG_CONTEXT => vec![true; h.n_layer()],
        None => (0..h.n_layer()).map(is_own_by_default).collect(),
    };
    if own.first() == Some(&false) {
        let expected = "an indexer in the first layer";
        return Err(k.bad(k.full(KEY), expected, "0"));
    }
    Ok(own)
}

/// Returns whether a layer of GLM 5.2 has an indexer of its own: the first two, and then every
/// fourth.
fn is_own_by_default(l: usize) -> bool {
    l < 2 || l % 4 == 2
}
