//! The feed-forward block of a layer.

use super::architecture::{Recurrent, Up};
use super::layer::Layer;
use super::math::{Activation, add_bias, columns};
use super::norms::whole_norm;
use crate::Error;

impl Layer<'_, '_> {
    /// Computes `Wdown · (activation(Wgate · h) ⊙ Wup · h)`, or `Wdown · activation(Wup · h)`, or a
    /// mixture of experts that are each such a block.
    pub(super) fn feed_forward(&mut self, h: &[f64]) -> Result<Vec<f64>, Error> {
        if let (Some(routing), Some(experts)) = (&self.hp.routing, self.dims.experts) {
            return self.mixture(routing, experts, h);
        }
        if self.hp.architecture.recurrent == Some(Recurrent::Rwkv7) {
            return self.channel_mix(h);
        }
        let mut out = self.dense("", self.dims.n_ff, h)?;
        if let Some(name) = self.hp.architecture.names.ffn_out {
            self.tap(name, self.hp.n_embd, &mut out);
        }
        Ok(out)
    }

    /// Computes the block of tensors whose names end in `suffix`; its result has no name yet.
    pub(super) fn dense(
        &mut self,
        suffix: &str,
        n_ff: usize,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let inner = self.inner(suffix, n_ff, h)?;
        let down = format!("ffn_down{suffix}");
        let mut out = self.product(&down, n_ff, n_embd, &inner)?;
        if let Some(bias) = self.bias(&down, n_embd)? {
            self.tap("ffn_down", n_embd, &mut out);
            add_bias(&mut out, &bias);
        }
        Ok(out)
    }

    fn inner(&mut self, suffix: &str, n_ff: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        if let Some(limit) = self.dims.limits[1] {
            let gate = self.ffn_product("ffn_gate", suffix, n_ff, h)?;
            let gate = self.limited_gate("ffn", n_ff, gate, limit);
            let up = self.ffn_product("ffn_up", suffix, n_ff, h)?;
            return Ok(self.limited_product("ffn", n_ff, &gate, up, limit));
        }
        let activation = self.hp.architecture.activation;
        let fused = self.hp.architecture.fused_shared && suffix == "_shexp";
        let kind = match fused {
            true => Up::Fused,
            false => self.hp.architecture.up,
        };
        let (gate, up) = match kind {
            Up::Plain => return self.ungated(suffix, n_ff, h),
            Up::Gated => {
                let gate = self.ffn_product("ffn_gate", suffix, n_ff, h)?;
                (gate, self.ffn_product("ffn_up", suffix, n_ff, h)?)
            }
            Up::Fused => {
                let both = self.ffn_product("ffn_up", suffix, 2 * n_ff, h)?;
                let (width, half) = (2 * n_ff, n_ff);
                (
                    columns(&both, width, 0..half),
                    columns(&both, width, half..width),
                )
            }
        };
        let mut gated = activation.gated(&gate, &up);
        if self.hp.architecture.sub_norms {
            self.tap("ffn_sub_out", n_ff, &mut gated);
            let norm = self.name("ffn_sub_norm");
            gated = whole_norm(self.hp, self.weights, &norm, n_ff, &gated)?;
            self.tap("ffn_sub_norm", n_ff, &mut gated);
            return Ok(gated);
        }
        let name = format!("ffn_{}", activation.gated_name());
        self.tap(&name, n_ff, &mut gated);
        Ok(gated)
    }

    /// Returns `min(silu(gate), limit)`; `stem` begins the names of values.
    pub(super) fn limited_gate(
        &mut self,
        stem: &str,
        width: usize,
        mut gate: Vec<f64>,
        limit: f64,
    ) -> Vec<f64> {
        gate.iter_mut().for_each(|x| *x = Activation::Silu.of(*x));
        self.tap(&format!("{stem}_silu"), width, &mut gate);
        gate.iter_mut().for_each(|x| *x = x.min(limit));
        self.tap(&format!("{stem}_silu_clamped"), width, &mut gate);
        gate
    }

    /// Returns the product of that with the limited up projection.
    pub(super) fn limited_product(
        &mut self,
        stem: &str,
        width: usize,
        gate: &[f64],
        mut up: Vec<f64>,
        limit: f64,
    ) -> Vec<f64> {
        up.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        self.tap(&format!("{stem}_up_clamped"), width, &mut up);
        up.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate);
        self.tap(&format!("{stem}_swiglu_limited"), width, &mut up);
        up
    }

    fn ungated(&mut self, suffix: &str, n_ff: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        let activation = self.hp.architecture.activation;
        let mut x = self.ffn_product("ffn_up", suffix, n_ff, h)?;
        if activation == Activation::ReluSquared {
            x.iter_mut().for_each(|x| *x = x.max(0.0));
            self.tap("ffn_relu", n_ff, &mut x);
        }
        match self.dims.xielu {
            Some([positive, negative, linear, least]) => {
                for x in &mut x {
                    let curve = match *x > 0.0 {
                        true => positive * *x * *x,
                        false => negative * (x.min(least).exp_m1() - *x),
                    };
                    *x = curve + linear * *x;
                }
            }
            None => x.iter_mut().for_each(|x| *x = activation.of(*x)),
        }
        self.tap(activation.plain_name(), n_ff, &mut x);
        Ok(x)
    }

    fn ffn_product(
        &mut self,
        tensor: &str,
        suffix: &str,
        width: usize,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let full = format!("{tensor}{suffix}");
        let mut y = self.product(&full, self.hp.n_embd, width, h)?;
        let scaled = self.weights.has(&self.name(&format!("{full}.scale")));
        let name = if scaled {
            format!("{tensor}_s")
        } else {
            tensor.to_owned()
        };
        self.tap(&name, width, &mut y);
        if let Some(bias) = self.bias(&full, width)? {
            add_bias(&mut y, &bias);
            self.tap(&format!("{tensor}_b"), width, &mut y);
        }
        Ok(y)
    }
}
