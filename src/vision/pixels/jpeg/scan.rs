//! A scan: data of some components, or of some of their bits.

use super::bits::{Bits, Huffman};
use super::block::{self, Band};
use super::frame::Frame;
use super::input::Input;
use super::{Tables, damaged};
use crate::Error;

/// A scan's header.
pub(super) struct Scan {
    parts: Vec<ScanComponent>,
    band: Band,
}

/// A component in a scan.
struct ScanComponent {
    component: usize,
    /// Indices of its Huffman tables.
    dc: usize,
    ac: usize,
}

/// Decoder state within a scan's data.
struct State<'a> {
    bits: Bits<'a>,
    /// Previous DC coefficient of each component.
    before: [i32; 4],
    /// Number of following blocks without coefficients of the band (EOBRUN).
    empty: u32,
}

impl Scan {
    /// Reads a scan's header, and marks its components as present.
    pub(super) fn read(mut segment: Input<'_>, frame: &mut Frame) -> Result<Scan, Error> {
        let count = usize::from(segment.u8()?);
        if !(1..=frame.components.len()).contains(&count) {
            return Err(damaged(format!(
                "the JPEG has a scan of {count} components"
            )));
        }
        let mut parts: Vec<ScanComponent> = Vec::with_capacity(count);
        for _ in 0..count {
            let id = segment.u8()?;
            let component = frame.components.iter().position(|c| c.id == id);
            let component =
                component.ok_or_else(|| damaged("the JPEG has a scan of no component"))?;
            if parts.iter().any(|part| part.component == component) {
                return Err(damaged("the JPEG has a scan with a component twice"));
            }
            let tables = segment.u8()?;
            parts.push(ScanComponent {
                component,
                dc: usize::from(tables >> 4),
                ac: usize::from(tables & 15),
            });
        }
        let [first, last] = [segment.u8()?, segment.u8()?].map(usize::from);
        let shifts = segment.u8()?;
        let (before, shift) = (shifts >> 4, u32::from(shifts & 15));
        let is_possible = match frame.is_progressive {
            // DC coefficients have their own scans; AC scans have one component
            true if first == 0 => last == 0 && shift <= 13,
            true => first <= last && last <= 63 && shift <= 13 && count == 1,
            false => first == 0 && shifts == 0,
        };
        if !is_possible || !segment.is_empty() {
            return Err(damaged("the JPEG has a scan that cannot be"));
        }
        let band = Band {
            first,
            last,
            refines: before > 0,
            shift,
        };
        for part in &parts {
            let component = &mut frame.components[part.component];
            let begins = !frame.is_progressive || (first == 0 && before == 0);
            if frame.is_progressive && begins == component.has_data {
                return Err(damaged("the JPEG has scans in an order that cannot be"));
            }
            component.has_data = true;
        }
        Ok(Scan { parts, band })
    }

    /// Decodes the scan's data, and skips it in `input`.
    pub(super) fn decode(
        &self,
        frame: &mut Frame,
        tables: &Tables,
        input: &mut Input<'_>,
    ) -> Result<(), Error> {
        let data = input.rest();
        let mut state = State {
            bits: Bits::new(data),
            before: [0; 4],
            empty: 0,
        };
        // a scan of one component has only the visible blocks, one by one
        let alone = match &self.parts[..] {
            [part] => Some(frame.components[part.component].size.map(|n| n.div_ceil(8))),
            _ => None,
        };
        let [across, down] = alone.unwrap_or(frame.units);
        let mut left = tables.restart;
        for unit in 0..across * down {
            if tables.restart > 0 {
                if left == 0 {
                    state.bits.restart()?;
                    state.before = [0; 4];
                    state.empty = 0;
                    left = tables.restart;
                }
                left -= 1;
            }
            let (x, y) = (unit % across, unit / across);
            for part in &self.parts {
                let component = &frame.components[part.component];
                let blocks_across = component.blocks_across;
                let [w, h] = alone.map_or(component.per_unit, |_| [1, 1]);
                for i in 0..w * h {
                    let at = (y * h + i / w) * blocks_across + x * w + i % w;
                    self.block(part, at, frame, tables, &mut state)?;
                }
            }
        }
        input.skip(data.len() - state.bits.rest().len());
        Ok(())
    }

    fn block(
        &self,
        part: &ScanComponent,
        at: usize,
        frame: &mut Frame,
        tables: &Tables,
        state: &mut State<'_>,
    ) -> Result<(), Error> {
        let component = &mut frame.components[part.component];
        let before = &mut state.before[part.component];
        let bits = &mut state.bits;
        if !frame.is_progressive {
            let codes = [codes(&tables.dc, part.dc)?, codes(&tables.ac, part.ac)?];
            let steps = tables.steps(component.steps)?;
            let values = block::whole(bits, codes, steps, before)?;
            component.set_block(at, &values);
            return Ok(());
        }
        let values = &mut component.values.as_chunks_mut::<64>().0[at];
        let band = self.band;
        match (band.first, band.refines) {
            (0, refines) => {
                let codes = match refines {
                    true => None,
                    false => Some(codes(&tables.dc, part.dc)?),
                };
                block::progressive_mean(bits, codes, band, before, &mut values[0])
            }
            (_, false) => {
                let codes = codes(&tables.ac, part.ac)?;
                block::begin(bits, codes, band, &mut state.empty, values)
            }
            (_, true) => {
                let codes = codes(&tables.ac, part.ac)?;
                block::refine(bits, codes, band, &mut state.empty, values)
            }
        }
    }
}

fn codes(tables: &[Option<Huffman>; 4], index: usize) -> Result<&Huffman, Error> {
    let codes = tables.get(index).and_then(Option::as_ref);
    codes.ok_or_else(|| damaged("the JPEG lacks a table of codes"))
}
