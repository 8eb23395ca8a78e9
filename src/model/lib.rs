//! From a file's metadata to a model that a backend can execute: validated hyperparameters, weights
//! bound to typed fields, and the forward pass as a list of named ops. Knows no backend; never
//! touches weight data beyond norms and biases.

mod arch;
mod blocks;
mod error;
pub mod graph;
pub mod hparams;
mod keys;
mod rope;
pub mod taps;
pub mod weights;

use gguf_rs_lite::Gguf;
use serde::Serialize;

pub use arch::Arch;
pub use error::Error;
pub use graph::{Graph, Node, Op, ValueId};
pub use hparams::{CacheGroup, Hparams, LayerHparams, ScalingKind};
pub use keys::{Entry, Source, Sourced};
pub use octavo_kernels::{Pairing, Rope};
pub use taps::{OwnedTap, Tap};
pub use weights::{Layer, VecId, WeightId, WeightRef, Weights};

/// A model ready for a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// The checked hyperparameters.
    pub hparams: Hparams,
    /// Every weight, bound.
    pub weights: Weights,
    /// The forward pass.
    pub graph: Graph,
    /// Angles of the rotary embeddings; [`LayerHparams::rope`] indexes them.
    pub ropes: Vec<Rope>,
}

impl Model {
    /// Reads, checks and binds everything; the weights' data stays in the file.
    pub fn load(gguf: &Gguf) -> Result<Model, Error> {
        let hparams = Hparams::from_gguf(gguf)?;
        let weights = weights::bind(gguf, &hparams)?;
        let ropes = rope::tables(&hparams, &weights, hparams.n_ctx_train());
        let graph = arch::build(&hparams, &weights);
        graph
            .validate(&weights, &hparams)
            .map_err(|source| Error::Graph {
                file: gguf.name().to_owned(),
                arch: hparams.arch.name(),
                source,
            })?;
        Ok(Model {
            hparams,
            weights,
            graph,
            ropes,
        })
    }

    /// Lets the angles be those for contexts of so many positions, where that makes a difference.
    pub fn fit_to_context(&mut self, n_ctx: usize) {
        self.ropes = rope::tables(&self.hparams, &self.weights, n_ctx);
    }

    /// Whether a part of the layers can be computed without values of others but what the layer
    /// before it hands on.
    pub fn is_divisible(&self) -> bool {
        let own = |(l, layer): (usize, &LayerHparams)| layer.kv_layer == l;
        let mut layers = self.hparams.layers.iter().enumerate();
        self.weights.per_layer_inputs.is_none() && layers.all(own)
    }

    /// What was assumed or left out, one line each.
    pub fn warnings(&self) -> &[String] {
        self.hparams.warnings()
    }

    /// What the model is made of, for `inspect`.
    pub fn structure(&self) -> Structure {
        let any = |f: fn(&Layer) -> bool| self.weights.layers.iter().any(f);
        Structure {
            architecture: self.hparams.arch.name(),
            layers: self.hparams.n_layer(),
            gqa_ratio: self.gqa_ratio(),
            qk_norm: any(|l| l.q_norm.is_some()),
            qkv_bias: any(|l| l.bq.is_some() || l.bk.is_some() || l.bv.is_some()),
            fused_qkv: self.weights.matrices.iter().any(|m| m.row_start > 0),
            rope_pairing: self.ropes[0].pairing.name(),
            rope_scaling: self.hparams.ropes[0].scaling.value.name(),
            rope_freqs: self.weights.rope_divisors.all.is_some(),
            tied_output: self.weights.is_tied(),
            output_bias: self.weights.output_bias.is_some(),
            parameters: self.parameters(),
        }
    }

    /// Query heads per key head, if it is the same in all layers.
    fn gqa_ratio(&self) -> Option<usize> {
        let mut ratios = self.hparams.layers.iter().map(|l| l.n_head / l.n_head_kv);
        let first = ratios.next()?;
        ratios.all(|ratio| ratio == first).then_some(first)
    }

    /// Numbers in all weights; a tied output is counted once.
    fn parameters(&self) -> u64 {
        let matrices: u64 = self.weights.matrices.iter().map(|m| m.rows * m.cols).sum();
        let vectors: u64 = self
            .weights
            .vectors
            .iter()
            .map(|v| v.data.len() as u64)
            .sum();
        matrices + vectors
    }
}

/// A model's structure in a few facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Structure {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Layers.
    pub layers: usize,
    /// Query heads per key head; none where layers differ.
    pub gqa_ratio: Option<usize>,
    /// Query and key heads are normalised.
    pub qk_norm: bool,
    /// Q, K or V have biases.
    pub qkv_bias: bool,
    /// Q, K and V are one tensor.
    pub fused_qkv: bool,
    /// Which dimensions turn together: `norm` or `neox`.
    pub rope_pairing: &'static str,
    /// `none`, `linear` or `yarn`.
    pub rope_scaling: &'static str,
    /// The file carries divisors of the rotary angles.
    pub rope_freqs: bool,
    /// The output matrix is the token embedding.
    pub tied_output: bool,
    /// The output has a bias.
    pub output_bias: bool,
    /// Numbers in all weights.
    pub parameters: u64,
}
