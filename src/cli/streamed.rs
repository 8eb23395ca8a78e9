//! A text on stdout while it is generated.

use std::cell::Cell;
use std::io::{self, Write};

use octavo_engine::Observer;

use super::signal::Generating;
use super::terminal::{self, Progress};

/// Streams text to stdout and watches for Ctrl-C.
pub(super) struct Output<'a> {
    generating: &'a Generating,
    stream: bool,
    bar: Progress,
    /// Whether the last byte written was not a line feed.
    pub(super) open_line: Cell<bool>,
}

impl<'a> Output<'a> {
    pub(super) fn new(generating: &'a Generating, stream: bool, what: &'static str) -> Output<'a> {
        Output {
            generating,
            stream,
            bar: Progress::tokens(what),
            open_line: Cell::new(false),
        }
    }

    /// Ends an unfinished line on a terminal; `ok` says that the generation succeeded.
    pub(super) fn end_line(&self, ok: bool) -> io::Result<()> {
        self.bar.clear();
        let person = terminal::stdout_is_terminal();
        if self.stream && self.open_line.take() && person {
            let ended = terminal::print(b"\n");
            // after an error, that error is reported
            return if ok { ended } else { Ok(()) };
        }
        Ok(())
    }

    /// Ends an unfinished line, on a terminal or not: another answer follows.
    pub(super) fn end_answer(&self) -> io::Result<()> {
        self.bar.clear();
        if self.open_line.take() {
            terminal::print(b"\n")
        } else {
            Ok(())
        }
    }
}

impl Observer for Output<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        // short prompts finish before a bar could be seen
        if total > 512 {
            self.bar.at(done as u64, total as u64);
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if !self.stream {
            return Ok(());
        }
        self.open_line.set(!text.ends_with('\n'));
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn cancelled(&self) -> bool {
        self.generating.interrupted()
    }
}
