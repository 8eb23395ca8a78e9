use super::*;
use crate::generic::attention::int16::tests::integers_attend;
use crate::generic::attention::tests::floats_of_8_bits_are_exact;
use crate::generic::int16::tests::both_ways_agree;
use crate::portable::Portable;
use std::collections::BTreeMap;

/// Results of `S` on 16 lanes, by operation; `x` holds numbers in the range of halves.
fn results<S: Simd>(
    a: &[i32; 16],
    b: &[i32; 16],
    x: &[f32; 16],
) -> BTreeMap<&'static str, [i32; 16]> {
    let mut all = BTreeMap::new();
    for at in (0..16).step_by(S::R) {
        let mut is = |name, v: S::I| {
            let y: &mut [i32; 16] = all.entry(name).or_insert([0; 16]);
            // SAFETY: the caller asks only for what this CPU has; R lanes have room from `at` on.
            unsafe { S::store_bytes(y[at..].as_mut_ptr().cast(), v) };
        };
        // SAFETY: the caller asks only for what this CPU has, and `at + R` is at most 16.
        unsafe {
            of_integers::<S>(a, b, at, &mut is);
            of_dots::<S>(a, b, at, &mut is);
            of_floats::<S>(a, x, at, &mut is);
        }
    }
    all
}

/// Loads the lanes from `at` on, and applies the lane-wise operations.
///
/// # Safety
/// This CPU has the instruction set, and `at + R` is at most 16.
unsafe fn of_integers<S: Simd>(
    a: &[i32; 16],
    b: &[i32; 16],
    at: usize,
    is: &mut impl FnMut(&'static str, S::I),
) {
    let table = std::array::from_fn(|i| (a[i] >> 9) as u8);
    // SAFETY: the caller's promise; every pointer has R elements behind it.
    unsafe {
        let bytes = a.as_ptr().cast::<u8>().add(at);
        let (v, w) = (
            S::load_bytes(a[at..].as_ptr().cast()),
            S::load_bytes(b[at..].as_ptr().cast()),
        );
        is("load_u8", S::load_u8(bytes));
        is("load_i8", S::load_i8(bytes));
        is("iadd", S::iadd(v, w));
        is("isub", S::isub(v, w));
        is("sub16", S::sub16(v, w));
        is("and, or", S::or(S::and(v, w), S::iset1(b[1] & 0xff)));
        is("mul16", S::mul16(v, w));
        is("mul16_high", S::mul16_high(v, w));
        is("xor", S::xor(v, w));
        let words = std::array::from_fn::<u32, 64, _>(|i| (b[i % 16] as u32).rotate_left(i as u32));
        is("gather", S::gather(&words, S::and(v, S::iset1(63))));
        is(
            "lookup",
            S::lookup(S::and(v, S::iset1(0x0f0f_0f0f)), &table),
        );
        for bit in 0..8 {
            is("reflect", S::reflect(v, 128, w, bit));
        }
        let entries = std::array::from_fn(|i| (i as u16).wrapping_mul(0x9e37));
        is(
            "halves",
            S::halves::<64>(&Halves::new(entries), S::and(v, S::iset1(0x003f_003f))),
        );
        let entries = std::array::from_fn(|i| (i as u16).wrapping_mul(0x9e37));
        is(
            "halves",
            S::halves::<1024>(&Halves::new(entries), S::and(v, S::iset1(0x03ff_03ff))),
        );
        is(
            "half twice",
            S::isub(S::half_twice(v, 0), S::half_twice(v, 1)),
        );
        for (n, name) in [
            (0, "shift by 0"),
            (4, "shift by 4"),
            (23, "shift by 23"),
            (31, "shift by 31"),
        ] {
            is(name, S::isub(S::shr(v, n), S::shl(v, n)));
        }
    }
}

/// Computes sums of products of the lanes from `at` on.
///
/// # Safety
/// As [`of_integers`].
unsafe fn of_dots<S: Simd>(
    a: &[i32; 16],
    b: &[i32; 16],
    at: usize,
    is: &mut impl FnMut(&'static str, S::I),
) {
    let act = S::act4([b[0], b[1], b[2], b[3]].map(|b| (b % 32_640) as i16));
    // SAFETY: the caller's promise; every pointer has R elements behind it.
    unsafe {
        let (v, w) = (
            S::load_bytes(a[at..].as_ptr().cast()),
            S::load_bytes(b[at..].as_ptr().cast()),
        );
        is("dot2", S::dot2(v, w, v));
        is("dot2_same", S::dot2_same(v, w, &b[5]));
        is(
            "dot4",
            S::acc_sum(S::dot4(S::dot4(S::acc_zero(), v, &act), w, &act)),
        );
        let small = S::iset1(0x7f7f_7f7f);
        let acc = S::dot4_i8(S::dot4(S::acc_zero(), v, &act), S::and(w, small), &act);
        is("dot4_i8", S::acc_sum(acc));
        let spread = S::spread(S::and(v, small));
        is(
            "dot_spread",
            S::acc_sum(S::dot_spread(S::acc_zero(), spread, &act)),
        );
    }
}

/// Converts the lanes from `at` on, and applies the float operations.
///
/// # Safety
/// As [`of_integers`].
unsafe fn of_floats<S: Simd>(
    a: &[i32; 16],
    x: &[f32; 16],
    at: usize,
    is: &mut impl FnMut(&'static str, S::I),
) {
    // SAFETY: the caller's promise; every pointer has R elements behind it.
    unsafe {
        let v = S::load_bytes(a[at..].as_ptr().cast());
        let f = S::load(x[at..].as_ptr());
        is("to_i", S::to_i(f));
        let mut half = [0u16; 16];
        S::store_f16(half.as_mut_ptr(), f);
        let back = |v: S::F| {
            let mut y = [0f32; 16];
            S::store(y.as_mut_ptr(), v);
            S::load_bytes(y.as_ptr().cast())
        };
        is("store_f16, load_f16", back(S::load_f16(half.as_ptr())));
        is(
            "load_bf16",
            back(S::load_bf16(a.as_ptr().cast::<u16>().add(at))),
        );
        is("to_f", back(S::to_f(v)));
        is("bits_f", back(S::bits_f(v)));
        is(
            "min, max",
            back(S::max(S::set1(-3.0), S::min(f, S::set1(2.5)))),
        );
        is(
            "first",
            back(S::first(5usize.saturating_sub(at), f, S::zero())),
        );
        is("fma", back(S::fma(f, f, S::set1(1.0))));
        is(
            "add to div",
            back(S::div(S::sub(S::add(f, f), S::set1(1.0)), S::mul(f, f))),
        );
    }
}

/// Checks that every operation gives the bits that it gives in plain Rust, and so do whole products
/// in either way; floats of 8 bits are checked against their definition.
fn agrees<S: Simd>(name: &str) {
    both_ways_agree::<S>(name);
    floats_of_8_bits_are_exact::<S>(name);
    integers_attend::<S>(name);
    let mut bits = 1u32;
    let mut random = || {
        bits = bits.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
        bits as i32
    };
    for turn in 0..500 {
        let (a, b): ([i32; 16], [i32; 16]) = (
            std::array::from_fn(|_| random()),
            std::array::from_fn(|_| random()),
        );
        // halves at first: ties for the rounding to integers and, above 1024, to f16
        let x = std::array::from_fn(|_| match turn {
            0..100 => (random() % 4001) as f32 * 0.5,
            _ => (random() >> 8) as f32 * 0.000_123,
        });
        let expected = results::<Portable>(&a, &b, &x);
        for (operation, got) in results::<S>(&a, &b, &x) {
            assert_eq!(
                got, expected[operation],
                "{name}: {operation} of {a:x?}, {b:x?}, {x:?}"
            );
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_vector_does_what_the_portable_one_does() {
    use crate::x86::avx2::Avx2;
    use crate::x86::avx512::Avx512;
    agrees::<Portable>("scalar");
    if has_avx2() {
        agrees::<Avx2<false>>("avx2");
    }
    if has_avx2() && is_x86_feature_detected!("avxvnni") {
        agrees::<Avx2<true>>("avxvnni");
    }
    if has_avx512() {
        agrees::<Avx512>("avx512");
    }
}

/// Returns whether this CPU has what AVX2's vectors use.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Returns whether this CPU has what AVX-512's vectors use.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[test]
#[cfg(target_arch = "aarch64")]
fn every_vector_does_what_the_portable_one_does() {
    use crate::aarch64::neon::{MixedDot, Neon, SignedDot, Widening};
    use std::arch::is_aarch64_feature_detected;
    agrees::<Portable>("scalar");
    agrees::<Neon<Widening>>("neon");
    if is_aarch64_feature_detected!("dotprod") {
        agrees::<Neon<SignedDot>>("dotprod");
    }
    if is_aarch64_feature_detected!("dotprod") && is_aarch64_feature_detected!("i8mm") {
        agrees::<Neon<MixedDot>>("i8mm");
    }
}

#[test]
fn exp_is_within_two_ulp() {
    for turn in 0..1700 {
        let x: [f32; Portable::R] =
            std::array::from_fn(|i| (turn * Portable::R + i) as f32 * 0.013 - 87.0);
        let mut y = [0.0; Portable::R];
        // SAFETY: the portable vectors need no instruction set; both arrays are a vector long.
        unsafe { Portable::store(y.as_mut_ptr(), exp::<Portable>(Portable::load(x.as_ptr()))) };
        for (x, y) in x.into_iter().zip(y).filter(|(x, _)| *x < 88.0) {
            let exact = f64::from(x).exp();
            assert!(
                (f64::from(y) - exact).abs() <= 2.0 * exact * f64::from(f32::EPSILON),
                "{x}: {y} {exact}"
            );
        }
    }
}
