//! Parses one file's header, keys and tensor list, and checks every rule.
//!
//! Work and memory are bounded by the file: a count is compared with the bytes left before it is
//! used, and no memory is reserved from it. Values are not copied; only their places are stored.

use crate::cursor::{Cursor, Span, What};
use crate::layout::{self, ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::{Array, Error, TensorInfo, TensorType, Value, ValueType, removed_type_name};

/// Minimum bytes of a key record: length, one byte of key, type, one byte of value.
const MIN_KEY_RECORD: u64 = 8 + 1 + 4 + 1;
/// Minimum bytes of a tensor record: an empty name's length, number of dimensions, type, offset.
const MIN_TENSOR_RECORD: u64 = 8 + 4 + 4 + 8;

/// A key and the place of its value.
#[derive(Clone)]
struct Entry {
    key: Span,
    value: ValueLocation,
    /// The whole record: length and bytes of the key, type and bytes of the value.
    record: Span,
}

#[derive(Clone, Copy)]
enum ValueLocation {
    Scalar(Value<'static>),
    Str(Span),
    Array {
        elem: ValueType,
        len: usize,
        span: Span,
    },
}

/// The keys of a file, in its order.
#[derive(Clone)]
pub(crate) struct Keys {
    entries: Vec<Entry>,
    /// Indices into `entries`, sorted by key.
    sorted: Vec<u32>,
}

impl Keys {
    /// Iterates over the keys with their values; `file` must be the bytes they were parsed from.
    pub(crate) fn iter<'a>(
        &'a self,
        file: &'a [u8],
    ) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> {
        self.entries
            .iter()
            .map(|e| (key_text(e, file), value_of(e, file)))
    }

    /// Returns the offset and bytes of the record of a key, by its place in the file.
    pub(crate) fn record<'a>(&self, file: &'a [u8], index: usize) -> Option<(usize, &'a [u8])> {
        let record = self.entries.get(index)?.record;
        Some((record.start(), record.of(file)))
    }

    pub(crate) fn get<'a>(&'a self, file: &'a [u8], key: &str) -> Option<Value<'a>> {
        let entry = |&i: &u32| self.entries.get(i as usize);
        let found = self
            .sorted
            .binary_search_by(|i| entry(i).map(|e| e.key.of(file)).cmp(&Some(key.as_bytes())));
        let entry = self.sorted.get(found.ok()?).and_then(entry)?;
        Some(value_of(entry, file))
    }
}

fn key_text<'a>(e: &Entry, file: &'a [u8]) -> &'a str {
    // it was UTF-8 when the file was opened; only a file changed while mapped can fail here
    std::str::from_utf8(e.key.of(file)).unwrap_or("")
}

fn value_of<'a>(e: &Entry, file: &'a [u8]) -> Value<'a> {
    match e.value {
        ValueLocation::Scalar(v) => v,
        ValueLocation::Str(span) => Value::Str(span.of(file)),
        ValueLocation::Array { elem, len, span } => {
            Value::Array(Array::new(elem, len, span.of(file)))
        }
    }
}

/// Contents of one file's directory.
pub(crate) struct Directory {
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) keys: Keys,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Offset of the data section.
    pub(crate) data_start: u64,
}

/// Parses the directory of one file, part number `part` of its model.
pub(crate) fn parse(
    file: &str,
    bytes: &[u8],
    part: usize,
    strict: bool,
) -> Result<Directory, Error> {
    let mut c = Cursor::new(file, bytes);
    let version = header(&mut c)?;
    let n_tensors = c.u64(What::Header("the number of tensors"))?;
    let n_keys = c.u64(What::Header("the number of keys"))?;
    limit(file, "tensors", n_tensors, layout::MAX_TENSORS)?;
    limit(file, "keys", n_keys, layout::MAX_KEYS)?;
    c.room(n_keys, MIN_KEY_RECORD, What::Header("the list of keys"))?;
    let keys = read_keys(&mut c, bytes, n_keys)?;
    let alignment = alignment(file, &keys, bytes)?;
    c.room(
        n_tensors,
        MIN_TENSOR_RECORD,
        What::Header("the list of tensors"),
    )?;
    let mut tensors = Vec::new();
    for index in 0..n_tensors {
        tensors.push(read_tensor(&mut c, index, part)?);
    }
    let len = bytes.len() as u64;
    let at = c.at() as u64;
    // without tensors there is no data section, and so no padding before it
    let data_start = if tensors.is_empty() {
        Some(at)
    } else {
        layout::pad(at, alignment).filter(|&s| s <= len)
    };
    let Some(data_start) = data_start else {
        return Err(c.truncated(
            What::Header("the padding before the data section"),
            alignment.into(),
        ));
    };
    check_places(file, &tensors, alignment, data_start, len, strict)?;
    Ok(Directory {
        version,
        alignment,
        keys,
        tensors,
        data_start,
    })
}

fn header(c: &mut Cursor<'_>) -> Result<u32, Error> {
    let file = c.file.to_owned();
    let got = c.magic()?;
    if &got != b"GGUF" {
        return Err(Error::Magic { file, got });
    }
    let version = c.u32(What::Header("the version"))?;
    match version {
        2 | 3 => Ok(version),
        // a version below 65536 in big-endian byte order; no real version is that large
        v if v != 0 && v & 0xffff == 0 => Err(Error::BigEndian {
            file,
            version: v.swap_bytes(),
        }),
        got => Err(Error::Version { file, got }),
    }
}

pub(crate) fn limit(file: &str, what: &'static str, got: u64, max: u64) -> Result<(), Error> {
    if got > max {
        Err(Error::Count {
            file: file.to_owned(),
            what,
            got,
            max,
        })
    } else {
        Ok(())
    }
}

fn read_keys(c: &mut Cursor<'_>, bytes: &[u8], count: u64) -> Result<Keys, Error> {
    let mut entries = Vec::new();
    for index in 0..count {
        entries.push(read_entry(c, index)?);
    }
    let mut sorted: Vec<(&[u8], u32)> = entries
        .iter()
        .map(|e: &Entry| e.key.of(bytes))
        .zip(0u32..)
        .collect();
    sorted.sort_unstable();
    if let Some(((key, _), _)) = sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .find(|(a, b)| a.0 == b.0)
    {
        return Err(Error::DuplicateKey {
            file: c.file.to_owned(),
            key: String::from_utf8_lossy(key).into_owned(),
        });
    }
    let sorted = sorted.into_iter().map(|(_, i)| i).collect();
    Ok(Keys { entries, sorted })
}

fn read_entry(c: &mut Cursor<'_>, index: u64) -> Result<Entry, Error> {
    let what = What::Key(index);
    let file = c.file;
    let first = c.at();
    let len = c.u64(what)?;
    if len == 0 {
        return Err(Error::EmptyKey {
            file: file.to_owned(),
            index,
        });
    }
    if len > layout::MAX_KEY {
        return Err(Error::KeyLength {
            file: file.to_owned(),
            index,
            got: len,
        });
    }
    let start = c.at();
    let key = utf8(file, "key", c.take(len, what)?)?;
    let span = c.span_from(start);
    let value = read_value(c, key)?;
    Ok(Entry {
        key: span,
        value,
        record: c.span_from(first),
    })
}

fn utf8<'a>(file: &str, what: &'static str, bytes: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::NotUtf8 {
        file: file.to_owned(),
        what,
        text: String::from_utf8_lossy(bytes).into_owned(),
    })
}

fn read_type(c: &mut Cursor<'_>, key: &str) -> Result<ValueType, Error> {
    let got = c.u32(What::Value(key))?;
    let file = c.file;
    ValueType::from_id(got).ok_or_else(|| Error::ValueTypeId {
        file: file.to_owned(),
        key: key.to_owned(),
        got,
    })
}

fn read_value(c: &mut Cursor<'_>, key: &str) -> Result<ValueLocation, Error> {
    let what = What::Value(key);
    match read_type(c, key)? {
        ValueType::String => {
            let len = c.u64(what)?;
            let start = c.at();
            c.take(len, what)?;
            Ok(ValueLocation::Str(c.span_from(start)))
        }
        ValueType::Array => read_array(c, key),
        ty => {
            let bytes = c.take(ty.size().unwrap_or(0), what)?;
            let value = scalar(ty, bytes).ok_or_else(|| c.truncated(what, 1))?;
            Ok(ValueLocation::Scalar(value))
        }
    }
}

/// Decodes a number or bool, which borrows nothing.
fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Value<'static>> {
    Some(match Value::split_scalar(ty, bytes)?.0 {
        Value::U8(v) => Value::U8(v),
        Value::I8(v) => Value::I8(v),
        Value::U16(v) => Value::U16(v),
        Value::I16(v) => Value::I16(v),
        Value::U32(v) => Value::U32(v),
        Value::I32(v) => Value::I32(v),
        Value::F32(v) => Value::F32(v),
        Value::Bool(v) => Value::Bool(v),
        Value::U64(v) => Value::U64(v),
        Value::I64(v) => Value::I64(v),
        Value::F64(v) => Value::F64(v),
        Value::Str(_) | Value::Array(_) => return None,
    })
}

fn read_array(c: &mut Cursor<'_>, key: &str) -> Result<ValueLocation, Error> {
    let what = What::Value(key);
    let elem = read_type(c, key)?;
    if elem == ValueType::Array {
        return Err(Error::NestedArray {
            file: c.file.to_owned(),
            key: key.to_owned(),
        });
    }
    let n = c.u64(what)?;
    let size = elem.size();
    // a string takes at least the eight bytes of its length
    c.room(n, size.unwrap_or(8), what)?;
    let start = c.at();
    match size {
        Some(size) => drop(c.take(n.saturating_mul(size), what)?),
        None => (0..n).try_for_each(|_| c.skip_string(what))?,
    }
    let len = usize::try_from(n).map_err(|_| c.truncated(what, n))?;
    Ok(ValueLocation::Array {
        elem,
        len,
        span: c.span_from(start),
    })
}

fn alignment(file: &str, keys: &Keys, bytes: &[u8]) -> Result<u32, Error> {
    match keys.get(bytes, ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(a)) => layout::check_alignment(file, a),
        Some(other) => Err(Error::KeyType {
            file: file.to_owned(),
            key: ALIGNMENT_KEY.to_owned(),
            expected: "u32",
            got: other.kind(),
        }),
    }
}

fn read_tensor(c: &mut Cursor<'_>, index: u64, part: usize) -> Result<TensorInfo, Error> {
    let what = What::TensorName(index);
    let file = c.file;
    let got = c.u64(what)?;
    if got > layout::MAX_NAME {
        return Err(Error::TensorNameLength {
            file: file.to_owned(),
            index,
            got,
        });
    }
    let name = utf8(file, "tensor name", c.take(got, what)?)?;
    let what = What::Tensor(name);
    let n_dims = c.u32(what)?;
    if u64::from(n_dims) > layout::MAX_DIMS {
        return Err(Error::TensorDims {
            file: file.to_owned(),
            tensor: name.to_owned(),
            got: n_dims.into(),
        });
    }
    let mut dims = Vec::new();
    for _ in 0..n_dims {
        dims.push(c.u64(what)?);
    }
    let ty = tensor_type(file, name, c.u32(what)?)?;
    let offset = c.u64(what)?;
    let bytes = layout::tensor_bytes(file, name, &dims, ty)?;
    Ok(TensorInfo {
        name: name.to_owned(),
        dims,
        ty,
        offset,
        bytes,
        part,
    })
}

fn tensor_type(file: &str, tensor: &str, got: u32) -> Result<TensorType, Error> {
    let (file, tensor) = (file.to_owned(), tensor.to_owned());
    match (TensorType::from_id(got), removed_type_name(got)) {
        (Some(ty), _) => Ok(ty),
        (None, Some(name)) => Err(Error::TensorTypeRemoved {
            file,
            tensor,
            got,
            name,
        }),
        (None, None) => Err(Error::TensorTypeId { file, tensor, got }),
    }
}

/// Checks that offsets are the running sum of the padded sizes (so no overlap, gap or disorder),
/// and that every tensor's bytes are in the file. `strict` requires the padding after the last one
/// too.
fn check_places(
    file: &str,
    tensors: &[TensorInfo],
    alignment: u32,
    data_start: u64,
    len: u64,
    strict: bool,
) -> Result<(), Error> {
    let mut expected = 0u64;
    for t in tensors {
        let too_big = || Error::TensorSize {
            file: file.to_owned(),
            tensor: t.name.clone(),
            dims: t.dims.clone(),
            ty: t.ty,
        };
        if t.offset != expected {
            let (file, tensor) = (file.to_owned(), t.name.clone());
            return Err(Error::TensorOffset {
                file,
                tensor,
                expected,
                got: t.offset,
            });
        }
        let place = |bytes: u64| expected.checked_add(bytes)?.checked_add(data_start);
        let padded = layout::pad(t.bytes, alignment).ok_or_else(too_big)?;
        let end = place(t.bytes).ok_or_else(too_big)?;
        if end > len {
            return Err(Error::TensorPastEnd {
                file: file.to_owned(),
                tensor: t.name.clone(),
                end,
                len,
            });
        }
        expected = expected.checked_add(padded).ok_or_else(too_big)?;
    }
    let end = data_start.saturating_add(expected);
    if strict && end > len {
        return Err(Error::PaddingPastEnd {
            file: file.to_owned(),
            end,
            len,
        });
    }
    Ok(())
}
