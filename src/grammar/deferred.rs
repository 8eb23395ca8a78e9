//! Deferred constraints: inactive until the model's reasoning ends, or until a tool call begins.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use octavo_engine::sample::{Constraint, ConstraintError, TokenSet};

use crate::constraint::{consume, error, mask};
use crate::marker::{Marker, Trigger, find, takes};
use crate::reasoning::Reasoning;
use crate::vocabulary::{Speller, Vocabulary};

/// Maximum bytes of white space between reasoning and what follows.
const MAX_BLANK: usize = 8;

/// State shared by all forks.
struct Shared {
    words: Arc<Vec<Vec<u8>>>,
    ends: Vec<u32>,
    /// Bit masks of all tokens, and of all but the end-of-generation tokens.
    all: Vec<u32>,
    going_on: Vec<u32>,
    /// Bit mask of white-space tokens.
    blanks: Vec<u32>,
    reasoning: Reasoning,
    /// Marker that closes the reasoning, and the tokens that spell it.
    close: Marker,
    close_tokens: Vec<u32>,
    several: bool,
    spell: Speller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Inside reasoning.
    Thought,
    /// Reasoning or the demanded text may begin; up to `blank` bytes of white space are skipped.
    Start { may_think: bool, blank: usize },
    /// The rule is enforced.
    Held,
    /// Nothing is enforced until a call opens.
    Waiting,
    /// Inside a call.
    Call,
}

/// A deferred constraint.
pub(crate) struct Deferred {
    shared: Arc<Shared>,
    state: State,
    /// The last bytes of the text, or all since the state began.
    tail: Vec<u8>,
    /// Rule to enforce after the reasoning.
    rule: Option<Matcher>,
    triggers: Vec<Trigger>,
    /// The grammar currently enforced.
    live: Option<Matcher>,
    /// Forced tokens that close the reasoning, the last one first.
    closing: Vec<u32>,
    /// Whether the text is still at its beginning.
    is_fresh: bool,
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deferred({:?})", self.state)
    }
}

impl Deferred {
    /// Creates a constraint that enforces a rule after the reasoning.
    pub(crate) fn after_reasoning(
        vocabulary: &Vocabulary,
        reasoning: &Reasoning,
        mut rule: Matcher,
    ) -> Deferred {
        let close = Marker::new(&vocabulary.words, &reasoning.close, |rest| {
            let rest = rest.trim_ascii_start();
            rest.is_empty() || takes(&mut rule, &vocabulary.spell(rest))
        });
        let shared = Shared::new(vocabulary, reasoning.clone(), close, false);
        let mut deferred = Deferred {
            shared: Arc::new(shared),
            state: State::Thought,
            tail: Vec::new(),
            rule: Some(rule),
            triggers: Vec::new(),
            live: None,
            closing: Vec::new(),
            is_fresh: true,
        };
        if !reasoning.is_open {
            deferred.start(true, 0);
        }
        deferred
    }

    /// Creates a constraint that enforces tool schemas once a call has begun.
    pub(crate) fn until_called(
        vocabulary: &Vocabulary,
        triggers: Vec<Trigger>,
        several: bool,
    ) -> Deferred {
        let close = Marker::new(&[], "", |_| true);
        let shared = Shared::new(vocabulary, Reasoning::default(), close, several);
        Deferred {
            shared: Arc::new(shared),
            state: State::Waiting,
            tail: Vec::new(),
            rule: None,
            triggers,
            live: None,
            closing: Vec::new(),
            is_fresh: true,
        }
    }

    fn start(&mut self, may_think: bool, blank: usize) {
        self.state = State::Start { may_think, blank };
        self.tail.clear();
        self.live = self.rule.as_ref().map(Matcher::deep_clone);
    }

    /// Returns the rule's mask, plus the tokens that may open reasoning and white space.
    fn allowed_at_start(
        &mut self,
        may_think: bool,
        blank: usize,
    ) -> Result<Vec<u32>, ConstraintError> {
        let mut words = match &mut self.live {
            Some(live) => mask(live)?,
            None => vec![0; self.shared.all.len()],
        };
        if blank > 0 && self.tail.is_empty() {
            let fits = |id: &&u32| self.shared.word(**id).len() <= blank;
            for id in self.shared.blanks.iter().filter(fits) {
                set(&mut words, *id, true);
            }
        }
        let opens = self.shared.reasoning.opens.iter().filter(|_| may_think);
        let opens = opens.filter_map(|open| open.as_bytes().strip_prefix(self.tail.as_slice()));
        for open in opens.filter(|open| !open.is_empty()) {
            for (id, word) in (0..).zip(self.shared.words.iter()) {
                let goes_on = open.starts_with(word) || word.starts_with(open);
                if goes_on && !word.is_empty() && !self.shared.ends.contains(&id) {
                    set(&mut words, id, true);
                }
            }
        }
        Ok(words)
    }

    /// Processes text inside reasoning, and looks for its end.
    fn think(&mut self, bytes: &[u8]) -> Result<(), ConstraintError> {
        self.tail.extend_from_slice(bytes);
        let close = &self.shared.close.text;
        let Some(at) = find(&self.tail, close) else {
            let excess = self.tail.len().saturating_sub(close.len());
            self.tail.drain(..excess);
            return Ok(());
        };
        let rest = self.tail.split_off(at + close.len());
        self.start(self.shared.reasoning.repeats, MAX_BLANK);
        let rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(());
        }
        for id in (self.shared.spell)(rest) {
            self.accept(id)?;
        }
        Ok(())
    }

    fn accept_at_start(
        &mut self,
        id: u32,
        may_think: bool,
        blank: usize,
    ) -> Result<(), ConstraintError> {
        let shared = Arc::clone(&self.shared);
        let word = shared.word(id);
        let is_blank = !word.is_empty() && word.trim_ascii().is_empty();
        if is_blank && word.len() <= blank && self.tail.is_empty() {
            let blank = blank - word.len();
            self.state = State::Start { may_think, blank };
            return Ok(());
        }
        let mut taken = false;
        if let Some(live) = &mut self.live
            && takes(live, &[id])
        {
            consume(live, id)?;
            taken = true;
        }
        self.tail.extend_from_slice(word);
        let opens = shared.reasoning.opens.iter().filter(|_| may_think);
        let mut is_begun = false;
        for open in opens.map(String::as_bytes) {
            if let Some(rest) = self.tail.strip_prefix(open) {
                let rest = rest.to_vec();
                self.state = State::Thought;
                self.live = None;
                self.tail.clear();
                return self.think(&rest);
            }
            is_begun |= open.starts_with(&self.tail);
        }
        if !taken {
            self.live = None;
        }
        if is_begun && !word.is_empty() {
            self.state = State::Start {
                may_think,
                blank: 0,
            };
        } else if taken {
            self.state = State::Held;
            self.tail.clear();
        } else {
            return Err(error(
                "a token that neither opens a thought nor meets the rule",
            ));
        }
        Ok(())
    }

    /// Processes text outside calls, and looks for an opener.
    fn wait(&mut self, bytes: &[u8]) -> Result<(), ConstraintError> {
        let before = self.tail.len();
        self.tail.extend_from_slice(bytes);
        let text = &self.tail;
        let opened = self.triggers.iter().filter_map(|trigger| {
            let marker = &trigger.marker.text;
            let at = match trigger.at_start {
                true if !self.is_fresh => None,
                true => {
                    let blank = text.len() - text.trim_ascii_start().len();
                    text[blank..].starts_with(marker).then_some(blank)
                }
                false => find(text, marker),
            };
            // an opener that was complete before this text has been handled
            let end = at? + marker.len();
            (end > before).then_some((end, trigger))
        });
        let opened = opened.min_by_key(|(end, _)| *end);
        if let Some((end, trigger)) = opened {
            let mut matcher = trigger.matcher.deep_clone();
            let rest = self.tail.split_off(end);
            let tokens = if rest.is_empty() {
                Vec::new()
            } else {
                (self.shared.spell)(&rest)
            };
            if tokens.is_empty() || takes(&mut matcher, &tokens) {
                tokens
                    .into_iter()
                    .try_for_each(|id| consume(&mut matcher, id))?;
                self.live = Some(matcher);
                self.state = State::Call;
                self.tail.clear();
                self.is_fresh = false;
                return Ok(());
            }
            self.tail = rest;
        }
        let longest = self
            .triggers
            .iter()
            .map(|trigger| trigger.marker.text.len())
            .max();
        let excess = self.tail.len().saturating_sub(longest.unwrap_or(0));
        let is_long = self.tail.trim_ascii_start().len() > longest.unwrap_or(0);
        self.is_fresh &= !is_long;
        if !self.is_fresh {
            self.tail.drain(..excess);
        }
        Ok(())
    }

    /// Returns whether a call is complete, so that other text may follow it.
    fn may_go_on(&mut self) -> Result<bool, ConstraintError> {
        match &mut self.live {
            Some(live) if self.shared.several => {
                Ok(live.is_stopped() || live.is_accepting().map_err(error)?)
            }
            _ => Ok(false),
        }
    }

    fn live(&mut self) -> Result<&mut Matcher, ConstraintError> {
        self.live
            .as_mut()
            .ok_or_else(|| error("no grammar is on its way"))
    }

    /// Returns all tokens except those that complete an opener in a way its call does not allow;
    /// `None` for all.
    fn allowed_while_waiting(&self) -> Option<Vec<u32>> {
        let banned = |trigger: &Trigger| {
            let mut all = trigger.marker.banned_after(&self.tail).peekable();
            all.peek().is_some().then(|| all.collect::<Vec<u32>>())
        };
        let triggers = self.triggers.iter();
        let may_open = |trigger: &&Trigger| self.is_fresh || !trigger.at_start;
        let lists: Vec<Vec<u32>> = triggers.filter(may_open).filter_map(banned).collect();
        if lists.is_empty() {
            return None;
        }
        let mut words = self.shared.all.clone();
        for id in lists.into_iter().flatten() {
            set(&mut words, id, false);
        }
        Some(words)
    }
}

impl Shared {
    fn new(vocabulary: &Vocabulary, reasoning: Reasoning, close: Marker, several: bool) -> Shared {
        let words = Arc::clone(&vocabulary.words);
        let mut all = vec![0; words.len().div_ceil(32)];
        (0..)
            .zip(words.iter())
            .for_each(|(id, _)| set(&mut all, id, true));
        let mut going_on = all.clone();
        vocabulary
            .ends
            .iter()
            .for_each(|id| set(&mut going_on, *id, false));
        let is_blank = |word: &[u8]| {
            !word.is_empty() && word.len() <= MAX_BLANK && word.trim_ascii().is_empty()
        };
        let blanks = (0..).zip(words.iter()).filter(|(_, word)| is_blank(word));
        Shared {
            blanks: blanks.map(|(id, _)| id).collect(),
            ends: vocabulary.ends.clone(),
            close_tokens: vocabulary.spell_marker(&close.text),
            all,
            going_on,
            reasoning,
            close,
            several,
            spell: vocabulary.speller(),
            words,
        }
    }

    fn word(&self, id: u32) -> &[u8] {
        self.words.get(id as usize).map_or(&[], Vec::as_slice)
    }
}

impl Constraint for Deferred {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        if let Some(next) = self.closing.last() {
            return Ok(Some(TokenSet::of([*next])));
        }
        let state = self.state;
        let words = match state {
            State::Thought => {
                let mut words = self.shared.going_on.clone();
                for id in self.shared.close.banned_after(&self.tail) {
                    set(&mut words, id, false);
                }
                words
            }
            State::Start { may_think, blank } => self.allowed_at_start(may_think, blank)?,
            State::Waiting => match self.allowed_while_waiting() {
                Some(words) => words,
                None => return Ok(None),
            },
            State::Call if self.may_go_on()? => return Ok(None),
            State::Held | State::Call => mask(self.live()?)?,
        };
        Ok(Some(TokenSet::from_words(words)))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        let shared = Arc::clone(&self.shared);
        let word = shared.word(id);
        if self.closing.last() == Some(&id) {
            self.closing.pop();
        }
        let state = self.state;
        match state {
            State::Thought => self.think(word),
            State::Start { may_think, blank } => self.accept_at_start(id, may_think, blank),
            State::Held => consume(self.live()?, id),
            State::Waiting => self.wait(word),
            State::Call => {
                if self.may_go_on()? {
                    let live = self.live()?;
                    if live.is_stopped() || !takes(live, &[id]) {
                        self.live = None;
                        self.state = State::Waiting;
                        return self.wait(word);
                    }
                }
                consume(self.live()?, id)
            }
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Deferred {
            shared: Arc::clone(&self.shared),
            state: self.state,
            tail: self.tail.clone(),
            // clones of inactive matchers share their caches
            rule: self.rule.clone(),
            triggers: self.triggers.iter().map(Trigger::dormant).collect(),
            live: self.live.as_ref().map(Matcher::deep_clone),
            closing: self.closing.clone(),
            is_fresh: self.is_fresh,
        })
    }

    fn closes_at_end(&self) -> bool {
        self.state == State::Thought && self.closing.is_empty()
    }

    fn close(&mut self) -> Option<u32> {
        self.closing = self.shared.close_tokens.iter().rev().copied().collect();
        self.closing.last().copied()
    }

    fn allows_all(&self) -> bool {
        self.state == State::Waiting && self.allowed_while_waiting().is_none()
    }
}

fn set(words: &mut [u32], id: u32, value: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        match value {
            true => *word |= 1 << (id % 32),
            false => *word &= !(1 << (id % 32)),
        }
    }
}
