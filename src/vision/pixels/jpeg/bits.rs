//! Huffman codes and bit fields in the data of a scan.

use super::damaged;
use super::input::{Input, marker};
use crate::Error;

/// Maximum bits of codes decoded with a single table lookup.
const SHORT: usize = 9;

/// A Huffman table.
pub(super) struct Huffman {
    /// Indexed by the next bits: length and symbol of a short code; length 0 if the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// Indexed by code length: the first 16 bits of data that do not begin with a code of this
    /// length or less.
    end: [u32; 17],
    /// Indexed by code length: the offset from a code to its index among the symbols.
    offset: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    /// Reads the number of codes of each length, and their symbols.
    pub(super) fn read(segment: &mut Input<'_>) -> Result<Huffman, Error> {
        let mut counts = [0; 17];
        for count in &mut counts[1..] {
            *count = u32::from(segment.u8()?);
        }
        let all = counts.iter().sum::<u32>();
        if all > 256 {
            return Err(damaged(format!("the JPEG has a table of {all} codes")));
        }
        let symbols: Result<Vec<u8>, Error> = (0..all).map(|_| segment.u8()).collect();
        let mut table = Huffman {
            short: [(0, 0); 1 << SHORT],
            end: [0; 17],
            offset: [0; 17],
            symbols: symbols?,
        };
        let (mut code, mut place) = (0u32, 0usize);
        for (bits, count) in counts.into_iter().enumerate().skip(1) {
            table.offset[bits] = place as i32 - code as i32;
            for _ in 0..count {
                if code >= 1 << bits {
                    return Err(damaged(
                        "the JPEG has a table with more codes than there are",
                    ));
                }
                if bits <= SHORT {
                    let begins = (code as usize) << (SHORT - bits);
                    let entries = &mut table.short[begins..begins + (1 << (SHORT - bits))];
                    entries.fill((bits as u8, table.symbols[place]));
                }
                code += 1;
                place += 1;
            }
            table.end[bits] = code << (16 - bits);
            code <<= 1;
        }
        Ok(table)
    }
}

/// Bit reader over a scan's data, up to the next marker.
pub(super) struct Bits<'a> {
    rest: &'a [u8],
    /// Buffered bits, from the highest on; zeros after them.
    next: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Bits<'a> {
        Bits {
            rest: data,
            next: 0,
            count: 0,
        }
    }

    /// Returns the bytes not yet buffered.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Buffers whole bytes, unless a marker or the end of the file follows.
    fn fill(&mut self) {
        while self.count <= 56 {
            let byte = match self.rest {
                // fill bytes before a marker or a stuffed 0xff
                [0xff, 0xff, ..] => {
                    self.rest = &self.rest[1..];
                    continue;
                }
                [0xff, 0, behind @ ..] => {
                    self.rest = behind;
                    0xff
                }
                [] | [0xff, ..] => return,
                [byte, behind @ ..] => {
                    self.rest = behind;
                    *byte
                }
            };
            self.next |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Skips the restart marker, which must follow.
    pub(super) fn restart(&mut self) -> Result<(), Error> {
        let mut input = Input::new(self.rest);
        if !marker::is_restart(input.marker()?) {
            return Err(damaged("the JPEG lacks a restart marker"));
        }
        *self = Bits::new(input.rest());
        Ok(())
    }

    fn skip(&mut self, bits: u32) -> Result<(), Error> {
        if bits > self.count {
            return Err(damaged("the JPEG's data ends before its image"));
        }
        self.next <<= bits;
        self.count -= bits;
        Ok(())
    }

    /// Reads an unsigned number of up to 16 bits.
    pub(super) fn number(&mut self, bits: u32) -> Result<i32, Error> {
        if bits == 0 {
            return Ok(0);
        }
        if self.count < bits {
            self.fill();
        }
        let number = (self.next >> (64 - bits)) as i32;
        self.skip(bits)?;
        Ok(number)
    }

    pub(super) fn bit(&mut self) -> Result<bool, Error> {
        Ok(self.number(1)? == 1)
    }

    /// Reads a signed number of a coefficient: the lower half of the range encodes negative values.
    pub(super) fn signed(&mut self, bits: u32) -> Result<i32, Error> {
        let number = self.number(bits)?;
        let is_negative = bits > 0 && number < 1 << (bits - 1);
        Ok(number - if is_negative { (1 << bits) - 1 } else { 0 })
    }

    /// Reads the symbol of the next code.
    pub(super) fn symbol(&mut self, table: &Huffman) -> Result<u8, Error> {
        if self.count < 16 {
            self.fill();
        }
        let next = (self.next >> 48) as u32;
        let (bits, symbol) = table.short[next as usize >> (16 - SHORT)];
        if bits > 0 {
            self.skip(u32::from(bits))?;
            return Ok(symbol);
        }
        let bits = (SHORT + 1..=16).find(|bits| next < table.end[*bits]);
        let bits = bits.ok_or_else(|| damaged("the JPEG's data has an unknown code"))?;
        let place = (next >> (16 - bits)) as i32 + table.offset[bits];
        self.skip(bits as u32)?;
        let symbol = usize::try_from(place)
            .ok()
            .and_then(|i| table.symbols.get(i));
        symbol
            .copied()
            .ok_or_else(|| damaged("the JPEG's data has an unknown code"))
    }
}
