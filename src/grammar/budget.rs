//! Reasoning budget: closes reasoning that has become too long.
//!
//! A model learns nothing of its budget. Once that is used up, the tokens of a message and of the
//! marker that closes the reasoning are forced, as llama.cpp does it, and the model goes on from
//! there.

use std::fmt;
use std::sync::Arc;

use octavo_engine::Engine;
use octavo_engine::sample::{Constraint, ConstraintError, TokenSet};
use octavo_text::tokenizer::EncodeOptions;

use crate::error::Error;
use crate::marker::find;
use crate::reasoning::Reasoning;
use crate::vocabulary::text;

/// Longest character of UTF-8, in bytes.
const MAX_CHARACTER: usize = 4;

/// Limit of a model's reasoning. By default there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// Maximum number of tokens of a reasoning block; `None` for no limit.
    pub tokens: Option<usize>,
    /// Text to write before the marker that closes a block which has become too long.
    pub message: String,
}

/// State shared by all forks.
struct Shared {
    engine: Engine,
    /// Texts that open and close reasoning.
    open: Vec<u8>,
    close: Vec<u8>,
    /// Whether further reasoning blocks may follow, anywhere in the text.
    repeats: bool,
    /// Maximum number of tokens of a block.
    budget: usize,
    /// Tokens that close a block, the last one first: alone, and with the message before.
    closing: Vec<u32>,
    closing_with_message: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Reasoning may begin.
    Before,
    /// Inside reasoning, which may have this many more tokens.
    Reasoning { left: usize },
    /// These tokens are forced, the last one first.
    Closing(Vec<u32>),
    /// No reasoning can begin any more.
    Over,
}

/// A constraint that limits reasoning, around one for the rest of the answer, if there is any.
pub(crate) struct Budgeted {
    shared: Arc<Shared>,
    state: State,
    /// The last bytes of the text, or all since the state began.
    tail: Vec<u8>,
    inner: Option<Box<dyn Constraint>>,
}

impl fmt::Debug for Budgeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budgeted({:?}, {:?})", self.state, self.inner)
    }
}

impl Budgeted {
    /// Limits the reasoning before what another constraint restricts. Returns that constraint alone
    /// if there is no limit, or no reasoning that it could be of.
    ///
    /// # Errors
    /// If the vocabulary cannot spell the message or the marker.
    pub(crate) fn around(
        inner: Option<Box<dyn Constraint>>,
        engine: &Engine,
        reasoning: &Reasoning,
    ) -> Result<Option<Box<dyn Constraint>>, Error> {
        let Some(budget) = reasoning.budget.tokens.filter(|_| reasoning.is_possible()) else {
            return Ok(inner);
        };
        let spell = |text: &str, parse_special| {
            let options = EncodeOptions {
                parse_special,
                ..EncodeOptions::PIECE
            };
            let ids = engine.tokenizer().encode(text.as_bytes(), options);
            ids.map_err(|error| Error::Vocabulary(error.to_string()))
        };
        let mut closing = spell(&reasoning.close, true)?;
        closing.reverse();
        let mut message = spell(&reasoning.budget.message, false)?;
        message.reverse();
        let mut budgeted = Budgeted {
            shared: Arc::new(Shared {
                engine: engine.clone(),
                open: reasoning.open.clone().into_bytes(),
                close: reasoning.close.clone().into_bytes(),
                repeats: reasoning.repeats,
                budget,
                closing_with_message: [&closing[..], &message].concat(),
                closing,
            }),
            state: State::Before,
            tail: Vec::new(),
            inner,
        };
        if reasoning.is_open {
            budgeted.begin(&[]);
        }
        Ok(Some(Box::new(budgeted)))
    }

    /// Begins a block of reasoning, of which this text is there already.
    fn begin(&mut self, text: &[u8]) {
        self.tail = text.to_vec();
        self.state = match find(text, &self.shared.close) {
            Some(_) => return self.end(),
            None if self.shared.budget == 0 => self.closing(),
            None => State::Reasoning {
                left: self.shared.budget,
            },
        };
    }

    /// Ends a block of reasoning.
    fn end(&mut self) {
        self.tail.clear();
        self.state = match self.shared.repeats {
            true => State::Before,
            false => State::Over,
        };
    }

    fn closing(&self) -> State {
        State::Closing(self.shared.closing_with_message.clone())
    }

    /// Looks for the marker that opens reasoning. Where blocks cannot repeat, that is the beginning
    /// of the answer.
    fn wait(&mut self) {
        let shared = Arc::clone(&self.shared);
        let found = match shared.repeats {
            true => find(&self.tail, &shared.open),
            false => {
                let blank = self.tail.len() - self.tail.trim_ascii_start().len();
                let is_open = self.tail[blank..].starts_with(&shared.open);
                is_open.then_some(blank)
            }
        };
        if let Some(at) = found {
            let rest = self.tail.split_off(at + shared.open.len());
            return self.begin(&rest);
        }
        match shared.repeats {
            true => self.shorten(shared.open.len()),
            false if !shared.open.starts_with(self.tail.trim_ascii_start()) => {
                self.tail.clear();
                self.state = State::Over;
            }
            false => {}
        }
    }

    /// Takes a token of the reasoning; `left` more may have followed before it.
    fn count(&mut self, left: usize) {
        if find(&self.tail, &self.shared.close).is_some() {
            return self.end();
        }
        self.shorten(self.shared.close.len().max(MAX_CHARACTER));
        let left = left.saturating_sub(1);
        self.state = match left == 0 && !ends_inside_character(&self.tail) {
            true => self.closing(),
            false => State::Reasoning { left },
        };
    }

    /// Drops all but the last `n` bytes of the text.
    fn shorten(&mut self, n: usize) {
        self.tail.drain(..self.tail.len().saturating_sub(n));
    }
}

impl Constraint for Budgeted {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        match (&self.state, &mut self.inner) {
            (State::Closing(tokens), _) => Ok(tokens.last().map(|id| TokenSet::of([*id]))),
            (_, Some(inner)) => inner.allowed(),
            (_, None) => Ok(None),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        if let Some(inner) = &mut self.inner {
            inner.accept(id)?;
        }
        if self.state == State::Over {
            return Ok(());
        }
        self.tail
            .extend_from_slice(text(self.shared.engine.tokenizer(), id));
        match &mut self.state {
            State::Before => self.wait(),
            State::Reasoning { left } => {
                let left = *left;
                self.count(left);
            }
            State::Closing(tokens) => {
                tokens.pop();
                if tokens.is_empty() {
                    self.end();
                }
            }
            State::Over => {}
        }
        Ok(())
    }

    fn allows_all(&self) -> bool {
        let is_forced = matches!(self.state, State::Closing(_));
        let inner = self.inner.as_ref();
        !is_forced && inner.is_none_or(|inner| inner.allows_all())
    }

    fn closes_at_end(&self) -> bool {
        let may_close = matches!(self.state, State::Reasoning { .. });
        let inner = self.inner.as_ref();
        may_close && inner.is_some_and(|inner| inner.closes_at_end())
    }

    fn close(&mut self) -> Option<u32> {
        let tokens = self.shared.closing.clone();
        let first = tokens.last().copied();
        self.state = State::Closing(tokens);
        first
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Budgeted {
            shared: Arc::clone(&self.shared),
            state: self.state.clone(),
            tail: self.tail.clone(),
            inner: self.inner.as_ref().map(|inner| inner.fork()),
        })
    }
}

/// Returns whether a text ends with a part of a character. Bytes that are none count as whole.
fn ends_inside_character(text: &[u8]) -> bool {
    let mut last = text.iter().rev().take(MAX_CHARACTER).enumerate();
    let Some((follow, lead)) = last.find(|(_, byte)| *byte & 0xc0 != 0x80) else {
        return false;
    };
    let length = match lead {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    follow + 1 < length
}

#[cfg(test)]
mod tests {
    use super::ends_inside_character;

    #[test]
    fn a_character_is_whole_or_not() {
        for text in ["", "a", "ä", "a€", "🦀", "🦀a"] {
            assert!(!ends_inside_character(text.as_bytes()), "{text}");
        }
        for text in ["ä", "a€", "🦀", "a🦀"] {
            let length = text.chars().last().map_or(0, char::len_utf8);
            for cut in 1..length {
                let begun = &text.as_bytes()[..text.len() - cut];
                assert!(ends_inside_character(begun), "{text}, {cut} bytes less");
            }
        }
        // no character ends like this, so nothing can be waited for
        assert!(!ends_inside_character(b"\x80\x80\x80\x80\x80"));
        assert!(!ends_inside_character(b"\xff"));
    }
}
