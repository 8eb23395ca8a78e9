//! Hyperparameters of embedding models: bidirectional attention, token types, and pooling.

use gguf_rs_lite::Value;
use serde::Serialize;

use super::{Hparams, MAX_WIDTH};
use crate::arch::{Classifier, Spec};
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
    /// Scores of the classifier of a reranker.
    Rank,
}

impl Pooling {
    /// Every kind of pooling.
    pub const ALL: [Pooling; 5] = [
        Pooling::None,
        Pooling::Mean,
        Pooling::First,
        Pooling::Last,
        Pooling::Rank,
    ];

    /// Returns the name llama.cpp's tools use.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        }
    }
}

/// Reads `pooling_type`. A reranker's (rank) needs an architecture with classifiers.
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
        _ if spec.classifier.is_some() => Ok(Some(Pooling::Rank)),
        _ if spec.causal => Ok(None),
        rank => {
            let expected = "0 (none), 1 (mean), 2 (first token) or 3 (last token)";
            Err(k.unsupported(KEY, expected, rank.to_string()))
        }
    }
}

/// Reads the names of a classifier's scores, and the pooling of the rows into the one that it
/// scores.
pub(super) fn of_classifier(
    k: &mut Keys<'_>,
    spec: &Spec,
) -> Result<(Vec<String>, Option<Pooling>), Error> {
    Ok((labels(k, spec)?, scored(k, spec)?))
}

/// Reads the pooling of the rows into the one that a classifier scores.
fn scored(k: &mut Keys<'_>, spec: &Spec) -> Result<Option<Pooling>, Error> {
    const KEY: &str = "classifier.pooling_type";
    if spec.classifier != Some(Classifier::Gelu) || k.get(KEY).is_none() {
        return Ok(None);
    }
    match k.count(KEY, 0..=4, None)?.value {
        1 => Ok(Some(Pooling::Mean)),
        2 => Ok(Some(Pooling::First)),
        other => Err(k.unsupported(KEY, "1 (mean) or 2 (first token)", other.to_string())),
    }
}

/// Reads the names of a classifier's scores.
fn labels(k: &mut Keys<'_>, spec: &Spec) -> Result<Vec<String>, Error> {
    const KEY: &str = "classifier.output_labels";
    const MOST: usize = 1 << 16;
    let expected = format!("an array of 1 to {MOST} strings");
    let found = match k.get(KEY) {
        Some(found) if spec.classifier.is_some() => found,
        _ => return Ok(Vec::new()),
    };
    let wrong = |k: &Keys<'_>| k.bad(k.full(KEY), expected.clone(), show(&found));
    let Value::Array(array) = &found else {
        return Err(wrong(k));
    };
    let strings = array
        .strings()
        .filter(|_| (1..=MOST).contains(&array.len()));
    let Some(strings) = strings else {
        return Err(wrong(k));
    };
    let labels = strings.map(|text| String::from_utf8_lossy(text).into_owned());
    let labels: Vec<String> = labels.collect();
    k.note(k.full(KEY), labels.len(), Source::File);
    Ok(labels)
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
