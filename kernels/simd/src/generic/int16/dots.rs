//! Products of 16-bit integers, two in a lane: panels, whose words hold one pair for every lane,
//! times rows, whose words are broadcast to all lanes.
//!
//! Where additions are cheaper than products, some rows take half as many products by S. Winograd's
//! inner products ("A New Algorithm for Inner Product", IEEE Transactions on Computers, 1968):
//! ```text
//! w0 x0 + w1 x1  =  (w1 - x0) (x1 - w0)  +  w0 w1  +  x0 x1
//! ```
//! The last two terms depend on a lane and on a row alone, and are computed once each. In floats
//! that would lose digits; integers wrap around and come back, so that results are exact, as long
//! as differences fit 16 bits.

use crate::simd::Simd;

/// Words of rows that are multiplied with panels.
#[derive(Clone, Copy)]
pub struct Rows {
    pub at: *const i32,
    /// Words from one row to the next one.
    pub row: usize,
    /// Words from one pair of a row to the next one.
    pub pair: usize,
}

impl Rows {
    /// The rows of a tile, whose words are neighbours.
    #[inline(always)]
    pub fn of_tile(at: *const i32, width: usize) -> Rows {
        Rows {
            at,
            row: 1,
            pair: width,
        }
    }

    /// Address of pair `p` of row `j`.
    #[inline(always)]
    fn at(self, j: usize, p: usize) -> *const i32 {
        self.at.wrapping_add(j * self.row + p * self.pair)
    }
}

/// The two pairs that Winograd's products take together.
#[derive(Clone, Copy)]
pub struct Twos {
    /// Distance from the first to the second of them, in pairs.
    pub apart: usize,
    /// Distance from the first one to the next two's first, in pairs.
    pub next: usize,
}

/// Consecutive pairs.
pub const NEIGHBOURS: Twos = Twos { apart: 1, next: 2 };

/// Number of `rows` that use Winograd's inner products, where these are preferred.
///
/// Of four vector units two multiply, and all add. Two products of two rows each, and one product
/// and two additions of four others, keep all four busy.
pub const fn winograd_rows(rows: usize) -> usize {
    (2 * rows).div_ceil(3)
}

/// Adds the products of `pairs` pairs of panels and rows.
///
/// # Safety
/// Panels have `pairs` vectors, rows `pairs` pairs.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
pub unsafe fn add_dots<S: Simd, const MS: usize, const W: usize>(
    dots: &mut [[S::I; W]; MS],
    panels: [*const f32; MS],
    x: Rows,
    pairs: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for p in 0..pairs {
            let w: [S::I; MS] = std::array::from_fn(
                #[inline(always)]
                |s| S::load_bytes(panels[s].add(p * S::R).cast()),
            );
            for j in 0..W {
                let xv = x.at(j, p);
                for s in 0..MS {
                    dots[s][j] = S::dot2_same(dots[s][j], w[s], xv);
                }
            }
        }
    }
}

/// As [`add_dots`], by Winograd's inner products for the first [`winograd_rows`], whose sums
/// include the terms of a lane and of a row alone already: `n` times two pairs.
///
/// # Safety
/// As [`add_dots`].
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
pub unsafe fn add_by_winograd<S: Simd, const MS: usize, const W: usize>(
    dots: &mut [[S::I; W]; MS],
    panels: [*const f32; MS],
    x: Rows,
    twos: Twos,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for p in (0..n).map(|i| i * twos.next) {
            let w: [[S::I; 2]; MS] = std::array::from_fn(
                #[inline(always)]
                |s| {
                    let w = panels[s].add(p * S::R);
                    let second = w.add(twos.apart * S::R);
                    [S::load_bytes(w.cast()), S::load_bytes(second.cast())]
                },
            );
            for j in 0..W {
                let x0 = S::iset1(x.at(j, p).read());
                let x1 = S::iset1(x.at(j, p + twos.apart).read());
                for s in 0..MS {
                    let [w0, w1] = w[s];
                    dots[s][j] = if j < winograd_rows(W) {
                        S::dot2(dots[s][j], S::sub16(w1, x0), S::sub16(x1, w0))
                    } else {
                        S::dot2(S::dot2(dots[s][j], w0, x0), w1, x1)
                    };
                }
            }
        }
    }
}
