//! Stop strings over streamed text: text that may turn out to be the start of a stop string is held
//! back.
//!
//! Text ends before the stop string completed first; if several are completed by the same byte,
//! before the one that starts first. This rule depends on bytes in order, not on token boundaries,
//! so the streamed text equals the result of a search in the whole text.

/// An unusable stop string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index}: expected at least one character, got an empty string")]
pub struct EmptyStop {
    /// Index in the list.
    pub index: usize,
}

/// One stop string as a Knuth-Morris-Pratt automaton: linear in the text, even for repetitive
/// strings.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// Number of leading bytes that the end of the text matches.
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

    /// Reads one byte of text; returns true if it completes the string.
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

/// Result of pushing a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Text that can no longer be part of a stop string.
    pub text: String,
    /// Index of the stop string that was completed. No text follows.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher for these strings; without any, text passes through unchanged.
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

    /// Adds text; returns the part that may be shown. After a stop, text is dropped.
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

    /// Ends the stream without a stop; returns the text held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
