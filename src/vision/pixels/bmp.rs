//! Widening of 5 and 6 bit colours of BMP files as in stb_image, which llama.cpp uses: the upper
//! bits are repeated below. The decoder rounds instead, with some values off by one.

/// Widens the colours of a decoded file again; `rgb` is `[height][width][3]`.
pub(super) fn widen(file: &[u8], rgb: &mut [u8]) {
    let Some(bits) = bits(file) else { return };
    for pixel in rgb.as_chunks_mut::<3>().0 {
        for (colour, bits) in pixel.iter_mut().zip(bits) {
            *colour = match bits {
                5 => again(*colour, 5),
                6 => again(*colour, 6),
                _ => *colour,
            };
        }
    }
}

/// Recovers the value of `bits` bits that was rounded to this, and repeats its upper bits below it.
fn again(rounded: u8, bits: u32) -> u8 {
    let most = (1 << bits) - 1;
    let value = (u32::from(rounded) * most + 127) / 255;
    // both parts together have eight bits
    (value << (8 - bits) | value >> (2 * bits - 8)) as u8
}

/// Returns the bits of red, green and blue, where a file has colour masks.
fn bits(file: &[u8]) -> Option<[u32; 3]> {
    let word = |at: usize| {
        let bytes = file.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    // the oldest header has no masks
    if word(14)? < 40 {
        return None;
    }
    let (bits, compression) = (word(28)? & 0xFFFF, word(30)?);
    match (bits, compression) {
        (16, 0) => Some([5; 3]),
        (16 | 32, 3) => {
            let field = |nth: usize| word(54 + 4 * nth).map(u32::count_ones);
            Some([field(0)?, field(1)?, field(2)?])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::again;

    #[test]
    fn upper_bits_stand_again_below() {
        for (bits, replicated) in [(5, 0x21_u32), (6, 0x41)] {
            let most = (1 << bits) - 1;
            for value in 0..=most {
                let rounded = (f64::from(value) * 255.0 / f64::from(most)).round() as u8;
                // stb_image's product and shift
                let expected = (value * replicated) >> (2 * bits - 8);
                assert_eq!(
                    u32::from(again(rounded, bits)),
                    expected,
                    "{value} of {bits} bits"
                );
            }
        }
    }
}
