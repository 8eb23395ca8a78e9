//! A copy of a model in which a few tensors at a time are quantized.

use std::collections::HashMap;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, merged};

use super::{Error, Setup, io};
use crate::eval::for_each;
use crate::imatrix::Importance;
use crate::quantize::{Job, change_to, convert};
use octavo_engine::ModelSource;

/// Rows that a thread converts at a time.
const ROWS: usize = 64;

/// Returns a tensor's importance weights, if it has any: one row per expert.
pub(crate) fn weights<'s>(importance: Option<&'s Importance>, t: &TensorInfo) -> Option<&'s [f32]> {
    let n_matrices = t.dims.get(2).copied().unwrap_or(1);
    importance?
        .weights(&t.name)
        .filter(|weights| weights.len() as u64 == t.dims[0] * n_matrices)
}

/// A copy of the model, in one file.
pub(crate) struct Replaced<'g> {
    gguf: &'g Gguf,
    importance: Option<&'g Importance>,
    threads: usize,
    path: PathBuf,
    file: File,
    /// Offset of each tensor's data in the file.
    places: HashMap<String, u64>,
}

impl<'g> Replaced<'g> {
    /// Copies all keys and tensors into one file of the setup's folder, even if the model is split.
    ///
    /// # Errors
    /// The copy cannot be written.
    pub(crate) fn new(gguf: &'g Gguf, setup: &Setup<'g>) -> Result<Replaced<'g>, Error> {
        let path = setup.folder.join("replaced.gguf");
        merged(gguf).write_file(&path)?;
        let copy = ModelSource::Path(path.clone()).open(true)?;
        let place = |t: &TensorInfo| Some((t.name.clone(), copy.file_offset(t)?));
        let places = copy.tensors().iter().filter_map(place).collect();
        let file = FileOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io(&path))?;
        Ok(Replaced {
            gguf,
            importance: setup.importance,
            threads: setup.options().threads,
            path,
            file,
            places,
        })
    }

    /// Calls `then` with the path of the model in which the values of these tensors are rounded to
    /// types, and restores them.
    ///
    /// Values are stored in the file's own type. In an F16 file this rounds twice, but the second
    /// rounding is far below what is measured.
    ///
    /// # Errors
    /// A tensor that cannot be converted, the file, or the error of `then`.
    pub(crate) fn with<T>(
        &mut self,
        tensors: &[(&TensorInfo, TensorType)],
        then: impl FnOnce(&Path) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut before = Vec::new();
        for (t, ty) in tensors {
            let bytes = self.rounded(t, *ty)?;
            before.push(self.swap(t, &bytes)?);
        }
        let result = then(&self.path);
        for ((t, _), bytes) in tensors.iter().zip(&before) {
            self.swap(t, bytes)?;
        }
        result
    }

    /// Writes a tensor's data and returns the data before.
    fn swap(&mut self, t: &TensorInfo, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let at = SeekFrom::Start(self.places[&t.name]);
        let mut before = vec![0; bytes.len()];
        self.file
            .seek(at)
            .and_then(|_| self.file.read_exact(&mut before))
            .and_then(|()| self.file.seek(at))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(io(&self.path))?;
        Ok(before)
    }

    /// Rounds a tensor's values to a type and converts them back to its own.
    fn rounded(&self, t: &TensorInfo, to: TensorType) -> Result<Vec<u8>, Error> {
        let change = change_to(t, to, |_| false)?;
        let job = Job {
            gguf: self.gguf,
            change: &change,
            weights: weights(self.importance, t),
            threads: self.threads,
        };
        // a tensor's size fits into memory: the model has been loaded
        let mut coarse = Vec::with_capacity(change.bytes as usize);
        job.run(&mut coarse, &mut |_| ())?;
        let width = t.dims[0] as usize;
        let row = width / change.to.block_len() * change.to.block_bytes();
        let mut parts: Vec<(&[u8], Result<Vec<u8>, _>)> = coarse
            .chunks((row * ROWS).max(1))
            .map(|rows| (rows, Ok(Vec::new())))
            .collect();
        for_each(self.threads, &mut parts, |_, (rows, made)| {
            *made = convert(change.to, rows, t.ty, width, None, &mut Vec::new());
        });
        let mut out = Vec::with_capacity(t.bytes as usize);
        for (_, made) in parts {
            out.extend(made.map_err(|source| Error::Convert {
                name: t.name.clone(),
                source,
            })?);
        }
        Ok(out)
    }
}
