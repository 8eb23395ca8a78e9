//! Writes a planned conversion, as one file or in the parts of the source.

use std::cell::RefCell;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use gguf_rs_lite::{NewFile, TensorData, Writer};

use super::{Change, Error, Plan, Progress, convert};

/// State shared by the closures that write tensors: the first error that is not one of writing, and
/// the receiver of progress.
struct Shared<'p> {
    failure: RefCell<Option<Error>>,
    progress: RefCell<&'p mut dyn FnMut(Progress<'_>)>,
}

impl<'a> Plan<'a> {
    /// Returns the files that [`Plan::write`] makes for this path: the path itself, or with
    /// [`keep_split`](super::Options::keep_split) one for each part of the source, named
    /// `NAME-00001-of-00003.gguf`.
    pub fn paths(&self, path: &Path) -> Vec<PathBuf> {
        if !self.options.keep_split {
            return vec![path.to_owned()];
        }
        let n = self.n_parts();
        let name = path.to_string_lossy();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let named = (1..=n).map(|no| format!("{stem}-{no:05}-of-{n:05}.gguf"));
        named.map(PathBuf::from).collect()
    }

    /// Returns the number of files of the source, up to the last one with tensors.
    fn n_parts(&self) -> usize {
        let parts = self.changes.iter().map(|change| change.tensor.part + 1);
        parts.max().unwrap_or(1)
    }

    /// Returns the size of the new model, as one file.
    ///
    /// # Errors
    /// An invalid key or name.
    pub fn file_bytes(&self) -> Result<u64, Error> {
        let mut silent = |_: Progress<'_>| ();
        let shared = Shared {
            failure: RefCell::new(None),
            progress: RefCell::new(&mut silent),
        };
        Ok(self.writer(None, &shared)?.file_bytes()?)
    }

    /// Writes the new model; its files exist only once all are complete. Returns their size.
    ///
    /// # Errors
    /// As [`Plan::check`], values that are not finite or overflow a scale, and a failed write.
    pub fn write(&self, path: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<u64, Error> {
        self.check()?;
        let shared = Shared {
            failure: RefCell::new(None),
            progress: RefCell::new(progress),
        };
        let written = match self.options.keep_split {
            true => self.write_parts(path, &shared),
            false => self
                .writer(None, &shared)
                .and_then(|writer| Ok(writer.write_file(path)?)),
        };
        match shared.failure.take() {
            Some(error) => Err(error),
            None => written,
        }
    }

    fn write_parts(&self, path: &Path, shared: &Shared<'_>) -> Result<u64, Error> {
        let mut files = Vec::new();
        let mut written = 0;
        for (part, path) in self.paths(path).iter().enumerate() {
            let new = NewFile::beside(path)?;
            let opened = std::fs::File::options().write(true).open(new.path());
            let file = opened.map_err(|source| gguf_rs_lite::Error::Io {
                file: path.display().to_string(),
                action: "write it",
                source,
            })?;
            let writer = self.writer(Some(part), shared)?;
            written += writer.write_to(BufWriter::with_capacity(1 << 20, file))?;
            files.push(new);
        }
        files.into_iter().try_for_each(NewFile::publish)?;
        Ok(written)
    }

    /// Returns the writer of a part, or of everything.
    fn writer<'w>(
        &'w self,
        part: Option<usize>,
        shared: &'w Shared<'_>,
    ) -> Result<Writer<'w>, Error>
    where
        'a: 'w,
    {
        let mut writer = Writer::new();
        if part.unwrap_or(0) == 0 {
            self.set_keys(&mut writer);
        }
        let (n, total) = (self.n_parts(), self.changes.len());
        if let Some(part) = part.filter(|_| n > 1) {
            // the order in which llama-quantize sets them; a file has fewer than 2^16 parts
            writer
                .set("split.no", part as u16)
                .set("split.count", n as u16);
            writer.set(
                "split.tensors.count",
                i32::try_from(total).unwrap_or(i32::MAX),
            );
            writer.padded();
        }
        for (index, change) in self.changes.iter().enumerate() {
            if part.is_some_and(|part| change.tensor.part != part) {
                continue;
            }
            let weights = self.weights(change)?;
            let unweighted = self.importance.is_some() && change.converts() && weights.is_none();
            let data = TensorData::stream(move |out| {
                let report = &mut **shared.progress.borrow_mut();
                report(Progress::Tensor {
                    index,
                    change,
                    unweighted,
                });
                self.write_tensor(change, weights, out, report)
                    .map_err(|error| match error {
                        Error::Gguf(gguf_rs_lite::Error::Io { source, .. }) => source,
                        other => {
                            *shared.failure.borrow_mut() = Some(other);
                            io::Error::other("a tensor could not be converted")
                        }
                    })
            });
            // llama-quantize reads and writes with ggml
            let dims = match self.from_folder {
                true => &change.tensor.dims[..],
                false => change.tensor.counted_dims(),
            };
            writer.tensor(&change.tensor.name, dims, change.to, data);
        }
        Ok(writer)
    }

    fn write_tensor(
        &self,
        change: &Change,
        weights: Option<&[f32]>,
        out: &mut dyn io::Write,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Error> {
        let job = convert::Job {
            gguf: self.gguf,
            change,
            weights,
            threads: self.options.threads,
        };
        let rounding = job.run(out, &mut |bytes| progress(Progress::Bytes(bytes)))?;
        self.gguf.release(&change.tensor);
        progress(Progress::Done { change, rounding });
        Ok(())
    }
}
