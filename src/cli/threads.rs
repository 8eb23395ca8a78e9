//! `-t`: the number of threads, decided in one place for every command.

use clap::Args;
use octavo_engine::threads::{Machine, Threads};

/// What decides where it is not given, for the help of those who take a list of them.
pub(super) const DEFAULT: &str = "[default: one for each physical performance core that \
     this process may use (second \
     threads of a core and slow cores are left out), but no more than its cgroups' quota of CPUs]";

/// How many threads.
#[derive(Clone, Debug, Args)]
pub(super) struct ThreadsArgs {
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(help = format!(
        "Threads; more than the CPUs that this process may use count as so many {DEFAULT}"
    ))]
    threads: Option<u16>,
}

impl ThreadsArgs {
    /// The number and what decided it.
    pub(super) fn decide(&self) -> Threads {
        match self.threads {
            Some(asked) => given(asked),
            None => Machine::here().threads(),
        }
    }

    /// The number.
    pub(super) fn count(&self) -> usize {
        self.decide().count
    }
}

/// What a number that was asked for becomes: threads beyond the CPUs would only wait for each
/// other's turn.
pub(super) fn given(asked: u16) -> Threads {
    Machine::here().threads_asked(usize::from(asked))
}
