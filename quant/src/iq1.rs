//! Quantizers of IQ1_S and IQ1_M (layouts: see `iquants`): values are `scale * (-1, 0 or 1, plus or
//! minus a shift)`.
//!
//! With three levels the best split of a group is found exactly: its values are sorted, and all
//! pairs of boundaries are tried with prefix sums, for each sign of the shift. Then parts of 8
//! values move to the nearest grid points.

use crate::bits::{encode_blocks, put_f16, sum_squares};
use crate::iq_search::{IQ1, scale_level};

const SHIFT: f32 = 0.125;
/// The three levels with the shift added, and subtracted.
const LEVELS: [[f32; 3]; 2] = [
    [-1.0 + SHIFT, SHIFT, 1.0 + SHIFT],
    [-1.0 - SHIFT, -SHIFT, 1.0 - SHIFT],
];

/// A split of sorted values in three: the first `i1` have the lowest level, those from `i2` on the
/// highest.
#[derive(Clone, Copy)]
struct Split {
    i1: usize,
    i2: usize,
    /// Index of the combination of shifts.
    shifts: usize,
    scale: f32,
}

/// The best split so far, with the least error, compared without a division.
struct Best {
    split: Option<Split>,
    score: f32,
}

impl Best {
    fn new() -> Best {
        Best {
            split: None,
            score: f32::MIN,
        }
    }

    fn offer(&mut self, i1: usize, i2: usize, shifts: usize, (xq, q2): (f32, f32)) {
        if q2 > 0.0 && xq * xq > self.score * q2 {
            let scale = xq / q2;
            self.score = scale * xq;
            self.split = Some(Split {
                i1,
                i2,
                shifts,
                scale,
            });
        }
    }
}

/// Returns the indices of the values in ascending order; the sort is stable.
fn sorted<const N: usize>(x: &[f32; N]) -> [usize; N] {
    let mut order = std::array::from_fn(|i| i);
    // adding zero unifies the two zeros; NaNs need some place
    order.sort_by(|&a, &b| (x[a] + 0.0).total_cmp(&(x[b] + 0.0)));
    order
}

fn weights<const N: usize>(importance: Option<&[f32; N]>, sigma2: f32, x: &[f32; N]) -> [f32; N] {
    match importance {
        Some(w) => std::array::from_fn(|i| w[i] * (sigma2 + x[i] * x[i]).sqrt()),
        None => x.map(|v| v * v),
    }
}

fn largest_magnitude(x: &[f32]) -> f32 {
    x.iter().skip(1).fold(
        x[0].abs(),
        |most, v| if most > v.abs() { most } else { v.abs() },
    )
}

/// Returns the positions (0, 1, 2) of the values in a split; reversed where the scale is negative.
fn positions<const N: usize>(order: &[usize; N], split: &Split) -> [u8; N] {
    let mut positions = [1; N];
    for (rank, &i) in order.iter().enumerate() {
        let position = if rank < split.i1 {
            0
        } else {
            1 + u8::from(rank >= split.i2)
        };
        positions[i] = if split.scale < 0.0 {
            2 - position
        } else {
            position
        };
    }
    positions
}

/// A group fitted to the grid.
struct Fitted<const P: usize> {
    scale: f32,
    indices: [u16; P],
}

/// Adds a value at level `q` to the sums that determine the scale.
fn add_sums(sums: &mut (f32, f32), x: f32, w: f32, q: f32) {
    sums.0 += w * q * x;
    sums.1 += w * q * q;
}

/// Moves each part of 8 to the grid, and refits the scale if one moved. `levels[k]` are those of
/// part `k`.
fn to_grid<const P: usize>(
    x: &[f32],
    w: &[f32],
    positions: &[u8],
    scale: f32,
    levels: [&[f32; 3]; P],
) -> Fitted<P> {
    let parts = || x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0);
    let (mut fitted, mut moved) = (
        Fitted {
            scale,
            indices: [0; P],
        },
        false,
    );
    for (k, ((x, w), at)) in parts().zip(positions.as_chunks::<8>().0).enumerate() {
        let (index, on) = IQ1.nearest(at, |point| {
            let mut sum = 0.0;
            for i in 0..8 {
                let diff = scale * levels[k][usize::from(point[i])] - x[i];
                sum += w[i] * diff * diff;
            }
            sum
        });
        fitted.indices[k] = index;
        moved |= !on;
    }
    if moved {
        let mut sums = (0.0, 0.0);
        for (k, (x, w)) in parts().enumerate() {
            let point = IQ1.point(fitted.indices[k]);
            for i in 0..8 {
                add_sums(&mut sums, x[i], w[i], levels[k][usize::from(point[i])]);
            }
        }
        if sums.0 > 0.0 && sums.1 > 0.0 {
            fitted.scale = sums.0 / sums.1;
        }
    }
    fitted
}

/// Returns the best split of 32 values with one shift for all.
fn split_s(x: &[f32; 32], w: &[f32; 32], order: &[usize; 32]) -> Option<Split> {
    let (mut sx, mut sw) = ([0.0f32; 33], [0.0f32; 33]);
    for (j, &i) in order.iter().enumerate() {
        sx[j + 1] = sx[j] + w[i] * x[i];
        sw[j + 1] = sw[j] + w[i];
    }
    let mut best = Best::new();
    for i1 in 0..=32 {
        for i2 in i1..=32 {
            let (x0, x1, x2) = (sx[i1] - sx[0], sx[i2] - sx[i1], sx[32] - sx[i2]);
            let (w0, w1, w2) = (sw[i1] - sw[0], sw[i2] - sw[i1], sw[32] - sw[i2]);
            for (shifts, l) in LEVELS.iter().enumerate() {
                let xq = x0 * l[0] + x1 * l[1] + x2 * l[2];
                let q2 = w0 * l[0] * l[0] + w1 * l[1] * l[1] + w2 * l[2] * l[2];
                best.offer(i1, i2, shifts, (xq, q2));
            }
        }
    }
    best.split
}

/// Returns the largest scale over 15, and its inverse; `None` for a block of zeros.
fn block_scale(scales: &[f32]) -> Option<(f32, f32)> {
    let most = scales
        .iter()
        .fold(0.0, |most: f32, &s| if most > s { most } else { s });
    let d = most / 15.0;
    (most != 0.0).then_some((d, 1.0 / d))
}

pub(crate) fn quantize_iq1_s(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let (mut scales, mut shifts, mut qh) = ([0.0; 8], [0; 8], [0u16; 8]);
            let mut b = [0; 50];
            for (g, x) in x.as_chunks::<32>().0.iter().enumerate() {
                let w = weights(importance.map(|w| &w.as_chunks::<32>().0[g]), sigma2, x);
                if largest_magnitude(x) < 1e-12 {
                    continue;
                }
                let order = sorted(x);
                let Some(split) = split_s(x, &w, &order) else {
                    continue;
                };
                shifts[g] = if split.scale < 0.0 {
                    1 - split.shifts
                } else {
                    split.shifts
                };
                let positions = positions(&order, &split);
                let fitted = to_grid(
                    x,
                    &w,
                    &positions,
                    split.scale.abs(),
                    [&LEVELS[shifts[g]]; 4],
                );
                scales[g] = fitted.scale;
                for (k, index) in fitted.indices.iter().enumerate() {
                    b[2 + 4 * g + k] = *index as u8;
                    qh[g] |= (index >> 8) << (3 * k);
                }
            }
            if let Some((d, id)) = block_scale(&scales) {
                put_f16(&mut b, 0, d * 1.125);
                for g in 0..8 {
                    qh[g] |=
                        u16::from(scale_level(id, scales[g], 7)) << 12 | (shifts[g] as u16) << 15;
                }
            }
            for (g, h) in qh.iter().enumerate() {
                b[34 + 2 * g..36 + 2 * g].copy_from_slice(&h.to_le_bytes());
            }
            b
        },
    );
}

/// Returns the best split of 16 values where each half has its own shift: combination `2 * first +
/// second`.
fn split_m(x: &[f32; 16], w: &[f32; 16], order: &[usize; 16]) -> Option<Split> {
    let (mut px, mut pw) = ([[0.0f32; 17]; 2], [[0.0f32; 17]; 2]);
    for (j, &i) in order.iter().enumerate() {
        let (h, other) = (i / 8, 1 - i / 8);
        px[h][j + 1] = px[h][j] + w[i] * x[i];
        pw[h][j + 1] = pw[h][j] + w[i];
        px[other][j + 1] = px[other][j];
        pw[other][j + 1] = pw[other][j];
    }
    // neighbouring levels are 1 apart, so the sums over three ranges reduce to the whole sum minus
    // two prefixes
    let steps = LEVELS.map(|l| [l[0] * l[0] - l[1] * l[1], l[1] * l[1] - l[2] * l[2]]);
    let mut best = Best::new();
    for i1 in 0..=16 {
        for i2 in i1..=16 {
            // [half][shift]
            let (mut xq, mut q2) = ([[0.0f32; 2]; 2], [[0.0f32; 2]; 2]);
            for h in 0..2 {
                let prefixes = px[h][i1] + px[h][i2];
                for (s, l) in LEVELS.iter().enumerate() {
                    xq[h][s] = px[h][16] * l[2] - prefixes;
                    q2[h][s] =
                        pw[h][16] * l[2] * l[2] + pw[h][i1] * steps[s][0] + pw[h][i2] * steps[s][1];
                }
            }
            for shifts in 0..4 {
                let sums = (
                    xq[0][shifts / 2] + xq[1][shifts % 2],
                    q2[0][shifts / 2] + q2[1][shifts % 2],
                );
                best.offer(i1, i2, shifts, sums);
            }
        }
    }
    best.split
}

/// Returns the levels of the two parts of 8.
fn levels_m(shifts: usize) -> [&'static [f32; 3]; 2] {
    [&LEVELS[shifts / 2], &LEVELS[shifts % 2]]
}

pub(crate) fn quantize_iq1_m(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let groups = x.as_chunks::<16>().0;
            let weigh = |g: usize| {
                weights(
                    importance.map(|w| &w.as_chunks::<16>().0[g]),
                    sigma2,
                    &groups[g],
                )
            };
            let (mut scales, mut shifts, mut indices) = ([0.0; 16], [0; 16], [[0u16; 2]; 16]);
            for (g, x) in groups.iter().enumerate() {
                if largest_magnitude(x) < 1e-7 {
                    continue;
                }
                let (w, order) = (weigh(g), sorted(x));
                let Some(split) = split_m(x, &w, &order) else {
                    continue;
                };
                shifts[g] = if split.scale < 0.0 {
                    3 - split.shifts
                } else {
                    split.shifts
                };
                let positions = positions(&order, &split);
                let fitted = to_grid(x, &w, &positions, split.scale.abs(), levels_m(shifts[g]));
                (scales[g], indices[g]) = (fitted.scale, fitted.indices);
            }
            let mut b = [0; 56];
            let mut words = [0u16; 4];
            let found = block_scale(&scales);
            let mut sums = (0.0, 0.0);
            for (g, x) in groups.iter().enumerate() {
                let [first, second] = indices[g];
                b[2 * g..2 * g + 2].copy_from_slice(&[first as u8, second as u8]);
                b[32 + g] = (first >> 8 | (second >> 8) << 4) as u8;
                let Some((_, id)) = found else { continue };
                let level = scale_level(id, scales[g], 7);
                words[g / 4] |= u16::from(level) << (3 * (g % 4));
                b[32 + g] |= [0x00, 0x80, 0x08, 0x88][shifts[g]];
                let w = weigh(g);
                for i in 0..16 {
                    let position = usize::from(IQ1.point(indices[g][i / 8])[i % 8]);
                    add_sums(
                        &mut sums,
                        x[i],
                        w[i],
                        levels_m(shifts[g])[i / 8][position] * f32::from(2 * level + 1),
                    );
                }
            }
            if let Some((d, _)) = found {
                let d = if sums.1 > 0.0 { sums.0 / sums.1 } else { d };
                let mut bytes = [0; 2];
                put_f16(&mut bytes, 0, d * 1.1125);
                let bits = u16::from_le_bytes(bytes);
                words
                    .iter_mut()
                    .enumerate()
                    .for_each(|(n, word)| *word |= (bits >> (4 * n) & 15) << 12);
            }
            for (n, word) in words.iter().enumerate() {
                b[48 + 2 * n..50 + 2 * n].copy_from_slice(&word.to_le_bytes());
            }
            b
        },
    );
}
