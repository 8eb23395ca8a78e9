//! The largest outputs of each row, in order, and the outputs of some rows only.

use super::Executor;
use crate::cuda::{Device, Error, launch};
use crate::op::RowSet;
use crate::program::Step;

/// Values that a step computes from its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Want {
    /// Nothing.
    Outputs,
    /// The index of each row's largest one.
    Argmax,
    /// That, and each row's largest ones.
    Candidates,
}

/// Most rows with candidates of one step.
pub(super) const MAX_CANDIDATE_ROWS: usize = 64;

/// Results of [`Executor::candidates`].
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// Argmax of each requested row, the first of equal values; `None` for a row with a value that
    /// is not finite, whose candidates mean nothing.
    pub best: Vec<Option<u32>>,
    /// Number of candidates per row.
    pub n: usize,
    /// Index and value of each row's largest values, `[rows][n]`: the largest first in the order of
    /// `f32::total_cmp`, of equal ones the lowest index.
    pub largest: Vec<(u32, f32)>,
    /// All values of the rows that were asked for, `[rows][width]`.
    pub outputs: Vec<f32>,
}

/// Returns index and value of a key of `cuda/candidates.cuh`.
fn of_key(key: u64) -> (u32, f32) {
    let ordered = (key >> 32) as u32;
    let bits = match ordered >> 31 {
        1 => ordered ^ 1 << 31,
        _ => !ordered,
    };
    (!key as u32, f32::from_bits(bits))
}

impl<D: Device> Executor<D> {
    /// Returns how many candidates [`Executor::candidates`] finds in each row of a step with this
    /// many; 0 if the step has too many rows, or the program selects none.
    pub fn max_candidates(&self, n_outputs: usize) -> usize {
        let output = &self.program.slots[self.program.output];
        let fits = output.rows == RowSet::Outputs && n_outputs <= MAX_CANDIDATE_ROWS;
        match fits && n_outputs > 0 {
            true => launch::max_candidates(output.width),
            false => 0,
        }
    }

    /// Runs a step and returns the largest outputs of each requested row, and all outputs of the
    /// rows `whole`, by their number among those.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// As [`Executor::step`], for rows that there are not, and where
    /// [`Executor::max_candidates`] is 0.
    pub fn candidates(&mut self, step: &Step<'_>, whole: &[usize]) -> Result<Candidates, Error> {
        let n = self.max_candidates(step.n_outputs());
        assert!(n > 0, "candidates of {} rows", step.n_outputs());
        let (rows, n_outputs) = self.start(step, None, Want::Candidates)?;
        let output = self.program.output;
        let width = self.program.slots[output].width;
        let first = self.base.offset(self.plan.slots[output]);
        let mut keys = vec![0; 8 * n * n_outputs];
        let mut outputs = vec![0.0; whole.len() * width];
        let mut rows_of_bytes = vec![0; 4 * outputs.len()];
        let record = self.base.offset(self.plan.record);
        let mut copies = vec![
            (record, self.status.bytes_mut(1 + n_outputs)),
            (self.base.offset(self.plan.candidates), &mut keys[..]),
        ];
        for (row, bytes) in whole.iter().zip(rows_of_bytes.chunks_exact_mut(4 * width)) {
            assert!(*row < n_outputs, "row {row} of {n_outputs}");
            copies.push((first.offset(4 * (row * width) as u64), bytes));
        }
        self.device.download_all(&mut copies)?;
        self.check_pages(&rows)?;
        for (value, bytes) in outputs.iter_mut().zip(rows_of_bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        let keys = keys.as_chunks().0.iter();
        Ok(Candidates {
            best: self.best(n_outputs),
            n,
            largest: keys.map(|key| of_key(u64::from_le_bytes(*key))).collect(),
            outputs,
        })
    }
}
