//! Encoding of keys and values as codes with a scale, 32 of a head at a time.

use octavo_quant::TensorType;
use octavo_simd::kv_layout::SCALE_GROUP;

/// Encodes values as codes, and returns their scale in f16, and their minimum if they have one.
pub(super) type Encode = fn(&[f32; SCALE_GROUP], &mut [u8; SCALE_GROUP]) -> [u16; 2];

/// ggml's Q8_0: an f16 scale, 127 of which are the largest value, and codes. Values that are not
/// finite make the scale NaN.
pub(super) fn q8_0(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let finite = x.iter().all(|v| v.is_finite());
    let scale = if finite { largest / 127.0 } else { f32::NAN };
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round() as i8 as u8;
    }
    [half::f16::from_f32(scale).to_bits(), 0]
}

/// Floats of 8 bits, OCP's E4M3: an f16 scale, 240 of which are the largest value, and codes.
/// Values that are not finite make the scale NaN.
///
/// Values are divided by the scale as it is stored, so that the rounding of the scale costs
/// nothing. 240, the last number of its octave, leaves room for that: where a scale has very few
/// bits, the largest value may be 360 of them, which is a code too, and 448, the largest code, is
/// no nearer. A power of two would not be rounded at all, but the largest value would: errors are
/// larger by a tenth, and by twice as much where one value is many times as large as the others.
pub(super) fn f8_e4m3(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let finite = x.iter().all(|v| v.is_finite());
    let scale = half::f16::from_f32(if finite { largest / 240.0 } else { f32::NAN });
    let inverse = match scale.to_f32() {
        scale if scale > 0.0 => 1.0 / scale,
        _ => 0.0,
    };
    for (code, v) in codes.iter_mut().zip(x) {
        *code = to_e4m3(if finite { v * inverse } else { 0.0 });
    }
    [scale.to_bits(), 0]
}

/// The nearest E4M3 code, the even one of two, for magnitudes up to 448.
fn to_e4m3(x: f32) -> u8 {
    let (sign, size) = (x.to_bits() >> 31, x.abs());
    // exponents count from 127; below the smallest normal number, 2^-6, steps stay as they are
    let exponent = (size.to_bits() >> 23).max(127 - 6);
    // in steps of an eighth of that power of two, of which 8 to 16 are normal
    let steps = (size * f32::from_bits((127 + 127 + 3 - exponent) << 23)).round_ties_even();
    (sign << 7 | (8 * (exponent - (127 - 6)) + steps as u32)) as u8
}

/// ggml's Q4_0: an f16 scale, -8 of which are the value that is farthest from 0, the positive one
/// of two, and codes that count from there, two in a byte. Values that are not finite make the
/// scale NaN.
pub(super) fn q4_0(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    let most = |of: fn(f32) -> f32| x.iter().fold(0f32, |m, v| m.max(of(*v)));
    let (largest, positive) = (most(f32::abs), most(|v| v));
    let finite = x.iter().all(|v| v.is_finite());
    let farthest = if positive == largest {
        largest
    } else {
        -largest
    };
    let scale = if finite { farthest / -8.0 } else { f32::NAN };
    let inverse = if finite && scale != 0.0 {
        1.0 / scale
    } else {
        0.0
    };
    let code = |v: f32| (v * inverse + 8.5).clamp(0.0, 15.0) as u8;
    let (low, high) = x.split_at(SCALE_GROUP / 2);
    for (both, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
        *both = code(*low) | code(*high) << 4;
    }
    [half::f16::from_f32(scale).to_bits(), 0]
}

/// The scale, and the minimum, of groups with values that are not finite.
const NOT_FINITE: [u16; 2] = [half::f16::NAN.to_bits(); 2];

/// ggml's Q5_0: the low four bits of all codes, two in a byte as in Q4_0, and then the fifth ones,
/// from the lowest bit of 4 bytes on. Values that are not finite make the scale NaN.
pub(super) fn q5_0(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    let block: [u8; 22] = block(TensorType::Q5_0, x);
    codes[..16].copy_from_slice(&block[6..]);
    codes[16..20].copy_from_slice(&block[2..6]);
    match x.iter().all(|v| v.is_finite()) {
        true => [u16::from_le_bytes([block[0], block[1]]), 0],
        false => NOT_FINITE,
    }
}

/// ggml's Q5_1: as Q5_0, codes counting from a minimum. Values that are not finite make both NaN.
pub(super) fn q5_1(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    let block: [u8; 24] = block(TensorType::Q5_1, x);
    codes[..16].copy_from_slice(&block[8..]);
    codes[16..20].copy_from_slice(&block[4..8]);
    match x.iter().all(|v| v.is_finite()) {
        true => [0, 2].map(|at| u16::from_le_bytes([block[at], block[at + 1]])),
        false => NOT_FINITE,
    }
}

/// ggml's IQ4_NL, as it stores keys and values. Values that are not finite make the scale NaN.
pub(super) fn iq4_nl(x: &[f32; SCALE_GROUP], codes: &mut [u8; SCALE_GROUP]) -> [u16; 2] {
    if !x.iter().all(|v| v.is_finite()) {
        return NOT_FINITE;
    }
    let block = octavo_quant::iq4_nl_at_once(x);
    codes[..16].copy_from_slice(&block[2..]);
    [u16::from_le_bytes([block[0], block[1]]), 0]
}

/// Encodes values as a block of weights.
fn block<const BYTES: usize>(ty: TensorType, x: &[f32; SCALE_GROUP]) -> [u8; BYTES] {
    let mut bytes = Vec::with_capacity(BYTES);
    octavo_quant::quantize(ty, x, SCALE_GROUP, None, &mut bytes).expect("a row of one block");
    bytes.try_into().expect("one block")
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_fixtures::e4m3;
    use octavo_simd::kv_layout::KvType;

    /// Random numbers in [-1, 1).
    fn random() -> impl FnMut() -> f32 {
        let mut state = 7u32;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        }
    }

    fn group(of: impl FnMut(usize) -> f32) -> [f32; SCALE_GROUP] {
        std::array::from_fn(of)
    }

    #[test]
    fn codes_are_those_of_weights() {
        let mut random = random();
        for round in 0..200 {
            let scale = [1.0, 1e-4, 300.0, 0.0][round % 4];
            let x = group(|_| scale * random());
            let types: [(TensorType, Encode); 4] = [
                (TensorType::Q8_0, q8_0),
                (TensorType::Q4_0, q4_0),
                (TensorType::Q5_0, q5_0),
                (TensorType::Q5_1, q5_1),
            ];
            for (ty, encode) in types {
                let mut expected = Vec::new();
                octavo_quant::quantize(ty, &x, SCALE_GROUP, None, &mut expected).expect("a block");
                let mut codes = [0; SCALE_GROUP];
                let [scale, minimum] = encode(&x, &mut codes);
                let mut got = scale.to_le_bytes().to_vec();
                if ty == TensorType::Q5_1 {
                    got.extend(minimum.to_le_bytes());
                }
                if matches!(ty, TensorType::Q5_0 | TensorType::Q5_1) {
                    got.extend(&codes[16..20]);
                    got.extend(&codes[..16]);
                } else {
                    got.extend(&codes[..expected.len() - 2]);
                }
                assert_eq!(got, expected, "{ty}, round {round}: {x:?}");
            }
        }
    }

    /// Checks that every value has the nearest level, of a scale that no other one near it is
    /// better than.
    #[test]
    fn uneven_levels_are_the_nearest() {
        let mut random = random();
        for round in 0..200 {
            let size = [1.0, 1e-3, 300.0][round % 3];
            let x = group(|_| size * random());
            let mut codes = [0; SCALE_GROUP];
            let scale = half::f16::from_bits(iq4_nl(&x, &mut codes)[0]).to_f32();
            let largest = x
                .iter()
                .copied()
                .fold(0f32, |m, v| if v.abs() > m.abs() { v } else { m });
            // the extreme is the lowest level before the scale is fitted to all levels
            let first = largest / f32::from(octavo_quant::IQ4_LEVELS[0]);
            assert!((scale / first - 1.0).abs() < 0.2, "{scale}, {first}");
            for (i, v) in x.iter().enumerate() {
                let code = usize::from(codes[i % 16] >> (i / 16 * 4) & 15);
                let off = |level: i8| (f32::from(level) - v / first).abs();
                let least = octavo_quant::IQ4_LEVELS
                    .map(off)
                    .into_iter()
                    .fold(f32::MAX, f32::min);
                assert!(
                    off(octavo_quant::IQ4_LEVELS[code]) <= least * 1.000_01,
                    "{v} of {x:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_finite_makes_the_scale_so() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; SCALE_GROUP];
            x[9] = wrong;
            for encode in [q8_0 as Encode, f8_e4m3, q4_0, q5_0, q5_1, iq4_nl] {
                let [scale, _] = encode(&x, &mut [0; SCALE_GROUP]);
                assert!(half::f16::from_bits(scale).is_nan(), "{wrong}");
            }
        }
    }

    #[test]
    fn floats_of_8_bits_are_the_nearest_of_all_halves() {
        for bits in 0..=u16::MAX {
            let x = half::f16::from_bits(bits).to_f32();
            if x.is_nan() || x.abs() > 448.0 {
                continue;
            }
            assert_eq!(to_e4m3(x), e4m3::nearest(x), "{x}");
        }
    }

    /// Values decoded from codes of this scale.
    fn decoded(codes: &[u8], scale: f32) -> Vec<f32> {
        let value = |code: &u8| scale * e4m3::value(*code).expect("no code is of no number");
        codes.iter().map(value).collect()
    }

    fn rms(x: impl Iterator<Item = f32>) -> f64 {
        x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    }

    /// Groups like those of a head: sums of some random numbers, and some of them with a value
    /// that is many times as large as the others.
    fn groups() -> Vec<[f32; SCALE_GROUP]> {
        let mut random = random();
        let group = |i: usize| {
            let mut x = group(|_| (0..6).map(|_| random()).sum());
            x[i % SCALE_GROUP] *= [1.0, 1.0, 20.0][i % 3];
            x
        };
        (0..3000).map(group).collect()
    }

    #[test]
    fn floats_of_8_bits_are_as_near_as_is_said() {
        // scales of the last ones have few bits, down to one
        for size in [1.0, 300.0, 1e-4, 1e-5, 5e-6] {
            for x in groups() {
                let x = x.map(|v| v * size);
                let mut codes = [0; SCALE_GROUP];
                let scale = half::f16::from_bits(f8_e4m3(&x, &mut codes)[0]).to_f32();
                let got = decoded(&codes, scale);
                // half a step: a sixteenth, or half of the smallest step
                for (x, got) in x.iter().zip(&got) {
                    let bound = (x.abs() / 16.0).max(scale / 1024.0) * 1.000_001;
                    assert!((x - got).abs() <= bound, "{x}: {got}, scale {scale}");
                }
                let off = rms(x.iter().zip(&got).map(|(x, got)| x - got));
                let said = KvType::F8E4M3.rounding() * rms(x.iter().copied());
                assert!(off <= said, "{off} of {x:?}, scale {scale}");
            }
        }
    }

    #[test]
    fn no_other_scale_is_nearer() {
        let scales: [fn(f32) -> f32; 2] = [
            |largest| largest / 448.0,
            |largest| 2f32.powi((largest / 448.0).log2().ceil() as i32),
        ];
        let (mut ours, mut others) = (0.0, [0.0; 2]);
        let groups = groups();
        for x in &groups {
            let off = |codes: &[u8], scale| {
                let got = decoded(codes, scale);
                let off = rms(x.iter().zip(got).map(|(x, got)| x - got));
                off / rms(x.iter().copied()) / groups.len() as f64
            };
            let mut codes = [0; SCALE_GROUP];
            let scale = half::f16::from_bits(f8_e4m3(x, &mut codes)[0]).to_f32();
            ours += off(&codes, scale);
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (sum, scale) in others.iter_mut().zip(scales) {
                let scale = scale(largest);
                let codes: Vec<u8> = x.iter().map(|v| to_e4m3(v / scale)).collect();
                *sum += off(&codes, scale);
            }
        }
        // measured: 0.0196, 0.0198 and 0.0254
        println!("mean error, of a group's rms: {ours:.4}, others {others:.4?}");
        let [of_448, power_of_two] = others;
        assert!(ours < of_448 && 1.1 * ours < power_of_two);
    }
}
