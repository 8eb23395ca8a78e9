//! Chooses the next token, or proposes several candidates, each of which a sequence of its own can
//! go on with (beam search).

use std::collections::VecDeque;

use super::{FinishReason, GenerationError, TextDecoder, Vocabulary};
use crate::sample::{Among, Logprobs, SampleError, TokenSet, all_logprobs, logprobs};

/// A candidate for the next token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    /// Natural log-probability among all tokens that may be next.
    pub(crate) logprob: f64,
    /// Log-probabilities to record, if asked for.
    pub(crate) recorded: Option<Logprobs>,
}

impl TextDecoder {
    /// Returns the `n` best candidates after this output, the best first; none if no token is left,
    /// or if it ends here because `max_tokens` is 0.
    ///
    /// # Errors
    /// If a logit is not finite, or the constraint gives up.
    pub(crate) fn candidates(
        &mut self,
        logits: &[f32],
        n: usize,
        vocabulary: &dyn Vocabulary,
    ) -> Result<Vec<Candidate>, GenerationError> {
        if self.options.max_tokens == Some(0) {
            self.end(FinishReason::Length);
            return Ok(Vec::new());
        }
        let allowed = self.allowed()?;
        let banned = self.banned(vocabulary);
        let among = Among {
            allowed: allowed.as_ref(),
            banned: &banned,
        };
        let best = self.sampler.best_among(logits, among, n)?;
        let recorded = match self.options.logprobs {
            Some(n_top) => {
                let ids: Vec<u32> = best.iter().map(|(id, _)| *id).collect();
                let all = all_logprobs(logits, &ids, n_top)?;
                all.into_iter().map(Some).collect()
            }
            None => vec![None; best.len()],
        };
        let both = best.into_iter().zip(recorded);
        let candidate = |((id, logprob), recorded)| Candidate {
            id,
            logprob,
            recorded,
        };
        Ok(both.map(candidate).collect())
    }

    /// Returns whether this token would end it, whatever limits say.
    pub(crate) fn would_end(&self, id: u32, vocabulary: &dyn Vocabulary) -> bool {
        if self.ends(id, vocabulary) {
            return true;
        }
        let may_end = self.generated.len() >= self.options.min_tokens;
        if !may_end || self.options.stop.is_empty() || !self.shows(id, vocabulary) {
            return false;
        }
        let text = self.utf8.clone().push(vocabulary.piece(id));
        self.stops.clone().push(&text).stop.is_some()
    }

    /// Returns a copy that goes on with one of the candidates.
    ///
    /// # Errors
    /// If its constraint does not allow the token.
    pub(crate) fn followed_by(
        &self,
        candidate: Candidate,
        vocabulary: &dyn Vocabulary,
    ) -> Result<TextDecoder, GenerationError> {
        let mut next = self.fork();
        next.take(candidate.id, candidate.recorded, vocabulary)?;
        Ok(next)
    }

    /// Chooses the token after this output; returns it with what is recorded of it, or `None` if
    /// the constraint wants the text to end here.
    ///
    /// # Errors
    /// If none can be chosen.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        vocabulary: &dyn Vocabulary,
    ) -> Result<Option<(u32, Option<Logprobs>)>, GenerationError> {
        let mut allowed = self.allowed()?;
        let constraint = self.constraint.as_ref();
        let may_close = constraint.is_some_and(|constraint| constraint.closes_at_end());
        if let Some(set) = allowed.as_mut().filter(|_| may_close) {
            vocabulary.eog_ids().iter().for_each(|id| set.insert(*id));
        }
        let banned = self.banned(vocabulary);
        let among = Among {
            allowed: allowed.as_ref(),
            banned: &banned,
        };
        let id = match self.sampler.sample_among(logits, among) {
            // the constraint is fulfilled: no ban on ending can make the text longer
            Err(SampleError::NothingLeft) if self.is_complete(allowed.as_ref(), vocabulary) => {
                return Ok(None);
            }
            chosen => chosen?,
        };
        let is_closed = may_close && vocabulary.eog_ids().contains(&id);
        let constraint = self.constraint.as_mut().filter(|_| is_closed);
        let id = constraint
            .and_then(|constraint| constraint.close())
            .unwrap_or(id);
        let recorded = match self.options.logprobs {
            Some(n) if self.options.logprobs_after_sampling => Some(self.sampler.drawn(id, n)),
            Some(n) => Some(logprobs(logits, id, n)?),
            None => None,
        };
        Ok(Some((id, recorded)))
    }

    /// Returns the tokens that the constraint allows.
    fn allowed(&mut self) -> Result<Option<TokenSet>, SampleError> {
        match &mut self.constraint {
            Some(constraint) => Ok(constraint.allowed()?),
            None => Ok(None),
        }
    }

    /// Returns the tokens that would end the text too early.
    fn banned(&self, vocabulary: &dyn Vocabulary) -> Vec<u32> {
        if self.generated.len() < self.options.min_tokens {
            [vocabulary.eog_ids(), &self.options.stop_ids].concat()
        } else {
            Vec::new()
        }
    }

    /// Returns whether the constraint allows only tokens that end the text.
    fn is_complete(&self, allowed: Option<&TokenSet>, vocabulary: &dyn Vocabulary) -> bool {
        let n_vocab = u32::try_from(self.bounds.n_vocab).unwrap_or(u32::MAX);
        allowed.is_some_and(|set| {
            let mut left = (0..n_vocab).filter(|id| set.contains(*id)).peekable();
            left.peek().is_some() && left.all(|id| self.ends(id, vocabulary))
        })
    }

    fn fork(&self) -> TextDecoder {
        TextDecoder {
            options: self.options.clone(),
            drafts: VecDeque::new(),
            last_was_draft: false,
            sampler: self.sampler.clone(),
            constraint: self.constraint.as_ref().map(|own| own.fork()),
            utf8: self.utf8.clone(),
            stops: self.stops.clone(),
            text: self.text.clone(),
            generated: self.generated.clone(),
            logprobs: self.logprobs.clone(),
            dropped: self.dropped.clone(),
            ..*self
        }
    }
}
