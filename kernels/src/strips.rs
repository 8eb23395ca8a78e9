//! Strips of a matrix: packed when it is loaded, or each time they are read.

use std::ops::Range;
use std::sync::Mutex;

use crate::memory::{Floats, Memory};
use crate::pool::Pool;
use crate::weight_bytes::WeightBytes;
use octavo_simd::table::{Gemv, MAX_R, Packed};

/// Bytes of a source that a thread packs and then releases at a time: small enough that all threads
/// have work to the end, and large enough that releasing, which interrupts every other thread, is
/// rare.
const PIECE: Range<usize> = 128 << 10..2 << 20;

/// Position of each strip's rows among those of a matrix, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct StripRows {
    pub(crate) row_bytes: usize,
    /// Rows of an expert, which begins with a strip of its own.
    pub(crate) expert_rows: usize,
    /// Rows of a strip.
    pub(crate) r: usize,
}

impl StripRows {
    /// Strips of an expert, the last one perhaps not full.
    pub(crate) fn expert_strips(&self) -> usize {
        self.expert_rows.div_ceil(self.r)
    }

    /// Bytes of a whole strip.
    pub(crate) fn bytes(&self) -> usize {
        self.row_bytes * self.r
    }

    /// Range of the rows that a strip has.
    pub(crate) fn of(&self, strip: usize) -> Range<usize> {
        let expert_bytes = self.row_bytes * self.expert_rows;
        let expert = strip / self.expert_strips() * expert_bytes;
        let at = expert + strip % self.expert_strips() * self.bytes();
        at..(at + self.bytes()).min(expert + expert_bytes)
    }

    /// Packs the blocks at these bytes of each of a strip's rows, which lie one after the other.
    pub(crate) fn pack(
        &self,
        kernels: &Packed,
        strip: &[u8],
        blocks: Range<usize>,
        out: &mut [u8],
    ) {
        let mut rows = [&[][..]; MAX_R];
        let mut n = 0;
        for row in strip.chunks_exact(self.row_bytes) {
            rows[n] = &row[blocks.clone()];
            n += 1;
        }
        // SAFETY: the kernels are those of a CPU that has the instruction set: the matrix was made
        // with an `Isa`, which is one that was detected.
        unsafe { (kernels.pack)(&rows[..n], out) };
    }

    /// Fills `memory`, which has room for all strips.
    pub(crate) fn pack_all(
        &self,
        kernels: &Packed,
        source: &dyn WeightBytes,
        mut memory: Memory,
        pool: &mut Pool,
    ) -> Memory {
        let strip_bytes = self.bytes();
        if strip_bytes == 0 || self.expert_rows == 0 {
            return memory;
        }
        let piece = (source.n_bytes() / 32)
            .clamp(PIECE.start, PIECE.end)
            .div_ceil(strip_bytes);
        let pieces = memory.bytes_mut().chunks_mut(piece * strip_bytes);
        let work = Mutex::new(pieces.enumerate());
        pool.run_long_tasks(&|_| {
            let mut room = Vec::new();
            loop {
                // a panic in `pack` is a broken invariant that the pool passes on; the lock is not
                // held at that time
                let Some((i, to)) = work.lock().expect("no panic under the lock").next() else {
                    break;
                };
                let first = i * piece;
                let start = self.of(first).start;
                source.ahead(start);
                let mut end = start;
                for (strip, to) in to.chunks_exact_mut(strip_bytes).enumerate() {
                    let at = self.of(first + strip);
                    end = at.end;
                    self.pack(kernels, source.rows(at, &mut room), 0..self.row_bytes, to);
                }
                source.passed(start..end);
            }
        });
        memory
    }
}

/// Weights of a matrix, and the kernels that multiply generated tokens by them. To be looked up
/// once per product and not per strip: a strip of a small matrix takes no longer than the lookup.
#[derive(Clone, Copy)]
pub(crate) struct Strips<'a> {
    pub(crate) kernels: &'a Packed,
    pub(crate) rows: StripRows,
    pub(crate) weights: Weights<'a>,
    /// Number of strips.
    pub(crate) count: usize,
}

/// Location of the weights.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    /// Address of the first packed strip.
    Packed(*const u8),
    /// Rows as in the file.
    Rows(&'a [u8]),
}

/// One strip, or two neighbours.
#[derive(Clone, Copy)]
pub(crate) struct StripPair<'a> {
    pub(crate) gemv: &'a Gemv,
    /// Address of the first.
    pub(crate) at: *const u8,
    /// Bytes of a strip, and rows.
    pub(crate) bytes: usize,
    pub(crate) r: usize,
    /// 1 or 2.
    pub(crate) count: usize,
}

impl<'a> Strips<'a> {
    /// Returns one or two strips; rows of a file are packed into `room`.
    pub(crate) fn pair(&self, strips: &Range<usize>, room: &mut Floats) -> StripPair<'a> {
        assert!(strips.end <= self.count);
        let bytes = self.rows.bytes();
        let at = match self.weights {
            Weights::Packed(first) => first.wrapping_add(strips.start * bytes),
            Weights::Rows(source) => {
                let room = room.bytes_mut();
                for (strip, to) in strips.clone().zip(room.chunks_exact_mut(bytes)) {
                    let all = 0..self.rows.row_bytes;
                    self.rows
                        .pack(self.kernels, &source[self.rows.of(strip)], all, to);
                }
                room.as_ptr()
            }
        };
        StripPair {
            gemv: &self.kernels.gemv,
            at,
            bytes,
            r: self.rows.r,
            count: strips.len(),
        }
    }
}
