//! Per-layer embeddings of tokens, beside the embeddings at the beginning of the stream.

use super::hparams::Hparams;
use super::layer::{Layer, whole_norm};
use super::math::{Activation, add_into, columns, scale};
use super::weights::Weights;
use super::{Tap, architecture::Norm};
use crate::Error;

const POST_NORM: Norm = Norm {
    tensor: "post_norm",
    tap: "per_layer_embd_out",
    numbered: true,
    bare: false,
};

/// Per-layer inputs of each token.
pub(super) struct PerLayer {
    /// Rows of the table, `(n_tokens, n_layer * width)`, scaled.
    rows: Vec<f64>,
    /// The stream at its start, the source of the other half.
    start: Vec<f64>,
    /// Sum of both: computed in the first layer, as in llama.cpp's graph.
    inputs: Option<Vec<f64>>,
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

    fn make(
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

impl Layer<'_, '_> {
    /// Adds the layer's projection of its own embeddings, gated by the stream.
    pub(super) fn add_per_layer(&mut self, x: &mut [f64]) -> Result<(), Error> {
        let hp = self.hp;
        let Some(width) = hp.per_layer_width else {
            return Ok(());
        };
        self.tap("pe_in", hp.n_embd, x);
        let mut gate = self.product("inp_gate", hp.n_embd, width, x)?;
        gate.iter_mut().for_each(|x| *x = Activation::Gelu.of(*x));
        let Some(per_layer) = &mut self.shared.per_layer else {
            return Ok(());
        };
        let inputs = match per_layer.inputs {
            Some(ref inputs) => inputs,
            None => per_layer.make(hp, self.weights, width, self.tap)?,
        };
        let own = self.il * width..(self.il + 1) * width;
        let own = columns(inputs, width * hp.layers.len(), own);
        gate.iter_mut()
            .zip(&own)
            .for_each(|(gate, own)| *gate *= own);
        let projected = self.product("proj", width, hp.n_embd, &gate)?;
        let normed = self.norm(POST_NORM, &projected)?;
        add_into(x, &normed);
        Ok(())
    }
}
