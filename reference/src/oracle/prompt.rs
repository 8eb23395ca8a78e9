//! The input of a model: tokens and image rows.

use super::architecture::Sections;
use super::layer::Shared;
use super::math::{add_bias, add_into, scale};
use super::norms::whole_norm;
use super::per_layer::PerLayer;
use super::rope::Position;
use super::weights::Weights;
use super::{EMBEDDING, Oracle, Tap};
use crate::Error;
use std::collections::BTreeMap;

/// A part of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'p> {
    /// Ids of the vocabulary.
    Tokens(&'p [u32]),
    /// An image, with rows in place of tokens.
    Image(&'p ImageRows),
}

/// The text model's input for an image: rows in raster order. The first `n_embd` values of a row
/// replace a token's embedding; further parts of that width are added to the output of the first
/// layers (deepstack).
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRows {
    nx: usize,
    ny: usize,
    rows: Vec<f64>, // (ny * nx, width)
}

impl ImageRows {
    /// Creates `nx` rows across and `ny` down from `rows`, `(ny * nx, width)` values.
    ///
    /// # Errors
    /// There are no rows, or the number of values is not a multiple of theirs.
    pub fn new(nx: usize, ny: usize, rows: Vec<f64>) -> Result<Self, Error> {
        let n_rows = nx.checked_mul(ny).filter(|&n| n > 0);
        if n_rows.is_none_or(|n| rows.is_empty() || !rows.len().is_multiple_of(n)) {
            return Err(Error::Image {
                expected: format!("whole rows, {nx} across and {ny} down"),
                got: format!("{} values", rows.len()),
            });
        }
        Ok(Self { nx, ny, rows })
    }

    /// Returns the number of rows across.
    pub fn nx(&self) -> usize {
        self.nx
    }

    /// Returns the number of rows down.
    pub fn ny(&self) -> usize {
        self.ny
    }

    /// Returns the width of a row.
    pub fn width(&self) -> usize {
        self.rows.len() / (self.nx * self.ny)
    }

    /// Returns the `(ny * nx, width)` values.
    pub fn rows(&self) -> &[f64] {
        &self.rows
    }
}

impl Piece<'_> {
    /// Returns the number of rows of the text model's input.
    pub fn n_rows(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Image(image) => image.nx * image.ny,
        }
    }

    /// Returns the number of positions: for an image the rows along its longer side.
    pub fn n_positions(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Image(image) => image.nx.max(image.ny),
        }
    }

    /// Returns the position of each of its rows, after `before` earlier positions.
    fn positions(&self, before: usize) -> impl Iterator<Item = Position> {
        (0..self.n_rows()).map(move |row| match self {
            Self::Tokens(_) => [before + row, before + row, before + row, 0],
            Self::Image(image) => {
                let (y, x) = (row / image.nx, row % image.nx);
                [before, before + y, before + x, 0]
            }
        })
    }
}

/// The residual stream before the first layer.
pub(super) struct Start {
    /// `(n_rows, n_embd)`
    pub(super) x: Vec<f64>,
    /// Deepstack values: for each of the first layers `(n_rows, n_embd)`, added to its output; zero
    /// for tokens.
    pub(super) deep: Vec<Vec<f64>>,
    pub(super) shared: Shared,
}

impl Oracle<'_> {
    /// Returns the positions of all rows of a prompt. A token's is the number of positions before
    /// it, on every axis. An image's rows have that number in time, and count up from it in height
    /// and width.
    pub fn positions(pieces: &[Piece<'_>]) -> Vec<Position> {
        let mut before = 0;
        let mut positions = Vec::new();
        for piece in pieces {
            positions.extend(piece.positions(before));
            before += piece.n_positions();
        }
        positions
    }

    /// Computes the residual stream before the first layer from tokens and images.
    pub(super) fn embed(
        &self,
        weights: &Weights<'_>,
        pieces: &[Piece<'_>],
        positions: &[Position],
        tap: &mut Tap<'_>,
    ) -> Result<Start, Error> {
        let hp = &self.hparams;
        self.check_pieces(pieces, positions)?;
        let (mut x, deep) = self.rows_of_pieces(weights, pieces)?;
        let names = hp.architecture.names;
        if names.scaled_embedding.is_some() {
            tap(names.embedding, None, hp.n_embd, &mut x);
        }
        self.add_embedded(weights, &mut x)?;
        let rows = PerLayer::select(hp, weights, self.n_vocab, &all_tokens(pieces), tap)?;
        scale(&mut x, hp.factors.embedding);
        let name = names.scaled_embedding.unwrap_or(names.embedding);
        tap(name, None, hp.n_embd, &mut x);
        if let Some(named) = hp.architecture.embedding_norm {
            x = whole_norm(hp, weights, "token_embd_norm", hp.n_embd, &x)?;
            if named {
                tap("inp_norm", Some(0), hp.n_embd, &mut x);
            }
        }
        if hp.architecture.embedded.is_some() && !hp.architecture.causal {
            x = whole_norm(hp, weights, "token_embd_norm", hp.n_embd, &x)?;
            // llama.cpp's name has a layer number
            tap("inp_norm", Some(0), hp.n_embd, &mut x);
        }
        let shared = Shared {
            kept: BTreeMap::new(),
            per_layer: rows.map(|rows| PerLayer::new(rows, x.clone())),
            positions: positions.to_vec(),
            first_values: None,
            seen: None,
        };
        Ok(Start { x, deep, shared })
    }

    fn check_pieces(&self, pieces: &[Piece<'_>], positions: &[Position]) -> Result<(), Error> {
        let hp = &self.hparams;
        let width = hp.n_embd * (1 + hp.n_deepstack);
        for piece in pieces {
            let Piece::Image(image) = piece else {
                continue;
            };
            if hp.architecture.sections == Sections::None {
                return Err(Error::Image {
                    expected: format!("none for {}", hp.architecture.name),
                    got: "one".into(),
                });
            }
            if image.width() != width {
                return Err(Error::Image {
                    expected: format!("rows of {width} values"),
                    got: image.width().to_string(),
                });
            }
        }
        let n_rows = pieces.iter().map(Piece::n_rows).sum();
        if positions.len() != n_rows {
            return Err(Error::Length {
                what: "positions",
                expected: n_rows,
                got: positions.len(),
            });
        }
        Ok(())
    }

    /// Returns the stream, and the deepstack values.
    fn rows_of_pieces(
        &self,
        weights: &Weights<'_>,
        pieces: &[Piece<'_>],
    ) -> Result<(Vec<f64>, Vec<Vec<f64>>), Error> {
        let hp = &self.hparams;
        let embedding = weights.matrix(EMBEDDING, hp.n_embd, self.n_vocab)?;
        let mut x = Vec::new();
        let mut deep = vec![Vec::new(); hp.n_deepstack];
        for piece in pieces {
            match piece {
                Piece::Tokens(tokens) => {
                    for &id in *tokens {
                        let row = embedding.row(id as usize).ok_or(Error::Token {
                            index: x.len() / hp.n_embd,
                            id,
                            n_vocab: self.n_vocab,
                        })?;
                        x.extend(row.iter().map(|&v| f64::from(v)));
                    }
                    deep.iter_mut().for_each(|deep| deep.resize(x.len(), 0.0));
                }
                Piece::Image(image) => {
                    for row in image.rows.chunks(image.width()) {
                        let (first, others) = row.split_at(hp.n_embd);
                        x.extend(first);
                        let others = others.chunks(hp.n_embd);
                        deep.iter_mut()
                            .zip(others)
                            .for_each(|(deep, own)| deep.extend(own));
                    }
                }
            }
        }
        Ok((x, deep))
    }

    /// Adds embeddings of token types and positions to those of tokens.
    fn add_embedded(&self, weights: &Weights<'_>, x: &mut [f64]) -> Result<(), Error> {
        let (hp, n_tokens) = (&self.hparams, x.len() / self.hparams.n_embd);
        if let Some(n) = hp.rows.and_then(|rows| rows.n_token_types) {
            // every token has the first type
            if let Some(types) = weights.rows("token_types.weight", hp.n_embd, n)? {
                add_bias(x, types.get(..hp.n_embd).unwrap_or(&[]));
            }
        }
        if let Some(n) = hp.n_positions {
            if n_tokens > n {
                return Err(Error::Positions {
                    expected: n,
                    got: n_tokens,
                });
            }
            let positions = weights.required_rows("position_embd.weight", hp.n_embd, n)?;
            let positions = positions.get(..x.len()).unwrap_or(&[]);
            add_into(x, positions);
        }
        Ok(())
    }
}

fn all_tokens(pieces: &[Piece<'_>]) -> Vec<u32> {
    let tokens = pieces.iter().map(|piece| match piece {
        Piece::Tokens(tokens) => *tokens,
        Piece::Image(_) => &[],
    });
    tokens.flatten().copied().collect()
}
