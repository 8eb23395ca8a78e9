//! What makes one vector of a text: whether tokens see those behind them, and the keys of pooling.

use serde::Serialize;

use super::{Hparams, MAX_WIDTH};
use crate::Error;
use crate::arch::Spec;
use crate::keys::{Keys, Source, show};

/// The key of architectures that may see all of a text.
pub(crate) const CAUSAL: &str = "attention.causal";

/// How the rows of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// They do not.
    None,
    /// Their mean.
    Mean,
    /// The first token's.
    #[serde(rename = "cls")]
    First,
    /// The last token's.
    Last,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::First, Pooling::Last];

    /// As programs call it.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }
}

/// Reads `pooling_type`. A reranker's is refused where rows are all that a model gives.
pub(super) fn read(k: &mut Keys<'_>, spec: &Spec) -> Result<Option<Pooling>, Error> {
    const KEY: &str = "pooling_type";
    if k.get(KEY).is_none() {
        return Ok(None);
    }
    match k.count(KEY, 0..=4, None)?.value {
        0 => Ok(Some(Pooling::None)),
        1 => Ok(Some(Pooling::Mean)),
        2 => Ok(Some(Pooling::First)),
        3 => Ok(Some(Pooling::Last)),
        _ if spec.causal => Ok(None),
        rank => {
            let expected = "0 (none), 1 (mean), 2 (first token) or 3 (last token)";
            Err(k.unsupported(KEY, expected, rank.to_string()))
        }
    }
}

/// Lets every token see all of its text, which the file must say unless there is a default.
pub(crate) fn see_all(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    default: Option<bool>,
) -> Result<(), Error> {
    let is_given = k.get(CAUSAL).is_some();
    let Some(default) = default.or(is_given.then_some(true)) else {
        return Err(k.missing(k.full(CAUSAL), "false"));
    };
    if k.flag(CAUSAL, default)? {
        return Err(k.unsupported(CAUSAL, "false", "true"));
    }
    for layer in &mut h.layers {
        layer.scores.causal = false;
        if h.arch.spec().embeds_positions {
            layer.rope = None;
        }
    }
    Ok(())
}

/// Reads how many token types there are: a key of the tokenizer's, which BERTs must have.
pub(crate) fn token_types(k: &mut Keys<'_>) -> Result<usize, Error> {
    const KEY: &str = "tokenizer.ggml.token_type_count";
    const EXPECTED: &str = "an integer from 1 to 65536";
    let Some(value) = k.gguf.get(KEY) else {
        return Err(k.missing(KEY.to_owned(), EXPECTED));
    };
    let count = value.as_int().and_then(|n| usize::try_from(n).ok());
    let count = count.filter(|n| (1..=1 << 16).contains(n));
    let count = count.ok_or_else(|| k.bad(KEY.to_owned(), EXPECTED, show(&value)))?;
    k.note(KEY.to_owned(), count, Source::File);
    Ok(count)
}

/// Reads the sizes of the products that follow pooling: from a row's width to another, and back.
pub(crate) fn dense_width(k: &mut Keys<'_>, h: &Hparams) -> Result<Option<usize>, Error> {
    const KEYS: [&str; 4] = [
        "dense_2_feat_in",
        "dense_2_feat_out",
        "dense_3_feat_in",
        "dense_3_feat_out",
    ];
    if KEYS.iter().all(|key| k.get(key).is_none()) {
        return Ok(None);
    }
    let outer = h.n_embd()..=h.n_embd();
    k.count(KEYS[0], outer.clone(), None)?;
    let width = k.count(KEYS[1], 1..=MAX_WIDTH, None)?.value;
    k.count(KEYS[2], width..=width, None)?;
    k.count(KEYS[3], outer, None)?;
    Ok(Some(width))
}
