//! The handler of SIGBUS and the list of maps it searches.
//!
//! A handler may interrupt anything, also an allocation or a thread that holds a lock. It therefore
//! only reads atomics and memory that is never freed, and calls only functions that POSIX allows in
//! handlers.

use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// An entry of the list, one for each map that exists at a time. Entries are never freed, but
/// reused.
struct MapEntry {
    used: AtomicBool,
    /// Address of the map; 0 while the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    name: AtomicPtr<String>,
    next: Option<&'static MapEntry>,
}

static FIRST: AtomicPtr<MapEntry> = AtomicPtr::new(ptr::null_mut());

/// Iterates over all entries.
fn places() -> impl Iterator<Item = &'static MapEntry> {
    std::iter::successors(first(), |place| place.next)
}

fn first() -> Option<&'static MapEntry> {
    // SAFETY: null, or a leaked `MapEntry` to which no mutable reference exists.
    unsafe { FIRST.load(Ordering::Acquire).as_ref() }
}

/// A map's entry in the list, until this is dropped.
pub(super) struct Listed(&'static MapEntry);

impl Listed {
    pub(super) fn new(start: usize, len: usize, name: &str) -> Listed {
        let take = |p: &&MapEntry| {
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
        // SAFETY: made by `Box::into_raw` in `new`, and removed from the list just now. A handler
        // reads it only for a thread that is reading this map, and the thread that drops the map
        // has no reader left.
        drop(unsafe { Box::from_raw(name) });
        self.0.used.store(false, Ordering::Release);
    }
}

/// Adds an entry, already taken.
fn added() -> &'static MapEntry {
    let place = Box::leak(Box::new(MapEntry {
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

/// Message prefix and exit code of the process; leaked, so that a handler may read them at any
/// time.
struct Ending {
    prefix: String,
    code: u8,
}

static ENDING: AtomicPtr<Ending> = AtomicPtr::new(ptr::null_mut());
/// The previous handler of the signal; leaked.
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
        // runs on the thread's own stack: an alternate one, if there is any, has hardly room for
        // the registers the system saves there while the matrix unit (AMX) is in use, and this is
        // no stack overflow
        new.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `before` and the mask are ours to write; `on_bus_error` has the signature that
        // SA_SIGINFO requires. The previous handler is stored before ours can run: it is read first
        // and ours is set then.
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

/// File descriptor through which the handler tells a thread how to end the process; -1 while there
/// is none.
static TIDIES: AtomicI32 = AtomicI32::new(-1);

/// A part of a mapped file is lost: the message is written, the exit code is still due.
const LOST: u8 = 1;
/// A process sent the signal: it ends this one as it would by default.
const SENT: u8 = 2;

/// Starts, once, the thread that removes temporary files before the handler's signal ends the
/// process: a handler must not do it itself. Without a handler, or if no thread can be started, the
/// files stay.
pub(crate) fn tidy_up_at_the_end(remove_temporaries: fn()) {
    static ONCE: Once = Once::new();
    if ENDING.load(Ordering::Acquire).is_null() {
        return;
    }
    ONCE.call_once(|| {
        let Ok((mut told, tells)) = io::pipe() else {
            return;
        };
        let thread = std::thread::Builder::new().name("tidying".to_owned());
        let started = thread.spawn(move || {
            let mut how = [0];
            if told.read_exact(&mut how).is_ok() {
                remove_temporaries();
                finish(how == [LOST]);
            }
        });
        if started.is_ok() {
            TIDIES.store(tells.into_raw_fd(), Ordering::Release);
        }
    });
}

/// Tells the thread to end the process; returns whether there is one. For the handler.
fn tidy_up(how: u8) -> bool {
    let fd = TIDIES.load(Ordering::Acquire);
    // SAFETY: `write` is allowed in a handler; the byte exists, and the file is never closed.
    fd >= 0 && unsafe { libc::write(fd, ptr::from_ref(&how).cast(), 1) } == 1
}

/// Ends the process with the exit code, or with the signal's default action.
fn finish(lost: bool) {
    // SAFETY: null or leaked.
    let ending = unsafe { ENDING.load(Ordering::Acquire).as_ref() };
    let code = ending.map_or(1, |ending| ending.code);
    // SAFETY: none of these touches memory of ours.
    unsafe {
        if lost {
            libc::_exit(code.into());
        }
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

/// A line that is built without allocating; text that does not fit is cut off.
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

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a valid `info` to a handler with SA_SIGINFO; a bus error has an
    // address.
    let (address, sent) = unsafe { ((*info).si_addr().addr(), (*info).si_code <= 0) };
    let inside = |p: &&MapEntry| {
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
    // the interrupted thread continues until the other thread is done: it may hold a lock
    if sent && tidy_up(SENT) {
        return;
    }
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: `sigaction` and `raise` are allowed in a handler; `before` was leaked, and stored
    // before this function could be called. A fault happens again once this returns, under the
    // previous handler; a signal sent by a process would not, so it is raised again.
    unsafe {
        libc::sigaction(signal, before, ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

/// Reports, once, that the file of this map is lost, and ends the process.
fn end(place: &MapEntry) -> ! {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // SAFETY: null or leaked.
    let ending = unsafe { ENDING.load(Ordering::Acquire).as_ref() };
    // SAFETY: null, or the name of a map that the interrupted thread is reading, and so keeps
    // alive.
    let name = unsafe { place.name.load(Ordering::Acquire).as_ref() };
    if TOLD.swap(true, Ordering::AcqRel) {
        // another thread is about to end the process
        loop {
            // SAFETY: only waits.
            unsafe { libc::pause() };
        }
    }
    // room for the end of the line is reserved
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
    // SAFETY: `write` is allowed in a handler; `len` bytes of the line exist. A failure cannot be
    // reported anywhere.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    while tidy_up(LOST) {
        // the thread is about to end the process. SAFETY: only waits.
        unsafe { libc::pause() };
    }
    // SAFETY: `_exit` is allowed in a handler.
    unsafe { libc::_exit(code.into()) }
}
