//! Packed weight formats: how a strip of `R` rows lies in memory, and how codes and scales come out
//! of it.
//!
//! Every block format of ggml that is `w = scale * (code - offset) - min` over groups of 16 or 32,
//! or has a table of sixteen values in place of the codes, is a few numbers and one function here.
//! A strip holds, block after block along k, for `R` rows together:
//!
//! ```text
//! meta   the block's scales, transposed so that R rows are neighbours   META   bytes a row
//! low    the low bits of the codes                                      LOW    bits a weight
//! high   the bits above them                                            HIGH   bits a weight
//! top    the bits above those                                           TOP    bits a weight
//! ```
//! In the bit planes the unit is a vector of `4 R` bytes: lane `r` has four consecutive k of row
//! `r`, so that one 4-byte dot product per lane needs no shuffles. 4-bit planes keep k-group `2j`
//! in the low and `2j+1` in the high nibbles of vector `j`; 1- and 2-bit planes keep the following
//! k-groups in ever higher bits of the same bytes. Nothing grows: a packed strip has exactly the
//! bytes of the rows in the file.
#![allow(non_camel_case_types)] // ggml's own names

use crate::simd::Simd;
use octavo_quant::TensorType;

/// One packed format. `R` is always `S::R`.
pub(crate) trait Format {
    const TYPE: TensorType;
    /// Weights in a block.
    const K: usize;
    /// Bytes of scales per row and block.
    const META: usize;
    /// Bits in the low plane: 0, 4 or 8.
    const LOW: usize;
    /// Bits in the high plane: 0, 1 or 2.
    const HIGH: usize;
    /// Bits in the top plane: 0 or 1.
    const TOP: usize;
    /// What the codes of the low plane stand for, if not for themselves.
    const TABLE: Option<[u8; 16]>;
    /// Weights that share a scale: 16 or 32.
    const GROUP: usize;
    /// Subtracted from every code.
    const OFFSET: i32;
    /// Whether a minimum is subtracted from `scale * code`.
    const MIN: bool;
    /// Block scales, read once a block.
    type Head<S: Simd>: Copy;

    /// # Safety
    /// `meta` points to `META * S::R` readable bytes; see simd.rs for the instruction set.
    unsafe fn head<S: Simd>(meta: *const u8) -> Self::Head<S>;
    /// Scale and minimum of group `g` of the block.
    ///
    /// # Safety
    /// As [`Format::head`].
    unsafe fn scales<S: Simd>(head: Self::Head<S>, meta: *const u8, g: usize) -> (S::F, S::F);

    /// Whether every code is below 128.
    const SMALL: bool = all_small(Self::TABLE, Self::LOW + Self::HIGH + Self::TOP);

    /// Bytes of one block of one row, packed or not.
    const BLOCK_BYTES: usize = Self::META + Self::K * (Self::LOW + Self::HIGH + Self::TOP) / 8;

    /// Codes of 16 consecutive k: half `H` (0 or 1) of the block's 32-group `g`, four k to a
    /// vector.
    ///
    /// # Safety
    /// `block` points to `BLOCK_BYTES * S::R` readable bytes and `g < K / 32`.
    #[inline(always)]
    unsafe fn codes<S: Simd, const H: usize>(block: *const u8, g: usize) -> [S::I; 4] {
        let vector = 4 * S::R;
        // SAFETY: the planes lie inside the block: META, then K / 8 bytes a row for each bit of
        // LOW, HIGH and TOP.
        unsafe {
            let low = block.add(Self::META * S::R);
            let mut c = if Self::LOW == 8 {
                let p = low.add((8 * g + 4 * H) * vector);
                std::array::from_fn(
                    #[inline(always)]
                    |j| S::load_bytes(p.add(j * vector)),
                )
            } else if Self::LOW == 4 {
                let p = low.add((4 * g + 2 * H) * vector);
                let (a, b, mask) = (
                    S::load_bytes(p),
                    S::load_bytes(p.add(vector)),
                    S::iset1(0x0f0f_0f0f),
                );
                [
                    S::and(a, mask),
                    S::and(S::shr(a, 4), mask),
                    S::and(b, mask),
                    S::and(S::shr(b, 4), mask),
                ]
            } else {
                [S::iset1(0); 4]
            };
            if let Some(table) = Self::TABLE {
                c = [
                    S::lookup(c[0], &table),
                    S::lookup(c[1], &table),
                    S::lookup(c[2], &table),
                    S::lookup(c[3], &table),
                ];
            }
            let high = low.add(Self::K * Self::LOW / 8 * S::R);
            if Self::HIGH == 1 {
                c = one_bit::<S, H>(c, high.add(g * vector), Self::LOW as u32);
            }
            if Self::HIGH == 2 {
                let v = S::load_bytes(high.add((2 * g + H) * vector));
                for (j, c) in c.iter_mut().enumerate() {
                    // bits 2 j and 2 j + 1 become the lowest above LOW
                    let (at, to) = (2 * j as u32, Self::LOW as u32);
                    let bits = if at <= to {
                        S::shl(v, to - at)
                    } else {
                        S::shr(v, at - to)
                    };
                    *c = S::or(*c, S::and(bits, S::iset1(0x0303_0303 << to)));
                }
            }
            if Self::TOP == 1 {
                let top = high.add(Self::K * Self::HIGH / 8 * S::R);
                c = one_bit::<S, H>(c, top.add(g * vector), (Self::LOW + Self::HIGH) as u32);
            }
            c
        }
    }
}

const fn all_small(table: Option<[u8; 16]>, bits: usize) -> bool {
    let mut small = bits < 8;
    if let Some(table) = table {
        let mut i = 0;
        while i < 16 {
            small &= table[i] < 128;
            i += 1;
        }
    }
    small
}

/// Puts bit `4 H + j` of each byte at `plane` to bit `to` of codes `j`.
#[inline(always)]
unsafe fn one_bit<S: Simd, const H: usize>(
    mut c: [S::I; 4],
    plane: *const u8,
    to: u32,
) -> [S::I; 4] {
    // SAFETY: the caller's plane has a vector at this place.
    unsafe {
        let v = S::load_bytes(plane);
        for (j, c) in c.iter_mut().enumerate() {
            let at = (4 * H + j) as u32;
            let bit = if at <= to {
                S::shl(v, to - at)
            } else {
                S::shr(v, at - to)
            };
            *c = S::or(*c, S::and(bit, S::iset1(0x0101_0101 << to)));
        }
        c
    }
}

/// Stamps a format: its numbers, the places of the f16 vectors its blocks start with (its head),
/// and the body of [`Format::scales`], which has the head, the block and the group's number, and
/// may read `meta` bytes a row.
macro_rules! format {
    ($(#[$doc:meta])* $name:ident: $k:literal weights, meta $meta:literal, low $low:literal, high $high:literal,
        top $top:literal, group $group:literal, offset $offset:literal, min $min:literal, table $table:expr,
        head [$($half:literal),*], scales $simd:ident($head:pat, $at:ident, $g:pat) $body:block) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$name;
            const K: usize = $k;
            const META: usize = $meta;
            const LOW: usize = $low;
            const HIGH: usize = $high;
            const TOP: usize = $top;
            const TABLE: Option<[u8; 16]> = $table;
            const GROUP: usize = $group;
            const OFFSET: i32 = $offset;
            const MIN: bool = $min;
            type Head<S: Simd> = [S::F; <[usize]>::len(&[$($half),*])];

            #[inline(always)]
            unsafe fn head<S: Simd>(_meta: *const u8) -> Self::Head<S> {
                // SAFETY: rows of R halves start the block, as many as its head has.
                [$(unsafe { S::load_f16(_meta.add(2 * $half * S::R).cast()) }),*]
            }
            #[inline(always)]
            unsafe fn scales<$simd: Simd>($head: Self::Head<$simd>, $at: *const u8, $g: usize) -> ($simd::F, $simd::F) {
                // SAFETY: with g < K / GROUP every read stays inside the META * R bytes the block
                // starts with.
                unsafe { $body }
            }
        }
    };
}

/// One f16 scale (and minimum) for 32 weights: `low` and `high` bits.
macro_rules! legacy {
    ($name:ident, low $low:literal, high $high:literal, offset $offset:literal, table $table:expr) => {
        format! {
            /// One f16 scale for 32 weights.
            $name: 32 weights, meta 2, low $low, high $high, top 0, group 32, offset $offset, min false, table $table,
            head [0], scales S([d], _meta, _) { (d, S::zero()) }
        }
    };
    ($name:ident, low $low:literal, high $high:literal, min) => {
        format! {
            /// One f16 scale and minimum for 32 weights.
            $name: 32 weights, meta 4, low $low, high $high, top 0, group 32, offset 0, min true, table None,
            // ggml's minimum is added, ours subtracted
            head [0, 1], scales S([d, m], _meta, _) { (d, S::sub(S::zero(), m)) }
        }
    };
}

/// ggml's sixteen values of IQ4, plus 128.
const IQ4: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

legacy!(Q4_0, low 4, high 0, offset 8, table None);
legacy!(Q4_1, low 4, high 0, min);
legacy!(Q5_0, low 4, high 1, offset 16, table None);
legacy!(Q5_1, low 4, high 1, min);
legacy!(Q8_0, low 8, high 0, offset 128, table None);
legacy!(IQ4_NL, low 4, high 0, offset 128, table Some(IQ4));

/// Scale and minimum of eight groups of 32, 6 bits each, of Q4_K and Q5_K.
///
/// Packed as 8 vectors of R bytes (low nibbles: scale | min << 4), then 4 vectors of R bytes whose
/// byte for groups `2i` and `2i+1` has the upper two bits: scale, min, scale, min from bit 0 up.
macro_rules! k45 {
    ($name:ident, high $high:literal) => {
        format! {
            /// Super-block of 256 with 6-bit scales and minima.
            $name: 256 weights, meta 16, low 4, high $high, top 0, group 32, offset 0, min true, table None,
            head [0, 1], scales S([d, dmin], meta, g) {
                let low = S::load_u8(meta.add((4 + g) * S::R));
                let high = S::shr(S::load_u8(meta.add((12 + g / 2) * S::R)), 4 * (g as u32 & 1));
                let scale = S::or(S::and(low, S::iset1(15)), S::shl(S::and(high, S::iset1(3)), 4));
                let min = S::or(S::shr(low, 4), S::shl(S::and(high, S::iset1(12)), 2));
                (S::mul(d, S::to_f(scale)), S::mul(dmin, S::to_f(min)))
            }
        }
    };
}

k45!(Q4_K, high 0);
k45!(Q5_K, high 1);

format! {
    /// Super-block of 256 with an 8-bit scale for every 16.
    Q6_K: 256 weights, meta 18, low 4, high 2, top 0, group 16, offset 32, min false, table None,
    head [0], scales S([d], meta, g) {
        (S::mul(d, S::to_f(S::load_i8(meta.add((2 + g) * S::R)))), S::zero())
    }
}

format! {
    /// Super-block of 256 in 2 bits, with a 4-bit scale and minimum for every 16.
    Q2_K: 256 weights, meta 20, low 0, high 2, top 0, group 16, offset 0, min true, table None,
    head [0, 1], scales S([d, dmin], meta, g) {
        let both = S::load_u8(meta.add((4 + g) * S::R));
        (S::mul(d, S::to_f(S::and(both, S::iset1(15)))), S::mul(dmin, S::to_f(S::shr(both, 4))))
    }
}

format! {
    /// Super-block of 256 in 3 bits, with a 6-bit scale for every 16.
    ///
    /// The scales stay as they are: the low nibbles of byte `v` belong to groups `v` and `v + 8`,
    /// the pairs of bits of byte `8 + v` to groups `v`, `v + 4`, `v + 8` and `v + 12`.
    Q3_K: 256 weights, meta 14, low 0, high 2, top 1, group 16, offset 4, min false, table None,
    head [0], scales S([d], meta, g) {
        let low = S::shr(S::load_u8(meta.add((2 + g % 8) * S::R)), 4 * (g as u32 / 8));
        let high = S::shr(S::load_u8(meta.add((10 + g % 4) * S::R)), 2 * (g as u32 / 4));
        (S::mul(d, six_bits::<S>(low, high)), S::zero())
    }
}

format! {
    /// Super-block of 256 values of a table, with a 6-bit scale for every 32.
    ///
    /// The scales stay as they are: nibbles of byte `2 + v` belong to groups `2 v` and `2 v + 1`,
    /// the pairs of bits of byte `6 + v` to groups `4 v` to `4 v + 3`.
    IQ4_XS: 256 weights, meta 8, low 4, high 0, top 0, group 32, offset 128, min false, table Some(IQ4),
    head [0], scales S([d], meta, g) {
        let low = S::shr(S::load_u8(meta.add((2 + g / 2) * S::R)), 4 * (g as u32 % 2));
        let high = S::shr(S::load_u8(meta.add((6 + g / 4) * S::R)), 2 * (g as u32 % 4));
        (S::mul(d, six_bits::<S>(low, high)), S::zero())
    }
}

/// The scale, less 32, whose lower four and upper two bits are the lowest of `low` and `high`.
#[inline(always)]
unsafe fn six_bits<S: Simd>(low: S::I, high: S::I) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let scale = S::or(
            S::and(low, S::iset1(15)),
            S::shl(S::and(high, S::iset1(3)), 4),
        );
        S::to_f(S::isub(scale, S::iset1(32)))
    }
}

/// Twice the values of MXFP4, plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

format! {
    /// A power of two for 32 four-bit floats.
    MXFP4: 32 weights, meta 1, low 4, high 0, top 0, group 32, offset 12, min false, table Some(FP4),
    head [], scales S([], meta, _) {
        // 2^(e - 128), halved because the table is doubled, as the product of two powers that are
        // normal floats
        let e = S::load_u8(meta);
        let half = S::shr(e, 1);
        let a = S::bits_f(S::shl(S::iadd(half, S::iset1(63)), 23));
        let b = S::bits_f(S::shl(S::iadd(S::isub(e, half), S::iset1(63)), 23));
        (S::mul(a, b), S::zero())
    }
}

/// A group of an AWQ checkpoint: an f16 scale and a whole zero point for all of it.
macro_rules! awq {
    ($name:ident, $k:literal) => {
        format! {
            /// One f16 scale and one zero point for a group of a row.
            $name: $k weights, meta 3, low 4, high 0, top 0, group 32, offset 0, min true, table None,
            head [0], scales S([d], meta, _) {
                let zero = S::and(S::load_u8(meta.add(2 * S::R)), S::iset1(15));
                (d, S::mul(d, S::to_f(zero)))
            }
        }
    };
}

awq!(AWQ_G32, 32);
awq!(AWQ_G64, 64);
awq!(AWQ_G128, 128);

/// A plain float type, packed as [k][R].
pub(crate) trait Float {
    const BYTES: usize;
    /// # Safety
    /// `S::R` elements are readable at `p`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

macro_rules! float {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(crate) struct $name;
        impl Float for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const u8) -> S::F {
                // SAFETY: the caller has R elements at `p`.
                unsafe { S::$load(p.cast()) }
            }
        }
    };
}
float!(F32, 4, load);
float!(F16, 2, load_f16);
float!(BF16, 2, load_bf16);
