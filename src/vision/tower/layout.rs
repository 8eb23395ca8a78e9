//! The order of a vision encoder's rows in the image.

use std::ops::Range;

use octavo_kernels::{MERGED_ROWS, RopePosition};

use super::hparams::MERGE;

/// The order of a vision encoder's rows. The 2 x 2 patches of an image token are consecutive: upper
/// left, upper right, lower left, lower right. Image tokens go from left to right, then from top to
/// bottom; with windows, window by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// Row and column of each patch.
    pub places: Vec<[usize; 2]>,
    /// End of each window, in patches; a single window where there is no window attention.
    pub windows: Vec<usize>,
    /// Index in the encoder's order of every image token, in raster order.
    pub raster: Vec<usize>,
}

impl Layout {
    /// Creates the layout of `nx * ny` image tokens. Windows are squares of `side` tokens; those at
    /// the right and bottom edges may be smaller.
    pub fn new(nx: usize, ny: usize, side: Option<usize>) -> Layout {
        let side = side.unwrap_or(nx.max(ny)).max(1);
        let mut layout = Layout {
            nx,
            ny,
            places: Vec::with_capacity(nx * ny * MERGED_ROWS),
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
        for y in rows {
            for x in columns.clone() {
                self.raster[y * self.nx + x] = self.places.len() / MERGED_ROWS;
                for dy in 0..MERGE {
                    let row = MERGE * y + dy;
                    let patches = (0..MERGE).map(|dx| [row, MERGE * x + dx]);
                    self.places.extend(patches);
                }
            }
        }
        self.windows.push(self.places.len());
    }

    /// Returns the patches per row and per column.
    pub fn patches(&self) -> [usize; 2] {
        [MERGE * self.nx, MERGE * self.ny]
    }

    /// Returns the RoPE position of each patch.
    pub fn rope_positions(&self) -> Vec<RopePosition> {
        let rope_positions = |[row, column]: &[usize; 2]| [0, *row as u32, *column as u32];
        self.places.iter().map(rope_positions).collect()
    }

    /// Returns the pixels of each patch, `[patches][3][patch][patch]`, from planes
    /// `[3][height][width]`.
    pub fn pixels(&self, planes: &[f32], patch: usize) -> Vec<f32> {
        let [across, down] = self.patches();
        let (width, height) = (across * patch, down * patch);
        let mut values = Vec::with_capacity(planes.len());
        for [row, column] in &self.places {
            for colour in 0..3 {
                for y in row * patch..(row + 1) * patch {
                    let start = (colour * height + y) * width + column * patch;
                    values.extend_from_slice(&planes[start..start + patch]);
                }
            }
        }
        values
    }

    /// Reorders the encoder's rows of `width` values, one per image token, to raster order.
    pub fn in_raster_order(&self, rows: &[f32], width: usize) -> Vec<f32> {
        // allocated once: for a large image this is 100 MB and more
        let mut ordered = Vec::with_capacity(rows.len());
        for at in &self.raster {
            ordered.extend_from_slice(&rows[at * width..(at + 1) * width]);
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_by_two_patches_follow_each_other() {
        let layout = Layout::new(2, 1, None);
        let left = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let right = [[0, 2], [0, 3], [1, 2], [1, 3]];
        assert_eq!(layout.places, [left, right].concat());
        assert_eq!(
            (&layout.windows[..], &layout.raster[..]),
            (&[8][..], &[0, 1][..])
        );
    }

    #[test]
    fn windows_follow_each_other_and_cells_find_back() {
        let layout = Layout::new(3, 3, Some(2));
        assert_eq!(layout.windows, [16, 24, 32, 36]);
        assert_eq!(layout.raster, [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        let rows: Vec<f32> = (0..9).map(|i| i as f32).collect();
        assert_eq!(
            layout.in_raster_order(&rows, 1),
            [0.0, 1.0, 4.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0]
        );
    }

    #[test]
    fn patches_have_their_pixels_by_colour_and_row() {
        // 2 x 2 patches of 2 x 2 pixels
        let layout = Layout::new(1, 1, None);
        let planes: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let pixels = layout.pixels(&planes, 2);
        assert_eq!(
            pixels[..12],
            [0., 1., 4., 5., 16., 17., 20., 21., 32., 33., 36., 37.]
        );
        assert_eq!(pixels[36..40], [10., 11., 14., 15.]);
    }
}
