//! Sliding windows: how far back the layers of a group attend, and so which pages of a sequence no
//! token will read.

use super::PAGE;

/// Positions that a sequence can always go back, whatever pages its windows have freed. A caller
/// goes back to remove some tokens of an answer: those behind a stop string, or an end of turn that
/// a template writes otherwise. Without this the whole text would have to be computed again. It
/// costs four pages of a sequence, far less than the windows and the prompts of real models take.
const SLACK: usize = 4 * PAGE;

/// Positions that a token attends to, its own included; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window(pub(super) Option<usize>);

impl Window {
    /// Returns the place of the first page that a sequence of `len` positions needs to go on.
    pub(super) fn first_needed(self, len: usize) -> usize {
        self.0.map_or(0, |window| {
            // the last full page is always among them: it is the sequence's place in the prefix
            // tree
            (len + 1).saturating_sub(window.max(PAGE + 1)) / PAGE
        })
    }

    /// Returns the place of the first page that a sequence of `len` positions keeps.
    pub(super) fn first_kept(self, len: usize) -> usize {
        self.first_needed(len.saturating_sub(SLACK))
    }
}
