//! The matrix unit itself: its configuration, products of tiles, and conversion of vectors to rows
//! of tiles.
//!
//! Stable Rust has no AMX intrinsics: inline assembly. The compiler never allocates tile registers
//! itself.

use std::arch::asm;
use std::arch::x86_64::*;

/// k of a tile.
pub(super) const K: usize = 32;
/// Bytes of a tile.
pub(super) const TILE: usize = 1024;

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Configures all eight tiles of this thread as 16 rows of 64 bytes.
///
/// # Safety
/// [`is_available`](super::is_available) returned true, or its self-test is running.
pub(crate) unsafe fn configure() {
    let mut c = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    c.row_bytes[..8].fill(64);
    c.rows[..8].fill(16);
    // SAFETY: the instruction exists by the caller's promise and reads 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &c, options(nostack, readonly)) }
}

/// Releases the tiles of this thread, so that the system need not save them.
///
/// # Safety
/// As [`configure`].
pub(crate) unsafe fn release() {
    // SAFETY: the instruction exists by the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// Converts two vectors of 16 rows, of neighbouring k, to one row of a B tile.
#[inline(always)]
pub(super) unsafe fn pair(even: __m512, odd: __m512) -> __m512i {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // adds half a unit in the last place, then truncates: nearest, ties away from zero
        let half = _mm512_set1_epi32(0x8000);
        let even = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
        let odd = _mm512_add_epi32(_mm512_castps_si512(odd), half);
        // even | odd & mask
        _mm512_ternarylogic_epi32(even, odd, _mm512_set1_epi32(0xffff_0000_u32 as i32), 0xf8)
    }
}

/// Consecutive tiles of two blocks of tokens, or of two strips.
#[derive(Clone, Copy)]
pub(super) struct TileRows {
    /// Address of the first one's tiles.
    pub(super) at: *const u8,
    /// Bytes between the first one's tiles and the second one's.
    pub(super) stride: usize,
}

/// Sums in rows.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) at: *mut f32,
    /// Stride between rows in floats.
    pub(super) stride: usize,
}

/// Up to 2 x 2 tiles of sums over some tiles of k.
pub(super) struct TileBlock<'a> {
    /// Blocks of 16 tokens, 1 or 2.
    pub(super) blocks: usize,
    /// Strips, 1 or 2.
    pub(super) strips: usize,
    /// A tiles.
    pub(super) x: TileRows,
    /// B tiles.
    pub(super) panel: TileRows,
    /// Products to add up: bytes from the A tiles and from the B tiles on.
    pub(super) products: &'a [(usize, usize)],
    /// Tiles of k of each product, 1 or more.
    pub(super) steps: usize,
    /// Sums to add the products to; zero without them.
    pub(super) from: Option<Sums>,
    pub(super) to: Sums,
}

/// Computes the sums of a block.
///
/// # Safety
/// Tiles are configured; all addresses have the tiles and sums that [`TileBlock`] says.
#[inline(always)]
pub(super) unsafe fn multiply(block: &TileBlock<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (block.blocks, block.strips) {
            (1, 1) => one_by_one(block),
            (1, _) => one_by_two(block),
            (_, 1) => two_by_one(block),
            _ => two_by_two(block),
        }
    }
}

/// The one product of A tiles with B tiles that lie in the order of k.
pub(super) const ONE_PRODUCT: [(usize, usize); 1] = [(0, 0)];

/// Instantiates the product of one shape: loading or zeroing of sums, a step of k, and storing.
/// Sums are tiles 0 to 3, `[block][strip]`; `{c}` and `{d}` are the rows of both blocks, `{l}`
/// their stride; `{a}` and `{e}` are the blocks' A tiles, `{b}` and `{f}` the strips' B tiles. An
/// assembly comment names an operand that a shape has no use for.
macro_rules! product_of_tiles {
    ($name:ident: load [$($load:literal),*], zero [$($zero:literal),*],
        step [$($step:literal),*], store [$($store:literal),*]) => {
        /// # Safety
        /// As [`multiply`].
        #[inline(always)]
        unsafe fn $name(block: &TileBlock<'_>) {
            let TileBlock { x, panel, products, steps, from, to, .. } = *block;
            // SAFETY: tiles are configured and addresses cover what they say by the caller's
            // promise; every register written is declared.
            unsafe {
                if let Some(Sums { at, stride }) = from {
                    asm!($($load),*, c = in(reg) at, d = in(reg) at.wrapping_add(16 * stride),
                        l = in(reg) 4 * stride, out("tmm0") _, out("tmm1") _, out("tmm2") _,
                        out("tmm3") _, options(nostack, readonly));
                } else {
                    asm!($($zero),*, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        options(nostack, nomem));
                }
                for &(of_x, of_panel) in products {
                    let x_at = x.at.wrapping_add(of_x);
                    let panel_at = panel.at.wrapping_add(of_panel);
                    asm!(
                        "2:",
                        $($step),*,
                        "add {a}, 1024", "add {b}, 1024", "add {e}, 1024", "add {f}, 1024",
                        "dec {k}", "jnz 2b",
                        a = inout(reg) x_at => _, e = inout(reg) x_at.wrapping_add(x.stride) => _,
                        b = inout(reg) panel_at => _,
                        f = inout(reg) panel_at.wrapping_add(panel.stride) => _,
                        k = inout(reg) steps => _, s = in(reg) 64usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly));
                }
                let Sums { at, stride } = to;
                asm!($($store),*, c = in(reg) at, d = in(reg) at.wrapping_add(16 * stride),
                    l = in(reg) 4 * stride, options(nostack));
            }
        }
    };
}

product_of_tiles! {
    one_by_one:
    load ["tileloadd tmm0, [{c}+{l}*1]", "/* {d} */"],
    zero ["tilezero tmm0"],
    step [
        "tileloadd tmm4, [{a}+{s}*1]",
        "tileloadd tmm6, [{b}+{s}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6"
    ],
    store ["tilestored [{c}+{l}*1], tmm0", "/* {d} */"]
}

product_of_tiles! {
    one_by_two:
    load ["tileloadd tmm0, [{c}+{l}*1]", "tileloadd tmm1, [{c}+{l}*1+64]", "/* {d} */"],
    zero ["tilezero tmm0", "tilezero tmm1"],
    step [
        "tileloadd tmm4, [{a}+{s}*1]",
        "tileloadd tmm6, [{b}+{s}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{f}+{s}*1]",
        "tdpbf16ps tmm1, tmm4, tmm7"
    ],
    store ["tilestored [{c}+{l}*1], tmm0", "tilestored [{c}+{l}*1+64], tmm1", "/* {d} */"]
}

product_of_tiles! {
    two_by_one:
    load ["tileloadd tmm0, [{c}+{l}*1]", "tileloadd tmm2, [{d}+{l}*1]"],
    zero ["tilezero tmm0", "tilezero tmm2"],
    step [
        "tileloadd tmm4, [{a}+{s}*1]",
        "tileloadd tmm6, [{b}+{s}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{e}+{s}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6"
    ],
    store ["tilestored [{c}+{l}*1], tmm0", "tilestored [{d}+{l}*1], tmm2"]
}

product_of_tiles! {
    two_by_two:
    load [
        "tileloadd tmm0, [{c}+{l}*1]",
        "tileloadd tmm1, [{c}+{l}*1+64]",
        "tileloadd tmm2, [{d}+{l}*1]",
        "tileloadd tmm3, [{d}+{l}*1+64]"
    ],
    zero ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
    step [
        "tileloadd tmm4, [{a}+{s}*1]",
        "tileloadd tmm6, [{b}+{s}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{f}+{s}*1]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloadd tmm5, [{e}+{s}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    store [
        "tilestored [{c}+{l}*1], tmm0",
        "tilestored [{c}+{l}*1+64], tmm1",
        "tilestored [{d}+{l}*1], tmm2",
        "tilestored [{d}+{l}*1+64], tmm3"
    ]
}

/// Multiply-adds of one iteration of [`busy`].
pub(crate) const BUSY: usize = 4 * 16 * 16 * K;

/// Keeps the unit busy, reading no memory.
///
/// # Safety
/// Tiles are configured.
pub(crate) unsafe fn busy(turns: usize) {
    for _ in 0..turns {
        // SAFETY: the caller's promise; every register written is declared.
        unsafe {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem));
        }
    }
}

/// Computes the sums of one group of codes: zeroes one of two sets of sum tiles, and adds the
/// products of a B tile with one A tile (groups of 16), or with two (groups of 32), which lie one
/// after the other; `APART`: each to a tile of its own. Set 0 is tiles 0 and 1, set 1 tiles 2 and
/// 3.
///
/// # Safety
/// Tiles are configured; `x` has the A tiles and `panel` the B tile.
#[inline(always)]
pub(super) unsafe fn multiply_group<const GROUP: usize, const APART: bool>(
    set: usize,
    x: *const u8,
    panel: *const u8,
) {
    macro_rules! product {
        ($sums:literal, $other:literal, $b:literal) => {
            match (GROUP, APART) {
                (16, _) => product!(
                    concat!("tilezero ", $sums),
                    concat!("tileloadd tmm4, [{a}+{s}*1]"),
                    concat!("tileloadd ", $b, ", [{b}+{s}*1]"),
                    concat!("tdpbf16ps ", $sums, ", tmm4, ", $b)
                ),
                (_, false) => product!(
                    concat!("tilezero ", $sums),
                    concat!("tileloadd tmm4, [{a}+{s}*1]"),
                    concat!("tileloadd ", $b, ", [{b}+{s}*1]"),
                    concat!("tdpbf16ps ", $sums, ", tmm4, ", $b),
                    concat!("tileloadd tmm5, [{a}+{s}*1+1024]"),
                    concat!("tdpbf16ps ", $sums, ", tmm5, ", $b)
                ),
                (_, true) => product!(
                    concat!("tilezero ", $sums),
                    concat!("tilezero ", $other),
                    concat!("tileloadd tmm4, [{a}+{s}*1]"),
                    concat!("tileloadd ", $b, ", [{b}+{s}*1]"),
                    concat!("tdpbf16ps ", $sums, ", tmm4, ", $b),
                    concat!("tileloadd tmm5, [{a}+{s}*1+1024]"),
                    concat!("tdpbf16ps ", $other, ", tmm5, ", $b)
                ),
            }
        };
        ($($line:expr),*) => {
            asm!($($line),*, a = in(reg) x, b = in(reg) panel, s = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, readonly))
        };
    }
    // SAFETY: tiles are configured and addresses have them by the caller's promise; every register
    // written is declared.
    unsafe {
        if set == 0 {
            product!("tmm0", "tmm1", "tmm6")
        } else {
            product!("tmm2", "tmm3", "tmm7")
        }
    }
}

/// Stores the sums that [`multiply_group`] left in a set: a tile, or two one after the other.
///
/// # Safety
/// As for [`multiply_group`]; `to` has room.
#[inline(always)]
pub(super) unsafe fn store_group<const APART: bool>(set: usize, to: *mut f32) {
    macro_rules! store {
        ($sums:literal, $other:literal) => {
            if APART {
                store!([concat!("tilestored [{c}+{s}*1], ", $sums),
                    concat!("tilestored [{c}+{s}*1+1024], ", $other)])
            } else {
                store!([concat!("tilestored [{c}+{s}*1], ", $sums)])
            }
        };
        ([$($line:expr),*]) => {
            asm!($($line),*, c = in(reg) to, s = in(reg) 64usize, options(nostack))
        };
    }
    // SAFETY: as `multiply_group`.
    unsafe {
        if set == 0 {
            store!("tmm0", "tmm1")
        } else {
            store!("tmm2", "tmm3")
        }
    }
}
