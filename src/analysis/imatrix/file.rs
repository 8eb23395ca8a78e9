//! Reads importance matrices: llama.cpp's GGUF format, and its older binary format (`.dat`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use gguf_rs_lite::{Gguf, OpenOptions, TensorInfo, TensorType, Value};

use super::{CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, Error, SUMS};

/// Importance of each input of each matrix: the mean square of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    file: String,
    datasets: Vec<Vec<u8>>,
    chunks: u32,
    chunk_size: u32,
    entries: BTreeMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads a file in either format.
    ///
    /// # Errors
    /// A file in neither format, keys or tensors that are missing, values that are not finite.
    pub fn open(path: &Path) -> Result<Importance, Error> {
        let file = path.to_string_lossy().into_owned();
        let io = |source| Error::Io {
            file: file.clone(),
            source,
        };
        let mut magic = [0; 4];
        let mut reader = std::fs::File::open(path).map_err(io)?;
        let is_gguf = reader.read_exact(&mut magic).is_ok() && magic == *b"GGUF";
        let importance = if is_gguf {
            from_gguf(file, &Gguf::open(path, &OpenOptions::default())?)?
        } else {
            from_dat(&file, &std::fs::read(path).map_err(io)?)?
        };
        for (name, weights) in &importance.entries {
            if let Some(i) = weights.iter().position(|w| !w.is_finite()) {
                let (file, name) = (importance.file, name.clone());
                return Err(Error::NotFinite {
                    file,
                    name,
                    index: i,
                    got: weights[i],
                });
            }
        }
        Ok(importance)
    }

    /// Renames the matrices; those for which `rename` returns `None` are dropped.
    pub fn with_names(mut self, rename: impl Fn(&str) -> Option<String>) -> Importance {
        let entries = self.entries.into_iter();
        self.entries = entries
            .filter_map(|(name, weights)| Some((rename(&name)?, weights)))
            .collect();
        self
    }

    /// Returns the file's path as given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the names of the texts it was made from.
    pub fn datasets(&self) -> &[Vec<u8>] {
        &self.datasets
    }

    /// Returns the number of chunks of text; 0 if the file does not say.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the tokens per chunk; 0 if the file does not say.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size as usize
    }

    /// Returns the number of matrices.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no matrices.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the names of the matrices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the weights for the tensor of this name: one for each value of a row, for each
    /// matrix of a stack.
    pub fn weights(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }
}

fn from_gguf(file: String, gguf: &Gguf) -> Result<Importance, Error> {
    for key in [DATASETS, CHUNK_COUNT, CHUNK_SIZE] {
        if gguf.get(key).is_none() {
            return Err(Error::MissingKey { file, key });
        }
    }
    let datasets = match gguf.get(DATASETS) {
        Some(Value::Array(a)) => a
            .strings()
            .into_iter()
            .flatten()
            .map(<[u8]>::to_vec)
            .collect(),
        _ => Vec::new(),
    };
    let chunks = gguf.u32(CHUNK_COUNT)?.unwrap_or(0);
    let chunk_size = gguf.u32(CHUNK_SIZE)?.unwrap_or(0);
    let mut entries = BTreeMap::new();
    for t in gguf.tensors() {
        let both = t
            .name
            .strip_suffix(SUMS)
            .map(|name| (name, Some(t), gguf.tensor(&format!("{name}{COUNTS}"))));
        let both = both.or_else(|| {
            t.name
                .strip_suffix(COUNTS)
                .map(|name| (name, gguf.tensor(&format!("{name}{SUMS}")), Some(t)))
        });
        let Some((name, sums, counts)) = both else {
            continue;
        };
        let (Some(sums), Some(counts)) = (sums, counts) else {
            return Err(Error::Unpaired {
                file,
                name: name.to_owned(),
            });
        };
        let (sums, counts) = (floats(gguf, sums)?, floats(gguf, counts)?);
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return Err(Error::Counts {
                file,
                name: name.to_owned(),
                sums: sums.len(),
                counts: counts.len(),
            });
        }
        entries.insert(name.to_owned(), means(&sums, &counts));
    }
    if entries.is_empty() {
        return Err(Error::Empty { file });
    }
    Ok(Importance {
        file,
        datasets,
        chunks,
        chunk_size,
        entries,
    })
}

/// Divides sums by counts; the inputs of a matrix that saw no token all get weight 1.
fn means(sums: &[f32], counts: &[f32]) -> Vec<f32> {
    let n = sums.len() / counts.len();
    let rows = sums.chunks_exact(n).zip(counts);
    rows.flat_map(|(sums, count)| {
        let count = count.round();
        sums.iter()
            .map(move |s| if count > 0.0 { s / count } else { 1.0 })
    })
    .collect()
}

fn floats(gguf: &Gguf, t: &TensorInfo) -> Result<Vec<f32>, Error> {
    if t.ty != TensorType::F32 {
        return Err(Error::Type {
            file: gguf.name().to_owned(),
            name: t.name.clone(),
            got: t.ty,
        });
    }
    Ok(gguf
        .data(t)
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect())
}

/// Cursor over the older format: 32-bit little-endian integers and the data they count.
struct Dat<'a> {
    file: &'a str,
    rest: &'a [u8],
}

impl<'a> Dat<'a> {
    fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| Error::Truncated {
                file: self.file.to_owned(),
                what,
                needed: n,
                left: self.rest.len(),
            })?;
        self.rest = rest;
        Ok(bytes)
    }

    fn int(&mut self, what: &'static str) -> Result<i32, Error> {
        let b = self.bytes(4, what)?;
        Ok(i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Reads a count of at least `least`.
    fn count(&mut self, what: &'static str, least: usize) -> Result<usize, Error> {
        let got = self.int(what)?;
        let n = usize::try_from(got).ok().filter(|&n| n >= least);
        n.ok_or_else(|| Error::NotAnImatrix {
            file: self.file.to_owned(),
            what,
            got,
        })
    }
}

/// Parses entries of (name, calls, values), then the number of chunks and the text's name, both of
/// which may be missing.
fn from_dat(file: &str, bytes: &[u8]) -> Result<Importance, Error> {
    let mut dat = Dat { file, rest: bytes };
    let n_entries = dat.count("the number of entries", 1)?;
    let mut entries = BTreeMap::new();
    for _ in 0..n_entries {
        let len = dat.count("the length of a name", 0)?;
        let name = String::from_utf8_lossy(dat.bytes(len, "a name")?).into_owned();
        let calls = dat.int("a number of calls")?;
        let n = dat.count("a number of values", 1)?;
        let values = dat
            .bytes(n.saturating_mul(4), "values")?
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b));
        let values = values
            .map(|v| if calls > 0 { v / calls as f32 } else { v })
            .collect();
        entries.insert(name, values);
    }
    let mut chunks = 0;
    let mut datasets = Vec::new();
    if !dat.rest.is_empty() {
        chunks = u32::try_from(dat.int("the number of chunks")?).unwrap_or(0);
    }
    if !dat.rest.is_empty() {
        let len = dat.count("the length of the text's name", 0)?;
        datasets.push(dat.bytes(len, "the text's name")?.to_vec());
    }
    Ok(Importance {
        file: file.to_owned(),
        datasets,
        chunks,
        chunk_size: 0,
        entries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dat(tail: bool) -> Vec<u8> {
        let mut bytes = 1i32.to_le_bytes().to_vec();
        bytes.extend(3i32.to_le_bytes());
        bytes.extend(b"w.x");
        bytes.extend([4i32.to_le_bytes(), 2i32.to_le_bytes()].concat());
        bytes.extend([6f32.to_le_bytes(), 1f32.to_le_bytes()].concat());
        if tail {
            bytes.extend([7i32.to_le_bytes(), 4i32.to_le_bytes()].concat());
            bytes.extend(b"text");
        }
        bytes
    }

    #[test]
    fn the_old_form_is_read_with_and_without_its_tail() {
        let with = from_dat("f", &dat(true)).unwrap();
        assert_eq!(
            (with.chunks(), with.datasets()),
            (7, &[b"text".to_vec()][..])
        );
        assert_eq!(with.weights("w.x"), Some(&[1.5, 0.25][..]));
        let without = from_dat("f", &dat(false)).unwrap();
        assert_eq!(
            (without.chunks(), without.datasets().len(), without.len()),
            (0, 0, 1)
        );
    }

    #[test]
    fn every_shorter_old_file_is_refused_in_one_line() {
        let whole = dat(true);
        for n in (0..whole.len()).filter(|&n| n != dat(false).len() && n != dat(false).len() + 4) {
            let error = from_dat("f", &whole[..n]).unwrap_err().to_string();
            assert!(
                error.starts_with("f: ") && !error.contains('\n'),
                "{n}: {error}"
            );
        }
        let mut absurd = whole;
        absurd[15..19].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(from_dat("f", &absurd).is_err());
    }
}
