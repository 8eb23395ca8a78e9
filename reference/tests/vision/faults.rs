//! Mistakes that an implementation may make, each planted in the model, in what goes into it or in
//! an intermediate value: every one must show, else agreement proves nothing.

mod prompt;
mod tower;

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};

/// Far above what llama.cpp's rounding makes of the rows of images, [`super::EMBEDDINGS`]. GELU by
/// the error function does not show: it differs by less than that.
const SHOWS: f64 = 5e-5;

/// Runs a change of a model in memory from a file of its own.
pub(super) fn written<T>(model: Model, run: impl FnOnce(&Gguf) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    model.write(&path);
    run(&Gguf::open(&path, &OpenOptions::default()).unwrap())
}

/// Puts row `from(i)` where row `i` is, of rows of `width` values.
fn permute(x: &mut [f64], width: usize, from: impl Fn(usize) -> usize) {
    let old = x.to_vec();
    for (i, row) in x.chunks_mut(width).enumerate() {
        row.copy_from_slice(&old[from(i) * width..][..width]);
    }
}

/// Rotates every head of every row by the angle of row and pair.
fn rotate(x: &mut [f64], [width, head_dim]: [usize; 2], angle: impl Fn(usize, usize) -> f64) {
    let half = head_dim / 2;
    for (row, values) in x.chunks_mut(width).enumerate() {
        for head in values.chunks_mut(head_dim) {
            for pair in 0..half {
                let (sin, cos) = angle(row, pair).sin_cos();
                let (a, b) = (head[pair], head[pair + half]);
                head[pair] = a * cos - b * sin;
                head[pair + half] = a * sin + b * cos;
            }
        }
    }
}
