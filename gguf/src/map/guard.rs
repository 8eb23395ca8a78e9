//! The handler of SIGBUS and the list of maps that it looks at.
//!
//! A handler may interrupt anything, also an allocation or somebody who holds a lock. So it only
//! reads atomics and memory that is never freed, and calls only what POSIX allows there.

use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

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

/// Where the handler tells a thread how the process is to end; -1 while there is none.
static TIDIES: AtomicI32 = AtomicI32::new(-1);

/// A part of a mapped file is gone: the line is written, the exit code is left.
const LOST: u8 = 1;
/// Somebody sent the signal: it ends the process as it would have.
const SENT: u8 = 2;

/// Starts, once, the thread that removes temporary files before the handler's signal ends the
/// process: a handler may not do it itself. Without a handler, or where no thread can be had,
/// they stay.
pub(crate) fn tidy_up_at_the_end() {
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
                crate::remove_temporaries();
                finish(how == [LOST]);
            }
        });
        if started.is_ok() {
            TIDIES.store(tells.into_raw_fd(), Ordering::Release);
        }
    });
}

/// Has the thread end the process; whether there is one. For the handler.
fn tidy_up(how: u8) -> bool {
    let fd = TIDIES.load(Ordering::Acquire);
    // SAFETY: `write` may be called in a handler; the byte is there, and the file is never
    // closed.
    fd >= 0 && unsafe { libc::write(fd, ptr::from_ref(&how).cast(), 1) } == 1
}

/// Ends the process with the exit code, or as the signal does of itself.
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

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
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
    // whoever was interrupted goes on until the thread is done: it may hold a lock
    if sent && tidy_up(SENT) {
        return;
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
    // SAFETY: `write` may be called in a handler; `len` bytes of the line are there. If it cannot
    // be written, nobody can be told.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    while tidy_up(LOST) {
        // the thread is about to end the process. SAFETY: waits, and nothing else.
        unsafe { libc::pause() };
    }
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(code.into()) }
}
