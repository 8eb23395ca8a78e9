//! Packed weight formats: how a strip of `R` rows lies in memory, and how codes and scales come out of it.
//!
//! Every block format of ggml that is `w = scale * (code - offset) - min` over groups of 16 or 32, or has a table of
//! sixteen values in place of the codes, is a few numbers and one function here. A strip holds, block after block along k, for `R` rows together:
//!
//! ```text
//! meta   the block's scales, transposed so that R rows are neighbours   META   bytes a row
//! low    the low bits of the codes                                      LOW    bits a weight
//! high   the bits above them                                            HIGH   bits a weight
//! top    the bits above those                                           TOP    bits a weight
//! ```
//! In the bit planes the unit is a vector of `4 R` bytes: lane `r` has four consecutive k of row `r`, so that one
//! 4-byte dot product per lane needs no shuffles. 4-bit planes keep k-group `2j` in the low and `2j+1` in the high
//! nibbles of vector `j`; 1- and 2-bit planes keep the following k-groups in ever higher bits of the same bytes.
//! Nothing grows: a packed strip has exactly the bytes of the rows in the file.
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
    const TOP: usize = 0;
    /// What the codes of the low plane stand for, if not for themselves.
    const TABLE: Option<[u8; 16]> = None;
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

    /// Bytes of one block of one row, packed or not.
    const BLOCK_BYTES: usize = Self::META + Self::K * (Self::LOW + Self::HIGH + Self::TOP) / 8;

    /// Codes of 16 consecutive k: half `H` (0 or 1) of the block's 32-group `g`, four k to a vector.
    ///
    /// # Safety
    /// `block` points to `BLOCK_BYTES * S::R` readable bytes and `g < K / 32`.
    #[inline(always)]
    unsafe fn codes<S: Simd, const H: usize>(block: *const u8, g: usize) -> [S::I; 4] {
        let vector = 4 * S::R;
        // SAFETY: the planes lie inside the block: META, then K / 8 bytes a row for each bit of LOW, HIGH and TOP.
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
                let (a, b, mask) = (S::load_bytes(p), S::load_bytes(p.add(vector)), S::iset1(0x0f0f_0f0f));
                [S::and(a, mask), S::and(S::shr(a, 4), mask), S::and(b, mask), S::and(S::shr(b, 4), mask)]
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
                    let bits = if at <= to { S::shl(v, to - at) } else { S::shr(v, at - to) };
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

/// Puts bit `4 H + j` of each byte at `plane` to bit `to` of codes `j`.
#[inline(always)]
unsafe fn one_bit<S: Simd, const H: usize>(mut c: [S::I; 4], plane: *const u8, to: u32) -> [S::I; 4] {
    // SAFETY: the caller's plane has a vector at this place.
    unsafe {
        let v = S::load_bytes(plane);
        for (j, c) in c.iter_mut().enumerate() {
            let at = (4 * H + j) as u32;
            let bit = if at <= to { S::shl(v, to - at) } else { S::shr(v, at - to) };
            *c = S::or(*c, S::and(bit, S::iset1(0x0101_0101 << to)));
        }
        c
    }
}

macro_rules! legacy {
    ($name:ident, $ty:ident, low $low:literal, high $high:literal, offset $offset:literal, min $min:literal) => {
        /// One f16 scale (and minimum) for 32 weights.
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$ty;
            const K: usize = 32;
            const META: usize = if $min { 4 } else { 2 };
            const LOW: usize = $low;
            const HIGH: usize = $high;
            const GROUP: usize = 32;
            const OFFSET: i32 = $offset;
            const MIN: bool = $min;
            type Head<S: Simd> = ();

            #[inline(always)]
            unsafe fn head<S: Simd>(_: *const u8) {}
            #[inline(always)]
            unsafe fn scales<S: Simd>((): (), meta: *const u8, _: usize) -> (S::F, S::F) {
                // SAFETY: META * R bytes are readable at `meta`; ggml's minimum is added, ours subtracted.
                unsafe {
                    let d = S::load_f16(meta.cast());
                    if $min { (d, S::sub(S::zero(), S::load_f16(meta.add(2 * S::R).cast()))) } else { (d, S::zero()) }
                }
            }
        }
    };
}

legacy!(Q4_0, Q4_0, low 4, high 0, offset 8, min false);
legacy!(Q4_1, Q4_1, low 4, high 0, offset 0, min true);
legacy!(Q5_0, Q5_0, low 4, high 1, offset 16, min false);
legacy!(Q5_1, Q5_1, low 4, high 1, offset 0, min true);
legacy!(Q8_0, Q8_0, low 8, high 0, offset 128, min false);

/// Scale and minimum of eight groups of 32, 6 bits each, of Q4_K and Q5_K.
///
/// Packed as 8 vectors of R bytes (low nibbles: scale | min << 4), then 4 vectors of R bytes whose byte for groups
/// `2i` and `2i+1` has the upper two bits: scale, min, scale, min from bit 0 up.
macro_rules! k45 {
    ($name:ident, $ty:ident, high $high:literal) => {
        /// Super-block of 256 with 6-bit scales and minima.
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$ty;
            const K: usize = 256;
            const META: usize = 16;
            const LOW: usize = 4;
            const HIGH: usize = $high;
            const GROUP: usize = 32;
            const OFFSET: i32 = 0;
            const MIN: bool = true;
            type Head<S: Simd> = (S::F, S::F);

            #[inline(always)]
            unsafe fn head<S: Simd>(meta: *const u8) -> (S::F, S::F) {
                // SAFETY: two rows of R halves start the block.
                unsafe { (S::load_f16(meta.cast()), S::load_f16(meta.add(2 * S::R).cast())) }
            }
            #[inline(always)]
            unsafe fn scales<S: Simd>((d, dmin): (S::F, S::F), meta: *const u8, g: usize) -> (S::F, S::F) {
                // SAFETY: g < 8, so both reads stay inside the 12 R bytes after the halves.
                unsafe {
                    let low = S::load_u8(meta.add((4 + g) * S::R));
                    let high = S::shr(S::load_u8(meta.add((12 + g / 2) * S::R)), 4 * (g as u32 & 1));
                    let scale = S::or(S::and(low, S::iset1(15)), S::shl(S::and(high, S::iset1(3)), 4));
                    let min = S::or(S::shr(low, 4), S::shl(S::and(high, S::iset1(12)), 2));
                    (S::mul(d, S::to_f(scale)), S::mul(dmin, S::to_f(min)))
                }
            }
        }
    };
}

k45!(Q4_K, Q4_K, high 0);
k45!(Q5_K, Q5_K, high 1);

/// Super-block of 256 with an 8-bit scale for every 16.
pub(crate) struct Q6_K;

impl Format for Q6_K {
    const TYPE: TensorType = TensorType::Q6_K;
    const K: usize = 256;
    const META: usize = 18;
    const LOW: usize = 4;
    const HIGH: usize = 2;
    const GROUP: usize = 16;
    const OFFSET: i32 = 32;
    const MIN: bool = false;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    unsafe fn head<S: Simd>(meta: *const u8) -> S::F {
        // SAFETY: a row of R halves starts the block.
        unsafe { S::load_f16(meta.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(d: S::F, meta: *const u8, g: usize) -> (S::F, S::F) {
        // SAFETY: g < 16, so the read stays inside the 16 R bytes after the halves.
        unsafe { (S::mul(d, S::to_f(S::load_i8(meta.add((2 + g) * S::R)))), S::zero()) }
    }
}

/// Super-block of 256 in 2 bits, with a 4-bit scale and minimum for every 16.
pub(crate) struct Q2_K;

impl Format for Q2_K {
    const TYPE: TensorType = TensorType::Q2_K;
    const K: usize = 256;
    const META: usize = 20;
    const LOW: usize = 0;
    const HIGH: usize = 2;
    const GROUP: usize = 16;
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    type Head<S: Simd> = (S::F, S::F);

    #[inline(always)]
    unsafe fn head<S: Simd>(meta: *const u8) -> (S::F, S::F) {
        // SAFETY: two rows of R halves start the block.
        unsafe { (S::load_f16(meta.cast()), S::load_f16(meta.add(2 * S::R).cast())) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>((d, dmin): (S::F, S::F), meta: *const u8, g: usize) -> (S::F, S::F) {
        // SAFETY: g < 16, so the read stays inside the 16 R bytes after the halves.
        unsafe {
            let both = S::load_u8(meta.add((4 + g) * S::R));
            (S::mul(d, S::to_f(S::and(both, S::iset1(15)))), S::mul(dmin, S::to_f(S::shr(both, 4))))
        }
    }
}

/// Super-block of 256 in 3 bits, with a 6-bit scale for every 16.
///
/// The scales stay as they are: the low nibbles of byte `v` belong to groups `v` and `v + 8`, the pairs of bits of byte
/// `8 + v` to groups `v`, `v + 4`, `v + 8` and `v + 12`.
pub(crate) struct Q3_K;

impl Format for Q3_K {
    const TYPE: TensorType = TensorType::Q3_K;
    const K: usize = 256;
    const META: usize = 14;
    const LOW: usize = 0;
    const HIGH: usize = 2;
    const TOP: usize = 1;
    const GROUP: usize = 16;
    const OFFSET: i32 = 4;
    const MIN: bool = false;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    unsafe fn head<S: Simd>(meta: *const u8) -> S::F {
        // SAFETY: a row of R halves starts the block.
        unsafe { S::load_f16(meta.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(d: S::F, meta: *const u8, g: usize) -> (S::F, S::F) {
        // SAFETY: g < 16, so both reads stay inside the 12 R bytes after the halves.
        unsafe {
            let low = S::shr(S::load_u8(meta.add((2 + g % 8) * S::R)), 4 * (g as u32 / 8));
            let high = S::shr(S::load_u8(meta.add((10 + g % 4) * S::R)), 2 * (g as u32 / 4));
            let scale = S::or(S::and(low, S::iset1(15)), S::shl(S::and(high, S::iset1(3)), 4));
            (S::mul(d, S::to_f(S::isub(scale, S::iset1(32)))), S::zero())
        }
    }
}

/// ggml's sixteen values of IQ4, plus 128.
const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// One f16 scale for 32 values of a table.
pub(crate) struct IQ4_NL;

impl Format for IQ4_NL {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const K: usize = 32;
    const META: usize = 2;
    const LOW: usize = 4;
    const HIGH: usize = 0;
    const TABLE: Option<[u8; 16]> = Some(IQ4);
    const GROUP: usize = 32;
    const OFFSET: i32 = 128;
    const MIN: bool = false;
    type Head<S: Simd> = ();

    #[inline(always)]
    unsafe fn head<S: Simd>(_: *const u8) {}
    #[inline(always)]
    unsafe fn scales<S: Simd>((): (), meta: *const u8, _: usize) -> (S::F, S::F) {
        // SAFETY: a row of R halves starts the block.
        unsafe { (S::load_f16(meta.cast()), S::zero()) }
    }
}

/// Super-block of 256 values of a table, with a 6-bit scale for every 32.
///
/// The scales stay as they are: nibbles of byte `2 + v` belong to groups `2 v` and `2 v + 1`, the pairs of bits of byte
/// `6 + v` to groups `4 v` to `4 v + 3`.
pub(crate) struct IQ4_XS;

impl Format for IQ4_XS {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const K: usize = 256;
    const META: usize = 8;
    const LOW: usize = 4;
    const HIGH: usize = 0;
    const TABLE: Option<[u8; 16]> = Some(IQ4);
    const GROUP: usize = 32;
    const OFFSET: i32 = 128;
    const MIN: bool = false;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    unsafe fn head<S: Simd>(meta: *const u8) -> S::F {
        // SAFETY: a row of R halves starts the block.
        unsafe { S::load_f16(meta.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(d: S::F, meta: *const u8, g: usize) -> (S::F, S::F) {
        // SAFETY: g < 8, so both reads stay inside the 6 R bytes after the halves.
        unsafe {
            let low = S::shr(S::load_u8(meta.add((2 + g / 2) * S::R)), 4 * (g as u32 % 2));
            let high = S::shr(S::load_u8(meta.add((6 + g / 4) * S::R)), 2 * (g as u32 % 4));
            let scale = S::or(S::and(low, S::iset1(15)), S::shl(S::and(high, S::iset1(3)), 4));
            (S::mul(d, S::to_f(S::isub(scale, S::iset1(32)))), S::zero())
        }
    }
}

/// A power of two for 32 four-bit floats.
pub(crate) struct MXFP4;

impl Format for MXFP4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const K: usize = 32;
    const META: usize = 1;
    const LOW: usize = 4;
    const HIGH: usize = 0;
    /// Twice the values, plus 12.
    const TABLE: Option<[u8; 16]> = Some([12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0]);
    const GROUP: usize = 32;
    const OFFSET: i32 = 12;
    const MIN: bool = false;
    type Head<S: Simd> = ();

    #[inline(always)]
    unsafe fn head<S: Simd>(_: *const u8) {}
    #[inline(always)]
    unsafe fn scales<S: Simd>((): (), meta: *const u8, _: usize) -> (S::F, S::F) {
        // SAFETY: a row of R bytes starts the block.
        unsafe {
            // 2^(e - 128), halved because the table is doubled, as the product of two powers that are normal floats
            let e = S::load_u8(meta);
            let half = S::shr(e, 1);
            let a = S::bits_f(S::shl(S::iadd(half, S::iset1(63)), 23));
            let b = S::bits_f(S::shl(S::iadd(S::isub(e, half), S::iset1(63)), 23));
            (S::mul(a, b), S::zero())
        }
    }
}

/// A plain float type, packed as [k][R].
pub(crate) trait Float {
    const BYTES: usize;
    /// # Safety
    /// `S::R` elements are readable at `p`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

macro_rules! float {
    ($name:ident, $bytes:literal, $load:ident) => {
        #[allow(missing_docs)]
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
