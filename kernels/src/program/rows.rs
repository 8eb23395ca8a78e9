//! Conversion of a step's tokens to rows, with checks that they fit.

use super::{Phase, Program, StateUse, Step, StepSequence};
use crate::op::Op;
use crate::rope::RopePosition;
use octavo_simd::generic::attention::PAGE;

/// One token of a step.
#[derive(Clone, Copy)]
pub(crate) struct TokenRow {
    /// Index of its sequence in the step.
    pub(crate) seq: usize,
    pub(crate) token: u32,
    pub(crate) pos: usize,
    /// Positions by which its pairs are rotated.
    pub(crate) rope_positions: RopePosition,
    /// Index of the embedding input that replaces its embedding.
    pub(crate) embedding_input: Option<usize>,
    /// Positions of its sequence at the end of the step.
    pub(crate) end: usize,
    /// The positions of its block: all of its sequence where attention has no blocks.
    pub(crate) block: [usize; 2],
    /// The position after the last of its image; after its own, if it is of none.
    pub(crate) image_end: usize,
}

impl TokenRow {
    /// The largest position by which its pairs are rotated.
    pub(crate) fn furthest_turn(&self) -> usize {
        self.rope_positions.into_iter().max().unwrap_or(0) as usize
    }
}

impl Program {
    /// The tokens of a step on a cache of `n_pages`, and the rows with outputs.
    ///
    /// # Panics
    /// If the step does not fit: tokens beyond the table (where there is one), tables that do not
    /// cover the positions, page numbers that do not exist, an input of another size, a part of a
    /// sequence whose tokens see later ones, adapters out of order or without a place.
    pub(crate) fn rows(&self, step: &Step<'_>, n_pages: usize) -> (Vec<TokenRow>, Vec<usize>) {
        let limits = Limits::of(self, n_pages);
        let takes_adapters = self.takes_adapters();
        if !self.states.is_empty() {
            check_states(step);
        }
        let (mut rows, mut output_rows, mut n_inputs) = (Vec::new(), Vec::new(), 0);
        for (seq, s) in step.seqs.iter().enumerate() {
            assert!(
                limits.is_causal || (s.start == 0 && step.phase == Phase::Prefill),
                "a part of a sequence whose tokens see later ones"
            );
            limits.check(s);
            assert!(
                s.adapters.is_empty() || takes_adapters,
                "adapters for a program without places for them"
            );
            assert!(
                s.adapters.is_sorted_by(|a, b| a.adapter < b.adapter),
                "adapters in ascending order"
            );
            output_rows.extend(s.outputs.clone().map(|i| rows.len() + i));
            check_blocks(s);
            check_images(s);
            let first = rows.len();
            add_rows(seq, s, &mut rows);
            n_inputs = self.place_embedding_inputs(s, n_inputs, &mut rows[first..]);
            limits.check_embeddings(&rows[first..]);
        }
        let width = self.input().map_or(0, |slot| self.slots[slot].width);
        assert_eq!(
            step.input.len(),
            rows.len() * width,
            "an input of other rows, or for another program"
        );
        (rows, output_rows)
    }

    /// Number of positions that a token attends to at most, for each group of the cache's layers: 1
    /// without attention.
    fn widest_windows(&self) -> Vec<usize> {
        let mut widest = vec![1; self.caches.len()];
        for instruction in &self.ops {
            let (cache, window) = match instruction.op {
                Op::Attention { cache, scores, .. } => (cache, scores.window),
                Op::SelectKeys { cache, .. } => (cache, None),
                _ => continue,
            };
            let window = window.unwrap_or(usize::MAX);
            widest[cache.group] = window.max(widest[cache.group]);
        }
        widest
    }

    /// Assigns a sequence's embedding inputs to its tokens, numbered from `before` on, the count of
    /// earlier sequences; returns the count with these.
    ///
    /// # Panics
    /// If they are not whole rows for this program, or of tokens that do not exist.
    fn place_embedding_inputs(
        &self,
        s: &StepSequence<'_>,
        before: usize,
        rows: &mut [TokenRow],
    ) -> usize {
        let width = self.embedding_input_width;
        let mut next = before;
        for inputs in s.embedding_inputs {
            assert!(
                width > 0 && inputs.rows.len().is_multiple_of(width),
                "embedding inputs of another width"
            );
            for row in &mut rows[inputs.first..][..inputs.rows.len() / width] {
                assert!(row.embedding_input.is_none(), "two rows for one token");
                row.embedding_input = Some(next);
                next += 1;
            }
        }
        next
    }
}

/// Limits of a program and its cache.
struct Limits {
    /// Rows of the table of embeddings, and of that of positions.
    vocabulary: Option<usize>,
    positions: Option<usize>,
    is_causal: bool,
    /// Widest window of each group of the cache's layers.
    windows: Vec<usize>,
    n_pages: usize,
}

impl Limits {
    fn of(program: &Program, n_pages: usize) -> Limits {
        let vocabulary = program.ops.iter().find_map(|i| match &i.op {
            Op::Embed { table, .. } => Some(table.rows),
            _ => None,
        });
        let positions = program.ops.iter().find_map(|i| match &i.op {
            Op::EmbedPositions { table } => Some(table.rows),
            _ => None,
        });
        Limits {
            vocabulary,
            positions,
            is_causal: program.is_causal(),
            windows: program.widest_windows(),
            n_pages,
        }
    }

    /// Checks that a sequence's positions and pages exist, and the tokens with outputs.
    fn check(&self, s: &StepSequence<'_>) {
        let end = s.start + s.tokens.len();
        assert!(
            self.positions.is_none_or(|n| end <= n),
            "position {end} has no embedding"
        );
        assert_eq!(
            s.tables.len(),
            self.windows.len(),
            "block tables for other groups of layers"
        );
        for (table, window) in s.tables.iter().zip(&self.windows) {
            assert!(
                table.len() * PAGE >= end,
                "the block table ends before position {end}"
            );
            let first = (s.start + 1).saturating_sub(*window);
            let mut read = table.iter().skip(first / PAGE);
            assert!(
                read.all(|p| (*p as usize) < self.n_pages),
                "a page that does not exist"
            );
        }
        assert!(
            s.outputs.end <= s.tokens.len(),
            "outputs of tokens that are not there"
        );
    }

    /// Checks that all tokens without an embedding input have an embedding.
    fn check_embeddings(&self, rows: &[TokenRow]) {
        let known = |row: &TokenRow| self.vocabulary.is_none_or(|n| (row.token as usize) < n);
        if let Some(row) = rows
            .iter()
            .find(|r| r.embedding_input.is_none() && !known(r))
        {
            panic!("token {} has no embedding", row.token);
        }
    }
}

/// Checks that a sequence's rotations and blocks match its tokens.
fn check_blocks(s: &StepSequence<'_>) {
    assert!(
        s.rope_positions.is_empty() || s.rope_positions.len() == s.tokens.len(),
        "RoPE positions of other tokens"
    );
    let is_rising = s.blocks.is_sorted_by(|a, b| a < b);
    assert!(
        s.blocks.is_empty() || (is_rising && s.blocks.last() == Some(&s.tokens.len())),
        "blocks of other tokens"
    );
}

/// Checks that a sequence's images are some of its tokens, in order.
fn check_images(s: &StepSequence<'_>) {
    let is_rising = s.images.is_sorted_by(|a, b| a.end <= b.start);
    let last = s.images.last().map_or(0, |image| image.end);
    assert!(
        is_rising && last <= s.tokens.len() && s.images.iter().all(|image| !image.is_empty()),
        "images of other tokens"
    );
}

/// Adds a row for each of a sequence's tokens, without embedding inputs yet.
fn add_rows(seq: usize, s: &StepSequence<'_>, rows: &mut Vec<TokenRow>) {
    let end = s.start + s.tokens.len();
    let mut blocks = s.blocks.iter().map(|end| s.start + end).peekable();
    let mut block = [s.start, end];
    let mut images = s.images.iter().peekable();
    for (i, token) in s.tokens.iter().enumerate() {
        let pos = s.start + i;
        if blocks.peek() == Some(&pos) {
            block[0] = pos;
            blocks.next();
        }
        block[1] = blocks.peek().copied().unwrap_or(end);
        images.next_if(|image| image.end <= i);
        let image = images.peek().filter(|image| image.contains(&i));
        rows.push(TokenRow {
            seq,
            token: *token,
            pos,
            rope_positions: s.rope_positions.get(i).copied().unwrap_or([pos as u32; 3]),
            embedding_input: None,
            end,
            block,
            image_end: image.map_or(pos + 1, |image| s.start + image.end),
        });
    }
}

/// Checks that the states of a step are in order, and that none is written over another.
///
/// # Panics
/// If they are not: a bug in the step's caller.
fn check_states(step: &Step<'_>) {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for s in step.seqs {
        let StateUse { from, to } = s.states;
        assert_eq!(
            from.is_some(),
            s.start > 0,
            "there is a state exactly where there are tokens"
        );
        assert!(
            to.windows(2).all(|w| w[0].after < w[1].after)
                && to.first().is_some_and(|first| first.after > 0)
                && to.last().is_some_and(|last| last.after == s.tokens.len()),
            "states in order, the last after all tokens"
        );
        read.extend(from);
        written.extend(to.iter().map(|write| write.slot));
    }
    let all = written.len();
    written.sort_unstable();
    written.dedup();
    assert!(
        written.len() == all && read.iter().all(|slot| written.binary_search(slot).is_err()),
        "a state written over another of the step"
    );
}
