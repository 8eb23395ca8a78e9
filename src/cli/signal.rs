//! Signals. Ctrl-C: the first one ends a generation that is under way, any other ends the program
//! at once, with code 130. SIGTERM and SIGHUP end it at once, with 143 and 129. A server is asked
//! to stop by any of them. All others that would end it and can be waited for end it at once, with
//! 128 and their number; SIGBUS has a handler of its own ([`gguf_rs_lite::guard_maps`]), and
//! SIGXFSZ is an error of the write that met the limit. No temporary file stays, and no program
//! that was started.

use std::sync::atomic::{AtomicBool, Ordering};

use octavo_lab::diff::stop_llama_cpp;

use super::failure::Failure;

/// A generation is under way and looks at [`INTERRUPTED`].
static GENERATING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C and the signals that ask a program to end; once per process.
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

/// While a server works, signals are for it.
pub(super) struct Serving(std::sync::Arc<AtomicBool>);

impl Serving {
    /// From now on signals ask the server to stop; before, they end the program at once.
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// As [`install`], for a server: once it works, the first two signals are handed to `stop`.
pub(super) fn install_serving(stop: impl Fn() + Send + 'static) -> Result<Serving, Failure> {
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
        unix::listen(&[unix::SIGINT, unix::SIGTERM, unix::SIGHUP], handle)?;
        unix::listen(unix::ENDING, |code| end(code))?;
        unix::fail_writes_that_are_too_large()?;
    }
    #[cfg(not(unix))]
    ctrlc::set_handler(move || handle(130))?;
    Ok(serving)
}

/// Ends the program from the thread that was told of a signal, whatever the others do.
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

    /// Signals that end a program which does not listen to them, those of its own faults aside.
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

    /// From here on, writing more than `ulimit -f` allows fails with an error instead of a signal:
    /// it names the file, and what was begun is tidied up as after any other error.
    pub(super) fn fail_writes_that_are_too_large() -> std::io::Result<()> {
        signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default()).map(drop)
    }

    /// A thread that waits for these signals and hands each on with the exit code that it stands
    /// for. It says what ctrlc does not: which one it was.
    pub(super) fn listen(
        signals: &[i32],
        handle: impl Fn(i32) + Send + 'static,
    ) -> std::io::Result<()> {
        let ignored = ignored();
        let is_wanted = |signal: &&i32| ignored >> (**signal - 1) & 1 == 0;
        let mut signals = Signals::new(signals.iter().filter(is_wanted))?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    handle(128 + signal);
                }
            })?;
        Ok(())
    }

    /// Those that whoever started the program had it ignore, as `nohup` does; none where the system
    /// does not tell.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    }
}

/// While this lives, a first Ctrl-C only sets [`Generating::interrupted`].
pub(super) struct Generating(());

impl Generating {
    /// A generation begins.
    pub(super) fn begin() -> Generating {
        INTERRUPTED.store(false, Ordering::SeqCst);
        GENERATING.store(true, Ordering::SeqCst);
        Generating(())
    }

    /// Whether Ctrl-C was pressed since it began.
    pub(super) fn interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        GENERATING.store(false, Ordering::SeqCst);
    }
}
