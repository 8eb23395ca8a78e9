//! Mamba 1, whose values each have a state of their own, and PLaMo 2's Mamba, whose heads share
//! rates of decay.

use super::hparams::State;
use super::layer::Layer;
use super::math::{Activation, add_bias, columns, convolve, rms_norm, softplus};
use crate::Error;

/// Inputs of the recurrence.
struct Inputs {
    x: Vec<f64>,
    /// Time step of each value.
    step: Vec<f64>,
    /// Vectors with which all values write and read their states.
    write: Vec<f64>,
    read: Vec<f64>,
    /// Decay rates of each value's state (A).
    rate: Vec<f64>,
    /// Factors on the skip connection (D).
    past: Vec<f64>,
}

impl Layer<'_, '_> {
    /// Computes Mamba 1.
    pub(super) fn mamba1(
        &mut self,
        state: &State,
        weighted: bool,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let (n_embd, inner, size, rank) = (self.hp.n_embd, state.inner, state.size, state.rank);
        let all = self.product("ssm_in", n_embd, 2 * inner, h)?;
        let z = columns(&all, 2 * inner, inner..2 * inner);
        let x = self.convolved(state, &columns(&all, 2 * inner, 0..inner))?;
        let x = activated(x);
        let width = rank + 2 * size;
        let mixed = self.product("ssm_x", inner, width, &x)?;
        let ends = [0, rank, rank + size, width];
        let names = ["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"];
        let mut parts = Vec::new();
        for (part, name) in names.into_iter().enumerate() {
            let x = columns(&mixed, width, ends[part]..ends[part + 1]);
            let n = ends[part + 1] - ends[part];
            let weight = match weighted {
                true => self
                    .weights
                    .required_vector(&self.name(&format!("{name}.weight")), n)?,
                false => vec![1.0; n],
            };
            parts.push(match weighted || state.normed {
                true => rms_norm(&x, &weight, self.hp.norm_eps),
                false => x,
            });
        }
        let [step, write, read] = <[Vec<f64>; 3]>::try_from(parts).unwrap_or_default();
        let mut step = self.product("ssm_dt", rank, inner, &step)?;
        let bias = self.name("ssm_dt.bias");
        add_bias(&mut step, &self.weights.required_vector(&bias, inner)?);
        step.iter_mut().for_each(|x| *x = softplus(*x));
        let inputs = Inputs {
            x,
            step,
            write,
            read,
            rate: self
                .weights
                .required_rows(&self.name("ssm_a"), size, inner)?,
            past: self.weights.required_vector(&self.name("ssm_d"), inner)?,
        };
        let y = scan(inner, size, &inputs);
        let y = Activation::Silu.gated(&z, &y);
        self.product("ssm_out", inner, n_embd, &y)
    }

    /// Computes PLaMo 2's Mamba.
    pub(super) fn plamo2(&mut self, state: &State, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, inner, size) = (self.hp.n_embd, state.inner, state.size);
        let of_head = inner / state.heads;
        let mut all = self.product("ssm_in", n_embd, 2 * inner, h)?;
        self.tap("mamba_in_proj", 2 * inner, &mut all);
        let mut x = columns(&all, 2 * of_head, of_head..2 * of_head);
        self.tap("mamba_x_split", inner, &mut x);
        let mut x = self.convolved(state, &x)?;
        self.tap("mamba_conv1d", inner, &mut x);
        let mut x = activated(x);
        self.tap("mamba_conv1d_silu", inner, &mut x);
        let width = 2 * size + state.rank;
        let mut mixed = self.product("ssm_x", inner, width, &x)?;
        self.tap("mamba_bcdt_proj", width, &mut mixed);
        let step = columns(&mixed, width, 2 * size..width);
        let step = self.bare_norm("ssm_dt_norm", "mamba_dt_normed", state.rank, &step)?;
        let mut step = self.product("ssm_dt", state.rank, state.heads, &step)?;
        let bias = self.name("ssm_dt.bias");
        add_bias(
            &mut step,
            &self.weights.required_vector(&bias, state.heads)?,
        );
        self.tap("mamba_dt_proj", state.heads, &mut step);
        let write = columns(&mixed, width, 0..size);
        let write = self.bare_norm("ssm_b_norm", "mamba_B_normed", size, &write)?;
        let read = columns(&mixed, width, size..2 * size);
        let read = self.bare_norm("ssm_c_norm", "mamba_C_normed", size, &read)?;
        let of_heads = |name: &str, each: usize| {
            let values = self
                .weights
                .required_vector(&self.name(name), state.heads)?;
            let repeated = values.iter().flat_map(|x| vec![*x; each]);
            Ok::<Vec<f64>, Error>(repeated.collect())
        };
        let inputs = Inputs {
            x,
            step: step
                .iter()
                .flat_map(|x| vec![softplus(*x); of_head])
                .collect(),
            write,
            read,
            rate: of_heads("ssm_a", of_head * size)?,
            past: of_heads("ssm_d", of_head)?,
        };
        let mut z = columns(&all, 2 * of_head, 0..of_head);
        self.tap("mamba_z_split", inner, &mut z);
        let mut y = scan(inner, size, &inputs);
        self.tap("mamba_y_add_d", inner, &mut y);
        let mut y = Activation::Silu.gated(&z, &y);
        self.tap("mamba_y_swiglu_z", inner, &mut y);
        let mut out = self.product("ssm_out", inner, n_embd, &y)?;
        self.tap("mamba_out_proj", n_embd, &mut out);
        Ok(out)
    }

    fn convolved(&self, state: &State, x: &[f64]) -> Result<Vec<f64>, Error> {
        let kernels = self.name("ssm_conv1d.weight");
        let kernels = self
            .weights
            .required_rows(&kernels, state.kernel, state.inner)?;
        let mut x = convolve(x, state.inner, &kernels);
        if let Some(bias) = self.bias("ssm_conv1d", state.inner)? {
            add_bias(&mut x, &bias);
        }
        Ok(x)
    }

    fn bare_norm(
        &mut self,
        tensor: &str,
        tap: &str,
        width: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let weight = self.weights.required_vector(&self.name(tensor), width)?;
        let mut x = rms_norm(x, &weight, self.hp.norm_eps);
        self.tap(tap, width, &mut x);
        Ok(x)
    }
}

fn activated(mut x: Vec<f64>) -> Vec<f64> {
    x.iter_mut().for_each(|x| *x = Activation::Silu.of(*x));
    x
}

/// Runs `s ← e^(Δ A) ⊙ s + Δ x B` for each value; the result is `s · C + D x`.
fn scan(inner: usize, size: usize, inputs: &Inputs) -> Vec<f64> {
    let mut out = vec![0.0; inputs.x.len()];
    for at in 0..inner {
        let mut memory = vec![0.0; size];
        for t in 0..out.len() / inner {
            let (step, x) = (inputs.step[t * inner + at], inputs.x[t * inner + at]);
            let mut sum = inputs.past[at] * x;
            for (j, s) in memory.iter_mut().enumerate() {
                let left = (step * inputs.rate[at * size + j]).exp();
                *s = *s * left + step * x * inputs.write[t * size + j];
                sum += *s * inputs.read[t * size + j];
            }
            out[t * inner + at] = sum;
        }
    }
    out
}
