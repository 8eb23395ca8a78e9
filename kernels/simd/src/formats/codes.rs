//! Decoding of codes from the bytes of blocks in a file.

/// Repeats `byte` eight times.
pub(super) const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Writes the codes that `bits` extracts from bytes, eight at a time: the compiler vectorizes words
/// reliably, and single bytes only by chance.
#[inline(always)]
pub(super) fn spread(q: &[u8], codes: &mut [u8], bits: impl Fn(u64) -> u64) {
    for (c, q) in codes.as_chunks_mut().0.iter_mut().zip(q.as_chunks().0) {
        *c = bits(u64::from_le_bytes(*q)).to_le_bytes();
    }
}

/// As [`spread`], but adds to codes that have other bits already.
#[inline(always)]
pub(super) fn spread_more(q: &[u8], codes: &mut [u8], bits: impl Fn(u64) -> u64) {
    for (c, q) in codes.as_chunks_mut().0.iter_mut().zip(q.as_chunks().0) {
        *c = (u64::from_le_bytes(*c) | bits(u64::from_le_bytes(*q))).to_le_bytes();
    }
}

/// Low nibbles are the first half, high nibbles the second.
#[inline(always)]
pub(super) fn nibbles(q: &[u8], codes: &mut [u8]) {
    let (first, second) = codes.split_at_mut(codes.len() / 2);
    spread(q, first, |q| q & eight(15));
    spread(q, second, |q| q >> 4 & eight(15));
}

/// [`nibbles`] of 16 bytes for each 32 codes.
#[inline(always)]
pub(super) fn nibbles_of_32(q: &[u8], codes: &mut [u8]) {
    for (c, q) in codes.chunks_exact_mut(32).zip(q.chunks_exact(16)) {
        nibbles(q, c);
    }
}

/// Two-bit codes of 32 bytes, 128 in all: bits 0 and 1 are the first 32.
#[inline(always)]
pub(super) fn two_bits(q: &[u8], codes: &mut [u8]) {
    for (c, q) in codes.chunks_exact_mut(128).zip(q.chunks_exact(32)) {
        for (j, c) in c.chunks_exact_mut(32).enumerate() {
            spread(q, c, |q| q >> (2 * j) & eight(3));
        }
    }
}
