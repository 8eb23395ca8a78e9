//! Layout of keys and values in pages, and loads of vectors of them.

mod few_bits;

use super::PAGE;
use crate::formats::Float;
use crate::kv_layout::{Base, SCALE_GROUP};
use crate::simd::Simd;
pub use few_bits::{Iq4, Q4, Q5, Q5Min};

/// A sequence's pages of one layer and KV head.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    /// Page numbers of the sequence, from position 0; covers all visible positions.
    pub table: &'a [u32],
    /// The layer's pages of keys of this head.
    pub k: Base,
    /// The layer's pages of values of this head.
    pub v: Base,
    /// Values of a head: a multiple of 2, and of the matrix unit's tile width where it is used.
    pub head_dim: usize,
}

impl Pages<'_> {
    /// Number of the sequence's `i`th page, or of its last page if there are fewer.
    #[inline(always)]
    fn number(&self, i: usize) -> usize {
        self.table[i.min(self.table.len() - 1)] as usize
    }

    /// Keys of the sequence's `i`th page, or of its last page if there are fewer.
    #[inline(always)]
    pub fn keys(&self, i: usize) -> *const u8 {
        self.k.start.wrapping_add(self.number(i) * self.k.stride)
    }

    /// Values of the sequence's `i`th page, or of its last page if there are fewer.
    #[inline(always)]
    pub fn values(&self, i: usize) -> *const u8 {
        self.v.start.wrapping_add(self.number(i) * self.v.stride)
    }
}

/// Layout of keys and values in a page of one head; see `KvStore`.
pub trait Stored {
    /// Bits of an element, scales left out.
    const BITS: usize;
    /// Values of a position that share a scale, if elements have scales.
    const GROUP: Option<usize>;
    /// Whether a minimum is added to these products.
    const MIN: bool = false;
    /// Element `d` of `S::R` keys from position `at` of the page on.
    ///
    /// # Safety
    /// `page` is a whole page of heads of `head_dim`, `d` is below that and `at + S::R` at most
    /// [`PAGE`].
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F;
    /// Elements from `d` on of the value at position `at`, `S::R` of them.
    ///
    /// # Safety
    /// As [`Stored::keys`]; `d` is a multiple of `S::R`, and a whole vector can be read.
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F;
    /// Scales and minima at `d`, of keys or of values, of `S::R` positions from `at` on; zeros
    /// where there are none.
    ///
    /// # Safety
    /// As [`Stored::keys`].
    #[inline(always)]
    unsafe fn lines<S: Simd>(page: *const u8, head_dim: usize, d: usize, at: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise; scales `[head_dim / 32][PAGE]` follow the codes, and as
        // many minima the scales.
        unsafe {
            if Self::GROUP.is_none() {
                return [S::zero(); 2];
            }
            let scales = page.add(row_bytes::<Self>() * head_dim).cast::<u16>();
            let first = d / SCALE_GROUP * PAGE + at;
            let scale = S::load_f16(scales.add(first));
            if !Self::MIN {
                return [scale, S::zero()];
            }
            let minima = scales.add(head_dim / SCALE_GROUP * PAGE);
            [scale, S::load_f16(minima.add(first))]
        }
    }

    /// Values of elements with this scale and this minimum.
    ///
    /// # Safety
    /// Of the instruction set only.
    #[inline(always)]
    unsafe fn stands_for<S: Simd>(x: S::F, [scale, minimum]: [S::F; 2]) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            match (Self::GROUP, Self::MIN) {
                (None, _) => x,
                (Some(_), false) => S::mul(x, scale),
                (Some(_), true) => S::fma(x, scale, minimum),
            }
        }
    }
}

/// Bytes of an element of all of a page's positions, on average.
pub(super) const fn row_bytes<E: Stored + ?Sized>() -> usize {
    PAGE * E::BITS / 8
}

impl<E: Float> Stored for E {
    const BITS: usize = 8 * E::BYTES;
    const GROUP: Option<usize> = None;
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { E::load::<S>(page.add((d * PAGE + at) * E::BYTES)) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { E::load::<S>(page.add((at * head_dim + d) * E::BYTES)) }
    }
}

/// Bytes with scales: ggml's Q8_0.
pub struct Q8;

impl Stored for Q8 {
    const BITS: usize = 8;
    const GROUP: Option<usize> = Some(SCALE_GROUP);
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::to_f(S::load_i8(page.add(d * PAGE + at))) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::to_f(S::load_i8(page.add(at * head_dim + d))) }
    }
}

/// Floats of 8 bits with scales: OCP's E4M3.
pub struct F8E4M3;

impl F8E4M3 {
    /// Loads `S::R` values.
    ///
    /// ```text
    /// byte, widened with sign   ssssssss ssssssss ssssssss seeeemmm
    /// 20 bits to the left       ssssseee emmm0000 00000000 00000000
    /// as a float                s0000eee emmm0000 00000000 00000000
    /// ```
    /// The exponent bias of a float is 127, that of E4M3 7: the product with 2^120 is exact, also
    /// for values that are subnormal in both. NaN codes become 480; none is ever stored.
    ///
    /// # Safety
    /// One byte for each lane can be read.
    #[inline(always)]
    unsafe fn load<S: Simd>(bytes: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let code = S::shl(S::load_i8(bytes), 20);
            let float = S::and(code, S::iset1(0x87f0_0000_u32.cast_signed()));
            S::mul(S::bits_f(float), S::set1(TWO_TO_120))
        }
    }
}

const TWO_TO_120: f32 = f32::from_bits((127 + 120) << 23);

impl Stored for F8E4M3 {
    const BITS: usize = 8;
    const GROUP: Option<usize> = Some(SCALE_GROUP);
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { F8E4M3::load::<S>(page.add(d * PAGE + at)) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { F8E4M3::load::<S>(page.add(at * head_dim + d)) }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use octavo_fixtures::e4m3;

    /// Checks that keys and values of E4M3 are the numbers of its definition, for every code.
    pub fn floats_of_8_bits_are_exact<S: Simd>(name: &str) {
        let page: [u8; 256] = std::array::from_fn(|code| code as u8);
        for at in (0..256).step_by(S::R) {
            let (mut keys, mut values) = ([0f32; PAGE], [0f32; PAGE]);
            // SAFETY: the caller asks only for what this CPU has; a page of heads of 16 is 256
            // bytes.
            unsafe {
                let (row, column) = (at / PAGE, at % PAGE);
                let of_keys = F8E4M3::keys::<S>(page.as_ptr(), row, column);
                S::store(keys.as_mut_ptr(), of_keys);
                let of_values = F8E4M3::values::<S>(page.as_ptr(), PAGE, row, column);
                S::store(values.as_mut_ptr(), of_values);
            }
            for i in 0..S::R {
                let code = page[at + i];
                let exact = e4m3::value(code).unwrap_or([480.0, -480.0][at / 128]);
                for got in [keys[i], values[i]] {
                    assert_eq!(got.to_bits(), exact.to_bits(), "{name}: {code:#04x}: {got}");
                }
            }
        }
    }
}
