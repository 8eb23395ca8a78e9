//! Numbers of embedding models, which return a row for each token instead of logits.

use super::super::architecture::Architecture;
use super::MAX_WIDTH;
use super::keys::Keys;
use crate::Error;

const TOKEN_TYPES: &str = "tokenizer.ggml.token_type_count";

/// Numbers of such models.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Rows {
    /// Number of token types with embeddings, if they have any.
    pub(in super::super) n_token_types: Option<usize>,
    /// Width between the two products after the last norm, if there are any.
    pub(in super::super) dense: Option<usize>,
}

/// Reads them; `None` for causal architectures.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
) -> Result<Option<Rows>, Error> {
    const CAUSAL: &str = "attention.causal";
    if architecture.causal {
        return Ok(None);
    }
    if keys.flag(CAUSAL)? == Some(true) {
        return Err(keys.bad(CAUSAL, "false", true));
    }
    let embedded = architecture.embedded;
    Ok(Some(Rows {
        n_token_types: match embedded.is_some_and(|embedded| embedded.types) {
            true => Some(read_token_types(keys)?),
            false => None,
        },
        dense: read_dense(keys, n_embd)?,
    }))
}

fn read_token_types(keys: &Keys<'_>) -> Result<usize, Error> {
    let count = keys.gguf.u32(TOKEN_TYPES)?.filter(|&count| count > 0);
    count
        .map(|count| count as usize)
        .ok_or_else(|| Error::MissingKey {
            file: keys.gguf.name().into(),
            key: TOKEN_TYPES.into(),
            expected: "at least 1",
        })
}

/// Reads the width between the two products.
fn read_dense(keys: &Keys<'_>, n_embd: usize) -> Result<Option<usize>, Error> {
    let Some(width) = keys.optional_count("dense_2_feat_out")? else {
        return Ok(None);
    };
    if width > MAX_WIDTH {
        return Err(keys.bad("dense_2_feat_out", format!("at most {MAX_WIDTH}"), width));
    }
    for (key, expected) in [
        ("dense_2_feat_in", n_embd),
        ("dense_3_feat_in", width),
        ("dense_3_feat_out", n_embd),
    ] {
        let got = keys.count(key)?;
        if got != expected {
            return Err(keys.bad(key, expected, got));
        }
    }
    Ok(Some(width))
}
