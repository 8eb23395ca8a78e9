//! Adds requests to a batch: checks that they fit and that their options go together.

use octavo_model::Pooling;

use super::branch::Branch;
use super::request::{BatchError, Request, Task};
use super::{Batch, MAX_CHOICES, RequestId};
use crate::decoder::Bounds;
use crate::error::Error;
use crate::image_registry::{holds, is_image_token};
use crate::kv::PAGE;
use crate::scheduler::{Asked, Sequence};

impl Batch {
    /// Returns how many positions a request can have: those of the context, or of all the cache's
    /// pages.
    pub fn n_ctx(&self) -> usize {
        let pages = self.engine.runner().kv_cache.capacity();
        self.engine.n_ctx().min(pages * PAGE)
    }

    /// Returns how many positions each of `width` beams can have: they share full pages of the
    /// prompt only.
    fn n_ctx_of_beams(&self, n_prompt: usize, width: usize) -> usize {
        let pages = self.engine.runner().kv_cache.capacity();
        let common = (n_prompt / PAGE).min(pages);
        let own = (pages - common) / width;
        self.engine.n_ctx().min((common + own) * PAGE)
    }

    /// Adds a request; it is newer than all others.
    ///
    /// # Errors
    /// If the prompt or an option does not fit, or the queue is full.
    pub fn add(&mut self, mut request: Request) -> Result<RequestId, BatchError> {
        let waiting = self.scheduler.waiting();
        if waiting >= self.options.queue {
            return Err(BatchError::QueueFull { waiting });
        }
        let width = match request.task {
            Task::Beams(how) => how.width,
            Task::Text | Task::Embedding(_) => 1,
        };
        self.check_counts(&request, width)?;
        if let Task::Text | Task::Beams(_) = request.task {
            self.engine.check_logits()?;
        }
        if let Task::Embedding(embed) = request.task
            && embed.pooling == Pooling::Rank
            && self.engine.classifier().is_none()
        {
            let arch = self.engine.hparams().arch.name();
            return Err(Error::NoClassifier { arch }.into());
        }
        // beams share pages, and an embedding is of a whole text
        let is_text = matches!(request.task, Task::Text);
        request.options.context_shift.take_if(|_| !is_text);
        let bounds = Bounds {
            n_ctx: self.n_ctx_of_beams(request.prompt.len(), width),
            n_vocab: self.engine.hparams().n_vocab(),
        };
        let id = self.next_id;
        self.check_image_tokens(&request)?;
        let named = request.adapters.as_deref();
        let asked = Asked {
            adapters: self.engine.adapter_set(named, &request.prompt)?,
            tokens: request.prompt.clone(),
            salt: request.salt.clone(),
        };
        let (slot, is_text) = (request.slot, matches!(request.task, Task::Text));
        let branch = Branch::new(
            id,
            request,
            bounds,
            self.engine.tokenizer(),
            self.engine.draft_model(),
            self.engine.classifier(),
        )?;
        self.engine.check_whole(asked.tokens.len())?;
        let (tokens, most) = (branch.longest_whole_image(), self.engine.limits().outputs);
        if branch.wants_all() && tokens > most {
            return Err(Error::LongImage { tokens, most }.into());
        }
        if is_text {
            self.take_slot(id, slot, &asked);
        }
        let Asked {
            tokens,
            salt,
            adapters,
        } = asked;
        let sequence = Sequence::new(id, tokens, salt, branch.wants_all());
        let sequence = sequence.with_adapters(adapters).with_beams(width);
        self.scheduler.add(sequence);
        self.branches.insert(id, branch);
        self.next_id += width as u64;
        Ok(id)
    }

    /// Checks that the request holds the image of every image token in its prompt, and does not ask
    /// for prompt log-probabilities along with image tokens, which have none.
    fn check_image_tokens(&self, request: &Request) -> Result<(), BatchError> {
        let mut image_tokens = request
            .prompt
            .iter()
            .filter(|id| is_image_token(**id))
            .peekable();
        if image_tokens.peek().is_some() && request.prompt_logprobs.is_some() {
            return Err(BatchError::ImageLogprobs);
        }
        match image_tokens.find(|id| !holds(&request.images, **id)) {
            Some(&id) => Err(Error::ImageNotHeld { id }.into()),
            None => Ok(()),
        }
    }

    /// Checks that this many texts, and this many beams, are possible.
    fn check_counts(&self, request: &Request, width: usize) -> Result<(), BatchError> {
        if !(1..=self.places).contains(&width) {
            let most = self.places;
            return Err(BatchError::Beams { width, most });
        }
        let most = match request.task {
            Task::Beams(_) => width,
            Task::Text | Task::Embedding(_) => MAX_CHOICES,
        };
        match request.n {
            n if !(1..=most).contains(&n) => Err(BatchError::Choices { n, most }),
            _ => Ok(()),
        }
    }
}
