//! Means with their uncertainty, and percentiles, by llama-perplexity's definitions.

use serde::{Deserialize, Serialize};

/// A value and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Standard error of the value.
    pub uncertainty: f64,
}

/// Sum and sum of squares of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Moments {
    pub(super) sum: f64,
    pub(super) sum2: f64,
}

impl Moments {
    pub(super) fn add(&mut self, x: f64) {
        self.sum += x;
        self.sum2 += x * x;
    }

    /// Adds the moments of further values.
    pub(super) fn fold(&mut self, others: &Moments) {
        self.sum += others.sum;
        self.sum2 += others.sum2;
    }

    /// Returns the variance of the mean of `n` values; 0 where rounding would make it negative.
    pub(super) fn variance(&self, n: usize) -> f64 {
        if n < 2 {
            return 0.0;
        }
        let mean = self.sum / n as f64;
        ((self.sum2 / n as f64 - mean * mean) / (n - 1) as f64).max(0.0)
    }

    /// Returns the mean of `n` values. For ten or fewer, llama-perplexity states no uncertainty.
    pub(super) fn mean(&self, n: usize) -> Estimate {
        if n == 0 {
            return Estimate::default();
        }
        let uncertainty = if n > 10 { self.variance(n).sqrt() } else { 0.0 };
        Estimate {
            value: self.sum / n as f64,
            uncertainty,
        }
    }
}

/// Returns the covariance of two means of `n` values, from the sum of products. For fewer than ten,
/// llama-perplexity has none.
pub(super) fn covariance(a: &Moments, b: &Moments, products: f64, n: usize) -> f64 {
    if n < 10 {
        return 0.0;
    }
    let count = n as f64;
    (products / count - (a.sum / count) * (b.sum / count)) / (count - 1.0)
}

/// Values in ascending order.
#[derive(Clone, Debug)]
pub struct Sorted(Vec<f32>);

impl Sorted {
    /// Sorts the values.
    pub fn of(mut values: Vec<f32>) -> Sorted {
        values.sort_unstable_by(f32::total_cmp);
        Sorted(values)
    }

    /// Returns the lowest value; 0 if there are none.
    pub fn minimum(&self) -> f32 {
        self.0.first().copied().unwrap_or_default()
    }

    /// Returns the highest value; 0 if there are none.
    pub fn maximum(&self) -> f32 {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns the median.
    pub fn median(&self) -> f32 {
        let n = self.0.len();
        match (self.0.get(n / 2), n % 2) {
            (Some(&upper), 0) => 0.5 * (upper + self.0[n / 2 - 1]),
            (Some(&middle), _) => middle,
            (None, _) => 0.0,
        }
    }

    /// Returns the value below which this fraction lies, linearly interpolated. Computed in f32 as
    /// in llama-perplexity, so that equal values give equal digits.
    pub fn percentile(&self, fraction: f32) -> f32 {
        let last = self.0.len().saturating_sub(1);
        let place = fraction.clamp(0.0, 1.0) * last as f32;
        let below = (place as usize).min(last);
        let part = place - below as f32;
        match (self.0.get(below), self.0.get(last.min(below + 1))) {
            (Some(a), Some(b)) => (1.0 - part) * a + part * b,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|&x| moments.add(x));
        moments
    }

    #[test]
    fn means_by_hand() {
        // 1 to 12: mean 6.5, variance of the population 143/12
        let values: Vec<f64> = (1..=12).map(f64::from).collect();
        let mean = moments(&values).mean(12);
        assert_eq!(mean.value, 6.5);
        assert!((mean.uncertainty - (143.0 / 12.0 / 11.0f64).sqrt()).abs() < 1e-14);
        assert_eq!(
            moments(&values[..10]).mean(10),
            Estimate {
                value: 5.5,
                uncertainty: 0.0
            },
            "ten are too few"
        );
        assert_eq!(moments(&[]).mean(0), Estimate::default());
        assert_eq!(
            moments(&[0.1; 33]).variance(33).max(0.0),
            moments(&[0.1; 33]).variance(33),
            "not below 0"
        );
        assert_eq!(moments(&[3.0]).variance(1), 0.0);
    }

    #[test]
    fn covariances_by_hand() {
        // y = 2 x: the covariance is twice the variance
        let x: Vec<f64> = (1..=12).map(f64::from).collect();
        let y: Vec<f64> = x.iter().map(|x| 2.0 * x).collect();
        let products: f64 = x.iter().zip(&y).map(|(a, b)| a * b).sum();
        let got = covariance(&moments(&x), &moments(&y), products, 12);
        assert!((got - 2.0 * 143.0 / 12.0 / 11.0).abs() < 1e-14);
        assert_eq!(
            covariance(&moments(&x[..9]), &moments(&y[..9]), products, 9),
            0.0,
            "nine are too few"
        );
    }

    #[test]
    fn percentiles_by_hand() {
        let sorted = Sorted::of(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!(
            (sorted.minimum(), sorted.median(), sorted.maximum()),
            (1.0, 2.5, 10.0)
        );
        assert_eq!(sorted.percentile(0.0), 1.0);
        assert_eq!(sorted.percentile(1.0), 10.0);
        // 0.75 * 3 = 2.25: a quarter of the way from 3 to 10
        assert_eq!(sorted.percentile(0.75), 4.75);
        assert_eq!(
            [sorted.percentile(-1.0), sorted.percentile(2.0)],
            [1.0, 10.0]
        );
        assert_eq!(Sorted::of(vec![3.0, -1.0, 2.0]).median(), 2.0);
        assert_eq!(Sorted::of(vec![4.0]).percentile(0.5), 4.0);
        let none = Sorted::of(Vec::new());
        assert_eq!(
            [
                none.minimum(),
                none.median(),
                none.maximum(),
                none.percentile(0.5)
            ],
            [0.0; 4]
        );
    }
}
