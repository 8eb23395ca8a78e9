//! Projector: from patches to rows of the text model.

use super::super::math::Activation;
use super::Tower;
use super::blocks::FeedForward;
use crate::Error;

impl Tower<'_, '_> {
    /// Computes the rows of the text model, `(n_tokens, n_projected * (1 + n_deepstack))`: the
    /// projected result of the last block, then those of the blocks in `kept`. The rows of 2 x 2
    /// patches are merged into one, which only reinterprets the array: for the last block after the
    /// norm, for the others before it.
    pub(super) fn project(
        &mut self,
        x: &[f64],
        kept: &[(usize, Vec<f64>)],
    ) -> Result<Vec<f64>, Error> {
        let (n_embd, n_merged) = (self.hp.n_embd, self.hp.n_merged());
        // llama.cpp numbers this norm as if another block followed
        let (names, after) = (["norm_w", "norm_b"], self.hp.n_block);
        let h = self.norm("v.post_ln", names, after, n_embd, x)?;
        let mut parts = vec![self.feed_forward(&self.projection("mm.0", "mm.2", None), &h)?];
        for (block, x) in kept {
            let name = |tensor: &str| format!("v.deepstack.{block}.{tensor}");
            let h = self.norm(&name("norm"), names, *block, n_merged, x)?;
            let (up, down) = (name("fc1"), name("fc2"));
            let feed = self.projection(&up, &down, Some(*block));
            parts.push(self.feed_forward(&feed, &h)?);
        }
        Ok(self.in_raster_order(&parts))
    }

    fn projection<'n>(&self, up: &'n str, down: &'n str, block: Option<usize>) -> FeedForward<'n> {
        let n_merged = self.hp.n_merged();
        FeedForward {
            up,
            gate: None,
            down,
            dims: [n_merged, n_merged, self.hp.n_projected],
            activation: Activation::Gelu,
            block,
        }
    }

    /// Joins the parts of each row, and sorts the rows into raster order.
    fn in_raster_order(&self, parts: &[Vec<f64>]) -> Vec<f64> {
        let width = self.hp.n_projected;
        let mut rows = Vec::new();
        for square in &self.layout.raster {
            for part in parts {
                rows.extend_from_slice(&part[square * width..][..width]);
            }
        }
        rows
    }
}
