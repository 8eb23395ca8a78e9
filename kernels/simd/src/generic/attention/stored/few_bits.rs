//! Keys and values in four bits and in five, with scales.
//!
//! ```text
//! 16 bytes of every 32 values    byte i: the low four bits of values i and i + 16
//! 4 more, of five bits           bit i of them all: the fifth bit of value i
//! ```
//! For keys, each of these bytes is a row of 16, one for each position of the page.

use super::{PAGE, SCALE_GROUP, Stored};
use crate::simd::Simd;
use octavo_quant::IQ4_LEVELS;
use std::marker::PhantomData;

const HALF: usize = SCALE_GROUP / 2;

/// The low four bits of value `d` of a head, or of values from there on, of `S::R` bytes.
///
/// # Safety
/// One byte for each lane can be read.
#[inline(always)]
unsafe fn low_bits<S: Simd>(bytes: *const u8, d: usize) -> S::I {
    // SAFETY: the caller's promise.
    unsafe {
        let both = S::load_u8(bytes);
        match d % SCALE_GROUP < HALF {
            true => S::and(both, S::iset1(15)),
            false => S::shr(both, 4),
        }
    }
}

/// Asserts that a vector lies in one half of the bytes.
const fn fits<S: Simd>() {
    assert!(S::R <= HALF);
}

/// Level of a four-bit code, before scales.
pub trait Levels {
    /// # Safety
    /// Of the instruction set only.
    unsafe fn of<S: Simd>(codes: S::I) -> S::F;
}

/// Even steps on both sides of zero: ggml's Q4_0.
pub struct Even;

impl Levels for Even {
    #[inline(always)]
    unsafe fn of<S: Simd>(codes: S::I) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::to_f(S::isub(codes, S::iset1(8))) }
    }
}

/// Uneven steps: ggml's IQ4_NL.
pub struct Uneven;

/// Offset that makes the lowest level zero, so that levels fit unsigned bytes and the three upper
/// bytes of a looked-up lane are zero.
const ABOVE: i32 = -(IQ4_LEVELS[0] as i32);

const LEVELS_ABOVE: [u8; 16] = {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < 16 {
        levels[i] = (IQ4_LEVELS[i] as i32 + ABOVE) as u8;
        i += 1;
    }
    levels
};

impl Levels for Uneven {
    #[inline(always)]
    unsafe fn of<S: Simd>(codes: S::I) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::to_f(S::isub(S::lookup(codes, &LEVELS_ABOVE), S::iset1(ABOVE))) }
    }
}

/// Codes of four bits.
pub struct Fours<L>(PhantomData<L>);

/// ggml's Q4_0.
pub type Q4 = Fours<Even>;

/// ggml's IQ4_NL.
pub type Iq4 = Fours<Uneven>;

/// Index of the byte that holds value `d`, among the code bytes of a position.
#[inline(always)]
fn byte(d: usize) -> usize {
    d / SCALE_GROUP * HALF + d % HALF
}

impl<L: Levels> Stored for Fours<L> {
    const BITS: usize = 4;
    const GROUP: Option<usize> = Some(SCALE_GROUP);
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { L::of::<S>(low_bits::<S>(page.add(byte(d) * PAGE + at), d)) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        const { fits::<S>() };
        // SAFETY: the caller's promise.
        unsafe { L::of::<S>(low_bits::<S>(page.add(at * head_dim / 2 + byte(d)), d)) }
    }
}

/// Codes of five bits, which count from a minimum, or from 16 below zero.
pub struct Fives<const MIN: bool>;

/// ggml's Q5_0.
pub type Q5 = Fives<false>;

/// ggml's Q5_1.
pub type Q5Min = Fives<true>;

/// Bytes of every 32 values.
const GROUP_BYTES: usize = HALF + SCALE_GROUP / 8;

/// Bit `i`, and its weight as the fifth bit of a code: the product of both is 16, or -16 for the
/// bit that makes an integer negative.
const BITS: [u32; SCALE_GROUP] = {
    let mut bits = [0; SCALE_GROUP];
    let mut i = 0;
    while i < SCALE_GROUP {
        bits[i] = 1 << i;
        i += 1;
    }
    bits
};
const WORTH: [f32; SCALE_GROUP] = {
    let mut worth = [0.0; SCALE_GROUP];
    let mut i = 0;
    while i < SCALE_GROUP {
        worth[i] = 16.0 / BITS[i].cast_signed() as f32;
        i += 1;
    }
    worth
};

impl<const MIN: bool> Fives<MIN> {
    /// Code of the value zero.
    const ZERO: i32 = if MIN { 0 } else { 16 };
}

impl<const MIN: bool> Stored for Fives<MIN> {
    const BITS: usize = 5;
    const GROUP: Option<usize> = Some(SCALE_GROUP);
    const MIN: bool = MIN;
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        let i = d % SCALE_GROUP;
        // SAFETY: the caller's promise.
        unsafe {
            let group = page.add(d / SCALE_GROUP * GROUP_BYTES * PAGE + at);
            let low = low_bits::<S>(group.add(i % HALF * PAGE), d);
            // eight fifth bits of every position, each of which is shifted to the place of 16
            let eight = S::load_u8(group.add((HALF + i / 8) * PAGE));
            let fifth = S::shr(S::shl(eight, 4), (i % 8) as u32);
            let code = S::or(low, S::and(fifth, S::iset1(16)));
            S::to_f(S::isub(code, S::iset1(Self::ZERO)))
        }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        const { fits::<S>() };
        let i = d % SCALE_GROUP;
        // SAFETY: the caller's promise; there are as many bits, and worths, as values of a group.
        unsafe {
            let group = page.add((at * head_dim + d) / SCALE_GROUP * GROUP_BYTES);
            let low = S::isub(low_bits::<S>(group.add(i % HALF), d), S::iset1(Self::ZERO));
            // a lane keeps its own bit of all, and as a float the product is 16 or 0, exactly
            let all = group.add(HALF).cast::<u32>().read_unaligned();
            let all = S::iset1(u32::from_le(all).cast_signed());
            let bits = S::load_bytes(BITS.as_ptr().add(i).cast());
            let worth = S::load(WORTH.as_ptr().add(i));
            S::fma(S::to_f(S::and(all, bits)), worth, S::to_f(low))
        }
    }
}
