//! The order of a vision encoder's rows in the image.

use std::ops::Range;

/// The order of a vision encoder's rows. The patches of an image token, a square, are consecutive:
/// from left to right, then from top to bottom. So are image tokens; with windows, window by
/// window.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Image tokens per row.
    pub(super) nx: usize,
    /// Rows of image tokens.
    pub(super) ny: usize,
    /// Patches per side of an image token.
    pub(super) merge: usize,
    /// Row and column of each patch.
    pub(super) places: Vec<[usize; 2]>,
    /// Range of patches of each window; a single one without window attention.
    pub(super) windows: Vec<Range<usize>>,
    /// Index in the encoder's order of every image token, in raster order.
    pub(super) raster: Vec<usize>,
}

impl Layout {
    /// Creates the layout; windows have `side` image tokens per side. Those at the right and bottom
    /// edges may be smaller.
    pub(super) fn new([nx, ny]: [usize; 2], merge: usize, side: Option<usize>) -> Self {
        let side = side.unwrap_or(nx.max(ny).max(1));
        let mut layout = Self {
            nx,
            ny,
            merge,
            places: Vec::new(),
            windows: Vec::new(),
            raster: vec![0; nx * ny],
        };
        for top in (0..ny).step_by(side) {
            for left in (0..nx).step_by(side) {
                let rows = top..ny.min(top + side);
                layout.add_window(rows, left..nx.min(left + side));
            }
        }
        layout
    }

    fn add_window(&mut self, rows: Range<usize>, columns: Range<usize>) {
        let (start, m) = (self.places.len(), self.merge);
        for y in rows {
            for x in columns.clone() {
                self.raster[y * self.nx + x] = self.places.len() / (m * m);
                let patch = |i: usize| [m * y + i / m, m * x + i % m];
                self.places.extend((0..m * m).map(patch));
            }
        }
        self.windows.push(start..self.places.len());
    }

    /// Returns the patches per row and per column.
    pub(super) fn patches(&self) -> [usize; 2] {
        [self.merge * self.nx, self.merge * self.ny]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_by_two_patches_follow_each_other() {
        let layout = Layout::new([2, 1], 2, None);
        let [left, right] = [
            [[0, 0], [0, 1], [1, 0], [1, 1]],
            [[0, 2], [0, 3], [1, 2], [1, 3]],
        ];
        assert_eq!(layout.places, [left, right].concat());
        assert_eq!(layout.windows.len(), 1);
        assert_eq!(layout.windows[0], 0..8);
        assert_eq!(layout.raster, [0, 1]);
        assert_eq!(layout.patches(), [4, 2]);
    }

    #[test]
    fn windows_follow_each_other_and_those_at_the_edge_are_smaller() {
        let layout = Layout::new([3, 3], 2, Some(2));
        assert_eq!(layout.windows, [0..16, 16..24, 24..32, 32..36]);
        assert_eq!(layout.raster, [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        // the second window is the third column of image tokens
        assert_eq!(
            layout.places[16..24].concat(),
            [0, 4, 0, 5, 1, 4, 1, 5, 2, 4, 2, 5, 3, 4, 3, 5]
        );
    }

    #[test]
    fn an_image_without_patches_has_no_rows() {
        let layout = Layout::new([0, 0], 2, Some(4));
        assert!(layout.places.is_empty() && layout.raster.is_empty());
    }
}
