//! Searches for the scale (and minimum) of a small group of values that round with the least weighted error.
//!
//! The results must be ggml's to the last bit, so the order of every f32 operation matters here: products associate to
//! the left, sums run in index order, and nothing is fused.

use crate::bits::nearest_int;

/// Groups whose largest value is below this are stored as zeros.
pub(crate) const NEGLIGIBLE: f32 = 1e-15;

/// The value of largest magnitude, with its sign; the first one on ties, 0 for a group of zeros or NaNs.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// The sums from which the best scale for given levels follows: `scale = lx / l2`.
#[derive(Clone, Copy, Default)]
struct Sums {
    lx: f32,
    l2: f32,
}

impl Sums {
    fn add(&mut self, w: f32, x: f32, level: i32) {
        let l = level as f32;
        self.lx += w * x * l;
        self.l2 += w * l * l;
    }

    /// Whether these levels leave less error than `other`'s, compared without a division.
    fn beats(self, other: Sums) -> bool {
        self.lx * self.lx * other.l2 > other.lx * other.lx * self.l2
    }
}

/// `x ~ scale * (level - half)` with levels `0..2 * half`: 19 scales around the one that maps the extreme to `-half`.
///
/// A negligible group gives scale 0 and levels 0 (which is not `half`).
pub(crate) fn symmetric<const N: usize>(half: i32, x: &[f32; N], w: &[f32; N]) -> (f32, [u8; N]) {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        return (0.0, [0; N]);
    }
    let round = |iscale: f32| x.map(|v| nearest_int(iscale * v).clamp(-half, half - 1));
    let sums = |levels: &[i32; N]| {
        let mut sums = Sums::default();
        for i in 0..N {
            sums.add(w[i], x[i], levels[i]);
        }
        sums
    };
    let mut levels = round(-(half as f32) / max);
    let first = sums(&levels);
    let mut scale = if first.l2 != 0.0 { first.lx / first.l2 } else { 0.0 };
    let mut best = scale * first.lx;
    for step in (-9..=9).filter(|&s| s != 0) {
        let candidate = round(-(half as f32 + 0.1 * step as f32) / max);
        let s = sums(&candidate);
        if s.l2 > 0.0 && s.lx * s.lx > best * s.l2 {
            levels = candidate;
            scale = s.lx / s.l2;
            best = scale * s.lx;
        }
    }
    (scale, levels.map(|l| (l + half) as u8))
}

/// Like [`symmetric`] with weights `x^2`, but instead of trying scales it moves one level at a time, five rounds at most.
pub(crate) fn symmetric_by_moves<const N: usize>(half: i32, x: &[f32; N]) -> (f32, [u8; N]) {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        return (0.0, [0; N]);
    }
    let iscale = -(half as f32) / max;
    let mut levels = x.map(|v| nearest_int(iscale * v).clamp(-half, half - 1));
    let mut sums = Sums::default();
    for i in 0..N {
        sums.add(x[i] * x[i], x[i], levels[i]);
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let (w, l) = (x[i] * x[i], levels[i] as f32);
            let mut s = Sums { lx: sums.lx - w * x[i] * l, l2: sums.l2 - w * l * l };
            if s.lx > 0.0 {
                let moved = nearest_int(x[i] * s.l2 / s.lx).clamp(-half, half - 1);
                if moved != levels[i] {
                    s.add(w, x[i], moved);
                    if s.l2 > 0.0 && s.beats(sums) {
                        levels[i] = moved;
                        sums = s;
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = if sums.l2 > 0.0 { sums.lx / sums.l2 } else { 0.0 };
    (scale, levels.map(|l| (l + half) as u8))
}

/// Which inverse scales [`affine`] tries: `(max + start + step * i) / range` for `i` in `0..=steps`.
pub(crate) struct Search {
    pub(crate) start: f32,
    pub(crate) step: f32,
    pub(crate) steps: u8,
    /// Minimise absolute instead of squared differences.
    pub(crate) absolute: bool,
}

/// `x ~ scale * level - minus_min` with levels `0..=max` and a minimum that is never above zero.
///
/// Returns `(scale, minus_min, levels)`. For each candidate rounding the scale and minimum follow from weighted least
/// squares; the best one is kept.
pub(crate) fn affine<const N: usize>(max: u8, x: &[f32; N], w: &[f32; N], search: &Search) -> (f32, f32, [u8; N]) {
    let top = f32::from(max);
    let (mut lo, mut hi) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for i in 1..N {
        lo = if x[i] < lo { x[i] } else { lo };
        hi = if x[i] > hi { x[i] } else { hi };
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    // the range that candidates are rounded in starts at the best minimum so far
    let mut min = if lo > 0.0 { 0.0 } else { lo };
    if hi <= min {
        return (0.0, -min, [0; N]);
    }
    let round = |iscale: f32, min: f32| x.map(|v| nearest_int(iscale * (v - min)).clamp(0, i32::from(max)) as u8);
    let error = |levels: &[u8; N], scale: f32, min: f32| {
        let mut sum = 0.0;
        for i in 0..N {
            let diff = scale * f32::from(levels[i]) + min - x[i];
            sum += w[i] * if search.absolute { diff.abs() } else { diff * diff };
        }
        sum
    };
    let iscale = top / (hi - min);
    let (mut scale, mut levels) = (1.0 / iscale, round(iscale, min));
    let mut best: f32 = error(&levels, scale, min);
    for i in 0..=search.steps {
        let candidate = round((search.start + search.step * f32::from(i) + top) / (hi - min), min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for i in 0..N {
            let l = f32::from(candidate[i]);
            sum_l += w[i] * l;
            sum_l2 += w[i] * l * l;
            sum_xl += w[i] * l * x[i];
        }
        let det = sum_w * sum_l2 - sum_l * sum_l;
        if det > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let err = error(&candidate, this_scale, this_min);
            if err < best {
                (best, scale, min, levels) = (err, this_scale, this_min, candidate);
            }
        }
    }
    (scale, -min, levels)
}

/// `x ~ scale * level` for values that are not negative (the scales and minima of a super-block), levels `0..=max`:
/// nine scales by weighted squared error, then single moves as in [`symmetric_by_moves`].
///
/// A negative value (IQ2_XXS has them) gets the level 256 less the one it should have where levels are kept, as in ggml,
/// which keeps them in bytes.
pub(crate) fn positive<const N: usize>(max: u8, x: &[f32; N], w: &[f32; N]) -> (f32, [u8; N]) {
    let top = i32::from(max);
    let largest = x.iter().fold(0.0, |a: f32, &v| if a > v { a } else { v });
    if largest < NEGLIGIBLE {
        return (0.0, [0; N]);
    }
    let error = |scale: f32, levels: &[i32; N]| {
        let mut sum = 0.0;
        for i in 0..N {
            let diff = x[i] - scale * levels[i] as f32;
            sum += w[i] * diff * diff;
        }
        sum
    };
    let round = |iscale: f32| x.map(|v| nearest_int(iscale * v).min(top));
    let mut iscale = f32::from(max) / largest;
    let byte = |l: i32| i32::from(l as u8);
    let mut best: f32 = error(1.0 / iscale, &round(iscale).map(byte));
    for step in (-4..=4).filter(|&s| s != 0) {
        let candidate = (0.1 * step as f32 + f32::from(max)) / largest;
        let err = error(1.0 / candidate, &round(candidate));
        if err < best {
            (best, iscale) = (err, candidate);
        }
    }
    let mut levels = round(iscale);
    let mut sums = Sums::default();
    for i in 0..N {
        sums.add(w[i], x[i], levels[i]);
        levels[i] = byte(levels[i]);
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let l = levels[i] as f32;
            let mut s = Sums { lx: sums.lx - w[i] * x[i] * l, l2: sums.l2 - w[i] * l * l };
            if s.lx > 0.0 && s.l2 > 0.0 {
                let moved = nearest_int(x[i] * s.l2 / s.lx).min(top);
                if moved != levels[i] {
                    s.add(w[i], x[i], moved);
                    if s.beats(sums) {
                        levels[i] = byte(moved);
                        sums = s;
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = if sums.l2 > 0.0 { sums.lx / sums.l2 } else { 0.0 };
    (scale, levels.map(|l| l as u8))
}
