//! Assistant: drafts tokens from the hidden states and the KV cache of its target.
//!
//! All tokens of a draft stand at the position after the cache: only the token and the hidden state
//! change, which is the model's own for the first, and the assistant's for the others.

use std::time::Instant;

use super::Target;
use super::draft_model::{Cost, Drafted};
use crate::backend::TapSink;
use crate::engine::Engine;
use crate::error::Error;
use crate::image_registry::is_image_token;
use crate::model_runner::{AssistantInput, AssistantOutput};

/// Drafts tokens for one text.
pub(super) struct AssistantSession {
    engine: Engine,
    /// Number of tokens of the text up to which hidden states were seen.
    known: usize,
    /// Hidden state of the last of them, `[n_embd]` of the target.
    hidden: Vec<f32>,
    cost: Cost,
}

impl AssistantSession {
    /// Starts to draft for one text with an assistant.
    pub(super) fn new(engine: &Engine) -> AssistantSession {
        AssistantSession {
            engine: engine.clone(),
            known: 0,
            hidden: Vec::new(),
            cost: Cost::default(),
        }
    }

    /// Returns its measured cost.
    pub(super) fn cost(&mut self) -> &mut Cost {
        &mut self.cost
    }

    /// Takes the model's hidden states from position `start` on, `[rows][n_embd]`.
    pub(super) fn observe(&mut self, start: usize, rows: &[f32]) {
        let width = self.engine.hparams().n_embd_target;
        if let Some(last) = rows.chunks_exact(width).next_back() {
            self.known = start + rows.len() / width;
            self.hidden = last.to_vec();
        }
    }

    /// Forgets the text: it begins differently.
    pub(super) fn begin_anew(&mut self) {
        (self.known, self.hidden) = (0, Vec::new());
    }

    /// Drafts at most `n` tokens after a text, each the most likely one; none if its cache or the
    /// hidden state before its last token is not known.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn propose(
        &mut self,
        text: &[u32],
        target: Target<'_>,
        n: usize,
    ) -> Result<Drafted, Error> {
        let mut drafted = Drafted::default();
        let is_known = self.known > 0 && self.known + 1 == text.len();
        let Some(mut token) = text.last().copied().filter(|id| !is_image_token(*id)) else {
            return Ok(drafted);
        };
        if n == 0 || !is_known || target.kv.len() != self.known {
            return Ok(drafted);
        }
        let begun = Instant::now();
        let mut hidden = self.hidden.clone();
        while drafted.tokens.len() < n {
            let output = target.assisted(&self.engine, (token, &hidden), None)?;
            // a draft that cannot be computed is none
            let Some(next) = output.token else { break };
            drafted.tokens.push(next);
            (token, hidden) = (next, output.hidden);
        }
        let n = drafted.tokens.len().max(1);
        drafted.seconds = self.cost.took(n, begun.elapsed().as_secs_f64());
        Ok(drafted)
    }
}

impl Engine {
    /// Returns the embedding of a token with its factor, `[n_embd]`.
    fn scaled_embedding(&self, token: u32) -> Vec<f32> {
        let model = self.model();
        let table = model.weights.matrix(model.weights.token_embd);
        let (row, mut room) = (table.n_bytes() / table.rows as usize, Vec::new());
        let start = token as usize * row;
        let bytes = table.read(self.gguf(), start..start + row, &mut room);
        let mut values = vec![0.0; table.cols as usize];
        let decoded = octavo_quant::dequantize(table.ty, bytes, &mut values);
        decoded.expect("a bound table is of a known type");
        let factor = model.hparams.factors.embedding;
        values.iter_mut().for_each(|value| *value *= factor);
        values
    }
}

impl Target<'_> {
    /// Computes a token after the text with an assistant.
    pub(crate) fn assisted(
        &self,
        assistant: &Engine,
        (token, hidden): (u32, &[f32]),
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<AssistantOutput, Error> {
        let rows = [&self.engine.scaled_embedding(token)[..], hidden].concat();
        let input = AssistantInput {
            kv: self.kv,
            rows: &rows,
        };
        let mut target = self.engine.runner();
        assistant.runner().assist(&mut target, &input, tap)
    }
}
