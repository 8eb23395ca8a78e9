//! One text of a request, its beam search or its embedding: takes the outputs of steps.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use octavo_model::Classifier;

use crate::decoder::{Bounds, GenerationError, GenerationParams, Text, TextDecoder, Vocabulary};
use crate::engine::Engine;
use crate::error::Error;
use crate::image_registry::ImageHandle;
use crate::sample::{Logprobs, OutputNeed, OutputValue, SampleError, logprobs};
use crate::speculative::{CostModel, DraftBudget, DraftStats, Proposer, Target};

use super::beams::Search;
use super::clock::Clock;
use super::pool::Pool;
use super::request::{BeamOutput, Delta, Request, RequestId, Task, Timing};

/// One text of a request, its beam search, or its embedding.
pub(super) struct Branch {
    pub(super) request: RequestId,
    pub(super) choice: usize,
    n_prompt: usize,
    prompt: Option<PromptProbs>,
    task: TaskState,
    clock: Clock,
    /// Result of feeding a text, until it is handed out.
    fed: Option<Result<Delta, GenerationError>>,
    /// Other texts of the request, which begin where this one's prompt ends.
    siblings: Option<Siblings>,
    /// Images of the prompt, held as long as it may have to be computed.
    images: Vec<ImageHandle>,
}

enum TaskState {
    Text(Box<TextDecoder>, Box<Proposer>),
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
    Candidates(Vec<(u32, f32)>),
    Logits(Vec<f32>),
}

/// State of a beam search after a step.
pub(super) enum Turn {
    /// Parent beam, by index, and token of each beam that goes on.
    On(Vec<(usize, u32)>),
    /// The texts that it has found, the best first.
    Over(Vec<BeamOutput>),
}

impl Branch {
    /// Creates the first text of a request.
    pub(super) fn new(
        id: RequestId,
        request: Request,
        bounds: Bounds,
        vocabulary: &dyn Vocabulary,
        draft: Option<&Engine>,
        classifier: Option<&Arc<Classifier>>,
    ) -> Result<Branch, GenerationError> {
        let n_prompt = request.prompt.len();
        // also for an embedding: it checks the prompt
        let mut decoder = TextDecoder::new(&request.prompt, &request.options, bounds, vocabulary)?;
        if let Some(constraint) = &request.constraint {
            decoder.constrain(constraint.fork());
        }
        let prompt = request.prompt_logprobs.map(|n_top| PromptProbs {
            tokens: request.prompt.clone(),
            n_top,
            found: Vec::new(),
        });
        let task = match request.task {
            Task::Embedding(embed) => TaskState::Embedding(Pool::new(embed, classifier)),
            Task::Beams(how) => TaskState::Beams {
                search: Box::new(Search::new(how, decoder)?),
                n: request.n,
            },
            Task::Text => {
                let proposer = Proposer::new(&request.options, draft);
                TaskState::Text(Box::new(decoder), Box::new(proposer))
            }
        };
        let images = request.images.clone();
        let has_siblings = request.n > 1 && matches!(task, TaskState::Text(..));
        let siblings = has_siblings.then_some(Siblings {
            request,
            bounds,
            first: None,
        });
        Ok(Branch {
            request: id,
            choice: 0,
            n_prompt,
            prompt: prompt.filter(|_| !matches!(task, TaskState::Embedding(_))),
            task,
            clock: Clock::new(),
            fed: None,
            siblings,
            images,
        })
    }

    /// Returns whether outputs of every token of the prompt are needed.
    pub(super) fn wants_all(&self) -> bool {
        match &self.task {
            TaskState::Text(..) | TaskState::Beams { .. } => self.prompt.is_some(),
            TaskState::Embedding(pool) => pool.wants_all(),
        }
    }

    /// Returns the number of tokens of its longest image that one step must have whole.
    pub(super) fn longest_whole_image(&self) -> usize {
        let whole = self.images.iter().filter(|image| image.is_computed_whole());
        whole.map(|image| image.tokens().len()).max().unwrap_or(0)
    }

    /// Returns which part of the outputs of the next step it needs.
    pub(super) fn need(&self) -> OutputNeed {
        match &self.task {
            TaskState::Text(decoder, _) if self.prompt.is_none() => decoder.need(),
            _ => OutputNeed::Logits,
        }
    }

    pub(super) fn embeds(&self) -> bool {
        matches!(self.task, TaskState::Embedding(_))
    }

    /// Returns the number of tokens generated, for beams those of each.
    pub(super) fn generated(&self) -> usize {
        match &self.task {
            TaskState::Text(decoder, _) => decoder.generated().len(),
            TaskState::Beams { search, .. } => search.generated(),
            TaskState::Embedding(_) => 0,
        }
    }

    /// Returns the last token chosen, if the text goes on after it.
    pub(super) fn next_token(&self) -> Option<u32> {
        match &self.task {
            TaskState::Text(decoder, _) if decoder.finish().is_none() => {
                decoder.generated().last().copied()
            }
            _ => None,
        }
    }

    /// Returns which tokens of the text's sequence are to be dropped before the next step, because
    /// the context is full. Drafting begins anew after that.
    pub(super) fn take_dropped(&mut self) -> Option<Range<usize>> {
        let TaskState::Text(decoder, proposer) = &mut self.task else {
            return None;
        };
        let dropped = decoder.take_dropped()?;
        proposer.restart();
        Some(dropped)
    }

    /// Returns the number of tokens that context shifts have dropped.
    pub(super) fn discarded(&self) -> usize {
        match &self.task {
            TaskState::Text(decoder, _) => decoder.discarded(),
            TaskState::Beams { .. } | TaskState::Embedding(_) => 0,
        }
    }

    /// Drafts tokens that may follow `text`, the prompt and the text so far, for the next step;
    /// none for beams and embeddings.
    pub(super) fn propose(
        &mut self,
        text: (&[u32], Target<'_>),
        budget: DraftBudget,
        cost_model: &mut CostModel,
    ) -> Result<Vec<u32>, Error> {
        let TaskState::Text(decoder, proposer) = &mut self.task else {
            return Ok(Vec::new());
        };
        let budget = DraftBudget {
            max: budget.max.min(decoder.draft_room()),
            ..budget
        };
        // also without room: this drops the draft tokens of a step that had none in the end
        let drafts = match budget.max {
            0 => Vec::new(),
            _ => proposer.propose(text, budget, cost_model)?,
        };
        decoder.set_drafts(&drafts);
        Ok(drafts)
    }

    /// Returns whether the model's hidden states are needed to draft.
    pub(super) fn wants_hidden(&self) -> bool {
        matches!(&self.task, TaskState::Text(_, proposer) if proposer.wants_hidden())
    }

    /// Returns what drafts its tokens; `None` for beams and embeddings.
    pub(super) fn proposer(&mut self) -> Option<&mut Proposer> {
        match &mut self.task {
            TaskState::Text(_, proposer) => Some(proposer),
            TaskState::Beams { .. } | TaskState::Embedding(_) => None,
        }
    }

    /// Returns how many of the last step's draft tokens were accepted.
    pub(super) fn accept_drafts(&mut self, drafted: usize) -> usize {
        let (Some(Ok(delta)), TaskState::Text(_, proposer)) = (&self.fed, &mut self.task) else {
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
        self.clock.begins(now)
    }

    /// Takes the output after the token at a position, in a beam search that of one beam.
    pub(super) fn take(
        &mut self,
        beam: usize,
        position: usize,
        output: OutputValue<'_>,
        vocabulary: &dyn Vocabulary,
    ) {
        match output {
            OutputValue::Logits(row) => self.take_logits(beam, position, row, vocabulary),
            OutputValue::Argmax(id) => {
                self.take_part(position, output, First::Argmax(id), vocabulary)
            }
            OutputValue::Candidates(largest) => {
                let first = First::Candidates(largest.to_vec());
                self.take_part(position, output, first, vocabulary);
            }
        }
    }

    /// Takes what is needed of the output after the token at a position; siblings begin with
    /// `first`.
    fn take_part(
        &mut self,
        position: usize,
        output: OutputValue<'_>,
        first: First,
        vocabulary: &dyn Vocabulary,
    ) {
        if self.is_next(position) {
            if let Some(siblings) = self.siblings.as_mut().filter(|s| s.first.is_none()) {
                siblings.first = Some(first);
            }
            self.feed(output, vocabulary);
        }
    }

    /// Takes the logits after the token at a position; for an embedding, the token's vector.
    fn take_logits(
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
        if let TaskState::Beams { search, .. } = &mut self.task {
            let taken = search.take(beam, row, vocabulary);
            self.fed = taken.err().map(Err);
            return;
        }
        self.feed(OutputValue::Logits(row), vocabulary);
    }

    /// Returns whether it is a beam search.
    pub(super) fn searches(&self) -> bool {
        matches!(self.task, TaskState::Beams { .. })
    }

    /// Advances all beams by a token: returns the beams that go on, or the texts that were found if
    /// the search is over.
    pub(super) fn advance(&mut self, vocabulary: &dyn Vocabulary) -> Result<Turn, GenerationError> {
        let TaskState::Beams { search, n } = &mut self.task else {
            unreachable!("only a search has beams");
        };
        if let Some(Err(error)) = self.fed.take() {
            return Err(error);
        }
        let next = search.advance(vocabulary)?;
        self.clock.tick(Instant::now());
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
        if let TaskState::Embedding(pool) = &mut self.task {
            pool.add(position, row);
        }
    }

    /// Takes what it was fed since the last call.
    pub(super) fn take_fed(&mut self) -> Option<Result<Delta, GenerationError>> {
        self.fed.take()
    }

    /// Ends a text with what there is: it is fed the part that was held back.
    pub(super) fn cancel(&mut self) {
        if let TaskState::Text(decoder, _) = &mut self.task {
            self.fed = Some(Ok(Delta {
                text: decoder.cancel(),
                ..Delta::default()
            }));
        }
    }

    /// Takes the log-probabilities of the prompt, once all are there; they are handed out once.
    pub(super) fn take_prompt(&mut self) -> Option<Vec<Logprobs>> {
        let is_whole = |prompt: &mut PromptProbs| prompt.found.len() + 1 == prompt.tokens.len();
        let whole = self.prompt.take_if(is_whole);
        whole.map(|prompt| prompt.found)
    }

    /// Returns the embedding, if `n_read` tokens of the prompt are all.
    pub(super) fn take_vector(&mut self, n_read: usize) -> Option<Vec<f32>> {
        let TaskState::Embedding(pool) = &mut self.task else {
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
        draft: Option<&Engine>,
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
        draft: Option<&Engine>,
    ) -> Branch {
        let request = &of.request;
        let mut options: GenerationParams = request.options.clone();
        options.sampler.seed = options.sampler.seed.wrapping_add(choice as u64);
        let made = TextDecoder::new(&request.prompt, &options, of.bounds, vocabulary);
        let mut decoder = Box::new(made.expect("as sound as the first text of the request"));
        if let Some(constraint) = &request.constraint {
            decoder.constrain(constraint.fork());
        }
        let mut branch = Branch {
            request: self.request,
            choice,
            n_prompt: self.n_prompt,
            prompt: None,
            task: TaskState::Text(decoder, Box::new(Proposer::new(&options, draft))),
            clock: self.clock.of_sibling(),
            fed: None,
            siblings: None,
            images: self.images.clone(),
        };
        match &of.first {
            Some(First::Argmax(id)) => branch.feed(OutputValue::Argmax(*id), vocabulary),
            Some(First::Candidates(largest)) => {
                branch.feed(OutputValue::Candidates(largest), vocabulary);
            }
            Some(First::Logits(row)) => branch.feed(OutputValue::Logits(row), vocabulary),
            None => unreachable!("texts begin when it is known what may follow the prompt"),
        }
        branch
    }

    /// Returns its times so far.
    pub(super) fn timing(&self) -> Timing {
        Timing {
            prompt_tokens: self.n_prompt,
            generated_tokens: self.generated(),
            discarded: self.discarded(),
            drafts: match &self.task {
                TaskState::Text(_, proposer) => proposer.stats(),
                TaskState::Beams { .. } | TaskState::Embedding(_) => DraftStats::default(),
            },
            ..self.clock.times()
        }
    }

    /// Returns the finished text; `None` for beams and embeddings.
    pub(super) fn into_text(self) -> Option<Text> {
        match self.task {
            TaskState::Text(decoder, _) => Some(decoder.into_text()),
            TaskState::Beams { .. } | TaskState::Embedding(_) => None,
        }
    }

    /// Returns whether the token after this position is not chosen yet. Tokens that are recomputed
    /// after a preemption have followers already, and the output of a draft token is of use only if
    /// the draft was accepted.
    fn is_next(&self, position: usize) -> bool {
        let is_right = match (&self.fed, &self.task) {
            (Some(_), TaskState::Text(decoder, _)) => decoder.has_accepted_draft(),
            _ => true,
        };
        let n_tokens = self.n_prompt + self.generated() - self.discarded();
        is_right && !self.embeds() && position + 1 == n_tokens
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

    fn feed(&mut self, output: OutputValue<'_>, vocabulary: &dyn Vocabulary) {
        let TaskState::Text(decoder, _) = &mut self.task else {
            return;
        };
        let before = decoder.generated().len();
        let fed = decoder.feed(output, vocabulary).map(|text| Delta {
            text,
            tokens: decoder.generated()[before..].to_vec(),
            logprobs: decoder
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
        if self.generated() > before {
            self.clock.tick(Instant::now());
        }
    }
}
