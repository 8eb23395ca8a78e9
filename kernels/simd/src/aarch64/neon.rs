//! NEON: eight lanes in two registers, with three ways to multiply codes by activations.
//!
//! Eight and not four: the strips are those of AVX2, and a tile of two strips keeps the loads of
//! activations few. Everything but the integer dot product is plain Armv8-A. Intrinsics for `sdot`
//! and `usdot` are not stable yet (Rust 1.95), so they are one line of assembly each.

use crate::act::Act4;
use crate::simd::{Simd, ops};
use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

/// NEON with the integer dot product `D`.
#[derive(Clone, Copy)]
pub struct Neon<D>(PhantomData<D>);

type F = [float32x4_t; 2];
type I = [int32x4_t; 2];

/// The part of [`Simd`] in which Arm's instruction sets differ: see there.
#[allow(clippy::missing_safety_doc)] // the contract at the head of simd.rs
pub trait Dot: Copy {
    const SIGNED: bool = false;
    type Acc: Copy;
    unsafe fn acc_zero() -> Self::Acc;
    unsafe fn dot4(acc: Self::Acc, codes: I, x: *const Act4) -> Self::Acc;
    unsafe fn dot4_i8(acc: Self::Acc, codes: I, x: *const Act4) -> Self::Acc;
    unsafe fn acc_sum(acc: Self::Acc) -> I;
    fn act4(x: [i16; 4]) -> Act4;
}

/// Lane numbers, to build masks from.
static LANES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

impl<D: Dot> Simd for Neon<D> {
    const R: usize = 8;
    const SIGNED: bool = D::SIGNED;
    const TWO_AT_ONCE: bool = false;
    type F = F;
    type I = I;
    type Acc = D::Acc;

    ops! {
        zero() -> F { [vdupq_n_f32(0.0); 2] }
        set1(x: f32) -> F { [vdupq_n_f32(x); 2] }
        load(p: *const f32) -> F { [vld1q_f32(p), vld1q_f32(p.add(4))] }
        store(p: *mut f32, v: F) {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
        load_f16(p: *const u16) -> F {
            [
                vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))),
                vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4)))),
            ]
        }
        store_f16(p: *mut u16, v: F) {
            vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v[0])));
            vst1_u16(p.add(4), vreinterpret_u16_f16(vcvt_f16_f32(v[1])));
        }
        load_bf16(p: *const u16) -> F {
            let h = vld1q_u16(p);
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(h)))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_high_u16(h))),
            ]
        }
        add(a: F, b: F) -> F { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
        sub(a: F, b: F) -> F { [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])] }
        mul(a: F, b: F) -> F { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
        div(a: F, b: F) -> F { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] }
        fma(a: F, b: F, c: F) -> F { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
        min(a: F, b: F) -> F { [vminq_f32(a[0], b[0]), vminq_f32(a[1], b[1])] }
        max(a: F, b: F) -> F { [vmaxq_f32(a[0], b[0]), vmaxq_f32(a[1], b[1])] }
        first(n: usize, a: F, b: F) -> F {
            let n = vdupq_n_u32(n as u32);
            let (low, high) = (vld1q_u32(LANES.as_ptr()), vld1q_u32(LANES.as_ptr().add(4)));
            [vbslq_f32(vcltq_u32(low, n), a[0], b[0]), vbslq_f32(vcltq_u32(high, n), a[1], b[1])]
        }
        // pairwise by name: a reduction may be reordered by the compiler
        sum(v: F) -> f32 {
            let s = vaddq_f32(v[0], v[1]);
            vpadds_f32(vget_low_f32(vpaddq_f32(s, s)))
        }
        largest(v: F) -> f32 { vmaxvq_f32(vmaxq_f32(v[0], v[1])) }
        load_bytes(p: *const u8) -> I {
            [vreinterpretq_s32_u8(vld1q_u8(p)), vreinterpretq_s32_u8(vld1q_u8(p.add(16)))]
        }
        store_bytes(p: *mut u8, v: I) {
            vst1q_u8(p, vreinterpretq_u8_s32(v[0]));
            vst1q_u8(p.add(16), vreinterpretq_u8_s32(v[1]));
        }
        load_u8(p: *const u8) -> I {
            let h = vmovl_u8(vld1_u8(p));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h))),
                vreinterpretq_s32_u32(vmovl_high_u16(h)),
            ]
        }
        load_i8(p: *const u8) -> I {
            let h = vmovl_s8(vld1_s8(p.cast()));
            [vmovl_s16(vget_low_s16(h)), vmovl_high_s16(h)]
        }
        iset1(x: i32) -> I { [vdupq_n_s32(x); 2] }
        iadd(a: I, b: I) -> I { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
        isub(a: I, b: I) -> I { [vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])] }
        sub16(a: I, b: I) -> I {
            [0, 1].map(#[inline(always)] |i| {
                vreinterpretq_s32_s16(vsubq_s16(
                    vreinterpretq_s16_s32(a[i]),
                    vreinterpretq_s16_s32(b[i]),
                ))
            })
        }
        mul16(a: I, b: I) -> I {
            [0, 1].map(#[inline(always)] |i| {
                vreinterpretq_s32_u16(vmulq_u16(
                    vreinterpretq_u16_s32(a[i]),
                    vreinterpretq_u16_s32(b[i]),
                ))
            })
        }
        mul16_high(a: I, b: I) -> I {
            [0, 1].map(#[inline(always)] |i| {
                let (a, b) = (vreinterpretq_u16_s32(a[i]), vreinterpretq_u16_s32(b[i]));
                let low = vshrn_n_u32::<16>(vmull_u16(vget_low_u16(a), vget_low_u16(b)));
                vreinterpretq_s32_u16(vshrn_high_n_u32::<16>(low, vmull_high_u16(a, b)))
            })
        }
        and(a: I, b: I) -> I { [vandq_s32(a[0], b[0]), vandq_s32(a[1], b[1])] }
        or(a: I, b: I) -> I { [vorrq_s32(a[0], b[0]), vorrq_s32(a[1], b[1])] }
        xor(a: I, b: I) -> I { [veorq_s32(a[0], b[0]), veorq_s32(a[1], b[1])] }
        gather(table: &[u32], index: I) -> I {
            let mut lanes = [0u32; 8];
            Self::store_bytes(lanes.as_mut_ptr().cast(), index);
            for lane in &mut lanes {
                *lane = *table.get_unchecked(*lane as usize);
            }
            Self::load_bytes(lanes.as_ptr().cast())
        }
        lookup(a: I, table: &[u8; 16]) -> I {
            let table = vld1q_u8(table.as_ptr());
            a.map(
                #[inline(always)]
                |a| vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(a))),
            )
        }
        reflect(a: I, sum: u8, plane: I, bit: u32) -> I {
            [0, 1].map(#[inline(always)] |i| {
                let codes = vreinterpretq_u8_s32(a[i]);
                let where_set = vtstq_u8(vreinterpretq_u8_s32(plane[i]), vdupq_n_u8(1 << bit));
                let other = vsubq_u8(vdupq_n_u8(sum), codes);
                vreinterpretq_s32_u8(vbslq_u8(where_set, other, codes))
            })
        }
        shr(a: I, n: u32) -> I {
            let n = vdupq_n_s32(-(n as i32));
            a.map(
                #[inline(always)]
                |a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), n)),
            )
        }
        shl(a: I, n: u32) -> I {
            let n = vdupq_n_s32(n as i32);
            [vshlq_s32(a[0], n), vshlq_s32(a[1], n)]
        }
        to_f(a: I) -> F { [vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])] }
        to_i(a: F) -> I { [vcvtnq_s32_f32(a[0]), vcvtnq_s32_f32(a[1])] }
        bits_f(a: I) -> F { [vreinterpretq_f32_s32(a[0]), vreinterpretq_f32_s32(a[1])] }
        acc_zero() -> D::Acc { D::acc_zero() }
        dot4(acc: D::Acc, codes: I, x: *const Act4) -> D::Acc { D::dot4(acc, codes, x) }
        dot4_i8(acc: D::Acc, codes: I, x: *const Act4) -> D::Acc { D::dot4_i8(acc, codes, x) }
        acc_sum(acc: D::Acc) -> I { D::acc_sum(acc) }
        dot2(acc: I, w: I, x: I) -> I {
            let halves = |v: int32x4_t| [vmovn_s32(v), vshrn_n_s32::<16>(v)];
            std::array::from_fn(|i| {
                let ([w0, w1], [x0, x1]) = (halves(w[i]), halves(x[i]));
                vmlal_s16(vmlal_s16(acc[i], w0, x0), w1, x1)
            })
        }
        // halves of lanes are unpacked once for all tokens: the compiler sees that the result is
        // the same for each
        dot2_same(acc: I, w: I, x: *const i32) -> I {
            let x = vreinterpret_s16_s32(vdup_n_s32(x.read_unaligned()));
            let (low, high) = (vreinterpretq_s16_s32(w[0]), vreinterpretq_s16_s32(w[1]));
            let (first, second) = (vuzp1q_s16(low, high), vuzp2q_s16(low, high));
            [
                vmlal_lane_s16::<1>(
                    vmlal_lane_s16::<0>(acc[0], vget_low_s16(first), x),
                    vget_low_s16(second),
                    x,
                ),
                vmlal_high_lane_s16::<1>(vmlal_high_lane_s16::<0>(acc[1], first, x), second, x),
            ]
        }
        prefetch(p: *const u8) {
            // an address, not a pointer: nothing is read
            asm!("prfm pldl1keep, [{}]", in(reg) p.addr(), options(nomem, nostack, preserves_flags))
        }
        prefetch_far(p: *const u8) {
            asm!("prfm pldl2keep, [{}]", in(reg) p.addr(), options(nomem, nostack, preserves_flags))
        }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        D::act4(x)
    }
}

/// Plain Armv8-A: codes widened to 16 bits, multiplied into 32. Exact for any code and activation.
#[derive(Clone, Copy)]
pub struct Widening;

impl Dot for Widening {
    /// A register for every row: its four codes keep their places until the group ends.
    type Acc = [int32x4_t; 8];

    ops! {
        acc_zero() -> [int32x4_t; 8] { [vdupq_n_s32(0); 8] }
        dot4(acc: [int32x4_t; 8], codes: I, x: *const Act4) -> [int32x4_t; 8] {
            // by hand, or the compiler sees equal halves and moves every upper half of codes down
            // instead of using `smlal2`
            let halves: int16x8_t;
            asm!("ld1r {{{:v}.2d}}, [{}]", out(vreg) halves, in(reg) x,
                options(pure, readonly, nostack, preserves_flags));
            let (x, xx) = (vget_low_s16(halves), halves);
            let (a, b) = (vreinterpretq_u8_s32(codes[0]), vreinterpretq_u8_s32(codes[1]));
            let r01 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(a)));
            let r23 = vreinterpretq_s16_u16(vmovl_high_u8(a));
            let r45 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b)));
            let r67 = vreinterpretq_s16_u16(vmovl_high_u8(b));
            [
                vmlal_s16(acc[0], vget_low_s16(r01), x),
                vmlal_high_s16(acc[1], r01, xx),
                vmlal_s16(acc[2], vget_low_s16(r23), x),
                vmlal_high_s16(acc[3], r23, xx),
                vmlal_s16(acc[4], vget_low_s16(r45), x),
                vmlal_high_s16(acc[5], r45, xx),
                vmlal_s16(acc[6], vget_low_s16(r67), x),
                vmlal_high_s16(acc[7], r67, xx),
            ]
        }
        dot4_i8(acc: [int32x4_t; 8], codes: I, x: *const Act4) -> [int32x4_t; 8] {
            Self::dot4(acc, codes, x)
        }
        acc_sum(a: [int32x4_t; 8]) -> I {
            [
                vpaddq_s32(vpaddq_s32(a[0], a[1]), vpaddq_s32(a[2], a[3])),
                vpaddq_s32(vpaddq_s32(a[4], a[5]), vpaddq_s32(a[6], a[7])),
            ]
        }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::from_i16(x)
    }
}

/// Dot products with the two activation planes, kept apart until the group ends.
#[derive(Clone, Copy)]
pub struct Planes {
    high: I,
    low: I,
    /// Sums of the activations' planes, high and low, to correct for codes that were made signed.
    sums: int32x2_t,
}

impl Planes {
    ops! {
        zero() -> Planes {
            Planes {
                high: [vdupq_n_s32(0); 2],
                low: [vdupq_n_s32(0); 2],
                sums: vdup_n_s32(0),
            }
        }
        join(p: Planes) -> I {
            let [a, b] = p.high;
            [vaddq_s32(vshlq_n_s32::<8>(a), p.low[0]), vaddq_s32(vshlq_n_s32::<8>(b), p.low[1])]
        }
    }
}

/// `sdot`: signed bytes times signed bytes. Codes of eight bits do not fit, so 128 is subtracted
/// from them, and 128 times the sum of the activations added back at the end of the group; smaller
/// codes are signed bytes as they are.
#[derive(Clone, Copy)]
pub struct SignedDot;

impl Dot for SignedDot {
    const SIGNED: bool = true;
    type Acc = Planes;

    ops! {
        acc_zero() -> Planes { Planes::zero() }
        dot4(acc: Planes, codes: I, x: *const Act4) -> Planes {
            let flip = vdupq_n_s32(0x8080_8080_u32 as i32);
            let codes = [veorq_s32(codes[0], flip), veorq_s32(codes[1], flip)];
            let acc = Self::dot4_i8(acc, codes, x);
            Planes { sums: sdot_ones(acc.sums, vld1_s8(x.cast())), ..acc }
        }
        dot4_i8(acc: Planes, codes: I, x: *const Act4) -> Planes {
            let x = vld1_s8(x.cast());
            Planes {
                high: [sdot::<0>(acc.high[0], codes[0], x), sdot::<0>(acc.high[1], codes[1], x)],
                low: [sdot::<1>(acc.low[0], codes[0], x), sdot::<1>(acc.low[1], codes[1], x)],
                ..acc
            }
        }
        acc_sum(acc: Planes) -> I {
            let back = (vget_lane_s32::<0>(acc.sums) * 256 + vget_lane_s32::<1>(acc.sums)) * 128;
            let [a, b] = Planes::join(acc);
            [vaddq_s32(a, vdupq_n_s32(back)), vaddq_s32(b, vdupq_n_s32(back))]
        }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::planes(x)
    }
}

/// `usdot`: unsigned bytes times signed bytes, the types of codes and planes.
#[derive(Clone, Copy)]
pub struct MixedDot;

impl Dot for MixedDot {
    type Acc = Planes;

    ops! {
        acc_zero() -> Planes { Planes::zero() }
        dot4(acc: Planes, codes: I, x: *const Act4) -> Planes {
            let x = vld1_s8(x.cast());
            Planes {
                high: [usdot::<0>(acc.high[0], codes[0], x), usdot::<0>(acc.high[1], codes[1], x)],
                low: [usdot::<1>(acc.low[0], codes[0], x), usdot::<1>(acc.low[1], codes[1], x)],
                ..acc
            }
        }
        dot4_i8(acc: Planes, codes: I, x: *const Act4) -> Planes { Self::dot4(acc, codes, x) }
        acc_sum(acc: Planes) -> I { Planes::join(acc) }
    }

    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::planes(x)
    }
}

/// Functions as std's intrinsics are: inlined into callers that have the feature.
macro_rules! dot_instruction {
    ($name:ident, $feature:literal) => {
        /// Adds to every lane the dot product of its four bytes with bytes `4 PLANE .. 4 PLANE + 4`
        /// of `x`.
        ///
        /// # Safety
        /// The CPU has the target feature.
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn $name<const PLANE: u32>(
            mut acc: int32x4_t,
            codes: int32x4_t,
            x: int8x8_t,
        ) -> int32x4_t {
            // SAFETY: one arithmetic instruction of the feature that this function requires; no
            // memory.
            unsafe {
                asm!(
                    concat!(stringify!($name), " {acc:v}.4s, {codes:v}.16b, {x:v}.4b[{plane}]"),
                    acc = inout(vreg) acc,
                    codes = in(vreg) codes,
                    x = in(vreg) x,
                    plane = const PLANE,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            acc
        }
    };
}
dot_instruction!(sdot, "neon,dotprod");
dot_instruction!(usdot, "neon,i8mm");

/// Adds the sums of the first and of the last four bytes.
///
/// # Safety
/// The CPU has `dotprod`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot_ones(mut acc: int32x2_t, x: int8x8_t) -> int32x2_t {
    // SAFETY: as above.
    unsafe {
        asm!(
            "sdot {acc:v}.2s, {x:v}.8b, {ones:v}.8b",
            acc = inout(vreg) acc,
            x = in(vreg) x,
            ones = in(vreg) vdup_n_s8(1),
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(v: I) -> [i32; 8] {
        // SAFETY: both are 32 plain bytes.
        unsafe { std::mem::transmute::<I, [i32; 8]>(v) }
    }

    /// Eight times the same dot product of the most extreme codes and activations.
    fn extremes<D: Dot>(largest: u8, small: bool) {
        for x in [
            [32_639, -32_639, 127, -128],
            [-32_639; 4],
            [32_639; 4],
            [128, -129, 255, -1],
        ] {
            for codes in [[largest; 4], [0, largest, largest / 2, 1]] {
                let x4 = D::act4(x);
                // SAFETY: NEON is everywhere, the caller checked for what `D` adds; `x4` is one
                // `Act4`.
                let got = unsafe {
                    let c = [vdupq_n_s32(i32::from_le_bytes(codes)); 2];
                    let dot = if small { D::dot4_i8 } else { D::dot4 };
                    lanes(D::acc_sum(
                        (0..8).fold(D::acc_zero(), |acc, _| dot(acc, c, &x4)),
                    ))
                };
                let once: i32 = codes
                    .iter()
                    .zip(x)
                    .map(|(c, x)| i32::from(*c) * i32::from(x))
                    .sum();
                assert_eq!(got, [8 * once; 8], "{codes:?} {x:?}");
            }
        }
    }

    #[test]
    fn dot_products_are_exact_at_their_ends() {
        extremes::<Widening>(255, false);
        extremes::<Widening>(127, true);
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            extremes::<SignedDot>(255, false);
            extremes::<SignedDot>(127, true);
        }
        if std::arch::is_aarch64_feature_detected!("i8mm") {
            extremes::<MixedDot>(255, false);
            extremes::<MixedDot>(127, true);
        }
    }
}
