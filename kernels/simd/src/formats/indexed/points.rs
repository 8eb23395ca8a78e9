//! Tables of the grids' points, and of their levels as codes.

use crate::simd::Halves;
use octavo_quant::grids;

/// Added to signed magnitudes.
pub(super) const MIDDLE: u8 = 64;
/// Magnitudes of IQ2's levels.
const IQ2_LEVELS: [i8; 3] = [8, 25, 43];
/// Magnitudes of IQ3's levels.
const IQ3_XXS_LEVELS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S_LEVELS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Codes of the levels, which are numbered in two bits, of four: the lower or the upper two.
pub(super) const IQ2_CODES: [u8; 16] = two_times(table(&IQ2_LEVELS, 1, MIDDLE));
pub(super) const IQ3_XXS_CODES: [u8; 16] = table(&IQ3_XXS_LEVELS, 1, MIDDLE);
pub(super) const IQ3_S_CODES: [u8; 16] = table(&IQ3_S_LEVELS, 1, MIDDLE);
/// Codes of IQ1's three levels, in eighths, with the shift of one eighth added.
pub(super) const IQ1_CODES: [u8; 16] = table(&[-1, 0, 1], 8, 17);

/// Levels times a factor plus an offset, as a table of codes.
const fn table<const L: usize>(levels: &[i8; L], factor: i8, offset: u8) -> [u8; 16] {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < L {
        codes[i] = (levels[i] * factor) as u8;
        codes[i] = codes[i].wrapping_add(offset);
        i += 1;
    }
    codes
}

/// The codes of levels 1 to 3 once more, at four times their numbers.
const fn two_times(mut codes: [u8; 16]) -> [u8; 16] {
    let mut level = 1;
    while level < 4 {
        codes[4 * level] = codes[level];
        level += 1;
    }
    codes
}

/// Levels of a point's values, each shifted by the bits that `places` says.
const fn entry<const L: usize, const M: usize>(
    point: &[i8; M],
    levels: &[i8; L],
    places: &[u32; M],
) -> u32 {
    let (mut entry, mut i) = (0, 0);
    while i < M {
        let mut level = 0;
        while levels[level] != point[i] {
            level += 1;
        }
        entry |= (level as u32) << places[i];
        i += 1;
    }
    entry
}

/// Points as words with levels in nibbles: the first four values in the low ones.
const fn words_of<const N: usize>(points: &[[i8; 8]; N], levels: &[i8; 3]) -> [u32; N] {
    let (mut words, mut at) = ([0; N], 0);
    while at < N {
        words[at] = entry(&points[at], levels, &[0, 8, 16, 24, 4, 12, 20, 28]);
        at += 1;
    }
    words
}

/// Points as half words, of which `signed_points` and `signed_fours` read the levels.
const fn halves_of<const N: usize, const L: usize, const M: usize>(
    points: &[[i8; M]; N],
    levels: &[i8; L],
    places: &[u32; M],
) -> Halves<N> {
    let (mut halves, mut at) = ([0; N], 0);
    while at < N {
        halves[at] = entry(&points[at], levels, places) as u16;
        at += 1;
    }
    Halves::new(halves)
}

/// Bits of eight levels in a half word, two each: the first four in the low nibbles of its bytes.
const OF_EIGHT: [u32; 8] = [0, 8, 2, 10, 4, 12, 6, 14];
/// Bits of four levels in a half word, a nibble each.
const OF_FOUR: [u32; 4] = [0, 8, 4, 12];

pub(super) static IQ1_GRID: [u32; 2048] = words_of(&grids::IQ1, &[-1, 0, 1]);
pub(super) static IQ2_XXS_GRID: Halves<256> = halves_of(&grids::IQ2_XXS, &IQ2_LEVELS, &OF_EIGHT);
pub(super) static IQ2_XS_GRID: Halves<512> = halves_of(&grids::IQ2_XS, &IQ2_LEVELS, &OF_EIGHT);
pub(super) static IQ2_S_GRID: Halves<1024> = halves_of(&grids::IQ2_S, &IQ2_LEVELS, &OF_EIGHT);
pub(super) static IQ3_XXS_GRID: Halves<256> = halves_of(&grids::IQ3_XXS, &IQ3_XXS_LEVELS, &OF_FOUR);
pub(super) static IQ3_S_GRID: Halves<512> = halves_of(&grids::IQ3_S, &IQ3_S_LEVELS, &OF_FOUR);
