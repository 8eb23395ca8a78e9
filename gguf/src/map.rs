//! A file's bytes: memory-mapped, or in memory. The one file of this crate with `unsafe`.
#![allow(unsafe_code)] // a memory map cannot be made without it

use crate::{Error, RowSource, error::label};
use memmap2::{Mmap, MmapOptions};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Bytes that do not move while this lives.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Held(Cow<'static, [u8]>),
    /// A part of others.
    Shared(Arc<Bytes>, Range<usize>),
    /// Made from something else, when all of them are asked for.
    Made {
        rows: Arc<dyn RowSource>,
        len: usize,
        held: OnceLock<Vec<u8>>,
    },
}

impl Bytes {
    /// Opens a regular file; `mmap` says how. The length is the one it has now.
    pub(crate) fn open(path: &Path, mmap: bool) -> Result<Bytes, Error> {
        let failed = |action| move |source| Error::Io { file: label(path), action, source };
        // asked before opening: opening a pipe would wait for a writer
        let regular = |meta: fs::Metadata| {
            if meta.is_file() { Ok(meta.len()) } else { Err(Error::NotAFile { file: label(path) }) }
        };
        regular(fs::metadata(path).map_err(failed("open it"))?)?;
        let file = File::open(path).map_err(failed("open it"))?;
        let len = regular(file.metadata().map_err(failed("open it"))?)?;
        let no_memory = || Error::NoMemory { file: label(path), bytes: len };
        let size = usize::try_from(len).map_err(|_| no_memory())?;
        if !mmap || size == 0 {
            let mut held = Vec::new();
            held.try_reserve_exact(size).map_err(|_| no_memory())?;
            file.take(len).read_to_end(&mut held).map_err(failed("read it"))?;
            return Ok(Bytes::Held(held.into()));
        }
        // SAFETY: the map is read-only and lives in `Bytes`, which hands out slices no longer than itself. That nobody
        // changes or shortens the file meanwhile is the caller's side of `OpenOptions::mmap`, which says so; this crate
        // checks every length against the slice again whenever it decodes, whatever the bytes have become.
        let map = unsafe { MmapOptions::new().len(size).map(&file) };
        map.map(Bytes::Mapped).map_err(failed("map it"))
    }

    /// Tells the system that the whole pages inside `start..end` are not needed soon. Does nothing for bytes in memory.
    pub(crate) fn release(&self, start: usize, end: usize) {
        match self {
            Bytes::Shared(whole, range) => {
                let at = |i: usize| range.start.saturating_add(i).min(range.end);
                return whole.release(at(start), at(end));
            }
            Bytes::Made { rows, .. } => return rows.release(),
            Bytes::Mapped(_) | Bytes::Held(_) => {}
        }
        #[cfg(unix)]
        if let Bytes::Mapped(map) = self {
            let Some(start) = start.checked_next_multiple_of(PAGE) else { return };
            let end = end.min(map.len());
            let end = end.saturating_sub(end.checked_rem(PAGE).unwrap_or(0));
            let Some(len) = end.checked_sub(start).filter(|&len| len > 0) else { return };
            // SAFETY: the map is shared and read-only: a dropped page comes back from the file with the same bytes, so
            // no slice into it changes. `start + len` is at most the map's length.
            // A refusal changes nothing but memory use, so there is nothing to report.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }
}

/// A multiple of the page size: exact on x86-64, elsewhere the largest in use.
#[cfg(unix)]
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };

impl Bytes {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Made { len, .. } => *len,
            other => other.whole().len(),
        }
    }

    /// All of them.
    pub(crate) fn whole(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Held(held) => held,
            Bytes::Shared(whole, range) => whole.whole().get(range.clone()).unwrap_or(&[]),
            Bytes::Made { rows, len, held } => held.get_or_init(|| {
                let mut all = vec![0; *len];
                rows.fill(0, &mut all);
                all
            }),
        }
    }

    /// Copies the bytes from `start` on, which is where a row of `row` bytes starts, without making all.
    pub(crate) fn read(&self, start: usize, row: usize, out: &mut [u8]) {
        match self {
            Bytes::Made { rows, held, .. } if held.get().is_none() => {
                rows.fill(start.checked_div(row).unwrap_or(0) as u64, out);
            }
            other => {
                let from = other.whole().get(start..).unwrap_or(&[]);
                out.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.whole()
    }
}
