//! Targets of a comparison, and their inputs.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use octavo_engine::ImageRegistry;
use octavo_model::{Model, Network};
use octavo_vision::Tower;
use octavo_vision::pixels::{DecodedImage, Prepared, TokenLimits};

use super::Error;

/// Input of an execution.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A text, for a language model.
    Text(Text<'a>),
    /// An image, for a vision tower.
    Image(ImageInput<'a>),
}

/// A text; image tokens may be among its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Token ids, in order.
    pub tokens: &'a [u32],
    /// Images that the image tokens refer to.
    pub images: &'a ImageRegistry,
}

/// An image.
#[derive(Clone, Copy, Debug)]
pub struct ImageInput<'a> {
    /// The decoded image.
    pub image: &'a DecodedImage,
    /// Limits on its number of image tokens.
    pub token_limits: TokenLimits,
}

/// Empty image registry, for texts alone.
static NO_IMAGES: LazyLock<ImageRegistry> = LazyLock::new(ImageRegistry::default);

impl<'a> From<&'a [u32]> for Input<'a> {
    /// Makes an input of a text without images.
    fn from(tokens: &'a [u32]) -> Input<'a> {
        Input::Text(Text {
            tokens,
            images: &NO_IMAGES,
        })
    }
}

impl<'a> Input<'a> {
    /// Returns the token ids; empty for an image.
    pub fn tokens(&self) -> &'a [u32] {
        match self {
            Input::Text(text) => text.tokens,
            Input::Image(_) => &[],
        }
    }

    /// Returns the text, or an error for a model that takes text but got an image.
    pub(super) fn text(self, file: &str) -> Result<Text<'a>, Error> {
        match self {
            Input::Text(text) => Ok(text),
            Input::Image(_) => Err(Error::Input {
                file: file.to_owned(),
                expected: "a text",
            }),
        }
    }

    /// Returns the image, or an error for a tower that got a text.
    pub(super) fn image(self, file: &str) -> Result<ImageInput<'a>, Error> {
        match self {
            Input::Image(image) => Ok(image),
            Input::Text(_) => Err(Error::Input {
                file: file.to_owned(),
                expected: "an image",
            }),
        }
    }
}

/// The network that is computed.
#[derive(Clone, Debug)]
pub enum Target {
    /// A language model: computes logits or embeddings of a text.
    Model(Arc<Model>),
    /// A vision tower: computes rows of image embeddings for a text model.
    Tower(Arc<Tower>),
}

impl Target {
    /// Returns the graph and its weights.
    pub fn network(&self) -> &dyn Network {
        match self {
            Target::Model(model) => &**model,
            Target::Tower(tower) => &**tower,
        }
    }

    /// Returns the properties that two files of one model must share: name and value.
    pub(super) fn shape(&self) -> Vec<(&'static str, String)> {
        match self {
            Target::Model(model) => {
                let h = &model.hparams;
                vec![
                    ("architecture", h.arch.name().to_owned()),
                    ("layers", h.n_layer().to_string()),
                    ("embedding width", h.n_embd().to_string()),
                    ("vocabulary", h.n_vocab().to_string()),
                ]
            }
            Target::Tower(tower) => {
                let h = &tower.hparams;
                vec![
                    ("architecture", h.projector.name().to_owned()),
                    ("blocks", h.n_block.to_string()),
                    ("width", h.n_embd.to_string()),
                    ("pixels of a patch", h.patch.to_string()),
                    ("width of what it gives", tower.width().to_string()),
                ]
            }
        }
    }

    /// Returns the length of a row of logits, if there are any.
    pub(super) fn n_vocab(&self) -> Option<usize> {
        match self {
            Target::Model(model) if model.graph.has_logits() => Some(model.hparams.n_vocab()),
            _ => None,
        }
    }

    /// Returns whether positions depend on earlier positions only.
    pub(super) fn is_causal(&self) -> bool {
        match self {
            Target::Model(model) => model.hparams.is_causal(),
            Target::Tower(_) => false,
        }
    }

    /// Prepares the inputs of the graph.
    pub(super) fn graph_inputs(&self, file: &str, input: Input<'_>) -> Result<GraphInputs, Error> {
        match self {
            Target::Model(model) => GraphInputs::text(model, input.text(file)?),
            Target::Tower(tower) => GraphInputs::image(tower, input.image(file)?),
        }
    }
}

/// Inputs of a graph, row by row.
#[derive(Debug, Default)]
pub(super) struct GraphInputs {
    /// Number of rows.
    pub(super) n: usize,
    /// Input rows of a step: patches, for a tower.
    pub(super) rows: Vec<f32>,
    /// Embedding inputs, instead of or added to those of tokens; `None` for a token.
    pub(super) embedding_inputs: Vec<Option<Vec<f32>>>,
    /// Rows of each image whose rows see each other.
    pub(super) images: Vec<Range<usize>>,
}

impl GraphInputs {
    /// Returns the row after the last that `row` sees where rows of an image see each other.
    pub(super) fn image_end(&self, row: usize) -> usize {
        let own = self.images.iter().find(|image| image.contains(&row));
        own.map_or(row + 1, |image| image.end)
    }

    fn text(model: &Model, text: Text<'_>) -> Result<GraphInputs, Error> {
        let scene = text.images.input(&[], text.tokens)?;
        let n = text.tokens.len();
        let mut embedding_inputs = vec![None; n];
        let width = model.graph.embedding_input_width.max(1);
        for part in scene.embedding_inputs() {
            let rows = part.rows.chunks_exact(width).map(<[f32]>::to_vec);
            for (place, row) in embedding_inputs[part.first..].iter_mut().zip(rows) {
                *place = Some(row);
            }
        }
        Ok(GraphInputs {
            n,
            rows: Vec::new(),
            embedding_inputs,
            images: scene.images,
        })
    }

    fn image(tower: &Tower, seen: ImageInput<'_>) -> Result<GraphInputs, Error> {
        let h = &tower.hparams;
        let prepared = Prepared::new(seen.image, h, seen.token_limits)?;
        let pixels = prepared.tiles[0].pixels();
        let layout = tower.layout(pixels.width, pixels.height);
        let layout = layout.expect("prepared for this encoder");
        let n = layout.attended_rows();
        let mut embedding_inputs = vec![None; n];
        if let Some(table) = &tower.positions {
            let rows = table.rows(&layout);
            let rows = rows.chunks_exact(h.n_embd).map(|row| Some(row.to_vec()));
            embedding_inputs = rows.collect();
        }
        Ok(GraphInputs {
            n,
            rows: tower.patches(&layout, pixels),
            embedding_inputs,
            images: Vec::new(),
        })
    }
}
