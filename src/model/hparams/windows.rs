//! Layers with sliding-window attention, and their RoPE.

use gguf_rs_lite::Value;

use crate::error::Error;
use crate::keys::{Keys, show};

use super::layers::is_head_dim;
use super::{Hparams, MAX_HEAD_DIM, RopeHparams, ScalingKind};

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Sizes of windows.
const RANGE: std::ops::RangeInclusive<usize> = 1..=i32::MAX as usize;

/// Which layer of a period has no window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dense {
    First,
    Last,
}

/// Sets the window of the layers that have one: those the file marks, or else all but every
/// `period`th. Without a window size in the file it is `default`, or no layer has one. Returns
/// whether any layer has a window.
pub(crate) fn windows(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    period: usize,
    default: Option<usize>,
) -> Result<bool, Error> {
    if k.get(WINDOW).is_none() && default.is_none() {
        return Ok(false);
    }
    stated(k, h, default, (period, Dense::Last))
}

/// Does the same for files that must state a window size.
pub(crate) fn required_windows(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    period: usize,
) -> Result<bool, Error> {
    stated(k, h, None, (period, Dense::Last))
}

/// Does the same, but of each period the first layer has no window.
pub(crate) fn windows_after_dense(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    period: usize,
) -> Result<bool, Error> {
    if no_window(k) {
        return Ok(false);
    }
    stated(k, h, None, (period, Dense::First))
}

/// Does the same for files that must state a window size, and which layers have it.
pub(crate) fn flagged_windows(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if !matches!(k.get(PATTERN), Some(Value::Array(_))) {
        return Err(k.missing(k.full(PATTERN), "a flag for each layer"));
    }
    required_windows(k, h, 1)?;
    Ok(())
}

/// Gives windows of a constant size to the layers that the file or the period marks; of each
/// period, the first or the last layer has none.
pub(crate) fn constant_windows(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    window: usize,
    period: usize,
    dense_first: bool,
) -> Result<(), Error> {
    let dense = if dense_first {
        Dense::First
    } else {
        Dense::Last
    };
    let has = pattern(k, h.n_layer(), period, dense)?;
    give(h, window, &has);
    Ok(())
}

/// Removes RoPE from every `period`th layer.
pub(crate) fn no_rope_every(period: usize, h: &mut Hparams) {
    for layer in h.layers.iter_mut().skip(period - 1).step_by(period) {
        layer.rope = None;
    }
}

/// Reads the window size, and gives it to the layers that the file or the period marks.
fn stated(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    default: Option<usize>,
    (period, dense): (usize, Dense),
) -> Result<bool, Error> {
    let window = k.count(WINDOW, RANGE, default)?.value;
    let has = pattern(k, h.n_layer(), period, dense)?;
    Ok(give(h, window, &has))
}

/// Gives layers a window; returns whether any has one.
fn give(h: &mut Hparams, window: usize, has: &[bool]) -> bool {
    for (layer, has) in h.layers.iter_mut().zip(has) {
        layer.scores.window = (*has && layer.attends()).then_some(window);
    }
    has.contains(&true)
}

/// Returns whether the file has no window, or one of 0.
fn no_window(k: &mut Keys<'_>) -> bool {
    let is_off = match k.get(WINDOW) {
        Some(window) => window.as_int() == Some(0),
        None => return true,
    };
    if is_off {
        k.note(k.full(WINDOW), 0, crate::keys::Source::File);
    }
    is_off
}

/// Does the same, treating a window of 0 as a missing key.
pub(crate) fn windows_or_none(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    period: usize,
) -> Result<bool, Error> {
    match no_window(k) {
        true => Ok(false),
        false => windows(k, h, period, None),
    }
}

/// Key of the layers with RoPE.
pub(crate) const ROPE_PATTERN: &str = "attention.rope_pattern";

/// Removes RoPE from the layers that the file's flags leave out.
pub(crate) fn rope_where_flagged(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let Some(rotated) = flags(k, ROPE_PATTERN, h.n_layer())? else {
        return match k.get(ROPE_PATTERN) {
            Some(v) => Err(k.bad(k.full(ROPE_PATTERN), "a flag for each layer", show(&v))),
            None => Ok(()),
        };
    };
    for (layer, rotated) in h.layers.iter_mut().zip(rotated) {
        layer.rope = layer.rope.filter(|_| rotated);
    }
    Ok(())
}

/// Returns the flags of the first `n_layer` layers, if the key has an array.
pub(super) fn flags(
    k: &mut Keys<'_>,
    key: &str,
    n_layer: usize,
) -> Result<Option<Vec<bool>>, Error> {
    let Some(Value::Array(flags)) = k.get(key) else {
        return Ok(None);
    };
    let flag = |v: Value<'_>| match v {
        Value::Bool(flag) => Some(flag),
        v => v.as_int().map(|flag| flag != 0),
    };
    let fits = [n_layer, n_layer + k.n_behind].contains(&flags.len());
    let all: Option<Vec<bool>> = flags.iter().take(n_layer).map(flag).collect();
    let all = all.filter(|_| fits).ok_or_else(|| {
        let expected = format!("a flag for each of {n_layer} layers");
        let got = format!("an array of {}", flags.len());
        k.bad(k.full(key), expected, got)
    })?;
    let shown: Vec<serde_json::Value> = all.iter().map(|flag| (*flag).into()).collect();
    k.note(k.full(key), shown, crate::keys::Source::File);
    Ok(Some(all))
}

/// Returns which layers have windows: from the file's flags, or from the period of those without.
fn pattern(
    k: &mut Keys<'_>,
    n_layer: usize,
    period: usize,
    dense: Dense,
) -> Result<Vec<bool>, Error> {
    if let Some(flags) = flags(k, PATTERN, n_layer)? {
        return Ok(flags);
    }
    if let Some(value @ (Value::Str(_) | Value::F32(_) | Value::F64(_))) = k.get(PATTERN) {
        let expected = "a flag for each layer, or an integer";
        return Err(k.bad(k.full(PATTERN), expected, show(&value)));
    }
    let period = k.count(PATTERN, 0..=i32::MAX as usize, Some(period))?.value;
    // as llama.cpp reads them: 0 is all layers, 1 is none
    let has = |l: usize| match dense {
        _ if period == 0 => true,
        Dense::First => !l.is_multiple_of(period),
        Dense::Last => l % period < period - 1,
    };
    Ok((0..n_layer).map(has).collect())
}

/// Gives layers with windows a RoPE base of their own, if the file has a different one.
pub(crate) fn sliding_window_rope_base(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let usual = h.ropes[0].freq_base.value;
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(usual))?;
    if base.value != usual {
        windows_turn_by(h, |rope| rope.freq_base = base);
    }
    Ok(())
}

/// Gives layers with windows a RoPE of their own, with base 10000 unless the file states another,
/// and neither scaling nor the file's divisors.
pub(crate) fn local_windows(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(10000.0))?;
    windows_turn_by(h, |rope| {
        rope.freq_base = base;
        rope.scaling.value = ScalingKind::None;
        rope.divided = false;
    });
    Ok(())
}

/// Removes RoPE from layers without windows. llama.cpp's graphs of such models use one base for all
/// layers.
pub(crate) fn only_windows_turn(k: &mut Keys<'_>, h: &mut Hparams) {
    let usual = f64::from(h.ropes[0].freq_base.value);
    k.warn_of_unheard("rope.freq_base_swa", &[usual]);
    for layer in h.layers.iter_mut().filter(|l| l.scores.window.is_none()) {
        layer.rope = None;
    }
}

/// Gives layers with windows a rotary embedding of their own, derived from the model's.
pub(crate) fn windows_turn_by(h: &mut Hparams, change: impl FnOnce(&mut RopeHparams)) {
    let mut rope = h.ropes[0].clone();
    change(&mut rope);
    if rope == h.ropes[0] {
        return;
    }
    h.ropes.push(rope);
    let own = h.ropes.len() - 1;
    for layer in h.layers.iter_mut().filter(|l| l.scores.window.is_some()) {
        layer.rope = Some(own);
    }
}

/// Gives layers with windows head widths and a RoPE of their own, without the file's divisors.
pub(crate) fn windows_have_heads(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    const HEAD_DIM: &str = "attention.key_length_swa";
    let usual = h.layers[0].head_dim;
    let head_dim = k.count(HEAD_DIM, 2..=MAX_HEAD_DIM, Some(usual))?.value;
    let value = k
        .count("attention.value_length_swa", 1..=usize::MAX, Some(head_dim))?
        .value;
    if !is_head_dim(head_dim) || value != head_dim {
        let expected = format!("an even number, which attention.value_length_swa ({value}) equals");
        return Err(k.bad(k.full(HEAD_DIM), expected, head_dim.to_string()));
    }
    for layer in h.layers.iter_mut().filter(|l| l.scores.window.is_some()) {
        (layer.head_dim, layer.value_dim) = (head_dim, head_dim);
    }
    let n_rot = k.count("rope.dimension_count_swa", 2..=head_dim, Some(head_dim))?;
    if n_rot.value % 2 != 0 {
        let key = k.full("rope.dimension_count_swa");
        return Err(k.bad(key, "an even number", n_rot.value.to_string()));
    }
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(10000.0))?;
    windows_turn_by(h, |rope| {
        (rope.n_rot, rope.freq_base) = (n_rot, base);
        rope.scaling.value = ScalingKind::None;
        rope.divided = false;
    });
    Ok(())
}
