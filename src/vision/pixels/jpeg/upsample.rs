//! Chroma upsampling: rows of a component at the size of the image.

use super::frame::{Component, Frame};

/// A component's rows in order.
pub(super) struct Rows<'a> {
    component: &'a Component,
    /// Pixels per sample, horizontal and vertical.
    scale: [usize; 2],
    row: Vec<u8>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(frame: &Frame, component: &'a Component) -> Rows<'a> {
        let scale = [0, 1].map(|i| frame.most[i] / component.per_unit[i]);
        Rows {
            component,
            scale,
            row: vec![0; component.size[0] * scale[0]],
        }
    }

    /// Returns row `y` of the image, possibly with padding.
    pub(super) fn get(&mut self, y: usize) -> &[u8] {
        let nearest = y / self.scale[1];
        let near = samples(self.component, nearest);
        // factor 2 interpolates between sample centres; other factors repeat the nearest
        let between = match y % 2 {
            0 => nearest.saturating_sub(1),
            _ => (nearest + 1).min(self.component.size[1] - 1),
        };
        match self.scale {
            [1, 1] => self.row.copy_from_slice(near),
            [1, 2] => {
                let far = samples(self.component, between);
                for (to, (near, far)) in self.row.iter_mut().zip(near.iter().zip(far)) {
                    *to = ((3 * u16::from(*near) + u16::from(*far) + 2) >> 2) as u8;
                }
            }
            [2, 1] => across(near, &mut self.row),
            [2, 2] => both(near, samples(self.component, between), &mut self.row),
            [times, _] => {
                for (to, sample) in self.row.chunks_exact_mut(times).zip(near) {
                    to.fill(*sample);
                }
            }
        }
        &self.row
    }
}

/// Returns the visible part of a component's row.
fn samples(component: &Component, row: usize) -> &[u8] {
    let at = row * 8 * component.blocks_across;
    &component.samples[at..at + component.size[0]]
}

/// Doubles samples horizontally.
fn across(samples: &[u8], to: &mut [u8]) {
    let n = samples.len();
    let value = |i: usize| u16::from(samples[i]);
    let mixed = |much: usize, little: usize| ((3 * value(much) + value(little) + 2) >> 2) as u8;
    for (i, pair) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        pair[0] = match i {
            0 => samples[0],
            // here stb_image gives the farther sample the larger weight
            _ if i == n - 1 => mixed(i - 1, i),
            _ => mixed(i, i - 1),
        };
        pair[1] = if i == n - 1 {
            samples[i]
        } else {
            mixed(i, i + 1)
        };
    }
}

/// Doubles samples horizontally and vertically, between two rows.
fn both(near: &[u8], far: &[u8], to: &mut [u8]) {
    let n = near.len();
    // two fraction bits after the vertical step, four after both
    let down = |i: usize| 3 * u16::from(near[i]) + u16::from(far[i]);
    let mixed = |much: usize, little: usize| ((3 * down(much) + down(little) + 8) >> 4) as u8;
    let edge = |i: usize| ((down(i) + 2) >> 2) as u8;
    for (i, pair) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        pair[0] = if i == 0 { edge(0) } else { mixed(i, i - 1) };
        pair[1] = if i == n - 1 { edge(i) } else { mixed(i, i + 1) };
    }
}
