//! Results of a command: exit codes, and errors as one line.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use octavo_analysis::{awq, diff, imatrix};
use octavo_engine as engine;
use octavo_engine::backend::{cpu, cuda};
use octavo_engine::sequence::SequenceError;
use octavo_kernels::{KvTooLarge, MatrixError, NoMemory};

use super::terminal;

/// Result of a command that ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Success: exit code 0.
    Done,
    /// A comparison with a result outside the bounds: exit code 1.
    Outside,
    /// Partial success, after errors about the rest: exit code 1.
    Partly,
    /// Ended early by Ctrl-C, after printing what was done.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Outside | Exit::Partly => ExitCode::from(1),
            Exit::Interrupted => ExitCode::from(130),
        }
    }
}

/// Reason that a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Wrong or contradictory arguments: exit code 2.
    Usage(String),
    /// Bad input: exit code 1.
    Input(String),
    /// Error of the machine, which has no memory or disk left or does not answer: exit code 1.
    Machine(String),
    /// Error of the machine in batch work, where another try may help: exit code 75, EX_TEMPFAIL of
    /// sysexits.h.
    Again(String),
}

impl Failure {
    /// Returns the message, one line.
    pub(super) fn message(&self) -> String {
        match self {
            Failure::Usage(message)
            | Failure::Input(message)
            | Failure::Machine(message)
            | Failure::Again(message) => one_line(message),
        }
    }

    /// Returns the error of a closed stdout; other pipes have messages of their own.
    pub(super) fn closed_stdout() -> Failure {
        Failure::Machine("stdout: closed before everything was written".to_owned())
    }

    /// Prefixes the message with the part of the input that it is about.
    pub(super) fn of(self, part: &str) -> Failure {
        match self {
            Failure::Input(message) => Failure::Input(format!("{part}: {message}")),
            Failure::Machine(message) => Failure::Machine(format!("{part}: {message}")),
            others => others,
        }
    }

    /// Prints the line and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Failure::Usage(message) => (message, 2),
            Failure::Input(message) | Failure::Machine(message) => (message, 1),
            Failure::Again(message) => (message, AGAIN),
        };
        terminal::tell(&format!("octavo: error: {message}"));
        ExitCode::from(code)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        let (mut advice, mut is_machine) = (None, false);
        while let Some(this) = cause {
            advice = advice.or_else(|| advise(this));
            is_machine |= is_of_the_machine(this);
            if this
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
            {
                return Failure::closed_stdout();
            }
            cause = this.source();
        }
        let message = match advice {
            Some(advice) => format!("{error} ({advice})"),
            None => error.to_string(),
        };
        match is_machine {
            true => Failure::Machine(message),
            false => Failure::Input(message),
        }
    }
}

/// EX_TEMPFAIL, after which schedulers try again if they are configured to.
const AGAIN: u8 = 75;

/// Returns whether the same command may succeed at another time or on another machine.
fn is_of_the_machine(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind as Kind;
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let passes = [
        Kind::StorageFull,
        Kind::QuotaExceeded,
        Kind::OutOfMemory,
        Kind::TimedOut,
        Kind::Interrupted,
        Kind::WouldBlock,
        Kind::ResourceBusy,
        Kind::StaleNetworkFileHandle,
        Kind::NetworkDown,
        Kind::NetworkUnreachable,
        Kind::HostUnreachable,
    ];
    error.is::<NoMemory>()
        || error.is::<KvTooLarge>()
        || matches!(error.downcast_ref(), Some(MatrixError::NoMemory { .. }))
        || io.is_some_and(|kind| passes.contains(&kind))
}

/// Returns advice that names options, which only the command line knows.
fn advise(error: &(dyn Error + 'static)) -> Option<String> {
    let advice = if let Some(MatrixError::NoMemory { .. }) = error.downcast_ref() {
        "--no-repack runs from the file's own rows, and a smaller -c N or --kv-type q8_0 makes the \
         KV cache smaller"
    } else if let Some(engine::Error::Cpu(cpu::Error::Lock { .. })) = error.downcast_ref() {
        "without --mlock the system may move them to a swap file"
    } else if let Some(engine::Error::NoLogits { .. }) = error.downcast_ref() {
        "octavo embed gives what it computes"
    } else if error.is::<KvTooLarge>() {
        "a smaller -c N or --kv-type q8_0 makes it smaller"
    } else if let Some(engine::Error::Cpu(cpu::Error::Measuring(_))) = error.downcast_ref() {
        "--no-limits leaves that out"
    } else if error.is::<NoMemory>() {
        "smaller -b N, fewer threads with -t N, a smaller -c N and --no-repack take less"
    } else if let Some(SequenceError::PromptTooLong { .. }) = error.downcast_ref() {
        "-c N sets it"
    } else if let Some(awq::Error::Rows { .. }) = error.downcast_ref() {
        "--group sets it"
    } else if let Some(imatrix::Error::TooShort { .. }) = error.downcast_ref() {
        "-c sets the length of a chunk"
    } else if let Some(diff::Error::NoText { .. }) = error.downcast_ref() {
        "-p TEXT or -f FILE gives it"
    } else if let Some(engine::BatchError::Engine(error)) = error.downcast_ref() {
        // it has the same message as this error
        return advise(error);
    } else if let Some(error) = error.downcast_ref() {
        return advise_on_cuda(error);
    } else {
        return match error.downcast_ref()? {
            engine::Error::Whole { .. } => Some("-b N sets it".to_owned()),
            engine::Error::Context { .. } => Some("-c N sets how many".to_owned()),
            engine::Error::Cpu(cpu::Error::KvType { .. }) => Some(KV_TYPE.to_owned()),
            engine::Error::Cuda(error) => advise_on_cuda(error),
            _ => None,
        };
    };
    Some(advice.to_owned())
}

const KV_TYPE: &str = "--kv-type sets the type";

fn advise_on_cuda(error: &cuda::Error) -> Option<String> {
    match error {
        cuda::Error::KvType { .. } => Some(KV_TYPE.to_owned()),
        cuda::Error::KvTypes(_) => Some(format!("{KV_TYPE}; --device cpu takes all")),
        cuda::Error::TooLarge { fitting, .. } => {
            let less = "smaller -c and -b and --kv-type q8_0 take less";
            Some(match fitting {
                Some(n) => format!("--gpu-layers {n} would fit; {less}"),
                None => less.to_owned(),
            })
        }
        _ => None,
    }
}

/// Reports clap's errors: help and version as they are, a mistake as one line.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind as Kind;
    let text = error.render();
    match error.kind() {
        Kind::DisplayHelp | Kind::DisplayVersion => {
            let printed = terminal::check_stdout().and_then(|()| Ok(error.print()?));
            return printed.map_or_else(Failure::report, |()| ExitCode::SUCCESS);
        }
        Kind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(2);
        }
        _ => {}
    }
    let text = text.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let facts = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    // clap's tip to pass a value after `--` does not help where an option was meant
    let facts: Vec<&str> = facts
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("tip: to pass "))
        .collect();
    Failure::Usage(format!("{} (see --help)", facts.join(" "))).report()
}

/// Maximum number of characters of a message to show: of a longer one, this many of its beginning
/// and of its end.
const SHOWN: (usize, usize) = (1300, 500);

/// Makes text from outside fit for one line of a terminal: line breaks become spaces, other control
/// characters and those that change the direction of text are escaped, and very long text is cut in
/// the middle.
pub(super) fn one_line(text: &str) -> String {
    let (begin, end) = SHOWN;
    let n = text.chars().count();
    let mut line = String::with_capacity(text.len());
    for (i, c) in text.chars().enumerate() {
        if n > begin + end && (begin..n - end).contains(&i) {
            if i == begin {
                line.push_str(" [...] ");
            }
            continue;
        }
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() || is_invisible(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// Returns whether a character is invisible and changes how others are shown.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_visible_text() {
        assert_eq!(one_line("a\nb\tc"), "a b c");
        assert_eq!(one_line("\u{1b}[2Jx\u{7}"), "\\u{1b}[2Jx\\u{7}");
        assert_eq!(one_line("\u{202e}x\u{9b}"), "\\u{202e}x\\u{9b}");
        assert_eq!(one_line("größer 日本"), "größer 日本");
        let long = format!("tensor {}: expected 3", "x".repeat(100_000));
        let line = one_line(&long);
        assert!(line.len() < 2000, "{}", line.len());
        assert!(line.starts_with("tensor x") && line.ends_with("x: expected 3"));
    }
}
