//! Panels whose codes are multiplied by their scales, so that products of many weights are added up
//! in integers and are converted to floats once.
//!
//! Formats of blocks of 256 have a scale for every 16 or 32 weights that is a whole number times a
//! unit of the block ([`Fold`]). Activations have thirteen bits: the products of [`sum_length`]
//! weights fit 32 bits.
//!
//! ```text
//! panel   per strip: pairs [kc / 2][R], then for every sum the unit [R], and for Winograd's
//!         products [R] of pairs; then minima [kc / GROUP][R], if the format has them
//! tile    as that of 15 bits
//! ```

use super::{all_tiles, pack_up_to, widen};
use crate::formats::{Fold, Format};
use crate::generic::batch::{Decoded, Panel};
use crate::generic::gemm::{KC, Tiles};
use crate::simd::Simd;

/// Largest integer of an activation.
pub const MAX: f32 = 4095.0;

/// Number of weights whose products with activations are added up in 32 bits; `None` if the scales
/// of a format cannot be folded.
pub const fn sum_length<F: Format>() -> Option<usize> {
    let Some(Fold { largest, .. }) = F::FOLD else {
        return None;
    };
    // one panel, one block: there is one unit
    assert!(F::K == KC);
    let above = F::LARGEST as i32 - F::OFFSET;
    let code = if above > F::OFFSET { above } else { F::OFFSET };
    let weight = code * largest;
    // differences of weights and activations, too
    assert!(weight + MAX as i32 <= i16::MAX as i32);
    let mut len = KC;
    while len as i64 * weight as i64 * MAX as i64 > i32::MAX as i64 {
        len /= 2;
    }
    assert!(len >= 32);
    Some(len)
}

/// As [`pack_tokens`](super::pack_tokens), in integers up to [`MAX`].
///
/// # Safety
/// As [`pack_tokens`](super::pack_tokens).
#[inline(always)]
pub unsafe fn pack_tokens<S: Simd>(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    width: usize,
    tile: *mut f32,
) {
    // SAFETY: passed on.
    unsafe { pack_up_to::<S>(MAX, (x, m, k), t, width, tile) }
}

/// The unit of a block's scales.
///
/// # Safety
/// `block` is one of the format.
#[inline(always)]
pub unsafe fn unit<S: Simd, F: Format>(block: *const u8) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let first = F::block_scales::<S>(block).as_ref()[0];
        match F::FOLD {
            Some(fold) => S::mul(first, S::set1(fold.unit)),
            None => first,
        }
    }
}

/// Writes the unit of a block's scales: `R` floats.
///
/// # Safety
/// As [`unit()`]; `to` has room.
#[inline(always)]
pub unsafe fn store_unit<S: Simd, F: Format>(block: *const u8, to: *mut f32) {
    // SAFETY: passed on.
    unsafe { S::store(to, unit::<S, F>(block)) }
}

/// The whole numbers that scales are multiples of their unit by, in both halves of lanes: exact, as
/// they have eight bits at most. Any number, if the unit is zero or no number, and so the products.
#[inline(always)]
unsafe fn multiples<S: Simd>(scale: S::F, unit: S::F) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::half_twice(S::to_i(S::div(scale, unit)), 0) }
}

/// Converts k in `k0..k1`, one block, of a packed strip to a panel.
///
/// # Safety
/// As [`panel`](super::panel).
#[inline(always)]
pub unsafe fn panel<S: Simd, F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let len = const {
        match sum_length::<F>() {
            Some(len) => len,
            None => F::K,
        }
    };
    // SAFETY: the block is in the strip; the panel has K / 2 vectors of pairs, and fewer than K / 2
    // of others.
    unsafe {
        let block = strip.add(k0 / F::K * F::BLOCK_BYTES * S::R);
        let block_scales = F::block_scales::<S>(block);
        let unit = unit::<S, F>(block);
        let mut panel = Writer::<S>::new(out, k1 - k0, len, unit);
        for g in 0..F::K / 32 {
            let (first, min) =
                F::scales::<S>(block_scales, block, if F::GROUP == 32 { g } else { 2 * g });
            panel.codes(F::codes::<S, 0>(block, g), F::OFFSET, first);
            panel.min::<F>(min);
            if F::GROUP == 32 {
                panel.codes(F::codes::<S, 1>(block, g), F::OFFSET, first);
            } else {
                let (second, min) = F::scales::<S>(block_scales, block, 2 * g + 1);
                panel.codes(F::codes::<S, 1>(block, g), F::OFFSET, second);
                panel.min::<F>(min);
            }
        }
    }
}

/// Converts a decoded panel of one block, of a format without minima and with scales for every
/// `group`, whose unit is that of `R` rows in `unit`; sums are of `len` weights.
///
/// # Safety
/// As [`panel_of_codes`](super::panel_of_codes); `unit` has `R` floats.
#[inline(always)]
pub unsafe fn panel_of_codes<S: Simd>(
    from: *const Panel,
    (group, offset, len): (usize, i32, usize),
    unit: *const f32,
    out: *mut f32,
) {
    // SAFETY: as `panel`.
    unsafe {
        let mut decoded = Decoded::<S>::of(from);
        let mut panel = Writer::<S>::new(out, KC, len, S::load(unit));
        for _ in 0..KC / group {
            let scale = decoded.scale();
            for _ in 0..group / 16 {
                panel.codes(decoded.codes(), offset, scale);
            }
        }
    }
}

/// Writes a panel of one block from its beginning.
struct Writer<S: Simd> {
    pairs: *mut u8,
    /// Where the next sum's unit goes.
    units: *mut f32,
    mins: *mut f32,
    unit: S::F,
    products: S::I,
    /// Sixteens of weights in a sum, and those that are written of the last one.
    sixteens: usize,
    written: usize,
}

impl<S: Simd> Writer<S> {
    /// # Safety
    /// `out` has room for a panel of `kc` weights.
    #[inline(always)]
    unsafe fn new(out: *mut f32, kc: usize, len: usize, unit: S::F) -> Writer<S> {
        // SAFETY: the panel has room for it.
        unsafe {
            let units = out.add(kc / 2 * S::R);
            let per_sum = 1 + usize::from(S::WINOGRAD);
            Writer {
                pairs: out.cast(),
                units,
                mins: units.add(kc / len * per_sum * S::R),
                unit,
                products: S::iset1(0),
                sixteens: len / 16,
                written: 0,
            }
        }
    }

    /// Writes sixteen codes of each row, and at the end of a sum its unit.
    ///
    /// # Safety
    /// The panel has room for them.
    #[inline(always)]
    unsafe fn codes(&mut self, codes: [S::I; 4], offset: i32, scale: S::F) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = multiples::<S>(scale, self.unit);
            let products = widen::<S>(codes, offset, Some(scale), self.pairs);
            self.products = S::iadd(self.products, products);
            self.pairs = self.pairs.add(32 * S::R);
            self.written += 1;
            if self.written == self.sixteens {
                S::store(self.units, self.unit);
                self.units = self.units.add(S::R);
                if S::WINOGRAD {
                    S::store_bytes(self.units.cast(), self.products);
                    self.units = self.units.add(S::R);
                }
                (self.products, self.written) = (S::iset1(0), 0);
            }
        }
    }

    /// Writes a group's minimum, if the format has them.
    ///
    /// # Safety
    /// The panel has room for it.
    #[inline(always)]
    unsafe fn min<F: Format>(&mut self, min: S::F) {
        if F::MIN {
            // SAFETY: the caller's promise.
            unsafe {
                S::store(self.mins, min);
                self.mins = self.mins.add(S::R);
            }
        }
    }
}

/// Multiplies `MS` strips by every tile of tokens, in sums of `len` weights; of a format with
/// minima for every `GROUP` if `MIN` is set.
///
/// # Safety
/// As [`tiles`](super::tiles).
#[inline(always)]
pub unsafe fn tiles<
    S: Simd,
    const GROUP: usize,
    const MIN: bool,
    const MS: usize,
    const NT: usize,
>(
    a: &Tiles<'_>,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if S::WINOGRAD && S::prefers_winograd() {
            all_tiles::<S, GROUP, MIN, true, MS, NT, true>(a, len);
        } else {
            all_tiles::<S, GROUP, MIN, true, MS, NT, false>(a, len);
        }
    }
}
