//! Distances between two sets of logits. All sums are f64 and all logarithms natural, for every
//! type of logits.
//!
//! `exact` is the reference throughout, and comes last in functions whose name is not symmetric:
//! NMSE divides by its energy, KL takes the expectation under its probabilities, and top-k
//! comparisons use its order.

use crate::Error;
use std::cmp::Ordering;

/// A logit: f32 from an engine or a golden, f64 from the oracle.
pub trait Logit: Copy + Into<f64> {}
impl<T: Copy + Into<f64>> Logit for T {}

/// Returns the normalised mean squared error, `Σ (ours - exact)² / Σ exact²`. Zero for equal
/// arrays, infinite when only `exact` is all zero, NaN if either contains NaN.
///
/// # Errors
/// The lengths differ.
pub fn nmse<A: Logit, B: Logit>(ours: &[A], exact: &[B]) -> Result<f64, Error> {
    same_length("logits", exact.len(), ours.len())?;
    let mut sums = Nmse::default();
    for (&a, &b) in ours.iter().zip(exact) {
        sums.add(a.into(), b.into());
    }
    Ok(sums.value())
}

/// Accumulator of [`nmse`], value by value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nmse {
    squares: f64,
    energy: f64,
}

impl Nmse {
    /// Adds one value.
    pub fn add(&mut self, ours: f64, exact: f64) {
        self.add_difference(ours - exact, exact);
    }

    /// Adds one value with an explicit difference, for cases where it is not simply `ours - exact`.
    pub fn add_difference(&mut self, difference: f64, exact: f64) {
        self.squares += difference * difference;
        self.energy += exact * exact;
    }

    /// Adds another accumulator's sums.
    pub fn merge(&mut self, other: Nmse) {
        self.squares += other.squares;
        self.energy += other.energy;
    }

    /// Returns the sum of squares of all differences.
    pub fn squares(self) -> f64 {
        self.squares
    }

    /// Returns the result, as [`nmse`] does.
    pub fn value(self) -> f64 {
        if self.squares == 0.0 {
            0.0
        } else {
            self.squares / self.energy
        }
    }
}

/// Returns `ln Σ e^x` of one row, without overflow.
pub fn log_sum_exp<T: Logit>(row: &[T]) -> f64 {
    let max = row
        .iter()
        .fold(f64::NEG_INFINITY, |max, &x| max.max(x.into()));
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + row
        .iter()
        .map(|&x| (x.into() - max).exp())
        .sum::<f64>()
        .ln()
}

/// Returns KL(exact ‖ ours) of one row of logits, in nats.
///
/// # Errors
/// The lengths differ.
pub fn kl_row<A: Logit, B: Logit>(ours: &[A], exact: &[B]) -> Result<f64, Error> {
    same_length("row of logits", exact.len(), ours.len())?;
    let (lse_ours, lse_exact) = (log_sum_exp(ours), log_sum_exp(exact));
    let terms = ours.iter().zip(exact).map(|(&q, &p)| {
        let (ln_q, ln_p) = (q.into() - lse_ours, p.into() - lse_exact);
        kl_term(ln_p, ln_q)
    });
    Ok(terms.sum())
}

/// Returns `p (ln p - ln q)`; 0 where p is 0, even if q is 0 too.
fn kl_term(ln_p: f64, ln_q: f64) -> f64 {
    if ln_p == f64::NEG_INFINITY {
        0.0
    } else {
        ln_p.exp() * (ln_p - ln_q)
    }
}

/// Mean and worst divergence over the rows of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kl {
    /// Mean over rows, in nats.
    pub mean: f64,
    /// Maximum over rows, in nats.
    pub max: f64,
    /// Row of the maximum (position in the prompt).
    pub max_row: usize,
}

impl Kl {
    /// Computes mean and maximum. NaN in a row makes both NaN, and that row the worst. No rows: all
    /// zero.
    fn of(rows: impl Iterator<Item = Result<f64, Error>>) -> Result<Self, Error> {
        let (mut sum, mut n, mut kl) = (
            0.0,
            0usize,
            Self {
                mean: 0.0,
                max: 0.0,
                max_row: 0,
            },
        );
        for (row, value) in rows.enumerate() {
            let value = value?;
            if value > kl.max || value.is_nan() && !kl.max.is_nan() {
                (kl.max, kl.max_row) = (value, row);
            }
            sum += value;
            n += 1;
        }
        kl.mean = sum / n.max(1) as f64;
        Ok(kl)
    }
}

/// Computes [`kl_row`] over `(n_tokens, n_vocab)` logits.
///
/// # Errors
/// The lengths differ or are not whole rows.
pub fn kl<A: Logit, B: Logit>(ours: &[A], exact: &[B], n_vocab: usize) -> Result<Kl, Error> {
    Kl::of(rows(ours, exact, n_vocab)?.map(|(ours, exact)| kl_row(ours, exact)))
}

/// A golden's data of one row of a large vocabulary: a model's logits of the reference's most
/// likely tokens, and its log-sum-exp over the whole vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct TopRow<'a> {
    /// Logits at the reference's top ids, in its order.
    pub logits: &'a [f32],
    /// `ln Σ e^x` over all logits of this model.
    pub lse: f64,
}

/// Mass below which the lumped remainder is not resolved. A golden's `lse` is f32: for values of 16
/// to 32 it is off by up to 1e-6, and so is a remainder computed from it; the floor is four of
/// these errors, since `p` and `q` each have one.
const REMAINDER_FLOOR: f64 = 4e-6;

/// Returns a lower bound of KL(exact ‖ ours), from the reference's top tokens only.
///
/// Over those ids the terms are exact, `p_i (ln p_i - ln q_i)` with `p_i = e^(logit - lse)`. All
/// other tokens count as one, with mass `1 - Σ p_i` against `1 - Σ q_i`: merging outcomes can only
/// lower a divergence, so disagreement within the tail is lost. Both remainders are clamped to at
/// least 4e-6, the resolution of a golden's f32 `lse`, so that rounding noise there counts as
/// agreement.
///
/// llama.cpp's own error comes from the same function with the golden's `at_exact_top` and `lse`,
/// and ours with the same ids picked from our rows: equal ids lose equally much, so the two
/// estimates are comparable.
///
/// # Errors
/// The lengths differ.
pub fn kl_top(ours: TopRow<'_>, exact: TopRow<'_>) -> Result<f64, Error> {
    same_length("top logits", exact.logits.len(), ours.logits.len())?;
    let (mut sum, mut mass_p, mut mass_q) = (0.0, 0.0, 0.0);
    for (&q, &p) in ours.logits.iter().zip(exact.logits) {
        let (ln_p, ln_q) = (f64::from(p) - exact.lse, f64::from(q) - ours.lse);
        sum += kl_term(ln_p, ln_q);
        mass_p += ln_p.exp();
        mass_q += ln_q.exp();
    }
    // f64::max would turn a NaN into the floor and hide it.
    let remainder = |mass: f64| {
        if 1.0 - mass < REMAINDER_FLOOR {
            REMAINDER_FLOOR
        } else {
            1.0 - mass
        }
    };
    let (rest_p, rest_q) = (remainder(mass_p), remainder(mass_q));
    Ok(sum + rest_p * (rest_p / rest_q).ln())
}

/// Computes [`kl_top`] over the rows of a prompt.
///
/// # Errors
/// A row's lengths differ.
pub fn kl_top_rows<'a>(rows: impl Iterator<Item = (TopRow<'a>, TopRow<'a>)>) -> Result<Kl, Error> {
    Kl::of(rows.map(|(ours, exact)| kl_top(ours, exact)))
}

/// Returns the ids of the `k` highest logits, highest first; ties go to the lower id, and NaN ranks
/// above everything so that a broken row is noticed.
pub fn top_k<T: Logit>(row: &[T], k: usize) -> Vec<u32> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    let order = |&a: &usize, &b: &usize| descending(row[a].into(), row[b].into()).then(a.cmp(&b));
    if k < ids.len() {
        ids.select_nth_unstable_by(k, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids.into_iter().map(|id| id as u32).collect()
}

fn descending(a: f64, b: f64) -> Ordering {
    b.is_nan()
        .cmp(&a.is_nan())
        .then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
}

/// Returns the fraction of rows with the same most likely token.
///
/// # Errors
/// The lengths differ or are not whole rows.
pub fn top1_agreement<A: Logit, B: Logit>(
    ours: &[A],
    exact: &[B],
    n_vocab: usize,
) -> Result<f64, Error> {
    let (mut n, mut equal) = (0usize, 0usize);
    for (ours, exact) in rows(ours, exact, n_vocab)? {
        n += 1;
        equal += usize::from(top_k(ours, 1) == top_k(exact, 1));
    }
    Ok(if n == 0 { 1.0 } else { equal as f64 / n as f64 })
}

/// Outcome of [`top_order`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopOrder {
    /// Rows with gaps wide enough for a meaningful order.
    pub judged: usize,
    /// Judged rows with the same ids in the same order.
    pub equal: usize,
    /// First judged row with another order: position, expected ids, our ids.
    pub first_difference: Option<(usize, Vec<u32>, Vec<u32>)>,
}

/// Compares the ordered `k` most likely tokens of every row whose order is decided: in `exact`,
/// each of the first k logits is more than `gap` above the next one, including the (k+1)-th, which
/// could take the last place.
///
/// # Errors
/// The lengths differ or are not whole rows.
pub fn top_order<A: Logit, B: Logit>(
    ours: &[A],
    exact: &[B],
    n_vocab: usize,
    k: usize,
    gap: f64,
) -> Result<TopOrder, Error> {
    let mut order = TopOrder {
        judged: 0,
        equal: 0,
        first_difference: None,
    };
    for (row, (ours, exact)) in rows(ours, exact, n_vocab)?.enumerate() {
        let mut expected = top_k(exact, k + 1);
        let at = |id: u32| -> f64 { exact[id as usize].into() };
        if !expected
            .windows(2)
            .all(|pair| at(pair[0]) - at(pair[1]) > gap)
        {
            continue;
        }
        expected.truncate(k);
        let got = top_k(ours, k);
        order.judged += 1;
        if got == expected {
            order.equal += 1;
        } else if order.first_difference.is_none() {
            order.first_difference = Some((row, expected, got));
        }
    }
    Ok(order)
}

/// Pairs the rows, after checking the lengths.
fn rows<'a, A, B>(
    ours: &'a [A],
    exact: &'a [B],
    n_vocab: usize,
) -> Result<impl Iterator<Item = (&'a [A], &'a [B])>, Error> {
    same_length("logits", exact.len(), ours.len())?;
    let n_vocab = n_vocab.max(1);
    same_length(
        "logits in whole rows",
        exact.len().next_multiple_of(n_vocab),
        exact.len(),
    )?;
    Ok(ours.chunks_exact(n_vocab).zip(exact.chunks_exact(n_vocab)))
}

fn same_length(what: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got {
        Ok(())
    } else {
        Err(Error::Length {
            what,
            expected,
            got,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nmse_by_hand_and_at_the_edges() {
        assert_eq!(nmse(&[1.0, 2.0], &[1.0, 3.0]).unwrap(), 0.1);
        assert_eq!(nmse::<f32, f64>(&[], &[]).unwrap(), 0.0);
        assert_eq!(nmse(&[0.0], &[0.0]).unwrap(), 0.0);
        assert_eq!(nmse(&[1.0], &[0.0]).unwrap(), f64::INFINITY);
        assert!(nmse(&[f32::NAN], &[1.0]).unwrap().is_nan());
        let message = nmse(&[1.0], &[1.0, 2.0]).unwrap_err().to_string();
        assert_eq!(message, "logits: expected 2 values, got 1");
    }

    #[test]
    fn kl_of_known_distributions() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2. Shifting all logits has no
        // effect.
        let exact = [3f64.ln() + 100.0, 100.0];
        let by_hand = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((kl_row(&[-5.0, -5.0], &exact).unwrap() - by_hand).abs() < 1e-14);
        assert_eq!(kl_row(&exact, &exact).unwrap(), 0.0);
        // A token impossible under both models adds nothing; one impossible under ours only makes
        // the divergence infinite.
        let masked = [0.0, f64::NEG_INFINITY];
        assert_eq!(kl_row(&masked, &masked).unwrap(), 0.0);
        assert_eq!(kl_row(&masked, &[0.0, 0.0]).unwrap(), f64::INFINITY);
    }

    #[test]
    fn kl_reports_the_worst_row() {
        let exact = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let ours = [0.0, 0.0, 1.0, 0.0, 0.5, 0.0];
        let kl2 = kl(&ours, &exact, 2).unwrap();
        assert_eq!(
            (kl2.max_row, kl2.max),
            (1, kl_row(&[1.0, 0.0], &[0.0, 0.0]).unwrap())
        );
        assert!(kl(&[f64::NAN, 0.0], &[0.0, 0.0], 2).unwrap().max.is_nan());
        assert!(kl(&ours, &exact, 4).is_err(), "half a row");
    }

    #[test]
    fn the_top_estimate_is_exact_for_a_flat_tail_and_below_otherwise() {
        let exact: Vec<f32> = vec![4.0, 3.0, 1.0, 1.0, 1.0, 1.0];
        let flat: Vec<f32> = vec![3.5, 3.2, 0.5, 0.5, 0.5, 0.5];
        let uneven: Vec<f32> = vec![3.5, 3.2, 1.5, 0.5, 0.5, -1.0];
        let top = |x: &'static [f32], row: &[f32]| TopRow {
            logits: x,
            lse: log_sum_exp(row),
        };
        let p = top(&[4.0, 3.0], &exact);
        let estimate = kl_top(top(&[3.5, 3.2], &flat), p).unwrap();
        assert!((estimate - kl_row(&flat, &exact).unwrap()).abs() < 1e-12);
        let estimate = kl_top(top(&[3.5, 3.2], &uneven), p).unwrap();
        assert!(estimate > 0.0 && estimate < kl_row(&uneven, &exact).unwrap());
        assert!(
            kl_top(
                TopRow {
                    logits: &[1.0, 2.0],
                    lse: f64::NAN
                },
                p
            )
            .unwrap()
            .is_nan()
        );
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0], 3), [1, 2, 3]);
        assert_eq!(top_k(&[0.0, -0.0, 0.0], 2), [0, 1], "both zeros are equal");
        assert_eq!(top_k(&[1.0, f32::NAN, f32::INFINITY], 2), [1, 2]);
        assert_eq!(top_k(&[5.0, 6.0], 9), [1, 0]);
        assert!(top_k::<f32>(&[], 5).is_empty() && top_k(&[1.0], 0).is_empty());
    }

    #[test]
    fn only_decided_rows_are_judged() {
        let exact = [
            3.0, 2.0, 1.0, /* too close for the second place: */ 3.0, 2.0, 1.95,
        ];
        let ours = [2.0, 3.0, 1.0, 3.0, 1.9, 2.0];
        let order = top_order(&ours, &exact, 3, 2, 0.1).unwrap();
        assert_eq!(
            order,
            TopOrder {
                judged: 1,
                equal: 0,
                first_difference: Some((0, vec![0, 1], vec![1, 0]))
            }
        );
        assert_eq!(top1_agreement(&ours, &exact, 3).unwrap(), 0.5);
    }
}
