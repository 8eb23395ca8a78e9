//! Converts the rows of a tensor on several threads and writes them in order.
//!
//! Threads take chunks of whole rows; the calling thread writes the results in order. A thread too
//! far ahead of the writer waits, so memory holds a few chunks, however large the tensor.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, Mutex};

use gguf_rs_lite::Gguf;
use octavo_quant::{TensorType, dequantize, first_bad_block, quantize};

use super::{Change, Error, groups};

/// Values per chunk of work.
const PIECE: usize = 256 * 1024;

/// The conversion of one tensor.
pub(crate) struct Job<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) change: &'a Change,
    pub(crate) weights: Option<&'a [f32]>,
    pub(crate) threads: usize,
}

/// Rows that are converted together; all from one matrix of a stack.
#[derive(Clone, Copy)]
struct Piece {
    row: u64,
    rows: u64,
}

/// Result of converting a chunk.
struct Made {
    bytes: Vec<u8>,
    /// Largest rounding, see [`super::Progress::Done`].
    rounding: Option<f32>,
}

/// State shared by the threads.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    next: usize,
    written: usize,
    done: BTreeMap<usize, Result<Made, Error>>,
    stop: bool,
}

impl Job<'_> {
    /// Writes the new data; `progress` receives the source bytes processed. Returns the largest
    /// rounding of any chunk.
    pub(crate) fn run(
        &self,
        out: &mut dyn io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<f32>, Error> {
        let pieces = self.pieces();
        if !self.change.converts() {
            return self.copy(&pieces, out, progress).map(|()| None);
        }
        let threads = self.threads.clamp(1, pieces.len().max(1));
        let ahead = 2 * threads;
        let state = State {
            next: 0,
            written: 0,
            done: BTreeMap::new(),
            stop: false,
        };
        let queue = Queue {
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&pieces, &queue, ahead));
            }
            let result =
                pieces
                    .iter()
                    .enumerate()
                    .try_fold(None, |rounding: Option<f32>, (i, piece)| {
                        let made = queue.take(i)?;
                        out.write_all(&made.bytes).map_err(failed)?;
                        progress(piece.rows * self.source_row());
                        Ok(made
                            .rounding
                            .map(|r| rounding.map_or(r, |most| most.max(r)))
                            .or(rounding))
                    });
            queue.stop();
            result
        })
    }

    /// Checks the tensor and writes it unchanged.
    fn copy(
        &self,
        pieces: &[Piece],
        out: &mut dyn io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        for piece in pieces {
            out.write_all(&self.sound(*piece)?).map_err(failed)?;
            progress(piece.rows * self.source_row());
        }
        Ok(())
    }

    fn work(&self, pieces: &[Piece], queue: &Queue, ahead: usize) {
        let _stop = StopOnPanic(queue);
        let mut floats = Vec::new();
        while let Some(i) = queue.next(pieces.len(), ahead) {
            queue.put(i, self.piece(pieces[i], &mut floats));
        }
    }

    fn row_len(&self) -> u64 {
        self.change.tensor.dims.first().copied().unwrap_or(1).max(1)
    }

    /// Returns the bytes of a source row; opening the file has checked that the size is
    /// representable.
    fn source_row(&self) -> u64 {
        self.change.tensor.ty.row_bytes(self.row_len()).unwrap_or(0)
    }

    fn pieces(&self) -> Vec<Piece> {
        let t = &self.change.tensor;
        let total = t.n_elements() / self.row_len();
        let per_matrix = t.dims.get(1).copied().unwrap_or(1).max(1);
        let most = (PIECE as u64 / self.row_len()).max(1);
        let mut pieces = Vec::new();
        let mut row = 0;
        while row < total {
            let rows = most.min(per_matrix - row % per_matrix).min(total - row);
            pieces.push(Piece { row, rows });
            row += rows;
        }
        pieces
    }

    /// Returns the index in the tensor of a block of `ty` in a chunk.
    fn block(&self, piece: Piece, ty: TensorType, block: usize) -> u64 {
        piece.row * (self.row_len() / ty.block_len() as u64) + block as u64
    }

    /// Returns a chunk of the source, checked to be finite.
    fn sound(&self, piece: Piece) -> Result<Cow<'_, [u8]>, Error> {
        let (t, row_bytes) = (&self.change.tensor, self.source_row());
        // within the file, so it fits
        let (start, len) = (
            (piece.row * row_bytes) as usize,
            (piece.rows * row_bytes) as usize,
        );
        let source = if self.gguf.is_made(t) {
            let mut rows = vec![0; len];
            self.gguf.read(t, start, &mut rows);
            Cow::Owned(rows)
        } else {
            Cow::Borrowed(&self.gguf.data(t)[start..start + len])
        };
        match first_bad_block(t.ty, &source) {
            None => Ok(source),
            Some(bad) => Err(Error::NotFinite {
                tensor: t.name.clone(),
                ty: t.ty,
                block: self.block(piece, t.ty, bad),
            }),
        }
    }

    fn piece(&self, piece: Piece, floats: &mut Vec<f32>) -> Result<Made, Error> {
        let (t, to) = (&self.change.tensor, self.change.to);
        let source = self.sound(piece)?;
        let matrix = piece.row / t.dims.get(1).copied().unwrap_or(1).max(1);
        let n = self.row_len() as usize;
        let weights = self
            .weights
            .and_then(|w| w.chunks_exact(n).nth(matrix as usize));
        let (bytes, rounding) = if groups::become_blocks(t.ty, to) {
            let (blocks, rounding) = groups::q4_1(t.ty, &source);
            (blocks, Some(rounding))
        } else {
            let converted = convert(t.ty, &source, to, n, weights, floats);
            (
                converted.map_err(|source| Error::Quant {
                    tensor: t.name.clone(),
                    source,
                })?,
                None,
            )
        };
        match first_bad_block(to, &bytes) {
            None => Ok(Made { bytes, rounding }),
            Some(bad) => Err(Error::Overflow {
                tensor: t.name.clone(),
                ty: to,
                block: self.block(piece, to, bad),
            }),
        }
    }
}

/// Converts rows between types: blocks of `from` in, blocks of `to` out. `floats` is scratch space
/// for the values in between.
///
/// # Errors
/// Mismatched lengths or types, see [`octavo_quant::Error`].
pub fn convert(
    from: TensorType,
    source: &[u8],
    to: TensorType,
    row_len: usize,
    weights: Option<&[f32]>,
    floats: &mut Vec<f32>,
) -> Result<Vec<u8>, octavo_quant::Error> {
    floats.resize(source.len() / from.block_bytes() * from.block_len(), 0.0);
    dequantize(from, source, floats)?;
    let mut out = Vec::new();
    quantize(to, floats, row_len, weights, &mut out)?;
    Ok(out)
}

fn failed(source: io::Error) -> Error {
    Error::Gguf(gguf_rs_lite::Error::Io {
        file: "output".to_owned(),
        action: "write it",
        source,
    })
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // a thread that panicked ends the whole conversion when the scope joins it
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wait<'m>(
        &self,
        state: std::sync::MutexGuard<'m, State>,
    ) -> std::sync::MutexGuard<'m, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the next chunk to convert; waits while it is too far ahead of the writer.
    fn next(&self, total: usize, ahead: usize) -> Option<usize> {
        let mut state = self.lock();
        while !state.stop && state.next < total && state.next >= state.written + ahead {
            state = self.wait(state);
        }
        if state.stop || state.next >= total {
            return None;
        }
        state.next += 1;
        Some(state.next - 1)
    }

    fn put(&self, i: usize, result: Result<Made, Error>) {
        self.lock().done.insert(i, result);
        self.changed.notify_all();
    }

    /// Waits for the result of chunk `i`; those before it must have been taken.
    fn take(&self, i: usize) -> Result<Made, Error> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.done.remove(&i) {
                state.written = i + 1;
                drop(state);
                self.changed.notify_all();
                return result;
            }
            // this chunk will never be converted; the scope propagates the thread's panic
            assert!(!state.stop, "a thread that converts has panicked");
            state = self.wait(state);
        }
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }
}

/// Wakes the writer when a converting thread panics, so that it does not wait forever.
struct StopOnPanic<'a>(&'a Queue);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
