//! Sizes of tiles: which one of several an image is cut into.

use super::super::hparams::Keys;
use super::VisionOracle;
use crate::Error;
use gguf_rs_lite::Value;

/// Side of LFM2-VL's tiles in pixels.
pub(super) const LFM2_TILE: usize = 512;
/// Fewest and most tiles of an image that LFM2-VL cuts.
const LFM2_TILES: std::ops::RangeInclusive<usize> = 2..=10;

/// Returns the size in which most of an image's pixels are left, then the one that wastes the
/// fewest, then the first.
pub(super) fn best_size([width, height]: [usize; 2], all: &[[usize; 2]]) -> Option<[usize; 2]> {
    let worth = |[across, down]: [usize; 2]| {
        let (w, h) = (across as f32, down as f32);
        let factor = (w / width as f32).min(h / height as f32);
        let scaled = (width as f32 * factor) as usize * (height as f32 * factor) as usize;
        let kept = scaled.min(width * height);
        (kept, std::cmp::Reverse(across * down - kept))
    };
    // of equals `max_by_key` takes the last
    all.iter().rev().copied().max_by_key(|size| worth(*size))
}

impl VisionOracle<'_> {
    /// Returns the sizes of tiled images that LLaVA's file lists, none in 1.5.
    pub(super) fn listed_sizes(&self, keys: &Keys<'_>) -> Result<Vec<[usize; 2]>, Error> {
        const SIZES: &str = "image_grid_pinpoints";
        let Some(value) = self.gguf.get(&keys.name(SIZES)) else {
            return Ok(Vec::new());
        };
        let side = |v: Value<'_>| match v {
            Value::I32(x) => usize::try_from(x).ok(),
            Value::U32(x) => usize::try_from(x).ok(),
            _ => None,
        };
        let sides: Option<Vec<usize>> = match &value {
            Value::Array(all) => all.iter().map(side).collect(),
            _ => None,
        };
        let sides = sides.ok_or_else(|| keys.missing(SIZES))?;
        Ok(sides.as_chunks().0.to_vec())
    }
}

/// Returns LFM2-VL's size of an image in tiles: the aspect ratio is the nearest, and of equal ones
/// the number of tiles is the largest of which the image's pixels fill more than half. `None` if
/// the image has at most twice the pixels of the largest that is not cut.
pub(super) fn lfm2_size(
    [width, height]: [usize; 2],
    [patch, unit]: [usize; 2],
    most_tokens: usize,
) -> Option<[usize; 2]> {
    let rounded = |side: usize| {
        let units = (side as f64 / unit as f64).round_ties_even() as usize;
        (units * unit).max(patch)
    };
    if rounded(width) * rounded(height) <= 2 * most_tokens * unit * unit {
        return None;
    }
    let aspect = width as f32 / height as f32;
    let off = |[w, h]: [usize; 2]| (aspect - w as f32 / h as f32).abs();
    let most = *LFM2_TILES.end();
    let all = (1..=most).flat_map(|w| (1..=most).map(move |h| [w, h]));
    let mut grids: Vec<[usize; 2]> = all.filter(|[w, h]| LFM2_TILES.contains(&(w * h))).collect();
    grids.sort_by_key(|[w, h]| w * h);
    let nearest = grids.iter().map(|grid| off(*grid)).fold(f32::MAX, f32::min);
    grids.retain(|grid| off(*grid) == nearest);
    let fills = |[w, h]: &&[usize; 2]| 2 * width * height > w * h * LFM2_TILE * LFM2_TILE;
    let best = grids[1..].iter().rev().find(fills).or(grids.first())?;
    Some(best.map(|n| n * LFM2_TILE))
}
