//! `-t`: the number of threads, chosen in one place for every command.

use clap::Args;
use octavo_engine::threads::{Machine, Threads};

/// Default number of threads, for help texts.
pub(super) const DEFAULT: &str = "[default: one for each physical performance core that \
     this process may use (second \
     threads of a core and slow cores are left out), but no more than its cgroups' quota of CPUs]";

/// Option of the number of threads.
#[derive(Clone, Debug, Args)]
pub(super) struct ThreadsArgs {
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(help = format!(
        "Number of threads, at most the count of CPUs that this process may use {DEFAULT}"
    ))]
    threads: Option<u16>,
}

impl ThreadsArgs {
    /// Returns the number of threads and the reason for it.
    pub(super) fn decide(&self) -> Threads {
        match self.threads {
            Some(asked) => requested(asked),
            None => Machine::here().threads(),
        }
    }

    /// Returns the number of threads.
    pub(super) fn count(&self) -> usize {
        self.decide().count
    }
}

/// Returns the number of threads for a requested number: more threads than CPUs would only wait for
/// each other.
pub(super) fn requested(asked: u16) -> Threads {
    Machine::here().threads_asked(usize::from(asked))
}
