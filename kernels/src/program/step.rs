//! One execution of a program: the new tokens of sequences to compute.

use std::ops::Range;

use crate::rope::RopePosition;

/// Phase that a token is computed in: it decides the kernels, so that results do not depend on
/// batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A token of a prompt: prefill kernels, also for a single token.
    Prefill,
    /// A sampled token: decode kernels.
    Decode,
}

/// New tokens of one sequence.
#[derive(Clone, Debug, Default)]
pub struct StepSequence<'a> {
    /// New tokens in order.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub start: usize,
    /// For each group of the cache's layers, pages of the sequence from position 0, covering all
    /// new tokens. Where all layers of a group attend in windows, pages that lie wholly before the
    /// first token's window are never read: their numbers are arbitrary.
    pub tables: &'a [&'a [u32]],
    /// Range of `tokens` to compute outputs for.
    pub outputs: Range<usize>,
    /// Slots of its state, for programs that keep one.
    pub states: StateUse<'a>,
    /// Positions by which the pairs of each of `tokens` are rotated; empty where these are its
    /// position, along all axes.
    pub rope_positions: &'a [RopePosition],
    /// Rows that replace embeddings, in order.
    pub embedding_inputs: &'a [EmbeddingRows<'a>],
    /// Ends of attention blocks, as numbers of `tokens` from the start, in order, the last after
    /// all of them; empty where all are one.
    pub blocks: &'a [usize],
    /// Images whose tokens see each other where [`Scores::images`](crate::Scores::images) says so,
    /// in order, as ranges of `tokens`. An image that began in an earlier step ends in this one.
    pub images: &'a [Range<usize>],
    /// Low-rank adapters that it uses, in ascending order of their numbers.
    pub adapters: &'a [UsedAdapter],
}

/// A low-rank adapter that a sequence uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsedAdapter {
    /// Number of the adapter.
    pub adapter: usize,
    /// Factor of what it adds.
    pub scale: f32,
    /// First position with it.
    pub from: usize,
}

/// Rows that replace the embeddings of neighbouring tokens, whose ids are then ignored.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingRows<'a> {
    /// Index of the first of these tokens among the sequence's new tokens.
    pub first: usize,
    /// `[tokens][Program::embedding_input_width]`: the embedding, followed by the values that
    /// [`crate::Op::AddEmbeddings`] adds.
    pub rows: &'a [f32],
}

/// Slots of a sequence's state before and after a step. A state is written once and never changed,
/// so that a step can be repeated, and other sequences can continue from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateUse<'a> {
    /// Slot of the state before the step; `None` where the sequence has no tokens yet.
    pub from: Option<u32>,
    /// States to write, in order, the last after all tokens.
    pub to: &'a [StateWrite],
}

/// A state to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Number of the step's tokens after which it is written.
    pub after: usize,
    /// Destination slot. No other sequence of the step reads or writes there.
    pub slot: u32,
}

/// One step: new tokens of some sequences, all of one phase.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// See [`Phase`].
    pub phase: Phase,
    /// Sequences, each at most once.
    pub seqs: &'a [StepSequence<'a>],
    /// Values of [`Op::Input`](crate::Op::Input), `[rows][width]`; empty for programs without one.
    pub input: &'a [f32],
}

impl Step<'_> {
    /// Embedding inputs of all sequences, one after the other.
    pub(crate) fn embedding_inputs(&self) -> impl Iterator<Item = &[f32]> {
        let of_sequences = self.seqs.iter().flat_map(|s| s.embedding_inputs);
        of_sequences.map(|inputs| inputs.rows)
    }

    /// Number of new tokens.
    pub fn rows(&self) -> usize {
        self.seqs.iter().map(|s| s.tokens.len()).sum()
    }

    /// Number of rows with outputs.
    pub fn n_outputs(&self) -> usize {
        self.seqs.iter().map(|s| s.outputs.len()).sum()
    }
}
