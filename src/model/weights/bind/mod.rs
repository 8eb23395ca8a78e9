//! Finds each weight of a model in its file, once, and refuses missing, misshapen and unused
//! tensors.

mod blocks;
mod embeddings_and_head;
mod floats;
mod recurrent;
mod rwkv;
mod tensors;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub(crate) use embeddings_and_head::EmbeddingsAndHead;
use gguf_rs_lite::Gguf;
pub use tensors::TensorBinder;

use super::{
    AssistantProjections, Classifier, Layer, MtpInput, NormWeights, VecId, WeightId, Weights,
};
use crate::error::Error;
use crate::hparams::Hparams;

/// Finds the tensors that a model's hyperparameters require.
pub(crate) struct Binder<'a> {
    pub(crate) h: &'a Hparams,
    tensors: TensorBinder<'a>,
}

impl<'a> Deref for Binder<'a> {
    type Target = TensorBinder<'a>;

    fn deref(&self) -> &TensorBinder<'a> {
        &self.tensors
    }
}

impl<'a> DerefMut for Binder<'a> {
    fn deref_mut(&mut self) -> &mut TensorBinder<'a> {
        &mut self.tensors
    }
}

impl<'a> Binder<'a> {
    fn new(gguf: &'a Gguf, h: &'a Hparams) -> Binder<'a> {
        Binder {
            h,
            tensors: TensorBinder::new(gguf),
        }
    }

    /// Binds a matrix; `None` if the file lacks it.
    pub(crate) fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<WeightId>, Error> {
        self.tensors.optional_matrix(name, rows, cols)
    }

    /// Binds a required matrix.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, Error> {
        self.tensors.matrix(name, rows, cols)
    }

    /// Binds a vector; `None` if the file lacks it.
    pub(crate) fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<VecId>, Error> {
        self.tensors.optional_vector(name, n)
    }

    /// Binds a required vector.
    pub(crate) fn vector(&mut self, name: &str, n: usize) -> Result<VecId, Error> {
        self.tensors.vector(name, n)
    }

    /// Binds a norm's weights; `None` if the file lacks them.
    pub(crate) fn optional_norm(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<Option<NormWeights>, Error> {
        let kind = self.h.arch.spec().norm;
        self.tensors.optional_norm(name, kind, n, tap)
    }

    /// Binds a norm's required weights.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        let kind = self.h.arch.spec().norm;
        self.tensors.norm(name, kind, n, tap)
    }

    /// Binds a norm of a layer's rows.
    pub(crate) fn layer_norm(
        &mut self,
        l: usize,
        name: &str,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        self.norm(&blk(l, name), self.h.n_embd(), tap)
    }

    /// Returns the weights, if every tensor of the file was used, apart from those of layers
    /// outside the forward pass.
    fn finish(
        self,
        weights: EmbeddingsAndHead,
        layers: Vec<Layer>,
        (mtp, assistant): (Option<MtpInput>, Option<AssistantProjections>),
        classifier: Option<Classifier>,
    ) -> Result<Weights, Error> {
        let behind = |name: &str| {
            let layer = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split('.').next());
            let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
            layer.is_some_and(|l| (self.h.n_layer()..self.h.n_block).contains(&l))
        };
        let tensors = self.tensors.finish(self.h.arch.name(), behind)?;
        Ok(Weights {
            tensors,
            token_embd: weights.token_embd,
            positions: weights.positions,
            token_type: weights.token_type,
            embd_norm: weights.embd_norm,
            output_norm: weights.output_norm,
            dense: weights.dense,
            output: weights.output,
            output_bias: weights.output_bias,
            rope_divisors: weights.rope_divisors,
            per_layer_inputs: weights.per_layer_inputs,
            layers,
            mtp,
            assistant,
            classifier: classifier.map(Arc::new),
        })
    }
}

/// Binds every tensor of the file to its field.
pub(crate) fn bind(gguf: &Gguf, h: &Hparams) -> Result<Weights, Error> {
    let spec = h.arch.spec();
    let mut binder = Binder::new(gguf, h);
    let weights = (spec.bind_embeddings_and_head)(&mut binder)?;
    let layers = (0..h.n_layer())
        .map(|l| (spec.layer)(&mut binder, l))
        .collect::<Result<Vec<_>, _>>()?;
    let classifier = match spec.classifier {
        Some(kind) => Classifier::bind(&mut binder, kind)?,
        None => None,
    };
    let drafts = (binder.mtp_input()?, binder.assistant_projections()?);
    binder.finish(weights, layers, drafts, classifier)
}

/// Returns `blk.<layer>.<rest>`.
pub(crate) fn blk(layer: usize, rest: &str) -> String {
    format!("blk.{layer}.{rest}")
}
