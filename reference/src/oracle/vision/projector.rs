//! Projector: from patches to rows of the text model.

use super::super::math::{Activation, Matrix, rms_norm, scale};
use super::Tower;
use super::blocks::FeedForward;
use super::hparams::Kind;
use crate::Error;

impl Tower<'_, '_> {
    /// Computes the rows of the text model, `(n_tokens, n_projected * (1 + n_deepstack))`: the
    /// projected result of the last block, then those of the blocks in `kept`.
    pub(super) fn project(
        &mut self,
        x: &[f64],
        kept: &[(usize, Vec<f64>)],
    ) -> Result<Vec<f64>, Error> {
        let (n_embd, n_merged, rows) = (self.hp.n_embd, self.hp.n_merged(), self.hp.n_projected);
        let projected = match self.hp.kind {
            Kind::Qwen3 | Kind::Qwen25 => return self.project_qwen(x, kept),
            Kind::Gemma3 => {
                let eps = self.hp.norm_eps;
                let x = self.layer_norm("v.post_ln", "norm_b", None, (n_embd, eps), x)?;
                let mut x = self.average(&x);
                self.tap("pooled", None, n_embd, &mut x);
                let x = self.rms_norm("mm.soft_emb_norm", "norm_w", None, n_embd, &x)?;
                // the file has this matrix transposed
                let by_row = self
                    .weights
                    .matrix("mm.input_projection.weight", rows, n_embd)?;
                let entry = |row: usize, column: usize| by_row.data.get(column * rows + row);
                let of_row = |row| (0..n_embd).map(move |column| (row, column));
                let places = (0..rows).flat_map(of_row);
                let data = places
                    .filter_map(|(row, column)| entry(row, column))
                    .copied();
                let matrix = Matrix {
                    n_in: n_embd,
                    data: data.collect(),
                };
                matrix.times(&x)
            }
            Kind::Gemma4 => {
                let mut x = self.average(x);
                scale(&mut x, (n_embd as f64).sqrt());
                self.tap("pooled", None, n_embd, &mut x);
                self.standardize(&mut x)?;
                self.project_gemma4(&x)?
            }
            Kind::Gemma4Unified => self.project_gemma4(x)?,
            Kind::Pixtral => {
                let mut x = x.to_vec();
                if self.hp.merge > 1 {
                    x = self.rms_norm("mm.input_norm", "norm_w", None, n_embd, &x)?;
                    let by_channel = self.by_channel(&x);
                    x = self.product("mm.patch_merger", n_merged, n_embd, &by_channel)?;
                }
                let feed = FeedForward {
                    dims: [n_embd, rows, rows],
                    ..self.projection("mm.1", "mm.2", None)
                };
                self.feed_forward(&feed, &x)?
            }
            Kind::Idefics3 => {
                let eps = self.hp.norm_eps;
                let mut x = self.layer_norm("v.post_ln", "norm_b", None, (n_embd, eps), x)?;
                self.tap("pixel_shuffle", None, n_merged, &mut x);
                self.product("mm.model.fc", n_merged, rows, &x)?
            }
            Kind::InternVl => {
                const EPS: f64 = 1e-5;
                // the class row is the last
                let patches = &x[..self.layout.places.len() * n_embd];
                let norm = "mm.model.mlp.0";
                let x = self.layer_norm(norm, "norm_b", None, (n_merged, EPS), patches)?;
                let feed = FeedForward {
                    dims: [n_merged, rows, rows],
                    ..self.projection("mm.model.mlp.1", "mm.model.mlp.3", None)
                };
                self.feed_forward(&feed, &x)?
            }
            Kind::Lfm2 | Kind::Llava | Kind::KimiVl => self.project_any_size(x)?,
        };
        self.in_raster_order(&[projected])
    }

    /// Computes the rows of encoders whose last norm is optional, and whose projector's inner width
    /// no key says.
    fn project_any_size(&mut self, x: &[f64]) -> Result<Vec<f64>, Error> {
        /// Epsilon of projectors' norms.
        const EPS: f64 = 1e-5;
        let (n_embd, n_merged, rows) = (self.hp.n_embd, self.hp.n_merged(), self.hp.n_projected);
        let mut x = self.optional_norm("v.post_ln", x)?;
        if self.hp.kind == Kind::Llava {
            // the class row is the last; llama.cpp leaves out the first
            let rest = x.get(n_embd..).unwrap_or(&[]);
            let inner = self.inner("mm.0");
            let x = self.linear("mm.0", n_embd, inner, rest)?;
            let x: Vec<f64> = x.into_iter().map(|x| Activation::Gelu.of(x)).collect();
            return self.linear("mm.2", inner, rows, &x);
        }
        const NORM: &str = "mm.input_norm";
        if self.hp.kind == Kind::Lfm2 {
            self.tap("pixel_shuffle", None, n_merged, &mut x);
            if self.weights.has("mm.input_norm.weight") {
                x = self.layer_norm(NORM, "norm_b", None, (n_merged, EPS), &x)?;
            }
        } else {
            x = self.layer_norm(NORM, "norm_b", None, (n_embd, EPS), &x)?;
            self.tap("proj_inp_normed", None, n_merged, &mut x);
        }
        let feed = FeedForward {
            dims: [n_merged, self.inner("mm.1"), rows],
            ..self.projection("mm.1", "mm.2", None)
        };
        self.feed_forward(&feed, &x)
    }

    /// Computes the layer norm of the encoder's result, if the file has it.
    fn optional_norm(&mut self, tensor: &str, x: &[f64]) -> Result<Vec<f64>, Error> {
        let of_rows = (self.hp.n_embd, self.hp.norm_eps);
        match self.weights.has(&format!("{tensor}.weight")) {
            true => self.layer_norm(tensor, "norm_b", None, of_rows, x),
            false => Ok(x.to_vec()),
        }
    }

    /// Returns the number of rows of a matrix, which no key says.
    fn inner(&self, tensor: &str) -> usize {
        let dims = self.weights.dims(&format!("{tensor}.weight"));
        let rows = dims.and_then(|dims| dims.get(1)).copied();
        rows.map_or(0, |rows| rows as usize)
    }

    /// Returns the mean of the patches of each image token.
    fn average(&self, x: &[f64]) -> Vec<f64> {
        let (n_embd, patches) = (self.hp.n_embd, self.hp.merge * self.hp.merge);
        let mean = |square: &[f64]| -> Vec<f64> {
            let sum = |i: usize| square.iter().skip(i).step_by(n_embd).sum::<f64>();
            (0..n_embd).map(|i| sum(i) / patches as f64).collect()
        };
        x.chunks(patches * n_embd).flat_map(mean).collect()
    }

    /// Returns the patches of each image token as one row: by channel, row and column.
    fn by_channel(&self, x: &[f64]) -> Vec<f64> {
        let n_embd = self.hp.n_embd;
        let of_token = |square: &[f64]| -> Vec<f64> {
            let channel = |i: usize| square.iter().skip(i).step_by(n_embd).copied();
            (0..n_embd).flat_map(channel).collect()
        };
        x.chunks(self.hp.n_merged()).flat_map(of_token).collect()
    }

    /// Subtracts the file's mean and multiplies with its factors, if it has both.
    fn standardize(&mut self, x: &mut [f64]) -> Result<(), Error> {
        let n_embd = self.hp.n_embd;
        let Some(mean) = self.weights.vector("v.std_bias", n_embd)? else {
            return Ok(());
        };
        let factors = self.weights.required_vector("v.std_scale", n_embd)?;
        for row in x.chunks_mut(n_embd) {
            let both = mean.iter().zip(&factors);
            row.iter_mut()
                .zip(both)
                .for_each(|(x, (mean, factor))| *x = (*x - mean) * factor);
        }
        self.tap("std_scaled", None, n_embd, x);
        Ok(())
    }

    fn project_gemma4(&mut self, x: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, eps) = (self.hp.n_embd, self.hp.norm_eps);
        let mut x = rms_norm(x, &vec![1.0; n_embd], eps);
        self.tap("projector_normed", None, n_embd, &mut x);
        self.product("mm.input_projection", n_embd, self.hp.n_projected, &x)
    }

    /// Projects the rows of Qwen. The rows of 2 x 2 patches are merged into one, which only
    /// reinterprets the array: for the last block after the norm, for the others before it.
    fn project_qwen(&mut self, x: &[f64], kept: &[(usize, Vec<f64>)]) -> Result<Vec<f64>, Error> {
        let (n_embd, n_merged) = (self.hp.n_embd, self.hp.n_merged());
        // llama.cpp numbers this norm as if another block followed
        let (names, after) = (["norm_w", "norm_b"], Some(self.hp.n_block));
        let h = self.norm("v.post_ln", names, after, n_embd, x)?;
        let mut parts = vec![self.feed_forward(&self.projection("mm.0", "mm.2", None), &h)?];
        for (block, x) in kept {
            let name = |tensor: &str| format!("v.deepstack.{block}.{tensor}");
            let h = self.norm(&name("norm"), names, Some(*block), n_merged, x)?;
            let (up, down) = (name("fc1"), name("fc2"));
            let feed = self.projection(&up, &down, Some(*block));
            parts.push(self.feed_forward(&feed, &h)?);
        }
        self.in_raster_order(&parts)
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

    /// Joins the parts of each row, and sorts the rows into raster order; in Pixtral's, the break
    /// embedding follows every line but the last.
    fn in_raster_order(&self, parts: &[Vec<f64>]) -> Result<Vec<f64>, Error> {
        let width = self.hp.n_projected;
        let end = match self.hp.kind {
            Kind::Pixtral => self
                .weights
                .required_vector("v.token_embd.img_break", width)?,
            _ => Vec::new(),
        };
        let (mut rows, nx) = (Vec::new(), self.layout.nx);
        for (i, square) in self.layout.raster.iter().enumerate() {
            if i > 0 && i.is_multiple_of(nx) {
                rows.extend_from_slice(&end);
            }
            for part in parts {
                rows.extend_from_slice(&part[square * width..][..width]);
            }
        }
        Ok(rows)
    }
}
