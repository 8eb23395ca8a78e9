//! Indexer of sparse attention (DeepSeek V3.2): it scores all keys with small heads of its own, and
//! attention sees those that score highest.

use super::hparams::{Indexer, Latent};
use super::layer::Layer;
use super::math::{add_bias, dot, layer_norm, scale};
use crate::Error;

impl Layer<'_, '_> {
    /// Computes an indexer's keys of the normed input, one of each row.
    pub(super) fn index_keys(&mut self, indexer: &Indexer, h: &[f64]) -> Result<Vec<f64>, Error> {
        let width = indexer.key_dim;
        let mut k = self.product("indexer.attn_k", self.hp.n_embd, width, h)?;
        self.tap("indexer_k", width, &mut k);
        let norm = |part: &str| self.name(&format!("indexer.k_norm.{part}"));
        let weight = self.weights.required_vector(&norm("weight"), width)?;
        let bias = self.weights.required_vector(&norm("bias"), width)?;
        let mut k = layer_norm(&k, width, &weight, indexer.eps);
        add_bias(&mut k, &bias);
        self.tap("indexer_k", width, &mut k);
        self.rotate_starts(indexer, 1, &mut k);
        self.tap("indexer_k", width, &mut k);
        Ok(k)
    }

    /// Returns the positions that each row sees, in ascending order: its own indexer's choice, or
    /// the last one before it.
    pub(super) fn choice(
        &mut self,
        latent: &Latent,
        low_rank: &[f64],
        h: &[f64],
        keys: Option<&[f64]>,
    ) -> Result<Option<Vec<Vec<usize>>>, Error> {
        let (Some(indexer), Some(keys)) = (&latent.indexer, keys) else {
            return Ok(self.shared.seen.clone());
        };
        let (heads, key_dim) = (indexer.n_head, indexer.key_dim);
        let (width, rank) = (heads * key_dim, latent.query_rank.unwrap_or(0));
        let mut q = self.product("indexer.attn_q_b", rank, width, low_rank)?;
        self.tap("indexer_q", width, &mut q);
        self.rotate_starts(indexer, heads, &mut q);
        self.tap("indexer_q", width, &mut q);
        let mut weights = self.product("indexer.proj", self.hp.n_embd, heads, h)?;
        self.tap("indexer_weights", heads, &mut weights);
        scale(&mut weights, ((key_dim * heads) as f64).powf(-0.5));
        self.tap("indexer_weights", heads, &mut weights);
        let rows = q.chunks(width).zip(weights.chunks(heads)).enumerate();
        let n = indexer.n_keys;
        let mut chosen: Vec<f64> = rows
            .flat_map(|(row, (q, weights))| {
                let score = |key: &[f64]| -> f64 {
                    let heads = q.chunks(key_dim).zip(weights);
                    heads.map(|(q, w)| w * dot(q, key).max(0.0)).sum()
                };
                let scores: Vec<f64> = keys.chunks(key_dim).take(row + 1).map(score).collect();
                let best = best(&scores, n);
                (0..n).map(move |i| best[i.min(best.len() - 1)] as f64)
            })
            .collect();
        self.tap("selected_keys", n, &mut chosen);
        let seen = chosen.chunks(n).map(|row| {
            let mut row: Vec<usize> = row.iter().map(|position| *position as usize).collect();
            row.dedup();
            row
        });
        self.shared.seen = Some(seen.collect());
        Ok(self.shared.seen.clone())
    }

    /// Rotates the first values of each head.
    fn rotate_starts(&self, indexer: &Indexer, n_head: usize, x: &mut [f64]) {
        let rows = x.chunks_mut(n_head * indexer.key_dim);
        for (&at, row) in self.shared.positions.iter().zip(rows) {
            let rotation = self.hp.rope.rotation(at);
            row.chunks_mut(indexer.key_dim)
                .for_each(|head| indexer.pairs.rotate(head, &rotation));
        }
    }
}

/// Returns the positions of the `n` highest scores in ascending order. Among equal ones at the edge
/// it chooses as `std::partial_sort` does, which llama.cpp calls: GNU's keeps a heap whose root is
/// the lowest, and replaces the root by later scores that are higher.
fn best(scores: &[f64], n: usize) -> Vec<usize> {
    let mut heap: Vec<usize> = (0..n.min(scores.len())).collect();
    for root in (0..heap.len() / 2).rev() {
        let own = heap[root];
        settle(&mut heap, scores, root, own);
    }
    for later in heap.len()..scores.len() {
        if scores[later] > scores[heap[0]] {
            settle(&mut heap, scores, 0, later);
        }
    }
    heap.sort_unstable();
    heap
}

/// Closes the gap at a root of the heap with the lower child, of equal ones the right one, down to
/// a leaf, and moves `position` up from there, past higher scores.
fn settle(heap: &mut [usize], scores: &[f64], root: usize, position: usize) {
    let mut path = vec![root];
    loop {
        let gap = path[path.len() - 1];
        let children = (2 * gap + 1..heap.len()).take(2);
        let lower = |a: usize, b: usize| {
            let is_higher = scores[heap[b]] > scores[heap[a]];
            if is_higher { a } else { b }
        };
        match children.reduce(lower) {
            Some(child) => path.push(child),
            None => break,
        }
    }
    // the values along the path, each one step up, with the new one where it belongs
    let mut below: Vec<usize> = path[1..].iter().map(|place| heap[*place]).collect();
    let higher = |at: &&usize| scores[**at] > scores[position];
    let place = below.len() - below.iter().rev().take_while(higher).count();
    below.insert(place, position);
    path.iter().zip(below).for_each(|(to, of)| heap[*to] = of);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_are_chosen_whatever_their_order() {
        let scores: Vec<f64> = (0..50).map(|i| f64::from((i * 29 + 7) % 50)).collect();
        for n in [1, 2, 3, 7, 16, 49, 50, 60] {
            let lowest = 50 - n.min(50);
            let is_high = |at: &usize| scores[*at] >= lowest as f64;
            let expected: Vec<usize> = (0..50).filter(is_high).collect();
            assert_eq!(best(&scores, n), expected, "{n}");
        }
    }

    /// The choices that a program in C++ makes with `std::partial_sort`.
    #[test]
    fn of_equal_ones_partial_sort_s_are_chosen() {
        const LAST: [f64; 17] = [
            -1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, -1.0, 5.0, 0.0, 0.0, 6.0,
        ];
        let cases: [(&[f64], usize, &[usize]); 6] = [
            (
                &[1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 2.0, 0.0, 0.0],
                5,
                &[0, 1, 3, 5, 7],
            ),
            (
                &[0.0, 5.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0, 0.0, 5.0],
                5,
                &[1, 3, 4, 6, 9],
            ),
            (&LAST, 3, &[7, 13, 16]),
            (&LAST, 4, &[1, 7, 13, 16]),
            (&LAST, 5, &[3, 5, 7, 13, 16]),
            (&LAST, 6, &[1, 3, 6, 7, 13, 16]),
        ];
        for (scores, n, expected) in cases {
            assert_eq!(best(scores, n), expected, "{scores:?}, {n}");
        }
    }
}
