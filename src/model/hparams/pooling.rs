//! Hyperparameters of embedding models: bidirectional attention, token types, and pooling.

use serde::Serialize;

use super::{Hparams, MAX_WIDTH};
use crate::arch::Spec;
use crate::error::Error;
use crate::keys::{Keys, Source, show};

/// Key of architectures that may be bidirectional.
pub(crate) const CAUSAL: &str = "attention.causal";

/// Pooling of a text's rows into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// No pooling.
    None,
    /// Mean of all rows.
    Mean,
    /// First token's row.
    #[serde(rename = "cls")]
    First,
    /// Last token's row.
    Last,
}

impl Pooling {
    /// Every kind of pooling.
    pub const ALL: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::First, Pooling::Last];

    /// Returns the name llama.cpp's tools use.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }
}

/// Reads `pooling_type`. A reranker's (rank) is refused: only rows are returned here.
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

/// Makes attention bidirectional; the file must set `attention.causal` to false, unless there is a
/// default.
pub(crate) fn see_all(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    default: Option<bool>,
) -> Result<(), Error> {
    let is_set = k.get(CAUSAL).is_some();
    let Some(default) = default.or(is_set.then_some(true)) else {
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

/// Makes attention bidirectional where the file says so: a decoder that became an embedding model.
pub(crate) fn see_all_if_asked(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if k.get(CAUSAL).is_some() && !k.flag(CAUSAL, true)? {
        for layer in &mut h.layers {
            layer.scores.causal = false;
        }
    }
    Ok(())
}

/// Reads the number of token types: a tokenizer key that BERTs must have.
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

/// Reads the widths of the two products after pooling: from the row's width to another, and back.
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
