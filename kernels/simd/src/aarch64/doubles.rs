//! Eight f64: four registers of NEON.

use super::neon::Neon;
use crate::doubles::Doubles;
use crate::simd::ops;
use std::arch::aarch64::*;

type Four = [float64x2_t; 4];

/// Shifts the lowest 12 bits of both lanes to the top.
#[inline(always)]
unsafe fn exponent(v: float64x2_t) -> float64x2_t {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { vreinterpretq_f64_u64(vshlq_n_u64::<52>(vreinterpretq_u64_f64(v))) }
}

/// Applies an operation to each register.
macro_rules! each {
    ($operation:ident($($v:ident),+)) => {
        [
            $operation($($v[0]),+),
            $operation($($v[1]),+),
            $operation($($v[2]),+),
            $operation($($v[3]),+),
        ]
    };
}

impl<D: Copy> Doubles for Neon<D> {
    type D = Four;

    ops! {
        dset1(x: f64) -> Four { [vdupq_n_f64(x); 4] }
        dload(p: *const f64) -> Four {
            [
                vld1q_f64(p),
                vld1q_f64(p.add(2)),
                vld1q_f64(p.add(4)),
                vld1q_f64(p.add(6)),
            ]
        }
        dwiden(p: *const f32) -> Four {
            [
                vcvt_f64_f32(vld1_f32(p)),
                vcvt_f64_f32(vld1_f32(p.add(2))),
                vcvt_f64_f32(vld1_f32(p.add(4))),
                vcvt_f64_f32(vld1_f32(p.add(6))),
            ]
        }
        dstore(p: *mut f64, v: Four) {
            vst1q_f64(p, v[0]);
            vst1q_f64(p.add(2), v[1]);
            vst1q_f64(p.add(4), v[2]);
            vst1q_f64(p.add(6), v[3]);
        }
        dadd(a: Four, b: Four) -> Four { each!(vaddq_f64(a, b)) }
        dsub(a: Four, b: Four) -> Four { each!(vsubq_f64(a, b)) }
        dmul(a: Four, b: Four) -> Four { each!(vmulq_f64(a, b)) }
        dmax(a: Four, b: Four) -> Four { each!(vmaxq_f64(a, b)) }
        dexponent(v: Four) -> Four { each!(exponent(v)) }
    }
}
