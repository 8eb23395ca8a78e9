//! How keys and values lie in pages, and how vectors of them are read.

use super::PAGE;
use crate::formats::Float;
use crate::kv::SCALE_GROUP;
use crate::simd::Simd;

/// A sequence's pages of one layer and KV head.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    /// Page numbers of the sequence, from position 0; covers all that is visible.
    pub(crate) table: &'a [u32],
    /// The layer's K pages of this head: page `p` starts at `k + p * stride` bytes.
    pub(crate) k: *const u8,
    /// Likewise for V.
    pub(crate) v: *const u8,
    /// Bytes from one page to the next.
    pub(crate) stride: usize,
    /// Values of a head: a multiple of 2, and of what a matrix unit takes.
    pub(crate) head_dim: usize,
}

impl Pages<'_> {
    /// Where the sequence's `i`th page starts; the last one there is, beyond it.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> usize {
        self.table[i.min(self.table.len() - 1)] as usize * self.stride
    }
}

/// How keys and values lie in a page of one head; see [`crate::KvStore`].
pub(crate) trait Stored {
    /// Bits of an element, scales left out.
    const BITS: usize;
    /// Values of a position that share a scale, if elements are to be multiplied with one.
    const GROUP: Option<usize>;
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
    /// Scales at `d`, of keys or of values, of `S::R` positions from `at` on.
    ///
    /// # Safety
    /// As [`Stored::keys`]; there is a [`Stored::GROUP`].
    #[inline(always)]
    unsafe fn scales<S: Simd>(page: *const u8, head_dim: usize, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise; scales `[head_dim / 32][PAGE]` follow the codes.
        unsafe {
            S::load_f16(
                page.add(row_bytes::<Self>() * head_dim)
                    .cast::<u16>()
                    .add(d / SCALE_GROUP * PAGE + at),
            )
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
    #[inline(always)]
    unsafe fn scales<S: Simd>(_: *const u8, _: usize, _: usize, _: usize) -> S::F {
        unreachable!("floats have none")
    }
}

/// Bytes with scales: ggml's Q8_0.
pub(crate) struct Q8;

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

/// Codes of four bits with scales: ggml's Q4_0. A byte has values `i` and `i + 16` of those that
/// share a scale.
pub(crate) struct Q4;

impl Q4 {
    /// Codes that stand for value `d` of a head, or values from there on, in `S::R` bytes.
    ///
    /// # Safety
    /// So many bytes can be read.
    #[inline(always)]
    unsafe fn codes<S: Simd>(bytes: *const u8, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let both = S::load_u8(bytes);
            let code = match d % SCALE_GROUP < SCALE_GROUP / 2 {
                true => S::and(both, S::iset1(15)),
                false => S::shr(both, 4),
            };
            S::to_f(S::isub(code, S::iset1(8)))
        }
    }

    /// Bytes before that of value `d` in a row of a byte each.
    #[inline(always)]
    fn byte(d: usize) -> usize {
        const HALF: usize = SCALE_GROUP / 2;
        d / SCALE_GROUP * HALF + d % HALF
    }
}

impl Stored for Q4 {
    const BITS: usize = 4;
    const GROUP: Option<usize> = Some(SCALE_GROUP);
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { Q4::codes::<S>(page.add(Q4::byte(d) * PAGE + at), d) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        const {
            assert!(
                S::R <= SCALE_GROUP / 2,
                "a vector is of one half of the bytes"
            )
        };
        // SAFETY: the caller's promise.
        unsafe { Q4::codes::<S>(page.add(at * head_dim / 2 + Q4::byte(d)), d) }
    }
}
