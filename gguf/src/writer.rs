//! Writes GGUF version 3. The reader opens the result in strict mode, and everything the reader
//! opens can be written.
//!
//! The directory is built in memory, since the place of the data depends on its length; the data of
//! tensors is streamed, so that a model larger than memory can be written.

use crate::layout::{self, ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::owned::encode_string;
use crate::{Error, OwnedValue, TensorType, replace};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A function that writes one tensor's bytes.
type Producer<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// Source of a tensor's bytes.
pub enum TensorData<'a> {
    /// A slice, typically of an open file.
    Borrowed(&'a [u8]),
    /// A buffer.
    Owned(Vec<u8>),
    /// A function that writes them when the tensor is due: exactly as many as the tensor has.
    Stream(Producer<'a>),
}

impl<'a> TensorData<'a> {
    /// Creates data from a function that is called when the tensor is due.
    pub fn stream(produce: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a) -> TensorData<'a> {
        TensorData::Stream(Box::new(produce))
    }
}

impl<'a> From<&'a [u8]> for TensorData<'a> {
    fn from(bytes: &'a [u8]) -> TensorData<'a> {
        TensorData::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for TensorData<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        TensorData::Owned(bytes)
    }
}

struct Tensor<'a> {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    data: TensorData<'a>,
}

/// Collects keys and tensors and writes them as one file, in the order they were added.
///
/// ```
/// use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "llama").tensor("t", &[2], TensorType::F32, vec![0; 8]);
/// let mut file = Vec::new();
/// writer.write_to(&mut file)?;
/// let back = Gguf::from_bytes(file, "back", &OpenOptions::default())?;
/// assert_eq!(back.str("general.architecture")?, Some("llama"));
/// # Ok::<(), gguf_rs_lite::Error>(())
/// ```
#[derive(Default)]
pub struct Writer<'a> {
    keys: Vec<Option<(String, OwnedValue)>>,
    places: HashMap<String, usize>,
    tensors: Vec<Tensor<'a>>,
    /// Whether the directory is padded even if no tensor follows it.
    padded: bool,
}

/// The encoded directory, each tensor's size, and the alignment of the data.
struct Plan {
    head: Vec<u8>,
    sizes: Vec<u64>,
    alignment: u32,
}

impl<'a> Writer<'a> {
    /// Creates a file without keys and tensors.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// Sets a key; an existing one keeps its place and gets the new value.
    pub fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let entry = Some((key.to_owned(), value.into()));
        match self.places.get(key).and_then(|&i| self.keys.get_mut(i)) {
            Some(place) => *place = entry,
            None => {
                self.places.insert(key.to_owned(), self.keys.len());
                self.keys.push(entry);
            }
        }
        self
    }

    /// Removes a key, if it is there.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        if let Some(place) = self.places.remove(key).and_then(|i| self.keys.get_mut(i)) {
            *place = None;
        }
        self
    }

    /// Sets `general.alignment`: a power of two up to 1 MiB. The default is 32.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.set(ALIGNMENT_KEY, alignment)
    }

    /// Pads the file to the alignment even if it has no tensors, as llama.cpp does; by default such
    /// a file ends with its last key.
    pub fn padded(&mut self) -> &mut Self {
        self.padded = true;
        self
    }

    /// Adds a tensor: `dims` in ggml's order (`dims[0]` is the length of a row), at most four;
    /// names are unique.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        data: impl Into<TensorData<'a>>,
    ) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ty,
            data: data.into(),
        });
        self
    }

    /// Returns the number of bytes that [`Writer::write_to`] writes.
    ///
    /// # Errors
    /// An invalid key, shape or name.
    pub fn file_bytes(&self) -> Result<u64, Error> {
        let plan = self.plan("output")?;
        let padded = plan.sizes.iter();
        let padded = padded.map(|size| layout::pad(*size, plan.alignment).unwrap_or(*size));
        Ok(padded.fold(plan.head.len() as u64, u64::saturating_add))
    }

    /// Writes everything and returns the number of bytes.
    ///
    /// # Errors
    /// An invalid key, shape or name (nothing is written then), data whose length differs from its
    /// tensor's, or a failed write.
    pub fn write_to(self, mut out: impl Write) -> Result<u64, Error> {
        let written = self.write_named("output", &mut out)?;
        out.flush().map_err(failed("output"))?;
        Ok(written)
    }

    /// Writes a file and returns the number of bytes. The data goes to a temporary file beside it,
    /// which takes the name only when all of it is on the disk: other processes see either the old
    /// file or a whole new one. Links are followed, and a pipe or a character device gets the bytes
    /// as they come.
    ///
    /// # Errors
    /// As [`Writer::write_to`].
    pub fn write_file(self, path: &Path) -> Result<u64, Error> {
        let label = crate::error::label(path);
        replace::replace(path, |file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let written = self.write_named(&label, &mut out)?;
            out.flush().map_err(failed(&label))?;
            Ok(written)
        })
    }

    pub(crate) fn write_named(self, file: &str, out: &mut dyn Write) -> Result<u64, Error> {
        let Plan {
            head,
            sizes,
            alignment,
        } = self.plan(file)?;
        let mut written = head.len() as u64;
        out.write_all(&head).map_err(failed(file))?;
        for (tensor, size) in self.tensors.into_iter().zip(sizes) {
            write_tensor(file, tensor, size, out)?;
            // the plan has checked that the padded size is representable
            let padded = layout::pad(size, alignment).unwrap_or(size);
            zeros(out, padded.saturating_sub(size)).map_err(failed(file))?;
            written = written.saturating_add(padded);
        }
        Ok(written)
    }

    fn plan(&self, file: &str) -> Result<Plan, Error> {
        let (mut head, alignment) = self.plan_keys(file)?;
        let mut names = HashSet::new();
        let mut sizes = Vec::new();
        let mut offset = 0u64;
        for (t, index) in self.tensors.iter().zip(0..) {
            let size = check_tensor(file, t, index)?;
            let tensor = || t.name.clone();
            if !names.insert(&t.name) {
                return Err(Error::DuplicateTensor {
                    file: file.to_owned(),
                    tensor: tensor(),
                    other: None,
                });
            }
            encode_string(&mut head, t.name.as_bytes());
            head.extend(
                u32::try_from(t.dims.len())
                    .unwrap_or(u32::MAX)
                    .to_le_bytes(),
            ); // at most four
            head.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            head.extend(t.ty.id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            let next = layout::pad(size, alignment).and_then(|padded| offset.checked_add(padded));
            let too_big = || Error::TensorSize {
                file: file.to_owned(),
                tensor: tensor(),
                dims: t.dims.clone(),
                ty: t.ty,
            };
            offset = next.ok_or_else(too_big)?;
            sizes.push(size);
        }
        if self.padded || !self.tensors.is_empty() {
            let start = head
                .len()
                .checked_next_multiple_of(usize::try_from(alignment).unwrap_or(1));
            head.resize(start.unwrap_or(head.len()), 0);
        }
        Ok(Plan {
            head,
            sizes,
            alignment,
        })
    }

    /// Encodes the file's beginning up to the list of tensors; returns it with the alignment.
    fn plan_keys(&self, file: &str) -> Result<(Vec<u8>, u32), Error> {
        let n_keys = self.places.len() as u64;
        let n_tensors = self.tensors.len() as u64;
        crate::parse::limit(file, "keys", n_keys, layout::MAX_KEYS)?;
        crate::parse::limit(file, "tensors", n_tensors, layout::MAX_TENSORS)?;
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend(n_tensors.to_le_bytes());
        head.extend(n_keys.to_le_bytes());
        let mut alignment = DEFAULT_ALIGNMENT;
        for ((key, value), index) in self.keys.iter().flatten().zip(0..) {
            check_key(file, key, index)?;
            if key == ALIGNMENT_KEY {
                alignment = check_alignment(file, value)?;
            }
            encode_key(&mut head, key, value);
        }
        Ok((head, alignment))
    }

    /// Returns the alignment that the keys set.
    pub(crate) fn alignment_or_default(&self) -> u32 {
        let place = self.places.get(ALIGNMENT_KEY).copied();
        match place.and_then(|i| self.keys.get(i)) {
            Some(Some((_, OwnedValue::U32(alignment)))) => *alignment,
            _ => DEFAULT_ALIGNMENT,
        }
    }

    /// Checks the keys, as writing does.
    pub(crate) fn check_keys(&self, file: &str) -> Result<(), Error> {
        self.plan_keys(file).map(drop)
    }

    /// Returns the size in bytes of everything before the tensors' data.
    ///
    /// # Errors
    /// An invalid key, shape or name.
    pub(crate) fn head_bytes(&self, file: &str) -> Result<u64, Error> {
        Ok(self.plan(file)?.head.len() as u64)
    }
}

/// Appends the record of a key.
pub(crate) fn encode_key(out: &mut Vec<u8>, key: &str, value: &OwnedValue) {
    encode_string(out, key.as_bytes());
    out.extend(value.value_type().id().to_le_bytes());
    value.encode(out);
}

fn check_key(file: &str, key: &str, index: u64) -> Result<(), Error> {
    match key.len() as u64 {
        0 => Err(Error::EmptyKey {
            file: file.to_owned(),
            index,
        }),
        got if got > layout::MAX_KEY => Err(Error::KeyLength {
            file: file.to_owned(),
            index,
            got,
        }),
        _ => Ok(()),
    }
}

fn check_alignment(file: &str, value: &OwnedValue) -> Result<u32, Error> {
    match value {
        OwnedValue::U32(a) => layout::check_alignment(file, *a),
        other => Err(Error::KeyType {
            file: file.to_owned(),
            key: ALIGNMENT_KEY.to_owned(),
            expected: "u32",
            got: other.value_type().name().to_owned(),
        }),
    }
}

/// Checks a tensor's name, shape and data, and returns its size in bytes.
fn check_tensor(file: &str, t: &Tensor<'_>, index: u64) -> Result<u64, Error> {
    let owned = || (file.to_owned(), t.name.clone());
    let name_len = t.name.len() as u64;
    if name_len > layout::MAX_NAME {
        return Err(Error::TensorNameLength {
            file: file.to_owned(),
            index,
            got: name_len,
        });
    }
    let n_dims = t.dims.len() as u64;
    if n_dims > layout::MAX_DIMS {
        let (file, tensor) = owned();
        return Err(Error::TensorDims {
            file,
            tensor,
            got: n_dims,
        });
    }
    let expected = layout::tensor_bytes(file, &t.name, &t.dims, t.ty)?;
    let got = match &t.data {
        TensorData::Borrowed(bytes) => bytes.len() as u64,
        TensorData::Owned(bytes) => bytes.len() as u64,
        TensorData::Stream(_) => expected,
    };
    if got == expected {
        return Ok(expected);
    }
    let (file, tensor) = owned();
    Err(Error::TensorData {
        file,
        tensor,
        expected,
        got,
    })
}

fn failed(file: &str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io {
        file: file.to_owned(),
        action: "write it",
        source,
    }
}

fn write_tensor(file: &str, t: Tensor<'_>, size: u64, out: &mut dyn Write) -> Result<(), Error> {
    let mut exact = Exact {
        out,
        limit: size,
        offered: 0,
    };
    let result = match t.data {
        TensorData::Borrowed(bytes) => exact.write_all(bytes),
        TensorData::Owned(bytes) => exact.write_all(&bytes),
        TensorData::Stream(produce) => produce(&mut exact),
    };
    let got = exact.offered;
    if got > size || (result.is_ok() && got < size) {
        return Err(Error::TensorData {
            file: file.to_owned(),
            tensor: t.name,
            expected: size,
            got,
        });
    }
    result.map_err(failed(file))
}

/// Passes on up to `limit` bytes and refuses more; `offered` counts them all.
struct Exact<'a> {
    out: &'a mut dyn Write,
    limit: u64,
    offered: u64,
}

impl Write for Exact<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let offered = self.offered.saturating_add(bytes.len() as u64);
        if offered > self.limit {
            self.offered = offered;
            return Err(io::Error::other("more bytes than the tensor has"));
        }
        let n = self.out.write(bytes)?;
        self.offered = self.offered.saturating_add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn zeros(out: &mut dyn Write, n: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), n), out).map(drop)
}
