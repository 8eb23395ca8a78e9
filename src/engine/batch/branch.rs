//! One text of a request, its beam search or its embedding: takes the outputs of steps.

use std::time::Instant;

use crate::Error;
use crate::image_registry::ImageHandle;
use crate::sample::{Logprobs, SampleError, logprobs};
use crate::sequence::{
    Bounds, Computed, GenerationParams, Sequence, SequenceError, Text, Vocabulary, Want,
};
use crate::speculative::{CostModel, DraftBudget, DraftModel, DraftStats, Proposer};

use super::beams::Search;
use super::pool::Pool;
use super::request::{Delta, Found, Request, RequestId, Task, Timing};

/// Result of feeding a text, until it is handed out.
pub(super) type Fed = Result<Delta, SequenceError>;

/// One text of a request, its beam search, or its embedding.
pub(super) struct Branch {
    pub(super) request: RequestId,
    pub(super) choice: usize,
    n_prompt: usize,
    prompt: Option<PromptProbs>,
    work: Work,
    clock: Clock,
    fed: Option<Fed>,
    /// Other texts of the request, which begin where this one's prompt ends.
    siblings: Option<Siblings>,
    /// Images of the prompt, held as long as it may have to be computed.
    images: Vec<ImageHandle>,
}

enum Work {
    Text(Box<Sequence>, Box<Proposer>),
    Beams {
        search: Box<Search>,
        /// Number of texts to return.
        n: usize,
    },
    Embedding(Pool),
}

/// Log-probabilities of a prompt's own tokens.
struct PromptProbs {
    tokens: Vec<u32>,
    n_top: usize,
    found: Vec<Logprobs>,
}

struct Siblings {
    request: Request,
    bounds: Bounds,
    /// Output after the prompt, once it is known.
    first: Option<First>,
}

/// Output after a prompt.
enum First {
    Argmax(u32),
    Logits(Vec<f32>),
}

/// State of a beam search after a step.
pub(super) enum Turn {
    /// Parent beam, by index, and token of each beam that goes on.
    On(Vec<(usize, u32)>),
    /// The texts that it has found, the best first.
    Over(Vec<Found>),
}

/// Times of what has happened so far.
struct Clock {
    added: Instant,
    begun: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Branch {
    /// Creates the first text of a request.
    pub(super) fn new(
        id: RequestId,
        request: Request,
        bounds: Bounds,
        vocabulary: &dyn Vocabulary,
        draft: Option<&DraftModel>,
    ) -> Result<Branch, SequenceError> {
        let n_prompt = request.prompt.len();
        // also for an embedding: it checks the prompt
        let mut sequence = Sequence::new(&request.prompt, &request.options, bounds, vocabulary)?;
        if let Some(constraint) = &request.constraint {
            sequence.constrain(constraint.fork());
        }
        let prompt = request.prompt_logprobs.map(|n_top| PromptProbs {
            tokens: request.prompt.clone(),
            n_top,
            found: Vec::new(),
        });
        let work = match request.task {
            Task::Embedding(embed) => Work::Embedding(Pool::new(embed)),
            Task::Beams(how) => Work::Beams {
                search: Box::new(Search::new(how, sequence)?),
                n: request.n,
            },
            Task::Text => {
                let proposer = Proposer::new(request.options.lookup, draft);
                Work::Text(Box::new(sequence), Box::new(proposer))
            }
        };
        let images = request.images.clone();
        let has_siblings = request.n > 1 && matches!(work, Work::Text(..));
        let siblings = has_siblings.then_some(Siblings {
            request,
            bounds,
            first: None,
        });
        Ok(Branch {
            request: id,
            choice: 0,
            n_prompt,
            prompt: prompt.filter(|_| !matches!(work, Work::Embedding(_))),
            work,
            clock: Clock::new(),
            fed: None,
            siblings,
            images,
        })
    }

    /// Returns whether outputs of every token of the prompt are needed.
    pub(super) fn wants_all(&self) -> bool {
        match &self.work {
            Work::Text(..) | Work::Beams { .. } => self.prompt.is_some(),
            Work::Embedding(pool) => pool.wants_all(),
        }
    }

    pub(super) fn wants_argmax(&self) -> bool {
        match &self.work {
            Work::Text(sequence, _) => self.prompt.is_none() && sequence.want() == Want::Argmax,
            Work::Beams { .. } | Work::Embedding(_) => false,
        }
    }

    pub(super) fn embeds(&self) -> bool {
        matches!(self.work, Work::Embedding(_))
    }

    /// Returns the number of tokens generated, for beams those of each.
    pub(super) fn generated(&self) -> usize {
        match &self.work {
            Work::Text(sequence, _) => sequence.generated().len(),
            Work::Beams { search, .. } => search.generated(),
            Work::Embedding(_) => 0,
        }
    }

    /// Returns the last token chosen, if the text goes on after it.
    pub(super) fn next_token(&self) -> Option<u32> {
        match &self.work {
            Work::Text(sequence, _) if sequence.finish().is_none() => {
                sequence.generated().last().copied()
            }
            _ => None,
        }
    }

    /// Drafts tokens of the text for the next step; none for beams and embeddings.
    pub(super) fn propose(
        &mut self,
        budget: DraftBudget,
        cost_model: &mut CostModel,
    ) -> Result<Vec<u32>, Error> {
        let Work::Text(sequence, proposer) = &mut self.work else {
            return Ok(Vec::new());
        };
        let budget = DraftBudget {
            max: budget.max.min(sequence.draft_room()),
            ..budget
        };
        // also without room: this drops the draft tokens of a step that had none in the end
        let drafts = match budget.max {
            0 => Vec::new(),
            _ => proposer.propose(sequence.tokens(), budget, cost_model)?,
        };
        sequence.set_drafts(&drafts);
        Ok(drafts)
    }

    /// Stops drafting.
    pub(super) fn stop_drafting(&mut self) {
        if let Work::Text(_, proposer) = &mut self.work {
            proposer.stop();
        }
    }

    /// Returns how many of the last step's draft tokens were accepted.
    pub(super) fn accept_drafts(&mut self, drafted: usize) -> usize {
        let (Some(Ok(delta)), Work::Text(_, proposer)) = (&self.fed, &mut self.work) else {
            return 0;
        };
        let accepted = drafted.min(delta.tokens.len().saturating_sub(1));
        if drafted > 0 {
            proposer.learn(accepted);
        }
        accepted
    }

    /// Records the start time; returns whether this is the first call.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        let is_first = self.clock.begun.is_none();
        self.clock.begun.get_or_insert(now);
        is_first
    }

    /// Takes the most likely token after the one at a position.
    pub(super) fn take_argmax(&mut self, position: usize, id: u32, vocabulary: &dyn Vocabulary) {
        if self.is_next(position) {
            if let Some(siblings) = self.siblings.as_mut().filter(|s| s.first.is_none()) {
                siblings.first = Some(First::Argmax(id));
            }
            self.feed(Computed::Argmax(id), vocabulary);
        }
    }

    /// Takes the logits after the token at a position, in a beam search those of one beam; for an
    /// embedding, the token's vector.
    pub(super) fn take_logits(
        &mut self,
        beam: usize,
        position: usize,
        row: &[f32],
        vocabulary: &dyn Vocabulary,
    ) {
        if self.embeds() {
            return self.take_row(position, row);
        }
        if let Err(error) = self.note_prompt(position, row) {
            self.fed = Some(Err(error.into()));
            return;
        }
        if !self.is_next(position) {
            return;
        }
        if let Some(siblings) = self.siblings.as_mut().filter(|s| s.first.is_none()) {
            siblings.first = Some(First::Logits(row.to_vec()));
        }
        if let Work::Beams { search, .. } = &mut self.work {
            let taken = search.take(beam, row, vocabulary);
            self.fed = taken.err().map(Err);
            return;
        }
        self.feed(Computed::Logits(row), vocabulary);
    }

    /// Returns whether it is a beam search.
    pub(super) fn searches(&self) -> bool {
        matches!(self.work, Work::Beams { .. })
    }

    /// Advances all beams by a token: returns the beams that go on, or the texts that were found if
    /// the search is over.
    pub(super) fn advance(&mut self, vocabulary: &dyn Vocabulary) -> Result<Turn, SequenceError> {
        let Work::Beams { search, n } = &mut self.work else {
            unreachable!("only a search has beams");
        };
        if let Some(Err(error)) = self.fed.take() {
            return Err(error);
        }
        let next = search.advance(vocabulary)?;
        let now = Instant::now();
        self.clock.first.get_or_insert(now);
        self.clock.last = Some(now);
        Ok(if next.is_empty() {
            let mut found = search.take_found();
            found.truncate(*n);
            Turn::Over(found)
        } else {
            Turn::On(next)
        })
    }

    /// Takes the vector of the token at a position of the prompt.
    fn take_row(&mut self, position: usize, row: &[f32]) {
        if let Work::Embedding(pool) = &mut self.work {
            pool.add(position, row);
        }
    }

    /// Takes what it was fed since the last call.
    pub(super) fn take_fed(&mut self) -> Option<Fed> {
        self.fed.take()
    }

    /// Takes the log-probabilities of the prompt, once all are there; they are handed out once.
    pub(super) fn take_prompt(&mut self) -> Option<Vec<Logprobs>> {
        let is_whole = |prompt: &mut PromptProbs| prompt.found.len() + 1 == prompt.tokens.len();
        let whole = self.prompt.take_if(is_whole);
        whole.map(|prompt| prompt.found)
    }

    /// Returns the embedding, if `n_read` tokens of the prompt are all.
    pub(super) fn take_vector(&mut self, n_read: usize) -> Option<Vec<f32>> {
        let Work::Embedding(pool) = &mut self.work else {
            return None;
        };
        if n_read < self.n_prompt {
            return None;
        }
        Some(pool.take())
    }

    /// Creates the request's other texts as soon as the output after the prompt is known, and feeds
    /// them with it.
    pub(super) fn siblings(
        &mut self,
        vocabulary: &dyn Vocabulary,
        draft: Option<&DraftModel>,
    ) -> Vec<Branch> {
        let Some(siblings) = self.siblings.take_if(|siblings| siblings.first.is_some()) else {
            return Vec::new();
        };
        let choices = 1..siblings.request.n;
        let make = |choice| self.sibling(choice, &siblings, vocabulary, draft);
        choices.map(make).collect()
    }

    fn sibling(
        &self,
        choice: usize,
        of: &Siblings,
        vocabulary: &dyn Vocabulary,
        draft: Option<&DraftModel>,
    ) -> Branch {
        let request = &of.request;
        let mut options: GenerationParams = request.options.clone();
        options.sampler.seed = options.sampler.seed.wrapping_add(choice as u64);
        let made = Sequence::new(&request.prompt, &options, of.bounds, vocabulary);
        let mut sequence = Box::new(made.expect("as sound as the first text of the request"));
        if let Some(constraint) = &request.constraint {
            sequence.constrain(constraint.fork());
        }
        let mut branch = Branch {
            request: self.request,
            choice,
            n_prompt: self.n_prompt,
            prompt: None,
            work: Work::Text(sequence, Box::new(Proposer::new(options.lookup, draft))),
            clock: Clock {
                first: None,
                last: None,
                ..self.clock
            },
            fed: None,
            siblings: None,
            images: self.images.clone(),
        };
        match &of.first {
            Some(First::Argmax(id)) => branch.feed(Computed::Argmax(*id), vocabulary),
            Some(First::Logits(row)) => branch.feed(Computed::Logits(row), vocabulary),
            None => unreachable!("texts begin when it is known what may follow the prompt"),
        }
        branch
    }

    /// Returns its times so far.
    pub(super) fn timing(&self) -> Timing {
        let clock = &self.clock;
        let now = Instant::now();
        let begun = clock.begun.unwrap_or(now);
        Timing {
            queued: begun - clock.added,
            prompt: clock.first.unwrap_or(now).saturating_duration_since(begun),
            first_token: clock.first.map(|first| first - clock.added),
            generation: clock
                .first
                .zip(clock.last)
                .map(|(first, last)| last - first)
                .unwrap_or_default(),
            total: now - clock.added,
            prompt_tokens: self.n_prompt,
            generated_tokens: self.generated(),
            cached: 0,
            recomputed: 0,
            drafts: match &self.work {
                Work::Text(_, proposer) => proposer.stats(),
                Work::Beams { .. } | Work::Embedding(_) => DraftStats::default(),
            },
        }
    }

    /// Returns the finished text; `None` for beams and embeddings.
    pub(super) fn into_text(self) -> Option<Text> {
        match self.work {
            Work::Text(sequence, _) => Some(sequence.into_text()),
            Work::Beams { .. } | Work::Embedding(_) => None,
        }
    }

    /// Returns whether the token after this position is not chosen yet. Tokens that are recomputed
    /// after a preemption have followers already, and the output of a draft token is of use only if
    /// the draft was accepted.
    fn is_next(&self, position: usize) -> bool {
        let is_right = match (&self.fed, &self.work) {
            (Some(_), Work::Text(sequence, _)) => sequence.has_accepted_draft(),
            _ => true,
        };
        is_right && !self.embeds() && position + 1 == self.n_prompt + self.generated()
    }

    fn note_prompt(&mut self, position: usize, row: &[f32]) -> Result<(), SampleError> {
        if let Some(prompt) = &mut self.prompt
            && prompt.found.len() == position
            && let Some(&next) = prompt.tokens.get(position + 1)
        {
            prompt.found.push(logprobs(row, next, prompt.n_top)?);
        }
        Ok(())
    }

    fn feed(&mut self, computed: Computed<'_>, vocabulary: &dyn Vocabulary) {
        let Work::Text(sequence, _) = &mut self.work else {
            return;
        };
        let before = sequence.generated().len();
        let fed = sequence.feed(computed, vocabulary).map(|text| Delta {
            text,
            tokens: sequence.generated()[before..].to_vec(),
            logprobs: sequence
                .logprobs()
                .get(before..)
                .unwrap_or_default()
                .to_vec(),
        });
        // after other tokens of the same step
        self.fed = Some(match (self.fed.take(), fed) {
            (Some(Ok(mut earlier)), Ok(later)) => {
                earlier.append(later);
                Ok(earlier)
            }
            (_, fed) => fed,
        });
        let now = Instant::now();
        self.clock.first.get_or_insert(now);
        self.clock.last = Some(now);
    }
}

impl Clock {
    fn new() -> Clock {
        Clock {
            added: Instant::now(),
            begun: None,
            first: None,
            last: None,
        }
    }
}
