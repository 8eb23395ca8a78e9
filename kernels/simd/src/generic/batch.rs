//! Products of several generated tokens with packed weights: unpacked codes serve all of them.
//!
//! A few tokens go through [`gemv`](super::gemv) together. For more, a chunk of two strips is
//! unpacked into a [`Panel`], which stays in the L1 cache while it is multiplied by all rows of
//! activations, up to `ROWS` at a time. Per row and output every addition of floats is that of
//! [`gemv`](super::gemv), in its order, so that a token's results do not depend on how many others
//! there are.

use super::gemv::dot_to_sum;
use crate::act::{ACT_GROUP, Act4, ActRow};
use crate::formats::Format;
use crate::simd::Simd;
use std::mem::MaybeUninit;

/// k of a panel, at most: a multiple of every block length.
pub const CHUNK: usize = 256;
/// Strips of a panel.
pub const STRIPS: usize = 2;
/// Rows multiplied at a time, at most: with two strips, 16 running dot products of AVX-512, 8 sums
/// and their operands fit its 32 registers.
const ROWS: usize = 4;

/// Bytes of a strip's codes: four codes of 16 lanes, or of 8 lanes in 16 bits each.
const CODE_BYTES: usize = CHUNK / 4 * 64;
/// Floats of a strip's scales: one and a minimum for 16 lanes and 16 codes.
const SCALE_FLOATS: usize = CHUNK / 16 * 2 * 16;

/// A chunk of two strips as dot products read it.
#[repr(C, align(64))]
pub struct Panel {
    /// `[k / 4][R]` times four codes, as [`Simd::spread`] leaves them.
    codes: [[u8; CODE_BYTES]; STRIPS],
    /// `[k / group][scale, perhaps minimum][R]`
    scales: [[f32; SCALE_FLOATS]; STRIPS],
}

/// Kernel that unpacks part of a strip, given its first block, the number of blocks, the panel, and
/// the strip's index within it.
pub type Unpack = unsafe fn(*const u8, usize, *mut Panel, usize);

/// Kernel that multiplies strips, given their weights per row, by consecutive rows of activations;
/// results in rows at a stride in floats.
pub type CodeKernel = unsafe fn(*const u8, usize, &ActRow, (*mut f32, usize));

/// How the codes of one format are multiplied with several rows.
#[derive(Clone, Copy)]
pub struct BatchKernels {
    /// A pair of strips times 2 rows, 3 rows and so on.
    pub few: &'static [CodeKernel],
    /// Rows that these are taken for, at most, some of them at a time. More go by a panel.
    pub few_rows: u32,
    pub unpack: Unpack,
    pub multiply: unsafe fn(&Chunk),
    /// Weights and bytes of a block of one strip.
    pub block: (usize, usize),
    /// Subtracted from every code of a panel.
    pub offset: i32,
}

/// Rows to multiply by a panel.
pub struct Chunk {
    pub panel: *const Panel,
    /// Groups of 32 k that the panel has.
    pub groups: usize,
    /// Subtracted from every code.
    pub offset: i32,
    /// The first row, from the panel's first group on, and the stride between rows in groups.
    pub x: (ActRow, usize),
    /// Number of rows.
    pub m: usize,
    /// Sums to add to: `2 R` floats of each row, and the stride between rows in floats.
    pub sums: (*mut f32, usize),
    /// Memory to prefetch meanwhile: the next panel of two strips, and its bytes in each.
    pub next: ([*const u8; STRIPS], usize),
}

/// Offset subtracted from the codes that [`unpack`] leaves.
pub const fn offset<S: Simd, F: Format>() -> i32 {
    // a format that subtracts both has no kernel here
    assert!(!F::MIN || (F::OFFSET == 0 && F::FITS_I8));
    F::OFFSET - if flips::<S, F>() { 128 } else { 0 }
}

/// Whether 128 is subtracted from codes to make them signed.
const fn flips<S: Simd, F: Format>() -> bool {
    S::SIGNED && !F::FITS_I8
}

/// Unpacks blocks of a strip, as described for [`Unpack`].
///
/// # Safety
/// `block` has `blocks` blocks, with no more than [`CHUNK`] weights a row; `panel` has room.
#[inline(always)]
pub unsafe fn unpack<S: Simd, F: Format>(
    block: *const u8,
    blocks: usize,
    panel: *mut Panel,
    strip: usize,
) {
    let block_bytes = F::BLOCK_BYTES * S::R;
    let per_group = S::R * (1 + F::MIN as usize);
    // SAFETY: blocks are the caller's promise; a panel has room for CHUNK codes and the scales of
    // the shortest groups.
    unsafe {
        let mut codes = (&raw mut (*panel).codes)
            .cast::<u8>()
            .add(strip * CODE_BYTES);
        let mut scales = (&raw mut (*panel).scales)
            .cast::<f32>()
            .add(strip * SCALE_FLOATS);
        for b in 0..blocks {
            let block = block.add(b * block_bytes);
            let of_block = F::block_scales::<S>(block);
            for g in 0..F::K / F::GROUP {
                let (scale, min) = F::scales::<S>(of_block, block, g);
                S::store(scales, scale);
                if F::MIN {
                    S::store(scales.add(S::R), min);
                }
                scales = scales.add(per_group);
            }
            for g in 0..F::K / ACT_GROUP {
                codes = store_codes::<S, F>(codes, F::codes::<S, 0>(block, g));
                codes = store_codes::<S, F>(codes, F::codes::<S, 1>(block, g));
            }
        }
    }
}

/// Writes 16 codes of each lane, and returns the address after them.
#[inline(always)]
unsafe fn store_codes<S: Simd, F: Format>(mut to: *mut u8, codes: [S::I; 4]) -> *mut u8 {
    // SAFETY: the caller has room for four times `SPREAD` vectors.
    unsafe {
        for mut c in codes {
            if flips::<S, F>() {
                let top = S::iset1(0x8080_8080_u32 as i32);
                let others = S::and(c, S::iset1(0x7f7f_7f7f));
                c = S::or(others, S::isub(top, S::and(c, top)));
            }
            for v in S::spread(c).into_iter().take(S::SPREAD) {
                S::store_bytes(to, v);
                to = to.add(4 * S::R);
            }
        }
        to
    }
}

/// Adds the products of a panel with all rows to their sums.
///
/// # Safety
/// As the fields of [`Chunk`] say: inputs are finished, the sums are the caller's.
#[inline(always)]
pub unsafe fn multiply<S: Simd, const GROUP: usize, const MIN: bool>(a: &Chunk) {
    let mut row = 0;
    while row < a.m {
        let rows = rows_at_once(a.m - row);
        // SAFETY: passed on, of these rows.
        unsafe {
            match rows {
                1 => tile::<S, GROUP, MIN, 1>(a, row),
                2 => tile::<S, GROUP, MIN, 2>(a, row),
                3 => tile::<S, GROUP, MIN, 3>(a, row),
                _ => tile::<S, GROUP, MIN, ROWS>(a, row),
            }
        }
        row += rows;
    }
}

/// Rows to take next out of `left`. One row alone waits for its own sums: rather 3 and 2 than 4 and
/// 1.
fn rows_at_once(left: usize) -> usize {
    match left {
        0..=ROWS => left,
        5 | 6 => 3,
        _ => ROWS,
    }
}

/// Multiplies `M` rows by a panel.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn tile<S: Simd, const GROUP: usize, const MIN: bool, const M: usize>(
    a: &Chunk,
    row: usize,
) {
    let vector = 4 * S::R;
    let per_group = S::R * (1 + MIN as usize);
    let (x, stride) = a.x;
    let groups = a.groups * ACT_GROUP / GROUP;
    // this tile's share of the lines to prefetch, divided among its groups
    let (next, lines) = (a.next.0, a.next.1.div_ceil(64));
    let (mut line, last) = (lines * row / a.m, lines * (row + M) / a.m);
    let at_once = (last - line).div_ceil(groups);
    // SAFETY: panel, rows and sums cover the reads by the promises of `Chunk`.
    unsafe {
        let codes = (&raw const (*a.panel).codes).cast::<u8>();
        let scales = (&raw const (*a.panel).scales).cast::<f32>();
        let rows: [ActRow; M] = std::array::from_fn(|j| x.at_group((row + j) * stride));
        let to: [*mut f32; M] = std::array::from_fn(|j| a.sums.0.add((row + j) * a.sums.1));
        let mut sums = [[S::zero(); STRIPS]; M];
        for j in 0..M {
            for n in 0..STRIPS {
                sums[j][n] = S::load(to[j].add(n * S::R));
            }
        }
        // hidden from the compiler, which would unroll the loop until registers run out
        let quarters = std::hint::black_box(GROUP / 4);
        for g in 0..groups {
            for line in line..last.min(line + at_once) {
                for strip in next {
                    S::prefetch(strip.wrapping_add(64 * line));
                }
            }
            line += at_once;
            let mut accs = [[S::acc_zero(); STRIPS]; M];
            for p in g * quarters..(g + 1) * quarters {
                let at = codes.add(p * S::SPREAD * vector);
                let w = [load_codes::<S>(at), load_codes::<S>(at.add(CODE_BYTES))];
                for j in 0..M {
                    let q: *const Act4 = rows[j].q.add(p);
                    for n in 0..STRIPS {
                        accs[j][n] = S::dot_spread(accs[j][n], w[n], q);
                    }
                }
            }
            for n in 0..STRIPS {
                let of_strip = scales.add(n * SCALE_FLOATS + g * per_group);
                let scale = S::load(of_strip);
                let min = if MIN {
                    S::load(of_strip.add(S::R))
                } else {
                    S::zero()
                };
                for j in 0..M {
                    let group = rows[j].group::<GROUP>(g);
                    let mut dot = S::acc_sum(accs[j][n]);
                    if !MIN {
                        dot = S::isub(dot, S::iset1(a.offset * group.isum));
                    }
                    sums[j][n] = dot_to_sum::<S, MIN>(sums[j][n], dot, (scale, min), group);
                }
            }
        }
        for j in 0..M {
            for n in 0..STRIPS {
                S::store(to[j].add(n * S::R), sums[j][n]);
            }
        }
    }
}

/// Four codes of each lane.
#[inline(always)]
unsafe fn load_codes<S: Simd>(at: *const u8) -> [S::I; 2] {
    // SAFETY: the caller has `SPREAD` vectors there.
    unsafe {
        let first = S::load_bytes(at);
        if S::SPREAD == 1 {
            [first, first]
        } else {
            [first, S::load_bytes(at.add(4 * S::R))]
        }
    }
}

/// Decodes k in `k0..k1` of a strip into the first half of a panel, and converts it there.
///
/// # Safety
/// `strip` has these blocks, no more than [`CHUNK`] weights a row; `convert` may rely on the codes
/// and scales of the first strip alone.
#[inline(always)]
pub unsafe fn converted(
    kernels: &BatchKernels,
    strip: *const u8,
    (k0, k1): (usize, usize),
    convert: impl FnOnce(*const Panel),
) {
    let (block_len, block_bytes) = kernels.block;
    let mut panel = MaybeUninit::<Panel>::uninit();
    let block = strip.wrapping_add(k0 / block_len * block_bytes);
    // SAFETY: the strip has these blocks, and the panel room for as many.
    unsafe { (kernels.unpack)(block, (k1 - k0) / block_len, panel.as_mut_ptr(), 0) };
    convert(panel.as_ptr());
}

/// Reads the codes and scales of a panel's first strip in turn, group after group.
pub struct Decoded<S> {
    codes: *const u8,
    scales: *const f32,
    simd: std::marker::PhantomData<S>,
}

impl<S: Simd> Decoded<S> {
    /// # Safety
    /// The panel has been filled, for a format whose codes fit a signed byte and that has no
    /// minima, and no more is read than it has.
    pub unsafe fn of(panel: *const Panel) -> Decoded<S> {
        // SAFETY: addresses only.
        unsafe {
            Decoded {
                codes: (&raw const (*panel).codes).cast(),
                scales: (&raw const (*panel).scales).cast(),
                simd: std::marker::PhantomData,
            }
        }
    }

    /// The next sixteen codes of each row, four to a vector, as [`Format::codes`] gives them.
    ///
    /// # Safety
    /// As [`Decoded::of`].
    #[inline(always)]
    pub unsafe fn codes(&mut self) -> [S::I; 4] {
        // SAFETY: the panel has sixteen more codes of each row.
        unsafe { [self.four(), self.four(), self.four(), self.four()] }
    }

    /// The next four codes of each row, as they were before [`Simd::spread`].
    #[inline(always)]
    unsafe fn four(&mut self) -> S::I {
        // SAFETY: the panel has four more codes of each row, in `SPREAD` vectors.
        unsafe {
            let [first, second] = load_codes::<S>(self.codes);
            self.codes = self.codes.add(S::SPREAD * 4 * S::R);
            if S::SPREAD == 1 {
                first
            } else {
                S::or(first, S::shl(second, 8))
            }
        }
    }

    /// The next group's scale of each row.
    ///
    /// # Safety
    /// As [`Decoded::of`].
    #[inline(always)]
    pub unsafe fn scale(&mut self) -> S::F {
        // SAFETY: the panel has the scales of another group.
        unsafe {
            let scale = S::load(self.scales);
            self.scales = self.scales.add(S::R);
            scale
        }
    }
}

/// Multiplies two strips by several rows.
///
/// # Safety
/// `strips` are two strips of `k` weights a row, of `strip_bytes` each; `x` is the first of `m`
/// rows of `k` activations, one after the other; `out` has room for `2 R` floats in each of `m`
/// rows, at a stride in floats; `r` is `R`. The kernels are of this CPU.
pub unsafe fn strips(
    kernels: &BatchKernels,
    (strips, strip_bytes, r): (*const u8, usize, usize),
    k: usize,
    (x, m): (&ActRow, usize),
    out: (*mut f32, usize),
) {
    if m <= kernels.few_rows as usize {
        let mut row = 0;
        while row < m {
            let rows = rows_at_once(m - row);
            let x = x.at_group(row * (k / ACT_GROUP));
            // SAFETY: passed on, of these rows: two at least, as of two rows or more none is alone.
            unsafe { kernels.few[rows - 2](strips, k, &x, (out.0.add(row * out.1), out.1)) };
            row += rows;
        }
        return;
    }
    let (block_len, block_bytes) = kernels.block;
    let mut panel = MaybeUninit::<Panel>::uninit();
    for row in 0..m {
        // SAFETY: the output has this row.
        unsafe { std::ptr::write_bytes(out.0.add(row * out.1), 0, STRIPS * r) };
    }
    for k0 in (0..k).step_by(CHUNK) {
        let len = CHUNK.min(k - k0);
        let (from, blocks) = (k0 / block_len * block_bytes, len / block_len);
        for n in 0..STRIPS {
            let block = strips.wrapping_add(n * strip_bytes + from);
            // SAFETY: the strip has these blocks, no more than a panel has room for.
            unsafe { (kernels.unpack)(block, blocks, panel.as_mut_ptr(), n) };
        }
        // after a strip's end comes the next one that is not being read
        let is_last = k0 + len == k;
        let next = if is_last {
            STRIPS * strip_bytes
        } else {
            from + blocks * block_bytes
        };
        let next_len = CHUNK.min(if is_last { k } else { k - k0 - len });
        let chunk = Chunk {
            panel: panel.as_ptr(),
            groups: len / ACT_GROUP,
            offset: kernels.offset,
            x: (x.at_group(k0 / ACT_GROUP), k / ACT_GROUP),
            m,
            sums: out,
            next: (
                std::array::from_fn(|n| strips.wrapping_add(n * strip_bytes + next)),
                next_len / block_len * block_bytes,
            ),
        };
        // SAFETY: the panel has these groups of both strips now, the rows are the caller's promise.
        unsafe { (kernels.multiply)(&chunk) };
    }
}
