//! A file's bytes: memory-mapped, or in memory. The only file of this crate with `unsafe`.
//!
//! Other processes may shorten a mapped file, and then reading the lost part raises a signal
//! (SIGBUS). There are two remedies: [`guard_maps`] turns the signal into a one-line error, and
//! [`Bytes::check`] compares the file with its state when it was opened.
#![allow(unsafe_code)] // a memory map cannot be made without it

mod ahead;
mod state;

use crate::{Error, RowSource, error::label};
use memmap2::{Mmap, MmapOptions};
use state::State;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

/// A mapped file.
pub(crate) struct Mapped {
    /// Declared before the map, so that it is dropped before the addresses are reused.
    #[cfg(unix)]
    _listed: guard::Listed,
    map: Mmap,
    path: PathBuf,
    was: State,
    /// End of the range the system was asked to read ahead.
    asked: AtomicUsize,
}

/// Bytes that do not move while this lives.
pub(crate) enum Bytes {
    Mapped(Mapped),
    Held(Cow<'static, [u8]>),
    /// A range of other bytes.
    Shared(Arc<Bytes>, Range<usize>),
    /// Computed from something else, when all of them are requested.
    Made {
        rows: Arc<dyn RowSource>,
        len: usize,
        held: OnceLock<Vec<u8>>,
    },
}

impl Bytes {
    /// Opens a regular file; `mmap` selects mapping or reading. The length is the current one.
    pub(crate) fn open(path: &Path, mmap: bool) -> Result<Bytes, Error> {
        let failed = |action| {
            move |source| Error::Io {
                file: label(path),
                action,
                source,
            }
        };
        // checked before opening: opening a pipe would wait for a writer
        let regular = |meta: fs::Metadata| {
            if meta.is_file() {
                Ok(meta.len())
            } else {
                Err(Error::NotAFile { file: label(path) })
            }
        };
        regular(fs::metadata(path).map_err(failed("open it"))?)?;
        let file = File::open(path).map_err(failed("open it"))?;
        let meta = file.metadata().map_err(failed("open it"))?;
        let was = State::of(&meta);
        let len = regular(meta)?;
        let no_memory = || Error::NoMemory {
            file: label(path),
            bytes: len,
        };
        let size = usize::try_from(len).map_err(|_| no_memory())?;
        if !mmap || size == 0 {
            let mut held = Vec::new();
            held.try_reserve_exact(size).map_err(|_| no_memory())?;
            file.take(len)
                .read_to_end(&mut held)
                .map_err(failed("read it"))?;
            return Ok(Bytes::Held(held.into()));
        }
        // SAFETY: the map is read-only and lives in `Bytes`, which hands out slices no longer than
        // itself. The caller must ensure that the file is neither changed nor shortened meanwhile,
        // as `OpenOptions::mmap` documents; this crate checks every length against the slice again
        // whenever it decodes, whatever the bytes have become.
        let map = unsafe { MmapOptions::new().len(size).map(&file) };
        let map = map.map_err(failed("map it"))?;
        Ok(Bytes::Mapped(Mapped {
            #[cfg(unix)]
            _listed: guard::Listed::new(map.as_ptr().addr(), size, &label(path)),
            map,
            path: path.to_owned(),
            was,
            asked: AtomicUsize::new(0),
        }))
    }

    /// Checks that a mapped file still has the size and modification time it had when it was
    /// opened, with one system call. Moving the file away, or replacing it by another of its name,
    /// does not count as a change.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Bytes::Shared(whole, _) => whole.check(),
            Bytes::Made { rows, .. } => rows.check(),
            Bytes::Held(_) => Ok(()),
            Bytes::Mapped(mapped) => {
                let Ok(meta) = fs::metadata(&mapped.path) else {
                    return Ok(());
                };
                let now = State::of(&meta);
                if now == mapped.was || !mapped.was.same_file(&now) {
                    return Ok(());
                }
                Err(Error::Changed {
                    file: label(&mapped.path),
                    expected: mapped.was.len,
                    got: now.len,
                })
            }
        }
    }

    /// Tells the system that the whole pages inside `start..end` are not needed soon. Does nothing
    /// for bytes in memory.
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
        if let Bytes::Mapped(Mapped { map, .. }) = self {
            let Some(start) = start.checked_next_multiple_of(PAGE) else {
                return;
            };
            let end = end.min(map.len());
            let end = end.saturating_sub(end.checked_rem(PAGE).unwrap_or(0));
            let Some(len) = end.checked_sub(start).filter(|&len| len > 0) else {
                return;
            };
            // SAFETY: the map is shared and read-only: a dropped page is read from the file again
            // with the same bytes, so no slice into it changes. `start + len` is at most the map's
            // length. A failure affects only memory use, so it is ignored.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len)
            };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }
}

/// A multiple of the page size: exact on x86-64, elsewhere the largest in use.
#[cfg(unix)]
const PAGE: usize = if cfg!(target_arch = "x86_64") {
    4096
} else {
    65_536
};

impl Bytes {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Made { len, .. } => *len,
            other => other.whole().len(),
        }
    }

    /// Returns all bytes.
    pub(crate) fn whole(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapped) => &mapped.map,
            Bytes::Held(held) => held,
            Bytes::Shared(whole, range) => whole.whole().get(range.clone()).unwrap_or(&[]),
            Bytes::Made { rows, len, held } => held.get_or_init(|| {
                let mut all = vec![0; *len];
                rows.fill(0, &mut all);
                all
            }),
        }
    }

    /// Copies the bytes from `start` on, which must be the start of a row of `row` bytes, without
    /// computing all rows.
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

/// Makes the process end with one line on stderr, `PREFIX FILE: ...`, and exit code `code`, when it
/// reads a part of a mapped file that is lost or that its disk cannot read. Without this the system
/// ends it with a signal.
///
/// This is meant for programs, which own their process: it installs a process-wide handler of
/// SIGBUS. A bus error outside this crate's maps goes to the previous handler. No destructor runs;
/// temporary files and folders of this crate are removed all the same, also when the signal was
/// sent by a process. Calling it again changes prefix and code. On systems other than Unix it does
/// nothing: Windows refuses to shorten a mapped file, and a failing disk ends the process there.
///
/// # Errors
/// If the system refuses the handler.
pub fn guard_maps(prefix: &str, code: u8) -> std::io::Result<()> {
    #[cfg(unix)]
    return guard::install(prefix, code);
    #[cfg(not(unix))]
    {
        let _ = (prefix, code);
        Ok(())
    }
}

#[cfg(unix)]
pub(crate) use guard::tidy_up_at_the_end;

#[cfg(unix)]
mod guard;
