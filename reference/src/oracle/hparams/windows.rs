//! Layers with a sliding window, and its length.

use super::super::architecture::{Architecture, WindowLength, Windows};
use super::keys::Keys;
use crate::Error;
use gguf_rs_lite::Value;

const LENGTH: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Reads the window of each layer; `None` if the architecture or the file has none.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<Option<Vec<Option<usize>>>, Error> {
    let Some(windows) = architecture.windows else {
        return Ok(None);
    };
    if windows.only_of.is_some_and(|only| only != n_layer) {
        return Ok(None);
    }
    let length = match windows.length {
        WindowLength::Chunks(length) => length,
        WindowLength::IfKeyed(length) => match keys.integer(LENGTH)? {
            None | Some(0) => return Ok(None),
            Some(_) => length,
        },
        WindowLength::Required => keys.count(LENGTH)?,
        WindowLength::Default(length) => keys.optional_count(LENGTH)?.unwrap_or(length),
        WindowLength::Optional => match keys.integer(LENGTH)? {
            None | Some(0) => return Ok(None),
            Some(length) => length,
        },
    };
    if windows.own_heads && keys.array(PATTERN, n_layer)?.is_none() {
        return Err(keys.bad(PATTERN, "an array of flags", "no array"));
    }
    let windowed = read_pattern(keys, &windows, n_layer)?;
    let window = |windowed: bool| windowed.then_some(length);
    Ok(Some(windowed.into_iter().map(window).collect()))
}

/// Reads an array of flags.
pub(super) fn read_flags(keys: &Keys<'_>, key: &str) -> Result<Vec<bool>, Error> {
    let Some(Value::Array(values)) = keys.gguf.get(&keys.name(key)) else {
        return Err(keys.bad(key, "an array of flags", "no array"));
    };
    let flags = values.iter().map(|value| match value {
        Value::Bool(flag) => Some(flag),
        other => other.as_int().map(|v| v != 0),
    });
    let flags: Option<Vec<bool>> = flags.collect();
    flags.ok_or_else(|| keys.bad(key, "an array of flags", "other values"))
}

/// Returns whether each layer has a window: from an array, or from a period whose last or first
/// layer has none.
fn read_pattern(keys: &Keys<'_>, windows: &Windows, n_layer: usize) -> Result<Vec<bool>, Error> {
    if let Some(values) = keys.array(PATTERN, n_layer)? {
        let flags = values.iter().map(|value| match value {
            Value::Bool(flag) => Some(*flag),
            other => other.as_int().map(|v| v != 0),
        });
        let flags: Option<Vec<bool>> = flags.collect();
        return flags.ok_or_else(|| keys.bad(PATTERN, "an array of flags", "other values"));
    }
    let period = keys.integer(PATTERN)?.unwrap_or(windows.period);
    let without = if windows.dense_first {
        0
    } else {
        period.wrapping_sub(1)
    };
    // a period of 0: every layer has a window
    Ok((0..n_layer)
        .map(|il| period == 0 || il % period != without)
        .collect())
}
