//! Rotary position embedding as a table: one frequency per pair of dimensions, in f64, and one
//! magnitude. Every variant (linear scaling, YaRN, divisors in the file) only changes the table, so
//! that kernels need not know them.

/// Pairs of a head's dimensions that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Neighbours: (2i, 2i + 1). The order of llama in GGUF, whose converter permutes the weights
    /// accordingly.
    Norm,
    /// Halves: (i, i + n_rot / 2). Hugging Face's own order.
    Neox,
}

impl Pairing {
    /// The name llama.cpp uses.
    pub fn name(self) -> &'static str {
        match self {
            Pairing::Norm => "norm",
            Pairing::Neox => "neox",
        }
    }
}

/// Angles of every pair, the same for queries and keys; dimensions from [`Rope::n_rot`] on pass
/// unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of dimensions.
    pub pairing: Pairing,
    /// The angle of pair `i` at position `p` is `p * frequencies[i]`.
    pub frequencies: Vec<f64>,
    /// Factor of cosine and sine.
    pub magnitude: f64,
    /// Axis of [`RopePosition`] that each pair is rotated by; the first, where this is empty.
    pub axes: Vec<usize>,
}

/// Position of a token along the axes by which pairs of dimensions are rotated: in text its
/// position on all three; in an image its time, row and column.
pub type RopePosition = [u32; 3];

impl Rope {
    /// Number of rotated dimensions of a head.
    pub fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The two dimensions of pair `i` inside a head.
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Norm => (2 * i, 2 * i + 1),
            Pairing::Neox => (i, i + self.frequencies.len()),
        }
    }

    /// The axis that pair `i` is rotated by.
    pub fn axis(&self, i: usize) -> usize {
        self.axes.get(i).copied().unwrap_or(0)
    }

    /// Cosine and sine of every pair of a token, times the magnitude: in f64 until the end, but for
    /// the magnitude, which is rounded to f32 as in every engine.
    pub fn angles(&self, rope_positions: RopePosition) -> impl Iterator<Item = (f32, f32)> + '_ {
        let m = f64::from(self.magnitude as f32);
        self.frequencies.iter().enumerate().map(move |(i, f)| {
            let (sin, cos) = (f64::from(rope_positions[self.axis(i)]) * f).sin_cos();
            ((cos * m) as f32, (sin * m) as f32)
        })
    }
}
