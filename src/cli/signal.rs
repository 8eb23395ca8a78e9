//! Signals. The first Ctrl-C ends a running generation, any other ends the program at once, with
//! code 130. SIGTERM and SIGHUP end it at once, with 143 and 129. Any of them asks a server to
//! stop. All other signals that would end the program and can be waited for end it at once, with
//! 128 plus their number; SIGBUS has a handler of its own ([`gguf_rs_lite::guard_maps`]), and
//! SIGXFSZ becomes an error of the write that met the limit. No temporary file and no started
//! program is left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use octavo_analysis::diff::stop_llama_cpp;

use super::failure::Failure;

/// Whether a generation is running, which checks [`INTERRUPTED`].
static GENERATING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs handlers of Ctrl-C and of the signals that end a program; call once per process.
pub(super) fn install() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let first = !INTERRUPTED.swap(true, Ordering::SeqCst);
        if !(first && GENERATING.load(Ordering::SeqCst)) {
            end(130);
        }
    })?;
    #[cfg(unix)]
    unix::listen(
        &[&[unix::SIGTERM, unix::SIGHUP][..], unix::ENDING].concat(),
        |code| end(code),
    )?;
    #[cfg(unix)]
    unix::fail_writes_that_are_too_large()?;
    Ok(())
}

/// Handle to direct signals to a running server.
pub(super) struct Serving(std::sync::Arc<AtomicBool>);

impl Serving {
    /// Makes signals ask the server to stop from now on; before, they end the program at once.
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Does the same as [`install`] for a server: once it serves, the first two signals call `stop`,
/// and SIGHUP calls `reload` if there is something to read again.
pub(super) fn install_serving(
    stop: impl Fn() + Send + 'static,
    reload: Option<impl Fn() + Send + 'static>,
) -> Result<Serving, Failure> {
    let is_serving = std::sync::Arc::new(AtomicBool::new(false));
    let serving = Serving(std::sync::Arc::clone(&is_serving));
    let left = std::sync::atomic::AtomicU32::new(2);
    let handle = move |code: i32| {
        let take_one = |left: u32| left.checked_sub(1);
        let has_left = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take_one)
            .is_ok();
        if is_serving.load(Ordering::SeqCst) && has_left {
            stop();
        } else {
            end(code);
        }
    };
    #[cfg(unix)]
    {
        let is_serving = std::sync::Arc::clone(&serving.0);
        let handle = move |code: i32| match &reload {
            Some(reload) if code == 128 + unix::SIGHUP && is_serving.load(Ordering::SeqCst) => {
                reload();
            }
            _ => handle(code),
        };
        unix::listen(&[unix::SIGINT, unix::SIGTERM, unix::SIGHUP], handle)?;
        unix::listen(unix::ENDING, |code| end(code))?;
        unix::fail_writes_that_are_too_large()?;
    }
    #[cfg(not(unix))]
    {
        drop(reload);
        ctrlc::set_handler(move || handle(130))?;
    }
    Ok(serving)
}

/// Ends the program from the thread that received a signal, whatever other threads do.
fn end(code: i32) -> ! {
    stop_llama_cpp();
    gguf_rs_lite::remove_temporaries();
    std::process::exit(code)
}

#[cfg(unix)]
mod unix {
    use signal_hook::consts::{
        SIGABRT, SIGALRM, SIGIO, SIGPROF, SIGQUIT, SIGSYS, SIGTRAP, SIGUSR1, SIGUSR2, SIGVTALRM,
        SIGXCPU, SIGXFSZ,
    };
    pub(super) use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    /// Signals that end a program without a handler, except those of its own faults.
    pub(super) const ENDING: &[i32] = &[
        SIGABRT,
        SIGALRM,
        SIGIO,
        SIGPROF,
        SIGQUIT,
        SIGSYS,
        SIGTRAP,
        SIGUSR1,
        SIGUSR2,
        SIGVTALRM,
        SIGXCPU,
        // SIGSTKFLT and SIGPWR
        #[cfg(all(
            target_os = "linux",
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        16,
        #[cfg(all(
            target_os = "linux",
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        30,
    ];

    /// Makes writes beyond `ulimit -f` fail with an error instead of a signal. The error names the
    /// file, and cleanup is the same as after any other error.
    pub(super) fn fail_writes_that_are_too_large() -> std::io::Result<()> {
        signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default()).map(drop)
    }

    /// Starts a thread that waits for these signals and calls `handle` with the exit code of each.
    /// Unlike ctrlc, it tells which signal it was.
    pub(super) fn listen(
        signals: &[i32],
        handle: impl Fn(i32) + Send + 'static,
    ) -> std::io::Result<()> {
        let ignored = ignored();
        let is_handled = |signal: &&i32| ignored >> (**signal - 1) & 1 == 0;
        let mut signals = Signals::new(signals.iter().filter(is_handled))?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    handle(128 + signal);
                }
            })?;
        Ok(())
    }

    /// Returns the mask of signals that were ignored when the program started, as with `nohup`; 0
    /// if the system does not tell.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    }
}

/// Guard of a running generation: while it exists, the first Ctrl-C only sets
/// [`Generating::interrupted`].
pub(super) struct Generating(());

impl Generating {
    /// Begins a generation.
    pub(super) fn begin() -> Generating {
        INTERRUPTED.store(false, Ordering::SeqCst);
        GENERATING.store(true, Ordering::SeqCst);
        Generating(())
    }

    /// Returns whether Ctrl-C was pressed since it began.
    pub(super) fn interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        GENERATING.store(false, Ordering::SeqCst);
    }
}
