//! Position embeddings of patches.

use octavo_model::{Error, TensorBinder};

use super::Layout;

const NAME: &str = "v.position_embd.weight";

/// A square grid of position embeddings, stretched over an image so that corners meet corners.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionTable {
    /// Entries per side.
    side: usize,
    /// Width of an entry.
    width: usize,
    /// `[side][side][width]`
    values: Vec<f32>,
}

impl PositionTable {
    /// Reads the file's table, with entries of `width` values.
    pub(super) fn bind(tensors: &mut TensorBinder<'_>, width: usize) -> Result<Self, Error> {
        let (rows, values) = tensors.rows(NAME, width, "a square number of rows", |rows| {
            let side = rows.isqrt();
            side > 0 && side * side == rows
        })?;
        Ok(PositionTable {
            side: rows.isqrt(),
            width,
            values,
        })
    }

    /// Returns one row per patch, `[patches][width]`, in the encoder's order, by bilinear
    /// interpolation of the four nearest entries.
    pub fn rows(&self, layout: &Layout) -> Vec<f32> {
        let [across, down] = layout.patches();
        let mut rows = Vec::with_capacity(layout.places.len() * self.width);
        for [row, column] in &layout.places {
            let (y, x) = (
                Between::new(*row, down, self.side),
                Between::new(*column, across, self.side),
            );
            let entry =
                |y: usize, x: usize| &self.values[(y * self.side + x) * self.width..][..self.width];
            let corners = [
                entry(y.low, x.low),
                entry(y.low, x.high),
                entry(y.high, x.low),
                entry(y.high, x.high),
            ];
            let weights = [
                (1.0 - y.share) * (1.0 - x.share),
                (1.0 - y.share) * x.share,
                y.share * (1.0 - x.share),
                y.share * x.share,
            ];
            rows.extend((0..self.width).map(|i| {
                let terms = corners.iter().zip(weights);
                let terms = terms.map(|(corner, weight)| f64::from(corner[i]) * weight);
                terms.sum::<f64>() as f32
            }));
        }
        rows
    }
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
        let layout = Layout::new(1, 1, None);
        let table = PositionTable {
            side: 3,
            width: 1,
            values: (0..9).map(|v| v as f32).collect(),
        };
        assert_eq!(table.rows(&layout), [0.0, 2.0, 6.0, 8.0]);
    }

    #[test]
    fn places_between_entries_have_a_share_of_each() {
        let table = PositionTable {
            side: 2,
            width: 2,
            values: vec![0.0, 10.0, 3.0, 10.0, 6.0, 10.0, 9.0, 10.0],
        };
        // four patches per side: thirds
        let rows = table.rows(&Layout::new(2, 2, None));
        for (place, row) in Layout::new(2, 2, None).places.iter().zip(rows.chunks(2)) {
            let expected = 6.0 * place[0] as f32 / 3.0 + 3.0 * place[1] as f32 / 3.0;
            assert!((row[0] - expected).abs() < 1e-6, "{place:?}: {row:?}");
            assert!((row[1] - 10.0).abs() < 1e-6, "{place:?}: {row:?}");
        }
    }
}
