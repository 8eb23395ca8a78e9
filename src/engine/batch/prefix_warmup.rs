//! Prefix warm-up: computes finished texts as prompts while there is nothing else to do.
//!
//! Keys and values of generated tokens have other bits than those of the same tokens computed as a
//! prompt, so no prompt begins with them. A continued chat sends the last answer as a part of the
//! next prompt, and would wait for its prefill. Computed as a prompt before that, it comes from the
//! prefix cache with the very bits that it would have had.

use std::collections::VecDeque;

use octavo_kernels::Phase;

use crate::error::Error;
use crate::image_registry::with_whole_images;
use crate::kv::{PAGE, SequenceKv};
use crate::model_runner::{ModelRunner, StepInput};
use crate::scheduler::Asked;

/// Maximum number of waiting texts: more are not worth the memory, and the latest are continued
/// most likely.
const TEXTS: usize = 16;

/// Tokens computed at a time. A request that arrives meanwhile waits for these.
const CHUNK: usize = 64;

/// Finished texts to compute, the latest last.
#[derive(Default)]
pub(super) struct PrefixWarmup(VecDeque<Finished>);

/// A prompt and its answer, cut to full pages.
struct Finished {
    text: Asked,
    /// Tokens that were in the cache when it was last checked.
    read: usize,
}

impl PrefixWarmup {
    /// Adds a text: prompt and answer.
    pub(super) fn add(&mut self, mut text: Asked) {
        text.tokens.truncate(text.tokens.len() / PAGE * PAGE);
        if self.0.len() == TEXTS {
            self.0.pop_front();
        }
        self.0.push_back(Finished { text, read: 0 });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes some tokens of the latest text, at most `rows`. Between two calls no page is in
    /// use.
    ///
    /// # Errors
    /// If the device fails; the text is dropped then.
    pub(super) fn read(&mut self, runner: &mut ModelRunner, rows: usize) -> Result<(), Error> {
        let Some(mut text) = self.0.pop_back() else {
            return Ok(());
        };
        let mut kv = SequenceKv::default();
        let read = text.read_on(runner, &mut kv, rows.min(CHUNK));
        runner.kv_cache.truncate(&mut kv, 0);
        text.read = read?;
        if text.read < text.text.tokens.len() {
            self.0.push_back(text);
        }
        Ok(())
    }
}

impl Finished {
    /// Computes at most `n` tokens that are not in the cache; returns how many are cached then, or
    /// all if there is no use in going on.
    fn read_on(
        &self,
        runner: &mut ModelRunner,
        kv: &mut SequenceKv,
        n: usize,
    ) -> Result<usize, Error> {
        let (all, key) = (self.text.tokens.len(), self.text.prefix());
        runner.kv_cache.adopt(kv, &key, all);
        let start = kv.len();
        if start == all || start < self.read {
            // all is cached, or what was computed has been evicted again
            return Ok(all);
        }
        let n = with_whole_images(key.tokens, start, n.min(all - start));
        let tokens = &key.tokens[start..start + n];
        let mut inputs = [StepInput {
            adapters: key.adapters,
            ..StepInput::new(kv, &key.tokens[..start], tokens)
        }];
        runner.step(Phase::Prefill, &mut inputs, None, &mut |_| {})?;
        let [input] = inputs;
        if input.failed.is_some() {
            // no pages: a request for this text computes it then, or fails with the error
            return Ok(all);
        }
        runner.kv_cache.keep(kv, &key);
        runner.save(kv, &key, kv.len() == all);
        Ok(kv.len())
    }
}
