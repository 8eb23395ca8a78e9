//! Mamba 2: each value of a head is written to a decaying state, and read from it.

use super::hparams::State;
use super::layer::Layer;
use super::math::{Activation, add_bias, columns, convolve, dot, rms_norm_groups, softplus};
use crate::Error;

/// Inputs of the recurrence.
struct Inputs {
    x: Vec<f64>,
    /// Vectors with which each group writes (B) and reads (C) the state.
    write: Vec<f64>,
    read: Vec<f64>,
    /// Time step, by token and head.
    step: Vec<f64>,
    /// Decay rate of each head's state (A), and its factor on the skip connection of `x` (D).
    rate: Vec<f64>,
    past: Vec<f64>,
}

impl Layer<'_, '_> {
    /// Computes Mamba 2; `beside` attention, the norm may be missing.
    pub(super) fn mamba2(
        &mut self,
        state: &State,
        beside: bool,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let (n_embd, inner) = (self.hp.n_embd, state.inner);
        let spread = state.groups * state.size;
        let (mixed, width) = (2 * inner + 2 * spread, 2 * inner + 2 * spread + state.heads);
        let all = self.product("ssm_in", n_embd, width, h)?;
        let z = columns(&all, width, 0..inner);
        let x = columns(&all, width, inner..mixed);
        let inputs = self.mamba_inputs(state, &x, columns(&all, width, mixed..width))?;
        let mut y = recurrence(state, &inputs);
        self.tap("mamba2_y_add_d", inner, &mut y);
        let mut y = Activation::Silu.gated(&z, &y);
        let norm = self.name("ssm_norm.weight");
        if !beside || self.weights.has(&norm) {
            let own = inner / state.groups;
            let weight = self.weights.required_rows(&norm, own, state.groups)?;
            y = rms_norm_groups(&y, own, &weight, self.hp.norm_eps);
        }
        let mut out = self.product("ssm_out", inner, n_embd, &y)?;
        let name = if beside { "ssm_out" } else { "mamba_out" };
        self.tap(name, n_embd, &mut out);
        Ok(out)
    }

    fn mamba_inputs(&self, state: &State, x: &[f64], mut step: Vec<f64>) -> Result<Inputs, Error> {
        let (inner, spread) = (state.inner, state.groups * state.size);
        let width = inner + 2 * spread;
        let kernels = self.name("ssm_conv1d.weight");
        let kernels = self.weights.required_rows(&kernels, state.kernel, width)?;
        let mut x = convolve(x, width, &kernels);
        if let Some(bias) = self.bias("ssm_conv1d", width)? {
            add_bias(&mut x, &bias);
        }
        x.iter_mut().for_each(|x| *x = Activation::Silu.of(*x));
        let bias = self.name("ssm_dt.bias");
        add_bias(
            &mut step,
            &self.weights.required_vector(&bias, state.heads)?,
        );
        step.iter_mut().for_each(|x| *x = softplus(*x));
        let of_heads = |tensor| {
            self.weights
                .required_rows(&self.name(tensor), 1, state.heads)
        };
        Ok(Inputs {
            write: columns(&x, width, inner..inner + spread),
            read: columns(&x, width, inner + spread..width),
            x: columns(&x, width, 0..inner),
            step,
            rate: of_heads("ssm_a")?,
            past: of_heads("ssm_d")?,
        })
    }
}

/// Runs `s ← e^(Δ A) s + Δ x B`; the result is `s · C + D x`.
fn recurrence(state: &State, inputs: &Inputs) -> Vec<f64> {
    let mut out = vec![0.0; inputs.x.len()];
    if out.is_empty() {
        return out;
    }
    let (size, groups) = (state.size, state.groups);
    let mut memory = vec![0.0; size]; // of one value of a head
    for at in 0..state.inner {
        let head = at / (state.inner / state.heads);
        let group = head / (state.heads / groups);
        memory.fill(0.0);
        for t in 0..out.len() / state.inner {
            let row = (t * groups + group) * size;
            let (write, read) = (&inputs.write[row..][..size], &inputs.read[row..][..size]);
            let (step, x) = (
                inputs.step[t * state.heads + head],
                inputs.x[t * state.inner + at],
            );
            let left = (step * inputs.rate[head]).exp();
            for (s, b) in memory.iter_mut().zip(write) {
                *s = *s * left + step * x * b;
            }
            out[t * state.inner + at] = dot(&memory, read) + inputs.past[head] * x;
        }
    }
    out
}
