//! Reads message headers, which name the recipient, for formats whose answers consist of messages.

use super::schema::Tools;
use super::syntax::Headers;

/// Longest header, in bytes.
const MAX_HEADER: usize = 256;

/// Recipient of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The user: the message is content.
    User,
    /// The model itself: the message is reasoning.
    Itself,
    /// A function: arguments follow, or a call in tags.
    Function(String),
}

/// Result of reading a partial header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read {
    /// The header is incomplete.
    More,
    /// The text is not a header.
    Wrong,
    Done(Recipient),
}

impl Headers {
    /// Returns the texts that start a header anywhere.
    pub(super) fn starts(self) -> &'static [&'static str] {
        match self {
            Headers::Harmony => &["<|start|>assistant", "<|channel|>"],
            Headers::Muse => &["<|start|>assistant"],
            Headers::Functionary => &[">>>"],
        }
    }

    /// Returns the texts that start a header at the beginning of a message.
    pub(super) fn starts_message(self) -> &'static [&'static str] {
        match self {
            Headers::Harmony => &[" to=", "to="],
            Headers::Muse => &[" to=", "to=", "<|message|>"],
            Headers::Functionary => &[],
        }
    }

    /// Returns whether a header at the beginning of a message may start with this character.
    pub(super) fn may_begin_with(self, c: char) -> bool {
        self == Headers::Functionary && is_in_name(c)
    }

    /// Reads a header, including the text that starts it.
    pub(super) fn read(self, text: &str, tools: &Tools) -> Read {
        if text.len() > MAX_HEADER {
            return Read::Wrong;
        }
        match self {
            Headers::Functionary => functionary(text, tools),
            _ => match text.strip_suffix("<|message|>") {
                Some(header) => Read::Done(self.recipient(header, tools)),
                None if text.contains('\n') => Read::Wrong,
                None => Read::More,
            },
        }
    }

    fn recipient(self, header: &str, tools: &Tools) -> Recipient {
        let recipient = header
            .split("to=")
            .skip(1)
            .map(|rest| rest.split([' ', '<']).next().unwrap_or_default())
            .find(|recipient| *recipient != "assistant");
        let channel = header.rsplit_once("<|channel|>").map(|(_, rest)| rest);
        let is_analysis = channel.is_some_and(|channel| channel.starts_with("analysis"));
        match (self, recipient) {
            (Headers::Harmony, Some(name)) => match name.strip_prefix("functions.") {
                Some(function) => Recipient::Function(function.to_owned()),
                None if tools.knows(name) => Recipient::Function(name.to_owned()),
                // A built-in tool of the model, which is not available.
                None => Recipient::Itself,
            },
            (Headers::Harmony, None) if is_analysis => Recipient::Itself,
            (_, None | Some("user")) => Recipient::User,
            (_, Some("self")) => Recipient::Itself,
            (_, Some(name)) => Recipient::Function(name.to_owned()),
        }
    }
}

/// Reads `>>>all` or `>>>f`; the first header of an answer lacks the `>>>`.
fn functionary(text: &str, tools: &Tools) -> Read {
    let header = text.strip_prefix(">>>").unwrap_or(text);
    match header.strip_suffix('\n') {
        Some("all") => Read::Done(Recipient::User),
        Some(name) if tools.knows(name) => Read::Done(Recipient::Function(name.to_owned())),
        None if ">>>".starts_with(text) || header.chars().all(is_in_name) => Read::More,
        _ => Read::Wrong,
    }
}

fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || "_.-".contains(c)
}
