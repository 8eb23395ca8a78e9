//! What is computed, and of what.

use std::sync::{Arc, LazyLock};

use octavo_engine::{Error as EngineError, Pictures};
use octavo_model::{Model, Network};
use octavo_vision::Tower;
use octavo_vision::pixels::{Picture, Prepared, TokenLimits};

use super::Error;

/// What goes into an execution.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A text, for a model that reads.
    Text(Text<'a>),
    /// A picture, for a tower.
    Picture(Seen<'a>),
}

/// A text; cells of pictures may be among its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// In order.
    pub tokens: &'a [u32],
    /// Those that are among them.
    pub pictures: &'a Pictures,
}

/// A picture.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// As it was decoded.
    pub picture: &'a Picture,
    /// How many cells it may have.
    pub cells: TokenLimits,
}

/// Of texts alone.
static NO_PICTURES: LazyLock<Pictures> = LazyLock::new(Pictures::default);

impl<'a> From<&'a [u32]> for Input<'a> {
    /// A text without pictures.
    fn from(tokens: &'a [u32]) -> Input<'a> {
        Input::Text(Text {
            tokens,
            pictures: &NO_PICTURES,
        })
    }
}

impl<'a> Input<'a> {
    /// Ids; a picture has none.
    pub fn tokens(&self) -> &'a [u32] {
        match self {
            Input::Text(text) => text.tokens,
            Input::Picture(_) => &[],
        }
    }

    /// The text, for what reads text.
    pub(super) fn text(self, file: &str) -> Result<Text<'a>, Error> {
        match self {
            Input::Text(text) => Ok(text),
            Input::Picture(_) => Err(Error::Input {
                file: file.to_owned(),
                expected: "a text",
            }),
        }
    }

    /// The picture, for what sees.
    pub(super) fn picture(self, file: &str) -> Result<Seen<'a>, Error> {
        match self {
            Input::Picture(picture) => Ok(picture),
            Input::Text(_) => Err(Error::Input {
                file: file.to_owned(),
                expected: "a picture",
            }),
        }
    }
}

/// What is computed.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Logits, or rows, of a text.
    Model(Arc<Model>),
    /// Rows of a picture, for a text model.
    Tower(Arc<Tower>),
}

impl Subject {
    /// The graph and what it computes with.
    pub fn network(&self) -> &dyn Network {
        match self {
            Subject::Model(model) => &**model,
            Subject::Tower(tower) => &**tower,
        }
    }

    /// What two files of one model have in common: what it is called, and what it is.
    pub(super) fn shape(&self) -> Vec<(&'static str, String)> {
        match self {
            Subject::Model(model) => {
                let h = &model.hparams;
                vec![
                    ("architecture", h.arch.name().to_owned()),
                    ("layers", h.n_layer().to_string()),
                    ("embedding width", h.n_embd().to_string()),
                    ("vocabulary", h.n_vocab().to_string()),
                ]
            }
            Subject::Tower(tower) => {
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

    /// Values of a row of logits, if it gives any.
    pub(super) fn n_vocab(&self) -> Option<usize> {
        match self {
            Subject::Model(model) if model.graph.has_logits() => Some(model.hparams.n_vocab()),
            _ => None,
        }
    }

    /// Whether a position has nothing of those behind it.
    pub(super) fn is_causal(&self) -> bool {
        match self {
            Subject::Model(model) => model.hparams.is_causal(),
            Subject::Tower(_) => false,
        }
    }

    /// What its graph begins with.
    pub(super) fn entering(&self, file: &str, input: Input<'_>) -> Result<Entering, Error> {
        match self {
            Subject::Model(model) => Entering::text(model, input.text(file)?),
            Subject::Tower(tower) => Entering::picture(tower, input.picture(file)?),
        }
    }
}

/// What enters a graph, row by row.
#[derive(Debug, Default)]
pub(super) struct Entering {
    /// How many rows.
    pub(super) n: usize,
    /// Those that come with a step: of a tower, patches.
    pub(super) rows: Vec<f32>,
    /// Those in the place of embeddings, or added; `None` where a token stands.
    pub(super) given: Vec<Option<Vec<f32>>>,
}

impl Entering {
    fn text(model: &Model, text: Text<'_>) -> Result<Entering, Error> {
        let scene = text.pictures.scene(&[], text.tokens);
        let scene = scene.map_err(|id| EngineError::NotShown { id })?;
        let n = text.tokens.len();
        let mut given = vec![None; n];
        let width = model.graph.given.max(1);
        for part in scene.given() {
            let rows = part.rows.chunks_exact(width).map(<[f32]>::to_vec);
            for (place, row) in given[part.first..].iter_mut().zip(rows) {
                *place = Some(row);
            }
        }
        Ok(Entering {
            n,
            rows: Vec::new(),
            given,
        })
    }

    fn picture(tower: &Tower, seen: Seen<'_>) -> Result<Entering, Error> {
        let h = &tower.hparams;
        let prepared = Prepared::new(seen.picture, h, seen.cells)?;
        let pixels = prepared.pixels();
        let cells = [pixels.width, pixels.height].map(|side| side / h.unit());
        let layout = tower.layout(cells[0], cells[1]);
        let n = layout.places.len();
        let mut given = vec![None; n];
        if let Some(table) = &tower.positions {
            let rows = table.rows(&layout);
            let rows = rows.chunks_exact(h.n_embd).map(|row| Some(row.to_vec()));
            given = rows.collect();
        }
        Ok(Entering {
            n,
            rows: layout.pixels(pixels.planes, h.patch),
            given,
        })
    }
}
