//! Rotary position embedding (RoPE): plain, linearly scaled, YaRN, and with per-frequency divisors
//! (`rope_freqs.weight`).

/// Position of a row: time, height, width, and a fourth number. In a text the first three are the
/// number of positions before the row, the fourth is always 0.
pub type Position = [usize; 4];

/// Elements of a head that form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RopePairs {
    /// `2i` and `2i + 1` (llama.cpp's NORM; llama files have their rows permuted for it).
    Adjacent,
    /// `i` and `i + n_rot / 2` (llama.cpp's NEOX; the qwen family).
    Halves,
}

/// YaRN (Peng et al. 2023, <https://arxiv.org/abs/2309.00071>): fast dimensions keep their
/// frequency, slow ones are interpolated, with a linear ramp between the pair indices `low` and
/// `high`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yarn {
    low: f64,
    high: f64,
}

/// YaRN's keys in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct YarnKeys {
    /// Context extension factor.
    pub(super) factor: f64,
    /// Context length of the original training.
    pub(super) context: f64,
    /// Rotations within that context above which a pair keeps its frequency.
    pub(super) beta_fast: f64,
    /// Rotations within that context below which a pair is fully scaled.
    pub(super) beta_slow: f64,
    /// Cancels part of the magnitude, if it is not 0.
    pub(super) log_multiplier: f64,
}

/// Rotary embedding of a layer.
#[derive(Debug, Clone)]
pub(super) struct Rope {
    pub(super) pairs: RopePairs,
    /// Number of leading elements of each head that are rotated.
    pub(super) n_rot: usize,
    pub(super) base: f64,
    /// Factor on positions: 1 / scaling factor.
    pub(super) scale: f64,
    /// Factor on the rotated vector.
    pub(super) magnitude: f64,
    pub(super) yarn: Option<Yarn>,
    /// Divisor of each pair's angle; length `n_rot / 2`.
    pub(super) divisors: Vec<f64>,
    /// Component of the position that rotates each pair; length `n_rot / 2`.
    pub(super) axes: Vec<usize>,
}

impl Rope {
    /// Adds YaRN's ramp, and its magnitude `m(1) = 1 + 0.1 ln(factor)`, divided by `m` of the
    /// multiplier where there is one.
    pub(super) fn set_yarn(&mut self, keys: YarnKeys) {
        // Index of the pair that completes `turns` rotations within the original context.
        let pair_of = |turns: f64| {
            self.n_rot as f64 * (keys.context / (turns * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * self.base.ln())
        };
        let low = pair_of(keys.beta_fast).floor().max(0.0);
        let high = pair_of(keys.beta_slow).ceil().min(self.n_rot as f64 - 1.0);
        self.yarn = Some(Yarn { low, high });
        if keys.factor > 1.0 {
            let m = |multiplier: f64| 1.0 + 0.1 * multiplier * keys.factor.ln();
            self.magnitude *= m(1.0);
            if keys.log_multiplier != 0.0 {
                self.magnitude /= m(keys.log_multiplier);
            }
        }
    }

    /// Returns `(cos, sin)` of every pair at a position, magnitude included.
    pub(super) fn rotation(&self, at: Position) -> Vec<(f64, f64)> {
        (0..self.n_rot / 2)
            .map(|i| {
                let frequency =
                    self.base.powf(-2.0 * i as f64 / self.n_rot as f64) / self.divisors[i];
                let extrapolated = at[self.axes[i]] as f64 * frequency;
                let interpolated = extrapolated * self.scale;
                let angle = match self.yarn {
                    None => interpolated,
                    Some(Yarn { low, high }) => {
                        let keep =
                            1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                        interpolated * (1.0 - keep) + extrapolated * keep
                    }
                };
                (angle.cos() * self.magnitude, angle.sin() * self.magnitude)
            })
            .collect()
    }

    /// Rotates one head in place.
    pub(super) fn rotate(&self, head: &mut [f64], rotation: &[(f64, f64)]) {
        self.pairs.rotate(head, rotation);
    }
}

impl RopePairs {
    /// Rotates as many pairs of one head as there are `(cos, sin)`, in place.
    pub(super) fn rotate(self, head: &mut [f64], rotation: &[(f64, f64)]) {
        for (i, &(cos, sin)) in rotation.iter().enumerate() {
            let (a, b) = match self {
                Self::Adjacent => (2 * i, 2 * i + 1),
                Self::Halves => (i, i + rotation.len()),
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cos - y * sin;
            head[b] = x * sin + y * cos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    fn plain(pairs: RopePairs, n_rot: usize) -> Rope {
        Rope {
            pairs,
            n_rot,
            base: 10_000.0,
            scale: 1.0,
            magnitude: 1.0,
            yarn: None,
            divisors: vec![1.0; n_rot / 2],
            axes: vec![0; n_rot / 2],
        }
    }

    fn at(pos: usize) -> Position {
        [pos, pos, pos, 0]
    }

    #[test]
    fn position_zero_changes_nothing() {
        let rope = plain(RopePairs::Halves, 4);
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0];
        rope.rotate(&mut head, &rope.rotation(at(0)));
        assert_eq!(head, [1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn pairs_are_those_of_the_definition() {
        for (pairs, partner) in [(RopePairs::Adjacent, 1), (RopePairs::Halves, 2)] {
            let rope = plain(pairs, 4);
            let mut head = [1.0, 0.0, 0.0, 0.0];
            rope.rotate(&mut head, &rope.rotation(at(1)));
            assert_abs_diff_eq!(head[0], 1f64.cos(), epsilon = 1e-15);
            assert_abs_diff_eq!(head[partner], 1f64.sin(), epsilon = 1e-15);
        }
    }

    #[test]
    fn pairs_turn_by_their_axes() {
        let mut rope = plain(RopePairs::Halves, 8);
        rope.base = 1.0; // all as fast
        rope.axes = vec![2, 0, 1, 3];
        let rotation = rope.rotation([5, 6, 7, 8]);
        let sines: Vec<f64> = rotation.iter().map(|pair| pair.1).collect();
        assert_eq!(sines, [7f64, 5.0, 6.0, 8.0].map(f64::sin));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let mut rope = plain(RopePairs::Halves, 128);
        rope.scale = 0.25;
        let keys = YarnKeys {
            factor: 4.0,
            context: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            log_multiplier: 0.0,
        };
        rope.set_yarn(keys);
        let magnitude = 1.0 + 0.1 * 4f64.ln();
        let r = rope.rotation(at(3));
        assert_abs_diff_eq!(r[0].0, 3f64.cos() * magnitude, epsilon = 1e-14);
        let slow = 0.25 * 3.0 * 10_000f64.powf(-126.0 / 128.0);
        assert_abs_diff_eq!(r[63].1, slow.sin() * magnitude, epsilon = 1e-15);
        // a ramp with other ends: pair 40 is on neither's flat part
        let usual = rope.rotation(at(3))[40];
        rope.magnitude = 1.0;
        rope.set_yarn(YarnKeys {
            beta_fast: 16.0,
            beta_slow: 2.0,
            log_multiplier: 1.0,
            ..keys
        });
        assert!((rope.rotation(at(3))[40].1 - usual.1).abs() > 1e-6);
        assert_eq!(
            rope.magnitude, 1.0,
            "a multiplier of 1 takes all of it back"
        );
    }
}
