//! Where the rows of a tower are in the image.

use std::ops::Range;

/// The order of a tower's rows. Two by two patches become one row of the text model, and follow
/// each other: upper left, upper right, lower left, lower right. Such squares go from the left,
/// then from the top; where there are windows, first all those of a window.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Squares of two by two patches across.
    pub(super) nx: usize,
    /// And down.
    pub(super) ny: usize,
    /// Row and column of each patch.
    pub(super) places: Vec<[usize; 2]>,
    /// The patches of each window; without windows all patches are in one.
    pub(super) windows: Vec<Range<usize>>,
    /// For every square, counted from the left, then from the top: which one it is in the tower.
    pub(super) raster: Vec<usize>,
}

impl Layout {
    /// `side`: squares along a side of a window. Windows at the right and below may be smaller.
    pub(super) fn new(nx: usize, ny: usize, side: Option<usize>) -> Self {
        let side = side.unwrap_or(nx.max(ny).max(1));
        let mut layout = Self {
            nx,
            ny,
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
        let start = self.places.len();
        for y in rows {
            for x in columns.clone() {
                self.raster[y * self.nx + x] = self.places.len() / 4;
                let patches = [[0, 0], [0, 1], [1, 0], [1, 1]];
                self.places
                    .extend(patches.map(|[dy, dx]| [2 * y + dy, 2 * x + dx]));
            }
        }
        self.windows.push(start..self.places.len());
    }

    /// Patches across and down.
    pub(super) fn patches(&self) -> [usize; 2] {
        [2 * self.nx, 2 * self.ny]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_by_two_patches_follow_each_other() {
        let layout = Layout::new(2, 1, None);
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
        let layout = Layout::new(3, 3, Some(2));
        assert_eq!(layout.windows, [0..16, 16..24, 24..32, 32..36]);
        assert_eq!(layout.raster, [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        // the second window is the third column of squares
        assert_eq!(
            layout.places[16..24].concat(),
            [0, 4, 0, 5, 1, 4, 1, 5, 2, 4, 2, 5, 3, 4, 3, 5]
        );
    }

    #[test]
    fn an_image_without_patches_has_no_rows() {
        let layout = Layout::new(0, 0, Some(4));
        assert!(layout.places.is_empty() && layout.raster.is_empty());
    }
}
