//! Decodes the DCT coefficients of one block.

use super::bits::{Bits, Huffman};
use super::{ZIGZAG, damaged};
use crate::Error;

/// A band of coefficients of a progressive image, and the bits that a scan has of them.
#[derive(Clone, Copy)]
pub(super) struct Band {
    /// First and last coefficient, in zigzag order.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Whether the scan has one more bit of coefficients begun by others.
    pub(super) refines: bool,
    /// Left shift of the scan's bits.
    pub(super) shift: u32,
}

/// Returns the index in the block of coefficient `k` in zigzag order.
fn place(k: usize) -> Result<usize, Error> {
    let at = ZIGZAG.get(k).copied().map(usize::from);
    at.ok_or_else(|| damaged("the JPEG's data runs over a block"))
}

/// Reads the difference from the previous block's DC coefficient; returns the new DC coefficient.
fn mean(bits: &mut Bits<'_>, table: &Huffman, before: &mut i32) -> Result<i32, Error> {
    let size = bits.symbol(table)?;
    if size > 15 {
        return Err(damaged("the JPEG's data has an unknown code"));
    }
    let sum = before.checked_add(bits.signed(u32::from(size))?);
    *before = sum.ok_or_else(too_large)?;
    Ok(*before)
}

fn too_large() -> Error {
    damaged("the JPEG's data has a value that is too large")
}

/// Reads all coefficients of a block and dequantizes them with `steps`.
pub(super) fn whole(
    bits: &mut Bits<'_>,
    tables: [&Huffman; 2],
    steps: &[u16; 64],
    before: &mut i32,
) -> Result<[i16; 64], Error> {
    let mut values = [0; 64];
    let mean = mean(bits, tables[0], before)?;
    let first = mean.checked_mul(i32::from(steps[0]));
    let first = first.and_then(|value| i16::try_from(value).ok());
    values[0] = first.ok_or_else(too_large)?;
    let mut k = 1;
    while k < 64 {
        let symbol = bits.symbol(tables[1])?;
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => k += 16,
            (_, 0) => break,
            _ => {
                let at = place(k + zeros)?;
                values[at] = (bits.signed(size)? * i32::from(steps[at])) as i16;
                k += zeros + 1;
            }
        }
    }
    Ok(values)
}

/// Reads the DC coefficient of a block of a progressive image, or one more bit of it.
pub(super) fn progressive_mean(
    bits: &mut Bits<'_>,
    table: Option<&Huffman>,
    band: Band,
    before: &mut i32,
    value: &mut i16,
) -> Result<(), Error> {
    match table {
        Some(table) => {
            let mean = mean(bits, table, before)?.checked_mul(1 << band.shift);
            let mean = mean.and_then(|mean| i16::try_from(mean).ok());
            *value = mean.ok_or_else(too_large)?;
        }
        None if bits.bit()? => *value = value.wrapping_add(1 << band.shift),
        None => {}
    }
    Ok(())
}

/// Reads the first bits of a band of AC coefficients. `empty` counts the following blocks without
/// any (EOBRUN).
pub(super) fn begin(
    bits: &mut Bits<'_>,
    table: &Huffman,
    band: Band,
    empty: &mut u32,
    values: &mut [i16; 64],
) -> Result<(), Error> {
    if *empty > 0 {
        *empty -= 1;
        return Ok(());
    }
    let mut k = band.first;
    while k <= band.last {
        let symbol = bits.symbol(table)?;
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => k += 16,
            (_, 0) => {
                *empty = (1 << zeros) - 1 + bits.number(zeros as u32)? as u32;
                break;
            }
            _ => {
                values[place(k + zeros)?] = (bits.signed(size)? << band.shift) as i16;
                k += zeros + 1;
            }
        }
    }
    Ok(())
}

/// Reads one more bit of a band of AC coefficients.
pub(super) fn refine(
    bits: &mut Bits<'_>,
    table: &Huffman,
    band: Band,
    empty: &mut u32,
    values: &mut [i16; 64],
) -> Result<(), Error> {
    let bit = 1i16 << band.shift;
    let mut k = band.first;
    while k <= band.last {
        if *empty > 0 {
            *empty -= 1;
            // refinement bits only: no new coefficients in this block
            refine_until(bits, band.last, &mut k, usize::MAX, bit, values)?;
            break;
        }
        let symbol = bits.symbol(table)?;
        let zeros = usize::from(symbol >> 4);
        let new = match symbol & 15 {
            0 if zeros < 15 => {
                *empty = (1 << zeros) + bits.number(zeros as u32)? as u32;
                continue;
            }
            0 => 0,
            1 if bits.bit()? => bit,
            1 => -bit,
            _ => return Err(damaged("the JPEG's data has an unknown code")),
        };
        if let Some(at) = refine_until(bits, band.last, &mut k, zeros, bit, values)? {
            values[at] = new;
        }
    }
    Ok(())
}

/// Refines nonzero coefficients and skips `zeros` zeros; returns the index of the next zero, if it
/// is in the band.
fn refine_until(
    bits: &mut Bits<'_>,
    last: usize,
    k: &mut usize,
    mut zeros: usize,
    bit: i16,
    values: &mut [i16; 64],
) -> Result<Option<usize>, Error> {
    while *k <= last {
        let at = place(*k)?;
        *k += 1;
        let value = &mut values[at];
        if *value == 0 {
            if zeros == 0 {
                return Ok(Some(at));
            }
            zeros -= 1;
        } else if bits.bit()? && *value & bit == 0 {
            *value = match *value {
                1.. => value.wrapping_add(bit),
                _ => value.wrapping_sub(bit),
            };
        }
    }
    Ok(None)
}
