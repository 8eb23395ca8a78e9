//! Decodes JPEG files to the same pixels as llama.cpp, to the bit.
//!
//! The standard leaves rounding and chroma upsampling to decoders. Libraries differ there in up to
//! half of the pixels, so this decoder follows stb_image, which llama.cpp uses. Files whose data is
//! cut short or lacks a part are refused, where stb_image makes up the rest.

mod bits;
mod block;
mod colour;
mod frame;
mod idct;
mod input;
mod scan;
mod upsample;

use super::image::{DecodedImage, Limits};
use crate::Error;
use bits::Huffman;
use frame::Frame;
use input::{Input, marker};
use scan::Scan;

/// Maximum number of scans, more than any encoder writes. Each costs time in proportion to the
/// image size, however few bytes it has.
const MAX_SCANS: usize = 100;

/// Index in a block of each coefficient in zigzag order.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Tables from the segments before a scan.
#[derive(Default)]
struct Tables {
    /// Quantization tables, row by row.
    steps: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    /// MCUs between restart markers; 0 for none.
    restart: usize,
    /// Whether there is a JFIF segment.
    jfif: bool,
    /// Colour transform in Adobe's segment.
    adobe: Option<u8>,
}

/// Decodes a JPEG file.
///
/// # Errors
/// If it is damaged, of a kind that stb_image does not read, or exceeds the limits.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<DecodedImage, Error> {
    let mut input = Input::new(bytes);
    let mut tables = Tables::default();
    let mut frame: Option<Frame> = None;
    let mut scans = 0;
    if input.marker()? != marker::START_OF_IMAGE {
        return Err(damaged("the JPEG has no start"));
    }
    loop {
        match (input.marker()?, &mut frame) {
            (marker::END_OF_IMAGE, _) => break,
            // some encoders write an extra restart marker after a scan
            (code, _) if marker::is_restart(code) => {}
            (code, None) if marker::is_frame(code) => {
                frame = Some(Frame::read(code, input.segment()?, limits)?);
            }
            (marker::START_OF_SCAN, Some(frame)) => {
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(damaged(format!("the JPEG has more than {MAX_SCANS} scans")));
                }
                let scan = Scan::read(input.segment()?, frame)?;
                scan.decode(frame, &tables, &mut input)?;
            }
            (marker::LINES, Some(frame)) => {
                if usize::from(input.segment()?.u16()?) != frame.height {
                    return Err(damaged("the JPEG says two heights"));
                }
            }
            (code, _) => tables.read(code, input.segment()?)?,
        }
    }
    let mut frame = frame.ok_or_else(|| damaged("the JPEG has no image"))?;
    if frame.components.iter().any(|component| !component.has_data) {
        return Err(damaged("the JPEG has no data for one of its components"));
    }
    frame.finish(&tables)?;
    Ok(DecodedImage {
        width: frame.width,
        height: frame.height,
        rgb: colour::rgb(&frame, &tables),
    })
}

impl Tables {
    fn read(&mut self, code: u8, mut segment: Input<'_>) -> Result<(), Error> {
        match code {
            marker::STEPS => {
                while !segment.is_empty() {
                    self.read_steps(&mut segment)?;
                }
            }
            marker::HUFFMAN => {
                while !segment.is_empty() {
                    self.read_huffman(&mut segment)?;
                }
            }
            marker::RESTART_INTERVAL => self.restart = usize::from(segment.u16()?),
            marker::JFIF => self.jfif |= segment.rest().starts_with(b"JFIF\0"),
            marker::ADOBE => {
                let content = segment.rest();
                if content.len() >= 12 && content.starts_with(b"Adobe\0") {
                    self.adobe = Some(content[11]);
                }
            }
            _ if marker::is_application(code) || code == marker::COMMENT => {}
            _ => return Err(damaged(format!("an unexpected JPEG segment {code:02x}"))),
        }
        Ok(())
    }

    fn read_steps(&mut self, segment: &mut Input<'_>) -> Result<(), Error> {
        let head = segment.u8()?;
        let bad = || damaged("the JPEG has a table of steps of no known kind");
        let slot = self.steps.get_mut(usize::from(head & 15)).ok_or_else(bad)?;
        let mut steps = [0; 64];
        for at in ZIGZAG {
            steps[usize::from(at)] = match head >> 4 {
                0 => u16::from(segment.u8()?),
                1 => segment.u16()?,
                _ => return Err(bad()),
            };
        }
        *slot = Some(steps);
        Ok(())
    }

    fn read_huffman(&mut self, segment: &mut Input<'_>) -> Result<(), Error> {
        let head = segment.u8()?;
        let of_kind = match head >> 4 {
            0 => &mut self.dc,
            1 => &mut self.ac,
            _ => return Err(damaged("the JPEG has a table of codes of no known kind")),
        };
        let slot = of_kind.get_mut(usize::from(head & 15));
        let slot = slot.ok_or_else(|| damaged("the JPEG has more than four tables of codes"))?;
        *slot = Some(Huffman::read(segment)?);
        Ok(())
    }

    fn steps(&self, index: usize) -> Result<&[u16; 64], Error> {
        let steps = self.steps.get(index).and_then(Option::as_ref);
        steps.ok_or_else(|| damaged("the JPEG lacks a table of steps"))
    }
}

fn damaged(why: impl Into<String>) -> Error {
    Error::Damaged { why: why.into() }
}
