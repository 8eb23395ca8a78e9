//! AVX-512 with VNNI: sixteen lanes.

use super::{multiply_add_at_once, now, ops};
use crate::act::Act4;
use crate::prefetch::is_amd;
use crate::simd::{ByteDots, Halves, Simd};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx512;

/// Dot products with the two activation planes, kept apart until the group ends.
#[derive(Clone, Copy)]
pub struct Planes {
    high: __m512i,
    low: __m512i,
}

multiply_add_at_once!(__m512i, zmm_reg, "vpdpwssd", "avx512f", "avx512vnni");
now!(__m512i, zmm_reg, "avx512f");

impl Simd for Avx512 {
    const R: usize = 16;
    // of four rows, Q8_0 is an eighth faster than by a panel, and other types up to a twentieth; of
    // six and eight, most are up to a tenth slower
    const FEW_ROWS: u32 = 4;
    type F = __m512;
    type I = __m512i;
    type Acc = Planes;

    ops! {
        zero() -> __m512 { _mm512_setzero_ps() }
        set1(x: f32) -> __m512 { _mm512_set1_ps(x) }
        load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        store(p: *mut f32, v: __m512) { _mm512_storeu_ps(p, v) }
        load_f16(p: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        store_f16(p: *mut u16, v: __m512) {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
        }
        load_bf16(p: *const u16) -> __m512 {
            let h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32(h, 16))
        }
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        first(n: usize, a: __m512, b: __m512) -> __m512 {
            let mask = if n >= 16 { u16::MAX } else { (1u16 << n) - 1 };
            _mm512_mask_blend_ps(mask, b, a)
        }
        sum(v: __m512) -> f32 { _mm512_reduce_add_ps(v) }
        largest(v: __m512) -> f32 { _mm512_reduce_max_ps(v) }
        load_bytes(p: *const u8) -> __m512i { _mm512_loadu_si512(p.cast()) }
        store_bytes(p: *mut u8, v: __m512i) { _mm512_storeu_si512(p.cast(), v) }
        load_u8(p: *const u8) -> __m512i { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
        load_i8(p: *const u8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
        iset1(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        iadd(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        isub(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        sub16(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi16(a, b) }
        mul16(a: __m512i, b: __m512i) -> __m512i { _mm512_mullo_epi16(a, b) }
        mul16_high(a: __m512i, b: __m512i) -> __m512i { _mm512_mulhi_epu16(a, b) }
        and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        xor(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        gather(table: &[u32], index: __m512i) -> __m512i {
            _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast())
        }
        half_twice(a: __m512i, half: usize) -> __m512i {
            let bytes = if half == 0 { 0x0100_0100 } else { 0x0302_0302 };
            let lanes = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            let from = _mm_add_epi32(_mm_set1_epi32(bytes), lanes);
            _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(from))
        }
        lookup(a: __m512i, table: &[u8; 16]) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a)
        }
        reflect(a: __m512i, sum: u8, plane: __m512i, bit: u32) -> __m512i {
            let where_set = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(1 << bit));
            _mm512_mask_sub_epi8(a, where_set, _mm512_set1_epi8(sum as i8), a)
        }
        shr(a: __m512i, n: u32) -> __m512i { _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
        shl(a: __m512i, n: u32) -> __m512i { _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
        to_f(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        to_i(a: __m512) -> __m512i { _mm512_cvtps_epi32(a) }
        bits_f(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        acc_zero() -> Planes {
            Planes { high: _mm512_setzero_si512(), low: _mm512_setzero_si512() }
        }
        dot4(acc: Planes, codes: __m512i, x: *const Act4) -> Planes {
            let x = x.cast::<i32>();
            Planes {
                high: _mm512_dpbusd_epi32(acc.high, codes, _mm512_set1_epi32(x.read())),
                low: _mm512_dpbusd_epi32(acc.low, codes, _mm512_set1_epi32(x.add(1).read())),
            }
        }
        acc_now(acc: Planes) -> Planes { Planes { high: now(acc.high), low: now(acc.low) } }
        acc_sum(acc: Planes) -> __m512i {
            _mm512_add_epi32(_mm512_slli_epi32(acc.high, 8), acc.low)
        }
        dot2(acc: __m512i, w: __m512i, x: __m512i) -> __m512i { multiply_add_at_once(acc, w, x) }
        prefetch(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
        prefetch_far(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T1) }
    }

    #[inline(always)]
    unsafe fn transpose(words: *const u32, stride: usize, n: usize, to: *mut u8) {
        // SAFETY: 16 rows of 16 words, `n` columns or 16; the instruction set is the caller's
        // promise.
        unsafe {
            let row = |i: usize| _mm512_loadu_si512(words.add(i * stride).cast());
            let zero = _mm512_setzero_si512();
            // in quarters of vectors: pairs of columns of two rows, then columns of four rows
            let (mut twos, mut fours, mut columns) = ([zero; 16], [zero; 16], [zero; 16]);
            for i in 0..8 {
                let (a, b) = (row(2 * i), row(2 * i + 1));
                twos[2 * i] = _mm512_unpacklo_epi32(a, b);
                twos[2 * i + 1] = _mm512_unpackhi_epi32(a, b);
            }
            for i in 0..4 {
                for half in 0..2 {
                    let (a, b) = (twos[4 * i + half], twos[4 * i + 2 + half]);
                    fours[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
                    fours[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
                }
            }
            for c in 0..4 {
                let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
                let (even, more_even) = (
                    _mm512_shuffle_i32x4::<0x88>(a, b),
                    _mm512_shuffle_i32x4::<0x88>(d, e),
                );
                let (odd, more_odd) = (
                    _mm512_shuffle_i32x4::<0xdd>(a, b),
                    _mm512_shuffle_i32x4::<0xdd>(d, e),
                );
                columns[c] = _mm512_shuffle_i32x4::<0x88>(even, more_even);
                columns[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd, more_odd);
                columns[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even, more_even);
                columns[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd, more_odd);
            }
            for (c, column) in columns.into_iter().enumerate().take(n) {
                _mm512_storeu_si512(to.add(64 * c).cast(), column);
            }
        }
    }

    /// Permutes 64 entries at a time by the lowest six bits, and selects by the others.
    #[inline(always)]
    unsafe fn halves<const N: usize>(table: &Halves<N>, index: __m512i) -> __m512i {
        const { assert!(N.is_power_of_two() && N >= 64 && N <= 1024) };
        // SAFETY: loads of 64 entries each below N; the instruction set is the caller's promise.
        unsafe {
            let entries = table.entries.as_ptr();
            let mut found = [index; 16];
            let mut n = N / 64;
            for (i, found) in found[..n].iter_mut().enumerate() {
                let first = _mm512_loadu_si512(entries.add(64 * i).cast());
                let second = _mm512_loadu_si512(entries.add(64 * i + 32).cast());
                *found = _mm512_permutex2var_epi16(first, index, second);
            }
            let mut bit = 64;
            while n > 1 {
                let is_set = _mm512_test_epi16_mask(index, _mm512_set1_epi16(bit));
                n /= 2;
                for i in 0..n {
                    found[i] = _mm512_mask_blend_epi16(is_set, found[2 * i], found[2 * i + 1]);
                }
                bit *= 2;
            }
            found[0]
        }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::planes(x)
    }

    const WINOGRAD: bool = true;
    // AMD's CPUs have four vector units, two of which multiply; Intel's have two that do both
    fn prefers_winograd() -> bool {
        is_amd()
    }
}

impl ByteDots for Avx512 {
    const MAX_SUM: i32 = i32::MAX;
    type Narrow = __m512i;

    ops! {
        begin(so_far: __m512i) -> __m512i { so_far }
        dot_bytes(sums: __m512i, codes: __m512i, x: *const i32) -> __m512i {
            _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x.read_unaligned()))
        }
        end(_so_far: __m512i, sums: __m512i) -> __m512i { sums }
    }
}
