//! Patch embedding: from pixels to the rows that the first block reads.

use super::super::math::add_into;
use super::hparams::Kind;
use super::{Pixels, Tower};
use crate::Error;

const POSITIONS: &str = "v.position_embd.weight";

impl Tower<'_, '_> {
    /// Computes `W · p`, one row per patch, and what follows before the blocks. Qwen has kernels
    /// for two video frames, and an image is both frames.
    pub(super) fn embed(&mut self, pixels: Pixels<'_>) -> Result<Vec<f64>, Error> {
        let (patch, n_embd, kind) = (self.hp.patch, self.hp.n_embd, self.hp.kind);
        let mut values = self.patch_values(pixels);
        if kind == Kind::Gemma4Unified {
            return self.embed_unified(&values);
        }
        if kind == Kind::Gemma4 {
            values.iter_mut().for_each(|x| *x = 2.0 * *x - 1.0);
        }
        let kernels = |name| self.weights.kernels(name, [patch, patch, 3], n_embd);
        let mut x = kernels("v.patch_embd.weight")?.times(&values);
        if kind.is_qwen() {
            add_into(&mut x, &kernels("v.patch_embd.weight.1")?.times(&values));
        }
        let positions = match kind {
            Kind::Qwen25 => return Ok(x),
            Kind::Pixtral => return self.rms_norm("v.pre_ln", "pre_ln", None, n_embd, &x),
            Kind::Gemma4 | Kind::Gemma4Unified => "pos_embd",
            Kind::Gemma3 | Kind::Idefics3 | Kind::InternVl => "pos_embed",
            Kind::Lfm2 | Kind::Llava | Kind::KimiVl => "pos_embed",
            Kind::Qwen3 => "inp_pos_emb",
        };
        // CLIP has no bias
        let has_bias = kind != Kind::Llava || self.weights.has("v.patch_embd.bias");
        if kind != Kind::Gemma4 && has_bias {
            self.add_bias("v.patch_embd", n_embd, &mut x)?;
        }
        match kind {
            Kind::Gemma4 => {}
            _ if kind.has_class_row() => {
                let class = self.weights.required_vector("v.class_embd", n_embd)?;
                x.extend(class.iter().filter(|_| !self.layout.places.is_empty()));
            }
            _ => self.tap("patch_bias", None, n_embd, &mut x),
        }
        add_into(&mut x, &self.positions()?);
        self.tap(positions, None, n_embd, &mut x);
        if kind == Kind::Llava && self.weights.has("v.pre_ln.weight") {
            let eps = self.hp.norm_eps;
            return self.layer_norm("v.pre_ln", "pre_ln", None, (n_embd, eps), &x);
        }
        Ok(x)
    }

    /// Computes Gemma 4's rows without blocks: norms, whose epsilon is a constant, around a product
    /// and positions.
    fn embed_unified(&mut self, values: &[f64]) -> Result<Vec<f64>, Error> {
        const EPS: f64 = 1e-5;
        let (n_in, n_embd) = (3 * self.hp.patch * self.hp.patch, self.hp.n_embd);
        let normed = self.layer_norm("v.patch_norm.1", "norm_b", None, (n_in, EPS), values)?;
        let x = self.linear("v.patch_embd", n_in, n_embd, &normed)?;
        let mut x = self.layer_norm("v.patch_norm.2", "norm_b", None, (n_embd, EPS), &x)?;
        add_into(&mut x, &self.positions()?);
        self.tap("pos_embd", None, n_embd, &mut x);
        self.layer_norm("v.patch_norm.3", "norm_b", None, (n_embd, EPS), &x)
    }

    /// Returns the pixels of every patch, `(n_patches, 3 * patch * patch)`: colour by colour, row
    /// by row.
    fn patch_values(&self, pixels: Pixels<'_>) -> Vec<f64> {
        let patch = self.hp.patch;
        let mut values = Vec::with_capacity(pixels.values.len());
        for [row, column] in &self.layout.places {
            for colour in 0..3 {
                for y in row * patch..(row + 1) * patch {
                    let start = (colour * pixels.height + y) * pixels.width + column * patch;
                    let line = &pixels.values[start..start + patch];
                    values.extend(line.iter().map(|&v| f64::from(v)));
                }
            }
        }
        values
    }

    /// Returns the sum of the entries of each patch's column and row, `(n_patches, n_embd)`.
    fn positions_of_axes(&self) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let entries = match self.weights.dims(POSITIONS) {
            Some([_, entries, _]) => *entries as usize,
            _ => 0,
        };
        let table = self.weights.planes(POSITIONS, [n_embd, entries, 2])?;
        let mut x = Vec::new();
        for &[row, column] in &self.layout.places {
            let entry = |plane: usize, at: usize| {
                let entry = table.get((plane * entries + at) * n_embd..).unwrap_or(&[]);
                entry.get(..n_embd).ok_or_else(|| Error::Image {
                    expected: format!("at most {entries} patches on each side"),
                    got: format!("patch {at}"),
                })
            };
            let both = entry(0, column)?.iter().zip(entry(1, row)?);
            x.extend(both.map(|(x, y)| x + y));
        }
        Ok(x)
    }

    /// Returns the position embedding of every patch, `(n_patches, n_embd)`. The table is a square
    /// grid, stretched over the image so that corners meet corners, and interpolated between four
    /// entries; SigLIP has an entry for each patch.
    fn positions(&self) -> Result<Vec<f64>, Error> {
        if matches!(self.hp.kind, Kind::Gemma4 | Kind::Gemma4Unified) {
            return self.positions_of_axes();
        }
        let n_embd = self.hp.n_embd;
        let side = match self.hp.image_size {
            Some(size) => size / self.hp.patch,
            None => self.table_side()?,
        };
        let has_class = self.hp.kind.has_class_row();
        let n = side * side + usize::from(has_class);
        let table = self.weights.required_rows(POSITIONS, n_embd, n)?;
        let [across, down] = self.layout.patches();
        let mut x = Vec::with_capacity(self.layout.places.len() * n_embd);
        for &[row, column] in &self.layout.places {
            let entries = match self.hp.kind.resizes_positions() {
                true => covered,
                false => |i, count, n| between(i, count, n).to_vec(),
            };
            let (y, x_) = (entries(row, down, side), entries(column, across, side));
            let start = x.len();
            x.resize(start + n_embd, 0.0);
            for (ty, wy) in y {
                for (tx, wx) in &x_ {
                    let entry = &table[(ty * side + tx) * n_embd..][..n_embd];
                    let sums = x[start..].iter_mut().zip(entry);
                    sums.for_each(|(sum, value)| *sum += wy * wx * value);
                }
            }
        }
        if has_class && !x.is_empty() {
            x.extend_from_slice(&table[side * side * n_embd..]);
        }
        Ok(x)
    }

    /// Returns the entries per side of the table.
    fn table_side(&self) -> Result<usize, Error> {
        let n_embd = self.hp.n_embd as u64;
        let dims = self.weights.dims(POSITIONS);
        let n = match dims {
            Some([width, n]) if *width == n_embd => *n as usize,
            _ => 0,
        };
        let side = n.isqrt();
        if side > 0 && side * side == n {
            return Ok(side);
        }
        let expected = format!("[{n_embd}, a square]");
        Err(match dims {
            Some(dims) => self.weights.wrong_dims(POSITIONS, expected, dims),
            None => self.weights.missing(POSITIONS, expected),
        })
    }
}

/// Returns the entries, of `n`, that position `i` of `count` covers, with their weights: PyTorch's
/// linear interpolation with `antialias` and without `align_corners`.
fn covered(i: usize, count: usize, n: usize) -> Vec<(usize, f64)> {
    let scale = n as f64 / count as f64;
    let support = scale.max(1.0);
    let centre = scale * (i as f64 + 0.5);
    let first = (centre - support + 0.5).max(0.0) as usize;
    let end = ((centre + support + 0.5) as usize).min(n);
    let weight = |entry: usize| {
        let distance = (entry as f64 + 0.5 - centre) / support;
        (1.0 - distance.abs()).max(0.0)
    };
    let sum: f64 = (first..end).map(weight).sum();
    (first..end)
        .map(|entry| (entry, weight(entry) / sum))
        .collect()
}

/// Returns the two entries, of `n`, around position `i` of `count`, with their weights.
fn between(i: usize, count: usize, n: usize) -> [(usize, f64); 2] {
    let source = match count {
        0 | 1 => i as f64 * n as f64,
        _ => i as f64 * (n - 1) as f64 / (count - 1) as f64,
    };
    let low = (source.floor() as usize).min(n - 1);
    let high = (low + 1).min(n - 1);
    let share = source - source.floor();
    [(low, 1.0 - share), (high, share)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_that_cover_several_entries_have_some_of_each() {
        assert_eq!(covered(1, 3, 3), [(1, 1.0), (2, 0.0)]);
        let half = covered(0, 2, 4);
        let expected = [0.75, 0.75, 0.25].map(|weight| weight / 1.75);
        assert_eq!(half.iter().map(|(_, w)| *w).collect::<Vec<_>>(), expected);
        assert_eq!(covered(1, 4, 2)[..2], [(0, 0.75), (1, 0.25)]);
    }

    #[test]
    fn corners_of_the_table_meet_corners_of_the_image() {
        assert_eq!(between(0, 6, 8), [(0, 1.0), (1, 0.0)]);
        assert_eq!(between(5, 6, 8), [(7, 1.0), (7, 0.0)]);
        // a third of seven steps
        let [(low, a), (high, b)] = between(1, 4, 8);
        assert_eq!((low, high), (2, 3));
        assert!((b - 1.0 / 3.0).abs() < 1e-15 && (a + b - 1.0).abs() < 1e-15);
        assert!((0..8).all(|i| between(i, 8, 8)[0] == (i, 1.0)), "as it is");
        assert_eq!(between(1, 2, 1), [(0, 1.0), (0, 0.0)], "one entry for all");
    }
}
