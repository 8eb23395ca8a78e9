//! Context shift: a text that fills the context goes on without some of its earlier tokens.

use std::ops::Range;

/// Tokens always left after those that are kept, so that there is something to drop.
const MIN_ROOM: usize = 4;

/// How a text goes on when the context is full: tokens after the first ones are dropped, and those
/// that are left are computed anew, as a prompt. The text that follows is what the model says to
/// that prompt, whatever kind of layers it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextShift {
    /// Number of tokens to keep at the beginning, beside BOS; `None` keeps the prompt.
    pub keep: Option<usize>,
    /// Number of tokens to drop after them; `None` drops half of what is left.
    pub discard: Option<usize>,
}

impl ContextShift {
    /// Returns which tokens of a text of `n` are dropped; `has_bos` says whether it begins with
    /// BOS.
    pub(super) fn dropped(self, n: usize, n_prompt: usize, has_bos: bool) -> Range<usize> {
        let asked = match self.keep {
            None => n_prompt,
            Some(keep) => keep.saturating_add(usize::from(has_bos)),
        };
        let keep = asked.min(n.saturating_sub(MIN_ROOM + 1));
        let left = n - keep;
        let most = left.saturating_sub(1).max(1);
        let discard = self.discard.unwrap_or(left / 2).clamp(1, most);
        keep..keep + discard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_not_kept_is_dropped() {
        let shift = |keep, discard| ContextShift { keep, discard };
        for (of, n, n_prompt, has_bos, expected) in [
            (shift(Some(0), None), 101, 10, false, 0..50),
            (shift(Some(0), None), 101, 10, true, 1..51),
            (shift(Some(9), None), 101, 10, true, 10..55),
            (shift(None, None), 101, 11, true, 11..56),
            // a prompt that fills the context is cut
            (shift(None, None), 101, 101, true, 96..98),
            (shift(Some(1 << 40), None), 101, 11, false, 96..98),
            (
                shift(Some(usize::MAX), Some(usize::MAX)),
                101,
                11,
                true,
                96..100,
            ),
            (shift(Some(10), Some(20)), 101, 11, false, 10..30),
            (shift(Some(10), Some(0)), 101, 11, false, 10..11),
            (shift(Some(10), Some(1 << 40)), 101, 11, false, 10..100),
            // the smallest contexts
            (shift(None, None), 2, 1, false, 0..1),
            (shift(Some(0), None), 3, 1, true, 0..1),
        ] {
            assert_eq!(of.dropped(n, n_prompt, has_bos), expected, "{of:?}, {n}");
        }
    }
}
