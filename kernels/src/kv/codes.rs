//! Keys and values as codes with a scale, 32 of a head at a time.

use super::SCALE_GROUP;

/// Makes codes of values, and gives their scale in f16.
pub(super) type Encode = fn(&[f32], &mut [u8; SCALE_GROUP]) -> u16;

/// ggml's Q8_0: an f16 scale, 127 of which are the largest value, and codes. What is not finite
/// makes the scale so.
pub(super) fn q8_0(x: &[f32], codes: &mut [u8; SCALE_GROUP]) -> u16 {
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let finite = x.iter().all(|v| v.is_finite());
    let scale = if finite { largest / 127.0 } else { f32::NAN };
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round() as i8 as u8;
    }
    half::f16::from_f32(scale).to_bits()
}

/// ggml's Q4_0: an f16 scale, -8 of which are the value that is farthest from 0, the positive one
/// of two, and codes that count from there, two in a byte. What is not finite makes the scale so.
pub(super) fn q4_0(x: &[f32], codes: &mut [u8; SCALE_GROUP]) -> u16 {
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
    half::f16::from_f32(scale).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_quant::TensorType;

    #[test]
    fn codes_are_those_of_weights() {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for round in 0..200 {
            let scale = [1.0, 1e-4, 300.0, 0.0][round % 4];
            let x: Vec<f32> = (0..SCALE_GROUP).map(|_| scale * random()).collect();
            let types: [(TensorType, Encode); 2] =
                [(TensorType::Q8_0, q8_0), (TensorType::Q4_0, q4_0)];
            for (ty, encode) in types {
                let mut expected = Vec::new();
                octavo_quant::quantize(ty, &x, SCALE_GROUP, None, &mut expected).expect("a block");
                let mut codes = [0; SCALE_GROUP];
                let scale = encode(&x, &mut codes);
                let mut got = scale.to_le_bytes().to_vec();
                got.extend(&codes[..expected.len() - 2]);
                assert_eq!(got, expected, "{ty}, round {round}: {x:?}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_makes_the_scale_so() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; SCALE_GROUP];
            x[9] = wrong;
            for encode in [q8_0 as Encode, q4_0] {
                let scale = encode(&x, &mut [0; SCALE_GROUP]);
                assert!(half::f16::from_bits(scale).is_nan(), "{wrong}");
            }
        }
    }
}
