//! A short convolution between two gates.

use super::hparams::State;
use super::layer::Layer;
use super::math::{columns, convolve};
use crate::Error;

impl Layer<'_, '_> {
    /// Computes `Wout · (c ⊙ convolution(b ⊙ x))`, where `Win · h` is b, c and x.
    pub(super) fn short_conv(&mut self, state: &State, h: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let width = 3 * n_embd;
        let mut all = self.product("shortconv.in_proj", n_embd, width, h)?;
        self.tap("model.layers.{}.conv.in_proj", width, &mut all);
        let part = |nth: usize| columns(&all, width, nth * n_embd..(nth + 1) * n_embd);
        let (b, c, x) = (part(0), part(1), part(2));
        let kernels = self.name("shortconv.conv.weight");
        let kernels = self.weights.required_rows(&kernels, state.kernel, n_embd)?;
        let mut mixed = convolve(&product(&b, &x), n_embd, &kernels);
        self.tap("model.layers.{}.conv.conv", n_embd, &mut mixed);
        let gated = product(&c, &mixed);
        let mut out = self.product("shortconv.out_proj", n_embd, n_embd, &gated)?;
        self.tap("model.layers.{}.conv.out_proj", n_embd, &mut out);
        Ok(out)
    }
}

/// Multiplies element by element.
fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}
