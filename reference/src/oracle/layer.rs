//! Runs one layer: its norms, and its additions to the residual stream. Attention and the
//! feed-forward block have files of their own.

use super::Tap;
use super::architecture::{Experts, Norm, Recurrent};
use super::experts::Chosen;
use super::hparams::{Hparams, LayerDims};
use super::math::{Activation, add_into, columns, rms_norm, scale};
use super::norms::whole_norm;
use super::per_layer::PerLayer;
use super::rope::Position;
use super::weights::Weights;
use crate::Error;
use std::collections::BTreeMap;

/// Values that layers share, or leave to later ones.
pub(super) struct Shared {
    /// Keys and values of layers that others read, by layer.
    pub(super) kept: BTreeMap<usize, [Vec<f64>; 2]>,
    pub(super) per_layer: Option<PerLayer>,
    /// Position of each row.
    pub(super) positions: Vec<Position>,
    /// Values of the first layer, which later ones take a share of (RWKV).
    pub(super) first_values: Option<Vec<f64>>,
    /// Positions that each row sees, as the last indexer has chosen.
    pub(super) seen: Option<Vec<Vec<usize>>>,
}

/// One layer during a pass.
pub(super) struct Layer<'l, 't> {
    pub(super) hp: &'l Hparams,
    pub(super) weights: &'l Weights<'l>,
    pub(super) il: usize,
    pub(super) dims: LayerDims,
    pub(super) shared: &'l mut Shared,
    /// The feed-forward block's own norm of the layer's input, where it runs parallel to attention.
    pub(super) beside: Option<Vec<f64>>,
    /// Experts that the router chose before attention's result was added.
    pub(super) chosen: Option<Chosen>,
    pub(super) tap: &'l mut Tap<'t>,
}

/// The second norm of large Falcons: attention reads it instead of the first.
const ATTN_NORM_2: Norm = Norm {
    tensor: "attn_norm_2",
    tap: "attn_norm_2",
    numbered: true,
    bare: false,
};

const PER_LAYER_POST_NORM: Norm = Norm {
    tensor: "post_norm",
    tap: "per_layer_embd_out",
    numbered: true,
    bare: false,
};

impl Layer<'_, '_> {
    pub(super) fn tap(&mut self, name: &str, width: usize, x: &mut [f64]) {
        (self.tap)(name, Some(self.il), width, x);
    }

    pub(super) fn name(&self, tensor: &str) -> String {
        format!("blk.{}.{tensor}", self.il)
    }

    /// Runs the residual stream `x` through this layer.
    pub(super) fn run(&mut self, x: &mut [f64]) -> Result<(), Error> {
        let architecture = self.hp.architecture;
        let is_there = |norm: &Norm| {
            !architecture.first_unnormed
                || self.il > 0
                || self
                    .weights
                    .has(&self.name(&format!("{}.weight", norm.tensor)))
        };
        let norm = architecture.attn_norm.filter(is_there);
        let normed = self.norm_or_copy(norm, x)?;
        if architecture.one_of_both {
            let out = match self.dims.n_ff {
                0 => self.mixed_tokens(&normed)?,
                _ => self.feed_forward(&normed)?,
            };
            self.add_branch(x, out);
            self.tap("nemotron_h_block_out", self.hp.n_embd, x);
            return Ok(());
        }
        self.add_mixed_tokens(x, &normed)?;
        if architecture.feeds_forward {
            self.add_fed(x, &normed)?;
        }
        self.add_per_layer(x)?;
        if architecture.output_scale {
            let name = self.name("layer_output_scale.weight");
            if let Some(&[factor]) = self.weights.vector(&name, 1)?.as_deref() {
                scale(x, factor);
            }
        }
        // with post-norm the stream is unnamed, or has the result's name
        if architecture.sum_norms.is_none() {
            self.tap("l_out", self.hp.n_embd, x);
        }
        Ok(())
    }

    /// Adds the result of attention or a recurrence on `normed`.
    fn add_mixed_tokens(&mut self, x: &mut [f64], normed: &[f64]) -> Result<(), Error> {
        let architecture = self.hp.architecture;
        let second = self.weights.has(&self.name("attn_norm_2.weight"));
        let mut mixed = if self.hp.parallel && second {
            let second = self.norm(ATTN_NORM_2, x)?;
            self.mixed_tokens(&second)?
        } else {
            self.mixed_tokens(normed)?
        };
        self.route_early(x)?;
        if self.hp.parallel && architecture.ffn_norm.is_some() {
            self.beside = Some(self.norm_or_copy(architecture.ffn_norm, x)?);
        }
        if let Some(norm) = architecture.attn_post_norm {
            mixed = self.norm(norm, &mixed)?;
        }
        self.add_branch(x, mixed);
        self.norm_sum(0, x)?;
        if let Some(name) = architecture.names.residual.filter(|_| !self.hp.parallel) {
            self.tap(name, self.hp.n_embd, x);
        }
        Ok(())
    }

    /// Adds the feed-forward block's result, on `normed` where it runs parallel to attention.
    fn add_fed(&mut self, x: &mut [f64], normed: &[f64]) -> Result<(), Error> {
        let architecture = self.hp.architecture;
        let beside = |experts: &Experts| experts.beside_dense && self.dims.experts.is_some();
        let mut fed = if architecture.experts.as_ref().is_some_and(beside) {
            self.dense_beside_experts(x)?
        } else if self.hp.parallel {
            let own = self.beside.take();
            self.feed_forward(own.as_deref().unwrap_or(normed))?
        } else {
            let normed = self.ffn_norm(x)?;
            self.feed_forward(&normed)?
        };
        if let Some(norm) = architecture.ffn_post_norm {
            fed = self.norm(norm, &fed)?;
        }
        self.add_branch(x, fed);
        self.norm_sum(1, x)
    }

    fn ffn_norm(&mut self, x: &[f64]) -> Result<Vec<f64>, Error> {
        let norm = self.hp.architecture.ffn_norm;
        let unnamed = |facts: &Experts| !facts.named_norm && self.dims.experts.is_some();
        match norm.filter(|_| self.hp.architecture.experts.as_ref().is_some_and(unnamed)) {
            Some(norm) => {
                let name = self.name(norm.tensor);
                whole_norm(self.hp, self.weights, &name, self.hp.n_embd, x)
            }
            None => self.norm_or_copy(norm, x),
        }
    }

    /// Computes attention, a recurrence, or both.
    fn mixed_tokens(&mut self, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (Some(recurrent), Some(state)) = (self.hp.architecture.recurrent, &self.hp.state)
        else {
            return self.attention(h);
        };
        match recurrent {
            Recurrent::Mamba2Beside => {
                let mut mixed = self.attention(h)?;
                add_into(&mut mixed, &self.mamba2(state, true, h)?);
                self.tap("layer_out", self.hp.n_embd, &mut mixed);
                Ok(mixed)
            }
            _ if !self.dims.recurrent => self.attention(h),
            Recurrent::DeltaNet { grouped } => self.delta_net(state, grouped, h),
            Recurrent::KimiDelta => self.kimi_delta(state, h),
            Recurrent::ShortConv => self.short_conv(state, h),
            Recurrent::Mamba1 { normed } => self.mamba1(state, normed, h),
            Recurrent::Plamo2 => self.plamo2(state, h),
            Recurrent::Rwkv7 => self.time_mix(state, h),
            Recurrent::Mamba2 => self.mamba2(state, false, h),
        }
    }

    fn add_branch(&self, x: &mut [f64], mut branch: Vec<f64>) {
        scale(&mut branch, self.hp.factors.residual);
        add_into(x, &branch);
    }

    /// Norms the stream itself, in architectures that do (post-norm).
    fn norm_sum(&self, which: usize, x: &mut [f64]) -> Result<(), Error> {
        if let Some(tensors) = self.hp.architecture.sum_norms {
            let name = self.name(tensors[which]);
            x.copy_from_slice(&whole_norm(
                self.hp,
                self.weights,
                &name,
                self.hp.n_embd,
                x,
            )?);
        }
        Ok(())
    }

    fn norm_or_copy(&mut self, norm: Option<Norm>, x: &[f64]) -> Result<Vec<f64>, Error> {
        match norm {
            Some(norm) => self.norm(norm, x),
            None => Ok(x.to_vec()),
        }
    }

    pub(super) fn norm(&mut self, norm: Norm, x: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let name = self.name(norm.tensor);
        let mut h = match norm.bare {
            true => {
                let weight = self.weights.required_vector(&name, n_embd)?;
                rms_norm(x, &weight, self.hp.norm_eps)
            }
            false => whole_norm(self.hp, self.weights, &name, n_embd, x)?,
        };
        let layer = norm.numbered.then_some(self.il);
        if !norm.tap.is_empty() {
            (self.tap)(norm.tap, layer, n_embd, &mut h);
        }
        Ok(h)
    }

    /// Computes one product, times the factor that an NVFP4 file stores beside the matrix.
    pub(super) fn product(
        &self,
        tensor: &str,
        n_in: usize,
        n_out: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let name = self.name(&format!("{tensor}.weight"));
        let mut y = self.weights.matrix(&name, n_in, n_out)?.times(x);
        // a router's scale belongs to the norm before it
        if tensor != "ffn_gate_inp" {
            self.weights.scale_product(&self.name(tensor), &mut y)?;
        }
        Ok(y)
    }

    /// Returns the bias of a product, if the file has one.
    pub(super) fn bias(&self, tensor: &str, width: usize) -> Result<Option<Vec<f64>>, Error> {
        self.weights
            .vector(&self.name(&format!("{tensor}.bias")), width)
    }
}

impl Layer<'_, '_> {
    /// Adds the layer's projection of its own embeddings, gated by the stream.
    fn add_per_layer(&mut self, x: &mut [f64]) -> Result<(), Error> {
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
        let normed = self.norm(PER_LAYER_POST_NORM, &projected)?;
        add_into(x, &normed);
        Ok(())
    }
}
