//! Codes and numbers in the data of a scan.

use super::damaged;
use super::input::{Input, marker};
use crate::Error;

/// Codes of up to so many bits are looked up at once.
const SHORT: usize = 9;

/// A table of codes.
pub(super) struct Huffman {
    /// By the next bits: a short code's bits and its symbol; 0 bits if the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// By bits of a code: the first 16 bits of data that begin with no code as short as it.
    end: [u32; 17],
    /// By bits of a code: what makes of a code its place among the symbols.
    offset: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    /// Reads how many codes of each length there are, and their symbols.
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

/// The bits of a scan's data, up to the next marker.
pub(super) struct Bits<'a> {
    rest: &'a [u8],
    /// The next bits, from the highest on; zeros behind them.
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

    /// What is left behind the bytes that were looked at.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes in whole bytes, unless a marker or the end of the file is there.
    fn fill(&mut self) {
        while self.count <= 56 {
            let byte = match self.rest {
                // filling before a marker, or before what looked like one
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

    /// Goes on behind the restart marker that must come next.
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
            return Err(damaged("the JPEG's data ends before its picture"));
        }
        self.next <<= bits;
        self.count -= bits;
        Ok(())
    }

    /// A number of so many bits, 16 at most.
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

    /// A number of so many bits whose lower half stands for negative numbers.
    pub(super) fn signed(&mut self, bits: u32) -> Result<i32, Error> {
        let number = self.number(bits)?;
        let is_negative = bits > 0 && number < 1 << (bits - 1);
        Ok(number - if is_negative { (1 << bits) - 1 } else { 0 })
    }

    /// The symbol of the next code.
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
