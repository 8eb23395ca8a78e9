//! Products of prompts with float weights, as exact as in f32.
//!
//! A float is the sum of three bf16, each of what those before it leave; an f16 is the sum of two,
//! and a bf16 is one. Products of two bf16 are exact in f32, in which the unit adds them up. Those
//! of the last parts, below 2^-23 of the whole product, are left out. This is known as bf16x3
//! (Henry, Tang and Heinecke, 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For
//! Higher-Precision Computations"). Infinities give NaN.
//!
//! ```text
//! panel   per strip: [part][32 k][16 pairs of k][16 rows][2]
//! tile    per 16 tokens: [part][32 k][16 tokens][32]
//! ```

use super::products::{TOKENS, multiply_panel};
use super::tile::{K, TILE};
use octavo_simd::act::{Form, Tiled};
use octavo_simd::formats::Float;
use octavo_simd::generic::gemm::{KC, Tiles};
use octavo_simd::simd::Simd;
use octavo_simd::table::{ActivationForm, PromptKernels};
use octavo_simd::x86::avx512::Avx512;
use std::arch::x86_64::*;

/// Parts of an activation, and of a weight at most.
const PARTS: usize = 3;

/// Activations in A tiles. The slice is half of that of other forms, so that the parts of two
/// strips and of 32 tokens are as many bytes.
static BF16X3_TILES: ActivationForm = ActivationForm {
    form: Form::Tiles(Tiled::Bf16x3),
    tile: TOKENS,
    slice: KC / 2,
    granule: K,
    bytes: 2 * PARTS,
    narrow: false,
    pack,
};

/// The prompt kernels of a float type.
pub(super) const fn kernels<E: Float>() -> PromptKernels {
    PromptKernels {
        activations: &BF16X3_TILES,
        panel: panel::<E>,
        tiles: match E::BITS.div_ceil(8) {
            1 => [tiles::<1, 3>, tiles::<2, 3>],
            2 => [tiles::<1, 5>, tiles::<2, 5>],
            3 => [tiles::<1, 6>, tiles::<2, 6>],
            _ => panic!("a float of more than three parts"),
        },
        offset: 0,
    }
}

/// Parts of weights and of activations that are multiplied, the smallest products first. Weights
/// of one part have the last three products, those of two the last five.
const PRODUCTS: [(usize, usize); 6] = [(2, 0), (1, 1), (1, 0), (0, 2), (0, 1), (0, 0)];

/// Splits tokens `t..t + 16` of `x` (`[m][k]`) into parts in A tiles, zeros where there is no
/// token and no k.
///
/// # Safety
/// `x` is `m * k` floats; `tile` has room for three bf16 for each of 16 tokens and k, a multiple of
/// 32; AVX-512 with bf16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
unsafe fn pack(x: *const f32, m: usize, k: usize, t: usize, _: usize, tile: *mut f32) {
    let steps = k.div_ceil(K);
    for j in 0..TOKENS {
        for i in 0..steps {
            let there = if t + j < m { k - i * K } else { 0 };
            // SAFETY: lanes of tokens and k that are there are read; tile i of `steps` has 16 rows
            // of 64 bytes in each part.
            unsafe {
                let from = x.wrapping_add((t + j) * k + i * K);
                let first = _mm512_maskz_loadu_ps(lanes(there), from);
                let second =
                    _mm512_maskz_loadu_ps(lanes(there.saturating_sub(16)), from.wrapping_add(16));
                let mut rest = (first, second);
                for part in 0..PARTS {
                    let to = tile.cast::<u8>().add((part * steps + i) * TILE + j * 64);
                    let rounded = _mm512_cvtne2ps_pbh(rest.1, rest.0);
                    let rounded = std::mem::transmute::<__m512bh, __m512i>(rounded);
                    to.cast::<__m512i>().write_unaligned(rounded);
                    rest.0 = subtract(rest.0, _mm512_castsi512_si256(rounded));
                    rest.1 = subtract(rest.1, _mm512_extracti64x4_epi64::<1>(rounded));
                }
            }
        }
    }
}

/// The first `n` lanes of sixteen.
#[inline(always)]
fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { 0xffff } else { (1 << n) - 1 }
}

/// Subtracts sixteen bf16.
#[inline(always)]
unsafe fn subtract(x: __m512, rounded: __m256i) -> __m512 {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let rounded = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(rounded));
        _mm512_sub_ps(x, _mm512_castsi512_ps(rounded))
    }
}

/// Splits k in `k0..k1` of a packed strip of floats into parts in B tiles.
///
/// # Safety
/// `strip` holds the weights up to `k1`; `out` has room for three bf16 for each of 16 rows and k, a
/// multiple of 32.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
unsafe fn panel<E: Float>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let steps = (k1 - k0).div_ceil(K);
    for pair in 0..steps * K / 2 {
        // SAFETY: only k that are there are read; a part has `steps` tiles of 16 rows of 64 bytes.
        unsafe {
            let weights = |k: usize| {
                if k < k1 {
                    E::load::<Avx512>(strip.add(k * E::BYTES * Avx512::R))
                } else {
                    _mm512_setzero_ps()
                }
            };
            let (mut even, mut odd) = (weights(k0 + 2 * pair), weights(k0 + 2 * pair + 1));
            for part in 0..E::BITS.div_ceil(8) {
                let to = out.cast::<u8>().add(part * steps * TILE + pair * 64);
                // the upper halves: the first eight bits of each
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                let of_even = _mm512_and_si512(_mm512_castps_si512(even), upper);
                let of_odd = _mm512_and_si512(_mm512_castps_si512(odd), upper);
                let both = _mm512_or_si512(_mm512_srli_epi32::<16>(of_even), of_odd);
                to.cast::<__m512i>().write_unaligned(both);
                even = _mm512_sub_ps(even, _mm512_castsi512_ps(of_even));
                odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(of_odd));
            }
        }
    }
}

/// Multiplies `MS` strips by all tokens, by the last `N` of [`PRODUCTS`].
///
/// # Safety
/// As [`multiply_panel`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
unsafe fn tiles<const MS: usize, const N: usize>(a: &Tiles<'_>) {
    let products = |(of_x, of_panel): (usize, usize)| {
        std::array::from_fn::<_, N, _>(|i| {
            let (weight, activation) = PRODUCTS[PRODUCTS.len() - N + i];
            (activation * of_x, weight * of_panel)
        })
    };
    // SAFETY: passed on.
    unsafe { multiply_panel::<MS, N>(a, PARTS, &products) }
}
