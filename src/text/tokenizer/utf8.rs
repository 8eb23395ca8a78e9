//! Streaming UTF-8 decoder: never outputs half a character.

/// Collects bytes and returns complete text. At most three bytes wait for the rest of their
/// character; invalid bytes become U+FFFD at once.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    waiting: Vec<u8>,
}

impl Utf8Stream {
    /// Creates an empty stream.
    pub fn new() -> Utf8Stream {
        Utf8Stream::default()
    }

    /// Adds bytes and returns the text they complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.waiting.extend_from_slice(bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let mut rest = waiting.as_slice();
        let mut text = String::with_capacity(rest.len());
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(broken) = error.error_len() else {
                        self.waiting = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = after.get(broken..).unwrap_or_default();
                }
            }
        }
    }

    /// Ends the stream: returns U+FFFD if a character was left incomplete.
    pub fn finish(&mut self) -> String {
        let incomplete = !std::mem::take(&mut self.waiting).is_empty();
        if incomplete {
            char::REPLACEMENT_CHARACTER.to_string()
        } else {
            String::new()
        }
    }

    /// Returns whether bytes are waiting for the rest of their character.
    pub fn is_incomplete(&self) -> bool {
        !self.waiting.is_empty()
    }
}
