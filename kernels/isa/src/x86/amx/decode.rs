//! Products of many tokens that are generated together, on the matrix unit: bit for bit the results
//! of vectors for each alone.
//!
//! An activation's 15 bits are two planes, `256 high` and `low`, and each is a bf16 exactly; so is
//! every code. The unit's sums of a group of codes are then whole numbers, and as long as they stay
//! below 2^24, f32 has them exactly, in whatever order they are added: they are the same integers
//! as on vectors. Codes too large for that have a tile of sums for each plane; these are exact by
//! themselves, and their one addition rounds as the conversion of the integer does. The rest is
//! [`dot_to_sum`](octavo_simd::generic::gemv), in its order.
//!
//! ```text
//! groups of 32   A tiles  [16 tokens][256 high of 32 k], [16 tokens][low of 32 k]
//!                B tile   [16 pairs of k][16 lanes][2]
//! groups of 16   A tile   [16 tokens][256 high of 16 k, low of 16 k]
//!                B tile   [8 pairs of k][16 lanes][2], twice
//! ```
//! Four neighbouring k are in the order 0, 2, 1, 3 everywhere, so that two shifts unpack bytes.

use super::tile::{TILE, multiply_group, store_group};
use octavo_simd::act::{ACT_GROUP, ActRow};
use octavo_simd::formats::Format;
use octavo_simd::generic::batch::{CHUNK, STRIPS};
use octavo_simd::simd::Simd;
use octavo_simd::table::TiledKernels;
use octavo_simd::x86::avx512::Avx512;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Tokens of an A tile.
const TOKENS: usize = 16;
/// Number of tokens from which on the unit is faster than vectors: a tile takes as long for one as
/// for sixteen.
const FEWEST: usize = 10;
/// Largest magnitude of the sum of both planes of an activation: `256 * 127 + 128`.
const LARGEST: usize = 32_640;

/// Activations of sixteen tokens in 32 k.
#[repr(C, align(64))]
struct Group {
    tiles: [[u8; TILE]; 2],
    /// Scales of the tokens.
    scales: [f32; TOKENS],
    /// For each token: minus the sum of the values of each 16 k, or of all 32.
    minus: [[f32; TOKENS]; 2],
}

/// A chunk of a strip: with sixteen tokens' activations it fits an L1 cache of 48 KiB.
#[repr(C, align(64))]
struct Panel {
    /// A tile for each group of codes.
    tiles: [[u8; TILE]; CHUNK / 16],
    /// `[k / group][scale, perhaps minimum][16]`
    scales: [[f32; 16]; CHUNK / 16 * 2],
}

/// Sums of a group, passed from tiles to vectors: of both planes, or of the high one and of the low
/// one.
#[repr(C, align(64))]
struct Sums([[f32; 16 * TOKENS]; 2]);

/// Rows to multiply by a panel.
struct Chunk {
    panel: *const Panel,
    /// Groups of 32 k that the panel has.
    groups: usize,
    /// Activations of the first sixteen tokens, from the panel's first group on, and the stride
    /// between sixteens in groups.
    x: (*const Group, usize),
    /// Number of rows.
    m: usize,
    /// Sums to add to: 16 floats of each row, and the stride between rows in floats.
    out: (*mut f32, usize),
    /// Memory to prefetch meanwhile: the bytes that become the next panel of this strip.
    next: (*const u8, usize),
}

/// The kernels of a format, unless short groups of its codes are too large for one tile of sums.
pub(super) const fn kernels<F: Format>() -> Option<TiledKernels> {
    if F::GROUP == 16 && is_apart::<F>() {
        return None;
    }
    Some(TiledKernels {
        fewest: FEWEST,
        bytes,
        group: F::GROUP,
        pack: if F::GROUP == 16 {
            pack::<16>
        } else {
            pack::<32>
        },
        strips: strips::<F>,
    })
}

/// Whether a group's sums need a separate tile for each plane.
const fn is_apart<F: Format>() -> bool {
    let (below, above) = (F::OFFSET, F::LARGEST as i32 - F::OFFSET);
    let largest = if below > above { below } else { above };
    F::GROUP * largest as usize * LARGEST >= 1 << 24
}

/// Bytes of `rows` rows of `k` activations.
fn bytes(rows: usize, k: usize) -> usize {
    rows.div_ceil(TOKENS) * (k / ACT_GROUP) * size_of::<Group>()
}

/// Writes `m` rows of `k` activations, one after the other from `x` on, as tiles: for each sixteen
/// of them, group after group. Missing rows are zeros.
///
/// # Safety
/// The rows are there; `to` is aligned to 64 bytes and has room for [`bytes`]; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack<const GROUP: usize>(x: &ActRow, m: usize, k: usize, to: *mut u8) {
    let groups = k / ACT_GROUP;
    for first in (0..m).step_by(TOKENS) {
        for g in 0..groups {
            // SAFETY: `to` has room for all groups of sixteen rows each; row `first + j` is read
            // only if it is there.
            unsafe {
                let group = to.cast::<Group>().add(first / TOKENS * groups + g);
                for j in 0..TOKENS {
                    let row = x.at_group((first + j) * groups + g);
                    pack_token::<GROUP>((first + j < m).then_some(row), group, j);
                }
            }
        }
    }
}

/// Writes 32 activations of a token into a group.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_token<const GROUP: usize>(row: Option<ActRow>, group: *mut Group, token: usize) {
    // SAFETY: the caller's promise; a token has a row of 64 bytes in both tiles.
    unsafe {
        let tiles = (&raw mut (*group).tiles).cast::<__m512i>().add(token);
        let scale = (&raw mut (*group).scales).cast::<f32>().add(token);
        let minus = (&raw mut (*group).minus).cast::<f32>().add(token);
        let Some(row) = row else {
            tiles.write(_mm512_setzero_si512());
            tiles.add(TOKENS).write(_mm512_setzero_si512());
            scale.write(0.0);
            minus.write(0.0);
            minus.add(TOKENS).write(0.0);
            return;
        };
        let (high, low) = planes(row.q.cast::<__m512i>().read_unaligned());
        if GROUP == 16 {
            tiles.write(_mm512_shuffle_i64x2::<0b01_00_01_00>(high, low));
            let second = _mm512_shuffle_i64x2::<0b11_10_11_10>(high, low);
            tiles.add(TOKENS).write(second);
            minus.write(-row.group::<16>(0).fsum);
            minus.add(TOKENS).write(-row.group::<16>(1).fsum);
        } else {
            tiles.write(high);
            tiles.add(TOKENS).write(low);
            minus.write(-row.group::<32>(0).fsum);
        }
        scale.write(row.group::<32>(0).scale);
    }
}

/// Converts both planes of 32 activations to bf16, the high one times 256, from eight times four
/// bytes of the high and four of the low one.
#[inline(always)]
unsafe fn planes(q: __m512i) -> (__m512i, __m512i) {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // the high plane's are in the even lanes
        let weight = _mm512_castsi512_ps(_mm512_set1_epi64(i64::from_le_bytes([
            0, 0, 0x80, 0x43, 0, 0, 0x80, 0x3f,
        ])));
        // byte `at` of each four as a float, whose upper half is the bf16
        macro_rules! float {
            ($left:literal) => {{
                let byte = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<$left>(q));
                _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(byte), weight))
            }};
        }
        let even = _mm512_or_si512(_mm512_srli_epi32::<16>(float!(24)), float!(8));
        let odd = _mm512_or_si512(_mm512_srli_epi32::<16>(float!(16)), float!(0));
        // lanes of `odd` count from 16
        let order = _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
        let high = _mm512_permutex2var_epi32(even, order, odd);
        let order = _mm512_add_epi32(order, _mm512_set1_epi32(1));
        (high, _mm512_permutex2var_epi32(even, order, odd))
    }
}

/// A format's codes as bf16, for up to six bits.
struct Codes<F>(std::marker::PhantomData<F>);

impl<F: Format> Codes<F> {
    /// Whether `TABLE` has them all, and whether its first half has.
    const SHORT: bool = F::LARGEST < 64;
    const SHORTEST: bool = F::LARGEST < 32;

    const TABLE: [u16; 64] = {
        let mut table = [0; 64];
        let mut code = 0;
        while code < 64 {
            table[code] = ((code as i32 - F::OFFSET) as f32)
                .to_bits()
                .wrapping_shr(16) as u16;
            code += 1;
        }
        table
    };

    /// Converts 32 codes, in 16 bits each, to bf16, less the offset.
    #[inline(always)]
    unsafe fn to_bf16(codes: __m512i) -> __m512i {
        // SAFETY: the table has 128 bytes; the instruction set is the caller's promise.
        unsafe {
            let table = Self::TABLE.as_ptr().cast::<__m512i>();
            if Self::SHORTEST {
                return _mm512_permutexvar_epi16(codes, table.read_unaligned());
            }
            if Self::SHORT {
                let (low, high) = (table.read_unaligned(), table.add(1).read_unaligned());
                return _mm512_permutex2var_epi16(low, codes, high);
            }
            let offset = _mm512_set1_ps(F::OFFSET as f32);
            let even = _mm512_and_si512(codes, _mm512_set1_epi32(0xffff));
            let even = _mm512_sub_ps(_mm512_cvtepi32_ps(even), offset);
            let odd = _mm512_srli_epi32::<16>(codes);
            let odd = _mm512_sub_ps(_mm512_cvtepi32_ps(odd), offset);
            let even = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
            _mm512_or_si512(even, _mm512_castps_si512(odd))
        }
    }
}

/// Unpacks blocks of a strip to tiles and scales.
///
/// # Safety
/// `block` has `blocks` blocks, with no more than [`CHUNK`] weights a row; the CPU has AVX-512.
#[inline(always)]
unsafe fn unpack<F: Format>(block: *const u8, blocks: usize, panel: *mut Panel) {
    let block_bytes = F::BLOCK_BYTES * Avx512::R;
    // SAFETY: blocks are the caller's promise; a panel has room for the shortest groups.
    unsafe {
        let mut tile = (&raw mut (*panel).tiles).cast::<__m512i>();
        let mut scales = (&raw mut (*panel).scales).cast::<__m512>();
        for b in 0..blocks {
            let block = block.add(b * block_bytes);
            let of_block = F::block_scales::<Avx512>(block);
            for g in 0..F::K / F::GROUP {
                let (scale, min) = F::scales::<Avx512>(of_block, block, g);
                scales.write(scale);
                scales = scales.add(1);
                if F::MIN {
                    scales.write(min);
                    scales = scales.add(1);
                }
            }
            for g in 0..F::K / ACT_GROUP {
                tile = write_half::<F>(tile, F::codes::<Avx512, 0>(block, g));
                tile = write_half::<F>(tile, F::codes::<Avx512, 1>(block, g));
            }
        }
    }
}

/// Writes 16 codes of each lane, and returns the address of the next ones.
///
/// # Safety
/// `tile` has room for the rows of a tile that they are.
#[inline(always)]
unsafe fn write_half<F: Format>(tile: *mut __m512i, codes: [__m512i; 4]) -> *mut __m512i {
    // SAFETY: eight rows of a tile, or all sixteen.
    unsafe {
        for (j, c) in codes.into_iter().enumerate() {
            let even = Codes::<F>::to_bf16(_mm512_and_si512(c, _mm512_set1_epi32(0x00ff_00ff)));
            let odd = Codes::<F>::to_bf16(_mm512_srli_epi16::<8>(c));
            tile.add(2 * j).write(even);
            tile.add(2 * j + 1).write(odd);
            if F::GROUP == 16 {
                tile.add(8 + 2 * j).write(even);
                tile.add(8 + 2 * j + 1).write(odd);
            }
        }
        tile.add(if F::GROUP == 16 { 16 } else { 8 })
    }
}

/// Multiplies two strips by several rows.
///
/// # Safety
/// `strips` are two strips of `k` weights a row, of `strip_bytes` each; `x` is what [`pack`] made
/// of `m` rows of `k` activations; `out` has room for 32 floats in each of `m` rows, at a stride in
/// floats. The CPU has AMX, and its tiles are configured.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
unsafe fn strips<F: Format>(
    (strips, strip_bytes): (*const u8, usize),
    k: usize,
    (x, m): (*const u8, usize),
    out: (*mut f32, usize),
) {
    let mut panel = MaybeUninit::<Panel>::uninit();
    for row in 0..m {
        // SAFETY: the output has this row.
        unsafe { out.0.add(row * out.1).write_bytes(0, STRIPS * 16) };
    }
    for k0 in (0..k).step_by(CHUNK) {
        let len = CHUNK.min(k - k0);
        let per_block = F::BLOCK_BYTES * Avx512::R;
        let (from, blocks) = (k0 / F::K * per_block, len / F::K);
        // after a strip's end comes the next one that is not being read
        let is_last = k0 + len == k;
        let next = if is_last {
            STRIPS * strip_bytes
        } else {
            from + blocks * per_block
        };
        for n in 0..STRIPS {
            let strip = strips.wrapping_add(n * strip_bytes);
            let chunk = Chunk {
                panel: panel.as_ptr(),
                groups: len / ACT_GROUP,
                x: (
                    x.cast::<Group>().wrapping_add(k0 / ACT_GROUP),
                    k / ACT_GROUP,
                ),
                m,
                out: (out.0.wrapping_add(16 * n), out.1),
                next: (strip.wrapping_add(next), CHUNK / F::K * per_block),
            };
            // SAFETY: the strip has these blocks, no more than a panel has room for; the rest is
            // the caller's promise.
            unsafe {
                unpack::<F>(strip.wrapping_add(from), blocks, panel.as_mut_ptr());
                match (F::GROUP, F::MIN, is_apart::<F>()) {
                    (16, false, _) => multiply::<16, false, false>(&chunk),
                    (16, true, _) => multiply::<16, true, false>(&chunk),
                    (_, false, false) => multiply::<32, false, false>(&chunk),
                    (_, false, true) => multiply::<32, false, true>(&chunk),
                    (_, true, false) => multiply::<32, true, false>(&chunk),
                    (_, true, true) => multiply::<32, true, true>(&chunk),
                }
            }
        }
    }
}

/// Adds the products of a panel with all rows to their sums.
///
/// # Safety
/// As [`strips`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
unsafe fn multiply<const GROUP: usize, const MIN: bool, const APART: bool>(a: &Chunk) {
    for first in (0..a.m).step_by(TOKENS) {
        // SAFETY: passed on, of these rows.
        unsafe {
            if a.m - first > TOKENS / 2 {
                rows::<GROUP, MIN, APART, TOKENS>(a, first);
            } else {
                rows::<GROUP, MIN, APART, { TOKENS / 2 }>(a, first);
            }
        }
    }
}

/// Multiplies up to `M` rows by a panel. While vectors add up a group's sums, the unit computes the
/// next one's.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn rows<const GROUP: usize, const MIN: bool, const APART: bool, const M: usize>(
    a: &Chunk,
    first: usize,
) {
    let mut stored = MaybeUninit::<Sums>::uninit();
    let stored = stored.as_mut_ptr().cast::<f32>();
    let (m, per_group) = (M.min(a.m - first), 1 + MIN as usize);
    let (groups, halves) = (a.groups * ACT_GROUP / GROUP, ACT_GROUP / GROUP);
    // lines that each group of the first rows prefetches
    let lines = if first == 0 { a.next.1.div_ceil(64) } else { 0 };
    let at_once = lines.div_ceil(groups);
    // SAFETY: panel, rows and sums cover the reads by the promises of `Chunk`.
    unsafe {
        let tiles = (&raw const (*a.panel).tiles).cast::<u8>();
        let scales = (&raw const (*a.panel).scales).cast::<__m512>();
        let x = a.x.0.add(first / TOKENS * a.x.1);
        let out = a.out.0.add(first * a.out.1);
        let mut sums = [_mm512_setzero_ps(); M];
        for j in 0..M {
            if j < m {
                sums[j] = _mm512_loadu_ps(out.add(j * a.out.1));
            }
        }
        for g in 0..=groups {
            if g > 0 {
                store_group::<APART>((g - 1) % 2, stored);
            }
            if g < groups {
                let of_x = (&raw const (*x.add(g / halves)).tiles).cast::<u8>();
                let of_x = of_x.add(g % halves * TILE);
                multiply_group::<GROUP, APART>(g % 2, of_x, tiles.add(g * TILE));
                for line in g * at_once..(g + 1) * at_once {
                    Avx512::prefetch(a.next.0.wrapping_add(64 * line));
                }
            }
            let Some(g) = g.checked_sub(1) else {
                continue;
            };
            let x = x.add(g / halves);
            let scale = scales.add(g * per_group).read();
            let min = scales.add(g * per_group + MIN as usize).read();
            for j in 0..M {
                let mut dot = _mm512_load_ps(stored.add(j * 16));
                if APART {
                    dot = _mm512_add_ps(dot, _mm512_load_ps(stored.add((TOKENS + j) * 16)));
                }
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*x).scales[j]));
                sums[j] = _mm512_fmadd_ps(scale, dot, sums[j]);
                if MIN {
                    let minus = _mm512_set1_ps((*x).minus[g % halves][j]);
                    sums[j] = _mm512_fmadd_ps(min, minus, sums[j]);
                }
            }
        }
        for j in 0..M {
            if j < m {
                _mm512_storeu_ps(out.add(j * a.out.1), sums[j]);
            }
        }
    }
}
