//! Loads a model from a file into a form that a backend can execute: validated hyperparameters,
//! weights bound to typed fields, and the forward pass as a list of named ops. Depends on no
//! backend; reads no weight data beyond norms and biases.

mod adapter;
mod arch;
mod assistant;
mod blocks;
mod error;
pub mod graph;
pub mod hparams;
pub mod keys;
mod mtp;
pub mod outline;
mod rope;
mod structure;
pub mod taps;
pub mod weights;

use gguf_rs_lite::Gguf;

pub use adapter::{Adapter, AdapterError, AdapterPair, ControlVector};
pub use arch::Arch;
use arch::Recurrent;
pub use assistant::is_assistant;
pub use error::{Choice, Error};
pub use graph::{Graph, HiddenRows, Node, Op, ValueId};
pub use hparams::{
    CacheGroup, Hparams, IndexerHparams, KeyChoice, LatentHparams, LayerHparams, Pooling,
    RecurrentHparams, ScalingKind, TokenMixer,
};
pub use keys::{Entry, Source, Sourced};
pub use mtp::{is_mtp_only, mtp_layer};
pub use octavo_kernels::{Pairing, Rope};
pub use structure::{Active, ExpertStructure, RecurrentStructure, Structure, Windows};
pub use taps::{OwnedTap, Tap};
pub use weights::{
    Classifier, Layer, Pieces, TensorBinder, Tensors, VecId, WeightId, WeightRef, Weights,
};

/// The input of a backend: a graph, its weights, and the tables and caches it refers to.
pub trait Network {
    /// Returns the operations.
    fn graph(&self) -> &Graph;
    /// Returns the matrices and vectors the operations use.
    fn tensors(&self) -> &Tensors;
    /// Returns the tables of rotary embeddings.
    fn ropes(&self) -> &[Rope];
    /// Returns the groups of the cache's layers.
    fn caches(&self) -> &[CacheGroup];
}

impl Network for Model {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn tensors(&self) -> &Tensors {
        &self.weights.tensors
    }

    fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    fn caches(&self) -> &[CacheGroup] {
        &self.hparams.caches
    }
}

/// A model ready for a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// The checked hyperparameters.
    pub hparams: Hparams,
    /// Every weight, bound.
    pub weights: Weights,
    /// The forward pass.
    pub graph: Graph,
    /// Tables of the rotary embeddings; [`LayerHparams::rope`] indexes them.
    pub ropes: Vec<Rope>,
}

impl Model {
    /// Reads, checks and binds everything; the weights' data stays in the file.
    pub fn load(gguf: &Gguf) -> Result<Model, Error> {
        Model::load_with(gguf, HiddenRows::default())
    }

    /// As [`Model::load`], with these rows of the final norm computed.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with(gguf: &Gguf, rows: HiddenRows) -> Result<Model, Error> {
        if is_mtp_only(gguf) {
            return Err(Error::OnlyMtp(gguf.name().to_owned()));
        }
        if is_assistant(gguf) {
            return Err(Error::OnlyAssistant(gguf.name().to_owned()));
        }
        Model::build(gguf, Hparams::from_gguf(gguf)?, rows)
    }

    /// Binds the weights and builds the graph.
    fn build(gguf: &Gguf, hparams: Hparams, rows: HiddenRows) -> Result<Model, Error> {
        let weights = weights::bind(gguf, &hparams)?;
        let ropes = rope::tables(&hparams, &weights, hparams.n_ctx_train());
        let graph = arch::build(&hparams, &weights, rows);
        graph
            .validate(&weights.tensors, &ropes, &hparams.caches)
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

    /// Recomputes the RoPE tables for a context of `n_ctx` positions, which matters for LongRoPE.
    pub fn fit_to_context(&mut self, n_ctx: usize) {
        self.ropes = rope::tables(&self.hparams, &self.weights, n_ctx);
    }

    /// Returns whether layers can be split between executors: each layer then needs only the output
    /// of the one before it.
    pub fn is_divisible(&self) -> bool {
        let mut layers = self.hparams.layers.iter().enumerate();
        let own_keys =
            layers.all(|(l, layer)| layer.kv_layer == l && layer.choice != KeyChoice::Last);
        // later layers take a share of the first one's values
        let shares_values = self.hparams.arch.spec().recurrent == Some(Recurrent::Rwkv7);
        self.weights.per_layer_inputs.is_none() && own_keys && !shares_values
    }

    /// Returns whether it is an MTP layer of another model.
    pub fn is_mtp(&self) -> bool {
        self.weights.mtp.is_some()
    }

    /// Returns what was assumed or left out, one line each.
    pub fn warnings(&self) -> &[String] {
        self.hparams.warnings()
    }
}
