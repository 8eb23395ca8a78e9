//! Errors of reading, writing or merging pieces, one line each.

use super::Part;

/// Error in a piece, or among pieces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a piece.
    #[error("{file}: expected a piece of a measurement (it begins with {expected:?}), got {got}")]
    NotAPiece {
        /// Path of the file.
        file: String,
        /// Expected start of the file.
        expected: &'static str,
        /// Kind of file found, as far as it can be determined.
        got: &'static str,
    },
    /// The file's digest does not match.
    #[error(
        "{file}: damaged or cut off: expected the SHA-256 {expected} that it ends with, got {got}"
    )]
    Damaged {
        /// Path of the file.
        file: String,
        /// Digest stored in the file.
        expected: String,
        /// Digest computed from the file.
        got: String,
    },
    /// The file is intact but cannot be decoded.
    #[error("{file}: expected the fields of a piece: {what}")]
    Fields {
        /// Path of the file.
        file: String,
        /// Decoder's error.
        what: String,
    },
    /// The content does not match its part.
    #[error("{file}: expected the units of its part, got something else")]
    Unsound {
        /// Path of the file.
        file: String,
    },
    /// A piece could not be encoded.
    #[error("{file}: cannot write it: {what}")]
    Encoding {
        /// Path of the file.
        file: String,
        /// Encoder's error.
        what: String,
    },
    /// No pieces were given.
    #[error("no pieces: expected at least one")]
    Nothing,
    /// Two pieces of different measurements.
    #[error(
        "{file}: piece of another measurement: {what}: expected {expected} as in {other}, got {got}"
    )]
    Differs {
        /// Path of the piece.
        file: String,
        /// Path of the piece it was compared with.
        other: String,
        /// Setting that differs.
        what: String,
        /// Value in the other piece.
        expected: String,
        /// Value in the piece.
        got: String,
    },
    /// Two pieces of the same part.
    #[error("{file}: part {part} is there twice: expected it once, {other} has it too")]
    Twice {
        /// Path of the piece.
        file: String,
        /// Path of the other piece.
        other: String,
        /// Part that both hold.
        part: Part,
    },
    /// Some parts have no piece.
    #[error("parts missing: {missing} of {of}: expected a piece of every part, got {got}")]
    Missing {
        /// Numbers of the missing parts, as in `3,5-7`.
        missing: String,
        /// Number of all parts.
        of: u32,
        /// Number of pieces given.
        got: usize,
    },
}
