//! MTP layer: drafts tokens from the hidden states of the model that it belongs to.
//!
//! Its entry at a position is made of the text's token there and of the model's hidden state at the
//! position before. Entries of draft tokens are made of the layer's own output instead, and dropped
//! again. Positions count from the first entry, which need not be the first token of the text:
//! hidden states of tokens that were in the prefix cache are not known, and tokens of images have
//! no embeddings here. Rotary embeddings depend on distances only.

use std::time::Instant;

use octavo_kernels::Phase;

use super::MAX_DRAFT_TOKENS;
use super::draft_model::{Cost, Drafted};
use crate::engine::Engine;
use crate::error::Error;
use crate::image_registry::is_image_token;
use crate::kv::SequenceKv;
use crate::model_runner::{Output, StepInput};
use crate::sample::{OutputNeed, OutputValue};

/// Number of hidden states from which on their entries are made at once, as those of a prompt are.
const MAX_WAITING: usize = 256;

/// Drafts tokens for one text.
pub(super) struct MtpSession {
    engine: Engine,
    kv: SequenceKv,
    /// Position in the text of the first entry.
    first: usize,
    /// Number of entries.
    len: usize,
    /// Hidden states that have no entry yet, `[rows][n_embd]`: the first is that of the position of
    /// the last entry.
    hidden: Vec<f32>,
    cost: Cost,
}

/// The most likely next token, and the hidden state to draft on from, `[n_embd]`.
struct Prediction {
    token: u32,
    hidden: Vec<f32>,
}

impl MtpSession {
    /// Starts to draft for one text with an MTP layer.
    pub(super) fn new(engine: &Engine) -> MtpSession {
        MtpSession {
            // before the first token
            hidden: vec![0.0; engine.hparams().n_embd()],
            engine: engine.clone(),
            kv: SequenceKv::default(),
            first: 0,
            len: 0,
            cost: Cost::default(),
        }
    }

    /// Returns its measured cost.
    pub(super) fn cost(&mut self) -> &mut Cost {
        &mut self.cost
    }

    /// Takes the model's hidden states from position `start` on, `[rows][n_embd]`; `text` has at
    /// least the tokens that they are of.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn observe(
        &mut self,
        text: &[u32],
        start: usize,
        rows: &[f32],
    ) -> Result<(), Error> {
        let known = self.known();
        match known.checked_sub(start) {
            // those of a preempted text come again
            Some(again) => {
                let new = rows.get(again * self.width()..).unwrap_or_default();
                self.hidden.extend_from_slice(new);
            }
            None => {
                self.restart(start + 1);
                self.hidden = rows.to_vec();
            }
        }
        if self.waiting() > MAX_WAITING {
            let end = (self.next() + self.waiting()).min(text.len());
            self.read(text, end)?;
        }
        Ok(())
    }

    /// Drafts at most `n` tokens after a text, each the most likely one; none if the hidden state
    /// before the text's last token is not known.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn propose(&mut self, text: &[u32], n: usize) -> Result<Drafted, Error> {
        let mut drafted = Drafted::default();
        if self.known() + 1 != text.len() {
            return Ok(drafted);
        }
        // the last few entries come with the first draft token
        let last = text.len() - 1;
        if self.waiting() > MAX_DRAFT_TOKENS + 1 {
            self.read(text, last)?;
        }
        self.pass_images(text);
        let new = &text[self.next()..];
        let room = self.engine.n_ctx().saturating_sub(self.len + new.len());
        let n = n.min(room + 1);
        if n == 0 || new.is_empty() || self.len + new.len() > self.engine.n_ctx() {
            return Ok(drafted);
        }
        let begun = Instant::now();
        let hidden = std::mem::take(&mut self.hidden);
        let mut prediction = self.predict(new, &hidden)?;
        self.len += new.len();
        drafted.tokens.push(prediction.token);
        while drafted.tokens.len() < n {
            prediction = self.predict(&[prediction.token], &prediction.hidden)?;
            drafted.tokens.push(prediction.token);
        }
        self.truncate(self.len);
        drafted.seconds = self.cost.took(n, begun.elapsed().as_secs_f64());
        Ok(drafted)
    }

    /// Returns the number of tokens of the text up to which hidden states are known.
    fn known(&self) -> usize {
        (self.next() + self.waiting()).saturating_sub(1)
    }

    /// Returns the position in the text of the next entry.
    fn next(&self) -> usize {
        self.first + self.len
    }

    /// Returns the number of hidden states without an entry.
    fn waiting(&self) -> usize {
        self.hidden.len() / self.width()
    }

    fn width(&self) -> usize {
        self.engine.hparams().n_embd()
    }

    /// Drops all entries; the next is at this position of the text.
    fn restart(&mut self, first: usize) {
        self.truncate(0);
        (self.first, self.len) = (first, 0);
    }

    /// Drops all entries and hidden states: the text begins differently.
    pub(super) fn begin_anew(&mut self) {
        self.restart(0);
        self.hidden = vec![0.0; self.width()];
    }

    /// Begins anew after the last image of the text, if one comes next.
    fn pass_images(&mut self, text: &[u32]) {
        let next = self.next();
        let new = &text[next..(next + self.waiting()).min(text.len())];
        if let Some(image) = new.iter().rposition(|id| is_image_token(*id)) {
            self.hidden.drain(..(image + 1) * self.width());
            self.restart(next + image + 1);
        }
    }

    /// Makes the entries of the text's tokens up to position `end`, as far as the context has room.
    fn read(&mut self, text: &[u32], end: usize) -> Result<(), Error> {
        self.pass_images(text);
        while self.next() < end && self.len < self.engine.n_ctx() {
            let room = self.engine.n_ctx() - self.len;
            let n = (end - self.next()).min(self.engine.batch()).min(room);
            let tokens = &text[self.next()..][..n];
            let rest = self.hidden.split_off(n * self.width());
            let hidden = std::mem::replace(&mut self.hidden, rest);
            let mut input = StepInput {
                hidden: &hidden,
                ..StepInput::new(&mut self.kv, &[], tokens)
            };
            run(&self.engine, Phase::Prefill, &mut input, &mut |_| {})?;
            self.len += n;
        }
        Ok(())
    }

    /// Appends entries, and returns what follows the last one.
    fn predict(&mut self, tokens: &[u32], hidden: &[f32]) -> Result<Prediction, Error> {
        let mut token = None;
        let mut input = StepInput {
            outputs: tokens.len() - 1..tokens.len(),
            need: OutputNeed::Argmax,
            hidden,
            wants_kept: true,
            ..StepInput::new(&mut self.kv, &[], tokens)
        };
        run(&self.engine, Phase::Decode, &mut input, &mut |value| {
            if let OutputValue::Argmax(id) = value {
                token = Some(id);
            }
        })?;
        Ok(Prediction {
            token: token.expect("a step that did not fail has its outputs"),
            hidden: input.kept,
        })
    }

    /// Drops all entries but the first `len`.
    fn truncate(&mut self, len: usize) {
        self.engine.runner().kv_cache.truncate(&mut self.kv, len);
    }
}

/// Runs a step over one input.
fn run(
    engine: &Engine,
    phase: Phase,
    input: &mut StepInput<'_>,
    sink: &mut dyn FnMut(OutputValue<'_>),
) -> Result<(), Error> {
    let mut each = |outputs: Vec<Output<'_>>| {
        outputs.into_iter().for_each(|output| sink(output.value));
    };
    let inputs = std::slice::from_mut(input);
    engine.runner().step(phase, inputs, None, &mut each)?;
    input.failed.take().map_or(Ok(()), Err)
}

impl Drop for MtpSession {
    fn drop(&mut self) {
        self.truncate(0);
    }
}
