//! Inputs of the weight matrices on a calibration text.

use std::collections::HashMap;

use super::Error;
use crate::imatrix::readers;
use octavo_engine::backend::{Phase, TapView};
use octavo_engine::{Engine, LogitsFor};
use octavo_text::tokenizer::EncodeOptions;

/// Input rows that quantization errors are measured on.
const SAMPLE: usize = 128;
/// Tokens per calibration pass.
const CHUNK: usize = 512;
/// Fewest calibration tokens; mean magnitudes of fewer are mostly noise.
const FEWEST: usize = 256;

/// Input statistics of one matrix.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Values per row.
    pub width: usize,
    /// Mean magnitude of each value, `[width]`.
    pub magnitude: Vec<f32>,
    /// Sampled rows, `[rows][width]`.
    pub sample: Vec<f32>,
    /// Rows seen so far.
    pub(super) rows: usize,
}

/// Input statistics of every matrix.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    by_matrix: HashMap<String, usize>,
    inputs: Vec<Inputs>,
}

impl Activations {
    /// Runs the text through the model. `progress` receives (tokens done, tokens in all).
    ///
    /// # Errors
    /// A text that is too short or cannot be encoded.
    pub fn of_text(
        engine: &Engine,
        text: &[u8],
        max_tokens: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Activations, Error> {
        let options = EncodeOptions::PIECE;
        let mut tokens = engine
            .tokenizer()
            .encode(text, options)
            .map_err(octavo_engine::Error::from)?;
        if tokens.len() < FEWEST {
            return Err(Error::TooShort {
                got: tokens.len(),
                expected: FEWEST,
            });
        }
        tokens.truncate(max_tokens);
        // sample rows at an even stride, so that they come from all parts of the text
        let stride = (tokens.len() / SAMPLE).max(1);
        let mut all = Activations::default();
        let places: HashMap<_, usize> = readers(engine, false)
            .into_iter()
            .enumerate()
            .map(|(i, (tap, names))| {
                all.inputs.push(Inputs::default());
                all.by_matrix
                    .extend(names.into_iter().map(|name| (name, i)));
                (tap, i)
            })
            .collect();
        let chunk = CHUNK.min(engine.n_ctx());
        for (i, part) in tokens.chunks(chunk).enumerate() {
            progress((i * chunk) as u64, tokens.len() as u64);
            let inputs = &mut all.inputs;
            let mut look = |view: &TapView<'_>| {
                if let Some(at) = places.get(&view.tap) {
                    inputs[*at].add(view, stride);
                }
            };
            let mut session = engine.session();
            session.eval_with(
                part,
                Phase::Prefill,
                LogitsFor::All,
                Some(&mut look),
                &mut |_, _| {},
            )?;
        }
        for inputs in &mut all.inputs {
            let rows = inputs.rows.max(1) as f32;
            inputs.magnitude.iter_mut().for_each(|m| *m /= rows);
        }
        Ok(all)
    }

    /// Returns the inputs of a matrix.
    pub fn of(&self, matrix: &str) -> Option<&Inputs> {
        self.inputs.get(*self.by_matrix.get(matrix)?)
    }
}

impl Inputs {
    fn add(&mut self, view: &TapView<'_>, stride: usize) {
        self.width = view.width;
        self.magnitude.resize(view.width, 0.0);
        for row in view.data.chunks_exact(view.width.max(1)) {
            self.magnitude
                .iter_mut()
                .zip(row)
                .for_each(|(sum, x)| *sum += x.abs());
            if self.rows.is_multiple_of(stride) {
                self.sample.extend_from_slice(row);
            }
            self.rows += 1;
        }
    }
}
