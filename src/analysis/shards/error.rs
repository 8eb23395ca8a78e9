//! Errors of reading, writing or merging shards, one line each.

use super::ShardIndex;

/// Error in a shard, or among shards.
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
    /// The file is not a shard.
    #[error("{file}: expected a shard of a measurement (it begins with {expected:?}), got {got}")]
    NotAShard {
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
    #[error("{file}: expected the fields of a shard: {what}")]
    Fields {
        /// Path of the file.
        file: String,
        /// Decoder's error.
        what: String,
    },
    /// The content does not match the index.
    #[error("{file}: expected the units of its index, got something else")]
    Unsound {
        /// Path of the file.
        file: String,
    },
    /// A shard could not be encoded.
    #[error("{file}: cannot write it: {what}")]
    Encoding {
        /// Path of the file.
        file: String,
        /// Encoder's error.
        what: String,
    },
    /// No shards were given.
    #[error("no shards: expected at least one")]
    Nothing,
    /// Two shards of different measurements.
    #[error(
        "{file}: shard of another measurement: {what}: expected {expected} as in {other}, got {got}"
    )]
    Differs {
        /// Path of the shard.
        file: String,
        /// Path of the shard it was compared with.
        other: String,
        /// Setting that differs.
        what: String,
        /// Value in the other shard.
        expected: String,
        /// Value in the shard.
        got: String,
    },
    /// Two files of the same shard.
    #[error("{file}: shard {index} is there twice: expected it once, {other} has it too")]
    Twice {
        /// Path of the shard.
        file: String,
        /// Path of the other shard.
        other: String,
        /// Index that both have.
        index: ShardIndex,
    },
    /// Some shards have no file.
    #[error("shards missing: {missing} of {of}: expected every shard, got {got}")]
    Missing {
        /// Numbers of the missing shards, as in `3,5-7`.
        missing: String,
        /// Number of all shards.
        of: u32,
        /// Number of shards given.
        got: usize,
    },
}
