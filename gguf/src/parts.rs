//! Splits a model into several files and joins them: names, keys and bytes of llama-gguf-split.

use crate::gguf::Gguf;
use crate::layout::{self, DEFAULT_ALIGNMENT};
use crate::split::{COUNT, MAX_PARTS, NO, TENSORS, suffix};
use crate::{Error, NewFile, OwnedValue, TensorInfo, Writer, error};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest part of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLimit {
    /// Number of tensors, at least 1.
    Tensors(usize),
    /// Bytes of tensors, each padded to 32. A larger tensor has a part of its own.
    Bytes(u64),
}

/// A part of a split model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Path of the file.
    pub path: PathBuf,
    /// Indices of its tensors.
    pub tensors: Range<usize>,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// The division of a model into files.
pub struct SplitPlan<'g> {
    gguf: &'g Gguf,
    parts: Vec<Part>,
}

impl<'g> SplitPlan<'g> {
    /// Divides a model, in the order of its tensors, into files named
    /// `PREFIX-00001-of-00003.gguf`. With `keys_apart` the first part has the keys and no tensor.
    ///
    /// # Errors
    /// More than 1024 parts, or an invalid directory.
    pub fn new(
        gguf: &'g Gguf,
        prefix: &Path,
        limit: PartLimit,
        keys_apart: bool,
    ) -> Result<SplitPlan<'g>, Error> {
        let mut ranges = divide(gguf.tensors(), limit);
        if keys_apart {
            ranges.insert(0, 0..0);
        }
        let count = ranges.len() as u64;
        crate::parse::limit(gguf.name(), "parts", count, MAX_PARTS)?;
        let mut plan = SplitPlan {
            gguf,
            parts: Vec::new(),
        };
        for (no, tensors) in (1..).zip(ranges) {
            let mut name = prefix.as_os_str().to_owned();
            name.push(suffix(no, count));
            let mut part = Part {
                path: PathBuf::from(name),
                tensors,
                bytes: 0,
            };
            part.bytes = plan.bytes(&part, no, count)?;
            plan.parts.push(part);
        }
        Ok(plan)
    }

    /// Returns the files to write.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the tensors of a part.
    pub fn tensors(&self, part: &Part) -> &'g [TensorInfo] {
        self.gguf.tensors().get(part.tensors.clone()).unwrap_or(&[])
    }

    fn bytes(&self, part: &Part, no: u64, count: u64) -> Result<u64, Error> {
        let writer = self.writer(part, no, count);
        let alignment = writer.alignment_or_default();
        let sizes = self.tensors(part).iter().map(|t| {
            // the file that has it says how large it is
            layout::pad(t.bytes, alignment).unwrap_or(t.bytes)
        });
        let data = sizes.fold(0, u64::saturating_add);
        Ok(writer.head_bytes(self.gguf.name())?.saturating_add(data))
    }

    fn writer(&self, part: &Part, no: u64, count: u64) -> Writer<'g> {
        let mut writer = Writer::new();
        if no == 1 {
            for (key, value) in self.gguf.keys() {
                writer.set(key, value);
            }
        }
        // the order in which llama-gguf-split sets them: the count last, once it is known
        let total = i32::try_from(self.gguf.tensors().len()).unwrap_or(i32::MAX);
        let keys: [(&str, OwnedValue); 3] = [
            (NO, to_u16(no.saturating_sub(1)).into()),
            (TENSORS, total.into()),
            (COUNT, to_u16(count).into()),
        ];
        for (key, value) in keys {
            writer.remove(key).set(key, value);
        }
        for tensor in self.tensors(part) {
            let data = self.gguf.stream(tensor);
            writer.tensor(&tensor.name, tensor.counted_dims(), tensor.ty, data);
        }
        writer.padded();
        writer
    }

    /// Writes all files; `written` is called after each. They take their names only when all of
    /// them are on the disk.
    ///
    /// # Errors
    /// A failed write: no file has its name then, unless renaming failed.
    pub fn write(&self, written: &mut dyn FnMut(&Part)) -> Result<(), Error> {
        let count = self.parts.len() as u64;
        let mut files = Vec::new();
        for (no, part) in (1..).zip(&self.parts) {
            let new = NewFile::beside(&part.path)?;
            let label = error::label(&part.path);
            let failed = |source| Error::Io {
                file: label.clone(),
                action: "write it",
                source,
            };
            let file = std::fs::File::options().write(true).open(new.path());
            let mut out = BufWriter::with_capacity(1 << 20, file.map_err(failed)?);
            self.writer(part, no, count).write_named(&label, &mut out)?;
            out.flush().map_err(failed)?;
            files.push(new);
            written(part);
        }
        files.into_iter().try_for_each(NewFile::publish)
    }
}

/// Returns an index that is below [`MAX_PARTS`] in the type in which files have it.
fn to_u16(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Returns the indices of each part's tensors: one part at least.
fn divide(tensors: &[TensorInfo], limit: PartLimit) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (i, tensor) in tensors.iter().enumerate() {
        let padded = layout::pad(tensor.bytes, DEFAULT_ALIGNMENT).unwrap_or(tensor.bytes);
        let next = bytes.saturating_add(padded);
        let is_full = match limit {
            PartLimit::Tensors(most) => i.saturating_sub(start) >= most.max(1),
            PartLimit::Bytes(most) => next > most && i > start,
        };
        bytes = next;
        if is_full {
            parts.push(start..i);
            (start, bytes) = (i, padded);
        }
    }
    parts.push(start..tensors.len());
    parts
}

/// Returns the writer of a model as one file: its keys with a number of parts of 0, which tells
/// that it was split, as llama-gguf-split leaves it.
pub fn merged(gguf: &Gguf) -> Writer<'_> {
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    if gguf.get(COUNT).is_some() {
        writer.remove(COUNT).set(COUNT, 0u16);
    }
    for tensor in gguf.tensors() {
        let data = gguf.stream(tensor);
        writer.tensor(&tensor.name, tensor.counted_dims(), tensor.ty, data);
    }
    writer.padded();
    writer
}
