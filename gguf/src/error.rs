//! Errors of GGUF files, with the data that their messages need.

use crate::TensorType;
use std::fmt;

/// Reason why a file could not be opened, read or written. Each message is one line that starts
/// with the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are what the message above them says
pub enum Error {
    #[error("{file}: cannot {action}: {source}")]
    Io {
        file: String,
        action: &'static str,
        source: std::io::Error,
    },
    #[error("{file}: not a regular file")]
    NotAFile { file: String },
    #[error("{file}: expected {expected} to write to, got {got}")]
    Target {
        file: String,
        expected: &'static str,
        got: &'static str,
    },
    #[error("{file}: another file took this name meanwhile, and stays: expected none")]
    NameTaken { file: String },
    #[error("{file}: {bytes} bytes of memory are not to be had; open it memory-mapped")]
    NoMemory { file: String, bytes: u64 },
    #[error(
        "{file}: changed while it was in use: expected {expected} bytes{}",
        found(*expected, *got)
    )]
    Changed {
        file: String,
        expected: u64,
        got: u64,
    },
    #[error(
        "{file}: truncated: {what} needs {needed} bytes, the file has {left} left at offset {at}"
    )]
    Truncated {
        file: String,
        what: String,
        needed: u64,
        left: u64,
        at: u64,
    },
    #[error(
        "{file}: not a GGUF file: it starts with \"{}\", expected \"GGUF\"",
        got.escape_ascii()
    )]
    Magic { file: String, got: [u8; 4] },
    #[error(
        "{file}: a big-endian GGUF file (version {version}); only little-endian files are supported"
    )]
    BigEndian { file: String, version: u32 },
    #[error("{file}: GGUF version {got}{}; expected version 2 or 3", no_longer(*got))]
    Version { file: String, got: u32 },
    #[error("{file}: the header claims {got} {what}, expected at most {max}")]
    Count {
        file: String,
        what: &'static str,
        got: u64,
        max: u64,
    },
    #[error("{file}: key number {index} is empty")]
    EmptyKey { file: String, index: u64 },
    #[error("{file}: key number {index} is {got} bytes long, expected at most 65535")]
    KeyLength { file: String, index: u64, got: u64 },
    #[error("{file}: {what} {} is not UTF-8", Quoted(text))]
    NotUtf8 {
        file: String,
        what: &'static str,
        text: String,
    },
    #[error(
        "{file}: key {}: unknown value type {got}, expected 0 to 12",
        Quoted(key)
    )]
    ValueTypeId { file: String, key: String, got: u32 },
    #[error(
        "{file}: key {}: an array of arrays, which is not supported",
        Quoted(key)
    )]
    NestedArray { file: String, key: String },
    #[error("{file}: key {} appears twice", Quoted(key))]
    DuplicateKey { file: String, key: String },
    #[error("{file}: key {} is not there: expected a key of the file", Quoted(key))]
    NoKey { file: String, key: String },
    #[error(
        "{file}: key {} says how the model is split: expected another key",
        Quoted(key)
    )]
    KeyOfSplit { file: String, key: String },
    #[error("{file}: key {}: expected {expected}, got {got}", Quoted(key))]
    KeyType {
        file: String,
        key: String,
        expected: &'static str,
        got: String,
    },
    #[error(
        "{file}: key {} is of type {expected}: cannot be given {got}",
        Quoted(key)
    )]
    KeyChange {
        file: String,
        key: String,
        expected: String,
        got: String,
    },
    #[error("{file}: key {}: value {got} does not fit {expected}", Quoted(key))]
    KeyRange {
        file: String,
        key: String,
        expected: &'static str,
        got: String,
    },
    #[error("{file}: general.alignment is {got}, expected a power of two up to 1048576")]
    Alignment { file: String, got: u32 },
    #[error("{file}: the name of tensor number {index} is {got} bytes long, expected at most 63")]
    TensorNameLength { file: String, index: u64, got: u64 },
    #[error(
        "{file}: tensor {}: {got} dimensions, expected at most 4",
        Quoted(tensor)
    )]
    TensorDims {
        file: String,
        tensor: String,
        got: u64,
    },
    #[error(
        "{file}: tensor {}: type {got} ({name}) was removed from ggml; convert the model again",
        Quoted(tensor)
    )]
    TensorTypeRemoved {
        file: String,
        tensor: String,
        got: u32,
        name: &'static str,
    },
    #[error("{file}: tensor {}: unknown type {got}", Quoted(tensor))]
    TensorTypeId {
        file: String,
        tensor: String,
        got: u32,
    },
    #[error(
        "{file}: tensor {}: rows of {got} elements, expected a multiple of {ty}'s block of {}",
        Quoted(tensor),
        ty.block_len()
    )]
    TensorRow {
        file: String,
        tensor: String,
        ty: TensorType,
        got: u64,
    },
    #[error(
        "{file}: tensor {}: the size of {dims:?} {ty} is not representable",
        Quoted(tensor)
    )]
    TensorSize {
        file: String,
        tensor: String,
        dims: Vec<u64>,
        ty: TensorType,
    },
    #[error("{file}: tensor {}: offset {got}, expected {expected}", Quoted(tensor))]
    TensorOffset {
        file: String,
        tensor: String,
        expected: u64,
        got: u64,
    },
    #[error(
        "{file}: tensor {}: its data ends at byte {end}, the file at byte {len}",
        Quoted(tensor)
    )]
    TensorPastEnd {
        file: String,
        tensor: String,
        end: u64,
        len: u64,
    },
    #[error("{file}: the padding after the last tensor ends at byte {end}, the file at byte {len}")]
    PaddingPastEnd { file: String, end: u64, len: u64 },
    #[error("{file}: tensor {} appears twice{}", Quoted(tensor), Also(other))]
    DuplicateTensor {
        file: String,
        tensor: String,
        other: Option<String>,
    },
    #[error("{file}: part {no} of a model split in {count}; open its first part, {first}")]
    NotFirstPart {
        file: String,
        no: u64,
        count: u64,
        first: String,
    },
    #[error("{file}: the first of {count} parts must be named like {expected}")]
    SplitName {
        file: String,
        count: u64,
        expected: String,
    },
    #[error("{file}: part {no} of {count} is missing")]
    SplitMissing { file: String, no: u64, count: u64 },
    #[error("{file}: part {no} of a split model: {key} is {got}, expected {expected}")]
    SplitKey {
        file: String,
        no: u64,
        key: &'static str,
        expected: u64,
        got: String,
    },
    #[error("{file}: a model split in {count} parts: expected one file")]
    SplitModel { file: String, count: u64 },
    #[error("{file}: a model split in {count} parts, of which memory holds the first only")]
    SplitInMemory { file: String, count: u64 },
    #[error(
        "{file}: tensor {}: {got} bytes were written, expected {expected}",
        Quoted(tensor)
    )]
    TensorData {
        file: String,
        tensor: String,
        expected: u64,
        got: u64,
    },
}

/// Text from a file inside a message: quoted, control characters escaped, cut at 64 characters.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars();
        f.write_str("\"")?;
        for c in chars.by_ref().take(64) {
            write!(f, "{}", c.escape_debug())?;
        }
        f.write_str(if chars.next().is_some() {
            "…\""
        } else {
            "\""
        })
    }
}

/// The second file of a duplicate, where there is one.
struct Also<'a>(&'a Option<String>);

impl fmt::Display for Also<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(file) => write!(f, ", also in {file}"),
            None => Ok(()),
        }
    }
}

/// Describes the bytes found instead of the expected ones.
fn found(expected: u64, got: u64) -> String {
    match got == expected {
        true => ", found others in their place".to_owned(),
        false => format!(", found {got}"),
    }
}

/// Explains why a formerly valid version is refused.
fn no_longer(version: u32) -> &'static str {
    match version {
        1 => " (GGUFv1 is no longer supported)",
        _ => "",
    }
}

/// Formats a path for messages: control characters are escaped, so that a message stays one line.
pub(crate) fn label(path: &std::path::Path) -> String {
    one_line(&path.to_string_lossy())
}

pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_debug());
        } else {
            out.push(c);
        }
    }
    out
}
