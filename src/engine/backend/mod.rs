//! Executes a model's graph: one trait, one implementation per device. A backend knows the graph,
//! its weights and the pages it is told to use; it knows no request and no file format.

pub mod cpu;
pub mod cuda;
mod lower;
pub mod ranks;
mod rotate;
pub mod split;

use std::cell::RefCell;

pub use octavo_kernels::{Role, Sequence, SharedPool, Step};

use crate::Error;
use crate::sample::{are_finite, argmax};
use octavo_model::Tap;

/// The result of one op, seen while taps are on.
#[derive(Clone, Copy, Debug)]
pub struct TapView<'a> {
    /// Which value.
    pub tap: Tap,
    /// Rows: tokens of the step, or those whose logits are wanted.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// `[rows][width]`
    pub data: &'a [f32],
    /// What the pass goes on with, if not with these.
    instead: &'a RefCell<Option<Vec<f32>>>,
}

impl TapView<'_> {
    /// Lets the pass go on with other values in place of these: the next op reads them.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn go_on_with(&self, values: Vec<f32>) {
        assert_eq!(values.len(), self.data.len(), "{}: values", self.tap);
        *self.instead.borrow_mut() = Some(values);
    }
}

/// Receives every named value of a step, and every input of a product, in graph order, each before
/// the next op runs.
pub type TapSink<'a> = dyn FnMut(&TapView<'_>) + Send + 'a;

/// What happens while a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading<'a> {
    /// A line for people: what is used and why, what memory it takes.
    Note(&'a str),
    /// Weights are brought where they are needed.
    Weights {
        /// Bytes of the file done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
}

/// Receives progress while a model loads.
pub type LoadingSink<'a> = dyn FnMut(Loading<'_>) + 'a;

/// Where the largest of a row of logits is, the first of equal ones; none if one is not finite.
fn best_of(row: &[f32]) -> Option<u32> {
    argmax(row).filter(|_| are_finite(row))
}

/// Prompt tokens that keep a CPU busy.
pub(crate) const BATCH_OF_CPUS: usize = 512;
/// Prompt tokens that keep a GPU busy.
pub(crate) const BATCH_OF_GPUS: usize = 2048;

/// A model prepared for one device, with its KV pages.
pub trait Executable: Send {
    /// Prompt tokens at a time that keep its device busy.
    fn batch(&self) -> usize {
        BATCH_OF_CPUS
    }

    /// Runs new tokens and returns the logits of the wanted rows, `[wanted][n_vocab]`.
    ///
    /// The caller has allocated every page that the tables name; nothing is allocated for the cache
    /// here.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> Result<&[f32], Error>;

    /// As [`Executable::step`], but for each wanted row only where its largest logit is, the first
    /// of equal ones; none if a logit is not finite.
    ///
    /// # Errors
    /// If the device fails.
    fn best(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        let wanted = step.wanted_rows();
        let logits = self.step(step, None)?;
        Ok(logits
            .chunks_exact((logits.len() / wanted.max(1)).max(1))
            .map(best_of)
            .collect())
    }

    /// As [`Executable::step`], but returns the named value `tap` of the wanted rows,
    /// `[wanted][width]`. A backend need not compute what comes behind it.
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

    /// Copies page `from` to page `to` in every layer of a group of the cache's.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error>;

    /// Gives back what only steps need, because none is to be expected soon.
    fn rest(&mut self) {}

    /// Groups of the cache's layers, each with block tables of its own.
    fn cache_groups(&self) -> usize;

    /// Pages of each group.
    fn n_pages(&self) -> usize;

    /// Room for states of recurrent layers; 0 for models without.
    fn n_states(&self) -> usize;

    /// Bytes of weights in the device's own layout.
    fn weight_bytes(&self) -> u64;

    /// The CPU's threads, where it computes.
    fn pool(&self) -> Option<SharedPool> {
        None
    }

    /// What runs where, for people: device, instruction set, threads.
    fn describe(&self) -> String;
}
