//! `llama-debug --save-logits`: `NAME.bin` has the last position's logits as raw f32,
//! `NAME-embeddings.bin` (with `--embedding --pooling none --embd-normalize -1`) `result_norm` of
//! every position; `NAME-tokens.bin` beside it has the ids as raw i32.

use std::path::{Path, PathBuf};

use super::{bad, whole};
use crate::Error;

/// Raw floats, and the prompt's tokens if available.
#[derive(Clone, Debug, PartialEq)]
pub struct Debug {
    /// Token ids, if `NAME-tokens.bin` exists.
    pub tokens: Option<Vec<u32>>,
    /// Values of the file.
    pub values: Vec<f32>,
    /// Whether the values are `result_norm` of all positions, instead of the last position's
    /// logits.
    pub embeddings: bool,
}

fn tokens_beside(path: &Path) -> PathBuf {
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    path.with_file_name(format!("{stem}-tokens.bin"))
}

/// Returns whether a file can have this format: whole floats, and either a file of ids beside it or
/// values in the range of logits.
pub(super) fn seems(path: &Path, head: &[u8]) -> bool {
    let whole = std::fs::metadata(path).is_ok_and(|m| m.len() > 0 && m.len().is_multiple_of(4));
    let plausible = |b: &[u8; 4]| {
        let x = f32::from_le_bytes(*b);
        x == 0.0 || x.is_finite() && (1e-12..1e6).contains(&x.abs())
    };
    whole && (tokens_beside(path).is_file() || head.as_chunks().0.iter().all(plausible))
}

/// Reads the values, and the ids beside them.
///
/// # Errors
/// Names the file and its fault.
pub fn read(path: &Path) -> Result<Debug, Error> {
    let bytes = whole(path)?;
    if bytes.is_empty() || bytes.len() % 4 != 0 {
        return Err(bad(
            path,
            "size",
            "whole f32 values",
            format!("{} bytes", bytes.len()),
        ));
    }
    let values = bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let beside = tokens_beside(path);
    let tokens = if beside.is_file() {
        Some(ids(&beside)?)
    } else {
        None
    };
    let embeddings = path
        .file_stem()
        .is_some_and(|stem| stem.to_string_lossy().ends_with("-embeddings"));
    Ok(Debug {
        tokens,
        values,
        embeddings,
    })
}

fn ids(path: &Path) -> Result<Vec<u32>, Error> {
    let bytes = whole(path)?;
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(bad(
            path,
            "size",
            "whole i32 ids",
            format!("{} bytes", bytes.len()),
        ));
    }
    let id = |word: &[u8; 4]| {
        let id = i32::from_le_bytes(*word);
        u32::try_from(id).map_err(|_| bad(path, "id", "at least 0", id.to_string()))
    };
    words.iter().map(id).collect()
}
