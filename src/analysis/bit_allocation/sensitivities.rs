//! Sensitivities: the KL divergence that a model has with a tensor, or a group of them, in a type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use serde::{Deserialize, Serialize};

use super::groups::{By, Unit, probe, units};
use super::{Candidates, Error};
use crate::quant_report::{Base, Replaced, Setup, score_some};
use crate::shards::{Key, ShardIndex};

/// Version of the file's format.
const FORMAT: u32 = 1;

/// Number of bytes of a bad line that an error shows.
const SHOWN: usize = 60;

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Measured {
    /// Name of a tensor, or of a group of them.
    tensor: String,
    #[serde(rename = "type")]
    ty: String,
    /// Mean KL divergence from the model itself, in nats.
    mean_kl: f64,
}

/// First line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    octavo_sensitivities: u32,
    key: Key,
}

/// Mean KL divergence of the model with a tensor or a group of them in a type, in nats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensitivities(BTreeMap<(String, u32), f64>);

impl Sensitivities {
    /// Returns the types in which a tensor or group was measured, with the divergence of each.
    pub fn of(&self, name: &str) -> impl Iterator<Item = (TensorType, f64)> {
        let range = (name.to_owned(), 0)..=(name.to_owned(), u32::MAX);
        let of = self.0.range(range);
        of.filter_map(|((_, id), kl)| Some((TensorType::from_id(*id)?, *kl)))
    }

    /// Returns the divergence of a tensor or group in a type.
    pub fn get(&self, name: &str, ty: TensorType) -> Option<f64> {
        self.0.get(&(name.to_owned(), ty.id())).copied()
    }

    /// Returns the types in which something was measured.
    pub(super) fn types(&self) -> Vec<TensorType> {
        let ids: BTreeSet<u32> = self.0.keys().map(|(_, id)| *id).collect();
        ids.into_iter().filter_map(TensorType::from_id).collect()
    }

    /// Returns the number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a measurement.
    pub fn insert(&mut self, name: &str, ty: TensorType, mean_kl: f64) {
        self.0.insert((name.to_owned(), ty.id()), mean_kl);
    }
}

/// A file of sensitivities: a line of JSON for each, written as soon as it is measured, so that an
/// interrupted run can go on.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    /// Opens a file to add to, and reads its contents into `all`. A new one is begun with the key
    /// of everything that the figures depend on. An incomplete last line is removed.
    ///
    /// # Errors
    /// A file of other measurements, or one that cannot be read or written.
    pub fn open(path: &Path, key: &Key, all: &mut Sensitivities) -> Result<Record, Error> {
        let io = |source| Error::Io {
            path: path.display().to_string(),
            source,
        };
        let options = || {
            let mut options = File::options();
            options.create(true).append(true);
            options
        };
        if path.exists() && path.metadata().map_err(io)?.len() > 0 {
            let whole = read(path, key, all)?;
            let file = options().open(path).map_err(io)?;
            if path.metadata().map_err(io)?.len() > whole {
                file.set_len(whole).map_err(io)?;
            }
            return Ok(Record {
                path: path.to_owned(),
                file,
            });
        }
        let mut record = Record {
            path: path.to_owned(),
            file: options().open(path).map_err(io)?,
        };
        record.line(&Head {
            octavo_sensitivities: FORMAT,
            key: key.clone(),
        })?;
        Ok(record)
    }

    fn line(&mut self, of: &impl Serialize) -> Result<(), Error> {
        let io = |source| Error::Io {
            path: self.path.display().to_string(),
            source,
        };
        let mut text = serde_json::to_vec(of).map_err(|error| io(error.into()))?;
        text.push(b'\n');
        // one write, so that a line is there whole or not at all if the program is killed
        self.file.write_all(&text).map_err(io)
    }

    fn add(&mut self, tensor: &str, ty: TensorType, mean_kl: f64) -> Result<(), Error> {
        self.line(&Measured {
            tensor: tensor.to_owned(),
            ty: ty.name().to_owned(),
            mean_kl,
        })
    }
}

/// Reads a file into `all`; returns the length of its whole lines.
///
/// # Errors
/// [`Error::Record`] for anything that [`Record`] does not write, [`Error::OtherWork`] for another
/// key.
pub fn read(path: &Path, key: &Key, all: &mut Sensitivities) -> Result<u64, Error> {
    let file = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| Error::Io {
        path: file(),
        source,
    })?;
    let end = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    let mut whole = bytes[..end]
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty());
    let bad = |line, expected, text: &[u8]| {
        let start = &text[..text.len().min(SHOWN)];
        let got = String::from_utf8_lossy(start).into_owned();
        Error::Record {
            file: file(),
            line,
            expected,
            got,
        }
    };
    let first = whole.next();
    let head: Head = first
        .and_then(|line| serde_json::from_slice(line).ok())
        .filter(|head: &Head| head.octavo_sensitivities == FORMAT)
        .ok_or_else(|| {
            let expected = "the first line of a file of sensitivities";
            bad(1, expected, first.unwrap_or(&bytes))
        })?;
    if let Some((name, theirs, ours)) = head.key.difference(key) {
        return Err(Error::OtherWork {
            file: file(),
            name,
            expected: ours,
            got: theirs,
        });
    }
    for (line, number) in whole.zip(2..) {
        let measured = serde_json::from_slice::<Measured>(line).ok();
        let known = measured.and_then(|m| Some((TensorType::from_name(&m.ty)?, m)));
        let Some((ty, m)) = known.filter(|(_, m)| m.mean_kl.is_finite()) else {
            let expected = "a tensor, a type, and a mean KL divergence";
            return Err(bad(number, expected, line));
        };
        all.insert(&m.tensor, ty, m.mean_kl);
    }
    Ok(end as u64)
}

/// The measurements to make.
pub(super) struct Work<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) setup: &'a Setup<'a>,
    pub(super) base: &'a Base,
    pub(super) candidates: &'a [Candidates],
    pub(super) by: By,
    /// Types to measure in.
    pub(super) probes: &'a [TensorType],
    /// Share of the measurements to make.
    pub(super) shard: Option<ShardIndex>,
}

impl Work<'_> {
    /// Makes the measurements that `all` lacks and adds them to it and to the record; `progress`
    /// receives the number of measurements made and to make.
    ///
    /// # Errors
    /// Those of converting and scoring, and of writing the record.
    pub(super) fn measure(
        &self,
        all: &mut Sensitivities,
        mut record: Option<&mut Record>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let units = units(self.candidates, self.by);
        let each = units.iter().flat_map(|unit| {
            let probes = self.probes.iter();
            probes.map(move |ty| (unit, *ty))
        });
        let mut work: Vec<(&Unit, TensorType)> = each.collect();
        if let Some(shard) = self.shard {
            let range = shard.range(work.len());
            work = work[range].to_vec();
        }
        work.retain(|(unit, ty)| all.get(&unit.name, *ty).is_none());
        if work.is_empty() {
            return Ok(());
        }
        let mut model = Replaced::new(self.gguf, self.setup)?;
        let chunks = self.by.chunks(self.setup.units());
        let scored = |path: &Path| {
            let engine = self.setup.load(path)?;
            score_some(self.setup, self.base, &engine, chunks)
        };
        // a base has 16 bits for each log-probability: what that alone shows
        let zero = model.with(&[], scored)?.kld().value;
        for (done, (unit, ty)) in work.iter().enumerate() {
            progress(done, work.len());
            let members = unit.members.iter().map(|&i| &self.candidates[i]);
            let types: Vec<(&TensorInfo, TensorType)> =
                members.map(|of| (&of.tensor, probe(of, *ty))).collect();
            let d = model.with(&types, scored)?;
            let mean_kl = d.kld().value - zero;
            all.insert(&unit.name, *ty, mean_kl);
            if let Some(record) = &mut record {
                record.add(&unit.name, *ty, mean_kl)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Key {
        let mut key = Key::new("sensitivities");
        key.set("chunks", 2);
        key
    }

    fn filled(path: &Path) -> Sensitivities {
        let mut all = Sensitivities::default();
        let mut record = Record::open(path, &key(), &mut all).expect("opened");
        for (tensor, kl) in [("blk.0.attn_q.weight", 1e-3), ("output.weight", -1e-9)] {
            record.add(tensor, TensorType::Q4_K, kl).expect("written");
            all.insert(tensor, TensorType::Q4_K, kl);
        }
        all
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s.jsonl");
        let all = filled(&path);
        let mut again = Sensitivities::default();
        read(&path, &key(), &mut again).expect("read");
        assert_eq!(again, all);
        let of: Vec<_> = again.of("output.weight").collect();
        assert_eq!(of, [(TensorType::Q4_K, -1e-9)]);
        let mut other = key();
        other.set("chunks", 3);
        let error = read(&path, &other, &mut again).expect_err("other work");
        assert!(
            error.to_string().contains("chunks: expected 3, got 2"),
            "{error}"
        );
    }

    /// A run that was killed at any time goes on from the whole lines.
    #[test]
    fn a_file_cut_anywhere_is_continued() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s.jsonl");
        let all = filled(&path);
        let bytes = std::fs::read(&path).expect("read");
        for n in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..n]).expect("written");
            let mut known = Sensitivities::default();
            match Record::open(&path, &key(), &mut known) {
                // within the first line, which says what the file is
                Err(Error::Record { line: 1, .. }) => assert!(!bytes[..n].contains(&b'\n')),
                Err(other) => panic!("{n}: {other}"),
                Ok(mut record) => {
                    record.add("last", TensorType::Q6_K, 1.0).expect("written");
                    let mut read_again = Sensitivities::default();
                    read(&path, &key(), &mut read_again).expect("whole lines");
                    assert_eq!(read_again.len(), known.len() + 1, "{n}");
                    assert!(known.len() <= all.len());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            head in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("s.jsonl");
            if head {
                Record::open(&path, &key(), &mut Sensitivities::default()).expect("opened");
            }
            let mut file = File::options().append(true).create(true).open(&path).expect("opened");
            file.write_all(&bytes).expect("written");
            let _ = read(&path, &key(), &mut Sensitivities::default());
        }
    }
}
