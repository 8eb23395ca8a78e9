//! Position embeddings of patches.

use octavo_model::{Error, TensorBinder};

use super::Layout;
use super::hparams::Hparams;

const NAME: &str = "v.position_embd.weight";

/// Position embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionTable {
    kind: Kind,
    /// Entries per side of a square, or per axis.
    side: usize,
    /// Width of an entry.
    width: usize,
    /// `[side][side][width]`, or `[2][side][width]`: of columns and of rows.
    values: Vec<f32>,
    /// The class row.
    class: Option<Vec<f32>>,
}

/// How the entries of a table belong to patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A square grid, stretched over an image so that corners meet corners.
    Stretched,
    /// A square grid, resized to an image: linearly, with a kernel that widens when it shrinks.
    Resized,
    /// A square grid, one entry for each patch.
    Square,
    /// One entry for the column of a patch, and one for its row.
    Axes,
}

/// The kinds of tables, as functions that read them.
pub(super) struct Positions;

impl Positions {
    /// Reads a square grid that is stretched over images.
    pub(super) fn stretched(
        tensors: &mut TensorBinder<'_>,
        h: &Hparams,
    ) -> Result<PositionTable, Error> {
        grid(tensors, h, Kind::Stretched)
    }

    /// Reads a square grid that is resized to images.
    pub(super) fn resized(
        tensors: &mut TensorBinder<'_>,
        h: &Hparams,
    ) -> Result<PositionTable, Error> {
        grid(tensors, h, Kind::Resized)
    }

    /// Reads the entries of all patches of a square image.
    pub(super) fn of_square(
        tensors: &mut TensorBinder<'_>,
        h: &Hparams,
    ) -> Result<PositionTable, Error> {
        square(tensors, h, 0)
    }

    /// Reads the entries of all patches of a square image, with the bias of their kernels if the
    /// file has one, and behind them that of the class row, with the row itself.
    pub(super) fn of_square_and_class(
        tensors: &mut TensorBinder<'_>,
        h: &Hparams,
    ) -> Result<PositionTable, Error> {
        let mut table = square(tensors, h, 1)?;
        let has_bias = tensors.has("v.patch_embd.bias");
        let mut class = table.values.split_off(table.side * table.side * h.n_embd);
        let mut add = |name, row: &mut [f32]| {
            let by = tensors.vector(name, h.n_embd)?;
            let by = tensors.values(by);
            row.iter_mut()
                .zip(by.iter().cycle())
                .for_each(|(x, by)| *x += by);
            Ok(())
        };
        // CLIP has no bias
        if has_bias {
            add("v.patch_embd.bias", &mut table.values)?;
        }
        add("v.class_embd", &mut class)?;
        Ok(PositionTable {
            class: Some(class),
            ..table
        })
    }

    /// Reads the entries of columns and those of rows.
    pub(super) fn of_axes(
        tensors: &mut TensorBinder<'_>,
        h: &Hparams,
    ) -> Result<PositionTable, Error> {
        let both = |rows: &[u64]| matches!(rows, [n, 2] if *n > 0);
        let (rows, values) = tensors.rows(NAME, h.n_embd, "any number, 2", both)?;
        Ok(PositionTable {
            kind: Kind::Axes,
            side: rows[0],
            width: h.n_embd,
            values,
            class: None,
        })
    }
}

/// Reads a square grid of any side.
fn grid(tensors: &mut TensorBinder<'_>, h: &Hparams, kind: Kind) -> Result<PositionTable, Error> {
    let is_square = |rows: &[u64]| match rows {
        [rows] => *rows > 0 && rows.isqrt().pow(2) == *rows,
        _ => false,
    };
    let (rows, values) = tensors.rows(NAME, h.n_embd, "a square number of rows", is_square)?;
    Ok(PositionTable {
        kind,
        side: rows[0].isqrt(),
        width: h.n_embd,
        values,
        class: None,
    })
}

/// Reads an entry for each patch of a square image, and `more` entries behind them.
fn square(
    tensors: &mut TensorBinder<'_>,
    h: &Hparams,
    more: usize,
) -> Result<PositionTable, Error> {
    let side = h.image_size / h.patch;
    let n = side * side + more;
    let (_, values) = tensors.rows(NAME, h.n_embd, &n.to_string(), |rows| rows == [n as u64])?;
    Ok(PositionTable {
        kind: Kind::Square,
        side,
        width: h.n_embd,
        values,
        class: None,
    })
}

impl PositionTable {
    /// Returns the most patches along a side that have positions.
    pub fn most_patches(&self) -> usize {
        match self.kind {
            Kind::Stretched | Kind::Resized => usize::MAX,
            Kind::Square | Kind::Axes => self.side,
        }
    }

    /// Returns what is added to each row, `[rows][width]`, in the encoder's order; a stretched grid
    /// is interpolated between the four nearest entries, a resized one between all that a patch
    /// covers.
    ///
    /// # Panics
    /// If a side has more than [`PositionTable::most_patches`].
    pub fn rows(&self, layout: &Layout) -> Vec<f32> {
        let [across, down] = layout.patches();
        let mut rows = Vec::with_capacity(layout.rows() * self.width);
        let resized = |count| match self.kind {
            Kind::Resized => covered(count, self.side),
            _ => Vec::new(),
        };
        let (lines, columns) = (resized(down), resized(across));
        for [row, column] in &layout.places {
            match self.kind {
                Kind::Stretched => {
                    let y = Between::new(*row, down, self.side);
                    rows.extend(self.between(y, Between::new(*column, across, self.side)));
                }
                Kind::Resized => rows.extend(self.mean(&lines[*row], &columns[*column])),
                Kind::Square => rows.extend(self.entry(*row, *column)),
                Kind::Axes => {
                    let both = self.entry(0, *column).iter().zip(self.entry(1, *row));
                    rows.extend(both.map(|(x, y)| x + y));
                }
            }
        }
        rows.extend(self.class.iter().flatten());
        rows.resize(layout.rows() * self.width, 0.0);
        rows
    }

    fn entry(&self, line: usize, at: usize) -> &[f32] {
        &self.values[(line * self.side + at) * self.width..][..self.width]
    }

    /// Returns the weighted sum of the entries in these lines and columns.
    fn mean(&self, lines: &[(usize, f64)], columns: &[(usize, f64)]) -> Vec<f32> {
        let mut sums = vec![0.0; self.width];
        for (line, by_line) in lines {
            for (column, by_column) in columns {
                let entry = self.entry(*line, *column).iter();
                let weight = by_line * by_column;
                let sums = sums.iter_mut().zip(entry);
                sums.for_each(|(sum, x)| *sum += weight * f64::from(*x));
            }
        }
        sums.iter().map(|sum| *sum as f32).collect()
    }

    fn between(&self, y: Between, x: Between) -> impl Iterator<Item = f32> + '_ {
        let corners = [
            self.entry(y.low, x.low),
            self.entry(y.low, x.high),
            self.entry(y.high, x.low),
            self.entry(y.high, x.high),
        ];
        let weights = [
            (1.0 - y.share) * (1.0 - x.share),
            (1.0 - y.share) * x.share,
            y.share * (1.0 - x.share),
            y.share * x.share,
        ];
        (0..self.width).map(move |i| {
            let terms = corners.iter().zip(weights);
            let terms = terms.map(|(corner, weight)| f64::from(corner[i]) * weight);
            terms.sum::<f64>() as f32
        })
    }
}

/// Returns, for each of `count` patches in a line, those of `side` entries that it covers, and
/// their weights, whose sum is 1: a triangle around its centre, as wide as two entries or two
/// patches.
fn covered(count: usize, side: usize) -> Vec<Vec<(usize, f64)>> {
    let step = side as f64 / count as f64;
    let reach = step.max(1.0);
    let of_patch = |i: usize| {
        let centre = (i as f64 + 0.5) * step;
        let weight = |entry: usize| 1.0 - ((entry as f64 + 0.5 - centre) / reach).abs();
        let weights = (0..side).map(|entry| (entry, weight(entry)));
        let weights: Vec<(usize, f64)> = weights.filter(|(_, weight)| *weight > 0.0).collect();
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let share = |(entry, weight)| (entry, weight / sum);
        weights.into_iter().map(share).collect()
    };
    (0..count).map(of_patch).collect()
}

/// Two neighbouring entries, and the fraction of the way from the first to the second.
struct Between {
    low: usize,
    high: usize,
    share: f64,
}

impl Between {
    /// Maps position `i` of `count` to `side` entries.
    fn new(i: usize, count: usize, side: usize) -> Between {
        let source = match count {
            0 | 1 => (i * side) as f64,
            _ => (i * (side - 1)) as f64 / (count - 1) as f64,
        };
        let low = (source.floor() as usize).min(side - 1);
        Between {
            low,
            high: (low + 1).min(side - 1),
            share: source - source.floor(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_meet_corners() {
        let layout = Layout::new(1, 1, 2, None);
        let table = PositionTable {
            kind: Kind::Stretched,
            side: 3,
            width: 1,
            values: (0..9).map(|v| v as f32).collect(),
            class: None,
        };
        assert_eq!(table.rows(&layout), [0.0, 2.0, 6.0, 8.0]);
    }

    #[test]
    fn places_between_entries_have_a_share_of_each() {
        let table = PositionTable {
            kind: Kind::Stretched,
            side: 2,
            width: 2,
            values: vec![0.0, 10.0, 3.0, 10.0, 6.0, 10.0, 9.0, 10.0],
            class: None,
        };
        // four patches per side: thirds
        let layout = Layout::new(2, 2, 2, None);
        let rows = table.rows(&layout);
        for (place, row) in layout.places.iter().zip(rows.chunks(2)) {
            let expected = 6.0 * place[0] as f32 / 3.0 + 3.0 * place[1] as f32 / 3.0;
            assert!((row[0] - expected).abs() < 1e-6, "{place:?}: {row:?}");
            assert!((row[1] - 10.0).abs() < 1e-6, "{place:?}: {row:?}");
        }
    }

    #[test]
    fn entries_are_resized_with_the_weights_of_a_triangle() {
        // as many patches as entries
        assert_eq!(covered(2, 2), [vec![(0, 1.0)], vec![(1, 1.0)]]);
        // twice as many: a quarter of the way from one centre to the next
        let finer = covered(4, 2);
        assert_eq!(finer[0], [(0, 1.0)], "nothing lies before the first");
        assert_eq!(finer[1], [(0, 0.75), (1, 0.25)]);
        // half as many: the kernel is twice as wide
        let expected = [0.75, 0.75, 0.25].map(|weight| weight / 1.75);
        let coarser = covered(2, 4);
        let weights: Vec<f64> = coarser[0].iter().map(|(_, weight)| *weight).collect();
        assert_eq!(weights, expected);
        let table = PositionTable {
            kind: Kind::Resized,
            side: 2,
            width: 1,
            values: vec![0.0, 4.0, 8.0, 12.0],
            class: None,
        };
        // one row of two patches: columns as they are, rows averaged
        assert_eq!(table.rows(&Layout::new(2, 1, 1, None)), [4.0, 8.0]);
    }

    #[test]
    fn patches_have_the_entries_of_their_column_and_row() {
        let mut table = PositionTable {
            kind: Kind::Axes,
            side: 2,
            width: 1,
            values: vec![1.0, 2.0, 10.0, 20.0],
            class: None,
        };
        let layout = Layout::new(1, 1, 2, None);
        assert_eq!(table.rows(&layout), [11.0, 12.0, 21.0, 22.0]);
        table.kind = Kind::Square;
        assert_eq!(table.rows(&layout), [1.0, 2.0, 10.0, 20.0]);
        table.class = Some(vec![5.0]);
        let layout = layout.with_extra_rows(4);
        assert_eq!(table.rows(&layout)[3..], [20.0, 5.0, 0.0, 0.0, 0.0]);
    }
}
