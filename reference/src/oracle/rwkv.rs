//! RWKV 7: time mixing, whose heads each have a matrix for a state, and channel mixing. Both read
//! differences to the row before.

use super::hparams::State;
use super::layer::Layer;
use super::math::{add_bias, add_into, dot, layer_norm, sigmoid};
use crate::Error;

/// Epsilon of the norm of heads, and least length of a key; no key states them.
const HEAD_EPS: f64 = 64e-5;
const LEAST_LENGTH: f64 = 1e-12;

/// Per-token inputs of the recurrence, and of what is added to its result.
struct Inputs {
    r: Vec<f64>,
    decay: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Key whose value is removed, and what it is replaced along.
    removed: Vec<f64>,
    replaced: Vec<f64>,
}

impl Layer<'_, '_> {
    pub(super) fn time_mix(&mut self, state: &State, h: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let change = change(h, n_embd);
        let shares = self.name("time_mix_lerp_fused.weight");
        let shares = self.weights.planes(&shares, [n_embd, 1, 1, 6])?;
        let mixed = |which: usize| {
            let share = shares.get(which * n_embd..(which + 1) * n_embd);
            shifted(h, &change, share.unwrap_or_default())
        };
        let r = self.product("time_mix_receptance", n_embd, n_embd, &mixed(0))?;
        let k = self.product("time_mix_key", n_embd, n_embd, &mixed(2))?;
        let v = self.product("time_mix_value", n_embd, n_embd, &mixed(3))?;
        let v = self.with_first_values(state, v, &mixed(3))?;
        let tanh = |x: &mut f64| *x = x.tanh();
        let mut decay = self.low_rank("w", state.ranks[0], &mixed(1), tanh)?;
        for x in &mut decay {
            *x = (-0.606531 * sigmoid(*x)).exp();
        }
        let mut rate = self.low_rank("a", state.ranks[1], &mixed(4), |_| {})?;
        rate.iter_mut().for_each(|x| *x = sigmoid(*x));
        let inputs = self.keys(state, [r, decay, k, v], &rate)?;
        let y = recurrence(state, &inputs);
        let mut y = self.of_heads(state, &inputs, &y)?;
        let mut gate = self.product("time_mix_g1", n_embd, state.ranks[3], &mixed(5))?;
        gate.iter_mut().for_each(|x| *x = sigmoid(*x));
        let gate = self.product("time_mix_g2", state.ranks[3], n_embd, &gate)?;
        y.iter_mut().zip(&gate).for_each(|(y, gate)| *y *= gate);
        self.product("time_mix_output", n_embd, n_embd, &y)
    }

    pub(super) fn channel_mix(&mut self, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, n_ff) = (self.hp.n_embd, self.dims.n_ff);
        let share = self.name("channel_mix_lerp_k.weight");
        let share = self.weights.planes(&share, [n_embd, 1, 1, 1])?;
        let mixed = shifted(h, &change(h, n_embd), &share);
        let mut key = self.product("channel_mix_key", n_embd, n_ff, &mixed)?;
        key.iter_mut().for_each(|x| *x = x.max(0.0).powi(2));
        self.product("channel_mix_value", n_ff, n_embd, &key)
    }

    /// Adds to values a share of what is between them and those of the first layer.
    fn with_first_values(
        &mut self,
        state: &State,
        mut v: Vec<f64>,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        if self.il == 0 {
            // these weights are there without use, and of another rank
            self.low_rank("v", state.ranks[1], h, |_| {})?;
            self.shared.first_values = Some(v.clone());
            return Ok(v);
        }
        let share = self.low_rank("v", state.ranks[2], h, |_| {})?;
        let first = self.shared.first_values.clone().unwrap_or_default();
        for ((v, first), share) in v.iter_mut().zip(first).zip(share) {
            *v += (first - *v) * sigmoid(share);
        }
        Ok(v)
    }

    /// Computes two successive products with `between` them, and adds a bias.
    fn low_rank(
        &self,
        letter: &str,
        rank: usize,
        h: &[f64],
        between: impl Fn(&mut f64),
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let mut narrow = self.product(&format!("time_mix_{letter}1"), n_embd, rank, h)?;
        narrow.iter_mut().for_each(between);
        let mut x = self.product(&format!("time_mix_{letter}2"), rank, n_embd, &narrow)?;
        let bias = self.name(&format!("time_mix_{letter}0.weight"));
        add_bias(&mut x, &self.weights.required_vector(&bias, n_embd)?);
        Ok(x)
    }

    /// Computes the keys that are written, removed and replaced.
    fn keys(
        &self,
        state: &State,
        [r, decay, mut k, v]: [Vec<f64>; 4],
        rate: &[f64],
    ) -> Result<Inputs, Error> {
        let n_embd = self.hp.n_embd;
        let vector = |name: &str| {
            let name = self.name(&format!("time_mix_{name}.weight"));
            self.weights.required_vector(&name, n_embd)
        };
        let (k_k, k_a) = (vector("k_k")?, vector("k_a")?);
        let mut removed = k.clone();
        for (x, factor) in removed.iter_mut().zip(k_k.iter().cycle()) {
            *x *= factor;
        }
        for head in removed.chunks_mut(state.size) {
            let length = dot(head, head).sqrt().max(LEAST_LENGTH);
            head.iter_mut().for_each(|x| *x /= length);
        }
        for ((k, rate), k_a) in k.iter_mut().zip(rate).zip(k_a.iter().cycle()) {
            *k += (rate - 1.0) * *k * k_a;
        }
        let replaced = removed.iter().zip(rate).map(|(x, rate)| x * rate).collect();
        Ok(Inputs {
            r,
            decay,
            k,
            v,
            removed,
            replaced,
        })
    }

    /// Norms each head's result, and adds its own values by how much its key answers.
    fn of_heads(&self, state: &State, inputs: &Inputs, y: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, size) = (self.hp.n_embd, state.size);
        let vector = |name: &str| self.weights.required_vector(&self.name(name), n_embd);
        let weight = vector("time_mix_ln.weight")?;
        let mut y = layer_norm(y, size, &weight, HEAD_EPS);
        add_bias(&mut y, &vector("time_mix_ln.bias")?);
        let factors = vector("time_mix_r_k.weight")?;
        for (at, y) in y.chunks_mut(size).enumerate() {
            let head = at * size..(at + 1) * size;
            let factors = &factors[at * size % n_embd..][..size];
            let (k, r) = (&inputs.k[head.clone()], &inputs.r[head.clone()]);
            let terms = k.iter().zip(r).zip(factors);
            let answer: f64 = terms.map(|((k, r), factor)| k * r * factor).sum();
            let own: Vec<f64> = inputs.v[head].iter().map(|v| v * answer).collect();
            add_into(y, &own);
        }
        Ok(y)
    }
}

/// Returns the row before less each row.
fn change(h: &[f64], width: usize) -> Vec<f64> {
    let before = std::iter::repeat_n(0.0, width).chain(h.iter().copied());
    h.iter().zip(before).map(|(x, before)| before - x).collect()
}

/// Adds a share of their change to rows.
fn shifted(h: &[f64], change: &[f64], share: &[f64]) -> Vec<f64> {
    let pairs = h.iter().zip(change).zip(share.iter().cycle());
    pairs
        .map(|((x, change), share)| x + change * share)
        .collect()
}

/// Runs `M ← M diag(w) − (M κ) bᵀ + v kᵀ`; the result is `M r`.
fn recurrence(state: &State, inputs: &Inputs) -> Vec<f64> {
    let (size, width) = (state.size, state.inner);
    let mut out = vec![0.0; inputs.v.len()];
    for at in 0..width {
        let first = at / size * size;
        let mut memory = vec![0.0; size]; // of one value: a row of its head's matrix
        for t in 0..out.len() / width {
            let of = |x: &[f64], j: usize| x[t * width + first + j];
            let held: f64 = (0..size).map(|j| memory[j] * of(&inputs.removed, j)).sum();
            for (j, m) in memory.iter_mut().enumerate() {
                let lost = held * of(&inputs.replaced, j);
                let written = inputs.v[t * width + at] * of(&inputs.k, j);
                *m = *m * of(&inputs.decay, j) - lost + written;
                out[t * width + at] += *m * of(&inputs.r, j);
            }
        }
    }
    out
}
