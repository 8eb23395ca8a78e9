//! Stop strings over streamed text: text that may turn out to be the start of a stop string is held
//! back.
//!
//! Text ends before the first stop string to be completed; if several are completed by the same
//! byte, before the one that starts first. That rule looks at bytes in order and not at how they
//! were cut into tokens, so the text streamed equals the text that a search after the fact would
//! leave.

/// An unusable stop string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index}: expected at least one character, got an empty string")]
pub struct EmptyStop {
    /// Its place in the list.
    pub index: usize,
}

/// One stop string as a Knuth-Morris-Pratt automaton: linear in the text, whatever the string
/// repeats.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[i]`: the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// How many leading bytes the text's end matches.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut k = border[i - 1];
            while k > 0 && bytes[i] != bytes[k] {
                k = border[k - 1];
            }
            border[i] = k + usize::from(bytes[i] == bytes[k]);
        }
        Pattern {
            bytes,
            border,
            matched: 0,
        }
    }

    /// Takes one byte of text; true if it completes the string.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

/// Watches one stream of text for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    stopped: bool,
}

/// What became of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Text that can no longer be part of a stop string.
    pub text: String,
    /// A stop string was completed: its place in the list. Nothing comes after.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// Watches for these strings; none at all lets everything pass at once.
    ///
    /// # Errors
    /// [`EmptyStop`]: an empty string would stop before the first character.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopMatcher, EmptyStop> {
        if let Some(index) = stops.iter().position(|s| s.as_ref().is_empty()) {
            return Err(EmptyStop { index });
        }
        let patterns = stops.iter().map(|s| Pattern::new(s.as_ref())).collect();
        Ok(StopMatcher {
            patterns,
            held: String::new(),
            stopped: false,
        })
    }

    /// Adds text; gives what may be shown. After a stop everything is dropped.
    pub fn push(&mut self, text: &str) -> Pushed {
        if self.stopped {
            return Pushed::default();
        }
        if self.patterns.is_empty() {
            return Pushed {
                text: text.to_owned(),
                stop: None,
            };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            let mut hit: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                let len = pattern.bytes.len();
                if pattern.step(byte) && hit.is_none_or(|(longest, _)| len > longest) {
                    hit = Some((len, index));
                }
            }
            if let Some((len, index)) = hit {
                self.stopped = true;
                self.held.truncate(before + i + 1 - len);
                return Pushed {
                    text: std::mem::take(&mut self.held),
                    stop: Some(index),
                };
            }
        }
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        // a match starts with a character's first byte, so the cut is between characters
        let rest = self.held.split_off(self.held.len() - keep);
        Pushed {
            text: std::mem::replace(&mut self.held, rest),
            stop: None,
        }
    }

    /// The stream is over without a stop: gives what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
