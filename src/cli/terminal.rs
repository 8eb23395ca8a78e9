//! What goes to stdout and stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on stderr. Where stderr is closed nobody can be told, so that is no error.
pub(super) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// One line for each warning on stderr.
pub(super) fn warn<W: Display>(warnings: impl IntoIterator<Item = W>) {
    for warning in warnings {
        note(&format!(
            "octavo: warning: {}",
            super::failure::one_line(&warning.to_string())
        ));
    }
}

/// Bytes to stdout.
pub(super) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Whether a person may write to stdin.
pub(super) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Whether a person reads stdout.
pub(super) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A bar on stderr for work of a known size; nothing at all if stderr is not a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar in bytes.
    pub(super) fn bytes(what: &'static str) -> Progress {
        Progress::new(what, "{msg} {wide_bar} {bytes}/{total_bytes}")
    }

    /// A bar in tokens.
    pub(super) fn tokens(what: &'static str) -> Progress {
        Progress::new(what, "{msg} {wide_bar} {pos}/{len} tokens")
    }

    /// A bar in tensors.
    pub(super) fn tensors(what: &'static str) -> Progress {
        Progress::new(what, "{msg} {wide_bar} {pos}/{len} tensors")
    }

    /// A bar in runs of a test.
    pub(super) fn runs(what: &'static str) -> Progress {
        Progress::new(what, "{msg} {wide_bar} {pos}/{len} runs")
    }

    /// A bar in chunks of a text, with the time left.
    pub(super) fn chunks(what: &'static str) -> Progress {
        Progress::new(what, "{msg} {wide_bar} {pos}/{len} chunks, ETA {eta}")
    }

    fn new(what: &'static str, template: &str) -> Progress {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress(bar.with_message(what))
    }

    /// Shows how far the work is; takes the bar away when it is complete.
    pub(super) fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
        if done >= total {
            self.clear();
        }
    }

    /// A line on stderr, above the bar where there is one.
    pub(super) fn line(&self, line: &str) {
        let line = super::failure::one_line(line);
        if self.0.is_hidden() {
            note(&line)
        } else {
            self.0.println(line)
        }
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
