//! Reads a file's bytes front to back; every length is compared with the bytes left before it is
//! used.

use byteorder::{ByteOrder, LittleEndian};

use crate::{Error, error::Quoted, value::split_string};
use std::fmt;

/// The item being read: created for every read, formatted only on failure.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    Header(&'static str),
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            What::Header(field) => f.write_str(field),
            What::Key(index) => write!(f, "key number {index}"),
            What::Value(key) => write!(f, "the value of key {}", Quoted(key)),
            What::TensorName(index) => write!(f, "the name of tensor number {index}"),
            What::Tensor(name) => write!(f, "the description of tensor {}", Quoted(name)),
        }
    }
}

/// A range of a file, checked to lie inside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: usize,
    len: usize,
}

impl Span {
    pub(crate) fn start(self) -> usize {
        self.start
    }

    pub(crate) fn of(self, file: &[u8]) -> &[u8] {
        file.get(self.start..)
            .and_then(|tail| tail.get(..self.len))
            .unwrap_or(&[])
    }
}

pub(crate) struct Cursor<'a> {
    pub(crate) file: &'a str,
    total: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor {
            file,
            total: bytes.len(),
            rest: bytes,
        }
    }

    pub(crate) fn at(&self) -> usize {
        self.total.saturating_sub(self.rest.len())
    }

    pub(crate) fn left(&self) -> u64 {
        self.rest.len() as u64
    }

    /// Returns the range from `start` to the current position.
    pub(crate) fn span_from(&self, start: usize) -> Span {
        Span {
            start,
            len: self.at().saturating_sub(start),
        }
    }

    #[cold]
    pub(crate) fn truncated(&self, what: What<'_>, needed: u64) -> Error {
        let (left, at) = (self.left(), self.at() as u64);
        Error::Truncated {
            file: self.file.to_owned(),
            what: what.to_string(),
            needed,
            left,
            at,
        }
    }

    /// Fails unless the bytes left have room for `count` records of at least `min` bytes each.
    pub(crate) fn room(&self, count: u64, min: u64, what: What<'_>) -> Result<(), Error> {
        match count.checked_mul(min) {
            Some(needed) if needed <= self.left() => Ok(()),
            needed => Err(self.truncated(what, needed.unwrap_or(u64::MAX))),
        }
    }

    pub(crate) fn take(&mut self, n: u64, what: What<'_>) -> Result<&'a [u8], Error> {
        let split = usize::try_from(n)
            .ok()
            .and_then(|n| self.rest.split_at_checked(n));
        let (head, rest) = split.ok_or_else(|| self.truncated(what, n))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: What<'_>) -> Result<[u8; N], Error> {
        let split = self.rest.split_first_chunk::<N>();
        let (head, rest) = split.ok_or_else(|| self.truncated(what, N as u64))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn magic(&mut self) -> Result<[u8; 4], Error> {
        self.array(What::Header("the magic"))
    }

    pub(crate) fn u32(&mut self, what: What<'_>) -> Result<u32, Error> {
        Ok(LittleEndian::read_u32(&self.array::<4>(what)?))
    }

    pub(crate) fn u64(&mut self, what: What<'_>) -> Result<u64, Error> {
        Ok(LittleEndian::read_u64(&self.array::<8>(what)?))
    }

    /// Skips one string of an array of strings.
    pub(crate) fn skip_string(&mut self, what: What<'_>) -> Result<(), Error> {
        match split_string(self.rest) {
            Some((_, rest)) => {
                self.rest = rest;
                Ok(())
            }
            None => {
                let len = self.u64(what)?;
                Err(self.truncated(what, len))
            }
        }
    }
}
