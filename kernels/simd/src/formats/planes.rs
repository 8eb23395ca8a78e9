//! Codes in bit planes.

use super::Format;
use crate::simd::Simd;

/// Codes in bit planes, as [`Format::codes`].
///
/// # Safety
/// As [`Format::codes`].
#[inline(always)]
pub(super) unsafe fn plane_codes<S: Simd, F: Format + ?Sized, const H: usize>(
    block: *const u8,
    g: usize,
) -> [S::I; 4] {
    let vector = 4 * S::R;
    // SAFETY: the planes lie inside the block: META, then K / 8 bytes a row for each bit of
    // LOW, HIGH and TOP.
    unsafe {
        let low = block.add(F::META * S::R);
        let mut c = if F::LOW == 8 {
            let p = low.add((8 * g + 4 * H) * vector);
            std::array::from_fn(
                #[inline(always)]
                |j| S::load_bytes(p.add(j * vector)),
            )
        } else if F::LOW == 4 {
            let p = low.add((4 * g + 2 * H) * vector);
            let (a, b, mask) = (
                S::load_bytes(p),
                S::load_bytes(p.add(vector)),
                S::iset1(0x0f0f_0f0f),
            );
            [
                S::and(a, mask),
                S::and(S::shr(a, 4), mask),
                S::and(b, mask),
                S::and(S::shr(b, 4), mask),
            ]
        } else {
            [S::iset1(0); 4]
        };
        if let Some(table) = F::TABLE {
            c = [
                S::lookup(c[0], &table),
                S::lookup(c[1], &table),
                S::lookup(c[2], &table),
                S::lookup(c[3], &table),
            ];
        }
        let high = low.add(F::K * F::LOW / 8 * S::R);
        if F::HIGH == 1 {
            c = one_bit::<S, H>(c, high.add(g * vector), F::LOW as u32);
        }
        if F::HIGH == 2 {
            let v = S::load_bytes(high.add((2 * g + H) * vector));
            for (j, c) in c.iter_mut().enumerate() {
                // bits 2 j and 2 j + 1 become the lowest above LOW
                let (at, to) = (2 * j as u32, F::LOW as u32);
                let bits = if at <= to {
                    S::shl(v, to - at)
                } else {
                    S::shr(v, at - to)
                };
                *c = S::or(*c, S::and(bits, S::iset1(0x0303_0303 << to)));
            }
        }
        if F::TOP == 1 {
            let top = high.add(F::K * F::HIGH / 8 * S::R);
            c = one_bit::<S, H>(c, top.add(g * vector), (F::LOW + F::HIGH) as u32);
        }
        c
    }
}

/// Four vectors of codes. Unlike the standard library's functions of arrays, it is always inlined:
/// a function of its own would not have the instruction set.
#[inline(always)]
pub(super) fn each_of_four<I>(codes: impl Fn(usize) -> I) -> [I; 4] {
    [codes(0), codes(1), codes(2), codes(3)]
}

/// The largest code: of a table, or of a number of bits.
pub(super) const fn largest(table: Option<[u8; 16]>, bits: usize) -> u8 {
    let Some(table) = table else {
        return ((1 << bits) - 1) as u8;
    };
    let (mut most, mut i) = (0, 0);
    while i < 16 {
        if table[i] > most {
            most = table[i];
        }
        i += 1;
    }
    most
}

/// Moves bit `4 H + j` of each byte at `plane` to bit `to` of codes `j`.
#[inline(always)]
unsafe fn one_bit<S: Simd, const H: usize>(
    mut c: [S::I; 4],
    plane: *const u8,
    to: u32,
) -> [S::I; 4] {
    // SAFETY: the caller's plane has a vector at this place.
    unsafe {
        let v = S::load_bytes(plane);
        for (j, c) in c.iter_mut().enumerate() {
            let at = (4 * H + j) as u32;
            let bit = if at <= to {
                S::shl(v, to - at)
            } else {
                S::shr(v, at - to)
            };
            *c = S::or(*c, S::and(bit, S::iset1(0x0101_0101 << to)));
        }
        c
    }
}
