//! Quantizers of IQ4_NL and IQ4_XS: values are the nearest of 16 fixed levels times a scale
//! (layouts: see `iquants`).

use crate::bits::{encode_blocks, nearest_int, put_f16, sum_squares};
use crate::fit::{NEGLIGIBLE, extreme};
use crate::iquants::IQ4_LEVELS;

const LOWEST: i32 = IQ4_LEVELS[0] as i32;

/// Number of levels at or below each integer, from the lowest level on.
const AT_OR_BELOW: [u8; 241] = {
    let mut counts = [0; 241];
    let mut i = 0;
    while i < counts.len() {
        let mut level = 0;
        while level < 16 && IQ4_LEVELS[level] as i32 <= i as i32 + LOWEST {
            level += 1;
        }
        counts[i] = level as u8;
        i += 1;
    }
    counts
};

/// Returns the index of the nearest level, the upper one on ties. NaN gives the last, as in ggml.
fn nearest(v: f32) -> u8 {
    const HIGHEST: f32 = IQ4_LEVELS[15] as f32;
    if v <= LOWEST as f32 {
        return 0;
    }
    if v >= HIGHEST || v.is_nan() {
        return 15;
    }
    // the sum may round up to an integer that is a level: then `v` is nearest to that one from
    // either side
    let upper = AT_OR_BELOW[(v - LOWEST as f32) as usize].min(15);
    let (low, high) = (
        f32::from(IQ4_LEVELS[usize::from(upper) - 1]),
        f32::from(IQ4_LEVELS[usize::from(upper)]),
    );
    upper - u8::from(v - low < high - v)
}

/// Returns the weighted sums of values times their levels, and of these levels squared, for an
/// inverse scale: their quotient is the scale with the least error for these levels.
fn sums(x: &[f32; 32], w: &[f32; 32], id: f32) -> (f32, f32) {
    let (mut xq, mut q2) = (0.0f32, 0.0f32);
    for (x, w) in x.iter().zip(w) {
        let q = f32::from(IQ4_LEVELS[usize::from(nearest(id * x))]);
        xq += w * q * x;
        q2 += w * q * q;
    }
    (xq, q2)
}

/// Returns the scale of 32 values with the least weighted error, of 16 scales around the one that
/// maps the extreme to the lowest level.
fn fit(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let sums = |id| sums(x, w, id);
    let (xq, q2) = sums(1.0 / (-max / LOWEST as f32));
    let mut scale = if q2 > 0.0 { xq / q2 } else { 0.0 };
    let mut best = scale * xq;
    for step in -7..=7 {
        let (xq, q2) = sums((step + LOWEST) as f32 / max);
        if q2 > 0.0 && xq * xq > best * q2 {
            scale = xq / q2;
            best = scale * xq;
        }
    }
    scale
}

fn weights(x: &[f32; 32], importance: Option<&[f32; 32]>, sigma2: f32) -> [f32; 32] {
    match importance {
        Some(w) => std::array::from_fn(|j| w[j] * (sigma2 + x[j] * x[j]).sqrt()),
        None => x.map(|v| v * v),
    }
}

fn inverse(d: f32) -> f32 {
    if d != 0.0 { 1.0 / d } else { 0.0 }
}

/// Stores values `j` and `j + 16` in byte `j`.
fn put_group(qs: &mut [u8], x: &[f32; 32], id: f32) {
    for (j, q) in qs.iter_mut().enumerate() {
        *q = nearest(id * x[j]) | nearest(id * x[j + 16]) << 4;
    }
}

pub(crate) fn quantize_iq4_nl(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 32], importance| {
        let sigma2 = sum_squares(x) * (2.0 / 32.0);
        let d = fit(x, &weights(x, importance, sigma2));
        let mut b = [0; 18];
        put_f16(&mut b, 0, d);
        put_group(&mut b[2..], x, inverse(d));
        b
    });
}

/// Encodes a block of IQ4_NL as ggml does for keys and values (`quantize_row_iq4_nl_ref`): the
/// extreme gets the lowest level, and no other scale is tried.
pub fn iq4_nl_at_once(x: &[f32; 32]) -> [u8; 18] {
    let max = extreme(x);
    let mut b = [0; 18];
    if max.abs() >= NEGLIGIBLE {
        let id = 1.0 / (max / LOWEST as f32);
        let (xq, q2) = sums(x, &weights(x, None, 0.0), id);
        put_f16(&mut b, 0, xq / q2);
        put_group(&mut b[2..], x, id);
    }
    b
}

pub(crate) fn quantize_iq4_xs(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = sum_squares(x) * (2.0 / 256.0);
            let groups = x.as_chunks::<32>().0;
            let importance = importance.map(|w| w.as_chunks::<32>().0);
            let scales: [f32; 8] = std::array::from_fn(|g| {
                let x = &groups[g];
                fit(x, &weights(x, importance.map(|w| &w[g]), sigma2))
            });
            let d = -extreme(&scales) / 32.0;
            let id = inverse(d);
            let mut b = [0; 136];
            put_f16(&mut b, 0, d);
            let mut high = 0u16;
            for (g, x) in groups.iter().enumerate() {
                let level = nearest_int(id * scales[g]).clamp(-32, 31);
                put_group(
                    &mut b[8 + 16 * g..24 + 16 * g],
                    x,
                    inverse(d * level as f32),
                );
                let stored = (level + 32) as u8;
                b[4 + g / 2] |= (stored & 15) << (4 * (g % 2));
                high |= u16::from(stored >> 4) << (2 * g);
            }
            b[2..4].copy_from_slice(&high.to_le_bytes());
            b
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with an exhaustive search over the levels, from below the lowest to above the
    /// highest, with the neighbours of every step.
    #[test]
    fn nearest_is_the_level_of_least_distance() {
        let levels = IQ4_LEVELS.map(f32::from);
        for i in -2200..2200 {
            let v = i as f32 / 16.0;
            for v in [v.next_down(), v, v.next_up()] {
                let distance = |q: usize| (levels[q] - v).abs();
                let mut best = 0;
                for q in 1..16 {
                    if distance(q) <= distance(best) {
                        best = q;
                    }
                }
                assert_eq!(usize::from(nearest(v)), best, "{v}");
            }
        }
        assert_eq!(
            [
                nearest(f32::NAN),
                nearest(f32::INFINITY),
                nearest(f32::NEG_INFINITY)
            ],
            [15, 15, 0]
        );
    }
}
