//! Executes a model's graph: one trait, one implementation per device. A backend knows the graph, its weights and the
//! pages it is told to use; it knows no request and no file format.

pub mod cpu;
pub mod cuda;

pub use octavo_kernels::{Role, Sequence, Step};

use crate::model::Tap;

/// The result of one op, seen while taps are on.
#[derive(Clone, Copy, Debug)]
pub struct TapView<'a> {
    /// llama.cpp's name of the value.
    pub tap: Tap,
    /// How many values of this name came before in this step (`Qcur-0` is the product, then the rotated one).
    pub occurrence: usize,
    /// Rows: tokens of the step, or those whose logits are wanted.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// `[rows][width]`
    pub data: &'a [f32],
}

/// Receives every named value of a step, in graph order.
pub type TapSink<'a> = dyn FnMut(&TapView<'_>) + Send + 'a;

/// A model prepared for one device, with its KV pages.
pub trait Executable: Send {
    /// Runs new tokens and returns the logits of the wanted rows, `[wanted][n_vocab]`.
    ///
    /// The caller has allocated every page that the tables name; nothing is allocated for the cache here.
    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> &[f32];

    /// Copies page `from` to page `to` in every layer.
    fn copy_page(&mut self, from: u32, to: u32);

    /// Pages of the cache.
    fn n_pages(&self) -> usize;

    /// What runs where, for people: device, instruction set, threads.
    fn describe(&self) -> String;
}
