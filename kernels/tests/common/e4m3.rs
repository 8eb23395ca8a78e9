//! Floats of 8 bits as OCP's E4M3 defines them, and the nearest of them by trying all.

/// What a code stands for, if it is a number.
pub(crate) fn value(code: u8) -> Option<f32> {
    let sign = if code >= 128 { -1.0 } else { 1.0 };
    let fraction = f32::from(code % 8) / 8.0;
    match code / 8 % 16 {
        15 if code % 8 == 7 => None,
        0 => Some(sign * fraction * 2f32.powi(-6)),
        exponent => Some(sign * (1.0 + fraction) * 2f32.powi(i32::from(exponent) - 7)),
    }
}

/// The code of the nearest number, of two the even one.
pub(crate) fn nearest(x: f32) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    let off = |code: &u8| value(*code).map(|v| (v - x).abs());
    let all = (sign..=sign | 127).filter(|code| value(*code).is_some());
    let least = all.clone().filter_map(|code| off(&code));
    let least = least.reduce(f32::min).expect("there are numbers");
    let mut nearest = all.filter(|code| off(code) == Some(least));
    let first = nearest.next().expect("one is the nearest");
    nearest.next().filter(|code| code % 2 == 0).unwrap_or(first)
}

/// 32 values as the cache stores them: the scale's half, and codes.
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

/// What is left of values in the cache.
pub(crate) fn round(x: &mut [f32]) {
    for x in x.chunks_exact_mut(32) {
        let (scale, codes) = group(x);
        for (x, code) in x.iter_mut().zip(codes) {
            *x = half::f16::from_bits(scale).to_f32() * value(code).expect("a number");
        }
    }
}
