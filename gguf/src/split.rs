//! Models split over several files: `name-00001-of-00003.gguf` and so on.
//!
//! The names of the other parts are derived from the first part's own name only, never from its
//! content.

use crate::parse::Directory;
use crate::{Error, error::label};
use std::path::{Path, PathBuf};

pub(crate) const NO: &str = "split.no";
pub(crate) const COUNT: &str = "split.count";
pub(crate) const TENSORS: &str = "split.tensors.count";
/// Maximum number of parts of a model.
pub(crate) const MAX_PARTS: u64 = 1024;

/// Returns whether a key says how a model is split.
pub(crate) fn is_split_key(key: &str) -> bool {
    [NO, COUNT, TENSORS].contains(&key)
}

/// Returns the end of the name of part `no`, from 1, of `count`.
pub(crate) fn suffix(no: u64, count: u64) -> String {
    format!("-{no:05}-of-{count:05}.gguf")
}

/// The split keys of one file: the claimed place in a model.
struct Claim<'a> {
    file: &'a str,
    dir: &'a Directory,
    bytes: &'a [u8],
}

impl Claim<'_> {
    fn number(&self, key: &'static str) -> Result<Option<u64>, Error> {
        let Some(value) = self.dir.keys.get(self.bytes, key) else {
            return Ok(None);
        };
        let fits = value.as_int().and_then(|v| u64::try_from(v).ok());
        fits.map(Some).ok_or_else(|| Error::KeyType {
            file: self.file.to_owned(),
            key: key.to_owned(),
            expected: "a non-negative integer",
            got: match value.as_int() {
                Some(v) => v.to_string(),
                None => value.kind(),
            },
        })
    }

    /// Fails unless `key` is `expected`, in part `no` counted from 1.
    fn expect(&self, key: &'static str, no: u64, expected: u64) -> Result<(), Error> {
        let got = self.number(key)?;
        if got == Some(expected) {
            return Ok(());
        }
        let got = got.map_or("absent".to_owned(), |v| v.to_string());
        Err(Error::SplitKey {
            file: self.file.to_owned(),
            no,
            key,
            expected,
            got,
        })
    }
}

/// Returns the number of parts that the first file claims, 1 for a single file. Fails for any other
/// part.
pub(crate) fn part_count(
    file: &str,
    path: Option<&Path>,
    dir: &Directory,
    bytes: &[u8],
) -> Result<u64, Error> {
    let claim = Claim { file, dir, bytes };
    let count = claim.number(COUNT)?.unwrap_or(0);
    if count == 0 {
        return Ok(1); // llama.cpp's merge tool leaves a count of 0
    }
    crate::parse::limit(file, "parts", count, MAX_PARTS)?;
    let no = claim.number(NO)?;
    match no {
        Some(0) => {}
        None if count == 1 => {}
        Some(no) if no < count => {
            let no = no.saturating_add(1);
            let first = path
                .and_then(|p| sibling(p, no, 1, count))
                .map(|p| label(&p));
            let first =
                first.unwrap_or_else(|| format!("whose name ends with {}", suffix(1, count)));
            return Err(Error::NotFirstPart {
                file: file.to_owned(),
                no,
                count,
                first,
            });
        }
        _ => claim.expect(NO, 1, 0)?,
    }
    if count > 1 && path.is_none() {
        return Err(Error::SplitInMemory {
            file: file.to_owned(),
            count,
        });
    }
    Ok(count)
}

/// Returns the path of part `no` of `count`, from the path of the first.
pub(crate) fn part_path(first: &Path, no: u64, count: u64) -> Result<PathBuf, Error> {
    sibling(first, 1, no, count).ok_or_else(|| Error::SplitName {
        file: label(first),
        count,
        expected: format!("NAME{}", suffix(1, count)),
    })
}

fn sibling(path: &Path, from: u64, to: u64, count: u64) -> Option<PathBuf> {
    let prefix = path
        .file_name()?
        .to_str()?
        .strip_suffix(&suffix(from, count))?;
    Some(path.with_file_name(format!("{prefix}{}", suffix(to, count))))
}

/// Checks that a file is part `no`, from 1, of `count`.
pub(crate) fn check_part(
    file: &str,
    dir: &Directory,
    bytes: &[u8],
    no: u64,
    count: u64,
) -> Result<(), Error> {
    let claim = Claim { file, dir, bytes };
    claim.expect(COUNT, no, count)?;
    claim.expect(NO, no, no.saturating_sub(1))
}

/// Checks the number of tensors the first part claims for the whole model.
pub(crate) fn check_total(
    file: &str,
    dir: &Directory,
    bytes: &[u8],
    tensors: u64,
) -> Result<(), Error> {
    Claim { file, dir, bytes }.expect(TENSORS, 1, tensors)
}
