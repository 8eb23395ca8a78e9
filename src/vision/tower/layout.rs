//! The order of a vision encoder's rows in the image.

use std::ops::Range;

use octavo_kernels::RopePosition;

/// RoPE axes of patches, as in [`RopePosition`].
pub(super) const ROW: usize = 1;
pub(super) const COLUMN: usize = 2;

/// The order of a vision encoder's rows. The patches of an image token are consecutive: a square,
/// from left to right, then from top to bottom. So are image tokens; with windows, window by
/// window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// Side of an image token in patches.
    pub merge: usize,
    /// Row and column of each patch.
    pub places: Vec<[usize; 2]>,
    /// Rows after those of the patches: the class row, and more to make it an image token.
    pub extra: usize,
    /// End of each window, in patches; a single window where there is no window attention.
    pub windows: Vec<usize>,
    /// Index in the encoder's order of every image token, in raster order.
    pub raster: Vec<usize>,
}

impl Layout {
    /// Creates the layout of `nx * ny` image tokens of `merge * merge` patches. Windows are squares
    /// of `side` tokens; those at the right and bottom edges may be smaller.
    pub fn new(nx: usize, ny: usize, merge: usize, side: Option<usize>) -> Layout {
        let side = side.unwrap_or(nx.max(ny)).max(1);
        let mut layout = Layout {
            nx,
            ny,
            merge,
            places: Vec::with_capacity(nx * ny * merge * merge),
            extra: 0,
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

    /// Adds rows after those of the patches. Patches see the first of them, and the others see each
    /// other.
    pub fn with_extra_rows(mut self, extra: usize) -> Layout {
        let end = self.places.len();
        self.extra = extra;
        if extra > 0 {
            self.windows.pop();
            self.windows.push(end + 1);
        }
        if extra > 1 {
            self.windows.push(end + extra);
        }
        self
    }

    /// Leaves out the row of the first image token; the class row is the last one.
    pub fn without_first_row(mut self) -> Layout {
        self.raster.iter_mut().for_each(|at| *at += 1);
        self
    }

    /// Returns the number of rows: one for each patch, and the extra ones.
    pub fn rows(&self) -> usize {
        self.places.len() + self.extra
    }

    /// Returns the number of rows without those that fill up the class row's image token.
    pub fn attended_rows(&self) -> usize {
        self.places.len() + self.extra.min(1)
    }

    fn add_window(&mut self, rows: Range<usize>, columns: Range<usize>) {
        let merge = self.merge;
        for y in rows {
            for x in columns.clone() {
                self.raster[y * self.nx + x] = self.places.len() / (merge * merge);
                for dy in 0..merge {
                    let row = merge * y + dy;
                    let patches = (0..merge).map(|dx| [row, merge * x + dx]);
                    self.places.extend(patches);
                }
            }
        }
        self.windows.push(self.places.len());
    }

    /// Returns the patches per row and per column.
    pub fn patches(&self) -> [usize; 2] {
        [self.merge * self.nx, self.merge * self.ny]
    }

    /// Returns the index in the encoder's order of every patch, in raster order, and of the class
    /// row.
    pub fn raster_of_patches(&self) -> Vec<usize> {
        let mut order = vec![0; self.places.len()];
        for (i, [row, column]) in self.places.iter().enumerate() {
            order[row * self.patches()[0] + column] = i;
        }
        let class = self.places.len();
        order.extend((self.extra > 0).then_some(class));
        order
    }

    /// Returns the RoPE position of each row.
    pub fn rope_positions(&self) -> Vec<RopePosition> {
        let rope_positions = |[row, column]: &[usize; 2]| [0, *row as u32, *column as u32];
        let extra = std::iter::repeat_n([0; 3], self.extra);
        self.places
            .iter()
            .map(rope_positions)
            .chain(extra)
            .collect()
    }

    /// Returns the pixels of each row's patch, `[rows][3][patch][patch]`, from planes
    /// `[3][height][width]`; those of extra rows are 0. Pixels after the last whole patch are left
    /// out.
    pub fn pixels(&self, planes: &[f32], width: usize, patch: usize) -> Vec<f32> {
        let height = planes.len() / (3 * width).max(1);
        let n_patch = 3 * patch * patch;
        let mut values = Vec::with_capacity(self.rows() * n_patch);
        for [row, column] in &self.places {
            for colour in 0..3 {
                for y in row * patch..(row + 1) * patch {
                    let start = (colour * height + y) * width + column * patch;
                    values.extend_from_slice(&planes[start..start + patch]);
                }
            }
        }
        values.resize(self.rows() * n_patch, 0.0);
        values
    }

    /// Reorders the encoder's rows of `width` values, one per image token, to raster order, with
    /// `end` after every line of image tokens but the last.
    pub fn in_raster_order(&self, rows: &[f32], width: usize, end: Option<&[f32]>) -> Vec<f32> {
        // allocated once: for a large image this is 100 MB and more
        let ends = end.map_or(0, <[f32]>::len) * (self.ny - 1);
        let mut ordered = Vec::with_capacity(rows.len() + ends);
        for (y, line) in self.raster.chunks_exact(self.nx).enumerate() {
            for at in line {
                ordered.extend_from_slice(&rows[at * width..(at + 1) * width]);
            }
            let end = end.filter(|_| y + 1 < self.ny);
            ordered.extend(end.into_iter().flatten());
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_by_two_patches_follow_each_other() {
        let layout = Layout::new(2, 1, 2, None);
        let left = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let right = [[0, 2], [0, 3], [1, 2], [1, 3]];
        assert_eq!(layout.places, [left, right].concat());
        assert_eq!(
            (&layout.windows[..], &layout.raster[..]),
            (&[8][..], &[0, 1][..])
        );
        assert_eq!(layout.raster_of_patches(), [0, 1, 4, 5, 2, 3, 6, 7]);
    }

    #[test]
    fn windows_follow_each_other_and_cells_find_back() {
        let layout = Layout::new(3, 3, 2, Some(2));
        assert_eq!(layout.windows, [16, 24, 32, 36]);
        assert_eq!(layout.raster, [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        let rows: Vec<f32> = (0..9).map(|i| i as f32).collect();
        assert_eq!(
            layout.in_raster_order(&rows, 1, None),
            [0.0, 1.0, 4.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0]
        );
    }

    #[test]
    fn lines_but_the_last_have_an_end() {
        let layout = Layout::new(2, 3, 1, None);
        let rows: Vec<f32> = (0..6).map(|i| i as f32).collect();
        assert_eq!(
            layout.in_raster_order(&rows, 1, Some(&[9.0])),
            [0.0, 1.0, 9.0, 2.0, 3.0, 9.0, 4.0, 5.0]
        );
    }

    #[test]
    fn a_class_row_is_the_first_of_one_more_image_token() {
        let layout = Layout::new(2, 1, 2, None).with_extra_rows(4);
        assert_eq!((layout.rows(), &layout.windows[..]), (12, &[9, 12][..]));
        assert_eq!(layout.raster_of_patches(), [0, 1, 4, 5, 2, 3, 6, 7, 8]);
        assert_eq!(layout.rope_positions().len(), 12);
        let pixels = layout.pixels(&[1.0; 3 * 8], 4, 1);
        assert_eq!(pixels, [[1.0; 24].as_slice(), &[0.0; 12]].concat());
        let alone = Layout::new(2, 1, 1, None).with_extra_rows(1);
        assert_eq!((alone.rows(), &alone.windows[..]), (3, &[3][..]));
        let shifted = alone.without_first_row();
        let rows = shifted.in_raster_order(&[0.0, 1.0, 2.0], 1, None);
        assert_eq!(rows, [1.0, 2.0]);
    }

    #[test]
    fn patches_have_their_pixels_by_colour_and_row() {
        // 2 x 2 patches of 2 x 2 pixels
        let layout = Layout::new(1, 1, 2, None);
        let planes: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let pixels = layout.pixels(&planes, 4, 2);
        assert_eq!(
            pixels[..12],
            [0., 1., 4., 5., 16., 17., 20., 21., 32., 33., 36., 37.]
        );
        assert_eq!(pixels[36..40], [10., 11., 14., 15.]);
    }

    #[test]
    fn pixels_behind_the_last_patch_are_left_out() {
        let layout = Layout::new(1, 1, 1, None);
        let planes: Vec<f32> = (0..27).map(|i| i as f32).collect();
        let pixels = layout.pixels(&planes, 3, 2);
        assert_eq!(
            pixels,
            [0., 1., 3., 4., 9., 10., 12., 13., 18., 19., 21., 22.]
        );
    }
}
