//! Eight lanes in plain Rust: used on CPUs without kernels of their own, and the reference that all
//! other vectors are tested against.

use crate::act::Act4;
use crate::simd::{ByteDots, Simd};

#[derive(Clone, Copy)]
pub struct Portable;

#[derive(Clone, Copy)]
pub struct F8([f32; 8]);
#[derive(Clone, Copy)]
pub struct I8([i32; 8]);

macro_rules! lanes {
    ($t:ident, |$i:ident| $e:expr) => {
        $t(std::array::from_fn(
            #[inline(always)]
            |$i| $e,
        ))
    };
}

/// Applies an operation to the unsigned 16-bit halves of two lanes; of results, the lower halves
/// count.
#[inline(always)]
fn of_halves(a: i32, b: i32, f: impl Fn(u32, u32) -> u32) -> i32 {
    let (a, b) = (a as u32, b as u32);
    (f(a & 0xffff, b & 0xffff) & 0xffff | f(a >> 16, b >> 16) << 16) as i32
}

impl Simd for Portable {
    const R: usize = 8;
    const IN_REGISTERS: bool = false;
    type F = F8;
    type I = I8;
    type Acc = I8;

    #[inline(always)]
    unsafe fn zero() -> F8 {
        F8([0.0; 8])
    }
    #[inline(always)]
    unsafe fn set1(x: f32) -> F8 {
        F8([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F8 {
        // SAFETY: the caller has 8 readable f32 at `p`.
        F8(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F8) {
        // SAFETY: the caller has 8 writable f32 at `p`.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F8 {
        // SAFETY: the caller has 8 readable u16 at `p`.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        lanes!(F8, |i| f16_to_f32(h[i]))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F8) {
        // SAFETY: the caller has 8 writable u16 at `p`.
        unsafe {
            p.cast::<[u16; 8]>()
                .write_unaligned(v.0.map(|x| half::f16::from_f32(x).to_bits()))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F8 {
        // SAFETY: the caller has 8 readable u16 at `p`.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        lanes!(F8, |i| f32::from_bits(u32::from(h[i]) << 16))
    }
    #[inline(always)]
    unsafe fn add(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] + b.0[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] - b.0[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] * b.0[i])
    }
    #[inline(always)]
    unsafe fn div(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] / b.0[i])
    }
    // Not `mul_add`: without the instruction it is a library call a hundred times slower.
    #[inline(always)]
    unsafe fn fma(a: F8, b: F8, c: F8) -> F8 {
        lanes!(F8, |i| a.0[i] * b.0[i] + c.0[i])
    }
    #[inline(always)]
    unsafe fn min(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if a.0[i] < b.0[i] { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn max(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn first(n: usize, a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if i < n { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn sum(v: F8) -> f32 {
        let v = v.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn largest(v: F8) -> f32 {
        v.0.into_iter()
            .fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> I8 {
        // SAFETY: the caller has 32 readable bytes at `p`.
        let w = unsafe { p.cast::<[[u8; 4]; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from_le_bytes(w[i]))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: I8) {
        // SAFETY: the caller has 32 writable bytes at `p`.
        unsafe {
            p.cast::<[[u8; 4]; 8]>()
                .write_unaligned(v.0.map(i32::to_le_bytes))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I8 {
        // SAFETY: the caller has 8 readable bytes at `p`.
        let b = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I8 {
        // SAFETY: the caller has 8 readable bytes at `p`.
        let b = unsafe { p.cast::<[i8; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn iset1(x: i32) -> I8 {
        I8([x; 8])
    }
    #[inline(always)]
    unsafe fn iadd(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i].wrapping_add(b.0[i]))
    }
    #[inline(always)]
    unsafe fn isub(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i].wrapping_sub(b.0[i]))
    }
    #[inline(always)]
    unsafe fn sub16(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| {
            let (low, high) = (
                (a.0[i] as i16).wrapping_sub(b.0[i] as i16),
                (a.0[i] >> 16) - (b.0[i] >> 16),
            );
            (i32::from(low) & 0xffff) | high << 16
        })
    }
    #[inline(always)]
    unsafe fn mul16(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| of_halves(a.0[i], b.0[i], |a, b| a * b))
    }
    #[inline(always)]
    unsafe fn mul16_high(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| of_halves(a.0[i], b.0[i], |a, b| (a * b) >> 16))
    }
    #[inline(always)]
    unsafe fn and(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i] & b.0[i])
    }
    #[inline(always)]
    unsafe fn or(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i] | b.0[i])
    }
    #[inline(always)]
    unsafe fn xor(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i] ^ b.0[i])
    }
    #[inline(always)]
    unsafe fn gather(table: &[u32], index: I8) -> I8 {
        lanes!(I8, |i| table[index.0[i] as usize] as i32)
    }
    #[inline(always)]
    unsafe fn lookup(a: I8, table: &[u8; 16]) -> I8 {
        lanes!(I8, |i| i32::from_le_bytes(
            a.0[i].to_le_bytes().map(|b| table[usize::from(b & 15)])
        ))
    }
    #[inline(always)]
    unsafe fn reflect(a: I8, sum: u8, plane: I8, bit: u32) -> I8 {
        lanes!(I8, |i| {
            let (a, plane) = (a.0[i].to_le_bytes(), plane.0[i].to_le_bytes());
            i32::from_le_bytes([0, 1, 2, 3].map(|b| match plane[b] >> bit & 1 {
                1 => sum.wrapping_sub(a[b]),
                _ => a[b],
            }))
        })
    }
    #[inline(always)]
    unsafe fn shr(a: I8, n: u32) -> I8 {
        lanes!(I8, |i| ((a.0[i] as u32) >> n) as i32)
    }
    #[inline(always)]
    unsafe fn shl(a: I8, n: u32) -> I8 {
        lanes!(I8, |i| a.0[i] << n)
    }
    #[inline(always)]
    unsafe fn to_f(a: I8) -> F8 {
        lanes!(F8, |i| a.0[i] as f32)
    }
    #[inline(always)]
    unsafe fn to_i(a: F8) -> I8 {
        // 1.5 * 2^23: adding it rounds to nearest even; every caller stays below 2^22 in magnitude
        const MAGIC: f32 = 12_582_912.0;
        lanes!(I8, |i| ((a.0[i] + MAGIC) - MAGIC) as i32)
    }
    #[inline(always)]
    unsafe fn bits_f(a: I8) -> F8 {
        lanes!(F8, |i| f32::from_bits(a.0[i] as u32))
    }
    #[inline(always)]
    unsafe fn acc_zero() -> I8 {
        I8([0; 8])
    }
    #[inline(always)]
    unsafe fn dot4(acc: I8, codes: I8, x: *const Act4) -> I8 {
        // SAFETY: the caller has one readable `Act4` at `x`.
        let x = unsafe { x.read() }.as_i16();
        lanes!(I8, |i| {
            let c = codes.0[i];
            acc.0[i]
                + (c & 255) * i32::from(x[0])
                + ((c >> 8) & 255) * i32::from(x[1])
                + ((c >> 16) & 255) * i32::from(x[2])
                + ((c >> 24) & 255) * i32::from(x[3])
        })
    }
    #[inline(always)]
    unsafe fn acc_sum(acc: I8) -> I8 {
        acc
    }
    #[inline(always)]
    unsafe fn dot2(acc: I8, w: I8, x: I8) -> I8 {
        let halves = |v: i32| (i32::from(v as i16), v >> 16);
        lanes!(I8, |i| {
            let ((w0, w1), (x0, x1)) = (halves(w.0[i]), halves(x.0[i]));
            acc.0[i].wrapping_add(w0 * x0).wrapping_add(w1 * x1)
        })
    }
    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::from_i16(x)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
}

impl ByteDots for Portable {
    const MAX_SUM: i32 = i32::MAX;
    type Narrow = I8;

    #[inline(always)]
    unsafe fn begin(so_far: I8) -> I8 {
        so_far
    }
    #[inline(always)]
    unsafe fn dot_bytes(sums: I8, codes: I8, x: *const i32) -> I8 {
        // SAFETY: the caller has one readable word at `x`.
        let x = unsafe { x.read_unaligned() }.to_le_bytes();
        lanes!(I8, |i| {
            let c = codes.0[i].to_le_bytes();
            sums.0[i]
                + i32::from(c[0]) * i32::from(x[0] as i8)
                + i32::from(c[1]) * i32::from(x[1] as i8)
                + i32::from(c[2]) * i32::from(x[2] as i8)
                + i32::from(c[3]) * i32::from(x[3] as i8)
        })
    }
    #[inline(always)]
    unsafe fn end(_: I8, sums: I8) -> I8 {
        sums
    }
}

/// Exact, and short enough to vectorise: shifts the exponent into place and lets one multiply do
/// the rest.
#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let body = u32::from(h & 0x7fff);
    // finite halves, subnormal ones too: the bits scaled by 2^112
    let finite = f32::from_bits(body << 13) * f32::from_bits(0x7780_0000);
    let special = 0x7f80_0000 | (body << 13);
    let bits = if body >= 0x7c00 {
        special
    } else {
        finite.to_bits()
    };
    f32::from_bits(sign | bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_float_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#x}"
            );
        }
    }
}
