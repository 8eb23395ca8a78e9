//! Quantizers of IQ2_XXS .. IQ3_S (layouts: see `iquants`; the fit: `iq_search`).
//!
//! All five work the same way: take the signs off, fit each group to the grid, quantize the groups'
//! scales against one f16 scale. The fudge factors on that scale, and the condition for a group of
//! zeros, differ between formats.

use crate::bits::{encode_blocks, put_f16, sum_squares};
use crate::fit;
use crate::iq_search::{
    Again, Candidates, Grid, Group, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, largest, scale_level,
    take_even_signs, take_signs,
};

/// A group prepared for the fit.
struct Prepared<const N: usize> {
    x: [f32; N],
    w: [f32; N],
    root: [f32; N],
    /// Signs of each 8 values.
    signs: [u8; 4],
}

impl<const N: usize> Prepared<N> {
    /// Takes the signs off; `even`: seven bits encode eight signs.
    fn new(x: &[f32; N], w: [f32; N], even: bool) -> Prepared<N> {
        let mut group = Prepared {
            x: *x,
            w,
            root: w.map(f32::sqrt),
            signs: [0; 4],
        };
        let parts = group
            .x
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(w.as_chunks::<8>().0);
        for (signs, (x, w)) in group.signs.iter_mut().zip(parts) {
            *signs = if even {
                take_even_signs(x, w)
            } else {
                take_signs(x)
            };
        }
        group
    }

    fn fit<const D: usize, const P: usize>(
        &self,
        grid: &Grid<D>,
        candidates: &Candidates,
    ) -> (f32, [[u8; D]; P]) {
        Group {
            x: &self.x,
            w: &self.w,
            root: &self.root,
        }
        .fit(grid, candidates)
    }

    /// Makes the scale positive; a negative one flips all signs.
    fn turn(&mut self, scale: f32) -> f32 {
        if scale < 0.0 {
            self.signs = self.signs.map(|s| !s);
            return -scale;
        }
        scale
    }

    /// Returns the signs as 7-bit patterns, lowest first.
    fn sevens(&self) -> u32 {
        self.signs
            .iter()
            .rev()
            .fold(0, |word, s| word << 7 | u32::from(s & 127))
    }
}

/// Returns importance times magnitude, softened by the mean square `sigma2`.
fn weights<const N: usize>(importance: &[f32; N], sigma2: f32, x: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (sigma2 + x[i] * x[i]).sqrt())
}

/// Returns the importance of group `g`.
fn part<const N: usize>(importance: Option<&[f32; 256]>, g: usize) -> Option<&[f32; N]> {
    importance.map(|w| &w.as_chunks::<N>().0[g])
}

/// Returns the largest scale over 31, and its inverse; `None` for a block of zeros.
fn block_scale(scales: &[f32]) -> Option<(f32, f32)> {
    let most = scales
        .iter()
        .fold(0.0, |most: f32, &s| if most > s { most } else { s });
    let d = most / 31.0;
    (most != 0.0).then_some((d, 1.0 / d))
}

pub(crate) fn quantize_iq2_xxs(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = sum_squares(x) / 256.0;
            let (mut scales, mut words) = ([0.0; 8], [0u64; 8]);
            for (g, x) in x.as_chunks::<32>().0.iter().enumerate() {
                let w = part::<32>(importance, g).map_or([0.0; 32], |w| weights(w, sigma2, x));
                let mut group = Prepared::new(x, w, true);
                if largest(&group.x) < fit::NEGLIGIBLE {
                    continue;
                }
                let (scale, _) = fit::positive(4, &group.x, &group.w);
                let max = scale * 3.0;
                if max <= 0.0 {
                    continue;
                }
                let candidates = Candidates {
                    max,
                    scale,
                    steps: 6,
                    step: 0.1,
                    again: Again::All,
                };
                let (scale, points) = group.fit::<8, 4>(&IQ2_XXS, &candidates);
                scales[g] = group.turn(scale);
                let indices = points
                    .iter()
                    .rev()
                    .fold(0u32, |word, p| word << 8 | u32::from(IQ2_XXS.index(p)));
                words[g] = u64::from(indices) | u64::from(group.sevens()) << 32;
            }
            let mut b = [0; 66];
            let Some((d, id)) = block_scale(&scales) else {
                return b;
            };
            put_f16(&mut b, 0, d);
            for (g, word) in words.iter().enumerate() {
                let word = word | u64::from(scale_level(id, scales[g], 15)) << 60;
                b[2 + 8 * g..10 + 8 * g].copy_from_slice(&word.to_le_bytes());
            }
            b
        },
    );
}

/// Returns the candidates of all formats except IQ2_XXS.
fn around(group: &[f32], levels: f32, steps: i32, step: f32, again: Again) -> Candidates {
    let max = largest(group);
    Candidates {
        max,
        scale: max / (2.0 * levels - 1.0),
        steps,
        step,
        again,
    }
}

pub(crate) fn quantize_iq2_xs(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = sum_squares(x) / 256.0;
            let (mut scales, mut codes) = ([0.0; 16], [[0u16; 2]; 16]);
            for (g, x) in x.as_chunks::<16>().0.iter().enumerate() {
                let w = part::<16>(importance, g).map_or([0.0; 16], |w| weights(w, sigma2, x));
                let mut group = Prepared::new(x, w, true);
                if largest(&group.x) < fit::NEGLIGIBLE {
                    continue;
                }
                let (scale, points) =
                    group.fit::<8, 2>(&IQ2_XS, &around(&group.x, 3.0, 9, 0.1, Again::OffGrid));
                scales[g] = group.turn(scale);
                codes[g] = std::array::from_fn(|k| {
                    IQ2_XS.index(&points[k]) | u16::from(group.signs[k] & 127) << 9
                });
            }
            let mut b = [0; 74];
            let Some((d, id)) = block_scale(&scales) else {
                return b;
            };
            put_f16(&mut b, 0, d);
            for (i, code) in codes.as_flattened().iter().enumerate() {
                b[2 + 2 * i..4 + 2 * i].copy_from_slice(&code.to_le_bytes());
            }
            put_scales(&mut b[66..], &scales, id);
            b
        },
    );
}

/// Stores two 4-bit scales per byte.
fn put_scales(bytes: &mut [u8], scales: &[f32], id: f32) {
    for (g, &scale) in scales.iter().enumerate() {
        bytes[g / 2] |= scale_level(id, scale, 15) << (4 * (g % 2));
    }
}

pub(crate) fn quantize_iq2_s(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let mut scales = [0.0; 16];
            let mut b = [0; 82];
            for (g, x) in x.as_chunks::<16>().0.iter().enumerate() {
                let plain = || x.map(|v| 0.25 * sigma2 + v * v);
                let w = part::<16>(importance, g).map_or_else(plain, |w| weights(w, sigma2, x));
                let mut group = Prepared::new(x, w, false);
                if largest(&group.x) < 1e-8 {
                    continue;
                }
                let (scale, points) =
                    group.fit::<8, 2>(&IQ2_S, &around(&group.x, 3.0, 9, 0.1, Again::OffGrid));
                scales[g] = group.turn(scale);
                for (k, point) in points.iter().enumerate() {
                    let (i, [low, high]) = (2 * g + k, IQ2_S.index(point).to_le_bytes());
                    b[2 + i] = low;
                    b[34 + i] = group.signs[k];
                    b[66 + i / 4] |= high << (2 * (i % 4));
                }
            }
            if let Some((d, id)) = block_scale(&scales) {
                put_f16(&mut b, 0, d * 0.9875);
                put_scales(&mut b[74..], &scales, id);
            }
            b
        },
    );
}

pub(crate) fn quantize_iq3_xxs(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let (mut scales, mut indices, mut words) = ([0.0; 8], [[0u8; 8]; 8], [0u32; 8]);
            for (g, x) in x.as_chunks::<32>().0.iter().enumerate() {
                let w = part::<32>(importance, g)
                    .map_or_else(|| x.map(|v| v * v), |w| weights(w, sigma2, x));
                let mut group = Prepared::new(x, w, true);
                if largest(&group.x) < 1e-8 {
                    continue;
                }
                let (scale, points) =
                    group.fit::<4, 8>(&IQ3_XXS, &around(&group.x, 8.0, 15, 0.2, Again::OffGrid));
                scales[g] = group.turn(scale);
                indices[g] = points.map(|p| IQ3_XXS.index(&p) as u8);
                words[g] = group.sevens();
            }
            let mut b = [0; 98];
            let Some((d, id)) = block_scale(&scales) else {
                return b;
            };
            put_f16(&mut b, 0, d * 1.0125);
            b[2..66].copy_from_slice(indices.as_flattened());
            for (g, word) in words.iter().enumerate() {
                let word = word | u32::from(scale_level(id, scales[g], 15)) << 28;
                b[66 + 4 * g..70 + 4 * g].copy_from_slice(&word.to_le_bytes());
            }
            b
        },
    );
}

pub(crate) fn quantize_iq3_s(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let mut scales = [0.0; 8];
            let mut b = [0; 110];
            // ggml leaves no room for the indices and signs of a group of zeros: those of later
            // groups move up, while their ninth bits stay in place. Such a block decodes wrongly;
            // we write the same bytes.
            let mut used = 0;
            for (g, x) in x.as_chunks::<32>().0.iter().enumerate() {
                let w = part::<32>(importance, g)
                    .map_or_else(|| x.map(|v| v * v), |w| weights(w, sigma2, x));
                let mut group = Prepared::new(x, w, false);
                if largest(&group.x) == 0.0 {
                    continue;
                }
                let (scale, points) =
                    group.fit::<4, 8>(&IQ3_S, &around(&group.x, 8.0, 9, 0.2, Again::AllIfOff));
                scales[g] = group.turn(scale);
                for (k, point) in points.iter().enumerate() {
                    let [low, high] = IQ3_S.index(point).to_le_bytes();
                    b[2 + 8 * used + k] = low;
                    b[66 + g] |= high << k;
                }
                b[74 + 4 * used..78 + 4 * used].copy_from_slice(&group.signs);
                used += 1;
            }
            if let Some((d, id)) = block_scale(&scales) {
                put_f16(&mut b, 0, d * 1.033);
                put_scales(&mut b[106..], &scales, id);
            }
            b
        },
    );
}
