//! Changes the keys of a file: in place if no byte of it moves, else as a new file.

use crate::gguf::Gguf;
use crate::layout::ALIGNMENT_KEY;
use crate::writer::encode_key;
use crate::{Error, OwnedValue, Writer, error, replace};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A change of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyEdit {
    /// Sets a key. An existing one keeps its place and its type: integers and floats are converted
    /// to the type in the file. A new one is the last.
    Set(String, OwnedValue),
    /// Removes a key.
    Remove(String),
    /// Gives a key another name, at the same place.
    Rename {
        /// Name in the file.
        from: String,
        /// New name.
        to: String,
    },
}

/// A key after the edits, and its place among the keys before them.
struct Entry {
    key: String,
    value: OwnedValue,
    old: Option<usize>,
}

/// A file's keys after edits; see [`Gguf::edit`].
pub struct Edited<'g> {
    gguf: &'g Gguf,
    entries: Vec<Entry>,
    /// Bytes to write over old ones, or the first key that moves others.
    patches: Result<Vec<Patch>, String>,
}

/// Bytes that replace as many others.
struct Patch {
    at: u64,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// Edits that move no byte: see [`Edited::in_place`].
pub struct InPlace {
    file_bytes: u64,
    patches: Vec<Patch>,
}

impl Gguf {
    /// Applies edits of keys, one after the other. Nothing is written yet.
    ///
    /// # Errors
    /// A key to remove or rename that is not there, a new name that is, a value that the key's type
    /// cannot hold, an invalid key or alignment, a key that says how the model is split.
    pub fn edit(&self, edits: &[KeyEdit]) -> Result<Edited<'_>, Error> {
        let mut entries: Vec<Entry> = self
            .keys()
            .enumerate()
            .map(|(i, (key, value))| Entry {
                key: key.to_owned(),
                value: value.into(),
                old: Some(i),
            })
            .collect();
        for edit in edits {
            self.apply(edit, &mut entries)?;
        }
        let mut checked = Writer::new();
        for entry in &entries {
            checked.set(&entry.key, entry.value.clone());
        }
        checked.check_keys(self.name())?;
        let patches = self.patches(&entries);
        Ok(Edited {
            gguf: self,
            entries,
            patches,
        })
    }

    fn apply(&self, edit: &KeyEdit, entries: &mut Vec<Entry>) -> Result<(), Error> {
        let place = |key: &str| entries.iter().position(|entry| entry.key == key);
        let file = || self.name().to_owned();
        let found = |key: &str| {
            place(key).ok_or_else(|| Error::NoKey {
                file: file(),
                key: key.to_owned(),
            })
        };
        let not_split = |key: &str| match crate::split::is_split_key(key) {
            true => Err(Error::KeyOfSplit {
                file: file(),
                key: key.to_owned(),
            }),
            false => Ok(()),
        };
        match edit {
            KeyEdit::Set(key, value) => {
                not_split(key)?;
                match place(key).and_then(|i| entries.get_mut(i)) {
                    Some(entry) => entry.value = self.as_old(key, &entry.value, value.clone())?,
                    None => entries.push(Entry {
                        key: key.clone(),
                        value: value.clone(),
                        old: None,
                    }),
                }
            }
            KeyEdit::Remove(key) => {
                not_split(key)?;
                entries.remove(found(key)?);
            }
            KeyEdit::Rename { from, to } => {
                not_split(from)?;
                not_split(to)?;
                let at = found(from)?;
                if from != to && place(to).is_some() {
                    return Err(Error::DuplicateKey {
                        file: file(),
                        key: to.clone(),
                    });
                }
                if let Some(entry) = entries.get_mut(at) {
                    entry.key.clone_from(to);
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes to write over old ones, or the first key that moves others.
    fn patches(&self, entries: &[Entry]) -> Result<Vec<Patch>, String> {
        let mut patches = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let record = self.key_record(i).filter(|_| entry.old == Some(i));
            let Some((at, old)) = record else {
                let removed = entry.old.is_some_and(|old| old > i);
                let old = self.keys().nth(i).filter(|_| removed);
                return Err(old.map_or(&*entry.key, |(key, _)| key).to_owned());
            };
            let mut new = Vec::new();
            encode_key(&mut new, &entry.key, &entry.value);
            let moves_data = entry.key == ALIGNMENT_KEY && new != old;
            if new.len() != old.len() || moves_data {
                return Err(entry.key.clone());
            }
            patches.extend(differing(at, old, &new));
        }
        match self.keys().nth(entries.len()) {
            Some((key, _)) => Err(key.to_owned()),
            None => Ok(patches),
        }
    }
}

/// Returns the smallest range of bytes that contains every difference.
fn differing(at: usize, old: &[u8], new: &[u8]) -> Option<Patch> {
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = old.iter().zip(new).position(differs)?;
    let last = old.iter().zip(new).rposition(differs)?;
    Some(Patch {
        at: at.saturating_add(first) as u64,
        old: old.get(first..=last)?.to_vec(),
        new: new.get(first..=last)?.to_vec(),
    })
}

impl Edited<'_> {
    /// Returns the first key whose edit moves other bytes; `None` if the file can be changed in
    /// place.
    pub fn moves(&self) -> Option<&str> {
        self.patches.as_ref().err().map(String::as_str)
    }

    /// Returns the keys after the edits, in the new order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &OwnedValue)> {
        self.entries.iter().map(|e| (e.key.as_str(), &e.value))
    }

    /// Returns the edits as changes of single bytes of the (first) file, which can be made once the
    /// model is closed; `None` if something moves.
    pub fn in_place(self) -> Option<InPlace> {
        Some(InPlace {
            file_bytes: self.gguf.first_bytes(),
            patches: self.patches.ok()?,
        })
    }

    /// Writes the model with the new keys as a new file, and returns its size in bytes.
    ///
    /// # Errors
    /// A model of several files, and those of [`Writer::write_file`].
    pub fn write_file(self, path: &Path) -> Result<u64, Error> {
        let parts = self.gguf.part_names().count() as u64;
        if parts > 1 {
            return Err(Error::SplitModel {
                file: self.gguf.name().to_owned(),
                count: parts,
            });
        }
        let mut writer = Writer::new();
        for Entry { key, value, .. } in self.entries {
            writer.set(&key, value);
        }
        for tensor in self.gguf.tensors() {
            let data = self.gguf.stream(tensor);
            writer.tensor(&tensor.name, &tensor.dims, tensor.ty, data);
        }
        writer.write_file(path)
    }
}

impl InPlace {
    /// Returns the number of bytes that change.
    pub fn bytes(&self) -> u64 {
        let bytes = self.patches.iter().map(|patch| patch.new.len() as u64);
        bytes.fold(0, u64::saturating_add)
    }

    /// Makes the changes in the file that the model was opened from.
    ///
    /// # Errors
    /// A file that has changed since, or that cannot be written.
    pub fn write(self, path: &Path) -> Result<(), Error> {
        let path = replace::behind_links(path)?;
        let label = error::label(&path);
        let failed = |action: &'static str| {
            let file = label.clone();
            move |source| Error::Io {
                file,
                action,
                source,
            }
        };
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open(&path);
        let mut file = opened.map_err(failed("open it for writing"))?;
        let got = file.metadata().map_err(failed("read its size"))?.len();
        let mut is_same = got == self.file_bytes;
        for patch in &self.patches {
            is_same = is_same && has(&mut file, patch).map_err(failed("read it"))?;
        }
        if !is_same {
            return Err(Error::Changed {
                file: label,
                expected: self.file_bytes,
                got,
            });
        }
        for patch in &self.patches {
            let placed = file.seek(SeekFrom::Start(patch.at));
            let written = placed.and_then(|_| file.write_all(&patch.new));
            written.map_err(failed("write it"))?;
        }
        file.sync_all().map_err(failed("flush it to the disk"))
    }
}

/// Returns whether the file still has the bytes that a patch replaces.
fn has(file: &mut File, patch: &Patch) -> std::io::Result<bool> {
    let mut there = vec![0; patch.old.len()];
    file.seek(SeekFrom::Start(patch.at))?;
    file.read_exact(&mut there)?;
    Ok(there == patch.old)
}
