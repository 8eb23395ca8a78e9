//! Products with weights in bf16. Weights and activations are rounded to it (8 bits of mantissa),
//! products and sums are f32. A panel of weights is converted on the fly to the matrix unit's own
//! layout, to which packed strips are close: lanes are rows.

use super::tile::{K, ONE_PRODUCT, Sums, TILE, TileBlock, TileRows, multiply, pair};
use octavo_simd::act::{Form, Tiled};
use octavo_simd::formats::Format;
use octavo_simd::generic::batch::{Decoded, Panel};
use octavo_simd::generic::gemm::{KC, Tiles};
use octavo_simd::simd::Simd;
use octavo_simd::table::ActivationForm;
use octavo_simd::x86::avx512::Avx512;
use std::arch::x86_64::*;

/// Activations in A tiles. A panel of 256 k is 16 KiB for two strips, and so are 32 tokens: both
/// stay in the L1 cache while a step of 2 x 2 tiles reads two of each.
pub(crate) static BF16_TILES: ActivationForm = ActivationForm {
    form: Form::Tiles(Tiled::Bf16),
    tile: TOKENS,
    slice: KC,
    granule: K,
    bytes: 2,
    narrow: false,
    pack: pack_tokens,
};

/// Tokens of an A tile.
pub(super) const TOKENS: usize = 16;

/// Rounds tokens `t..t + 16` of `x` (`[m][k]`) to A tiles, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats with k a multiple of 32; `tile` has room for `k * 16` bf16; AVX-512 with
/// bf16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn pack_tokens(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    _: usize,
    tile: *mut f32,
) {
    let tile = tile.cast::<u8>();
    for j in 0..TOKENS {
        for i in 0..k / K {
            // SAFETY: token t + j is read only if it exists; tile i of k / 32 has 16 rows of 64
            // bytes.
            unsafe {
                let to = tile.add(i * TILE + j * 64).cast::<__m512i>();
                if t + j < m {
                    let from = x.add((t + j) * k + i * K);
                    let v =
                        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from));
                    to.write_unaligned(std::mem::transmute::<__m512bh, __m512i>(v));
                } else {
                    to.write_unaligned(_mm512_setzero_si512());
                }
            }
        }
    }
}

/// Converts k in `k0..k1` of a packed strip to B tiles.
///
/// # Safety
/// As [`octavo_simd::generic::int16::panel`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    type S = Avx512;
    let mut out = out.cast::<__m512i>();
    // SAFETY: blocks k0 / K .. k1 / K are in the strip, and each group of 32 writes 16 rows of 64
    // bytes.
    unsafe {
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let block_scales = F::block_scales::<S>(block);
            for g in 0..F::K / 32 {
                let first =
                    F::scales::<S>(block_scales, block, if F::GROUP == 32 { g } else { 2 * g });
                half(F::codes::<S, 0>(block, g), first, F::OFFSET, out);
                let second = if F::GROUP == 32 {
                    first
                } else {
                    F::scales::<S>(block_scales, block, 2 * g + 1)
                };
                half(F::codes::<S, 1>(block, g), second, F::OFFSET, out.add(8));
                out = out.add(16);
            }
        }
    }
}

/// Converts a decoded panel, of a format without minima and with scales for every `group`, to B
/// tiles of `k` weights a row.
///
/// # Safety
/// As [`octavo_simd::generic::int16::panel_of_codes`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn panel_of_codes(
    from: *const Panel,
    k: usize,
    group: usize,
    offset: i32,
    out: *mut f32,
) {
    let mut out = out.cast::<__m512i>();
    // SAFETY: as `panel`.
    unsafe {
        let mut decoded = Decoded::<Avx512>::of(from);
        for _ in 0..k / group {
            let scale = (decoded.scale(), _mm512_setzero_ps());
            for _ in 0..group / 16 {
                half(decoded.codes(), scale, offset, out);
                out = out.add(8);
            }
        }
    }
}

/// Converts sixteen k of sixteen rows.
#[inline(always)]
unsafe fn half(
    codes: [__m512i; 4],
    (scale, min): (__m512, __m512),
    offset: i32,
    out: *mut __m512i,
) {
    // SAFETY: `out` has room for eight vectors by the caller's promise.
    unsafe {
        // a code written below the exponent of 256 is the float 256 + code. The multiply-add
        // subtracts the 256 again.
        let (mask, base) = (
            _mm512_set1_epi32(0x007f_8000),
            _mm512_set1_epi32(0x4380_0000),
        );
        let zero = _mm512_fnmadd_ps(
            scale,
            _mm512_set1_ps((256 + offset) as f32),
            _mm512_setzero_ps(),
        );
        let zero = _mm512_sub_ps(zero, min);
        // (shifted & mask) | base
        macro_rules! float {
            ($c:expr) => {
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32($c, mask, base, 0xea))
            };
        }
        for (j, c) in codes.into_iter().enumerate() {
            let w0 = _mm512_fmadd_ps(scale, float!(_mm512_slli_epi32(c, 15)), zero);
            let w1 = _mm512_fmadd_ps(scale, float!(_mm512_slli_epi32(c, 7)), zero);
            let w2 = _mm512_fmadd_ps(scale, float!(_mm512_srli_epi32(c, 1)), zero);
            let w3 = _mm512_fmadd_ps(scale, float!(_mm512_srli_epi32(c, 9)), zero);
            out.add(2 * j).write_unaligned(pair(w0, w1));
            out.add(2 * j + 1).write_unaligned(pair(w2, w3));
        }
    }
}

/// Multiplies `MS` strips by all tokens.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else; tiles are
/// configured.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn tiles_bf16<const MS: usize>(a: &Tiles<'_>) {
    // SAFETY: passed on.
    unsafe { multiply_panel::<MS, 1>(a, 1, &|_| ONE_PRODUCT) }
}

/// Multiplies `MS` strips by all tokens, 32 tokens at a time. Each 16 tokens' activations are
/// `parts` times the A tiles of all k, and so is a panel; `products` says which B tiles are
/// multiplied by which A tiles, from the bytes of a part of each.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else; tiles are
/// configured.
#[inline(always)]
pub(super) unsafe fn multiply_panel<const MS: usize, const N: usize>(
    a: &Tiles<'_>,
    parts: usize,
    products: &impl Fn((usize, usize)) -> [(usize, usize); N],
) {
    let steps = a.kc.div_ceil(K);
    let of_x = a.k.div_ceil(K) * TILE;
    let products = products((of_x, steps * TILE));
    let mut t = 0;
    while t < a.m {
        let left = (a.m - t).min(32);
        let blocks = left.div_ceil(TOKENS);
        // SAFETY: blocks of tokens and the sums are padded to 16 tokens, strips to 16 rows; sums
        // that do not fill their tiles go to the output through the scratch.
        unsafe {
            a.prefetch::<Avx512>(t, left);
            let x = TileRows {
                at: a
                    .x
                    .cast::<u8>()
                    .add(t / TOKENS * parts * of_x + a.k0 / K * TILE),
                stride: parts * of_x,
            };
            let panel = TileRows {
                at: a.panel.cast(),
                stride: parts * steps * TILE,
            };
            let sums = Sums {
                at: a.sums.add(t * MS * 16),
                stride: MS * 16,
            };
            let y = a.y.filter(|_| a.is_last()).map(|(y, n)| Sums {
                at: y.add(t * n),
                stride: n,
            });
            let whole = left == blocks * TOKENS && a.rows >= MS * 16;
            multiply(&TileBlock {
                blocks,
                strips: MS,
                x,
                panel,
                products: &products,
                steps,
                from: (a.k0 > 0).then_some(sums),
                to: y.filter(|_| whole).unwrap_or(sums),
            });
            if let Some(y) = y.filter(|_| !whole) {
                let rows = a.rows.min(MS * 16);
                for j in 0..left {
                    let (from, to) = (sums.at.add(j * sums.stride), y.at.add(j * y.stride));
                    std::ptr::copy_nonoverlapping(from, to, rows);
                }
            }
        }
        t += 32;
    }
}
