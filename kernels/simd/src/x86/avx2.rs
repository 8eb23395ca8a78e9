//! AVX2 + FMA + F16C: eight lanes; with AVX-VNNI, one instruction multiplies and adds 16-bit
//! products.

use super::{multiply_add_at_once, now, ops};
use crate::act::Act4;
use crate::simd::{ByteDots, Halves, Simd};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx2<const VNNI: bool>;

/// Lane numbers, to build masks from.
static LANES: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

multiply_add_at_once!(__m256i, ymm_reg, "{{vex}} vpdpwssd", "avxvnni");

/// Adds both products of every lane's 16-bit halves.
#[inline(always)]
unsafe fn multiply_add<const VNNI: bool>(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: no pointers; the instruction set is the caller's promise, AVX-VNNI too where `VNNI`
    // says so.
    unsafe {
        if VNNI {
            multiply_add_at_once(acc, a, b)
        } else {
            _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
        }
    }
}

now!(__m256i, ymm_reg, "avx2");

/// Loads two activations for every lane, twice.
#[inline(always)]
unsafe fn halves(x: *const Act4) -> [__m256i; 2] {
    let x = x.cast::<i32>();
    // SAFETY: the caller's pointer; the instruction set is the caller's promise.
    unsafe {
        [
            _mm256_set1_epi32(x.read()),
            _mm256_set1_epi32(x.add(1).read()),
        ]
    }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const R: usize = 8;
    const SPREAD: usize = 2;
    // a quarter faster than by a panel at 4 rows, on a Zen 3, and an eighth at 8
    const FEW_ROWS: u32 = 8;
    type F = __m256;
    type I = __m256i;
    type Acc = [__m256i; 2];

    ops! {
        zero() -> __m256 { _mm256_setzero_ps() }
        set1(x: f32) -> __m256 { _mm256_set1_ps(x) }
        load(p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
        store(p: *mut f32, v: __m256) { _mm256_storeu_ps(p, v) }
        load_f16(p: *const u16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        store_f16(p: *mut u16, v: __m256) {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
        }
        load_bf16(p: *const u16) -> __m256 {
            let h = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(h, 16))
        }
        add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        first(n: usize, a: __m256, b: __m256) -> __m256 {
            let lanes = _mm256_loadu_si256(LANES.as_ptr().cast());
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes);
            _mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask))
        }
        sum(v: __m256) -> f32 {
            let s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
            let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
        }
        largest(v: __m256) -> f32 {
            let s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
            let s = _mm_max_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)))
        }
        load_bytes(p: *const u8) -> __m256i { _mm256_loadu_si256(p.cast()) }
        store_bytes(p: *mut u8, v: __m256i) { _mm256_storeu_si256(p.cast(), v) }
        load_u8(p: *const u8) -> __m256i { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
        load_i8(p: *const u8) -> __m256i { _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())) }
        iset1(x: i32) -> __m256i { _mm256_set1_epi32(x) }
        iadd(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        isub(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
        sub16(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi16(a, b) }
        mul16(a: __m256i, b: __m256i) -> __m256i { _mm256_mullo_epi16(a, b) }
        mul16_high(a: __m256i, b: __m256i) -> __m256i { _mm256_mulhi_epu16(a, b) }
        and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        xor(a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        gather(table: &[u32], index: __m256i) -> __m256i {
            _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index)
        }
        half_twice(a: __m256i, half: usize) -> __m256i {
            let bytes = if half == 0 { 0x0100_0100 } else { 0x0302_0302 };
            let lanes = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            let from = _mm_add_epi32(_mm_set1_epi32(bytes), lanes);
            _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(from))
        }
        lookup(a: __m256i, table: &[u8; 16]) -> __m256i {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), a)
        }
        reflect(a: __m256i, sum: u8, plane: __m256i, bit: u32) -> __m256i {
            let bit = _mm256_set1_epi8(1 << bit);
            let where_set = _mm256_cmpeq_epi8(_mm256_and_si256(plane, bit), bit);
            let other = _mm256_sub_epi8(_mm256_set1_epi8(sum as i8), a);
            _mm256_blendv_epi8(a, other, where_set)
        }
        shr(a: __m256i, n: u32) -> __m256i { _mm256_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
        shl(a: __m256i, n: u32) -> __m256i { _mm256_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
        to_f(a: __m256i) -> __m256 { _mm256_cvtepi32_ps(a) }
        to_i(a: __m256) -> __m256i { _mm256_cvtps_epi32(a) }
        bits_f(a: __m256i) -> __m256 { _mm256_castsi256_ps(a) }
        acc_zero() -> [__m256i; 2] { [_mm256_setzero_si256(); 2] }
        // 16-bit multiply-adds hold any 8-bit code times any 16-bit activation; `maddubs` would
        // saturate from 7 bits on
        dot4(acc: [__m256i; 2], codes: __m256i, x: *const Act4) -> [__m256i; 2] {
            let codes = Self::spread(codes);
            if !VNNI {
                return Self::dot_spread(acc, codes, x);
            }
            // each multiply-add waits for the one before it in its sum, four times as long as an
            // addition takes: hence two sums
            let [x0, x1] = halves(x);
            [multiply_add::<true>(acc[0], codes[0], x0), multiply_add::<true>(acc[1], codes[1], x1)]
        }
        spread(codes: __m256i) -> [__m256i; 2] {
            [_mm256_and_si256(codes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(codes, 8)]
        }
        // many rows have enough independent sums, and need the registers
        dot_spread(acc: [__m256i; 2], codes: [__m256i; 2], x: *const Act4) -> [__m256i; 2] {
            let [x0, x1] = halves(x);
            let first = multiply_add::<VNNI>(acc[0], codes[0], x0);
            [multiply_add::<VNNI>(first, codes[1], x1), acc[1]]
        }
        acc_now(acc: [__m256i; 2]) -> [__m256i; 2] { [now(acc[0]), acc[1]] }
        acc_sum(acc: [__m256i; 2]) -> __m256i { _mm256_add_epi32(acc[0], acc[1]) }
        dot2(acc: __m256i, w: __m256i, x: __m256i) -> __m256i { multiply_add::<VNNI>(acc, w, x) }
        prefetch(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
        prefetch_far(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T1) }
    }

    #[inline(always)]
    unsafe fn transpose(words: *const u32, stride: usize, n: usize, to: *mut u8) {
        // SAFETY: 8 rows of 8 words, `n` columns or 8; the instruction set is the caller's promise.
        unsafe {
            let row = |i: usize| _mm256_loadu_si256(words.add(i * stride).cast());
            let zero = _mm256_setzero_si256();
            // in halves of vectors: pairs of columns of two rows, then columns of four rows
            let (mut twos, mut fours) = ([zero; 8], [zero; 8]);
            for i in 0..4 {
                let (a, b) = (row(2 * i), row(2 * i + 1));
                twos[2 * i] = _mm256_unpacklo_epi32(a, b);
                twos[2 * i + 1] = _mm256_unpackhi_epi32(a, b);
            }
            for i in 0..2 {
                for half in 0..2 {
                    let (a, b) = (twos[4 * i + half], twos[4 * i + 2 + half]);
                    fours[4 * i + 2 * half] = _mm256_unpacklo_epi64(a, b);
                    fours[4 * i + 2 * half + 1] = _mm256_unpackhi_epi64(a, b);
                }
            }
            for c in 0..n.min(8) {
                let (a, b) = (fours[c % 4], fours[4 + c % 4]);
                let column = match c < 4 {
                    true => _mm256_permute2x128_si256::<0x20>(a, b),
                    false => _mm256_permute2x128_si256::<0x31>(a, b),
                };
                _mm256_storeu_si256(to.add(32 * c).cast(), column);
            }
        }
    }

    #[inline(always)]
    unsafe fn halves<const N: usize>(table: &Halves<N>, index: __m256i) -> __m256i {
        let entries = table.entries.as_ptr().cast();
        let low = 0xffff;
        // SAFETY: a word of every lane is read from an entry below N on, which another half word
        // follows; the instruction set is the caller's promise.
        unsafe {
            let first = _mm256_and_si256(index, _mm256_set1_epi32(low));
            let first = _mm256_i32gather_epi32::<2>(entries, first);
            let second = _mm256_i32gather_epi32::<2>(entries, _mm256_srli_epi32::<16>(index));
            let first = _mm256_and_si256(first, _mm256_set1_epi32(low));
            _mm256_or_si256(first, _mm256_slli_epi32::<16>(second))
        }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::even_odd(x)
    }
}

impl<const VNNI: bool> ByteDots for Avx2<VNNI> {
    // without VNNI pairs are added in 16 bits, where `maddubs` would saturate
    const MAX_SUM: i32 = if VNNI { i32::MAX } else { i16::MAX as i32 };
    type Narrow = __m256i;

    ops! {
        begin(so_far: __m256i) -> __m256i {
            if VNNI { so_far } else { _mm256_setzero_si256() }
        }
        dot_bytes(sums: __m256i, codes: __m256i, x: *const i32) -> __m256i {
            let x = _mm256_set1_epi32(x.read_unaligned());
            if VNNI {
                _mm256_dpbusd_avx_epi32(sums, codes, x)
            } else {
                _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x))
            }
        }
        end(so_far: __m256i, sums: __m256i) -> __m256i {
            if VNNI {
                sums
            } else {
                _mm256_add_epi32(so_far, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)))
            }
        }
    }
}
