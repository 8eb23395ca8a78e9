//! Injects plausible implementation mistakes into the model, its input or an intermediate value:
//! every one must change the result, otherwise agreement proves nothing.

mod prompt;
mod tower;

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};

/// Minimum error of a fault, far above llama.cpp's rounding of image rows, [`super::EMBEDDINGS`].
/// Exact GELU (erf) is not detected: it differs by less than that.
const SHOWS: f64 = 5e-5;

/// Writes a changed model to a file of its own and runs `run` on it.
pub(super) fn written<T>(model: Model, run: impl FnOnce(&Gguf) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    model.write(&path);
    run(&Gguf::open(&path, &OpenOptions::default()).unwrap())
}

/// Moves row `from(i)` to row `i`, for rows of `width` values.
fn permute(x: &mut [f64], width: usize, from: impl Fn(usize) -> usize) {
    let old = x.to_vec();
    for (i, row) in x.chunks_mut(width).enumerate() {
        row.copy_from_slice(&old[from(i) * width..][..width]);
    }
}

/// Rotates every head of every row by `angle(row, pair)`.
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
