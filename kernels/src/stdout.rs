//! Whether standard output was closed when the process began. Rust's runtime opens the null device
//! in its place before `main`, which cannot be told from one that the user asked for, so this looks
//! before that.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the process began without a standard output: its output is lost, without an error.
/// Always false on other systems than Linux.
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

#[cfg(all(target_os = "linux", not(miri)))]
extern "C" fn look() {
    // SAFETY: only asks whether there is such a descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the section holds functions that the system calls once each before `main`, with arguments
// that `look` leaves alone. It calls nothing that needs Rust's runtime.
#[cfg(all(target_os = "linux", not(miri)))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;
