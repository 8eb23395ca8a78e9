//! A vision encoder (vision tower) and its projector: checked hyperparameters, weights, and the
//! graph.

mod graph;
mod hparams;
mod layout;
mod positions;
mod weights;

use gguf_rs_lite::{Gguf, Value};
use octavo_model::{CacheGroup, Error, Graph, Network, Rope, Tensors};

pub use hparams::{Feature, Hparams, Projector, Windows};
pub use layout::Layout;
pub use positions::PositionTable;

/// `general.architecture` of vision encoder files.
pub const ARCHITECTURE: &str = "clip";

/// A vision encoder ready for a backend.
#[derive(Clone, Debug)]
pub struct Tower {
    /// The checked hyperparameters.
    pub hparams: Hparams,
    /// From patches to rows of the text model's embedding width.
    pub graph: Graph,
    /// Position embeddings of patches, where the encoder has a table.
    pub positions: Option<PositionTable>,
    tensors: Tensors,
    ropes: Vec<Rope>,
    caches: Vec<CacheGroup>,
}

impl Tower {
    /// Reads, checks and binds everything; the weights' data stays in the file.
    ///
    /// # Errors
    /// If a key or tensor is missing, misshapen, unknown, or asks for an unimplemented feature.
    pub fn load(gguf: &Gguf) -> Result<Tower, Error> {
        let hparams = Hparams::from_gguf(gguf)?;
        let (weights, tensors) = weights::bind(gguf, &hparams)?;
        let (ropes, caches) = (vec![graph::rope(&hparams)], vec![graph::cache(&hparams)]);
        let graph = graph::build(&hparams, &weights, &tensors);
        graph
            .validate(&tensors, &ropes, &caches)
            .map_err(|source| Error::Graph {
                file: gguf.name().to_owned(),
                arch: hparams.projector.name(),
                source,
            })?;
        Ok(Tower {
            positions: weights.positions,
            hparams,
            graph,
            tensors,
            ropes,
            caches,
        })
    }

    /// Returns whether a file is a vision encoder.
    pub fn is_in(gguf: &Gguf) -> bool {
        matches!(
            gguf.get("general.architecture"),
            Some(Value::Str(name)) if name == ARCHITECTURE.as_bytes()
        )
    }

    /// Returns the order of the rows for an image of `nx * ny` tokens.
    pub fn layout(&self, nx: usize, ny: usize) -> Layout {
        let side = self.hparams.windows.map(|windows| windows.side);
        Layout::new(nx, ny, side)
    }

    /// Returns the width of an output row: an embedding and the deepstack features.
    pub fn width(&self) -> usize {
        (1 + self.hparams.deepstack.len()) * self.hparams.n_projected
    }
}

impl Network for Tower {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    fn caches(&self) -> &[CacheGroup] {
        &self.caches
    }
}
