//! One generation as a state machine: it names the tokens to compute next, is fed with their
//! outputs, chooses the next token and hands out text as soon as it is certain. Knows no device, no
//! clock and no output; its caller may stop between any two steps.

mod candidates;
mod terms;

use octavo_kernels::Phase;
use octavo_text::stop::StopMatcher;
use octavo_text::tokenizer::Utf8Stream;

use crate::image_registry::is_image_token;
use crate::sample::{Constraint, Logprobs, SampleError, Sampler};

pub(crate) use candidates::Candidate;
pub use terms::{
    Bounds, Computed, FinishReason, GenerationParams, SequenceError, Text, Vocabulary, Want, Work,
};

/// One generation.
#[derive(Debug)]
pub struct Sequence {
    options: GenerationParams,
    bounds: Bounds,
    /// The prompt, then every token chosen that is, or will be, computed, then draft tokens.
    tokens: Vec<u32>,
    n_drafts: usize,
    /// The token chosen last was a draft token.
    last_was_draft: bool,
    n_prompt: usize,
    n_cached_before: usize,
    /// Tokens whose keys and values are cached.
    n_cached: usize,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    /// The argmax computed on the device is enough.
    greedy_on_device: bool,
    utf8: Utf8Stream,
    stops: StopMatcher,
    text: String,
    generated: Vec<u32>,
    logprobs: Vec<Logprobs>,
    finish: Option<FinishReason>,
    /// Index of the stop string that ended it.
    stopped_by: Option<usize>,
}

impl Sequence {
    /// Creates a generation that continues a prompt.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit, or an option is out of its range.
    pub fn new(
        prompt: &[u32],
        options: &GenerationParams,
        bounds: Bounds,
        vocabulary: &dyn Vocabulary,
    ) -> Result<Sequence, SequenceError> {
        check_prompt(prompt, options, bounds)?;
        let mut config = options.sampler.clone();
        let ends: &[u32] = match options.ignore_eos {
            true => vocabulary.eog_ids(),
            false => &[],
        };
        let banned = ends.iter().chain(vocabulary.suppressed_ids());
        let in_range = banned.filter(|id| (**id as usize) < bounds.n_vocab);
        config
            .logit_bias
            .extend(in_range.map(|&id| (id, f32::NEG_INFINITY)));
        let mut sampler = Sampler::new(config, bounds.n_vocab)?;
        let words = prompt.iter().filter(|id| !is_image_token(**id));
        words.for_each(|&id| sampler.accept(id));
        Ok(Sequence {
            stops: StopMatcher::new(&options.stop)?,
            greedy_on_device: sampler.takes_the_largest() && options.logprobs.is_none(),
            options: options.clone(),
            bounds,
            tokens: prompt.to_vec(),
            n_drafts: 0,
            last_was_draft: false,
            n_prompt: prompt.len(),
            n_cached_before: 0,
            n_cached: 0,
            sampler,
            constraint: None,
            utf8: Utf8Stream::new(),
            text: String::new(),
            generated: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
            stopped_by: None,
        })
    }

    /// Restricts the tokens that may be chosen from now on.
    pub fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(constraint);
    }

    /// Returns the kind of output that it needs once its tokens are computed.
    pub fn want(&self) -> Want {
        let may_end = self.generated.len() >= self.options.min_tokens;
        let constraint = self.constraint.as_deref();
        let is_free = constraint.is_none_or(|constraint| constraint.allows_all());
        if self.greedy_on_device && is_free && may_end {
            Want::Argmax
        } else {
            Want::Logits
        }
    }

    /// Takes over tokens that a cache holds already; returns how many of them, from the first, this
    /// sequence goes on from. Only before anything was fed.
    pub fn reuse(&mut self, cached: &[u32]) -> usize {
        let equal = cached
            .iter()
            .zip(&self.tokens)
            .take_while(|(a, b)| a == b)
            .count();
        // the last token is always computed: its logits choose the next one
        self.n_cached = equal.min(self.n_prompt - 1);
        self.n_cached_before = self.n_cached;
        self.n_cached
    }

    /// Returns the tokens to compute next; `None` once it has ended.
    pub fn work(&self) -> Option<Work<'_>> {
        if self.finish.is_some() {
            return None;
        }
        let phase = if self.n_cached < self.n_prompt {
            Phase::Prefill
        } else {
            Phase::Decode
        };
        Some(Work {
            tokens: &self.tokens[self.n_cached..],
            phase,
            want: self.want(),
            outputs: 1 + self.n_drafts,
        })
    }

    /// Returns the prompt and the tokens chosen, without a token that ended the text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.n_drafts]
    }

    /// Returns how many draft tokens may be of use at all: none behind the last token that can be
    /// chosen.
    pub fn draft_room(&self) -> usize {
        let chosen = self.generated.len() + 1;
        let to_choose = match self.options.max_tokens {
            Some(most) => most.saturating_sub(chosen),
            None => usize::MAX,
        };
        let positions = self.bounds.n_ctx.saturating_sub(self.tokens().len());
        match self.has_read_its_prompt() && self.finish.is_none() {
            true => positions.min(to_choose),
            false => 0,
        }
    }

    /// Adds draft tokens, to be computed along with the tokens that must be: outputs of all of them
    /// are fed one by one then, as long as [`Sequence::has_accepted_draft`] says so. They change no
    /// token that is chosen.
    ///
    /// # Panics
    /// If there are more than [`Sequence::draft_room`].
    pub fn set_drafts(&mut self, tokens: &[u32]) {
        assert!(
            tokens.len() <= self.draft_room(),
            "more draft tokens than fit"
        );
        self.drop_drafts();
        self.tokens.extend_from_slice(tokens);
        self.n_drafts = tokens.len();
    }

    /// Returns whether the token chosen last was a draft token, so that its output is computed
    /// already: that output must be fed next.
    pub fn has_accepted_draft(&self) -> bool {
        self.finish.is_none() && self.last_was_draft
    }

    /// Lowers the number of its tokens that a cache holds. Rejected draft tokens must be dropped
    /// from the cache, which may drop more with them.
    ///
    /// # Panics
    /// If a part of the prompt was dropped.
    pub fn forget(&mut self, n_cached: usize) {
        let read = self.n_prompt.min(self.n_cached);
        assert!(
            (read..=self.n_cached).contains(&n_cached),
            "{n_cached} are cached"
        );
        self.n_cached = n_cached;
    }

    /// Returns the number of tokens whose keys and values are cached and valid.
    pub fn n_cached(&self) -> usize {
        self.n_cached
    }

    /// Takes an output of the tokens that [`Sequence::work`] named, of several outputs one, in
    /// their order; returns the text that is certain now, which never holds half a character nor
    /// any of a stop string.
    ///
    /// # Errors
    /// If no token can be chosen.
    ///
    /// # Panics
    /// If it is fed more than it asked for.
    pub fn feed(
        &mut self,
        computed: Computed<'_>,
        vocabulary: &dyn Vocabulary,
    ) -> Result<String, SequenceError> {
        assert!(self.finish.is_none(), "a sequence that has ended is fed");
        let left = self.tokens().len() - self.n_cached;
        if let Computed::Cached(n) = computed {
            assert!(n < left, "{n} tokens are computed of {left}, and no output");
            self.n_cached += n;
            return Ok(String::new());
        }
        self.n_cached = self.tokens().len();
        if self.options.max_tokens == Some(0) {
            return Ok(self.end(FinishReason::Length));
        }
        let chosen = match computed {
            Computed::Argmax(id) => Some((id, None)),
            Computed::Logits(logits) => self.choose(logits, vocabulary)?,
            Computed::Cached(_) => unreachable!("returned above"),
        };
        match chosen {
            Some((id, recorded)) => self.take(id, recorded, vocabulary),
            None => Ok(self.end(FinishReason::Stop)),
        }
    }

    /// Takes the token that comes next; returns the text that is certain now.
    fn take(
        &mut self,
        id: u32,
        recorded: Option<Logprobs>,
        vocabulary: &dyn Vocabulary,
    ) -> Result<String, SequenceError> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id).map_err(SampleError::from)?;
        }
        self.logprobs.extend(recorded);
        self.sampler.accept(id);
        self.generated.push(id);
        let (mut text, stopped) = self.say(id, vocabulary)?;
        let finish = if stopped {
            Some(FinishReason::Stop)
        } else if Some(self.generated.len()) == self.options.max_tokens {
            Some(FinishReason::Length)
        } else if self.n_cached == self.bounds.n_ctx {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        match finish {
            Some(finish) => text.push_str(&self.end(finish)),
            None => self.append(id),
        }
        Ok(text)
    }

    /// Appends a chosen token. Draft tokens stay if it is the first of them.
    fn append(&mut self, id: u32) {
        self.last_was_draft = self.tokens.get(self.n_cached) == Some(&id);
        if self.last_was_draft {
            self.n_drafts -= 1;
        } else {
            self.drop_drafts();
            self.tokens.push(id);
        }
    }

    fn drop_drafts(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.n_drafts);
        self.n_drafts = 0;
    }

    /// Cancels it with what there is; returns the text that was held back.
    pub fn cancel(&mut self) -> String {
        if self.finish.is_some() {
            return String::new();
        }
        self.end(FinishReason::Cancelled)
    }

    /// Returns whether every token of the prompt is cached.
    pub fn has_read_its_prompt(&self) -> bool {
        self.n_cached >= self.n_prompt
    }

    /// Returns the log-probabilities of the tokens chosen so far, if asked for.
    pub fn logprobs(&self) -> &[Logprobs] {
        &self.logprobs
    }

    /// Returns the tokens chosen so far.
    pub fn generated(&self) -> &[u32] {
        &self.generated
    }

    /// Returns the finish reason; `None` as long as it has not ended.
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Returns its text and counts; a sequence that has not ended counts as cancelled.
    pub fn into_text(self) -> Text {
        Text {
            text: self.text,
            tokens: self.generated,
            finish: self.finish.unwrap_or(FinishReason::Cancelled),
            stopped_by: self.stopped_by,
            logprobs: self.logprobs,
            prompt_tokens: self.n_prompt,
            cached_tokens: self.n_cached_before,
        }
    }

    /// Returns whether the text ends before this token.
    fn ends(&self, id: u32, vocabulary: &dyn Vocabulary) -> bool {
        self.options.stop_ids.contains(&id) || vocabulary.eog_ids().contains(&id)
    }

    /// Returns whether a token is part of the text.
    fn shows(&self, id: u32, vocabulary: &dyn Vocabulary) -> bool {
        self.options.show_special || !vocabulary.is_special(id)
    }

    /// Adds a token's text; returns what is certain of it, and whether it ends the generation.
    fn say(
        &mut self,
        id: u32,
        vocabulary: &dyn Vocabulary,
    ) -> Result<(String, bool), SequenceError> {
        if self.ends(id, vocabulary) {
            return Ok((String::new(), true));
        }
        if !self.shows(id, vocabulary) {
            return Ok((String::new(), false));
        }
        let whole = self.utf8.push(vocabulary.piece(id));
        let is_early = self.generated.len() <= self.options.min_tokens;
        let before = is_early.then(|| self.stops.clone());
        let mut pushed = self.stops.push(&whole);
        if let (Some(mut before), Some(_)) = (before, pushed.stop) {
            // a stop string that comes too early is ordinary text, and the search starts anew after
            // it
            pushed.text = before.finish() + &whole;
            pushed.stop = None;
            self.stops = StopMatcher::new(&self.options.stop)?;
        }
        self.stopped_by = pushed.stop;
        self.text.push_str(&pushed.text);
        Ok((pushed.text, pushed.stop.is_some()))
    }

    /// Ends it; returns the text that was held back.
    fn end(&mut self, finish: FinishReason) -> String {
        self.drop_drafts();
        // A text cut inside a character by a limit ends before it; one that the model ends there
        // has a broken character.
        let tail = match finish {
            FinishReason::Stop => self.utf8.finish(),
            FinishReason::Length | FinishReason::ContextFull | FinishReason::Cancelled => {
                String::new()
            }
        };
        let pushed = self.stops.push(&tail);
        let ended = pushed.stop.is_some();
        self.stopped_by = self.stopped_by.or(pushed.stop);
        self.finish = Some(if ended { FinishReason::Stop } else { finish });
        let mut text = pushed.text;
        text.push_str(&self.stops.finish());
        self.text.push_str(&text);
        text
    }
}

fn check_prompt(
    prompt: &[u32],
    options: &GenerationParams,
    bounds: Bounds,
) -> Result<(), SequenceError> {
    let Bounds { n_ctx, n_vocab } = bounds;
    if prompt.is_empty() {
        return Err(SequenceError::EmptyPrompt);
    }
    if prompt.len() > n_ctx {
        let prompt = prompt.len();
        return Err(SequenceError::PromptTooLong { prompt, n_ctx });
    }
    // the caller knows which images are held
    let words = prompt.iter().filter(|id| !is_image_token(**id));
    let mut ids = words.chain(&options.stop_ids);
    match ids.find(|&&id| id as usize >= n_vocab) {
        Some(&id) => Err(SequenceError::UnknownToken { id, n_vocab }),
        None => Ok(()),
    }
}
