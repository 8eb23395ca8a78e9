//! A vision encoder (vision tower) and its projector: checked hyperparameters, weights, and the
//! graph. What is special about one is in its file in `arch`.

pub(crate) mod arch;
mod graph;
mod hparams;
mod layout;
mod positions;
mod step;
mod weights;

use gguf_rs_lite::{Gguf, Value};
use octavo_engine::backend::cuda::Limits;
use octavo_kernels::PAGE_POSITIONS;
use octavo_model::{CacheGroup, Error, Graph, Network, Rope, Tensors};

use crate::pixels::{Pixels, TokenLimits, max_image_tokens};
use arch::{Images, Spec};

pub use arch::Projector;
pub use hparams::{Feature, Hparams, Windows};
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
    /// Row that follows every line of image tokens but the last.
    row_end: Option<Vec<f32>>,
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
        let ropes = hparams.projector.spec().rotation.ropes(hparams.head_dim());
        let caches = graph::caches(&hparams);
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
            row_end: weights.row_end,
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

    pub(crate) fn spec(&self) -> &'static Spec {
        self.hparams.projector.spec()
    }

    /// Returns the order of the rows for an image, or a tile, of this many pixels; `None` if these
    /// are no whole image tokens.
    pub fn layout(&self, width: usize, height: usize) -> Option<Layout> {
        let (h, unit) = (&self.hparams, self.hparams.unit());
        let [nx, ny] = match self.spec().images {
            Images::Dynamic { .. } => {
                let is_whole = |side: usize| side > 0 && side.is_multiple_of(unit);
                if !is_whole(width) || !is_whole(height) {
                    return None;
                }
                [width / unit, height / unit]
            }
            Images::Square | Images::Tiles(_) => {
                if [width, height] != [h.image_size; 2] {
                    return None;
                }
                [h.image_size / h.patch / h.merge; 2]
            }
        };
        let side = h.windows.map(|windows| windows.side);
        let layout = Layout::new(nx, ny, h.merge, side).with_extra_rows(h.extra_rows());
        Some(match self.spec().drops_first_row {
            true => layout.without_first_row(),
            false => layout,
        })
    }

    /// Returns the input of the graph for an image: the values of its patches, in this order.
    pub fn patches(&self, layout: &Layout, pixels: Pixels<'_>) -> Vec<f32> {
        let mut values = layout.pixels(pixels.planes, pixels.width, self.hparams.patch);
        if self.spec().centred {
            values.iter_mut().for_each(|x| *x = 2.0 * *x - 1.0);
        }
        values
    }

    /// Returns the rows of the graph's result, one for each image token, in the order in which a
    /// text model reads them, with all that stands between them.
    pub(crate) fn in_order(&self, layout: &Layout, rows: &[f32]) -> Vec<f32> {
        layout.in_raster_order(rows, self.width(), self.row_end.as_deref())
    }

    /// Returns the minimum and maximum number of tokens of an image of any size, with these limits
    /// asked for; no matter where an encoder computes one size alone.
    pub fn token_limits(&self, asked: TokenLimits) -> [usize; 2] {
        match self.spec().images {
            Images::Dynamic { min, max, .. } => TokenLimits::or([min, max], asked),
            Images::Square | Images::Tiles(_) => [0, usize::MAX],
        }
    }

    /// Returns the maximum number of image tokens of an image, or of each of its tiles, within
    /// these limits.
    pub fn max_image_tokens(&self, limits: TokenLimits) -> usize {
        let h = &self.hparams;
        match self.spec().images {
            Images::Dynamic { cut, .. } => {
                let of_tile = cut.map_or(0, |cut| (cut.side / h.unit()).pow(2));
                max_image_tokens(self.token_limits(limits)[1]).max(of_tile)
            }
            Images::Square | Images::Tiles(_) => (h.image_size / h.patch / h.merge).pow(2),
        }
    }

    /// Returns the limits a backend must support: one step, with an image of at most
    /// `max_image_tokens` tokens.
    pub fn limits(&self, max_image_tokens: usize) -> Limits {
        let rows = max_image_tokens * self.hparams.merge.pow(2) + self.hparams.extra_rows();
        Limits {
            rows,
            outputs: rows,
            sequences: 1,
            positions: rows,
            n_pages: rows.div_ceil(PAGE_POSITIONS),
            states: 0,
        }
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
