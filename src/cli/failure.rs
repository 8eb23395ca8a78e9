//! Results of a command: exit codes, and errors with advice.

use std::error::Error;
use std::io;

use octavo_analysis::{awq, bit_allocation, diff, imatrix};
use octavo_engine as engine;
use octavo_engine::GenerationError;
use octavo_engine::backend::{cpu, cuda};
use octavo_kernels::{KvTooLarge, MatrixError, NoMemory};

use super::wording::one_line;

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

impl From<Exit> for u8 {
    fn from(exit: Exit) -> u8 {
        match exit {
            Exit::Done => 0,
            Exit::Outside | Exit::Partly => 1,
            Exit::Interrupted => 130,
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
    } else if let Some(GenerationError::PromptTooLong { .. }) = error.downcast_ref() {
        "-c N sets it"
    } else if let Some(awq::Error::Rows { .. }) = error.downcast_ref() {
        "--group sets it"
    } else if let Some(bit_allocation::Error::TooSmall { .. }) = error.downcast_ref() {
        "--types takes smaller ones"
    } else if let Some(imatrix::Error::TooShort { .. }) = error.downcast_ref() {
        "-c sets the length of a chunk"
    } else if let Some(diff::Error::NoText { .. }) = error.downcast_ref() {
        "-p TEXT or -f FILE gives it"
    } else if let Some(engine::GenerateError::Batch(error)) = error.downcast_ref() {
        // it has the same message as this error
        return advise(error);
    } else if let Some(engine::BatchError::Sequence(error)) = error.downcast_ref() {
        return advise(error);
    } else if let Some(engine::BatchError::Engine(error)) = error.downcast_ref() {
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
        cuda::Error::TooLarge {
            fitting,
            needs,
            free,
            ..
        } => {
            let less = match needs.weights > *free {
                true => {
                    "its weights alone are larger than that: a file of fewer bits, or --device cpu"
                }
                false => "smaller -c and -b and --kv-type q8_0 take less",
            };
            let experts = fitting.experts.map(|n| format!("--n-cpu-moe {n}"));
            let layers = fitting.layers.map(|n| format!("--gpu-layers {n}"));
            let options: Vec<String> = experts.into_iter().chain(layers).collect();
            Some(match options.is_empty() {
                true => less.to_owned(),
                false => format!("{} would fit; {less}", options.join(" or ")),
            })
        }
        _ => None,
    }
}
