//! A smaller model of the same vocabulary that says how a text may go on.

use std::time::Instant;

use octavo_kernels::Role;

use super::MOST_GUESSES;
use crate::{Engine, Error, Session, Wanted};

/// A model that guesses for another.
#[derive(Clone)]
pub struct Draft(Engine);

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Draft").field(&self.0.gguf().name()).finish()
    }
}

impl Draft {
    /// A model that guesses for `engine`.
    ///
    /// # Errors
    /// [`Error::OtherVocabulary`] if the two do not have the same tokens, [`Error::NoLogits`] if it
    /// is no model that goes on with texts.
    pub fn new(draft: Engine, engine: &Engine) -> Result<Draft, Error> {
        draft.check_logits()?;
        let (own, other) = (draft.tokenizer(), engine.tokenizer());
        let n = own.n_vocab().max(other.n_vocab());
        let differs = |id: &u32| own.piece(*id) != other.piece(*id);
        match (0..n as u32).find(differs) {
            None => Ok(Draft(draft)),
            Some(id) => Err(Error::OtherVocabulary {
                draft: draft.gguf().name().to_owned(),
                file: engine.gguf().name().to_owned(),
                id,
            }),
        }
    }

    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.0
    }

    /// Guesses for one text.
    pub(super) fn begin(&self) -> Drafter {
        Drafter {
            session: self.0.session(),
            each: None,
        }
    }
}

/// Guesses for one text.
pub(super) struct Drafter {
    session: Session,
    /// Seconds that a guessed token takes; none before there was one.
    each: Option<f64>,
}

/// What a new measurement makes up of a mean.
const NEWS: f64 = 0.2;

impl Drafter {
    /// Seconds that a guessed token takes.
    pub(super) fn each(&self) -> f64 {
        self.each.unwrap_or(0.0)
    }

    /// Reads a text, but for a few last tokens of it that [`Drafter::guess`] takes along. That is
    /// long for a prompt, once.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn read(&mut self, text: &[u32]) -> Result<(), Error> {
        if text.len() >= self.session.n_ctx() {
            return Ok(());
        }
        let held = self.session.tokens();
        let alike = held.iter().zip(text).take_while(|(a, b)| a == b).count();
        // the last token is always computed: what follows comes of it
        let last = text.len().saturating_sub(1);
        let held = self.session.truncate(alike.min(last));
        // what is new beside the last token is mostly the guess before: one step computes both
        if text.len() - held > MOST_GUESSES {
            self.session
                .eval(&text[held..last], Role::Prompt, Wanted::None)?;
        }
        Ok(())
    }

    /// Guesses how a text that was [read](Drafter::read) goes on: the likeliest token, so many
    /// times.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn guess(&mut self, text: &[u32], n: usize) -> Result<Vec<u32>, Error> {
        let n = n.min(self.session.n_ctx().saturating_sub(text.len()));
        let mut guesses = Vec::with_capacity(n);
        if n == 0 {
            return Ok(guesses);
        }
        let new = &text[self.session.tokens().len()..];
        let start = Instant::now();
        let mut next = self.session.eval_best(new, Role::Generated)?;
        guesses.push(next);
        while guesses.len() < n {
            next = self.session.eval_best(&[next], Role::Generated)?;
            guesses.push(next);
        }
        let each = start.elapsed().as_secs_f64() / n as f64;
        self.each = Some(self.each.map_or(each, |old| old + NEWS * (each - old)));
        Ok(guesses)
    }
}
