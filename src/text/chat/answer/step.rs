//! Results of reading one character of a tool call, and the events that readers of calls report.

/// Longest name of a function or key with the text around it, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Read, but the text may still turn out not to be a call.
    More,
    /// All text up to here is final.
    Settled,
    /// The character cannot be part of a call.
    Wrong,
    /// The calls are complete.
    Over,
}

/// Events read from calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A call of this function begins, with the call id if the model wrote one.
    Begins(String, Option<String>),
    Arguments(String),
}
