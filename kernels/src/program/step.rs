//! One execution of a program: which new tokens of which sequences are computed.

use std::ops::Range;

use crate::rope::Turns;

/// How a token came to be: decides the kernels, so that results do not depend on batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read from the user: prompt kernels, also for a single token.
    Prompt,
    /// Sampled: generation kernels.
    Generated,
}

/// New tokens of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence<'a> {
    /// In order.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// For each group of the cache's layers, pages of the sequence from position 0, covering all
    /// new tokens. Where all layers of a group attend in windows, pages that lie wholly before the
    /// first token's are never looked at: any number may stand for them.
    pub tables: &'a [&'a [u32]],
    /// Range of `tokens` to compute outputs for.
    pub wanted: Range<usize>,
    /// Where its state is, for programs that keep one.
    pub states: StateUse<'a>,
    /// By what the pairs of each of `tokens` turn; empty where that is its position, along all
    /// axes.
    pub turns: &'a [Turns],
    /// Rows in the place of embeddings, in order.
    pub given: &'a [GivenRows<'a>],
    /// Ends of attention blocks, as numbers of `tokens` from the start, in order, the last after
    /// all of them; empty where all are one.
    pub blocks: &'a [usize],
}

/// Rows that stand in the place of the embeddings of neighbouring tokens, whose ids mean nothing
/// then.
#[derive(Clone, Copy, Debug)]
pub struct GivenRows<'a> {
    /// The first of the tokens, counted from the sequence's first of the step.
    pub first: usize,
    /// `[tokens][Program::given]`: the embedding, and behind it what [`crate::Op::AddGiven`]
    /// adds.
    pub rows: &'a [f32],
}

/// Where a sequence's state stands before a step, and where it goes. A state is written once and
/// never changed, so that a step can be taken again, and others can go on from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateUse<'a> {
    /// The slot with what the tokens before the step have left; none where there are no tokens.
    pub from: Option<u32>,
    /// In order, the last after all tokens.
    pub to: &'a [StateWrite],
}

/// A state that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Number of the step's tokens after which it is written.
    pub after: usize,
    /// Where it goes. No other sequence of the step reads or writes there.
    pub slot: u32,
}

/// One step: new tokens of some sequences, all of one role.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// See [`Role`].
    pub role: Role,
    /// Every sequence at most once.
    pub seqs: &'a [Sequence<'a>],
    /// Values of [`Op::Input`](crate::Op::Input), `[rows][width]`; empty for programs without one.
    pub input: &'a [f32],
}

impl Step<'_> {
    /// All given rows, one after the other.
    pub(crate) fn given(&self) -> impl Iterator<Item = &[f32]> {
        let of_sequences = self.seqs.iter().flat_map(|s| s.given);
        of_sequences.map(|given| given.rows)
    }

    /// All new tokens.
    pub fn rows(&self) -> usize {
        self.seqs.iter().map(|s| s.tokens.len()).sum()
    }

    /// Rows with outputs.
    pub fn wanted_rows(&self) -> usize {
        self.seqs.iter().map(|s| s.wanted.len()).sum()
    }
}
