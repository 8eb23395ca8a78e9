//! Turns the outputs of steps into text: samples the next token within a constraint, decodes it,
//! watches for stop strings and limits, and hands out text as soon as it is certain. Knows no
//! scheduler, no KV cache and no device.

mod candidates;
mod context_shift;
mod params;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use octavo_text::stop::StopMatcher;
use octavo_text::tokenizer::Utf8Stream;

use crate::image_registry::is_image_token;
use crate::sample::{Constraint, Logprobs, OutputNeed, OutputValue, SampleError, Sampler};

pub(crate) use candidates::Candidate;
pub use context_shift::ContextShift;
pub(crate) use params::Bounds;
pub use params::{FinishReason, GenerationError, GenerationParams, Text, Vocabulary};

/// The text of one sequence.
#[derive(Debug)]
pub(crate) struct TextDecoder {
    options: GenerationParams,
    bounds: Bounds,
    n_prompt: usize,
    /// Whether the prompt begins with a control token, such as BOS.
    has_bos: bool,
    /// Tokens of the sequence that are to be dropped before its next step.
    dropped: Option<Range<usize>>,
    /// Number of tokens that were dropped, and are to be.
    discarded: usize,
    /// Draft tokens of the step whose outputs have not been fed.
    drafts: VecDeque<u32>,
    /// The token chosen last was a draft token.
    last_was_draft: bool,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    /// Part of an output that is needed while every token may be chosen.
    need_if_free: OutputNeed,
    utf8: Utf8Stream,
    stops: StopMatcher,
    text: String,
    generated: Vec<u32>,
    logprobs: Vec<Logprobs>,
    finish: Option<FinishReason>,
    /// Index of the stop string that ended it.
    stopped_by: Option<usize>,
}

/// Returns which part of an output is needed while every token may be chosen.
fn need(sampler: &Sampler, options: &GenerationParams) -> OutputNeed {
    if options.logprobs.is_some() {
        OutputNeed::Logits
    } else if sampler.takes_the_largest() {
        OutputNeed::Argmax
    } else {
        let enough = sampler.enough_candidates();
        enough.map_or(OutputNeed::Logits, OutputNeed::Candidates)
    }
}

impl TextDecoder {
    /// Creates the decoder of a text that continues a prompt.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit, or an option is out of its range.
    pub(crate) fn new(
        prompt: &[u32],
        options: &GenerationParams,
        bounds: Bounds,
        vocabulary: &dyn Vocabulary,
    ) -> Result<TextDecoder, GenerationError> {
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
        let breakers = |strings: &[String]| vocabulary.dry_breakers(strings);
        let mut sampler = Sampler::new(config, bounds.n_vocab, breakers)?;
        let words = prompt.iter().filter(|id| !is_image_token(**id));
        words.for_each(|&id| sampler.accept(id));
        let mut options = options.clone();
        options
            .context_shift
            .take_if(|_| prompt.iter().any(|id| is_image_token(*id)));
        let first = prompt[0];
        Ok(TextDecoder {
            has_bos: !is_image_token(first) && vocabulary.is_special(first),
            dropped: None,
            discarded: 0,
            stops: StopMatcher::new(&options.stop)?,
            need_if_free: need(&sampler, &options),
            options,
            bounds,
            n_prompt: prompt.len(),
            drafts: VecDeque::new(),
            last_was_draft: false,
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
    pub(crate) fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(constraint);
    }

    /// Returns which part of the next output is needed.
    pub(crate) fn need(&self) -> OutputNeed {
        let may_end = self.generated.len() >= self.options.min_tokens;
        let constraint = self.constraint.as_deref();
        let is_free = constraint.is_none_or(|constraint| constraint.allows_all());
        match is_free && may_end {
            true => self.need_if_free,
            false => OutputNeed::Logits,
        }
    }

    /// Returns how many draft tokens may be of use at all: none behind the last token that can be
    /// chosen.
    pub(crate) fn draft_room(&self) -> usize {
        let chosen = self.generated.len() + 1;
        let to_choose = match self.options.max_tokens {
            Some(most) => most.saturating_sub(chosen),
            None => usize::MAX,
        };
        let positions = self.bounds.n_ctx.saturating_sub(self.n_tokens());
        match self.finish.is_none() && !self.generated.is_empty() {
            true => positions.min(to_choose),
            false => 0,
        }
    }

    /// Sets the draft tokens of the next step, which are computed along with the tokens that must
    /// be: outputs of all of them are fed one by one then, as long as
    /// [`TextDecoder::has_accepted_draft`] says so. They change no token that is chosen.
    ///
    /// # Panics
    /// If there are more than [`TextDecoder::draft_room`].
    pub(crate) fn set_drafts(&mut self, tokens: &[u32]) {
        assert!(
            tokens.len() <= self.draft_room(),
            "more draft tokens than fit"
        );
        self.drafts = tokens.iter().copied().collect();
    }

    /// Returns whether the token chosen last was a draft token, so that its output is computed
    /// already: that output must be fed next.
    pub(crate) fn has_accepted_draft(&self) -> bool {
        self.finish.is_none() && self.last_was_draft
    }

    /// Takes the output after the last token of the sequence, of several outputs one, in their
    /// order; returns the text that is certain now, which never holds half a character nor any of a
    /// stop string.
    ///
    /// # Errors
    /// If no token can be chosen.
    ///
    /// # Panics
    /// If the text has ended.
    pub(crate) fn feed(
        &mut self,
        output: OutputValue<'_>,
        vocabulary: &dyn Vocabulary,
    ) -> Result<String, GenerationError> {
        assert!(self.finish.is_none(), "a text that has ended is fed");
        if self.options.max_tokens == Some(0) {
            return Ok(self.end(FinishReason::Length));
        }
        let chosen = match output {
            OutputValue::Argmax(id) => Some((id, None)),
            OutputValue::Candidates(largest) => Some((self.sampler.sample_from(largest)?, None)),
            OutputValue::Logits(logits) => self.choose(logits, vocabulary)?,
        };
        match chosen {
            Some((id, recorded)) => self.take(id, recorded, vocabulary),
            None => Ok(self.end(FinishReason::Stop)),
        }
    }

    /// Returns the number of tokens of the prompt and the text so far.
    fn n_tokens(&self) -> usize {
        self.n_prompt + self.generated.len() - self.discarded
    }

    /// Returns which tokens of the sequence, the one chosen last included, are to be dropped before
    /// the next step, because the context is full. They are handed out once.
    pub(crate) fn take_dropped(&mut self) -> Option<Range<usize>> {
        self.dropped.take()
    }

    /// Returns the number of tokens that context shifts have dropped.
    pub(crate) fn discarded(&self) -> usize {
        self.discarded
    }

    /// Makes room in a full context; returns false if that is not wanted.
    fn shifts(&mut self) -> bool {
        let Some(shift) = self.options.context_shift else {
            return false;
        };
        let dropped = shift.dropped(self.n_tokens(), self.n_prompt, self.has_bos);
        self.discarded += dropped.len();
        self.dropped = Some(dropped);
        true
    }

    /// Takes the token that comes next; returns the text that is certain now.
    fn take(
        &mut self,
        id: u32,
        recorded: Option<Logprobs>,
        vocabulary: &dyn Vocabulary,
    ) -> Result<String, GenerationError> {
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
        } else if self.n_tokens() > self.bounds.n_ctx && !self.shifts() {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        match finish {
            Some(finish) => text.push_str(&self.end(finish)),
            None => self.check_draft(id),
        }
        Ok(text)
    }

    /// Compares a chosen token with the first draft token; the others stay if the two are equal.
    fn check_draft(&mut self, id: u32) {
        self.last_was_draft = self.drafts.pop_front() == Some(id);
        if !self.last_was_draft {
            self.drafts.clear();
        }
    }

    /// Cancels it with what there is; returns the text that was held back.
    pub(crate) fn cancel(&mut self) -> String {
        if self.finish.is_some() {
            return String::new();
        }
        self.end(FinishReason::Cancelled)
    }

    /// Returns the log-probabilities of the tokens chosen so far, if asked for.
    pub(crate) fn logprobs(&self) -> &[Logprobs] {
        &self.logprobs
    }

    /// Returns the tokens chosen so far.
    pub(crate) fn generated(&self) -> &[u32] {
        &self.generated
    }

    /// Returns the finish reason; `None` as long as it has not ended.
    pub(crate) fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Returns the text; one that has not ended counts as cancelled.
    pub(crate) fn into_text(self) -> Text {
        Text {
            text: self.text,
            tokens: self.generated,
            finish: self.finish.unwrap_or(FinishReason::Cancelled),
            stopped_by: self.stopped_by,
            logprobs: self.logprobs,
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
    ) -> Result<(String, bool), GenerationError> {
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
        self.drafts.clear();
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
) -> Result<(), GenerationError> {
    let Bounds { n_ctx, n_vocab } = bounds;
    if prompt.is_empty() {
        return Err(GenerationError::EmptyPrompt);
    }
    if prompt.len() > n_ctx {
        let prompt = prompt.len();
        return Err(GenerationError::PromptTooLong { prompt, n_ctx });
    }
    // the caller knows which images are held
    let words = prompt.iter().filter(|id| !is_image_token(**id));
    let mut ids = words.chain(&options.stop_ids);
    match ids.find(|&&id| id as usize >= n_vocab) {
        Some(&id) => Err(GenerationError::UnknownToken { id, n_vocab }),
        None => Ok(()),
    }
}
