//! Searches for the scale (and minimum) of a small group of values with the least weighted rounding
//! error.
//!
//! The results must equal ggml's to the last bit, so the order of every f32 operation matters here:
//! products associate to the left, sums run in index order, and nothing is fused. A sum in order
//! cannot be vectorized, but the groups of a block are independent: the searches process all of
//! them side by side, without branches.

use crate::bits::nearest_int;

/// Groups whose largest value is below this are stored as zeros.
pub(crate) const NEGLIGIBLE: f32 = 1e-15;

/// Returns the value of largest magnitude, with its sign; the first one on ties, 0 for a group of
/// zeros or NaNs.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0,
        |best: f32, &v| if v.abs() > best.abs() { v } else { best },
    )
}

/// Sums that determine the best scale for given levels: `scale = lx / l2`.
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

    /// Returns whether these levels leave less error than `other`'s, compared without a division.
    fn beats(self, other: Sums) -> bool {
        self.lx * self.lx * other.l2 > other.lx * other.lx * self.l2
    }
}

/// One number for each of `L` groups.
pub(crate) type Lanes<const L: usize> = [f32; L];

/// Transposes `L` groups: value `i` of every group, then value `i + 1`.
pub(crate) fn side_by_side<const N: usize, const L: usize>(
    groups: &[[f32; N]; L],
) -> [Lanes<L>; N] {
    std::array::from_fn(|i| std::array::from_fn(|g| groups[g][i]))
}

/// Transposes levels back to groups.
fn apart<const N: usize, const L: usize>(levels: &[Lanes<L>; N]) -> [[u8; N]; L] {
    std::array::from_fn(|g| std::array::from_fn(|i| levels[i][g] as u8))
}

/// Rounds with [`nearest_int`], clamps, and returns a float.
fn nearest_within(v: f32, low: i32, high: i32) -> f32 {
    nearest_int(v).clamp(low, high) as f32
}

/// Does the same for values known to be below 2^22: the adder alone rounds them.
fn nearest_small(v: f32, low: f32, high: f32) -> f32 {
    let v = (v + 12_582_912.0) - 12_582_912.0;
    let v = if v < low { low } else { v };
    if v > high { high } else { v }
}

/// Returns the [`extreme`] of each group.
fn extremes<const N: usize, const L: usize>(x: &[Lanes<L>; N]) -> Lanes<L> {
    let mut best = [0.0f32; L];
    for x in x {
        for g in 0..L {
            best[g] = if x[g].abs() > best[g].abs() {
                x[g]
            } else {
                best[g]
            };
        }
    }
    best
}

/// Scales and levels of groups.
pub(crate) struct Symmetric<const N: usize, const L: usize> {
    pub(crate) scales: [f32; L],
    pub(crate) levels: [[u8; N]; L],
}

impl<const N: usize, const L: usize> Symmetric<N, L> {
    /// Converts levels around zero; negligible groups get scale 0 and levels 0 (not `half`).
    fn new(
        max: &Lanes<L>,
        scales: Lanes<L>,
        half: i32,
        mut levels: [Lanes<L>; N],
    ) -> Symmetric<N, L> {
        let is_negligible = max.map(|m| m.abs() < NEGLIGIBLE);
        for levels in &mut levels {
            for g in 0..L {
                levels[g] = if is_negligible[g] {
                    0.0
                } else {
                    levels[g] + half as f32
                };
            }
        }
        let scales = std::array::from_fn(|g| if is_negligible[g] { 0.0 } else { scales[g] });
        Symmetric {
            scales,
            levels: apart(&levels),
        }
    }
}

/// Fits `x ~ scale * (level - half)` with levels `0..2 * half`, trying 19 scales around the one
/// that maps the extreme to `-half`.
pub(crate) fn symmetric_groups<const N: usize, const L: usize>(
    half: i32,
    x: &[Lanes<L>; N],
    w: &[Lanes<L>; N],
) -> Symmetric<N, L> {
    let (low, high) = (-(half as f32), half as f32 - 1.0);
    let max = extremes(x);
    let mut inverse = [0.0; L];
    let (mut scales, mut best, mut best_inverse) = ([0.0; L], [0.0; L], [0.0; L]);
    for step in [
        0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9,
    ] {
        let (mut lx, mut l2) = ([0.0f32; L], [0.0f32; L]);
        for g in 0..L {
            inverse[g] = -(half as f32 + 0.1 * step as f32) / max[g];
        }
        for (x, w) in x.iter().zip(w) {
            for g in 0..L {
                let l = nearest_small(inverse[g] * x[g], low, high);
                lx[g] += w[g] * x[g] * l;
                l2[g] += w[g] * l * l;
            }
        }
        for g in 0..L {
            let better = step == 0 || (l2[g] > 0.0 && lx[g] * lx[g] > best[g] * l2[g]);
            let scale = if l2[g] != 0.0 { lx[g] / l2[g] } else { 0.0 };
            scales[g] = if better { scale } else { scales[g] };
            best[g] = if better { scale * lx[g] } else { best[g] };
            best_inverse[g] = if better { inverse[g] } else { best_inverse[g] };
        }
    }
    let levels =
        x.map(|x| std::array::from_fn(|g| nearest_small(best_inverse[g] * x[g], low, high)));
    Symmetric::new(&max, scales, half, levels)
}

/// Fits one group with [`symmetric_groups`].
pub(crate) fn symmetric<const N: usize>(half: i32, x: &[f32; N], w: &[f32; N]) -> (f32, [u8; N]) {
    let Symmetric {
        scales: [scale],
        levels: [levels],
    } = symmetric_groups(half, &x.map(|v| [v]), &w.map(|v| [v]));
    (scale, levels)
}

/// Fits like [`symmetric_groups`] with weights `x^2`, but moves one level at a time instead of
/// trying scales, for at most five rounds. A group without a move in one round is skipped in later
/// ones.
pub(crate) fn symmetric_by_moves<const N: usize, const L: usize>(
    half: i32,
    x: &[Lanes<L>; N],
) -> Symmetric<N, L> {
    let max = extremes(x);
    let inverse = max.map(|m| -(half as f32) / m);
    let mut levels: [Lanes<L>; N] =
        x.map(|x| std::array::from_fn(|g| nearest_within(inverse[g] * x[g], -half, half - 1)));
    let (mut lx, mut l2) = ([0.0f32; L], [0.0f32; L]);
    for (x, l) in x.iter().zip(&levels) {
        for g in 0..L {
            let w = x[g] * x[g];
            lx[g] += w * x[g] * l[g];
            l2[g] += w * l[g] * l[g];
        }
    }
    for _ in 0..5 {
        let mut changed = false;
        for (x, l) in x.iter().zip(&mut levels) {
            for g in 0..L {
                let (w, old) = (x[g] * x[g], l[g]);
                let (rest_lx, rest_l2) = (lx[g] - w * x[g] * old, l2[g] - w * old * old);
                let moved = nearest_within(x[g] * rest_l2 / rest_lx, -half, half - 1);
                let (new_lx, new_l2) = (rest_lx + w * x[g] * moved, rest_l2 + w * moved * moved);
                let beats = new_lx * new_lx * l2[g] > lx[g] * lx[g] * new_l2;
                let better = (rest_lx > 0.0) & (moved != old) & (new_l2 > 0.0) & beats;
                l[g] = if better { moved } else { old };
                lx[g] = if better { new_lx } else { lx[g] };
                l2[g] = if better { new_l2 } else { l2[g] };
                changed |= better;
            }
        }
        if !changed {
            break;
        }
    }
    let scales = std::array::from_fn(|g| if l2[g] > 0.0 { lx[g] / l2[g] } else { 0.0 });
    Symmetric::new(&max, scales, half, levels)
}

/// Inverse scales that [`affine`] tries: `(max + start + step * i) / range` for `i` in `0..=steps`.
pub(crate) struct Search {
    pub(crate) start: f32,
    pub(crate) step: f32,
    pub(crate) steps: u8,
    /// Minimise absolute instead of squared differences.
    pub(crate) absolute: bool,
}

/// Scales, negated minima and levels of groups.
pub(crate) struct Affine<const N: usize, const L: usize> {
    pub(crate) scales: [f32; L],
    pub(crate) mins: [f32; L],
    pub(crate) levels: [[u8; N]; L],
}

/// Scale and minimum of each group, and the parameters its levels were rounded with.
struct AffineFit<const L: usize> {
    scale: Lanes<L>,
    /// Minimum; candidates are rounded in a range that starts at the best minimum so far.
    min: Lanes<L>,
    error: Lanes<L>,
    inverse: Lanes<L>,
    /// Minimum that the levels were rounded with, which may differ from the one fitted to them.
    origin: Lanes<L>,
}

/// Returns the weighted error of levels.
fn affine_error<const N: usize, const L: usize>(
    (x, w): (&[Lanes<L>; N], &[Lanes<L>; N]),
    levels: &[Lanes<L>; N],
    (scale, min): (&Lanes<L>, &Lanes<L>),
    absolute: bool,
) -> Lanes<L> {
    let mut sum = [0.0; L];
    for ((x, w), l) in x.iter().zip(w).zip(levels) {
        for g in 0..L {
            let diff = scale[g] * l[g] + min[g] - x[g];
            sum[g] += w[g] * if absolute { diff.abs() } else { diff * diff };
        }
    }
    sum
}

/// Scale and minimum of each group, and the determinant of their equations.
struct Solution<const L: usize> {
    det: Lanes<L>,
    scale: Lanes<L>,
    min: Lanes<L>,
}

/// Computes the scale and minimum with the least weighted squared error for these levels, with the
/// minimum at most zero; `sum_w` and `sum_x` are the sums of weights and of weighted values.
#[inline(always)]
fn least_squares<const N: usize, const L: usize>(
    (x, w): (&[Lanes<L>; N], &[Lanes<L>; N]),
    levels: &[Lanes<L>; N],
    sum_w: &Lanes<L>,
    sum_x: &Lanes<L>,
) -> Solution<L> {
    let (mut sum_l, mut sum_l2, mut sum_xl) = ([0.0f32; L], [0.0f32; L], [0.0f32; L]);
    for ((x, w), l) in x.iter().zip(w).zip(levels) {
        for g in 0..L {
            sum_l[g] += w[g] * l[g];
            sum_l2[g] += w[g] * l[g] * l[g];
            sum_xl[g] += w[g] * l[g] * x[g];
        }
    }
    let (mut det, mut scale, mut min) = ([0.0; L], [0.0; L], [0.0; L]);
    for g in 0..L {
        det[g] = sum_w[g] * sum_l2[g] - sum_l[g] * sum_l[g];
        scale[g] = (sum_w[g] * sum_xl[g] - sum_x[g] * sum_l[g]) / det[g];
        min[g] = (sum_l2[g] * sum_x[g] - sum_l[g] * sum_xl[g]) / det[g];
        scale[g] = if min[g] > 0.0 {
            sum_xl[g] / sum_l2[g]
        } else {
            scale[g]
        };
        min[g] = if min[g] > 0.0 { 0.0 } else { min[g] };
    }
    Solution { det, scale, min }
}

/// Fits `x ~ scale * level - minus_min` with levels `0..=max` and a minimum that is never above
/// zero.
///
/// For each candidate rounding, weighted least squares gives the scale and minimum; the best
/// candidate wins.
pub(crate) fn affine_groups<const N: usize, const L: usize>(
    max: u8,
    x: &[Lanes<L>; N],
    w: &[Lanes<L>; N],
    search: &Search,
) -> Affine<N, L> {
    let top = f32::from(max);
    let (mut lo, mut hi, mut sum_w) = (x[0], x[0], w[0]);
    let mut sum_x: Lanes<L> = std::array::from_fn(|g| w[0][g] * x[0][g]);
    for (x, w) in x.iter().zip(w).skip(1) {
        for g in 0..L {
            lo[g] = if x[g] < lo[g] { x[g] } else { lo[g] };
            hi[g] = if x[g] > hi[g] { x[g] } else { hi[g] };
            sum_w[g] += w[g];
            sum_x[g] += w[g] * x[g];
        }
    }
    let first_min = lo.map(|lo| if lo > 0.0 { 0.0 } else { lo });
    let round = |inverse: &Lanes<L>, min: &Lanes<L>| -> [Lanes<L>; N] {
        x.map(|x| {
            std::array::from_fn(|g| nearest_within(inverse[g] * (x[g] - min[g]), 0, i32::from(max)))
        })
    };
    let inverse = std::array::from_fn(|g| top / (hi[g] - first_min[g]));
    let scale = inverse.map(|i| 1.0 / i);
    let error = affine_error(
        (x, w),
        &round(&inverse, &first_min),
        (&scale, &first_min),
        search.absolute,
    );
    let mut fit = AffineFit {
        scale,
        min: first_min,
        error,
        inverse,
        origin: first_min,
    };
    for i in 0..=search.steps {
        let top_level = search.start + search.step * f32::from(i) + top;
        let inverse = std::array::from_fn(|g| top_level / (hi[g] - fit.min[g]));
        let levels = round(&inverse, &fit.min);
        let Solution { det, scale, min } = least_squares((x, w), &levels, &sum_w, &sum_x);
        let error = affine_error((x, w), &levels, (&scale, &min), search.absolute);
        for g in 0..L {
            let better = (det[g] > 0.0) & (error[g] < fit.error[g]);
            let keep = |new: f32, old: f32| if better { new } else { old };
            fit.origin[g] = keep(fit.min[g], fit.origin[g]);
            fit.inverse[g] = keep(inverse[g], fit.inverse[g]);
            fit.error[g] = keep(error[g], fit.error[g]);
            fit.scale[g] = keep(scale[g], fit.scale[g]);
            fit.min[g] = keep(min[g], fit.min[g]);
        }
    }
    let mut levels = apart(&round(&fit.inverse, &fit.origin));
    for g in 0..L {
        // all values of the group are equal
        if hi[g] <= first_min[g] {
            (fit.scale[g], fit.min[g], levels[g]) = (0.0, first_min[g], [0; N]);
        }
    }
    Affine {
        scales: fit.scale,
        mins: fit.min.map(|min| -min),
        levels,
    }
}

/// Fits one group with [`affine_groups`].
pub(crate) fn affine<const N: usize>(
    max: u8,
    x: &[f32; N],
    w: &[f32; N],
    search: &Search,
) -> (f32, f32, [u8; N]) {
    let fit = affine_groups(max, &x.map(|v| [v]), &w.map(|v| [v]), search);
    let Affine {
        scales: [scale],
        mins: [minus_min],
        levels: [levels],
    } = fit;
    (scale, minus_min, levels)
}

/// Fits `x ~ scale * level` for values that are not negative (the scales and minima of a
/// super-block), levels `0..=max`: nine scales by weighted squared error, then single moves as in
/// [`symmetric_by_moves`].
///
/// A negative value (IQ2_XXS has them) gets its level modulo 256 where levels are stored, as in
/// ggml, which stores them in bytes.
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
            let mut s = Sums {
                lx: sums.lx - w[i] * x[i] * l,
                l2: sums.l2 - w[i] * l * l,
            };
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
    let scale = if sums.l2 > 0.0 {
        sums.lx / sums.l2
    } else {
        0.0
    };
    (scale, levels.map(|l| l as u8))
}
