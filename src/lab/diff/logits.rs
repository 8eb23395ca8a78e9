//! How far two sets of logits are apart, row by row, so that memory does not grow with the text.

use octavo_reference::metrics::{Nmse, TopRow, kl_row, kl_top, top_k};
use serde::Serialize;

use super::Error;

/// One token, as both see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopPair {
    /// The token.
    pub id: u32,
    /// Its logit here.
    pub ours: f32,
    /// Its logit there.
    pub theirs: f32,
    /// `ours - theirs`.
    pub delta: f32,
}

/// The most likely tokens of one position: theirs, most likely first, then ours that are not among
/// them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionTop {
    /// The position.
    pub position: usize,
    /// The token there.
    pub token: u32,
    /// Our order of the five most likely.
    pub ours: Vec<u32>,
    /// The pairs.
    pub top: Vec<TopPair>,
    /// KL(theirs, ours) in nats.
    pub kl: f64,
    /// NMSE of this row.
    pub nmse: f64,
}

/// How many tokens are shown of a position.
const TOP: usize = 5;

/// Two sets of logits.
#[derive(Clone, Debug, Serialize)]
pub struct LogitComparison {
    /// Positions compared.
    pub positions: usize,
    /// Σ (ours - theirs)² / Σ theirs².
    pub nmse: f64,
    /// The largest difference.
    pub max_abs: f64,
    /// Where: position and token.
    pub max_at: (usize, u32),
    /// Mean KL(theirs, ours) over positions, in nats.
    pub mean_kl: f64,
    /// The largest.
    pub max_kl: f64,
    /// Its position.
    pub max_kl_at: usize,
    /// Share of positions whose most likely token is the same.
    pub top1: f64,
    /// Share of positions whose five most likely tokens are the same, in order.
    pub top5: f64,
    /// Position by position.
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
struct Row {
    nmse: Nmse,
    kl: f64,
    other: Vec<u32>,
}

impl LogitComparison {
    /// Nothing compared yet of a text.
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

    /// Takes in one position.
    ///
    /// # Errors
    /// A row that is not as long as the vocabulary.
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
        let row = Row {
            nmse,
            kl: kl_row(ours, theirs)?,
            other: top_k(theirs, TOP),
        };
        self.take(position, ours, &row, &of_other);
        Ok(())
    }

    /// As [`LogitComparison::add`], for a reference that keeps a position's most likely tokens
    /// only: `theirs` has their ids, logits and the log-sum-exp of all logits; `ours` all logits
    /// and theirs. NMSE is over the kept logits, KL a lower bound
    /// ([`octavo_reference::metrics::kl_top`]).
    ///
    /// # Errors
    /// A row that is not as long as the vocabulary.
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
        // what is not kept is not known
        let of_other = |id: u32| {
            ids.iter()
                .position(|kept| *kept == id)
                .map_or(f32::NAN, |i| theirs[i])
        };
        let other = ids.iter().take(TOP).copied().collect();
        self.take(position, ours, &Row { nmse, kl, other }, &of_other);
        Ok(())
    }

    /// How far one position is apart; remembers the largest difference.
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

    fn take(&mut self, position: usize, ours: &[f32], row: &Row, of_other: &dyn Fn(u32) -> f32) {
        let &Row {
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
