//! Eight f64: two registers of AVX2, or one of AVX-512.

use super::avx2::Avx2;
use super::avx512::Avx512;
use super::ops;
use crate::doubles::Doubles;
use std::arch::x86_64::*;

type Pair = [__m256d; 2];

impl<const VNNI: bool> Doubles for Avx2<VNNI> {
    type D = Pair;

    ops! {
        dset1(x: f64) -> Pair { [_mm256_set1_pd(x); 2] }
        dload(p: *const f64) -> Pair { [_mm256_loadu_pd(p), _mm256_loadu_pd(p.add(4))] }
        dwiden(p: *const f32) -> Pair {
            [
                _mm256_cvtps_pd(_mm_loadu_ps(p)),
                _mm256_cvtps_pd(_mm_loadu_ps(p.add(4))),
            ]
        }
        dstore(p: *mut f64, v: Pair) {
            _mm256_storeu_pd(p, v[0]);
            _mm256_storeu_pd(p.add(4), v[1]);
        }
        dadd(a: Pair, b: Pair) -> Pair {
            [_mm256_add_pd(a[0], b[0]), _mm256_add_pd(a[1], b[1])]
        }
        dsub(a: Pair, b: Pair) -> Pair {
            [_mm256_sub_pd(a[0], b[0]), _mm256_sub_pd(a[1], b[1])]
        }
        dmul(a: Pair, b: Pair) -> Pair {
            [_mm256_mul_pd(a[0], b[0]), _mm256_mul_pd(a[1], b[1])]
        }
        dmax(a: Pair, b: Pair) -> Pair {
            [_mm256_max_pd(a[0], b[0]), _mm256_max_pd(a[1], b[1])]
        }
        dexponent(v: Pair) -> Pair {
            [
                _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(v[0]))),
                _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(v[1]))),
            ]
        }
    }
}

impl Doubles for Avx512 {
    type D = __m512d;

    ops! {
        dset1(x: f64) -> __m512d { _mm512_set1_pd(x) }
        dload(p: *const f64) -> __m512d { _mm512_loadu_pd(p) }
        dwiden(p: *const f32) -> __m512d { _mm512_cvtps_pd(_mm256_loadu_ps(p)) }
        dstore(p: *mut f64, v: __m512d) { _mm512_storeu_pd(p, v) }
        dadd(a: __m512d, b: __m512d) -> __m512d { _mm512_add_pd(a, b) }
        dsub(a: __m512d, b: __m512d) -> __m512d { _mm512_sub_pd(a, b) }
        dmul(a: __m512d, b: __m512d) -> __m512d { _mm512_mul_pd(a, b) }
        dmax(a: __m512d, b: __m512d) -> __m512d { _mm512_max_pd(a, b) }
        dexponent(v: __m512d) -> __m512d {
            _mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_castpd_si512(v)))
        }
    }
}
