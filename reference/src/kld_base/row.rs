//! Encodes one row of logits as 16-bit log-probabilities, and decodes it.

/// Depth below the most likely token to which llama.cpp stores log-probabilities, in nats.
pub const CUT: f32 = 16.0;
/// The same for ik_llama.cpp.
pub const WIDE_CUT: f32 = 24.0;
/// Bytes of scale and lowest log-probability.
pub(super) const HEADER: usize = 8;

/// Values needed for the log-probabilities of a row of logits, computed in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The highest logit.
    pub max: f32,
    /// The lowest logit.
    pub min: f32,
    /// Lowest id with the highest logit.
    pub argmax: usize,
    /// `ln Σ e^(logit - max)`.
    pub ln_sum: f64,
}

impl Norm {
    /// Computes them for one row of finite logits; an empty row gives a meaningless result, but no
    /// panic.
    pub fn of(logits: &[f32]) -> Norm {
        let (min, max) = extremes(logits);
        let argmax = logits.iter().position(|&x| x == max).unwrap_or(0);
        let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
        Norm {
            max,
            min,
            argmax,
            ln_sum: sum.ln(),
        }
    }

    /// Returns the log-probability of a token of this row from its logit.
    pub fn ln_p(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.max) - self.ln_sum
    }
}

/// Returns the lowest and highest value; in lanes, so that it compiles to vector code.
fn extremes(row: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let first = row.first().copied().unwrap_or_default();
    let (mut low, mut high) = ([first; LANES], [first; LANES]);
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(block) {
            *low = if x < *low { x } else { *low };
            *high = if x > *high { x } else { *high };
        }
    }
    let all = |lanes: [f32; LANES], better: fn(f32, f32) -> f32| {
        lanes
            .iter()
            .chain(rest)
            .fold(first, |best, &x| better(best, x))
    };
    (all(low, f32::min), all(high, f32::max))
}

/// Encodes one row of logits. `out` must be `Shape::row_bytes` long.
///
/// # Panics
/// If it is not.
pub fn encode(logits: &[f32], norm: &Norm, out: &mut [u8]) {
    assert_eq!(
        out.len(),
        HEADER + 2 * logits.len().next_multiple_of(2),
        "the bytes of a row"
    );
    let low = norm.min.max(norm.max - CUT);
    let lowest = low - norm.max - norm.ln_sum as f32;
    let scale = (norm.max - low) / 65535.0;
    let (header, codes) = out.split_at_mut(HEADER);
    header[..4].copy_from_slice(&scale.to_le_bytes());
    header[4..].copy_from_slice(&lowest.to_le_bytes());
    codes.fill(0);
    if scale == 0.0 {
        return;
    }
    let inverse = 1.0 / scale;
    for (&x, code) in logits.iter().zip(codes.as_chunks_mut::<2>().0) {
        let q = if x > low {
            nearest(inverse * (x - low))
        } else {
            0
        };
        *code = q.to_le_bytes();
    }
}

/// Returns the nearest integer, ties to even: adding 1.5 * 2^23 leaves it in the low bits of the
/// mantissa. Unlike `round_ties_even` it is a vector instruction on every CPU, and matches
/// llama.cpp where the scale is so small that its inverse overflows.
fn nearest(x: f32) -> u16 {
    (x + 12_582_912.0).to_bits() as u16
}

/// One row as stored in a file.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    scale: f32,
    lowest: f32,
    codes: &'a [[u8; 2]],
}

impl<'a> Row<'a> {
    /// Decodes the row of a vocabulary of `n_vocab` tokens at the start of these bytes.
    ///
    /// # Panics
    /// If there are fewer bytes than that.
    pub fn new(bytes: &'a [u8], n_vocab: usize) -> Row<'a> {
        let (scale, lowest) = row_header(bytes);
        Row {
            scale,
            lowest,
            codes: &bytes[HEADER..].as_chunks::<2>().0[..n_vocab],
        }
    }

    /// Returns the log-probability of a token.
    ///
    /// # Panics
    /// If it is outside the vocabulary.
    pub fn ln_p(&self, token: usize) -> f32 {
        self.value(self.codes[token])
    }

    /// Iterates over the log-probabilities of all tokens.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f32> + use<'a> {
        let row = *self;
        self.codes.iter().map(move |&code| row.value(code))
    }

    fn value(&self, code: [u8; 2]) -> f32 {
        self.scale * f32::from(u16::from_le_bytes(code)) + self.lowest
    }
}

pub(super) fn row_header(bytes: &[u8]) -> (f32, f32) {
    let word =
        |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (word(0), word(4))
}
