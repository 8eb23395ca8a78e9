//! Finds the longest token that is a prefix of a text.

/// Tokens sorted by their texts.
pub(super) struct Prefixes(Vec<u32>);

impl Prefixes {
    /// Sorts tokens that have texts; of tokens with the same text, the last is found.
    pub(super) fn new<'a>(mut ids: Vec<u32>, text: impl Fn(u32) -> &'a [u8]) -> Prefixes {
        ids.sort_unstable_by(|a, b| text(*a).cmp(text(*b)).then(b.cmp(a)));
        Prefixes(ids)
    }

    /// Returns the longest token that is a prefix of `bytes`, and its length: the candidates are
    /// narrowed down byte by byte, so the work is bounded by the longest token. `text` returns the
    /// same texts as when the tokens were sorted.
    pub(super) fn longest<'a>(
        &self,
        text: impl Fn(u32) -> &'a [u8],
        bytes: &[u8],
    ) -> Option<(u32, usize)> {
        let mut candidates = self.0.as_slice();
        let mut found = None;
        for (at, byte) in bytes.iter().enumerate() {
            // tokens that end before this byte come first
            let byte_of = |id: &u32| text(*id).get(at).copied();
            let start = candidates.partition_point(|id| byte_of(id) < Some(*byte));
            candidates = candidates.get(start..)?;
            let end = candidates.partition_point(|id| byte_of(id) <= Some(*byte));
            candidates = candidates.get(..end)?;
            let Some(first) = candidates.first() else {
                break;
            };
            if text(*first).len() == at + 1 {
                found = Some((*first, at + 1));
            }
        }
        found
    }
}
