//! Divergence from a row of a small base, with a bound on what the row does not say.

use serde::{Deserialize, Serialize};

use super::row::SmallRow;
use crate::eval::base::Norm;
use crate::eval::divergence::Token;

/// How far the true divergence can be from the computed one, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slack {
    /// True divergence at least the computed one less this.
    pub below: f64,
    /// True divergence at most the computed one and this.
    pub above: f64,
    /// Variance of the computed one, over the draws of the tokens that the base has a sample of.
    pub variance: f64,
}

impl Slack {
    /// Adds that of another part of a sum.
    pub(super) fn add(&mut self, more: &Slack) {
        self.below += more.below;
        self.above += more.above;
        self.variance += more.variance;
    }

    /// Returns that of the mean of `n` tokens, from those of the chunks' sums.
    pub fn of_mean(chunks: &[Slack], n: usize) -> Slack {
        let mut sum = Slack::default();
        chunks.iter().for_each(|chunk| sum.add(chunk));
        let n = n as f64;
        Slack {
            below: sum.below / n,
            above: sum.above / n,
            variance: sum.variance / (n * n),
        }
    }

    /// Returns whether a chunk can have this: data from a file is untrusted.
    pub(crate) fn is_sound(&self) -> bool {
        let is_sound = |x: f64| x.is_finite() && x >= 0.0;
        [self.below, self.above, self.variance]
            .into_iter()
            .all(is_sound)
    }
}

/// Compares a row of logits with one of a base.
///
/// The tokens of the row contribute Σ p ln(p / q), and the others their probability times the mean
/// of ln(p / q) over the sample, which was drawn by p: an estimate without bias. The least they can
/// contribute is P ln(P / Q) of their sums (log sum inequality).
pub(super) fn compare(logits: &[f32], row: &SmallRow, target: usize) -> (Token, Slack) {
    let norm = Norm::of(logits);
    let (mut kld, mut size, mut of_row) = (0.0, 0.0, 0.0);
    for &(id, ln_p) in &row.tokens {
        let ln_q = norm.ln_p(logits[id as usize]);
        kld += ln_p.exp() * (ln_p - ln_q);
        size += ln_p.exp() * (ln_p - ln_q).abs();
        of_row += ln_q.exp();
    }
    let of_others = (1.0 - of_row).max(0.0);
    let least = match row.rest > 0.0 {
        true => row.rest * (row.rest.ln() - of_others.max(f64::MIN_POSITIVE).ln()),
        false => 0.0,
    };
    let ratios = row.sample.iter();
    let ratios = ratios.map(|(id, ln_p)| ln_p - norm.ln_p(logits[*id as usize]));
    let (others, variance) = match row.sample.len() {
        0 => (least, 0.0),
        n => {
            let (sum, squares) =
                ratios.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
            let (n, mean) = (n as f64, sum / n as f64);
            let spread = (squares / n - mean * mean).max(0.0);
            (
                row.rest * mean,
                row.rest * row.rest * spread / (n - 1.0).max(1.0),
            )
        }
    };
    let token = Token::new(
        -norm.ln_p(logits[target]),
        -f64::from(row.ln_target),
        kld + others,
        row.argmax as usize == norm.argmax,
    );
    // |p' - p| ≤ p' (e^ε - 1) where ln p' is within ε of ln p; both sum to the same
    let rounded = row.rounding.exp_m1();
    let rounding = rounded * size + row.rounding * rounded;
    let most = row.rest_entropy - lowest(logits, &norm, row);
    let slack = Slack {
        below: rounding + (others - least).max(0.0),
        above: rounding + (most - others).max(0.0),
        variance,
    };
    (token, slack)
}

/// Returns the least that Σ p ln q can be over the tokens that are not in the row: each p is at
/// most that of the least likely token of the row, and the least likely tokens of q have it all.
fn lowest(logits: &[f32], norm: &Norm, row: &SmallRow) -> f64 {
    let most = row.ln_most.exp();
    let n = (row.rest / most).ceil() as usize;
    if n == 0 {
        return 0.0;
    }
    let mut next = row.tokens.iter().map(|(id, _)| *id).peekable();
    let others = (0u32..).zip(logits);
    let others = others.filter(|(id, _)| next.next_if_eq(id).is_none());
    let mut others: Vec<f32> = others.map(|(_, logit)| *logit).collect();
    if n < others.len() {
        others.select_nth_unstable_by(n, f32::total_cmp);
        others.truncate(n);
    }
    others.sort_unstable_by(f32::total_cmp);
    let (mut left, mut sum) = (row.rest, 0.0);
    for logit in others {
        let p = most.min(left);
        sum += p * norm.ln_p(logit);
        left -= p;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::RowSize;
    use super::super::row::{Bytes, encode};
    use super::*;

    struct Slice<'a>(&'a [u8]);

    impl Bytes for Slice<'_> {
        type Error = ();

        fn byte(&mut self) -> Result<u8, ()> {
            let (first, rest) = self.0.split_first().ok_or(())?;
            self.0 = rest;
            Ok(*first)
        }

        fn wrong(&self, _: &'static str, _: String) {}
    }

    /// Compares with the exact divergence, for peaked and flat rows and near and far models.
    #[test]
    fn the_true_divergence_is_within_the_bound() {
        let n = 2000;
        let noise = |i: usize, seed: usize| ((i * 7919 + seed * 104_729) % 997) as f32 / 997.0;
        for (scale, far) in [(20.0, 0.1), (20.0, 3.0), (6.0, 0.3), (1.0, 0.5)] {
            let base: Vec<f32> = (0..n).map(|i| scale * noise(i, 1)).collect();
            let logits: Vec<f32> = (0..n).map(|i| base[i] + far * noise(i, 2)).collect();
            let exact = Token::between(&logits, &base, 3);
            for (top, bits) in [(4, 8), (50, 8), (50, 16), (1000, 12), (2000, 16)] {
                let bytes = encode(&base, 3, RowSize { top, bits });
                let row = SmallRow::read(&mut Slice(&bytes), n, bits).expect("a row");
                let (token, slack) = compare(&logits, &row, 3);
                let error = exact.kld() - token.kld();
                // f32 numbers in the row
                let rounding = 1e-5;
                assert!(
                    error >= -slack.below - rounding && error <= slack.above + rounding,
                    "{scale}, {far}, {top} of {bits} bits: {error}, {slack:?}"
                );
                if top == n {
                    assert!(slack.above < 1e-3 && slack.variance < 1e-12, "{slack:?}");
                }
            }
        }
    }
}
