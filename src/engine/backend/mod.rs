//! Executes a model's graph: one trait, one implementation per device. A backend knows the graph,
//! its weights and the page numbers it is given; it knows no request and no file format.

pub mod cpu;
pub mod cuda;
mod experts;
mod lora;
mod lower;
pub mod pipeline;
pub mod ranks;
mod rotate;
pub mod split;

use std::cell::RefCell;

pub use experts::{CpuExperts, TensorPattern};
use octavo_kernels::KvStore;
pub use octavo_kernels::cuda::Candidates;
pub use octavo_kernels::{Phase, SharedPool, Step, StepSequence};

use crate::error::Error;
use crate::sample::{are_finite, argmax};
use octavo_model::Tap;

/// The result of one op, passed to a tap.
#[derive(Clone, Copy, Debug)]
pub struct TapView<'a> {
    /// Name of the value.
    pub tap: Tap,
    /// Rows: tokens of the step, or those with logits requested.
    pub rows: usize,
    /// Values per row.
    pub width: usize,
    /// `[rows][width]`
    pub data: &'a [f32],
    /// Values that replace these for the rest of the pass, if any.
    instead: &'a RefCell<Option<Vec<f32>>>,
}

impl TapView<'_> {
    /// Passes these values on with row `order[i]` as row `i`. Values that replace them there come
    /// back in this order.
    ///
    /// # Panics
    /// If `order` names other rows.
    pub fn reordered(&self, order: &[usize], sink: &mut TapSink<'_>) {
        let (width, mut data) = (self.width, Vec::with_capacity(self.data.len()));
        for row in order {
            data.extend_from_slice(&self.data[row * width..(row + 1) * width]);
        }
        let instead = RefCell::new(None);
        sink(&TapView {
            data: &data,
            rows: order.len(),
            instead: &instead,
            ..*self
        });
        if let Some(values) = instead.into_inner() {
            let mut back = self.data.to_vec();
            for (from, row) in values.chunks_exact(width).zip(order) {
                back[row * width..(row + 1) * width].copy_from_slice(from);
            }
            self.go_on_with(back);
        }
    }

    /// Replaces these values: the next op reads the new ones.
    ///
    /// # Panics
    /// If their number differs.
    pub fn go_on_with(&self, values: Vec<f32>) {
        assert_eq!(values.len(), self.data.len(), "{}: values", self.tap);
        *self.instead.borrow_mut() = Some(values);
    }
}

/// Receives every named value of a step, and every input of a matrix product, in graph order, each
/// before the next op runs.
pub type TapSink<'a> = dyn FnMut(&TapView<'_>) + Send + 'a;

/// Progress while a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading<'a> {
    /// A line for people: device, reason, memory.
    Note(&'a str),
    /// Weights are copied or uploaded.
    Weights {
        /// Bytes of the file done so far.
        done: u64,
        /// Bytes in total.
        total: u64,
    },
}

/// Receives progress while a model loads.
pub type LoadingSink<'a> = dyn FnMut(Loading<'_>) + 'a;

/// Returns the index of a row's largest logit, the first of equal ones; `None` if one is not
/// finite.
fn finite_argmax(row: &[f32]) -> Option<u32> {
    argmax(row).filter(|_| are_finite(row))
}

/// Prefill batch size in tokens that keeps a CPU busy.
pub(crate) const BATCH_OF_CPUS: usize = 512;
/// Prefill batch size in tokens that keeps a GPU busy.
pub(crate) const BATCH_OF_GPUS: usize = 2048;

/// A model prepared for one device, with its KV cache pages.
pub trait Backend: Send {
    /// Returns the prefill batch size in tokens that keeps its device busy.
    fn batch(&self) -> usize {
        BATCH_OF_CPUS
    }

    /// Runs new tokens and returns the logits of the requested rows, `[n_outputs][n_vocab]`.
    ///
    /// The caller has allocated every page that the block tables name; nothing is allocated for the
    /// cache here.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> Result<&[f32], Error>;

    /// As [`Backend::step`], but returns for each requested row only the index of its largest
    /// logit, the first of equal ones; `None` if a logit is not finite.
    ///
    /// # Errors
    /// If the device fails.
    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        let n_outputs = step.n_outputs();
        let logits = self.step(step, None)?;
        Ok(logits
            .chunks_exact((logits.len() / n_outputs.max(1)).max(1))
            .map(finite_argmax)
            .collect())
    }

    /// Returns how many of each row's largest logits [`Backend::candidates`] returns for a step
    /// with this many rows; 0 if it cannot, or if logits are in the CPU's memory anyway.
    fn max_candidates(&self, _n_outputs: usize) -> usize {
        0
    }

    /// As [`Backend::argmax`], and returns the largest logits of each row, and all logits of the
    /// rows `whole`. Only where [`Backend::max_candidates`] is not 0.
    ///
    /// # Errors
    /// If the device fails.
    fn candidates(&mut self, step: &Step<'_>, whole: &[usize]) -> Result<Candidates, Error> {
        let n_outputs = step.n_outputs();
        let logits = self.step(step, None)?;
        let width = logits.len() / n_outputs.max(1);
        let rows = logits.chunks_exact(width.max(1));
        let of = |row: &usize| &logits[row * width..(row + 1) * width];
        Ok(Candidates {
            best: rows.map(finite_argmax).collect(),
            n: 0,
            largest: Vec::new(),
            outputs: whole.iter().flat_map(of).copied().collect(),
        })
    }

    /// As [`Backend::step`], but returns the named value `tap` of the requested rows,
    /// `[n_outputs][width]`. A backend need not compute what comes after it.
    ///
    /// # Errors
    /// If the device fails.
    fn rows_of(&mut self, step: &Step<'_>, tap: Tap) -> Result<Vec<f32>, Error> {
        let mut rows = Vec::new();
        let mut see = |view: &TapView<'_>| {
            if view.tap == tap {
                rows.extend_from_slice(view.data);
            }
        };
        self.step(step, Some(&mut see))?;
        Ok(rows)
    }

    /// Returns the rows of [`Graph::kept`](octavo_model::Graph::kept) in the last step,
    /// `[rows][n_embd]`; none if the graph keeps none.
    ///
    /// # Errors
    /// If the device fails.
    fn kept_rows(&mut self) -> Result<Vec<f32>, Error>;

    /// Copies page `from` to page `to` in every layer of a group.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error>;

    /// Returns the pages and states themselves, if they lie in the CPU's memory, all of them.
    fn kv_store(&mut self) -> Option<&mut KvStore> {
        None
    }

    /// Waits for threads that a step has left behind, before another backend's steps run on the
    /// pages of this one.
    fn settle(&mut self) {}

    /// Frees step scratch buffers while idle.
    fn release_scratch(&mut self) {}

    /// Returns the number of layer groups of the cache, each with its own block tables.
    fn cache_groups(&self) -> usize;

    /// Returns the number of pages of each group.
    fn n_pages(&self) -> usize;

    /// Returns the number of slots for states of recurrent layers; 0 for models without.
    fn n_states(&self) -> usize;

    /// Returns the bytes of weights in the device's own layout.
    fn weight_bytes(&self) -> u64;

    /// Returns the CPU's thread pool, if the CPU computes.
    fn pool(&self) -> Option<SharedPool> {
        None
    }

    /// Describes what runs where, for people: device, instruction set, threads.
    fn describe(&self) -> String;
}
