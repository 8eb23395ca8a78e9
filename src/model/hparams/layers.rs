//! Per-layer hyperparameters: kind of token mixing, heads and feed-forward width.

use octavo_kernels::{Alibi, CacheLayer, Scores, Xielu};

use crate::arch::Spec;
use crate::blocks::Block;
use crate::error::Error;
use crate::keys::{Keys, PerLayer};

use super::indexer::{IndexerHparams, KeyChoice};
use super::latent::{self, LatentHparams};
use super::{Hparams, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, recurrent};

/// A layer's token mixing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMixer {
    /// Attention over the cached tokens.
    Attention,
    /// A recurrence with a state.
    Recurrence,
    /// Both, in parallel.
    Both,
    /// None: the layer is a feed-forward block.
    Absent,
}

/// Sizes and attention settings of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerHparams {
    /// Attention, recurrence or both.
    pub mixer: TokenMixer,
    /// Query heads; 0 in layers without attention.
    pub n_head: usize,
    /// KV heads; divides `n_head`, and is 0 where that is.
    pub n_head_kv: usize,
    /// Width of one query or key head, and of a value head unless `value_dim` differs; even.
    pub head_dim: usize,
    /// Width of one value head.
    pub value_dim: usize,
    /// Feed-forward width; 0 where there is no dense block.
    pub n_ff: usize,
    /// Index in [`super::Hparams::ropes`] of its rotary embedding; `None` without RoPE.
    pub rope: Option<usize>,
    /// Mask, scale and cap of attention scores.
    pub scores: Scores,
    /// Limits of gated products in feed-forward blocks.
    pub clamps: Clamps,
    /// Activation of the ungated feed-forward block, where layers have coefficients of their own.
    pub xielu: Option<Xielu>,
    /// Layer whose keys and values it reads: itself, or an earlier one where it has none. In an
    /// assistant, whose layers read those of another model, it is the number of layers.
    pub kv_layer: usize,
    /// Place of these in the cache; the group is one of [`super::Hparams::caches`].
    pub cache: CacheLayer,
    /// Keys that attention sees.
    pub choice: KeyChoice,
    /// Place in the cache of the keys of its own indexer, if it has one.
    pub index_cache: CacheLayer,
}

/// Limits `c` of gated products, which are `min(silu(gate), c) * clamp(up, -c, c)` then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clamps {
    /// Of experts.
    pub experts: Option<f32>,
    /// Of shared experts and dense blocks.
    pub dense: Option<f32>,
}

/// Layers whose keys and values have the same shape and lifetime, and which share a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Number of layers.
    pub n_layer: usize,
    /// KV heads of each layer.
    pub n_head_kv: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Sliding window in positions, including the token's own; `None` is unlimited.
    pub window: Option<usize>,
}

/// Assigns each layer its place in the cache: groups hold layers with the same heads and window, in
/// the order of their first layers. Keys of indexers are a layer of their own.
pub(super) fn place_in_caches(
    layers: &mut [LayerHparams],
    indexer: Option<&IndexerHparams>,
) -> Vec<CacheGroup> {
    let mut groups: Vec<CacheGroup> = Vec::new();
    for l in 0..layers.len() {
        let layer = layers[l];
        if !layer.attends() {
            continue;
        }
        if layer.kv_layer != l {
            let own = layers.get(layer.kv_layer).map(|of| of.cache);
            layers[l].cache = own.unwrap_or(layer.cache);
            continue;
        }
        let empty = CacheGroup {
            n_layer: 0,
            n_head_kv: layer.n_head_kv,
            head_dim: layer.cache_dim(),
            window: layer.looks_back(),
        };
        layers[l].cache = place(&mut groups, empty);
        let indexer = indexer.filter(|_| layer.choice == KeyChoice::Own);
        if let Some(indexer) = indexer {
            let empty = CacheGroup {
                n_layer: 0,
                n_head_kv: 1,
                head_dim: indexer.key_dim,
                window: None,
            };
            layers[l].index_cache = place(&mut groups, empty);
        }
    }
    if groups.is_empty() {
        // positions are counted in pages even where no layer caches anything; the head width suits
        // every cache type and device
        groups.push(CacheGroup {
            n_layer: 0,
            n_head_kv: 1,
            head_dim: 32,
            window: None,
        });
    }
    groups
}

/// Adds a layer to the group of its shape, which is new if there is none.
fn place(groups: &mut Vec<CacheGroup>, empty: CacheGroup) -> CacheLayer {
    let like = |group: &CacheGroup| {
        CacheGroup {
            n_layer: 0,
            ..*group
        } == empty
    };
    let group = groups.iter().position(like).unwrap_or_else(|| {
        groups.push(empty);
        groups.len() - 1
    });
    let layer = groups[group].n_layer;
    groups[group].n_layer += 1;
    CacheLayer { group, layer }
}

impl LayerHparams {
    /// Returns whether the layer has attention.
    pub fn attends(&self) -> bool {
        matches!(self.mixer, TokenMixer::Attention | TokenMixer::Both)
    }

    /// Returns whether the layer has a recurrent state.
    pub fn recurs(&self) -> bool {
        matches!(self.mixer, TokenMixer::Recurrence | TokenMixer::Both)
    }

    /// Returns the window that limits the cache, in positions including the token's own; `None` is
    /// unlimited. A bidirectional text is never continued, so nothing of it falls out of a window.
    fn looks_back(&self) -> Option<usize> {
        self.scores.window.filter(|_| self.scores.causal)
    }

    /// Returns the total width of all query heads.
    pub fn q_width(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Returns the total width of all key heads.
    pub fn kv_width(&self) -> usize {
        self.n_head_kv * self.head_dim
    }

    /// Returns the total width of all value heads.
    pub fn v_width(&self) -> usize {
        self.n_head_kv * self.value_dim
    }

    /// Returns the width of a cached key or value: that of the wider one, to which the other is
    /// padded.
    pub fn cache_dim(&self) -> usize {
        self.head_dim.max(self.value_dim)
    }

    /// Returns the total width of all cached keys (or values).
    pub fn cache_width(&self) -> usize {
        self.n_head_kv * self.cache_dim()
    }
}

impl Hparams {
    /// Returns the sizes shared by all layers, for formats that store only one; `None` where layers
    /// differ.
    pub fn every_layer(&self) -> Option<&LayerHparams> {
        let first = self.layers.first()?;
        let like_first = |l: &LayerHparams| {
            let (cache, kv_layer) = (first.cache, first.kv_layer);
            LayerHparams {
                cache,
                index_cache: first.index_cache,
                kv_layer,
                ..*l
            } == *first
        };
        self.layers.iter().all(like_first).then_some(first)
    }

    /// Returns the layer whose keys and values are cached there.
    pub fn layer_of(&self, cache: CacheLayer) -> Option<usize> {
        let is_there = |layer: &LayerHparams| layer.attends() && layer.cache == cache;
        self.layers.iter().position(is_there)
    }

    /// Returns the number of cached elements per position: keys and values of every layer and
    /// indexer.
    pub fn kv_elements_per_position(&self) -> usize {
        let layers = self.cached_layers(self.n_layer());
        let index = |layer: &LayerHparams| {
            let own = self.indexer.filter(|_| layer.choice == KeyChoice::Own);
            own.map_or(0, |indexer| indexer.key_dim)
        };
        2 * layers
            .map(|layer| layer.cache_width() + index(layer))
            .sum::<usize>()
    }

    /// Returns the bytes of a sequence's recurrent state, over all layers.
    pub fn state_bytes(&self) -> u64 {
        let Some(sizes) = self.recurrent else {
            return 0;
        };
        let layers = self.layers.iter().filter(|layer| layer.recurs());
        4 * (layers.count() * sizes.state_values(self.arch)) as u64
    }

    /// Returns those of the first `first` layers that have keys and values of their own, and so a
    /// place in the cache.
    pub fn cached_layers(&self, first: usize) -> impl Iterator<Item = &LayerHparams> {
        let all = self.layers[..first].iter().enumerate();
        all.filter(|(l, layer)| layer.attends() && layer.kv_layer == *l)
            .map(|(_, layer)| layer)
    }
}

/// Hyperparameters of every layer, and the largest head count that the file states. Cache groups
/// are assigned later, once windows are known.
pub(super) struct Layers {
    pub(super) layers: Vec<LayerHparams>,
    pub(super) latent: Option<LatentHparams>,
    pub(super) most_heads: usize,
}

/// Reads and checks the sizes of every layer.
pub(super) fn read(
    k: &mut Keys<'_>,
    spec: &Spec,
    n_embd: usize,
    n_layer: usize,
) -> Result<Layers, Error> {
    let may_lack = spec.reads.contains(&"expert_count") || spec.block == Block::OneOfBoth;
    let least = usize::from(!may_lack && spec.feeds_forward);
    let none = PerLayer::same(0, n_layer);
    let n_ff = k.per_layer(
        "feed_forward_length",
        n_layer,
        least..=MAX_WIDTH,
        Some(&none).filter(|_| least == 0),
    )?;
    let mut heads = read_heads(k, spec, n_layer)?;
    let most_heads = heads.n_head.iter().max().unwrap_or(0);
    let mixers = recurrent::token_mixers(k, spec, &heads.n_head_kv, &n_ff)?;
    for (l, mixer) in mixers.iter().enumerate() {
        if matches!(mixer, TokenMixer::Recurrence | TokenMixer::Absent) {
            heads.n_head.set(l, 0);
            heads.n_head_kv.set(l, 0);
        }
    }
    let Heads {
        n_head,
        mut n_head_kv,
    } = heads;
    let latent = latent::read(k, spec, n_embd, &n_head)?;
    if let Some(latent) = &latent {
        let attending = (0..n_layer).filter(|l| n_head.of(*l) > 0);
        attending.for_each(|l| n_head_kv.set(l, latent.key_heads(n_head.of(l))));
    }
    for (heads, kv) in n_head.iter().zip(n_head_kv.iter()) {
        if kv > 0 && heads % kv != 0 || kv == 0 && heads > 0 {
            let expected = format!("a divisor of attention.head_count ({heads})");
            let key = k.full("attention.head_count_kv");
            return Err(k.bad(key, expected, kv.to_string()));
        }
    }
    let (head_dim, value_dim) = match &latent {
        Some(latent) => (latent.key(), latent.key()),
        None => head_dims(k, spec, n_embd, &n_head)?,
    };
    let layers: Vec<LayerHparams> = (0..n_layer)
        .map(|l| LayerHparams {
            mixer: mixers[l],
            n_head: n_head.of(l),
            n_head_kv: n_head_kv.of(l),
            head_dim,
            value_dim,
            n_ff: n_ff.of(l),
            rope: spec.rotates.then_some(0),
            scores: Scores::plain(1.0 / (head_dim as f32).sqrt()),
            clamps: Clamps::default(),
            xielu: None,
            kv_layer: l,
            cache: CacheLayer { group: 0, layer: 0 },
            choice: KeyChoice::All,
            index_cache: CacheLayer { group: 0, layer: 0 },
        })
        .collect();
    Ok(Layers {
        layers,
        latent,
        most_heads,
    })
}

/// Head counts of every layer.
struct Heads {
    n_head: PerLayer,
    n_head_kv: PerLayer,
}

/// Reads the head counts. Layers that may be recurrent may have none.
fn read_heads(k: &mut Keys<'_>, spec: &Spec, n_layer: usize) -> Result<Heads, Error> {
    let range = usize::from(spec.recurrent.is_none())..=MAX_HEADS;
    let n_head = k.per_layer("attention.head_count", n_layer, range.clone(), None)?;
    let key = "attention.head_count_kv";
    let n_head_kv = k.per_layer(key, n_layer, range, Some(&n_head))?;
    Ok(Heads { n_head, n_head_kv })
}

/// Key of the width of value heads.
pub(crate) const VALUE_LENGTH: &str = "attention.value_length";

/// Reads the widths of a query or key head and of a value head, which are the same for all layers
/// with heads.
fn head_dims(
    k: &mut Keys<'_>,
    spec: &Spec,
    n_embd: usize,
    n_head: &PerLayer,
) -> Result<(usize, usize), Error> {
    let most_heads = n_head.iter().max().unwrap_or(0);
    if most_heads == 0 {
        return Ok((2, 2));
    }
    let attending = || n_head.iter().filter(|heads| *heads > 0);
    let default = n_embd / most_heads;
    if k.get("attention.key_length").is_none() {
        let fills = |heads: usize| n_embd.is_multiple_of(heads) && is_head_dim(n_embd / heads);
        if let Some(heads) = attending().find(|&heads| !fills(heads)) {
            let expected = format!(
                "heads of an even width up to {MAX_HEAD_DIM} that fill embedding_length {n_embd}"
            );
            return Err(k.bad(k.full("attention.head_count"), expected, heads.to_string()));
        }
        if attending().any(|heads| heads != most_heads) {
            let expected = "attention.key_length, where layers have unequal heads";
            return Err(k.missing(k.full("attention.key_length"), expected));
        }
    }
    let key = k
        .count("attention.key_length", 2..=MAX_HEAD_DIM, Some(default))?
        .value;
    if !is_head_dim(key) {
        let name = k.full("attention.key_length");
        return Err(k.bad(name, "an even number", key.to_string()));
    }
    let value = k
        .count(VALUE_LENGTH, 1..=MAX_HEAD_DIM, Some(default))?
        .value;
    let may_differ = spec.reads.contains(&VALUE_LENGTH);
    if may_differ && !is_head_dim(value) {
        return Err(k.bad(k.full(VALUE_LENGTH), "an even number", value.to_string()));
    }
    if value != key && !may_differ {
        let expected = format!("must equal attention.key_length, {key}");
        return Err(k.unsupported(VALUE_LENGTH, expected, value.to_string()));
    }
    if let Some(heads) = attending().find(|heads| spec.heads_fill_width && heads * key != n_embd) {
        let expected = format!("embedding_length / head_count = {n_embd} / {heads}");
        return Err(k.bad(k.full("attention.key_length"), expected, key.to_string()));
    }
    Ok((key, value))
}

pub(super) fn is_head_dim(width: usize) -> bool {
    width.is_multiple_of(2) && (2..=MAX_HEAD_DIM).contains(&width)
}

/// Lets scores fall with distance, by slopes that end at 2 to the power of minus `max_bias`.
pub(crate) fn alibi(h: &mut Hparams, max_bias: f32) {
    for layer in h.layers.iter_mut().filter(|layer| layer.attends()) {
        layer.scores.alibi = Some(Alibi {
            max_bias,
            heads: layer.n_head,
            first: 0,
        });
    }
}

/// Lets the last layers read the keys and values of the last layer of their kind before them.
pub(crate) fn share_caches(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    const KEY: &str = "attention.shared_kv_layers";
    let n_layer = h.n_layer();
    let shared = k.count(KEY, 0..=n_layer - 1, Some(0))?.value;
    let own = n_layer - shared;
    for l in own..n_layer {
        let behind = if h.layers[l].scores.window.is_some() {
            2
        } else {
            1
        };
        let like = |from: &usize| {
            let (a, b) = (&h.layers[*from], &h.layers[l]);
            a.scores.window == b.scores.window
                && (a.n_head_kv, a.head_dim) == (b.n_head_kv, b.head_dim)
        };
        let Some(from) = own.checked_sub(behind).filter(like) else {
            let expected = format!("layer {l} to have one of its kind {behind} before layer {own}");
            return Err(k.bad(k.full(KEY), expected, shared.to_string()));
        };
        h.layers[l].kv_layer = from;
    }
    Ok(())
}
