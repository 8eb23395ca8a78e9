//! Hyperparameters: read from the metadata, checked in one pass before any tensor is read, each
//! with its source (file or default).
//!
//! Numbers come from the file. Keys that may be missing have documented defaults (the table in
//! `Hparams::from_gguf`), which the report shows as such; everything else that changes results is
//! an error naming the key, and so is a key that asks for something not implemented.

mod experts;
mod indexer;
mod latent;
mod layers;
mod pooling;
mod recurrent;
mod refused;
mod rope;
mod windows;

use gguf_rs_lite::{Gguf, Value};

use crate::arch::{Arch, Images, Spec};
use crate::blocks::{Block, Feature};
use crate::error::Error;
use crate::graph::Norm;
use crate::keys::{Entry, Keys, Source, Sourced, show};
use crate::taps;

use layers::Layers;

pub(crate) use experts::{
    DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, PREDICTION_LAYERS, RouterKeys, STATED,
    SharedWidth, experts, experts_after_dense, experts_if_any,
};
pub use experts::{Experts, Gating};
pub use indexer::{IndexerHparams, KeyChoice};
pub(crate) use indexer::{IndexerRules, indexers};
pub use latent::LatentHparams;
pub(crate) use latent::{latent_scores, unrotated_latent};
pub use layers::{CacheGroup, Clamps, LayerHparams, TokenMixer};
pub(crate) use layers::{VALUE_LENGTH, alibi, share_caches};
pub use pooling::Pooling;
pub(crate) use pooling::{CAUSAL, dense_width, see_all, see_all_if_asked, token_types};
pub use recurrent::{MixRanks, RecurrentHparams};
pub use rope::{RopeHparams, ScalingKind};
pub(crate) use rope::{SECTIONS, Sections, sections_if_any};
pub(crate) use windows::{
    ROPE_PATTERN, constant_windows, flagged_windows, local_windows, no_rope_every,
    only_windows_turn, required_windows, rope_where_flagged, sliding_window_rope_base, windows,
    windows_after_dense, windows_have_heads, windows_or_none, windows_turn_by,
};

/// Maximum number of layers (llama.cpp's limit is of the same size).
pub const MAX_LAYERS: usize = 1024;
/// Maximum embedding or feed-forward width; small enough that no product of two sizes overflows.
pub const MAX_WIDTH: usize = 1 << 24;
/// Maximum number of attention heads.
pub const MAX_HEADS: usize = 1 << 16;
/// Maximum head width.
pub const MAX_HEAD_DIM: usize = 1024;
/// Keys of [`Hparams::norm_eps`].
const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
pub(crate) const LAYER_EPSILON: &str = "attention.layer_norm_epsilon";
/// Key of [`Hparams::n_deepstack`].
pub(crate) const DEEPSTACK: &str = "n_deepstack_layers";
/// Fewest tensors of a layer (Nemotron H's norm, up and down): bounds the number of layers.
const MIN_TENSORS_PER_LAYER: usize = 3;

/// A model's hyperparameters, validated.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// The architecture.
    pub arch: Arch,
    /// Context length the model was trained for.
    pub context_length: Sourced<usize>,
    /// Embedding width.
    pub n_embd: Sourced<usize>,
    /// In an assistant, the embedding width of its target; 0 otherwise.
    pub n_embd_target: usize,
    /// Layers of the forward pass.
    pub n_layer: Sourced<usize>,
    /// Layers in the file, including multi-token prediction layers at the end.
    pub n_block: usize,
    /// Per-layer hyperparameters, in order.
    pub layers: Vec<LayerHparams>,
    /// Epsilon of every norm.
    pub norm_eps: Sourced<f32>,
    /// Constant factors of the forward pass.
    pub factors: Factors,
    /// Limit of the size of queries, keys and values before RoPE.
    pub qkv_limit: Option<f32>,
    /// Keys, queries and time steps of Mamba 1 are normed without weights.
    pub normed_steps: bool,
    /// Arrangement of attention and feed-forward block.
    pub(crate) block: Block,
    /// Width of the per-layer input of each token; 0 if there is none.
    pub n_embd_per_layer: usize,
    /// Experts, where layers have them.
    pub experts: Option<Experts>,
    /// Number of dense layers at the beginning, in models with experts.
    pub leading_dense: usize,
    /// Every n-th remaining layer has experts.
    pub expert_period: usize,
    /// Sizes of recurrent layers, if there are any.
    pub recurrent: Option<RecurrentHparams>,
    /// Widths of latent attention, where all layers use it.
    pub latent: Option<LatentHparams>,
    /// Sizes of indexers, where layers have them.
    pub indexer: Option<IndexerHparams>,
    /// Number of first layers whose results get deepstack features of images.
    pub n_deepstack: usize,
    /// Position-dependent scale of queries, if used.
    pub temperature: Option<Temperature>,
    /// Number of token types with embeddings.
    pub n_token_types: usize,
    /// Pooling of a text's rows into one, if the file states it.
    pub pooling: Option<Pooling>,
    /// Activation of the feed-forward block, where the file names another than the architecture's.
    pub(crate) activation: Option<Feature>,
    /// Pooling of the rows into the one that a classifier scores, if the file says.
    pub classifier_pooling: Option<Pooling>,
    /// Names of the scores of a classifier, if the file has them.
    pub labels: Vec<String>,
    /// Width between the two products after pooling, if there are any.
    pub dense: Option<usize>,
    /// Vocabulary size: the length of the token list, else `vocab_size`, else the embedding's rows.
    pub n_vocab: Sourced<usize>,
    /// Groups of layers that share block tables; [`LayerHparams::cache`] refers to one.
    pub caches: Vec<CacheGroup>,
    /// Rotary embeddings; [`LayerHparams::rope`] indexes them.
    pub ropes: Vec<RopeHparams>,
    entries: Vec<Entry>,
    warnings: Vec<String>,
}

/// Constant factors of the forward pass; 1 where an architecture has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Factor on token embeddings.
    pub embedding: f32,
    /// Factor on the results of attention and feed-forward blocks.
    pub residual: f32,
    /// Factor on the results of attention alone.
    pub attention: f32,
    /// Factor on the logits.
    pub logits: f32,
    /// Soft cap, `cap * tanh(logits / cap)`, applied after the factor.
    pub logit_cap: Option<f32>,
}

impl Factors {
    const NONE: Factors = Factors {
        embedding: 1.0,
        residual: 1.0,
        attention: 1.0,
        logits: 1.0,
        logit_cap: None,
    };
}

/// Position-dependent scale of queries: `1 + rate * ln(1 + floor((position + offset) / step))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Rate in this formula.
    pub rate: f32,
    /// Positions between two steps of the scale.
    pub step: usize,
    /// Added to positions.
    pub offset: usize,
    /// Only queries without RoPE are scaled.
    pub unrotated_only: bool,
}

impl Hparams {
    /// Reads and checks everything; touches no tensor data.
    ///
    /// Silent defaults: head_count_kv = head_count; key_length = value_length = embedding_length /
    /// head_count; rope.dimension_count = key_length; no rope.scaling (factor 1, attn_factor 1,
    /// beta_fast 32, beta_slow 1, original_context_length = context_length); vocab_size from the
    /// token list; alignment 32. Default with a warning: rope.freq_base 10000. No other key may be
    /// missing.
    pub fn from_gguf(gguf: &Gguf) -> Result<Hparams, Error> {
        let arch = Arch::of_file(gguf)?;
        let spec = arch.spec();
        let mut k = keys_of(gguf, spec);
        let context_length = k.count("context_length", 1..=i32::MAX as usize, None)?;
        let n_embd = k.count("embedding_length", 1..=MAX_WIDTH, None)?;
        let mut n_layer = k.count("block_count", 1..=MAX_LAYERS, None)?;
        let n_block = n_layer.value;
        if spec.reads.contains(&experts::PREDICTION_LAYERS) && spec.assists.is_none() {
            k.n_behind = experts::prediction_layers(&mut k, n_block)?;
            n_layer.value -= k.n_behind;
        }
        check_layers(&k, n_layer.value, gguf.tensors().len())?;
        let Layers {
            layers,
            latent,
            most_heads,
        } = layers::read(&mut k, spec, n_embd.value, n_layer.value)?;
        // an epsilon of 1 would make every norm return almost nothing: no model is trained so
        let norm_eps = k.positive(epsilon_key(&k, spec), 1.0, None)?;
        let rope = match layers.iter().find(|layer| layer.attends()) {
            Some(layer) if spec.rotates => {
                let head_dim = latent.map_or(layer.head_dim, |latent| latent.rotated);
                rope::read(&mut k, spec, head_dim, context_length.value)?
            }
            _ => rope::unused(spec, context_length.value),
        };
        let recurrent = recurrent::read(&mut k, spec, n_embd.value, most_heads)?;
        let n_deepstack = deepstack(&mut k, spec, n_layer.value)?;
        if spec.embeds_positions {
            k.forget_defaults("rope.");
        }
        let n_vocab = vocabulary(&mut k)?;
        let pooling = pooling::read(&mut k, spec)?;
        let (labels, classifier_pooling) = pooling::of_classifier(&mut k, spec)?;
        refused::refuse_unsupported(&mut k, spec, context_length.value)?;
        let mut h = Hparams {
            arch,
            context_length,
            n_embd,
            n_embd_target: 0,
            n_layer,
            n_block,
            layers,
            caches: Vec::new(),
            norm_eps,
            factors: Factors::NONE,
            qkv_limit: None,
            normed_steps: false,
            block: spec.block,
            n_embd_per_layer: 0,
            experts: None,
            leading_dense: 0,
            expert_period: 1,
            recurrent,
            latent,
            indexer: None,
            n_deepstack,
            temperature: None,
            n_token_types: 0,
            pooling,
            activation: None,
            classifier_pooling,
            labels,
            dense: None,
            n_vocab,
            ropes: vec![rope],
            entries: Vec::new(),
            warnings: Vec::new(),
        };
        (spec.read_hparams)(&mut k, &mut h)?;
        for layer in h.layers.iter_mut().filter(|layer| layer.attends()) {
            layer.scores.images = spec.images.see_each_other(layer.scores.window);
        }
        h.caches = layers::place_in_caches(&mut h.layers, h.indexer.as_ref());
        check_feed_forward(&k, &h)?;
        (h.entries, h.warnings) = (k.entries, k.warnings);
        Ok(h)
    }

    /// Returns every value in use, in a fixed order, with its source.
    pub fn report(&self) -> Vec<Entry> {
        self.entries.clone()
    }

    /// Returns what was assumed or left out, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the tap name of the low-rank row of queries.
    pub(crate) fn low_rank_query_tap(&self) -> &'static str {
        match self.indexer {
            Some(_) => taps::QR,
            None => taps::Q,
        }
    }

    /// Returns the embedding width.
    pub fn n_embd(&self) -> usize {
        self.n_embd.value
    }

    /// Returns the number of layers.
    pub fn n_layer(&self) -> usize {
        self.n_layer.value
    }

    /// Returns the vocabulary size.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab.value
    }

    /// Returns the context length the model was trained for.
    pub fn n_ctx_train(&self) -> usize {
        self.context_length.value
    }

    /// Returns which layers have a feed-forward block or experts.
    pub(crate) fn fed_layers(&self) -> Vec<bool> {
        let mixes_or_feeds = self.arch.spec().block == Block::OneOfBoth;
        let is_fed = |layer: &LayerHparams| !mixes_or_feeds || layer.mixer == TokenMixer::Absent;
        self.layers.iter().map(is_fed).collect()
    }

    /// Returns whether attention is causal, so that a text can be processed in chunks and
    /// continued. Otherwise a model returns embedding rows and no logits.
    pub fn is_causal(&self) -> bool {
        self.layers.iter().all(|layer| layer.scores.causal)
    }

    /// Returns the kind of norm: `RMS` or `layer`.
    pub fn norm_name(&self) -> &'static str {
        match self.arch.spec().norm {
            Norm::Rms | Norm::BiasedRms => "RMS",
            Norm::Layer => "layer",
        }
    }

    /// Returns the activation of the feed-forward blocks.
    pub(crate) fn feature(&self) -> Feature {
        self.activation.unwrap_or(self.arch.spec().feature)
    }

    /// Returns the epsilon of every norm.
    pub fn norm_eps(&self) -> f32 {
        self.norm_eps.value
    }

    /// Returns the width of the row given for an image token: its embedding and the deepstack
    /// features; 0 for text-only models.
    pub fn image_embedding_width(&self) -> usize {
        match self.arch.spec().images {
            Images::None => 0,
            _ => (1 + self.n_deepstack) * self.n_embd(),
        }
    }

    /// Returns whether heads are rotated by the axes of images (M-RoPE), and not by the places of
    /// tokens.
    pub fn has_image_axes(&self) -> bool {
        self.arch.spec().sections.is_some()
    }

    /// Returns whether tokens of an image attend to each other in some layers, so that an image
    /// must be computed in one step.
    pub fn sees_whole_images(&self) -> bool {
        self.layers.iter().any(|layer| layer.scores.images)
    }

    /// Sets the scale of every layer's attention scores.
    pub(crate) fn set_attention_scale(&mut self, scale: f32) {
        for layer in &mut self.layers {
            layer.scores.scale = scale;
        }
    }
}

/// Returns the reader of an architecture's keys, which has noted those of all files.
fn keys_of<'a>(gguf: &'a Gguf, spec: &Spec) -> Keys<'a> {
    let mut k = Keys::new(gguf, spec.name);
    k.note("general.architecture".to_owned(), spec.name, Source::File);
    let aligned = gguf
        .get("general.alignment")
        .map_or(Source::Default, |_| Source::File);
    k.note("general.alignment".to_owned(), gguf.alignment(), aligned);
    k
}

/// Returns the key of the epsilon of norms.
fn epsilon_key(k: &Keys<'_>, spec: &Spec) -> &'static str {
    match spec.norm {
        Norm::BiasedRms => RMS_EPSILON,
        Norm::Rms if !spec.reads.contains(&LAYER_EPSILON) => RMS_EPSILON,
        Norm::Rms if k.get(RMS_EPSILON).is_some() => RMS_EPSILON,
        Norm::Rms | Norm::Layer => LAYER_EPSILON,
    }
}

/// Refuses more layers of the forward pass than `n_tensors` tensors allow.
fn check_layers(k: &Keys<'_>, n_layer: usize, n_tensors: usize) -> Result<(), Error> {
    let most = n_tensors / MIN_TENSORS_PER_LAYER;
    if n_layer > most {
        let expected = match n_tensors {
            0 => "layers with tensors, but the file has no tensors (a vocabulary only)".to_owned(),
            n => format!("at most {most} layers in a file of {n} tensors"),
        };
        return Err(k.bad(k.full("block_count"), expected, n_layer.to_string()));
    }
    Ok(())
}

/// Checks that layers without experts have a feed-forward width, where an architecture has such
/// blocks.
fn check_feed_forward(k: &Keys<'_>, h: &Hparams) -> Result<(), Error> {
    let spec = h.arch.spec();
    let may_lack = !spec.feeds_forward || spec.block == Block::OneOfBoth;
    let is_fed = h.experts.is_some() || may_lack;
    if is_fed || h.layers.iter().all(|layer| layer.n_ff > 0) {
        return Ok(());
    }
    let key = k.full("feed_forward_length");
    let expected = format!("an integer from 1 to {MAX_WIDTH}, as there are no experts");
    Err(match k.get("feed_forward_length") {
        Some(_) => k.bad(key, expected, "0"),
        None => k.missing(key, expected),
    })
}

/// Reads the number of first layers that get deepstack features: never the last, after which only
/// the rows with outputs are left.
fn deepstack(k: &mut Keys<'_>, spec: &Spec, n_layer: usize) -> Result<usize, Error> {
    if !spec.reads.contains(&DEEPSTACK) {
        return Ok(0);
    }
    Ok(k.count(DEEPSTACK, 0..=n_layer - 1, Some(0))?.value)
}

fn vocabulary(k: &mut Keys<'_>) -> Result<Sourced<usize>, Error> {
    const LIST: &str = "tokenizer.ggml.tokens";
    // token ids are i32 in every GGUF tool
    const RANGE: std::ops::RangeInclusive<usize> = 1..=i32::MAX as usize;
    let list = match k.gguf.get(LIST) {
        None => None,
        Some(Value::Array(a)) => Some(a.len()),
        Some(v) => return Err(k.bad(LIST.to_owned(), "an array of strings", show(&v))),
    };
    let rows = k
        .gguf
        .tensor("token_embd.weight")
        .and_then(|t| t.dims.get(1))
        .and_then(|&n| usize::try_from(n).ok());
    let derived = list.or(rows);
    let said = k.count("vocab_size", RANGE, derived).map_err(|e| match e {
        Error::MissingKey { .. } => k.missing(LIST.to_owned(), "the token list"),
        e => e,
    })?;
    let value = list.unwrap_or(said.value);
    if !RANGE.contains(&value) {
        return Err(k.bad(LIST.to_owned(), "1 to 2147483647 tokens", value.to_string()));
    }
    if value != said.value {
        let key = k.full("vocab_size");
        k.warn(format!(
            "{key} is {} but the token list has {value}: the list decides",
            said.value
        ));
        k.entries.pop();
        k.note(key, value, Source::Default);
        return Ok(Sourced::default(value));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::json_f32;

    #[test]
    fn numbers_print_as_the_file_means_them() {
        assert_eq!(json_f32(1e-6).to_string(), "1e-6");
        assert_eq!(json_f32(10000.0).to_string(), "10000.0");
        assert_eq!(json_f32(f32::NAN), serde_json::Value::Null);
        assert_eq!(show(&Value::F32(1e-5)), "0.00001");
        assert_eq!(show(&Value::I8(-3)), "-3");
        assert_eq!(show(&Value::Str(b"a\nb\xff")), "\"a\\nb\u{fffd}\"");
    }
}
