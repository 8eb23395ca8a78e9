//! Formats whose codes are points of a grid, found by index: eight weights, or four, to an index.
//!
//! An index selects an entry of a table, which has the weights' levels. Those of IQ2 and IQ3 are
//! magnitudes, at most 62; with signs they become codes around 64.

mod points;

use super::planes::each_of_four;
use super::{Fold, Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor};
use crate::simd::{Halves, Simd};
use octavo_quant::TensorType;
use points::{
    IQ1_CODES, IQ1_GRID, IQ2_CODES, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_CODES, IQ3_S_GRID,
    IQ3_XXS_CODES, IQ3_XXS_GRID, MIDDLE,
};

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

/// Signs of 32 weights of a row in plane order: bit `j` of byte `i` is that of weight `4 j + i`,
/// which a vector of codes has in byte `i`.
fn sign_plane(signs: [u8; 4]) -> u32 {
    // bit i of a nibble becomes the lowest of byte i
    let spread = |nibble: u8| (u32::from(nibble) * 0x0020_4081) & 0x0101_0101;
    let plane = |(l, eight): (usize, u8)| (spread(eight & 15) | spread(eight >> 4) << 1) << (2 * l);
    signs.into_iter().enumerate().map(plane).sum()
}

/// Four times seven signs in plane order. The number of minus signs among eight weights is even, so
/// that the eighth sign need not be stored: bit `l` of `others` has its place.
fn seven_signs(sevens: [u8; 4], others: u8) -> u32 {
    sign_plane(std::array::from_fn(|l| sevens[l] & 127 | (others >> l & 1) << 7))
}

/// The place of the eighth sign of eight weights, number `l` of 32.
const fn eighth(l: usize) -> usize {
    25 + 2 * l
}

/// Puts eighth signs in their places, in which [`seven_signs`] left other bits.
#[inline(always)]
unsafe fn even_signs<S: Simd>(plane: S::I) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // of all four bytes, and of neighbouring bits: of eight weights in every second bit
        let mut parity = S::xor(plane, S::shr(plane, 16));
        parity = S::xor(parity, S::shr(parity, 8));
        parity = S::xor(parity, S::shr(parity, 1));
        S::xor(plane, S::shl(S::and(parity, S::iset1(0x55)), eighth(0) as u32))
    }
}

/// The scale in the places of eighth signs.
#[inline(always)]
unsafe fn scale_of_signs<S: Simd>(plane: S::I) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // bits 0, 2, 4 and 6 to the lowest four
        let apart = field::<S>(plane, eighth(0), 0x55);
        let pairs = S::and(S::or(apart, S::shr(apart, 1)), S::iset1(0x33));
        S::and(S::or(pairs, S::shr(pairs, 2)), S::iset1(15))
    }
}

/// Four codes around [`MIDDLE`] with the signs of plane `j`.
#[inline(always)]
unsafe fn signed<S: Simd>(codes: S::I, plane: S::I, j: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::reflect(codes, 2 * MIDDLE, plane, j as u32) }
}

/// The two bytes of `from`, starting at bit `at`, as the lowest ones of halves.
#[inline(always)]
unsafe fn bytes_in_halves<S: Simd>(from: S::I, at: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { field::<S>(from, at, 0x00ff_00ff) }
}

/// Upper bits of two indices, in halves, above their lower eight bits: those from bits `first` and
/// `second` of `from` on, as many as `mask` has.
#[inline(always)]
unsafe fn above_bytes<S: Simd>(from: S::I, first: i32, second: i32, mask: i32) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let moved = |at: i32, to: i32| match to - at {
            up @ 0.. => S::shl(from, up as u32),
            down => S::shr(from, -down as u32),
        };
        S::or(
            S::and(moved(first, 8), S::iset1(mask << 8)),
            S::and(moved(second, 24), S::iset1(mask << 24)),
        )
    }
}

/// Sixteen signed weights of IQ2, of the points that the halves of `index` select, with the signs
/// of planes from `j` on.
#[inline(always)]
unsafe fn signed_points<S: Simd, const N: usize>(
    grid: &'static Halves<N>,
    index: S::I,
    plane: S::I,
    j: usize,
) -> [S::I; 4] {
    // SAFETY: indices are below the length of their format's grid.
    unsafe {
        let levels = S::halves(grid, index);
        let both = [S::half_twice(levels, 0), S::half_twice(levels, 1)];
        each_of_four(#[inline(always)] |i| {
            let four = field::<S>(both[i / 2], 4 * (i % 2), 0x0c0c_0303);
            signed::<S>(S::lookup(four, &IQ2_CODES), plane, j + i)
        })
    }
}

/// Sixteen signed weights of IQ3, of the points that the halves of `even` select, the first and the
/// third, and those of `odd`, with the signs of planes from `j` on.
#[inline(always)]
unsafe fn signed_fours<S: Simd, const N: usize>(
    (grid, codes): (&'static Halves<N>, &[u8; 16]),
    [even, odd]: [S::I; 2],
    plane: S::I,
    j: usize,
) -> [S::I; 4] {
    // SAFETY: indices are below the length of their format's grid.
    unsafe {
        let levels = [S::halves(grid, even), S::halves(grid, odd)];
        each_of_four(#[inline(always)] |i| {
            let twice = S::half_twice(levels[i % 2], i / 2);
            let low = S::and(twice, S::iset1(0x0000_0f0f));
            let four = S::or(low, field::<S>(twice, 4, 0x0f0f_0000));
            signed::<S>(S::lookup(four, codes), plane, j + i)
        })
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

/// Writes the words of every 32 weights: the bytes of their indices, and the signs.
#[inline(always)]
fn with_signs<const N: usize>(words: &mut [u8], parts: impl Iterator<Item = ([u8; N], u32)>) {
    for (words, (indices, signs)) in words.chunks_exact_mut(N + 4).zip(parts) {
        words[..N].copy_from_slice(&indices);
        words[N..].copy_from_slice(&signs.to_le_bytes());
    }
}

/// Parts of a block in turn: `N` bytes of indices, and four of signs.
#[inline(always)]
fn parts<'a, const N: usize>(
    indices: &'a [u8],
    signs: &'a [u8],
) -> impl Iterator<Item = (&'a [u8; N], [u8; 4])> {
    let signs = signs.as_chunks().0.iter().copied();
    indices.as_chunks().0.iter().zip(signs)
}

/// Four times seven signs and a scale, as a word of the file has them.
#[inline(always)]
fn signs_and_scale(word: [u8; 4]) -> u32 {
    let word = u32::from_le_bytes(word);
    seven_signs([0, 7, 14, 21].map(|at| (word >> at) as u8), (word >> 28) as u8)
}

/// Words on the GPU too: the half at the head of a block is its scale there, and `of` writes
/// `bytes` bytes of each 32 columns.
const fn of_words(
    ty: TensorType,
    bytes: usize,
    of: fn(&[u8], usize, usize, &mut [u8]),
) -> Option<GpuScales> {
    Some(GpuScales {
        kernels: ty,
        codes: GpuCodes::Own,
        bytes,
        of,
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[..2]),
    })
}

/// Four scales of three bits of a block of IQ1_M, and above them four bits of its own scale.
#[inline(always)]
fn iq1_m_scales(raw: &[u8], n: usize) -> u16 {
    u16::from_le_bytes([raw[48 + 2 * n], raw[49 + 2 * n]])
}

/// The scale of a block of IQ1_M, a half.
#[inline(always)]
fn iq1_m_half(raw: &[u8]) -> [u8; 2] {
    let half = (0..4).fold(0, |half, n| half | iq1_m_scales(raw, n) >> 12 << (4 * n));
    half.to_le_bytes()
}

format! {
    /// Four indices of 8 bits, four times seven signs and a 4-bit scale for every 32.
    IQ2_XXS: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    fold up to 31 times 0.125,
    scales S([d], meta, g) {
        let signs = word::<S, IQ2_XXS>(meta, 2 * g + 1);
        (odd_scale::<S>(d, scale_of_signs::<S>(signs), 0.125), S::zero())
    }
    unpack(raw, words) {
        let groups = raw[2..].as_chunks().0.iter();
        with_signs(words, groups.map(|&[a, b, c, d, w, x, y, z]| {
            ([a, c, b, d], signs_and_scale([w, x, y, z]))
        }));
    }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu of_words(TensorType::IQ2_XXS, 0, |_, _, _, _| {}),
    codes S, H(block, g) in 64 bytes, up to 107 {
        let at = word::<S, IQ2_XXS>(block, 2 * g);
        let signs = even_signs::<S>(word::<S, IQ2_XXS>(block, 2 * g + 1));
        signed_points::<S, 256>(&IQ2_XXS_GRID, bytes_in_halves::<S>(at, 8 * H), signs, 4 * H)
    }
}

format! {
    /// Indices of 9 bits with seven signs, and a 4-bit scale for every 16. The highest bits of
    /// indices are in the places of eighth signs.
    IQ2_XS: 256 weights, meta 10, low 0, high 0, top 0, group 16, offset 64, min false, table None,
    block_scales [0],
    fold up to 31 times 0.125,
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 0.125), S::zero())
    }
    unpack(raw, words) {
        let groups = raw[2..66].as_chunks().0.iter();
        with_signs(words, groups.map(|&[a, s0, b, s1, c, s2, d, s3]| {
            let signs = [s0, s1, s2, s3];
            let highest = (0..4).map(|l| (signs[l] & 1) << l).sum();
            ([a, c, b, d], seven_signs(signs.map(|signs| signs >> 1), highest))
        }));
    }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[66..]);
    }
    gpu of_words(TensorType::IQ2_XS, 1, |raw, u, _, out| out[0] = raw[66 + u]),
    codes S, H(block, g) in 64 bytes, up to 107 {
        let at = word::<S, IQ2_XS>(block, 2 * g);
        let plane = word::<S, IQ2_XS>(block, 2 * g + 1);
        let signs = even_signs::<S>(plane);
        let highest = [2 * H, 2 * H + 1].map(|l| eighth(l) as i32);
        let above = above_bytes::<S>(plane, highest[0], highest[1], 1);
        let at = S::or(bytes_in_halves::<S>(at, 8 * H), above);
        signed_points::<S, 512>(&IQ2_XS_GRID, at, signs, 4 * H)
    }
}

format! {
    /// Indices of 10 bits, eight signs each, and a 4-bit scale for every 16.
    IQ2_S: 256 weights, meta 18, low 0, high 0, top 0, group 16, offset 64, min false, table None,
    block_scales [0],
    fold up to 31 times 0.125,
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 0.125), S::zero())
    }
    unpack(raw, words) {
        let groups = parts(&raw[2..34], &raw[34..66]);
        with_signs(words, groups.map(|(&[a, b, c, d], signs)| ([a, c, b, d], sign_plane(signs))));
    }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[74..]);
        meta.bytes(10, &raw[66..74]);
    }
    gpu of_words(TensorType::IQ2_S, 2, |raw, u, _, out| {
        out.copy_from_slice(&[raw[66 + u], raw[74 + u]]);
    }),
    codes S, H(block, g) in 64 bytes, up to 107 {
        let (at, signs) = (word::<S, IQ2_S>(block, 2 * g), word::<S, IQ2_S>(block, 2 * g + 1));
        let high = S::load_u8(block.add((10 + g) * S::R));
        let above = above_bytes::<S>(high, 4 * H as i32, 4 * H as i32 + 2, 3);
        let at = S::or(bytes_in_halves::<S>(at, 8 * H), above);
        signed_points::<S, 1024>(&IQ2_S_GRID, at, signs, 4 * H)
    }
}

format! {
    /// Eight indices of 8 bits, four times seven signs and a 4-bit scale for every 32.
    IQ3_XXS: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    fold up to 31 times 0.25,
    scales S([d], meta, g) {
        let signs = word::<S, IQ3_XXS>(meta, 3 * g + 2);
        (odd_scale::<S>(d, scale_of_signs::<S>(signs), 0.25), S::zero())
    }
    unpack(raw, words) {
        let groups = parts::<8>(&raw[2..66], &raw[66..]);
        with_signs(words, groups.map(|(at, signs)| (*at, signs_and_scale(signs))));
    }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu of_words(TensorType::IQ3_XXS, 0, |_, _, _, _| {}),
    codes S, H(block, g) in 96 bytes, up to 126 {
        let at = word::<S, IQ3_XXS>(block, 3 * g + H);
        let signs = even_signs::<S>(word::<S, IQ3_XXS>(block, 3 * g + 2));
        let at = [bytes_in_halves::<S>(at, 0), bytes_in_halves::<S>(at, 8)];
        signed_fours::<S, 256>((&IQ3_XXS_GRID, &IQ3_XXS_CODES), at, signs, 4 * H)
    }
}

format! {
    /// Indices of 9 bits, a sign for each weight, and a 4-bit scale for every 32.
    IQ3_S: 256 weights, meta 14, low 0, high 0, top 0, group 32, offset 64, min false, table None,
    block_scales [0],
    fold up to 31 times 1.0,
    scales S([d], meta, g) {
        (odd_scale::<S>(d, nibble::<S>(meta.add(2 * S::R), g), 1.0), S::zero())
    }
    unpack(raw, words) {
        let groups = parts::<8>(&raw[2..66], &raw[74..106]);
        with_signs(words, groups.map(|(at, signs)| (*at, sign_plane(signs))));
    }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[106..]);
        meta.bytes(6, &raw[66..74]);
    }
    gpu of_words(TensorType::IQ3_S, 2, |raw, u, _, out| {
        out.copy_from_slice(&[raw[66 + u], raw[106 + u / 2] >> (4 * (u % 2)) & 15]);
    }),
    codes S, H(block, g) in 96 bytes, up to 79 {
        let (at, signs) =
            (word::<S, IQ3_S>(block, 3 * g + H), word::<S, IQ3_S>(block, 3 * g + 2));
        let high = S::load_u8(block.add((6 + g) * S::R));
        let pair = |first: usize| {
            let above = 4 * H as i32 + first as i32;
            let above = above_bytes::<S>(high, above, above + 2, 1);
            S::or(bytes_in_halves::<S>(at, 8 * first), above)
        };
        let at = [pair(0), pair(1)];
        signed_fours::<S, 512>((&IQ3_S_GRID, &IQ3_S_CODES), at, signs, 4 * H)
    }
}

format! {
    /// Indices of 11 bits; a shift and a 3-bit scale for every 32.
    IQ1_S: 256 weights, meta 18, low 0, high 0, top 0, group 32, offset 16, min false, table None,
    block_scales [0],
    fold up to 15 times 0.125,
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
    gpu of_words(TensorType::IQ1_S, 2, |raw, u, _, out| {
        out.copy_from_slice(&raw[34 + 2 * u..36 + 2 * u]);
    }),
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
    fold up to 15 times 0.125,
    scales S([d], meta, g) {
        let low = field::<S>(S::load_u8(meta.add((2 + g / 4) * S::R)), 2 * (g % 4), 3);
        let high = field::<S>(S::load_u8(meta.add((6 + g / 8) * S::R)), g % 8, 1);
        (odd_scale::<S>(d, S::or(low, S::shl(high, 2)), 0.125), S::zero())
    }
    unpack(raw, words) { words.copy_from_slice(&raw[..32]) }
    transpose(raw, meta) {
        meta.half(0, &iq1_m_half(raw));
        for g in 0..16 {
            let scale = (iq1_m_scales(raw, g / 4) >> (3 * (g % 4)) & 7) as u8;
            *meta.byte(2 + g / 4) |= (scale & 3) << (2 * (g % 4));
            *meta.byte(6 + g / 8) |= (scale >> 2) << (g % 8);
        }
        meta.bytes(8, &raw[32..48]);
    }
    gpu Some(GpuScales {
        kernels: TensorType::IQ1_M,
        codes: GpuCodes::Own,
        // upper bits of the indices and shifts of the unit, then its two scales, a byte each
        bytes: 4,
        of: |raw, u, _, out| {
            out[..2].copy_from_slice(&raw[32 + 2 * u..34 + 2 * u]);
            let scales = iq1_m_scales(raw, u / 2) >> (6 * (u % 2));
            out[2..].copy_from_slice(&[(scales & 7) as u8, (scales >> 3 & 7) as u8]);
        },
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&iq1_m_half(raw)),
    }),
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
