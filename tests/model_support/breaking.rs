//! Breaks files at seeded places.

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).expect("below n")
    }
}

/// Numbers that sizes, counts and floats go wrong at.
const NASTY: [[u8; 8]; 7] = [
    [0xff; 8],
    [0; 8],
    (1u64 << 63).to_le_bytes(),
    (1u64 << 31).to_le_bytes(),
    [0, 0, 0xc0, 0x7f, 0, 0, 0xc0, 0x7f],
    1u64.to_le_bytes(),
    (1u64 << 24).to_le_bytes(),
];

/// Flips a bit at `at`, writes a nasty number there, or any byte.
pub(crate) fn damage(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    match rng.below(3) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at..at + 8].copy_from_slice(&NASTY[rng.below(NASTY.len())]),
        _ => bytes[at] = u8::try_from(rng.below(256)).expect("a byte"),
    }
}
