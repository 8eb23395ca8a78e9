//! Ranks in this process (tensor parallel): one per NUMA node, with its threads on that node and
//! its part of the model in that node's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use octavo_engine::backend::ranks::{TensorParallelGroup, serve_on};
use octavo_engine::threads::nodes;
use octavo_kernels::{Collective, Threads, stay_on};

use super::GROUP;
use crate::failure::Failure;
use crate::terminal;

/// Exit code after a panic.
const FAULT: i32 = 101;

/// Options of tensor parallelism over the NUMA nodes of this machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct NumaArgs {
    /// Tensor parallel over the machine's NUMA nodes, each with a part of every matrix in its own
    /// memory; ranks=N makes N parts instead. -t is then per part
    #[arg(long, value_name = "ranks[=N]")]
    pub(crate) numa: Option<Numa>,
    /// Tensor parallel on GPUs: let them exchange parts of rows by NVIDIA's NCCL instead of through
    /// the hosts' memory; each rank needs a GPU of its own
    #[arg(long)]
    pub(crate) nccl: bool,
}

/// Value of `--numa`: the number of ranks, `None` for as many as there are nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numa {
    ranks: Option<usize>,
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Numa, String> {
        let expected = || "expected ranks, or ranks=N with N from 1".to_owned();
        let number = text.strip_prefix("ranks").ok_or_else(expected)?;
        if number.is_empty() {
            return Ok(Numa { ranks: None });
        }
        let number = number.strip_prefix('=').and_then(|n| n.parse().ok());
        let ranks = Some(number.filter(|n| *n > 0).ok_or_else(expected)?);
        Ok(Numa { ranks })
    }
}

/// Threads of all ranks but the first, which tells them when to end.
#[must_use]
pub(crate) struct Others(Vec<JoinHandle<()>>);

impl Numa {
    /// Starts the other ranks and makes this thread the first one.
    pub(crate) fn start(self) -> Result<Others, Failure> {
        if let Some(ranks) = super::tp_group().map(|tp_group| tp_group.ranks()) {
            return Err(Failure::Usage(format!(
                "--numa ranks: expected one process, found {ranks} ranks that a launcher started"
            )));
        }
        let nodes = nodes::here();
        let cpus = nodes.concat().len();
        let groups = match self.ranks {
            // if the system names no node, there is one
            None => nodes,
            Some(ranks) => nodes::divided(&nodes, ranks).ok_or_else(|| {
                Failure::Usage(format!(
                    "--numa ranks={ranks}: expected at most {cpus}, the CPUs that this process \
                     may use"
                ))
            })?,
        };
        if groups.len() < 2 {
            terminal::note("octavo: one NUMA node: the model is not divided");
            return Ok(Others(Vec::new()));
        }
        let links = Threads::new(groups.len()).into_iter().map(Rank);
        let mut ranks = links.zip(groups);
        let (first, own) = ranks.next().expect("two at least");
        bind(&own)?;
        let others = ranks.map(|(rank, cpus)| spawn(rank, cpus));
        GROUP.get_or_init(|| TensorParallelGroup::on(Arc::new(first), super::open()));
        Ok(Others(others.collect::<Result<_, _>>()?))
    }
}

impl Others {
    /// Ends them and waits until they have ended.
    pub(crate) fn stop(self) {
        if let Some(tp_group) = super::tp_group().filter(|_| !self.0.is_empty()) {
            tp_group.stop();
        }
        for thread in self.0 {
            // a rank that panics ends the process
            let _ = thread.join();
        }
    }
}

/// Starts a rank that follows the first one.
fn spawn(rank: Rank, cpus: Vec<usize>) -> Result<JoinHandle<()>, Failure> {
    let name = format!("rank {}", rank.rank());
    let work = move || {
        let link: Arc<dyn Collective> = Arc::new(rank);
        if let Err(failure) = bind(&cpus) {
            link.give_up(&failure.message());
        }
        serve_on(&link, super::open());
    };
    let work = move || {
        // the others would wait for this rank; the panic hook has printed the message
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            std::process::exit(FAULT);
        }
    };
    let thread = std::thread::Builder::new().name(name);
    let thread = thread.spawn(work);
    thread.map_err(|error| Failure::Machine(format!("no thread for a rank: {error}")))
}

/// Binds this thread, and those that it starts, to the CPUs of a node.
fn bind(cpus: &[usize]) -> Result<(), Failure> {
    stay_on(cpus).map_err(|error| Failure::Machine(format!("CPUs {cpus:?}: {error}")))
}

/// A rank in this process.
#[derive(Debug)]
struct Rank(Threads);

impl Collective for Rank {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]) {
        self.0.all_gather(mine, lens, all);
    }

    fn in_process(&self) -> Option<&Threads> {
        Some(&self.0)
    }

    fn broadcast(&self, words: &mut Vec<u32>) {
        self.0.broadcast(words);
    }

    fn give_up(&self, why: &str) -> ! {
        let (rank, ranks) = (self.rank(), self.ranks());
        terminal::note(&format!("octavo: error: rank {rank} of {ranks}: {why}"));
        std::process::exit(1)
    }
}
