//! Per-layer embeddings of tokens, beside the embeddings at the beginning of the stream.

use super::Tap;
use super::hparams::Hparams;
use super::math::{add_into, scale};
use super::norms::whole_norm;
use super::weights::Weights;
use crate::Error;

/// Per-layer inputs of each token.
pub(super) struct PerLayer {
    /// Rows of the table, `(n_tokens, n_layer * width)`, scaled.
    rows: Vec<f64>,
    /// The stream at its start, the source of the other half.
    start: Vec<f64>,
    /// Sum of both: computed in the first layer, as in llama.cpp's graph.
    pub(super) inputs: Option<Vec<f64>>,
}

impl PerLayer {
    pub(super) fn new(rows: Vec<f64>, start: Vec<f64>) -> Self {
        Self {
            rows,
            start,
            inputs: None,
        }
    }

    /// Reads the rows of the tokens, which must be in the vocabulary.
    pub(super) fn select(
        hp: &Hparams,
        weights: &Weights<'_>,
        n_vocab: usize,
        tokens: &[u32],
        tap: &mut Tap<'_>,
    ) -> Result<Option<Vec<f64>>, Error> {
        let Some(width) = hp.per_layer_width else {
            return Ok(None);
        };
        let all = width * hp.layers.len();
        let table = weights.matrix("per_layer_token_embd.weight", all, n_vocab)?;
        let of_token = tokens.iter().flat_map(|&id| table.row(id as usize));
        let mut rows: Vec<f64> = of_token.flatten().map(|&v| f64::from(v)).collect();
        scale(&mut rows, (width as f64).sqrt());
        tap("inp_per_layer_selected", None, all, &mut rows);
        Ok(Some(rows))
    }

    /// Computes the sum of both.
    pub(super) fn make(
        &mut self,
        hp: &Hparams,
        weights: &Weights<'_>,
        width: usize,
        tap: &mut Tap<'_>,
    ) -> Result<&[f64], Error> {
        let all = width * hp.layers.len();
        let projection = weights.matrix("per_layer_model_proj.weight", hp.n_embd, all)?;
        let mut x = projection.times(&self.start);
        scale(&mut x, 1.0 / (hp.n_embd as f64).sqrt());
        let mut x = whole_norm(hp, weights, "per_layer_proj_norm", width, &x)?;
        tap("per_layer_proj", None, all, &mut x);
        add_into(&mut x, &self.rows);
        scale(&mut x, 0.5f64.sqrt());
        tap("inp_per_layer", None, all, &mut x);
        Ok(self.inputs.insert(x))
    }
}
