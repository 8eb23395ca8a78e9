//! Blocks and images that positions are in.

use super::Case;
use std::ops::Range;

/// Returns the ends of blocks of `n` tokens: within pages and at their ends, after one token and
/// after more than a span.
pub(super) fn block_ends(n: usize) -> Vec<usize> {
    let inside = [20, 21, 32, 200].into_iter().filter(|end| *end < n);
    inside.chain([n]).collect()
}

/// Images of sequences: within a page, of a single token, and over more than a span.
pub(super) const IMAGES: [Range<usize>; 3] = [5..20, 33..34, 60..210];

/// Returns the number of tokens of a step of about `n` from `at` on, which cuts no image.
pub(super) fn whole_images(c: Case, at: usize, n: usize) -> usize {
    let cut = IMAGES
        .into_iter()
        .find(|image| (image.start + 1..image.end).contains(&(at + n)));
    cut.filter(|_| c.scores.images)
        .map_or(n, |image| image.end - at)
}
