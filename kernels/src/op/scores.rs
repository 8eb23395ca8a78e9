//! Which keys a query sees, and what becomes of their scores.

use std::ops::Range;

/// Computation and masking of attention scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Multiplies `q k`.
    pub scale: f32,
    /// `cap * tanh(score / cap)` of every scaled score; positive.
    pub cap: Option<f32>,
    /// A query at position `q` sees the keys at positions above `q - window`: `window` of them with
    /// its own. At least 1. Where attention is not causal, it sees those at most `window / 2` away.
    pub window: Option<usize>,
    /// The window does not move: a query sees the keys from the last multiple of `window` on.
    pub chunked: bool,
    /// A query sees no later position; otherwise all of its sequence, which is one step then.
    pub causal: bool,
    /// A query sees the positions of its own block and no others, whatever the fields above say;
    /// steps give the ends of blocks.
    pub blocks: bool,
    /// A query in an image also sees the later positions of that image, which a step has whole;
    /// steps give the images.
    pub images: bool,
    /// Scores fall with distance.
    pub alibi: Option<Alibi>,
}

/// Attention with linear biases (ALiBi, Press et al. 2021): a scaled and capped score falls by the
/// slope of its query head for each position between query and key. The slopes are a geometric
/// sequence; where heads are no power of two, those beyond the last one take every other member of
/// the next finer sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alibi {
    /// The slopes of a power of two of heads end at 2 to the power of minus this; positive.
    pub max_bias: f32,
    /// Query heads of the whole model.
    pub heads: usize,
    /// The first query head among them that this attention has.
    pub first: usize,
}

impl Alibi {
    /// Returns the slope of a query head of this attention.
    pub fn slope(self, head: usize) -> f32 {
        let (head, bias) = (self.first + head, f64::from(self.max_bias));
        let power = 1 << self.heads.max(1).ilog2();
        let exponent = match head.checked_sub(power) {
            None => (head + 1) as f64 / power as f64,
            Some(more) => (2 * more + 1) as f64 / (2 * power) as f64,
        };
        (-bias * exponent).exp2() as f32
    }
}

impl Scores {
    /// Scaled, and nothing else.
    pub fn plain(scale: f32) -> Scores {
        Scores {
            scale,
            cap: None,
            window: None,
            chunked: false,
            causal: true,
            blocks: false,
            images: false,
            alibi: None,
        }
    }

    /// Number of positions before its own that a query sees, at most: all, if none.
    pub(crate) fn before(self) -> Option<usize> {
        self.window.map(|window| match self.causal {
            true => window - 1,
            false => window / 2,
        })
    }

    /// Number of positions after its own that a query sees, at most: all, if none.
    pub(crate) fn after(self) -> Option<usize> {
        match self.causal {
            true => Some(0),
            false => self.before(),
        }
    }

    /// The positions that a query at `position` sees of a sequence of `len` positions.
    pub(crate) fn visible(self, position: usize, len: usize) -> Range<usize> {
        let first = match self.window.filter(|_| self.chunked) {
            Some(chunk) => position / chunk * chunk,
            None => self.before().map_or(0, |n| position.saturating_sub(n)),
        };
        let end = self.after().map_or(len, |n| position.saturating_add(n + 1));
        first..end.min(len)
    }
}
