//! The classifier of a reranker, which makes scores of one row of a text. It is small, and runs on
//! the host in f64.

use super::bind::Binder;
use crate::arch;
use crate::error::Error;
use crate::hparams::{MAX_WIDTH, Pooling};

/// A product with a matrix, plus a bias.
#[derive(Clone, Debug, PartialEq)]
struct Linear {
    /// `(rows, cols)`
    weights: Vec<f32>,
    cols: usize,
    /// `(rows)`
    bias: Option<Vec<f32>>,
}

impl Linear {
    fn rows(&self) -> usize {
        self.weights.len() / self.cols
    }

    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let products = self.weights.chunks_exact(self.cols).map(|row| {
            let terms = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
            terms.sum::<f64>()
        });
        match &self.bias {
            Some(bias) => products.zip(bias).map(|(y, b)| y + f64::from(*b)).collect(),
            None => products.collect(),
        }
    }
}

/// Scores of a text: `cls` with an activation, and `cls.output`, either of which may be missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// Pooling of a text's rows into the one that is scored.
    pub pooling: Pooling,
    hidden: Option<Linear>,
    /// Weights of the norm after the activation, and its epsilon.
    norm: Option<(Vec<f32>, f64)>,
    output: Option<Linear>,
    kind: arch::Classifier,
}

impl Classifier {
    /// Binds the classifier; `None` if the file has none.
    ///
    /// # Errors
    /// If a tensor has another shape or type, or holds a number that is not finite.
    pub(super) fn bind(
        b: &mut Binder<'_>,
        kind: arch::Classifier,
    ) -> Result<Option<Classifier>, Error> {
        let (n_embd, n_labels) = (b.h.n_embd(), b.h.labels.len() as u64);
        let is_score = |rows: u64| n_labels == 0 || rows == n_labels;
        let output = linear(b, "cls.output", n_embd, is_score)?;
        // without an output, the first product is all
        let is_all = output.is_none();
        let hidden = linear(b, "cls", n_embd, |rows| match is_all {
            true => is_score(rows),
            false => rows == n_embd as u64,
        })?;
        if hidden.is_none() && output.is_none() {
            return Ok(None);
        }
        let norm = match kind {
            arch::Classifier::Gelu => b.optional_vector("cls.norm.weight", n_embd)?,
            _ => None,
        };
        let own = match kind {
            arch::Classifier::Tanh => Pooling::First,
            arch::Classifier::Gelu => Pooling::Mean,
            arch::Classifier::Softmax => Pooling::Last,
        };
        Ok(Some(Classifier {
            pooling: b.h.classifier_pooling.unwrap_or(own),
            hidden,
            norm: norm.map(|id| (b.values(id).to_vec(), f64::from(b.h.norm_eps()))),
            output,
            kind,
        }))
    }

    /// Returns the number of scores.
    pub fn n_scores(&self) -> usize {
        let last = self.output.as_ref().or(self.hidden.as_ref());
        last.map_or(0, Linear::rows)
    }

    /// Returns the scores of a row `[n_embd]`.
    pub fn score(&self, row: &[f64]) -> Vec<f32> {
        let mut values = row.to_vec();
        if let Some(hidden) = &self.hidden {
            values = hidden.apply(&values);
            let activation = match self.kind {
                arch::Classifier::Gelu => gelu,
                _ => f64::tanh,
            };
            values.iter_mut().for_each(|x| *x = activation(*x));
        }
        if let Some((weights, epsilon)) = &self.norm {
            norm(&mut values, weights, *epsilon);
        }
        if let Some(output) = &self.output {
            values = output.apply(&values);
        }
        if self.kind == arch::Classifier::Softmax {
            let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            values.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = values.iter().sum();
            values.iter_mut().for_each(|x| *x /= sum);
        }
        values.iter().map(|x| *x as f32).collect()
    }
}

/// Returns GELU by tanh, as in the layers.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// Norms values by mean and variance.
fn norm(values: &mut [f64], weights: &[f32], epsilon: f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + epsilon).sqrt();
    for (x, w) in values.iter_mut().zip(weights) {
        *x = (*x - mean) * scale * f64::from(*w);
    }
}

/// Binds `name.weight`, whose number of rows `right` must accept, and `name.bias`.
fn linear(
    b: &mut Binder<'_>,
    name: &str,
    cols: usize,
    right: impl Fn(u64) -> bool,
) -> Result<Option<Linear>, Error> {
    let Some((rows, weights)) = b.optional_floats(&format!("{name}.weight"), cols, |rows| {
        (1..=MAX_WIDTH as u64).contains(&rows) && right(rows)
    })?
    else {
        return Ok(None);
    };
    let bias = b.optional_vector(&format!("{name}.bias"), rows)?;
    let bias = bias.map(|id| b.values(id).to_vec());
    Ok(Some(Linear {
        weights,
        cols,
        bias,
    }))
}
