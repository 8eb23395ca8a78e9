//! A file's bytes: memory-mapped, or in memory. The one file of this crate with `unsafe`.
//!
//! Nothing keeps others from shortening a mapped file, and then the system answers a look at what
//! is gone with a signal (SIGBUS). What can be done: [`guard_maps`] makes one line of that signal,
//! and [`Bytes::check`] looks whether the file is still what it was.
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
    /// Before the map, so that it is forgotten before the addresses are somebody else's.
    #[cfg(unix)]
    _listed: guard::Listed,
    map: Mmap,
    path: PathBuf,
    was: State,
    /// How far the system was asked to read ahead.
    asked: AtomicUsize,
}

/// Bytes that do not move while this lives.
pub(crate) enum Bytes {
    Mapped(Mapped),
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
        let failed = |action| {
            move |source| Error::Io {
                file: label(path),
                action,
                source,
            }
        };
        // asked before opening: opening a pipe would wait for a writer
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
        // itself. That nobody changes or shortens the file meanwhile is the caller's side of
        // `OpenOptions::mmap`, which says so; this crate checks every length against the slice
        // again whenever it decodes, whatever the bytes have become.
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

    /// Whether a mapped file still has the size and the time of its last change that it had when it
    /// was opened: one question to the system. A file that was moved away, or replaced by another
    /// of its name, is as it was.
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
            // SAFETY: the map is shared and read-only: a dropped page comes back from the file with
            // the same bytes, so no slice into it changes. `start + len` is at most the map's
            // length. A refusal changes nothing but memory use, so there is nothing to report.
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

    /// Copies the bytes from `start` on, which is where a row of `row` bytes starts, without making
    /// all.
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

/// Makes the process end with one line on stderr, `PREFIX FILE: ...`, and exit code `code`, where
/// it reads a part of a mapped file that is no longer there, or that its disk cannot give. Without
/// this the system ends it with a signal.
///
/// This is for programs, which own their process: it installs a handler of SIGBUS for all of it. A
/// bus error that is not at one of this crate's maps goes to whatever handled the signal before.
/// Nothing is tidied up: no destructor runs. Calling it again changes prefix and code. Elsewhere
/// than on Unix it does nothing: Windows refuses to shorten a mapped file, and a disk that fails
/// ends the process there.
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

/// The handler of SIGBUS and the list of maps that it looks at.
///
/// A handler may interrupt anything, also an allocation or somebody who holds a lock. So it only
/// reads atomics and memory that is never freed, and calls only what POSIX allows there.
#[cfg(unix)]
mod guard {
    use std::io;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

    /// A place in the list: one for each map that there is at a time. Never freed, but used again.
    struct Place {
        used: AtomicBool,
        /// 0 while there is no map.
        start: AtomicUsize,
        len: AtomicUsize,
        name: AtomicPtr<String>,
        next: Option<&'static Place>,
    }

    static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

    /// Places from the first on.
    fn places() -> impl Iterator<Item = &'static Place> {
        std::iter::successors(first(), |place| place.next)
    }

    fn first() -> Option<&'static Place> {
        // SAFETY: null, or a `Place` that was leaked, and that nobody has a mutable reference to.
        unsafe { FIRST.load(Ordering::Acquire).as_ref() }
    }

    /// A map in the list, until this is dropped.
    pub(super) struct Listed(&'static Place);

    impl Listed {
        pub(super) fn new(start: usize, len: usize, name: &str) -> Listed {
            let take = |p: &&Place| {
                p.used
                    .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            let place = places().find(take).unwrap_or_else(added);
            place
                .name
                .store(Box::into_raw(Box::new(name.to_owned())), Ordering::Relaxed);
            place.len.store(len, Ordering::Relaxed);
            place.start.store(start, Ordering::Release);
            Listed(place)
        }
    }

    impl Drop for Listed {
        fn drop(&mut self) {
            self.0.start.store(0, Ordering::Release);
            let name = self.0.name.swap(ptr::null_mut(), Ordering::AcqRel);
            // SAFETY: made by `Box::into_raw` in `new`, and taken out of the list just now. A
            // handler reads it only for a thread that is reading this map, and whoever drops the
            // map has no reader left.
            drop(unsafe { Box::from_raw(name) });
            self.0.used.store(false, Ordering::Release);
        }
    }

    /// One more place, taken.
    fn added() -> &'static Place {
        let place = Box::leak(Box::new(Place {
            used: AtomicBool::new(true),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            name: AtomicPtr::new(ptr::null_mut()),
            next: None,
        }));
        loop {
            place.next = first();
            let seen = place
                .next
                .map_or(ptr::null_mut(), |next| ptr::from_ref(next).cast_mut());
            if FIRST
                .compare_exchange(seen, place, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return place;
            }
        }
    }

    /// How the process ends; leaked, so that a handler may read it at any time.
    struct Ending {
        prefix: String,
        code: u8,
    }

    static ENDING: AtomicPtr<Ending> = AtomicPtr::new(ptr::null_mut());
    /// What handled the signal before; leaked.
    static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

    pub(super) fn install(prefix: &str, code: u8) -> io::Result<()> {
        static ONCE: Once = Once::new();
        ENDING.store(
            Box::leak(Box::new(Ending {
                prefix: prefix.to_owned(),
                code,
            })),
            Ordering::Release,
        );
        let mut result = Ok(());
        ONCE.call_once(|| {
            // SAFETY: both are plain structs of integers, for which zeros are valid.
            let (mut new, mut before): (libc::sigaction, libc::sigaction) =
                unsafe { std::mem::zeroed() };
            new.sa_sigaction = on_bus_error as *const () as usize;
            // on the thread's own stack: the other one, if there is any, has hardly room for the
            // registers that the system keeps there where the matrix unit is in use, and this is no
            // overflow of the stack
            new.sa_flags = libc::SA_SIGINFO;
            // SAFETY: `before` and the mask are ours to write; `on_bus_error` has the signature
            // that SA_SIGINFO asks for. What was before is known to the handler before it can run:
            // it is read first and set then.
            unsafe {
                libc::sigemptyset(&raw mut new.sa_mask);
                if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) == 0 {
                    BEFORE.store(Box::leak(Box::new(before)), Ordering::Release);
                    if libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()) == 0 {
                        return;
                    }
                }
            }
            result = Err(io::Error::last_os_error());
        });
        result
    }

    /// A line that is put together without allocating; what does not fit is left out.
    struct Line {
        bytes: [u8; 1024],
        len: usize,
    }

    impl Line {
        fn add(&mut self, text: &str) {
            let room = self.bytes.iter_mut().skip(self.len);
            self.len = self.len.saturating_add(
                room.zip(text.as_bytes())
                    .map(|(to, from)| *to = *from)
                    .count(),
            );
        }
    }

    extern "C" fn on_bus_error(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _: *mut libc::c_void,
    ) {
        // SAFETY: the system hands a valid `info` to a handler with SA_SIGINFO; a bus error has an
        // address.
        let (address, sent) = unsafe { ((*info).si_addr().addr(), (*info).si_code <= 0) };
        let inside = |p: &&Place| {
            let start = p.start.load(Ordering::Acquire);
            start != 0
                && address
                    .checked_sub(start)
                    .is_some_and(|at| at < p.len.load(Ordering::Relaxed))
        };
        let lost = if sent { None } else { places().find(inside) };
        if let Some(place) = lost {
            end(place);
        }
        let before = BEFORE.load(Ordering::Acquire);
        // SAFETY: `sigaction` and `raise` may be called in a handler; `before` was leaked, and
        // stored before this function could be called. The fault happens again once this returns,
        // under the handler before; a signal that somebody sent would not, so it is sent again.
        unsafe {
            libc::sigaction(signal, before, ptr::null_mut());
            if sent {
                libc::raise(signal);
            }
        }
    }

    /// Says that the file of this map is gone, once, and ends the process.
    fn end(place: &Place) -> ! {
        static TOLD: AtomicBool = AtomicBool::new(false);
        // SAFETY: null or leaked.
        let ending = unsafe { ENDING.load(Ordering::Acquire).as_ref() };
        // SAFETY: null, or the name of a map that the interrupted thread is reading, and so keeps.
        let name = unsafe { place.name.load(Ordering::Acquire).as_ref() };
        if TOLD.swap(true, Ordering::AcqRel) {
            // another thread is about to end the process
            loop {
                // SAFETY: waits, and nothing else.
                unsafe { libc::pause() };
            }
        }
        // the line's end has its room
        let mut line = Line {
            bytes: [0; 1024],
            len: 0,
        };
        line.add(ending.map_or("", |ending| &ending.prefix));
        line.len = line.len.min(256);
        line.add(name.map_or("", String::as_str));
        line.len = line.len.min(900);
        line.add(": truncated while it was in use, or its disk failed\n");
        let code = ending.map_or(1, |ending| ending.code);
        // SAFETY: `write` and `_exit` may be called in a handler; `len` bytes of the line are
        // there. If it cannot be written, nobody can be told.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
            libc::_exit(code.into())
        }
    }
}
