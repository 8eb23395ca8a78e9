//! Distance between two sets of logits, row by row, so that memory does not grow with the text.

use octavo_reference::metrics::{Nmse, TopRow, kl_row, kl_top, top_k};
use serde::Serialize;

use super::Error;

/// One token's logits on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopPair {
    /// Token id.
    pub id: u32,
    /// Our logit.
    pub ours: f32,
    /// The reference's logit.
    pub theirs: f32,
    /// `ours - theirs`.
    pub delta: f32,
}

/// Most likely tokens of one position: the reference's, most likely first, then those of ours that
/// are not among them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionTop {
    /// Position in the text.
    pub position: usize,
    /// Token at that position.
    pub token: u32,
    /// Our five most likely tokens, in order.
    pub ours: Vec<u32>,
    /// Logit pairs.
    pub top: Vec<TopPair>,
    /// KL(theirs, ours) in nats.
    pub kl: f64,
    /// NMSE of this row of logits.
    pub nmse: f64,
}

/// Most likely tokens reported per position.
const TOP: usize = 5;

/// Comparison of two sets of logits.
#[derive(Clone, Debug, Serialize)]
pub struct LogitComparison {
    /// Positions compared.
    pub positions: usize,
    /// Σ (ours - theirs)² / Σ theirs².
    pub nmse: f64,
    /// The largest difference.
    pub max_abs: f64,
    /// Position and token of the largest difference.
    pub max_at: (usize, u32),
    /// Mean KL(theirs, ours) over positions, in nats.
    pub mean_kl: f64,
    /// Largest KL(theirs, ours), in nats.
    pub max_kl: f64,
    /// Position of the largest KL.
    pub max_kl_at: usize,
    /// Share of positions whose most likely token is the same.
    pub top1: f64,
    /// Share of positions whose five most likely tokens are the same, in order.
    pub top5: f64,
    /// Comparison of each position.
    pub by_position: Vec<PositionTop>,
    #[serde(skip)]
    n_vocab: usize,
    #[serde(skip)]
    tokens: Vec<u32>,
    #[serde(skip)]
    sums: Sums,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    nmse: Nmse,
    kl: f64,
    top1: usize,
    top5: usize,
}

/// One position's sums, and the reference's most likely tokens.
struct PositionError {
    nmse: Nmse,
    kl: f64,
    other: Vec<u32>,
}

impl LogitComparison {
    /// Starts an empty comparison for a text.
    pub fn new(tokens: &[u32], n_vocab: usize) -> LogitComparison {
        LogitComparison {
            positions: 0,
            nmse: 0.0,
            max_abs: 0.0,
            max_at: (0, 0),
            mean_kl: 0.0,
            max_kl: 0.0,
            max_kl_at: 0,
            top1: 1.0,
            top5: 1.0,
            by_position: Vec::new(),
            n_vocab,
            tokens: tokens.to_vec(),
            sums: Sums::default(),
        }
    }

    /// Adds one position.
    ///
    /// # Errors
    /// A row whose length is not the vocabulary size.
    pub fn add(&mut self, position: usize, ours: &[f32], theirs: &[f32]) -> Result<(), Error> {
        for row in [ours, theirs] {
            if row.len() != self.n_vocab {
                return Err(Error::Row {
                    expected: self.n_vocab,
                    got: row.len(),
                });
            }
        }
        let nmse = self.differences(
            position,
            (0..).zip(ours.iter().copied().zip(theirs.iter().copied())),
        );
        let of_other = |id: u32| theirs[id as usize];
        let row = PositionError {
            nmse,
            kl: kl_row(ours, theirs)?,
            other: top_k(theirs, TOP),
        };
        self.take(position, ours, &row, &of_other);
        Ok(())
    }

    /// As [`LogitComparison::add`], for a reference with only the most likely tokens of a position:
    /// `theirs` has their ids, logits and the log-sum-exp of all logits; `ours` has all our logits
    /// and our log-sum-exp. NMSE is over the recorded logits, KL a lower bound
    /// ([`octavo_reference::metrics::kl_top`]).
    ///
    /// # Errors
    /// A row whose length is not the vocabulary size.
    pub fn add_top(
        &mut self,
        position: usize,
        (ours, lse): (&[f32], f64),
        (ids, theirs, their_lse): (&[u32], &[f32], f64),
    ) -> Result<(), Error> {
        if ours.len() != self.n_vocab {
            return Err(Error::Row {
                expected: self.n_vocab,
                got: ours.len(),
            });
        }
        let picked: Vec<f32> = ids.iter().map(|id| ours[*id as usize]).collect();
        let pairs = ids
            .iter()
            .copied()
            .zip(picked.iter().copied().zip(theirs.iter().copied()));
        let nmse = self.differences(position, pairs);
        let kl = kl_top(
            TopRow {
                logits: &picked,
                lse,
            },
            TopRow {
                logits: theirs,
                lse: their_lse,
            },
        )?;
        // a token that was not recorded has no known logit
        let of_other = |id: u32| {
            ids.iter()
                .position(|kept| *kept == id)
                .map_or(f32::NAN, |i| theirs[i])
        };
        let other = ids.iter().take(TOP).copied().collect();
        self.take(
            position,
            ours,
            &PositionError { nmse, kl, other },
            &of_other,
        );
        Ok(())
    }

    /// Computes the NMSE of one position; records the largest difference.
    fn differences(
        &mut self,
        position: usize,
        pairs: impl Iterator<Item = (u32, (f32, f32))>,
    ) -> Nmse {
        let mut nmse = Nmse::default();
        for (id, (x, y)) in pairs {
            let difference = f64::from(x) - f64::from(y);
            nmse.add_difference(difference, f64::from(y));
            if difference.abs() > self.max_abs || difference.is_nan() && !self.max_abs.is_nan() {
                (self.max_abs, self.max_at) = (difference.abs(), (position, id));
            }
        }
        nmse
    }

    fn take(
        &mut self,
        position: usize,
        ours: &[f32],
        row: &PositionError,
        of_other: &dyn Fn(u32) -> f32,
    ) {
        let &PositionError {
            nmse,
            kl,
            ref other,
        } = row;
        let mine = top_k(ours, TOP);
        self.positions += 1;
        let n = self.positions as f64;
        let s = &mut self.sums;
        s.nmse.merge(nmse);
        s.kl += kl;
        s.top1 += usize::from(mine.first() == other.first());
        s.top5 += usize::from(mine == *other);
        self.nmse = s.nmse.value();
        self.mean_kl = s.kl / n;
        (self.top1, self.top5) = (s.top1 as f64 / n, s.top5 as f64 / n);
        if kl > self.max_kl || kl.is_nan() && !self.max_kl.is_nan() {
            (self.max_kl, self.max_kl_at) = (kl, position);
        }
        let extra: Vec<u32> = mine
            .iter()
            .copied()
            .filter(|id| !other.contains(id))
            .collect();
        let pair = |id: u32| {
            let (x, y) = (ours[id as usize], of_other(id));
            TopPair {
                id,
                ours: x,
                theirs: y,
                delta: x - y,
            }
        };
        let top = other.iter().copied().chain(extra).map(pair).collect();
        let token = self.tokens.get(position).copied().unwrap_or_default();
        self.by_position.push(PositionTop {
            position,
            token,
            ours: mine,
            top,
            kl,
            nmse: nmse.value(),
        });
    }
}
