//! What folders call things, and what llama.cpp's converter makes of them: a row for each
//! `model_type`.
//!
//! A row says which architecture the layers are, which settings become which keys, which tensors
//! have which names, and what happens to rows on the way. What a row cannot say is refused by name.

mod delta;
mod dense;
mod gemma4;
mod mixtures;
mod names;
mod rules;
mod seeing;

use gguf_rs_lite::View;

use super::Error;
use super::config::Config;
use super::layout::Rule;
use super::rows::Change;

/// One `model_type`.
pub(super) struct ModelType {
    /// Its name.
    pub(super) name: &'static str,
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// `tokenizer.ggml.pre`, of several names for the same patterns.
    pub(super) pre: &'static [&'static str],
    /// Values of settings that configurations leave out because transformers knows them.
    pub(super) defaults: &'static [(&'static str, f64)],
    /// Settings that become keys.
    pub(super) keys: &'static [Key],
    /// Settings that must say what is computed.
    pub(super) only: &'static [Only],
    /// Names of what gates, or feed-forward blocks without one, may go through.
    pub(super) activations: &'static [&'static str],
    /// The number of key and value heads, of so many query heads.
    pub(super) heads_kv: fn(&Config, usize) -> Result<usize, Error>,
    /// The width of feed-forward blocks, where settings must have one.
    pub(super) n_ff: fn(&Config) -> Result<Option<usize>, Error>,
    /// How much of a head turns unless a setting says; `None` where all of it must.
    pub(super) rotary: Option<f32>,
    /// Ways to scale positions, beside none.
    pub(super) scalings: &'static [&'static str],
    /// What becomes of `sliding_window`.
    pub(super) windows: Windows,
    /// What no list above can say.
    pub(super) extra: fn(&Config, &mut View) -> Result<(), Error>,
    /// What transformers takes `tie_word_embeddings` for where it is not set.
    pub(super) tied: bool,
    /// Whether AWQ's tensors can be read: every matrix of a layer is a `_proj` of its own.
    pub(super) awq: bool,
    /// Tensors that are no part of the model: beginnings of their names.
    pub(super) skipped: &'static [&'static str],
    /// Tensors by other names than modules have: ends of their names.
    pub(super) renamed: &'static [(&'static str, &'static str)],
    /// Names outside the layers, and GGUF's; the embedding first.
    pub(super) ends: &'static [(&'static str, &'static str)],
    /// What stands before a layer's number.
    pub(super) layers: &'static str,
    /// Names inside of layers, and GGUF's inside `blk.N.`.
    pub(super) modules: &'static [(&'static str, &'static str)],
    /// Modules that become several: a name, GGUF's, and which rows.
    pub(super) cuts: &'static [(&'static str, &'static str, Cut)],
    /// Modules that every expert has, and GGUF's name for all of them.
    pub(super) experts: &'static [Expert],
    /// Experts' matrices have inputs in rows.
    pub(super) transposed: bool,
    /// What happens to the rows or columns of the tensors with this of GGUF's names.
    pub(super) order: fn(&Config, &str) -> Result<Rule, Error>,
    /// What is added to the weights of norms,
    pub(super) norm_plus: f32,
    /// but for those whose names end so.
    pub(super) plain_norms: &'static [&'static str],
    /// Names of what predicts further tokens, `mtp.` before them, and what they are called in the
    /// layer behind the last; nothing if such tensors have no names in GGUF.
    pub(super) ahead: &'static [(&'static str, &'static str)],
    /// Modules of a layer that have biases all together or not at all.
    pub(super) biases: &'static [Biases],
}

impl ModelType {
    /// What becomes of the numbers of a folder's tensor.
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
    /// The key, behind the architecture's name.
    pub(super) key: &'static str,
    /// The settings that may have it; the first that is there counts.
    pub(super) from: &'static [&'static str],
    /// What it is.
    pub(super) kind: Kind,
    /// Whether it may be missing.
    pub(super) optional: bool,
}

/// What a setting is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A positive number without a fraction.
    Count,
    /// The same, or 0.
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

/// A setting with the one value that is implemented.
pub(super) struct Only {
    /// The setting.
    pub(super) key: &'static str,
    /// What it must be.
    pub(super) is: Is,
}

/// The one value of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Is {
    /// True; the second says what it is where nothing is said.
    True(bool),
    /// False; the second says what it is where nothing is said.
    False(bool),
    /// This number, or nothing.
    Number(f64),
    /// Nothing, or an empty list.
    Nothing,
}

const fn only(key: &'static str, is: Is) -> Only {
    Only { key, is }
}

/// What becomes of `sliding_window`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// One that is narrower than the context is refused, unless this flag says that it is not used.
    Refused(Option<&'static str>),
    /// A key that loaders report as not applied, as llama.cpp's converter writes it.
    Reported,
    /// A key; all layers but every so manieth have one, which is not said in the file.
    Every(usize),
    /// The same where there is a window, and which layers have one is a key, too.
    Marked(usize),
    /// Keys of a window and of which layers have it, both of which the settings must say.
    Listed,
}

/// Which rows of a module's tensor are rows of GGUF's, in each expert if it has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    FirstHalf,
    SecondHalf,
    Even,
    Odd,
    /// Those that [`ModelType::order`] says.
    Ordered,
}

/// A module that every expert has.
pub(super) struct Expert {
    /// What stands before the expert's number, inside a layer.
    pub(super) before: &'static str,
    /// What stands behind it.
    pub(super) part: &'static str,
    /// GGUF's name for all of them.
    pub(super) gguf: &'static str,
}

/// Modules of a layer that have biases all together or not at all.
pub(super) struct Biases {
    /// The setting that says so.
    pub(super) key: &'static str,
    /// What it is where it is not set.
    pub(super) unset: bool,
    /// The modules, inside a layer.
    pub(super) modules: &'static [&'static str],
}

/// Every `model_type`, of an architecture the one first that folders are written as.
const ALL: [&[ModelType]; 5] = [
    dense::ALL,
    mixtures::ALL,
    gemma4::ALL,
    delta::ALL,
    seeing::ALL,
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static ModelType> {
    ALL.into_iter().flatten()
}

/// The row of an architecture whose folders are written.
pub(super) fn of_arch(arch: &str) -> Option<&'static ModelType> {
    all().find(|t| t.arch == arch)
}

/// Key and value heads as most configurations have them.
fn usual_heads_kv(config: &Config, heads: usize) -> Result<usize, Error> {
    Ok(config
        .optional_count("num_key_value_heads")?
        .unwrap_or(heads))
}

/// What LLaMA's folders say, which most others say, too.
const LLAMA: ModelType = ModelType {
    name: "llama",
    arch: "llama",
    pre: &[],
    defaults: &[],
    keys: names::RMS,
    only: &[],
    activations: &["silu", "swish"],
    heads_kv: usual_heads_kv,
    n_ff: |config| config.count("intermediate_size").map(Some),
    rotary: None,
    scalings: &["linear", "yarn", "llama3"],
    windows: Windows::Refused(None),
    extra: |_, _| Ok(()),
    tied: false,
    awq: true,
    skipped: &[],
    renamed: &[],
    ends: names::ENDS,
    layers: "model.layers.",
    modules: names::LLAMA,
    cuts: &[],
    experts: &[],
    transposed: false,
    order: |_, _| Ok(Rule::Same),
    norm_plus: 0.0,
    plain_norms: &[],
    ahead: &[],
    biases: &[names::ATTENTION_BIAS, names::MLP_BIAS],
};
