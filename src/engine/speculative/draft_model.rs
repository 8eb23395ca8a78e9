//! Draft model: a smaller model of the same vocabulary that proposes how a text may go on.

use std::time::Instant;

use octavo_kernels::Phase;

use super::MAX_DRAFT_TOKENS;
use super::cost_model::{capped, updated_mean};
use crate::engine::Engine;
use crate::error::Error;
use crate::session::{LogitsFor, Session};

impl Engine {
    /// Sets the draft model for speculative decoding, for all generations from now on: a smaller
    /// model of the same vocabulary, this model's own MTP layer
    /// ([`ModelSource::MtpLayer`](crate::ModelSource)) or its assistant
    /// ([`ModelSource::Assistant`](crate::ModelSource)), for which it must keep its hidden
    /// states ([`EngineOptions::keep_hidden`](crate::EngineOptions)). Drafts change no generated
    /// token. Only the first call has an effect.
    ///
    /// # Errors
    /// [`Error::OtherVocabulary`] if the two do not have the same tokens, [`Error::NoLogits`] if it
    /// is no model that generates text, [`Error::OtherTarget`] if it is an MTP layer or assistant
    /// that cannot read this model's hidden states, [`Error::AssistantCache`] if it is an assistant
    /// that cannot read its KV cache.
    pub fn set_draft_model(&self, draft: Engine) -> Result<(), Error> {
        draft.check_logits()?;
        match draft.model() {
            model if model.is_mtp() => self.check_hidden(&draft, draft.hparams().n_embd())?,
            model if model.is_assistant() => self.check_assistant(&draft)?,
            _ => {}
        }
        let (own, other) = (draft.tokenizer(), self.tokenizer());
        let n = own.n_vocab().max(other.n_vocab());
        let differs = |id: &u32| own.piece(*id) != other.piece(*id);
        match (0..n as u32).find(differs) {
            None => {
                self.draft().get_or_init(|| draft);
                Ok(())
            }
            Some(id) => Err(Error::OtherVocabulary {
                draft: draft.gguf().name().to_owned(),
                file: self.gguf().name().to_owned(),
                id,
            }),
        }
    }

    /// Checks that an assistant can read this model's hidden states and KV cache.
    fn check_assistant(&self, assistant: &Engine) -> Result<(), Error> {
        self.check_hidden(assistant, assistant.hparams().n_embd_target)?;
        let has_layers_alike = assistant.hparams().caches == self.hparams().caches;
        let mut runner = self.runner();
        match has_layers_alike && assistant.runner().can_assist(&mut runner) {
            true => Ok(()),
            false => Err(Error::AssistantCache {
                draft: assistant.gguf().name().to_owned(),
                file: self.gguf().name().to_owned(),
                device: self.describe().to_owned(),
            }),
        }
    }

    /// Checks that this model keeps hidden states of as many values as an MTP layer or an assistant
    /// expects.
    fn check_hidden(&self, layer: &Engine, expected: usize) -> Result<(), Error> {
        let kept = self.model().graph.kept;
        let width = kept.map_or(0, |_| self.hparams().n_embd());
        match width == expected {
            true => Ok(()),
            false => Err(Error::OtherTarget {
                draft: layer.gguf().name().to_owned(),
                file: self.gguf().name().to_owned(),
                expected,
                width,
            }),
        }
    }

    /// Returns the draft model, if there is one.
    pub fn draft_model(&self) -> Option<&Engine> {
        self.draft().get()
    }
}

/// Drafts tokens for one text.
pub(super) struct DraftSession {
    session: Session,
    cost: Cost,
}

/// Draft tokens, and their time.
#[derive(Default)]
pub(super) struct Drafted {
    pub(super) tokens: Vec<u32>,
    /// Seconds that they took, capped at what draft tokens usually take.
    pub(super) seconds: f64,
}

impl DraftSession {
    /// Starts to draft for one text.
    pub(super) fn new(draft: &Engine) -> DraftSession {
        DraftSession {
            session: draft.session(),
            cost: Cost::default(),
        }
    }

    /// Returns its measured cost.
    pub(super) fn cost(&mut self) -> &mut Cost {
        &mut self.cost
    }

    /// Computes a text, but for a few last tokens of it that [`DraftSession::propose`] adds, and of
    /// a text that is new to it but for the last one. That takes long for a prompt, once.
    ///
    /// # Errors
    /// If the device fails.
    fn read(&mut self, text: &[u32]) -> Result<(), Error> {
        if text.len() >= self.session.n_ctx() {
            return Ok(());
        }
        let held = self.session.truncate_to_prefix(text);
        let last = text.len().saturating_sub(1);
        // the new tokens beside the last one are mostly the drafts before: one step computes both
        if text.len() - held > MAX_DRAFT_TOKENS || held == 0 && last > 0 {
            self.session
                .eval(&text[held..last], Phase::Prefill, LogitsFor::None)?;
        }
        Ok(())
    }

    /// Drafts `n` tokens after a text, each the most likely one. The first time this computes the
    /// whole text.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn propose(&mut self, text: &[u32], n: usize) -> Result<Drafted, Error> {
        // the prefill of a prompt is the price of having a draft model, whatever is drafted then
        self.read(text)?;
        let n = n.min(self.session.n_ctx().saturating_sub(text.len()));
        let (mut tokens, mut seconds) = (Vec::with_capacity(n), 0.0);
        if n > 0 {
            let new = &text[self.session.tokens().len()..];
            let start = Instant::now();
            let mut next = self.session.eval_argmax(new, Phase::Decode)?;
            tokens.push(next);
            while tokens.len() < n {
                next = self.session.eval_argmax(&[next], Phase::Decode)?;
                tokens.push(next);
            }
            seconds = self.cost.took(n, start.elapsed().as_secs_f64());
        }
        Ok(Drafted { tokens, seconds })
    }
}

/// Measured cost of draft tokens.
#[derive(Default)]
pub(super) struct Cost {
    /// Seconds that a draft token takes; `None` if that is not known.
    each: Option<f64>,
    /// There has been a draft: the first takes long, as a first step does.
    is_warm: bool,
    /// Drafts that were not worth their time since the last one that was made.
    declined: usize,
}

/// Number of drafts not worth their time after which the cost is measured anew: the machine may
/// have had other work.
const ANEW: usize = 32;

impl Cost {
    /// Returns the seconds that a draft token takes, 0 if that is not known.
    pub(super) fn each(&self) -> f64 {
        self.each.unwrap_or(0.0)
    }

    /// Records that `n` draft tokens took `seconds`; returns how many of these count.
    pub(super) fn took(&mut self, n: usize, seconds: f64) -> f64 {
        self.declined = 0;
        if !std::mem::replace(&mut self.is_warm, true) {
            return 0.0;
        }
        let seen = seconds / n as f64;
        let (each, counts) = match self.each {
            None => (seen, seen),
            Some(mean) => (updated_mean(mean, seen), capped(mean, seen)),
        };
        self.each = Some(each);
        counts * n as f64
    }

    /// Records once more that a draft was not worth its time.
    pub(super) fn decline(&mut self) {
        self.declined += 1;
        if self.declined == ANEW {
            (self.each, self.declined) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_once_is_not_what_drafts_take() {
        let mut cost = Cost::default();
        assert_eq!((cost.took(3, 0.13), cost.each), (0.0, None));
        assert_eq!((cost.took(4, 0.02), cost.each), (0.02, Some(0.005)));
        assert_eq!(cost.took(1, 1.0), 0.01);
        assert!(cost.each.is_some_and(|each| (each - 0.006).abs() < 1e-9));
    }

    #[test]
    fn who_was_declined_for_long_is_measured_anew() {
        let mut cost = Cost::default();
        (0..2).for_each(|_| assert!(cost.took(1, 0.05) < 0.06));
        (1..ANEW).for_each(|_| cost.decline());
        assert_eq!(cost.each, Some(0.05));
        cost.decline();
        assert_eq!(cost.each, None);
        assert_eq!((cost.took(1, 0.003), cost.each), (0.003, Some(0.003)));
    }
}
