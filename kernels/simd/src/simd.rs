//! The few vector operations the generic kernels use, and their portable form.
//!
//! A vector holds `R` f32 or i32 lanes; `R` is also the number of weight rows that a packed strip
//! interleaves. Integer vectors double as `4 R` bytes: lane `r` holds four consecutive codes of row
//! `r`.
//!
//! # Safety of every operation
//! Each is `unsafe` for one reason: the outermost kernel, which alone carries `#[target_feature]`,
//! guarantees that the CPU has the instruction set, and the caller that passes a pointer guarantees
//! that the stated number of elements behind it is readable (or writable). Nothing needs alignment.

use crate::act::Act4;

#[allow(clippy::missing_safety_doc)] // one contract for all, stated at the head of this module
pub trait Simd: Copy {
    /// Number of f32 lanes.
    const R: usize;
    /// `R` f32.
    type F: Copy;
    /// `R` i32, or `4 R` bytes.
    type I: Copy;
    /// Running integer dot products, one per lane.
    type Acc: Copy;
    /// Whether registers hold the sums of two strips and a few rows. Loops over them are unrolled
    /// for that, and would only be longer code otherwise.
    const IN_REGISTERS: bool = true;
    /// Rows up to which codes of two strips are multiplied as they are decoded, and not by way of a
    /// panel in memory, up to four at a time. 3 or more; 0 where registers hold no such sums.
    const FEW_ROWS: u32 = if Self::IN_REGISTERS { 3 } else { 0 };

    unsafe fn zero() -> Self::F;
    unsafe fn set1(x: f32) -> Self::F;
    /// Reads `R` f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Writes `R` f32.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Reads `R` IEEE half floats.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Writes `R` IEEE half floats, rounded to nearest, ties to even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Reads `R` bfloat16.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the CPU fuses.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lane-wise minimum; a NaN in `b` is kept.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise maximum; a NaN in `b` is kept.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// Selects lanes below `n` from `a`, the others from `b`.
    unsafe fn first(n: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Sum of the lanes, in an order fixed for the instruction set.
    unsafe fn sum(v: Self::F) -> f32;
    /// Largest lane.
    unsafe fn largest(v: Self::F) -> f32;

    /// Reads `4 R` bytes.
    unsafe fn load_bytes(p: *const u8) -> Self::I;
    /// Writes `4 R` bytes.
    unsafe fn store_bytes(p: *mut u8, v: Self::I);
    /// Reads `R` bytes, widened without sign.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Reads `R` bytes, widened with sign.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    unsafe fn iset1(x: i32) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// Subtracts 16-bit halves of lanes.
    unsafe fn sub16(a: Self::I, b: Self::I) -> Self::I;
    /// Lower halves of the products of unsigned 16-bit halves of lanes.
    unsafe fn mul16(a: Self::I, b: Self::I) -> Self::I;
    /// Upper halves of these products.
    unsafe fn mul16_high(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    /// Reads a word of the table for every lane, which is an index below its length.
    unsafe fn gather(table: &[u32], index: Self::I) -> Self::I;
    /// Reads an entry of the table for both 16-bit halves of every lane, which are indices below
    /// its length.
    #[inline(always)]
    unsafe fn halves<const N: usize>(table: &Halves<N>, index: Self::I) -> Self::I {
        // SAFETY: no lane has more than 16 of its own; indices are below N.
        unsafe {
            let mut entries = [0u16; 32];
            Self::store_bytes(entries.as_mut_ptr().cast(), index);
            for entry in &mut entries[..2 * Self::R] {
                *entry = *table.entries.get_unchecked(usize::from(*entry));
            }
            Self::load_bytes(entries.as_ptr().cast())
        }
    }
    /// Half `half` of every lane, 0 or 1, in both halves.
    #[inline(always)]
    unsafe fn half_twice(a: Self::I, half: usize) -> Self::I {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            if half == 0 {
                Self::or(Self::and(a, Self::iset1(0xffff)), Self::shl(a, 16))
            } else {
                Self::or(Self::shr(a, 16), Self::and(a, Self::iset1(-0x1_0000)))
            }
        }
    }
    /// Replaces every byte, below 16, by that entry of the table.
    unsafe fn lookup(a: Self::I, table: &[u8; 16]) -> Self::I;
    /// Replaces every byte by `sum` less the byte, where bit `bit` of the same byte of `plane` is
    /// set; wraps around.
    unsafe fn reflect(a: Self::I, sum: u8, plane: Self::I, bit: u32) -> Self::I;
    /// Logical shift of each 32-bit lane, `n < 32`.
    unsafe fn shr(a: Self::I, n: u32) -> Self::I;
    unsafe fn shl(a: Self::I, n: u32) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// Rounds to nearest, ties to even.
    unsafe fn to_i(a: Self::F) -> Self::I;
    /// Reinterprets the bits as floats.
    unsafe fn bits_f(a: Self::I) -> Self::F;

    unsafe fn acc_zero() -> Self::Acc;
    /// Adds to every lane the dot product of its four unsigned codes with four activations.
    unsafe fn dot4(acc: Self::Acc, codes: Self::I, x: *const Act4) -> Self::Acc;
    /// As [`Simd::dot4`], for codes below 128, which a signed byte holds as well.
    #[inline(always)]
    unsafe fn dot4_i8(acc: Self::Acc, codes: Self::I, x: *const Act4) -> Self::Acc {
        // SAFETY: the same contract.
        unsafe { Self::dot4(acc, codes, x) }
    }
    unsafe fn acc_sum(acc: Self::Acc) -> Self::I;
    /// Vectors that [`Simd::spread`] makes from one: 1, or 2, which have the even and the odd bytes
    /// in 16 bits each.
    const SPREAD: usize = 1;
    /// Whether [`Simd::dot_spread`] takes codes as signed bytes.
    const SIGNED: bool = false;
    /// Converts codes to the form that [`Simd::dot_spread`] reads, once for many rows: the first
    /// `SPREAD` vectors are used.
    #[inline(always)]
    unsafe fn spread(codes: Self::I) -> [Self::I; 2] {
        [codes, codes]
    }
    /// As [`Simd::dot4`], with codes that went through [`Simd::spread`].
    #[inline(always)]
    unsafe fn dot_spread(acc: Self::Acc, codes: [Self::I; 2], x: *const Act4) -> Self::Acc {
        // SAFETY: the same contract. Codes that a signed byte does not hold are passed only where
        // they are read as unsigned, and there both functions are the same.
        unsafe { Self::dot4_i8(acc, codes[0], x) }
    }
    /// Returns the same sums, and keeps the compiler from adding to them later than here.
    #[inline(always)]
    unsafe fn acc_now(acc: Self::Acc) -> Self::Acc {
        acc
    }
    /// Adds to every lane the products of its two 16-bit halves with those of the same lane of `x`,
    /// wrapping around.
    unsafe fn dot2(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Whether [`Simd::dot2`] does more products than [`Simd::fma`] in the same time.
    const TWO_AT_ONCE: bool = true;
    /// The same with one `x` for all lanes.
    #[inline(always)]
    unsafe fn dot2_same(acc: Self::I, w: Self::I, x: *const i32) -> Self::I {
        // SAFETY: the same contract.
        unsafe { Self::dot2(acc, w, Self::iset1(x.read_unaligned())) }
    }
    /// Whether [`Simd::dot2`] may be slow enough for Winograd's inner products (see
    /// [`dots`](crate::generic::int16::dots)) to be worth the data they add to panels and tiles.
    const WINOGRAD: bool = false;
    /// Whether they are the faster ones on this CPU.
    fn prefers_winograd() -> bool {
        false
    }
    /// Converts four 16-bit activations to the form that `dot4` reads.
    fn act4(x: [i16; 4]) -> Act4;
    /// Transposes words: writes the first `n` columns of `R` rows, or all of their `R` columns. Row
    /// `i` begins at `words + i * stride`, column `c` goes to `to + 4 * R * c`.
    #[inline(always)]
    unsafe fn transpose(words: *const u32, stride: usize, n: usize, to: *mut u8) {
        for c in 0..n.min(Self::R) {
            for i in 0..Self::R {
                // SAFETY: the caller's rows and columns.
                unsafe {
                    let word = words.add(i * stride + c).read();
                    let to = to.add(4 * (c * Self::R + i));
                    to.cast::<[u8; 4]>().write(word.to_le_bytes());
                }
            }
        }
    }
    /// Prefetches the line at `p` into the L1 cache.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches the line at `p` into the L2 cache.
    unsafe fn prefetch_far(p: *const u8);
}

/// A table of half words.
#[repr(C, align(64))]
pub struct Halves<const N: usize> {
    pub entries: [u16; N],
    /// Read with the last entry by loads of whole words.
    after: u16,
}

impl<const N: usize> Halves<N> {
    pub const fn new(entries: [u16; N]) -> Halves<N> {
        Halves { entries, after: 0 }
    }
}

/// Vectors that multiply bytes with signed bytes, for prompts in 8 bits.
#[allow(clippy::missing_safety_doc)] // as `Simd`
pub trait ByteDots: Simd {
    /// The largest sum of a pair of products that [`ByteDots::Narrow`] holds.
    const MAX_SUM: i32;
    /// Sums of products: of pairs of them in 16 bits, or all that a lane has in 32.
    type Narrow: Copy;

    /// Begins sums that continue from `so_far`, unless [`ByteDots::end`] adds it.
    unsafe fn begin(so_far: Self::I) -> Self::Narrow;
    /// Adds to every lane the products of its four unsigned codes with four signed bytes, not -128.
    unsafe fn dot_bytes(sums: Self::Narrow, codes: Self::I, x: *const i32) -> Self::Narrow;
    /// One sum for each lane, including the `so_far` that it began from.
    unsafe fn end(so_far: Self::I, sums: Self::Narrow) -> Self::I;
}

/// Instantiates trait operations whose bodies are intrinsics. The one SAFETY text for all of them
/// is inside.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        #[allow(unused_unsafe)] // not every body has an intrinsic that needs it
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            // SAFETY: the outermost kernel carries the target features, its caller has checked the
            // CPU, and pointers cover what `Simd` says (head of simd.rs).
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use ops;

/// `e^x` to 2 ulp; arguments outside [-87.3, 88.3] are clamped; NaN stays NaN.
///
/// # Safety
/// As the head of this module says; no pointers here.
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: see the head of this module; no pointers here.
    unsafe {
        let (less_one, scale) = exp_parts::<S>(x);
        S::mul(S::add(less_one, S::set1(1.0)), scale)
    }
}

/// `e^x - 1` to 4 ulp, near zero too; as [`exp`] otherwise.
///
/// # Safety
/// As the head of this module says; no pointers here.
#[inline(always)]
pub unsafe fn exp_less_one<S: Simd>(x: S::F) -> S::F {
    // SAFETY: see the head of this module; no pointers here.
    unsafe {
        let (less_one, scale) = exp_parts::<S>(x);
        S::fma(less_one, scale, S::sub(scale, S::set1(1.0)))
    }
}

/// `p` and `2^n` of `e^x = (1 + p) 2^n`, with `p` between -0.3 and 0.42.
///
/// Cody-Waite reduction by ln 2 in two parts and the Cephes polynomial.
#[inline(always)]
unsafe fn exp_parts<S: Simd>(x: S::F) -> (S::F, S::F) {
    // SAFETY: see the head of this module; no pointers here.
    unsafe {
        let x = S::max(S::set1(-87.3), S::min(S::set1(88.3), x));
        let n = S::to_i(S::mul(x, S::set1(std::f32::consts::LOG2_E)));
        let f = S::to_f(n);
        let r = S::fma(f, S::set1(-0.693_359_4), x);
        let r = S::fma(f, S::set1(2.121_944_4e-4), r);
        let mut p = S::set1(1.987_569_1e-4);
        for c in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = S::fma(p, r, S::set1(c));
        }
        let p = S::fma(S::mul(r, r), p, r);
        (p, S::bits_f(S::shl(S::iadd(n, S::iset1(127)), 23)))
    }
}

#[cfg(test)]
pub mod tests;
