//! GGUF files as they are, whether or not a model can be loaded from them: [`fn@diff`] compares
//! two, [`fn@check`] looks for faults of weights and vocabularies, [`extract`] and [`fn@insert`]
//! exchange tensors with safetensors and NumPy files.

mod arrays;
mod check;
mod diff;
mod error;
mod insert;
mod npy;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use gguf_rs_lite::{Gguf, TensorInfo};
use octavo_quant::{can_dequantize, dequantize};

pub use arrays::{ArrayHead, Form, extract, extract_one, safetensors_header};
pub use check::{Finding, Findings, check};
pub use diff::{FileDiff, KeyDiff, KeyFacts, TensorDiff, TensorFacts, ValueError, diff};
pub use error::Error;
pub use insert::{Arrays, Insertion, insert};

/// Values that are decoded at a time.
const PIECE: u64 = 64 * 1024;

/// Calls `work` for each of `n` items on several threads, and returns the results in order; `done`
/// is called on this thread after each.
fn each<T: Send>(
    n: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize),
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut all: Vec<(usize, T)> = Vec::with_capacity(n);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, n.max(1)) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    // the receiver is gone only if this thread's creator panics
                    if i >= n || sender.send((i, work(i))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (i, result) in receiver {
            done(i);
            all.push((i, result));
        }
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Returns the ranges of a tensor's bytes to read at a time: whole blocks, with the index of the
/// first value.
fn pieces(tensor: &TensorInfo) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let (len, bytes) = (tensor.ty.block_len() as u64, tensor.ty.block_bytes() as u64);
    let (n, step) = (tensor.n_elements() / len, (PIECE / len).max(1));
    (0..n.div_ceil(step)).map(move |i| {
        let (start, end) = (i * step, ((i + 1) * step).min(n));
        // within the file, so it fits
        let range = (start * bytes) as usize..(end * bytes) as usize;
        (start * len, range)
    })
}

/// Decodes blocks of a tensor that has floats; `values` is resized.
fn decode(tensor: &TensorInfo, blocks: &[u8], values: &mut Vec<f32>) {
    debug_assert!(can_dequantize(tensor.ty));
    values.resize(
        blocks.len() / tensor.ty.block_bytes() * tensor.ty.block_len(),
        0.0,
    );
    dequantize(tensor.ty, blocks, values).expect("whole blocks of a type with values");
}

/// Checks that the file that holds a tensor has not changed, and returns the tensor's bytes.
fn bytes<'g>(gguf: &'g Gguf, tensor: &TensorInfo) -> Result<&'g [u8], gguf_rs_lite::Error> {
    gguf.check(tensor)?;
    Ok(gguf.data(tensor))
}
