//! How far back the layers of a group look, and so which pages of a timeline nobody will look at.

use super::PAGE;

/// Positions that a timeline can always go back, whatever its windows have passed. Whoever goes
/// back takes some tokens of an answer away: those behind a stop string, or an end of turn that a
/// template writes otherwise. Without this that would be to read the text from its beginning. It
/// costs four pages of a sequence, far less than the windows and the prompts of real models take.
const SLACK: usize = 4 * PAGE;

/// Positions that a token looks back at, its own with them; all if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window(pub(super) Option<usize>);

impl Window {
    /// The place of the first page that a timeline of so many positions needs to go on.
    pub(super) fn first_needed(self, len: usize) -> usize {
        self.0.map_or(0, |window| {
            // the last full page is always among them: it is where a timeline stands in the tree
            (len + 1).saturating_sub(window.max(PAGE + 1)) / PAGE
        })
    }

    /// The place of the first page that a timeline of so many positions keeps.
    pub(super) fn first_kept(self, len: usize) -> usize {
        self.first_needed(len.saturating_sub(SLACK))
    }
}
