//! Pools the vectors of a prompt's tokens into an embedding.

use std::sync::Arc;

use octavo_model::{Classifier, Pooling};

use super::request::Embed;

/// An embedding in progress.
pub(super) struct Pool {
    embed: Embed,
    /// Pooling of the rows, also where a classifier scores the result.
    pooling: Pooling,
    /// Makes scores of the pooled vector.
    classifier: Option<Arc<Classifier>>,
    /// First position whose vector has not come.
    next: usize,
    /// Sum of the vectors, `[width]`; without pooling all of them, `[tokens][width]`.
    sum: Vec<f64>,
    width: usize,
}

impl Pool {
    /// Creates a pool; `classifier` is the model's, which must have one if scores are asked for.
    pub(super) fn new(embed: Embed, classifier: Option<&Arc<Classifier>>) -> Pool {
        let classifier = classifier.filter(|_| embed.pooling == Pooling::Rank);
        Pool {
            pooling: classifier.map_or(embed.pooling, |classifier| classifier.pooling),
            classifier: classifier.cloned(),
            embed,
            next: 0,
            sum: Vec::new(),
            width: 0,
        }
    }

    /// Returns whether the vector of every token is needed.
    pub(super) fn wants_all(&self) -> bool {
        self.pooling != Pooling::Last
    }

    /// Adds the vector of the token at a position. A token recomputed after a preemption counts
    /// once.
    pub(super) fn add(&mut self, position: usize, row: &[f32]) {
        if position < self.next {
            return;
        }
        self.next = position + 1;
        self.width = row.len();
        match self.pooling {
            Pooling::First if position > 0 => {}
            Pooling::None => self.sum.extend(row.iter().map(|x| f64::from(*x))),
            _ => {
                self.sum.resize(row.len(), 0.0);
                let both = self.sum.iter_mut().zip(row);
                both.for_each(|(sum, x)| *sum += f64::from(*x));
            }
        }
    }

    /// Returns the pooled vector, or its scores.
    pub(super) fn take(&self) -> Vec<f32> {
        let is_raw = !self.embed.normalize || self.classifier.is_some();
        let rows = self.sum.chunks(self.width.max(1));
        let scaled = rows.flat_map(|row| {
            let scale = match (is_raw, self.pooling) {
                (false, _) => inverse_length(row),
                (true, Pooling::Mean) => 1.0 / self.next as f64,
                (true, _) => 1.0,
            };
            row.iter().map(move |x| x * scale)
        });
        match &self.classifier {
            Some(classifier) => classifier.score(&scaled.collect::<Vec<f64>>()),
            None => scaled.map(|x| x as f32).collect(),
        }
    }
}

/// Returns 1 over the length of a vector; 0 for a zero vector.
fn inverse_length(row: &[f64]) -> f64 {
    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    if length > 0.0 { 1.0 / length } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_computed_again_counts_once() {
        let vectors = [[3.0, 4.0], [6.0, 8.0], [18.0, 24.0]];
        let all = vec![3.0, 4.0, 6.0, 8.0, 18.0, 24.0];
        for (pooling, raw) in [
            (Pooling::Mean, vec![9.0, 12.0]),
            (Pooling::First, vec![3.0, 4.0]),
            (Pooling::None, all),
        ] {
            for normalize in [false, true] {
                let mut pool = Pool::new(Embed { pooling, normalize }, None);
                // two are computed, and all of them again after a preemption
                for position in [0, 1, 0, 1, 2] {
                    pool.add(position, &vectors[position]);
                }
                let expected = match normalize {
                    true => [0.6, 0.8].repeat(raw.len() / 2),
                    false => raw.clone(),
                };
                assert_eq!(pool.take(), expected, "{pooling:?}");
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let embed = Embed {
            pooling: Pooling::Last,
            normalize: true,
        };
        let mut pool = Pool::new(embed, None);
        pool.add(0, &[0.0, 0.0]);
        assert_eq!(pool.take(), [0.0, 0.0]);
    }
}
