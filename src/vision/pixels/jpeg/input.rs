//! The bytes of a JPEG file: markers and their segments.

use super::damaged;
use crate::Error;

/// Marker codes: the byte after 0xff.
pub(super) mod marker {
    pub(in super::super) const HUFFMAN: u8 = 0xc4;
    pub(in super::super) const START_OF_IMAGE: u8 = 0xd8;
    pub(in super::super) const END_OF_IMAGE: u8 = 0xd9;
    pub(in super::super) const START_OF_SCAN: u8 = 0xda;
    pub(in super::super) const STEPS: u8 = 0xdb;
    pub(in super::super) const LINES: u8 = 0xdc;
    pub(in super::super) const RESTART_INTERVAL: u8 = 0xdd;
    pub(in super::super) const JFIF: u8 = 0xe0;
    pub(in super::super) const ADOBE: u8 = 0xee;
    pub(in super::super) const COMMENT: u8 = 0xfe;

    pub(in super::super) fn is_restart(code: u8) -> bool {
        (0xd0..=0xd7).contains(&code)
    }

    /// Returns whether the code starts a frame header (SOF), of any kind of JPEG.
    pub(in super::super) fn is_frame(code: u8) -> bool {
        // the range also has codes for tables, extensions and arithmetic coding
        (0xc0..=0xcf).contains(&code) && ![0xc4, 0xc8, 0xcc].contains(&code)
    }

    pub(in super::super) fn is_application(code: u8) -> bool {
        (0xe0..=0xef).contains(&code)
    }
}

/// The unread bytes of a file or a segment.
pub(super) struct Input<'a> {
    rest: &'a [u8],
    /// Error message for an early end.
    if_short: &'static str,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input {
            rest: bytes,
            if_short: "the JPEG is cut short: it has no end-of-image marker",
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    pub(super) fn u8(&mut self) -> Result<u8, Error> {
        let (first, rest) = self
            .rest
            .split_first()
            .ok_or_else(|| damaged(self.if_short))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    /// Reads up to and including the next marker; other bytes before it are padding.
    pub(super) fn marker(&mut self) -> Result<u8, Error> {
        loop {
            while self.u8()? != 0xff {}
            let mut code = self.u8()?;
            while code == 0xff {
                code = self.u8()?;
            }
            if code != 0 {
                return Ok(code);
            }
        }
    }

    /// Reads the segment that begins here and returns its content.
    pub(super) fn segment(&mut self) -> Result<Input<'a>, Error> {
        let bytes = usize::from(self.u16()?).checked_sub(2);
        let bytes = bytes.ok_or_else(|| damaged("the JPEG has a segment without a length"))?;
        let (segment, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or_else(|| damaged(self.if_short))?;
        self.rest = rest;
        Ok(Input {
            rest: segment,
            if_short: "the JPEG has a segment that is too short",
        })
    }
}
