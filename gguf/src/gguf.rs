//! An open model: the directory of all its parts and the bytes of its tensors.

mod changed;

use crate::map::Bytes;
use crate::parse::{Directory, Keys, limit, parse};
use crate::{Array, Error, TensorData, TensorInfo, Value, error, layout, split};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Options for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Map the file instead of reading it into memory (default). A mapped file must not be changed
    /// while it is open: its new bytes would be read, and if it became shorter the system would end
    /// the process (SIGBUS). [`Gguf::check`] detects such a change when called;
    /// [`guard_maps`](crate::guard_maps) turns the signal into a one-line error.
    pub mmap: bool,
    /// Require the padding after the last tensor too, as llama.cpp does when it reads the data
    /// (default: no, because some writers omit it).
    pub strict: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            mmap: true,
            strict: false,
        }
    }
}

pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    pub(crate) data_start: u64,
}

/// An open GGUF file, or all files of a split model. Clones share the files.
#[derive(Clone)]
pub struct Gguf {
    parts: Arc<[Part]>,
    version: u32,
    alignment: u32,
    keys: Keys,
    /// The bytes that hold the keys, where those are not the first part's.
    changed: Option<Arc<Bytes>>,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    sorted: Vec<u32>,
}

impl Gguf {
    /// Opens a file and checks all of its directory. Opening the first part of a split model opens
    /// every part.
    ///
    /// # Errors
    /// Any fault of the file: see [`Error`].
    pub fn open(path: &Path, opts: &OpenOptions) -> Result<Gguf, Error> {
        let (first, dir) = open_part(path, 0, opts)?;
        let count = split::part_count(&first.name, Some(path), &dir, &first.bytes)?;
        let (mut parts, mut dir) = (vec![first], dir);
        if count > 1 {
            for no in 2..=count {
                let path = split::part_path(path, no, count)?;
                if let Ok(false) = path.try_exists() {
                    return Err(Error::SplitMissing {
                        file: error::label(&path),
                        no,
                        count,
                    });
                }
                let (part, more) = open_part(&path, parts.len(), opts)?;
                split::check_part(&part.name, &more, &part.bytes, no, count)?;
                dir.tensors.extend(more.tensors);
                limit(
                    &part.name,
                    "tensors",
                    dir.tensors.len() as u64,
                    layout::MAX_TENSORS,
                )?;
                parts.push(part);
            }
            if let Some(first) = parts.first() {
                split::check_total(&first.name, &dir, &first.bytes, dir.tensors.len() as u64)?;
            }
        }
        Gguf::assemble(parts, dir)
    }

    /// Opens a file that is already in memory; messages call it `name`.
    ///
    /// # Errors
    /// Any fault of the bytes: see [`Error`]. A split model cannot be opened this way.
    pub fn from_bytes(
        bytes: impl Into<Cow<'static, [u8]>>,
        name: &str,
        opts: &OpenOptions,
    ) -> Result<Gguf, Error> {
        let (part, dir) = read_part(error::one_line(name), Bytes::Held(bytes.into()), 0, opts)?;
        split::part_count(&part.name, None, &dir, &part.bytes)?;
        Gguf::assemble(vec![part], dir)
    }

    pub(crate) fn assemble(parts: Vec<Part>, dir: Directory) -> Result<Gguf, Error> {
        let Directory {
            version,
            alignment,
            keys,
            tensors,
            ..
        } = dir;
        let sorted = sort_by_name(&tensors, &parts)?;
        Ok(Gguf {
            parts: parts.into(),
            version,
            alignment,
            keys,
            changed: None,
            tensors,
            sorted,
        })
    }

    /// Returns the path of the (first) file, for messages: control characters are escaped.
    pub fn name(&self) -> &str {
        self.parts.first().map_or("", |p| &p.name)
    }

    /// Returns the paths of all files, for messages.
    pub fn part_names(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        self.parts
            .iter()
            .map(|p| p.name.as_str())
            .filter(move |name| seen.insert(*name))
    }

    /// Returns whether this is a [`View`](crate::View) of other files.
    pub fn is_view(&self) -> bool {
        self.parts
            .iter()
            .any(|p| matches!(p.bytes, Bytes::Shared(..) | Bytes::Made { .. }))
    }

    /// Returns the GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the alignment of tensor data in bytes: `general.alignment`, 32 without it.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns the total bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum: u64, p| sum.saturating_add(p.bytes.len() as u64))
    }

    /// Returns the bytes that hold the keys.
    fn key_bytes(&self) -> &[u8] {
        let first = self.parts.first().map(|part| &part.bytes);
        self.changed.as_deref().or(first).map_or(&[], |b| b.whole())
    }

    /// Returns the bytes of the (first) file.
    pub(crate) fn first_bytes(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.bytes.len() as u64)
    }

    /// Returns the offset and bytes of a key's record in the (first) file.
    pub(crate) fn key_record(&self, index: usize) -> Option<(usize, &[u8])> {
        let file = self.parts.first()?.bytes.whole();
        match self.changed {
            Some(_) => None,
            None => self.keys.record(file, index),
        }
    }

    /// Iterates over the keys and values of the (first) file, in its order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.keys.iter(self.key_bytes())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.keys.get(self.key_bytes(), key)
    }

    fn wrong_type(&self, key: &str, expected: &'static str, got: &Value<'_>) -> Error {
        Error::KeyType {
            file: self.name().to_owned(),
            key: key.to_owned(),
            expected,
            got: got.kind(),
        }
    }

    /// Returns an integer of any type whose value fits; `None` without the key.
    ///
    /// # Errors
    /// A value of another type, or one that does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Some(int) = value.as_int() else {
            return Err(self.wrong_type(key, "an integer", &value));
        };
        u32::try_from(int).map(Some).map_err(|_| Error::KeyRange {
            file: self.name().to_owned(),
            key: key.to_owned(),
            expected: "u32",
            got: int.to_string(),
        })
    }

    /// Returns a float; f64 is rounded. `None` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(v)),
            #[allow(clippy::cast_possible_truncation)] // rounding is what is asked for
            Some(Value::F64(v)) => Ok(Some(v as f32)),
            Some(other) => Err(self.wrong_type(key, "a float", &other)),
        }
    }

    /// Returns a bool; `None` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(v)),
            Some(other) => Err(self.wrong_type(key, "bool", &other)),
        }
    }

    /// Returns a string; `None` without the key.
    ///
    /// # Errors
    /// A value of another type, or bytes that are not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(bytes)) => {
                std::str::from_utf8(bytes)
                    .map(Some)
                    .map_err(|_| Error::NotUtf8 {
                        file: self.name().to_owned(),
                        what: "the value of",
                        text: key.to_owned(),
                    })
            }
            Some(other) => Err(self.wrong_type(key, "string", &other)),
        }
    }

    /// Returns an array; `None` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(v)) => Ok(Some(v)),
            Some(other) => Err(self.wrong_type(key, "array", &other)),
        }
    }

    /// Returns all tensors, in the order of the file and its parts.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let tensor = |&i: &u32| self.tensors.get(i as usize);
        let found = self
            .sorted
            .binary_search_by(|i| tensor(i).map(|t| t.name.as_str()).cmp(&Some(name)));
        self.sorted.get(found.ok()?).and_then(tensor)
    }

    fn place(&self, tensor: &TensorInfo) -> Option<(&Part, usize, usize)> {
        let part = self.parts.get(tensor.part)?;
        let start = part.data_start.checked_add(tensor.offset)?;
        let end = start.checked_add(tensor.bytes)?;
        Some((
            part,
            usize::try_from(start).ok()?,
            usize::try_from(end).ok()?,
        ))
    }

    /// Returns the bytes of one of this model's tensors, exactly `tensor.bytes` of them. They start
    /// at a multiple of [`Gguf::alignment`] in the file, which may be 1. For an info of another
    /// model: whatever bytes are at its offset, or none.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.place(tensor)
            .and_then(|(part, start, end)| part.bytes.whole().get(start..end))
            .unwrap_or(&[])
    }

    /// Returns the bytes of one of this model's tensors as the input of a [`Writer`]: they are read
    /// when they are due, unless the file has changed since it was opened, and released then.
    ///
    /// [`Writer`]: crate::Writer
    pub fn stream<'a>(&'a self, tensor: &'a TensorInfo) -> TensorData<'a> {
        TensorData::stream(move |out| {
            self.check(tensor).map_err(std::io::Error::other)?;
            out.write_all(self.data(tensor))?;
            self.release(tensor);
            Ok(())
        })
    }

    /// Returns whether the tensor's rows are computed from something else
    /// ([`View::made`](crate::View::made)): [`Gguf::data`] computes all of them, and caches them.
    pub fn is_made(&self, tensor: &TensorInfo) -> bool {
        self.parts
            .get(tensor.part)
            .is_some_and(|part| matches!(part.bytes, Bytes::Made { .. }))
    }

    /// Copies a tensor's bytes to `out`, from byte `at` on, which must start a row; `out` must end
    /// with a row. For a tensor with rows computed on demand ([`View::made`](crate::View::made))
    /// this computes no others.
    pub fn read(&self, tensor: &TensorInfo, at: usize, out: &mut [u8]) {
        let row = tensor
            .dims
            .first()
            .and_then(|n| tensor.ty.row_bytes(*n))
            .and_then(|n| usize::try_from(n).ok());
        if let (Some((part, start, _)), Some(row)) = (self.place(tensor), row) {
            part.bytes.read(start.saturating_add(at), row, out);
        }
    }

    /// Returns the offset of the tensor's data in its file, in bytes.
    pub fn file_offset(&self, tensor: &TensorInfo) -> Option<u64> {
        self.parts
            .get(tensor.part)?
            .data_start
            .checked_add(tensor.offset)
    }

    /// Checks that the file that holds a tensor still has the size and modification time it had
    /// when it was opened. This is one system call, meant for the moment before a large read: the
    /// file may still change between the check and the read. Always succeeds for a file in memory.
    ///
    /// # Errors
    /// [`Error::Changed`].
    pub fn check(&self, tensor: &TensorInfo) -> Result<(), Error> {
        self.parts
            .get(tensor.part)
            .map_or(Ok(()), |part| part.bytes.check())
    }

    /// Returns the path of the file that holds a tensor, for messages.
    pub fn part_name(&self, tensor: &TensorInfo) -> &str {
        self.parts.get(tensor.part).map_or("", |part| &part.name)
    }

    /// Tells the system that the mapped pages entirely inside this tensor are not needed soon. They
    /// are read from the file again on the next access. Does nothing for a file in memory.
    pub fn release(&self, tensor: &TensorInfo) {
        if let Some((part, start, end)) = self.place(tensor) {
            part.bytes.release(start, end);
        }
    }

    /// Does the same as [`Gguf::release`] for a part of the tensor's bytes.
    pub fn release_part(&self, tensor: &TensorInfo, range: Range<usize>) {
        if let Some((part, start, end)) = self.place(tensor).filter(|_| !self.is_made(tensor)) {
            let at = |i: usize| start.saturating_add(i).min(end);
            part.bytes.release(at(range.start), at(range.end));
        }
    }

    /// Tells the system that the file will be read once, in order, from byte `at` of this tensor
    /// on, so that the disk reads ahead. Does nothing for a file in memory.
    pub fn ahead(&self, tensor: &TensorInfo, at: usize) {
        if let Some((part, start, _)) = self.place(tensor) {
            part.bytes.ahead(start.saturating_add(at));
        }
    }

    /// Tells the system that this tensor will be read individually, so that the disk fetches many
    /// small ones at once. Otherwise each would be waited for, along with the data after it. Does
    /// nothing for a file in memory.
    pub fn want(&self, tensor: &TensorInfo) {
        if let Some((part, start, end)) = self.place(tensor) {
            part.bytes.want(start, end);
        }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Gguf");
        s.field("name", &self.name())
            .field("version", &self.version)
            .field("keys", &self.keys().len());
        s.field("tensors", &self.tensors.len())
            .field("parts", &self.parts.len())
            .finish()
    }
}

/// Bytes of a model's first file to prefetch when it is opened: more than its keys take with a
/// vocabulary of hundreds of thousands of tokens.
const KEYS: usize = 16 << 20;

fn open_part(path: &Path, part: usize, opts: &OpenOptions) -> Result<(Part, Directory), Error> {
    let bytes = Bytes::open(path, opts.mmap)?;
    if part == 0 {
        bytes.want(0, KEYS);
    }
    read_part(error::label(path), bytes, part, opts)
}

fn read_part(
    name: String,
    bytes: Bytes,
    part: usize,
    opts: &OpenOptions,
) -> Result<(Part, Directory), Error> {
    let dir = parse(&name, &bytes, part, opts.strict)?;
    Ok((
        Part {
            name,
            bytes,
            data_start: dir.data_start,
        },
        dir,
    ))
}

/// Sorts tensors by name and detects duplicates, also across parts.
fn sort_by_name(tensors: &[TensorInfo], parts: &[Part]) -> Result<Vec<u32>, Error> {
    let mut sorted: Vec<(&TensorInfo, u32)> = tensors.iter().zip(0u32..).collect();
    sorted.sort_unstable_by(|a, b| a.0.name.cmp(&b.0.name).then(a.1.cmp(&b.1)));
    let pair = sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .find(|(a, b)| a.0.name == b.0.name);
    if let Some(((first, _), (second, _))) = pair {
        let file = |t: &TensorInfo| parts.get(t.part).map_or(String::new(), |p| p.name.clone());
        let other = (first.part != second.part).then(|| file(first));
        return Err(Error::DuplicateTensor {
            file: file(second),
            tensor: first.name.clone(),
            other,
        });
    }
    Ok(sorted.into_iter().map(|(_, i)| i).collect())
}
