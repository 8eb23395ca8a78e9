//! The size of an image and its colour components.

use super::idct::idct;
use super::input::Input;
use super::{Tables, damaged};
use crate::Error;
use crate::pixels::image::Limits;

/// A partly decoded image.
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) is_progressive: bool,
    pub(super) components: Vec<Component>,
    /// Maximum sampling factors of the components, horizontal and vertical.
    pub(super) most: [usize; 2],
    /// MCUs per row and per column.
    pub(super) units: [usize; 2],
}

/// One colour component.
pub(super) struct Component {
    pub(super) id: u8,
    /// Sampling factors: blocks per MCU, horizontal and vertical.
    pub(super) per_unit: [usize; 2],
    /// Index of its quantization table.
    pub(super) steps: usize,
    /// Visible samples per row and per column.
    pub(super) size: [usize; 2],
    /// Blocks per row, including padding.
    pub(super) blocks_across: usize,
    /// Whether a scan contained it.
    pub(super) has_data: bool,
    /// Samples of whole blocks, row by row.
    pub(super) samples: Vec<u8>,
    /// For progressive images: the coefficients of all blocks, 64 each, before the inverse DCT.
    pub(super) values: Vec<i16>,
}

impl Frame {
    pub(super) fn read(code: u8, mut segment: Input<'_>, limits: &Limits) -> Result<Frame, Error> {
        let other = |got: String| Error::Format { got };
        if !(0xc0..=0xc2).contains(&code) {
            let kind = "lossless, hierarchical or arithmetic-coded";
            return Err(other(format!("a {kind} JPEG")));
        }
        let bits = segment.u8()?;
        if bits != 8 {
            return Err(other(format!("a JPEG of {bits} bits a colour")));
        }
        let height = usize::from(segment.u16()?);
        let width = usize::from(segment.u16()?);
        if width == 0 || height == 0 {
            return Err(damaged(format!("{width} x {height} pixels")));
        }
        let count = usize::from(segment.u8()?);
        if ![1, 3, 4].contains(&count) {
            return Err(other(format!("a JPEG of {count} components")));
        }
        let components = (0..count).map(|_| Component::read(&mut segment));
        let mut components = components.collect::<Result<Vec<_>, Error>>()?;
        if !segment.is_empty() {
            return Err(damaged("the JPEG's frame is longer than its components"));
        }
        let most = [0, 1].map(|i| components.iter().map(|c| c.per_unit[i]).max().unwrap_or(1));
        let is_whole = |c: &Component| (0..2).all(|i| most[i].is_multiple_of(c.per_unit[i]));
        if !components.iter().all(is_whole) {
            return Err(other("a JPEG whose colours have fractional scales".into()));
        }
        let units = [width.div_ceil(8 * most[0]), height.div_ceil(8 * most[1])];
        for component in &mut components {
            let [across, down] = component.per_unit;
            component.size = [
                (width * across).div_ceil(most[0]),
                (height * down).div_ceil(most[1]),
            ];
            component.blocks_across = units[0] * across;
        }
        let mut frame = Frame {
            width,
            height,
            is_progressive: code == 0xc2,
            components,
            most,
            units,
        };
        frame.reserve(limits)?;
        Ok(frame)
    }

    /// Allocates the buffers of all scans, if the limits allow.
    fn reserve(&mut self, limits: &Limits) -> Result<(), Error> {
        let down = |component: &Component| self.units[1] * component.per_unit[1];
        let sizes = self
            .components
            .iter()
            .map(|c| 64 * c.blocks_across * down(c));
        let sizes: Vec<usize> = sizes.collect();
        let pixels = self.width * self.height;
        let per_sample = if self.is_progressive { 3 } else { 1 };
        let memory = (per_sample * sizes.iter().sum::<usize>() + 3 * pixels) as u64;
        if pixels > limits.pixels || memory > limits.memory {
            return Err(Error::TooManyPixels {
                width: self.width,
                height: self.height,
                // the limit for images of this kind
                most: limits
                    .pixels
                    .min((limits.memory * pixels as u64 / memory) as usize),
            });
        }
        for (component, size) in self.components.iter_mut().zip(sizes) {
            component.samples = vec![0; size];
            if self.is_progressive {
                component.values = vec![0; size];
            }
        }
        Ok(())
    }

    /// Turns a progressive image's coefficients into samples, once they are complete.
    pub(super) fn finish(&mut self, tables: &Tables) -> Result<(), Error> {
        if !self.is_progressive {
            return Ok(());
        }
        for component in &mut self.components {
            let steps = tables.steps(component.steps)?;
            let values = std::mem::take(&mut component.values);
            for (index, values) in values.as_chunks::<64>().0.iter().enumerate() {
                // as stb_image, which keeps the lower 16 bits of values that no encoder writes
                let value = |i: usize| (i32::from(values[i]) * i32::from(steps[i])) as i16;
                component.set_block(index, &std::array::from_fn(value));
            }
        }
        Ok(())
    }
}

impl Component {
    fn read(segment: &mut Input<'_>) -> Result<Component, Error> {
        let id = segment.u8()?;
        let sides = segment.u8()?;
        let per_unit = [usize::from(sides >> 4), usize::from(sides & 15)];
        let steps = usize::from(segment.u8()?);
        if per_unit.iter().any(|side| !(1..=4).contains(side)) || steps > 3 {
            return Err(damaged("the JPEG has a component that cannot be"));
        }
        Ok(Component {
            id,
            per_unit,
            steps,
            size: [0; 2],
            blocks_across: 0,
            has_data: false,
            samples: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Turns a block's coefficients into samples.
    pub(super) fn set_block(&mut self, index: usize, values: &[i16; 64]) {
        let width = 8 * self.blocks_across;
        let (x, y) = (index % self.blocks_across, index / self.blocks_across);
        let at = 8 * (y * width + x);
        for (row, samples) in idct(values).iter().enumerate() {
            let at = at + row * width;
            self.samples[at..at + 8].copy_from_slice(samples);
        }
    }
}
