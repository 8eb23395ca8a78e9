//! Intervals of means by blocks of text. Tokens of one chunk are of the same text and predicted
//! from the same context, so they are not independent, and a standard error by token is too small.
//! The means of whole chunks are nearly so.

use serde::Serialize;

/// An interval that contains the mean of all text like this one in 95 % of cases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Fewest blocks of an interval: of fewer it would say nothing.
const MIN_BLOCKS: usize = 4;

impl Interval {
    /// Returns the interval of the mean of some blocks' means, by Student's distribution; `None`
    /// for fewer than four blocks.
    pub fn of_blocks(means: impl IntoIterator<Item = f64>) -> Option<Interval> {
        let means: Vec<f64> = means.into_iter().collect();
        if means.len() < MIN_BLOCKS {
            return None;
        }
        let n = means.len() as f64;
        let mean = means.iter().sum::<f64>() / n;
        let squares: f64 = means.iter().map(|x| (x - mean) * (x - mean)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        let half = student(n - 1.0) * error;
        Some(Interval {
            low: mean - half,
            high: mean + half,
        })
    }

    /// Returns the interval of a function of the mean that grows with it.
    pub fn map(self, growing: impl Fn(f64) -> f64) -> Interval {
        Interval {
            low: growing(self.low),
            high: growing(self.high),
        }
    }
}

/// Returns the 97.5 % quantile of Student's distribution, to 1 % from three degrees of freedom on:
/// its expansion by the normal quantile (Abramowitz and Stegun 26.7.5).
fn student(freedom: f64) -> f64 {
    let z: f64 = 1.959_963_984_54;
    let power = |n: i32| z.powi(n);
    let terms = [
        (power(3) + z) / 4.0,
        (5.0 * power(5) + 16.0 * power(3) + 3.0 * z) / 96.0,
        (3.0 * power(7) + 19.0 * power(5) + 17.0 * power(3) - 15.0 * z) / 384.0,
    ];
    let mut by = 1.0;
    terms.iter().fold(z, |sum, term| {
        by /= freedom;
        sum + term * by
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::stats::Moments;

    #[test]
    fn quantiles_are_students() {
        for (freedom, expected) in [(3.0, 3.182), (5.0, 2.571), (15.0, 2.131), (100.0, 1.984)] {
            let got = student(freedom);
            assert!((got / expected - 1.0).abs() < 0.01, "{freedom}: {got}");
        }
        assert_eq!(Interval::of_blocks([1.0; 3]), None);
        let same = Interval {
            low: 1.0,
            high: 1.0,
        };
        assert_eq!(Interval::of_blocks([1.0; 4]), Some(same));
    }

    /// Draws numbers between 0 and 1.
    fn uniform(state: &mut u64) -> f64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from an exponential distribution with mean 1, which is as skewed as divergences are.
    fn exponential(state: &mut u64) -> f64 {
        -uniform(state).max(1e-300).ln()
    }

    /// Draws texts whose chunks differ, and counts how often an interval contains the true mean.
    #[test]
    fn intervals_by_blocks_cover_and_those_by_token_do_not() {
        let (texts, tokens) = (1500, 255);
        for chunks in [4, 8, 32] {
            let mut state = 7;
            let (mut by_blocks, mut by_token) = (0, 0);
            for _ in 0..texts {
                let mut means = Vec::new();
                let mut all = Moments::default();
                for _ in 0..chunks {
                    // a chunk is easy or hard: the mean of its tokens is 0.25 to 1.75
                    let mean = 0.25 + 1.5 * uniform(&mut state);
                    let mut sum = 0.0;
                    for _ in 0..tokens {
                        let value = mean * exponential(&mut state);
                        all.add(value);
                        sum += value;
                    }
                    means.push(sum / f64::from(tokens));
                }
                let interval = Interval::of_blocks(means).expect("enough blocks");
                by_blocks += usize::from((interval.low..interval.high).contains(&1.0));
                let n = chunks * tokens as usize;
                let estimate = all.mean(n);
                let half = 1.96 * estimate.uncertainty;
                by_token += usize::from((estimate.value - 1.0).abs() < half);
            }
            let share = |n: usize| n as f64 / f64::from(texts);
            assert!(
                (0.92..0.97).contains(&share(by_blocks)),
                "{chunks} chunks: {}",
                share(by_blocks)
            );
            assert!(
                share(by_token) < 0.5,
                "{chunks} chunks: {}",
                share(by_token)
            );
        }
    }
}
