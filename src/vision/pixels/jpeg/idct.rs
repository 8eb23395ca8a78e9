//! Inverse DCT of a block, with the rounding of stb_image.
//!
//! The rounding is that of its x86 SIMD code, which every 64-bit build has: intermediate values
//! have 16 bits. That matters only for the values in hostile files, never in real images.

/// Fixed-point factors are multiples of 1/4096, rounded as in stb_image.
const ONE: i32 = 1 << 12;

/// Returns the samples of a block, row by row.
pub(super) fn idct(values: &[i16; 64]) -> [[u8; 8]; 8] {
    let mut columns = [[0i16; 8]; 8];
    for (x, column) in columns.iter_mut().enumerate() {
        let down: [i16; 8] = std::array::from_fn(|y| values[8 * y + x]);
        // keeps two fraction bits
        *column = pass(down, 1 << 9).map(|sum| {
            let value = (sum >> 10).clamp(i16::MIN.into(), i16::MAX.into());
            value as i16
        });
    }
    // half of the shifted-out unit for rounding, and 128, the middle of a sample's range
    let bias = (1 << 16) + (128 << 17);
    std::array::from_fn(|y| {
        let across = columns.map(|column| column[y]);
        pass(across, bias).map(|sum| (sum >> 17).clamp(0, 255) as u8)
    })
}

/// Transforms eight values along a line and adds the bias. No sum exceeds 32 bits: factors times
/// 16-bit numbers reach half of that.
fn pass(v: [i16; 8], bias: i32) -> [i32; 8] {
    let n = v.map(i32::from);
    let even = |a: i32, b: i32| n[2] * a + n[6] * b;
    let sum = i32::from(v[0].wrapping_add(v[4])) * ONE + bias;
    let difference = i32::from(v[0].wrapping_sub(v[4])) * ONE + bias;
    let (a, b) = (even(5352, 2217), even(2217, -5350));
    let evens = [sum + a, difference + b, difference - b, sum - a];

    let p = i32::from(v[1].wrapping_add(v[7]));
    let q = i32::from(v[3].wrapping_add(v[5]));
    let (r, s) = (p * 1131 + q * 4816, p * 4816 - q * 5681);
    let odds = [
        n[1] * 4552 - n[5] * 1597 + r,
        n[3] * 4552 - n[7] * 8034 + s,
        n[5] * 6813 - n[1] * 1597 + s,
        -n[7] * 6811 - n[3] * 8034 + r,
    ];
    std::array::from_fn(|i| match i {
        0..4 => evens[i] + odds[i],
        _ => evens[7 - i] - odds[7 - i],
    })
}
