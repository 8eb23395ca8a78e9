//! Formats whose codes are points of a grid, found by index: eight weights, or four, to an index.
//!
//! An index selects a word of a table. Grids of four weights have their magnitudes in its bytes,
//! grids of eight have levels in its nibbles: the first four weights in the low ones. Magnitudes
//! are at most 62; with signs they become codes around 64.

use super::planes::each_of_four;
use super::{Format, FormatInfo, GpuScales, Transposed, Visitor};
use crate::simd::Simd;
use octavo_quant::{TensorType, grids};

/// Added to signed magnitudes.
const MIDDLE: u8 = 64;
/// Magnitudes of IQ2's three levels.
const IQ2_LEVELS: [i8; 3] = [8, 25, 43];
/// The same as codes.
const IQ2_CODES: [u8; 16] = table(&IQ2_LEVELS, 1, MIDDLE);
/// Codes of IQ1's three levels, in eighths, with the shift of one eighth added.
const IQ1_CODES: [u8; 16] = table(&[-1, 0, 1], 8, 17);

/// Levels times a factor plus an offset, as a table of codes.
const fn table(levels: &[i8; 3], factor: i8, offset: u8) -> [u8; 16] {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < 3 {
        codes[i] = (levels[i] * factor) as u8;
        codes[i] = codes[i].wrapping_add(offset);
        i += 1;
    }
    codes
}

/// Points of eight values as words of levels in nibbles.
const fn nibbles_of<const N: usize>(points: &[[i8; 8]; N], levels: &[i8; 3]) -> [u32; N] {
    let (mut words, mut at) = ([0; N], 0);
    while at < N {
        let mut i = 0;
        while i < 8 {
            let mut level = 0;
            while levels[level] != points[at][i] {
                level += 1;
            }
            words[at] |= (level as u32) << (8 * (i % 4) + 4 * (i / 4));
            i += 1;
        }
        at += 1;
    }
    words
}

/// Points of four magnitudes as words of codes.
const fn bytes_of<const N: usize>(points: &[[i8; 4]; N]) -> [u32; N] {
    let (mut words, mut at) = ([0; N], 0);
    while at < N {
        let mut i = 0;
        while i < 4 {
            words[at] |= ((points[at][i] as u8 + MIDDLE) as u32) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    words
}

static IQ1_GRID: [u32; 2048] = nibbles_of(&grids::IQ1, &[-1, 0, 1]);
static IQ2_XXS_GRID: [u32; 256] = nibbles_of(&grids::IQ2_XXS, &IQ2_LEVELS);
static IQ2_XS_GRID: [u32; 512] = nibbles_of(&grids::IQ2_XS, &IQ2_LEVELS);
static IQ2_S_GRID: [u32; 1024] = nibbles_of(&grids::IQ2_S, &IQ2_LEVELS);
static IQ3_XXS_GRID: [u32; 256] = bytes_of(&grids::IQ3_XXS);
static IQ3_S_GRID: [u32; 512] = bytes_of(&grids::IQ3_S);

/// Word `at` of every row.
#[inline(always)]
unsafe fn word<S: Simd, F: Format>(block: *const u8, at: usize) -> S::I {
    // SAFETY: the caller's block has this word.
    unsafe { S::load_bytes(block.add((F::META + 4 * at) * S::R)) }
}

/// The lowest bits of a lane, from bit `from` on.
#[inline(always)]
unsafe fn field<S: Simd>(v: S::I, from: usize, mask: i32) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::and(S::shr(v, from as u32), S::iset1(mask)) }
}

/// Index of eight bits from bit `from` of `low` on, under the bits of `mask` from bit `above` of
/// `high` on.
#[inline(always)]
unsafe fn index<S: Simd>(low: S::I, from: usize, high: S::I, above: usize, mask: i32) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let high = S::shl(field::<S>(high, above, mask), 8);
        S::or(field::<S>(low, from, 255), high)
    }
}

/// Seven signs from bit `from` on, and the eighth, which makes the number of minus signs even.
#[inline(always)]
unsafe fn eight_signs<S: Simd>(v: S::I, from: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let seven = field::<S>(v, from, 127);
        let mut parity = S::xor(seven, S::shr(seven, 4));
        parity = S::xor(parity, S::shr(parity, 2));
        parity = S::xor(parity, S::shr(parity, 1));
        S::or(seven, S::shl(S::and(parity, S::iset1(1)), 7))
    }
}

/// Negates the codes whose bit is set: bit `from + i` of a lane for code `i`.
#[inline(always)]
unsafe fn negate<S: Simd>(codes: S::I, signs: S::I, from: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let four = field::<S>(signs, from, 15);
        // bit i to the lowest of byte i
        let low = S::or(four, S::shl(four, 7));
        let bits = S::and(S::or(low, S::shl(low, 14)), S::iset1(0x0101_0101));
        // 127 - (64 + m) + 1 = 64 - m
        let flip = S::isub(S::shl(bits, 7), bits);
        S::iadd(S::xor(codes, flip), bits)
    }
}

/// Eight signed weights of IQ2: four from the first sign on, four more.
#[inline(always)]
unsafe fn signed_point<S: Simd>(grid: &'static [u32], index: S::I, signs: S::I) -> [S::I; 2] {
    // SAFETY: indices are below the length of their format's grid.
    unsafe {
        let levels = S::gather(grid, index);
        let first = S::lookup(field::<S>(levels, 0, 0x0f0f_0f0f), &IQ2_CODES);
        let second = S::lookup(field::<S>(levels, 4, 0x0f0f_0f0f), &IQ2_CODES);
        [negate::<S>(first, signs, 0), negate::<S>(second, signs, 4)]
    }
}

/// Eight weights of IQ1, in eighths above 16: a shift of one eighth up, or down where `minus` is 1.
#[inline(always)]
unsafe fn shifted_point<S: Simd>(index: S::I, minus: S::I) -> [S::I; 2] {
    // SAFETY: indices have eleven bits.
    unsafe {
        let levels = S::gather(&IQ1_GRID, index);
        // twice the shift in every byte
        let two = S::or(S::shl(minus, 1), S::shl(minus, 9));
        let less = S::or(two, S::shl(two, 16));
        let first = S::lookup(field::<S>(levels, 0, 0x0f0f_0f0f), &IQ1_CODES);
        let second = S::lookup(field::<S>(levels, 4, 0x0f0f_0f0f), &IQ1_CODES);
        [S::isub(first, less), S::isub(second, less)]
    }
}

/// Codes of two points of eight.
#[inline(always)]
fn eights<I>(point: impl Fn(usize) -> [I; 2]) -> [I; 4] {
    let ([a, b], [c, d]) = (point(0), point(1));
    [a, b, c, d]
}

/// The odd number `2 scale + 1` that a scale stands for, times the block's scale and a power of
/// two.
#[inline(always)]
unsafe fn odd_scale<S: Simd>(d: S::F, scale: S::I, unit: f32) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let odd = S::or(S::shl(scale, 1), S::iset1(1));
        S::mul(S::mul(d, S::to_f(odd)), S::set1(unit))
    }
}

/// Nibble `g` of bytes of scales.
#[inline(always)]
unsafe fn nibble<S: Simd>(bytes: *const u8, g: usize) -> S::I {
    // SAFETY: the caller has the byte of every row.
    unsafe { field::<S>(S::load_u8(bytes.add(g / 2 * S::R)), 4 * (g % 2), 15) }
}

/// Copies words of rows in turn: `N` bytes of each of the sources, group after group.
fn interleave<const M: usize>(words: &mut [u8], sources: [(&[u8], usize); M]) {
    let group: usize = sources.iter().map(|(_, bytes)| bytes).sum();
    for (g, words) in words.chunks_exact_mut(group).enumerate() {
        let mut at = 0;
        for (source, bytes) in sources {
            words[at..at + bytes].copy_from_slice(&source[g * bytes..(g + 1) * bytes]);
            at += bytes;
        }
    }
}

format! {
    /// Four indices of 8 bits, four times seven signs and a 4-bit scale for every 32.
    IQ2_XXS: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        let signs = word::<S, IQ2_XXS>(meta, 2 * g + 1);
        (odd_scale::<S>(d, S::shr(signs, 28), 0.125), S::zero())
    }
    unpack(raw, words) { words.copy_from_slice(&raw[2..]) }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu None,
    codes S, H(block, g) in 64 bytes, up to 107 {
        let (at, signs) = (word::<S, IQ2_XXS>(block, 2 * g), word::<S, IQ2_XXS>(block, 2 * g + 1));
        eights(#[inline(always)] |i| {
            let l = 2 * H + i;
            let signs = eight_signs::<S>(signs, 7 * l);
            signed_point::<S>(&IQ2_XXS_GRID, field::<S>(at, 8 * l, 255), signs)
        })
    }
}

format! {
    /// Indices of 9 bits with seven signs, and a 4-bit scale for every 16.
    IQ2_XS: 256 weights, meta 10, low 0, high 0, top 0, group 16, offset 64, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 0.125), S::zero())
    }
    unpack(raw, words) { words.copy_from_slice(&raw[2..66]) }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[66..]);
    }
    gpu None,
    codes S, H(block, g) in 64 bytes, up to 107 {
        let both = word::<S, IQ2_XS>(block, 2 * g + H);
        eights(#[inline(always)] |i| {
            let signs = eight_signs::<S>(both, 16 * i + 9);
            signed_point::<S>(&IQ2_XS_GRID, field::<S>(both, 16 * i, 511), signs)
        })
    }
}

format! {
    /// Indices of 10 bits, eight signs each, and a 4-bit scale for every 16.
    IQ2_S: 256 weights, meta 18, low 0, high 0, top 0, group 16, offset 64, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 0.125), S::zero())
    }
    unpack(raw, words) { interleave(words, [(&raw[2..34], 4), (&raw[34..66], 4)]) }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[74..]);
        meta.bytes(10, &raw[66..74]);
    }
    gpu None,
    codes S, H(block, g) in 64 bytes, up to 107 {
        let (at, signs) = (word::<S, IQ2_S>(block, 2 * g), word::<S, IQ2_S>(block, 2 * g + 1));
        let high = S::load_u8(block.add((10 + g) * S::R));
        eights(#[inline(always)] |i| {
            let l = 2 * H + i;
            let at = index::<S>(at, 8 * l, high, 2 * l, 3);
            signed_point::<S>(&IQ2_S_GRID, at, S::shr(signs, 8 * l as u32))
        })
    }
}

format! {
    /// Eight indices of 8 bits, four times seven signs and a 4-bit scale for every 32.
    IQ3_XXS: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        let signs = word::<S, IQ3_XXS>(meta, 3 * g + 2);
        (odd_scale::<S>(d, S::shr(signs, 28), 0.25), S::zero())
    }
    unpack(raw, words) { interleave(words, [(&raw[2..66], 8), (&raw[66..], 4)]) }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu None,
    codes S, H(block, g) in 96 bytes, up to 126 {
        let (at, signs) =
            (word::<S, IQ3_XXS>(block, 3 * g + H), word::<S, IQ3_XXS>(block, 3 * g + 2));
        let (first, second) =
            (eight_signs::<S>(signs, 14 * H), eight_signs::<S>(signs, 14 * H + 7));
        each_of_four(#[inline(always)] |j| {
            let point = S::gather(&IQ3_XXS_GRID, field::<S>(at, 8 * j, 255));
            negate::<S>(point, if j < 2 { first } else { second }, 4 * (j % 2))
        })
    }
}

format! {
    /// Indices of 9 bits, a sign for each weight, and a 4-bit scale for every 32.
    IQ3_S: 256 weights, meta 14, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 1.0), S::zero())
    }
    unpack(raw, words) { interleave(words, [(&raw[2..66], 8), (&raw[74..106], 4)]) }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[106..]);
        meta.bytes(6, &raw[66..74]);
    }
    gpu None,
    codes S, H(block, g) in 96 bytes, up to 79 {
        let (at, signs) =
            (word::<S, IQ3_S>(block, 3 * g + H), word::<S, IQ3_S>(block, 3 * g + 2));
        let high = S::load_u8(block.add((6 + g) * S::R));
        each_of_four(#[inline(always)] |j| {
            let point = S::gather(&IQ3_S_GRID, index::<S>(at, 8 * j, high, 4 * H + j, 1));
            negate::<S>(point, signs, 16 * H + 4 * j)
        })
    }
}

format! {
    /// Indices of 11 bits; a shift and a 3-bit scale for every 32.
    IQ1_S: 256 weights, meta 18, low 0, high 0, top 0, group 32, offset 16, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        let high = S::load_u8(meta.add((10 + g) * S::R));
        (odd_scale::<S>(d, field::<S>(high, 4, 7), 0.125), S::zero())
    }
    unpack(raw, words) { words.copy_from_slice(&raw[2..34]) }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        for g in 0..8 {
            *meta.byte(2 + g) = raw[34 + 2 * g];
            *meta.byte(10 + g) = raw[35 + 2 * g];
        }
    }
    gpu None,
    codes S, H(block, g) in 32 bytes, up to 25 {
        let (at, low) = (word::<S, IQ1_S>(block, g), S::load_u8(block.add((2 + g) * S::R)));
        let high = S::or(low, S::shl(S::load_u8(block.add((10 + g) * S::R)), 8));
        eights(#[inline(always)] |i| {
            let l = 2 * H + i;
            let at = index::<S>(at, 8 * l, high, 3 * l, 7);
            shifted_point::<S>(at, S::shr(high, 15))
        })
    }
}

format! {
    /// Indices of 11 bits, a shift for every 8 and a 3-bit scale for every 16.
    ///
    /// The scales' lower two bits are in the pairs of bits of byte `2 + g / 4`, the third ones in
    /// the bits of byte `6 + g / 8`.
    IQ1_M: 256 weights, meta 24, low 0, high 0, top 0, group 16, offset 16, min false, table None,
    block_scales [0],
    scales S([d], meta, g) {
        let low = field::<S>(S::load_u8(meta.add((2 + g / 4) * S::R)), 2 * (g % 4), 3);
        let high = field::<S>(S::load_u8(meta.add((6 + g / 8) * S::R)), g % 8, 1);
        (odd_scale::<S>(d, S::or(low, S::shl(high, 2)), 0.125), S::zero())
    }
    unpack(raw, words) { words.copy_from_slice(&raw[..32]) }
    transpose(raw, meta) {
        let scales: [u16; 4] =
            std::array::from_fn(|n| u16::from_le_bytes([raw[48 + 2 * n], raw[49 + 2 * n]]));
        let half = (0..4).fold(0, |half, n| half | scales[n] >> 12 << (4 * n));
        meta.half(0, &half.to_le_bytes());
        for g in 0..16 {
            let scale = (scales[g / 4] >> (3 * (g % 4)) & 7) as u8;
            *meta.byte(2 + g / 4) |= (scale & 3) << (2 * (g % 4));
            *meta.byte(6 + g / 8) |= (scale >> 2) << (g % 8);
        }
        meta.bytes(8, &raw[32..48]);
    }
    gpu None,
    codes S, H(block, g) in 32 bytes, up to 25 {
        let (at, high) =
            (word::<S, IQ1_M>(block, g), S::load_u8(block.add((8 + 2 * g + H) * S::R)));
        eights(#[inline(always)] |i| {
            let at = index::<S>(at, 16 * H + 8 * i, high, 4 * i, 7);
            shifted_point::<S>(at, field::<S>(high, 4 * i + 3, 1))
        })
    }
}

family!(
    decoded(IQ1_S),
    decoded(IQ1_M),
    decoded(IQ2_XXS),
    decoded(IQ2_XS),
    decoded(IQ2_S),
    decoded(IQ3_XXS),
    decoded(IQ3_S)
);
