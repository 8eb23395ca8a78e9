//! Tensor parallelism: several executors that compute one program together, each a part of the rows
//! of every matrix. They exchange values and never sum any up, so that results do not depend on the
//! number of ranks.

mod threads;

use std::fmt::Debug;

pub use crate::op::Cut;
pub use threads::Threads;

use crate::op::Op;
use crate::program::Program;

/// Checks that a program gathers the parts of its own rank, given as `[rank, ranks]`.
///
/// # Panics
/// If it does not: a bug in its compiler.
pub(crate) fn check(program: &Program, rank: Option<[usize; 2]>) {
    for instruction in &program.ops {
        if let Op::AllGather { x, cut } = instruction.op {
            let [rank, ranks] = rank.expect("a program for several ranks, and no others");
            let width = program.slots[x].width;
            let mine = cut.of(rank, ranks).len();
            assert_eq!(width, cut.pieces * mine, "the part of another rank");
        }
    }
}

/// Communication between the ranks that compute a program together. All of them call the same
/// functions in the same order, each from one thread at a time; every call waits for the others.
///
/// There are no errors here: where a rank is lost, the others cannot go on, and an implementation
/// ends the program, or panics.
pub trait Collective: Debug + Send + Sync {
    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Number of this rank.
    fn rank(&self) -> usize;

    /// Concatenates the values of all ranks, in their order: `lens` gives the number of values of
    /// each, `mine` are this rank's.
    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]);

    /// This as a rank among threads of one process, which can read each other's values in place.
    fn in_process(&self) -> Option<&Threads> {
        None
    }

    /// Sends rank 0's words to all ranks, which may wait long for them.
    fn broadcast(&self, words: &mut Vec<u32>);

    /// Ends the group because this rank cannot go on, and says why in a line: the others must not
    /// wait for it.
    fn give_up(&self, why: &str) -> !;
}

/// Gathers whole rows of which all ranks have parts, this one `mine`.
pub fn gather_rows(ranks: &dyn Collective, cut: Cut, rows: usize, mine: &[f32]) -> Vec<f32> {
    let lens = cut.lens(rows, ranks.ranks());
    let mut all = vec![0.0; rows * cut.pieces * cut.width];
    ranks.all_gather(mine, &lens, &mut all);
    let mut whole = vec![0.0; all.len()];
    let mut rest = &all[..];
    for rank in 0..ranks.ranks() {
        let part = cut.of(rank, ranks.ranks());
        for piece in whole.chunks_exact_mut(cut.width) {
            let (from, behind) = rest.split_at(part.len());
            piece[part.clone()].copy_from_slice(from);
            rest = behind;
        }
    }
    whole
}
