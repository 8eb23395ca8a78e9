//! Why pieces cannot be read, written or merged: one line each.

use super::Part;

/// What is wrong with a piece, or with pieces together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// Which.
        file: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{file}: expected a piece of a measurement (it begins with {expected:?}), got {got}")]
    NotAPiece {
        /// The file.
        file: String,
        /// How it would begin.
        expected: &'static str,
        /// What it is, as far as that can be told.
        got: &'static str,
    },
    /// The file is not as it was written.
    #[error(
        "{file}: damaged or cut off: expected the SHA-256 {expected} that it ends with, got {got}"
    )]
    Damaged {
        /// The file.
        file: String,
        /// In the file.
        expected: String,
        /// Of the file.
        got: String,
    },
    /// The file is whole and cannot be understood.
    #[error("{file}: expected the fields of a piece: {what}")]
    Fields {
        /// The file.
        file: String,
        /// What stands against it.
        what: String,
    },
    /// Its content is not that of its part.
    #[error("{file}: expected the units of its part, got something else")]
    Unsound {
        /// The file.
        file: String,
    },
    /// It could not be encoded.
    #[error("{file}: cannot write it: {what}")]
    Encoding {
        /// The file.
        file: String,
        /// What stands against it.
        what: String,
    },
    /// No piece at all.
    #[error("no pieces: expected at least one")]
    Nothing,
    /// Two pieces of different measurements.
    #[error(
        "{file}: piece of another measurement: {what}: expected {expected} as in {other}, got {got}"
    )]
    Differs {
        /// The piece.
        file: String,
        /// The piece that it was held against.
        other: String,
        /// What is different.
        what: String,
        /// The other's.
        expected: String,
        /// The piece's.
        got: String,
    },
    /// The same part again.
    #[error("{file}: part {part} is there twice: expected it once, {other} has it too")]
    Twice {
        /// The piece.
        file: String,
        /// The other one.
        other: String,
        /// The part.
        part: Part,
    },
    /// Parts that no piece has.
    #[error("parts missing: {missing} of {of}: expected a piece of every part, got {got}")]
    Missing {
        /// Their numbers, as in `3,5-7`.
        missing: String,
        /// All parts.
        of: u32,
        /// Pieces there are.
        got: usize,
    },
}
