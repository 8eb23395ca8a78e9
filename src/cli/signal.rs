//! Ctrl-C: the first one ends a generation that is under way, any other ends the program at once, with code 130.

use std::sync::atomic::{AtomicBool, Ordering};

use super::failure::Failure;

/// A generation is under way and looks at [`INTERRUPTED`].
static GENERATING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C; once per process.
pub(super) fn install() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let first = !INTERRUPTED.swap(true, Ordering::SeqCst);
        if !(first && GENERATING.load(Ordering::SeqCst)) {
            std::process::exit(130);
        }
    })?;
    Ok(())
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
