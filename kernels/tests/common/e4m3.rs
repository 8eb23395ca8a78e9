//! Rounding of the FP8 KV cache, by the definition of E4M3.

pub(crate) use octavo_fixtures::e4m3::{nearest, value};

/// Encodes 32 values as the cache stores them: the scale as f16 bits, and codes.
pub(crate) fn group(x: &[f32]) -> (u16, Vec<u8>) {
    if !x.iter().all(|v| v.is_finite()) {
        return (half::f16::NAN.to_bits(), vec![0; x.len()]);
    }
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = half::f16::from_f32(largest / 240.0);
    let inverse = match scale.to_f32() {
        0.0 => 0.0,
        scale => 1.0 / scale,
    };
    let codes = x.iter().map(|v| nearest(v * inverse)).collect();
    (scale.to_bits(), codes)
}

/// Rounds values as the cache does.
pub(crate) fn round(x: &mut [f32]) {
    for x in x.chunks_exact_mut(32) {
        let (scale, codes) = group(x);
        for (x, code) in x.iter_mut().zip(codes) {
            *x = half::f16::from_bits(scale).to_f32() * value(code).expect("a number");
        }
    }
}
