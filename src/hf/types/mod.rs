//! Names and settings of folders, and what llama.cpp's converter makes of them: a row for each
//! `model_type`.
//!
//! A row gives the architecture, the keys of settings, the names of tensors, and the permutation of
//! rows. Settings that a row cannot express are refused by name.

mod bailing;
mod delta;
mod dense;
mod embedders;
mod gemma4;
mod granite4;
mod latent;
mod lfm2;
mod mamba;
mod mixtures;
mod names;
mod nemotron;
mod older;
mod rules;
mod seeing;

use gguf_rs_lite::View;

pub(super) use gemma4::global_head_dim;
pub(super) use seeing::{WRAPPERS, Wrapper};

use super::Error;
use super::config::Config;
use super::layout::Rule;
use super::rows::{Change, Factors};
use super::settings::Settings;

/// Row of one `model_type`.
pub(super) struct ModelType {
    /// Name of the `model_type`.
    pub(super) name: &'static str,
    /// Returns whether the row is meant, where several have the same name.
    pub(super) when: fn(&Settings) -> bool,
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// Preferred `tokenizer.ggml.pre`, where several names have the same patterns.
    pub(super) pre: &'static [&'static str],
    /// Settings with names of their own, and their usual names, as in transformers' attribute map.
    pub(super) attribute_map: &'static [(&'static str, &'static str)],
    /// Default values in transformers of settings that configurations leave out.
    pub(super) defaults: &'static [(&'static str, f64)],
    /// Settings that become keys.
    pub(super) keys: &'static [Key],
    /// Settings that must have the one implemented value.
    pub(super) only: &'static [Only],
    /// Names of activations that are allowed.
    pub(super) activations: &'static [&'static str],
    /// Whether any layer has attention.
    pub(super) attention: bool,
    /// Whether it maps texts to vectors: attention is not causal, and there is no output matrix.
    pub(super) embeds: bool,
    /// Whether queries and keys are rotated.
    pub(super) rope: bool,
    /// Returns the number of KV heads, given the number of query heads.
    pub(super) heads_kv: fn(&Config, usize) -> Result<usize, Error>,
    /// Returns the width of feed-forward blocks, where the settings must give one.
    pub(super) n_ff: fn(&Config) -> Result<Option<usize>, Error>,
    /// Fraction of a head that is rotated, unless a setting gives it; `None` if all of it must be.
    pub(super) rotary: Option<f32>,
    /// Supported kinds of RoPE scaling, beside none.
    pub(super) scalings: &'static [&'static str],
    /// Treatment of `sliding_window`.
    pub(super) windows: Windows,
    /// Sets keys that the lists above cannot express.
    pub(super) extra: fn(&Config, &mut View) -> Result<(), Error>,
    /// Default of `tie_word_embeddings` in transformers.
    pub(super) tied: bool,
    /// Whether AWQ tensors can be read: every matrix of a layer is a `_proj` of its own.
    pub(super) awq: bool,
    /// Prefix that the names of all tensors may have.
    pub(super) prefix: &'static str,
    /// Prefixes of tensors that are not part of the model.
    pub(super) skipped: &'static [&'static str],
    /// Ends of the names of tensors that follow from the settings.
    pub(super) derived: &'static [&'static str],
    /// Whether layers after the last one, for multi-token prediction, are left out.
    pub(super) drops_ahead: bool,
    /// Suffixes of tensor names that do not follow the module scheme, and their replacements.
    pub(super) renamed: &'static [(&'static str, &'static str)],
    /// Names outside the layers, and GGUF's; the embedding first.
    pub(super) ends: &'static [(&'static str, &'static str)],
    /// Prefix of a layer's number.
    pub(super) layers: &'static str,
    /// Names inside layers, and GGUF's inside `blk.N.`.
    pub(super) modules: &'static [(&'static str, &'static str)],
    /// Modules that become several: name, GGUF's name, and rows.
    pub(super) cuts: &'static [(&'static str, &'static str, Cut)],
    /// Modules that every expert has, and GGUF's name for the stacked tensor; in a file's order.
    pub(super) experts: &'static [Expert],
    /// Whether experts' matrices have inputs in rows.
    pub(super) transposed: bool,
    /// Returns the rule for the rows or columns of the tensors with this GGUF name.
    pub(super) order: fn(&Config, &str) -> Result<Rule, Error>,
    /// Returns the factors of the rows of the weight with this GGUF name.
    pub(super) factors: fn(&Config, &str) -> Result<Vec<Factors>, Error>,
    /// Number added to the weights of norms,
    pub(super) norm_plus: f32,
    /// except for those whose names end like this.
    pub(super) plain_norms: &'static [&'static str],
    /// Names of the multi-token prediction tensors after `mtp.`, and their names in the layer after
    /// the last; empty if they have no names in GGUF.
    pub(super) ahead: &'static [(&'static str, &'static str)],
    /// Modules of a layer that have biases all together or not at all.
    pub(super) biases: &'static [Biases],
}

impl ModelType {
    /// Returns the change of a tensor's values.
    pub(super) fn change(&self, tensor: &str) -> Change {
        let is_plain = || self.plain_norms.iter().any(|end| tensor.ends_with(end));
        if tensor.ends_with(".log") {
            Change::MinusExp
        } else if self.norm_plus != 0.0 && tensor.ends_with("norm.weight") && !is_plain() {
            Change::Plus(self.norm_plus)
        } else {
            Change::Nothing
        }
    }
}

/// A setting that becomes a key.
#[derive(Clone, Copy)]
pub(super) struct Key {
    /// Key, after the architecture's name.
    pub(super) key: &'static str,
    /// Settings that may have it; the first that is there counts.
    pub(super) from: &'static [&'static str],
    /// Type of the value.
    pub(super) kind: Kind,
    /// Whether it may be missing.
    pub(super) optional: bool,
}

/// Type of a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A positive integer.
    Count,
    /// A positive integer, or 0.
    CountOrNone,
    Number,
    Flag,
}

const fn key(key: &'static str, from: &'static [&'static str], kind: Kind) -> Key {
    let optional = false;
    Key {
        key,
        from,
        kind,
        optional,
    }
}

impl Key {
    const fn optional(self) -> Key {
        Key {
            optional: true,
            ..self
        }
    }
}

/// A setting with only one implemented value.
#[derive(Clone, Copy)]
pub(super) struct Only {
    /// Name of the setting.
    pub(super) key: &'static str,
    /// The implemented value.
    pub(super) is: Is,
}

/// The implemented value of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Is {
    /// True; the flag is the default.
    True(bool),
    /// False; the flag is the default.
    False(bool),
    /// This number, or not set.
    Number(f64),
    /// Not set, or an empty list.
    Nothing,
    /// This text, or not set.
    Text(&'static str),
}

const fn only(key: &'static str, is: Is) -> Only {
    Only { key, is }
}

/// Treatment of `sliding_window`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// Refused if narrower than the context, unless this flag says that it is not used.
    Refused(Option<&'static str>),
    /// Set as a key that loaders report as not applied, as llama.cpp's converter writes it.
    Reported,
    /// Set as a key; all layers but every n-th have a window, which the file does not say.
    Every(usize),
    /// The same if there is a window, with another key for the layers that have one.
    Marked(usize),
    /// Set as keys of the window and of its layers, both of which the settings must give.
    Listed,
}

/// Rows of a module's tensor that are left, in each expert if it has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    FirstHalf,
    SecondHalf,
    Even,
    Odd,
    /// Rows that [`ModelType::order`] gives.
    Ordered,
}

/// A module that every expert has.
#[derive(Clone, Copy)]
pub(super) struct Expert {
    /// Part of the name before the expert's number, inside a layer.
    pub(super) before: &'static str,
    /// Part of the name after it.
    pub(super) part: &'static str,
    /// GGUF's name for the stacked tensor.
    pub(super) gguf: &'static str,
}

/// Modules of a layer that have biases all together or not at all.
pub(super) struct Biases {
    /// Setting that says whether they do.
    pub(super) key: &'static str,
    /// Default of the setting.
    pub(super) unset: bool,
    /// Names of the modules, inside a layer.
    pub(super) modules: &'static [&'static str],
}

/// Rows of all `model_type`s; the first of an architecture is the one that folders are written as.
const ALL: [&[ModelType]; 13] = [
    embedders::ALL,
    dense::ALL,
    older::ALL,
    mixtures::ALL,
    bailing::ALL,
    gemma4::ALL,
    delta::ALL,
    lfm2::ALL,
    mamba::ALL,
    nemotron::ALL,
    granite4::ALL,
    latent::ALL,
    seeing::ALL,
];

/// Returns all rows.
pub(super) fn all() -> impl Iterator<Item = &'static ModelType> {
    ALL.into_iter().flatten()
}

/// Returns the row of a `model_type` for these settings.
pub(super) fn of_settings(model_type: &str, settings: &Settings) -> Option<&'static ModelType> {
    all().find(|row| row.name == model_type && (row.when)(settings))
}

/// Returns the row with which folders of an architecture are written.
pub(super) fn of_arch(arch: &str) -> Option<&'static ModelType> {
    all().find(|t| t.arch == arch)
}

/// Returns the number of KV heads as most configurations give it.
fn usual_heads_kv(config: &Config, heads: usize) -> Result<usize, Error> {
    Ok(config
        .optional_count("num_key_value_heads")?
        .unwrap_or(heads))
}

/// Row of LLaMA, whose names and settings most others share.
const LLAMA: ModelType = ModelType {
    name: "llama",
    when: |_| true,
    arch: "llama",
    pre: &[],
    attribute_map: &[],
    defaults: &[],
    keys: names::RMS,
    only: &[],
    activations: &["silu", "swish"],
    attention: true,
    embeds: false,
    rope: true,
    heads_kv: usual_heads_kv,
    n_ff: |config| config.count("intermediate_size").map(Some),
    rotary: None,
    scalings: &["linear", "yarn", "llama3"],
    windows: Windows::Refused(None),
    extra: |_, _| Ok(()),
    tied: false,
    awq: true,
    prefix: "",
    skipped: &[],
    derived: &["rotary_emb.inv_freq"],
    drops_ahead: false,
    renamed: &[],
    ends: names::ENDS,
    layers: "model.layers.",
    modules: names::LLAMA,
    cuts: &[],
    experts: &[],
    transposed: false,
    order: |_, _| Ok(Rule::Same),
    factors: |_, _| Ok(Vec::new()),
    norm_plus: 0.0,
    plain_norms: &[],
    ahead: &[],
    biases: &[names::ATTENTION_BIAS, names::MLP_BIAS],
};
