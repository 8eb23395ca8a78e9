//! Output to stdout and stderr.

mod log;

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::failure::Failure;
use super::wording::{one_line, size};

/// Level of detail on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Level {
    /// Errors, and output that was asked for.
    Quiet,
    /// Also notes, warnings and progress.
    Usual,
    /// Also details of what is loaded, and how long it takes.
    Verbose,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Usual as u8);

/// Sets the level of detail, and opens the log file, which gets everything.
pub(super) fn set_up(level: Level, log_file: Option<&Path>) -> Result<(), Failure> {
    LEVEL.store(level as u8, Ordering::Relaxed);
    log_file.map_or(Ok(()), log::open)
}

fn says(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// Prints a line to stderr at any level: an error, or an answer to a person at the terminal. Errors
/// are ignored, because with stderr closed there is no place to report them.
pub(super) fn tell(line: &str) {
    let line = one_line(line);
    log::add(&line);
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a line that has a time already: to stderr from this level on, and to the log as [`note`]
/// and [`detail`] do.
pub(super) fn tell_timed(level: Level, line: &str) {
    if level <= Level::Usual || says(level) {
        log::add_timed(line);
    }
    if says(level) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Prints a line to stderr, unless quiet.
pub(super) fn note(line: &str) {
    if says(Level::Usual) {
        tell(line);
    } else {
        log::add(&one_line(line));
    }
}

/// Prints a line to stderr, if verbose.
pub(super) fn detail(line: &str) {
    if says(Level::Verbose) {
        tell(line);
    }
}

/// Prints one line per warning to stderr.
pub(super) fn warn<W: Display>(warnings: impl IntoIterator<Item = W>) {
    for warning in warnings {
        note(&format!("octavo: warning: {warning}"));
    }
}

/// Writes bytes to stdout.
pub(super) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Checks that stdout is open: output would be lost silently otherwise.
pub(super) fn check_stdout() -> Result<(), Failure> {
    match octavo_kernels::stdout_was_closed() {
        true => Err(Failure::Machine(
            "stdout: is closed: expected a place for what is printed (/dev/null, if none is wanted)"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// Returns whether stdin is a terminal.
pub(super) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Returns whether stdout is a terminal.
pub(super) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Progress of work of a known size on stderr: a bar on a terminal, else a line from time to time.
pub(super) struct Progress {
    bar: ProgressBar,
    what: &'static str,
    unit: Unit,
    start: Instant,
    next_line: Cell<Duration>,
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    /// Bytes that come over a network, at a rate of interest.
    Download,
    Tokens,
    Tensors,
    Runs,
    Chunks,
    Tasks,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Unit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes}",
            Unit::Download => "{msg} {wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left",
            Unit::Tokens => "{msg} {wide_bar} {pos}/{len} tokens",
            Unit::Tensors => "{msg} {wide_bar} {pos}/{len} tensors",
            Unit::Runs => "{msg} {wide_bar} {pos}/{len} runs, ETA {eta}",
            Unit::Chunks => "{msg} {wide_bar} {pos}/{len} chunks, ETA {eta}",
            Unit::Tasks => "{msg} {wide_bar} {pos}/{len} tasks, ETA {eta}",
        }
    }

    fn amount(self, done: u64, total: u64) -> String {
        let name = match self {
            Unit::Bytes | Unit::Download => return format!("{} of {}", size(done), size(total)),
            Unit::Tokens => "tokens",
            Unit::Tensors => "tensors",
            Unit::Runs => "runs",
            Unit::Chunks => "chunks",
            Unit::Tasks => "tasks",
        };
        format!("{done} of {total} {name}")
    }
}

/// Time before the first line of progress: shorter work needs none.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// Maximum time between two lines; the first ones are closer together.
const LINES_APART: Duration = Duration::from_secs(30);

impl Progress {
    /// Creates progress in bytes.
    pub(super) fn bytes(what: &'static str) -> Progress {
        Progress::new(what, Unit::Bytes)
    }

    /// Creates progress of a download; a bar shows the rate and the time left.
    pub(super) fn download(what: &'static str) -> Progress {
        Progress::new(what, Unit::Download)
    }

    /// Creates progress in tokens.
    pub(super) fn tokens(what: &'static str) -> Progress {
        Progress::new(what, Unit::Tokens)
    }

    /// Creates progress in tensors.
    pub(super) fn tensors(what: &'static str) -> Progress {
        Progress::new(what, Unit::Tensors)
    }

    /// Creates progress in runs of a test.
    pub(super) fn runs(what: &'static str) -> Progress {
        Progress::new(what, Unit::Runs)
    }

    /// Creates progress in chunks of a text; a bar shows the time left.
    pub(super) fn chunks(what: &'static str) -> Progress {
        Progress::new(what, Unit::Chunks)
    }

    /// Creates progress in tasks; a bar shows the time left.
    pub(super) fn tasks(what: &'static str) -> Progress {
        Progress::new(what, Unit::Tasks)
    }

    fn new(what: &'static str, unit: Unit) -> Progress {
        let target = match io::stderr().is_terminal() && says(Level::Usual) {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template(unit.template()) {
            bar.set_style(style);
        }
        Progress {
            bar: bar.with_message(what),
            what,
            unit,
            start: Instant::now(),
            next_line: Cell::new(FIRST_LINE),
        }
    }

    /// Shows the progress; removes the bar when the work is complete.
    pub(super) fn at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if done >= total {
            self.clear();
        } else if self.bar.is_hidden()
            && let Some(line) = self.line_at(self.start.elapsed(), done, total)
        {
            note(&line);
        }
    }

    /// Returns the line of progress, if it is time for one.
    fn line_at(&self, elapsed: Duration, done: u64, total: u64) -> Option<String> {
        if elapsed < self.next_line.get() {
            return None;
        }
        self.next_line.set(elapsed + elapsed.min(LINES_APART));
        let percent = 100.0 * done as f64 / total.max(1) as f64;
        Some(format!(
            "octavo: {}: {} ({percent:.0} %) after {:.0} s",
            self.what,
            self.unit.amount(done, total),
            elapsed.as_secs_f64()
        ))
    }

    /// Prints a line to stderr, above the bar if there is one.
    pub(super) fn line(&self, line: &str) {
        if self.bar.is_hidden() {
            note(line)
        } else {
            log::add(&one_line(line));
            self.bar.println(one_line(line))
        }
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_progress_come_later_and_later() {
        let progress = Progress::tokens("reading");
        let at = |seconds| progress.line_at(Duration::from_secs(seconds), seconds, 400);
        assert_eq!(at(1), None);
        let line = at(2).expect("a line");
        assert_eq!(line, "octavo: reading: 2 of 400 tokens (0 %) after 2 s");
        let reported: Vec<u64> = (3..200).filter(|second| at(*second).is_some()).collect();
        assert_eq!(reported, [4, 8, 16, 32, 62, 92, 122, 152, 182]);
        let line = Progress::bytes("loading").line_at(Duration::from_secs(5), 1 << 20, 4 << 20);
        let expected = "octavo: loading: 1.0 MiB of 4.0 MiB (25 %) after 5 s";
        assert_eq!(line.as_deref(), Some(expected));
    }
}
