//! Builds GGUF files byte by byte, valid or not, without the crate's writer.

use gguf_rs_lite::{Error, Gguf, OpenOptions};

/// Kinds of fields, so that a test can put every bad value in every field of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    KeyLength,
    ValueType,
    StringLength,
    ElementType,
    ElementCount,
    NameLength,
    DimCount,
    Dim,
    TensorType,
    Offset,
}

/// A file under construction. Numbers are stored unchecked.
#[derive(Clone, Default)]
pub(crate) struct Raw {
    pub(crate) bytes: Vec<u8>,
    /// Kind and offset of each field.
    pub(crate) marks: Vec<(Field, usize)>,
}

impl Raw {
    pub(crate) fn new(version: u32, n_tensors: u64, n_keys: u64) -> Raw {
        let mut raw = Raw::default();
        raw.bytes(b"GGUF").u32(version).u64(n_tensors).u64(n_keys);
        raw
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Raw {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn u32(&mut self, v: u32) -> &mut Raw {
        self.bytes(&v.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, v: u64) -> &mut Raw {
        self.bytes(&v.to_le_bytes())
    }

    fn mark(&mut self, field: Field) -> &mut Raw {
        self.marks.push((field, self.bytes.len()));
        self
    }

    fn text(&mut self, field: Field, text: &[u8]) -> &mut Raw {
        self.mark(field).u64(text.len() as u64).bytes(text)
    }

    /// Appends a key and the id of its value's type; the value must follow.
    pub(crate) fn key(&mut self, key: &[u8], ty: u32) -> &mut Raw {
        self.text(Field::KeyLength, key)
            .mark(Field::ValueType)
            .u32(ty)
    }

    pub(crate) fn string(&mut self, text: &[u8]) -> &mut Raw {
        self.text(Field::StringLength, text)
    }

    /// Appends the head of an array's value; the elements must follow.
    pub(crate) fn array(&mut self, elem: u32, count: u64) -> &mut Raw {
        self.mark(Field::ElementType)
            .u32(elem)
            .mark(Field::ElementCount)
            .u64(count)
    }

    pub(crate) fn tensor(&mut self, name: &[u8], dims: &[u64], ty: u32, offset: u64) -> &mut Raw {
        self.text(Field::NameLength, name)
            .mark(Field::DimCount)
            .u32(dims.len() as u32);
        for &d in dims {
            self.mark(Field::Dim).u64(d);
        }
        self.mark(Field::TensorType)
            .u32(ty)
            .mark(Field::Offset)
            .u64(offset)
    }

    pub(crate) fn pad(&mut self, alignment: usize) -> &mut Raw {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(alignment), 0);
        self
    }

    pub(crate) fn fill(&mut self, n: usize) -> &mut Raw {
        // whole periods at once, because megabytes are written this way
        let period: [u8; 256] = std::array::from_fn(|i| i as u8);
        let end = self.bytes.len() + n;
        while self.bytes.len() < end {
            let left = end - self.bytes.len();
            self.bytes.extend_from_slice(&period[..left.min(256)]);
        }
        self
    }
}

/// Returns a copy with the bytes at `at` replaced.
pub(crate) fn patched(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

pub(crate) fn open(bytes: &[u8], strict: bool) -> Result<Gguf, Error> {
    Gguf::from_bytes(
        bytes.to_vec(),
        "test.gguf",
        &OpenOptions { mmap: true, strict },
    )
}

/// Returns the name of an error's variant, or "ok".
pub(crate) fn verdict(result: &Result<Gguf, Error>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(e) => format!("{e:?}")
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect(),
    }
}

/// A random generator for test data (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn bytes(&mut self, n: u64) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}
