//! Ranks that communicate by MPI (tensor parallel).
//!
//! Every wait polls non-blocking MPI requests instead of calling a blocking function, so that a
//! rank that does not answer can be named and no rank waits for ever. Between steps the others
//! sleep for longer and longer, up to a millisecond, instead of polling on a whole core.

use std::hint::spin_loop;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::request::{LocalScope, Request, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Source};
use octavo_engine::backend::ranks::{TensorParallelGroup, agree, serve_on};
use octavo_kernels::Collective;
use serde::{Deserialize, Serialize};

use super::GROUP;
use crate::terminal;

/// Time to poll before sleeping. Waits within a step are shorter; others have time to sleep.
const SPIN: Duration = Duration::from_millis(2);
/// Sleep between polls: this fraction (1/16) of the wait so far, at most [`LONGEST_NAP`], so that
/// it adds little to the wait.
const NAP_PART: u32 = 16;
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// Number of polls between two readings of the clock.
const LOOKS: u32 = 64;

/// Name of the option of the timeout.
const TIMEOUT: &str = "--rank-timeout";

/// This rank, once MPI is initialized.
static JOINED: OnceLock<Mpi> = OnceLock::new();

/// Does the work of [`super::run`] with MPI.
pub(super) fn run(program: impl FnOnce() -> u8) -> u8 {
    if super::started().is_none() {
        return program();
    }
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Serialized) else {
        return program();
    };
    let world = universe.world();
    let number = |n: i32| usize::try_from(n).expect("ranks are numbered from 0");
    let own = JOINED.get_or_init(|| Mpi {
        ranks: number(world.size()),
        rank: number(world.rank()),
        timeout: Duration::from_secs(timeout(arguments())),
    });
    let link: Arc<dyn Collective> = Arc::new(own.clone());
    if let Some((rank, why)) = agree(own, differs(own, &Started::here())) {
        if own.rank == 0 {
            terminal::note(&format!(
                "octavo: error: rank {rank} of {}: {why}",
                own.ranks
            ));
        }
        return 2;
    }
    if own.rank > 0 {
        crate::guard_maps(1);
        serve_on(&link, super::open());
        return 0;
    }
    let tp_group = GROUP.get_or_init(|| TensorParallelGroup::on(link, super::open()));
    let code = program();
    tp_group.stop();
    code
}

/// Version and arguments of a rank, which must be the same for all ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    version: String,
    arguments: Vec<String>,
}

impl Started {
    fn here() -> Started {
        let commit = crate::build().commit.map(|commit| format!(" ({commit})"));
        let version = env!("CARGO_PKG_VERSION").to_owned() + &commit.unwrap_or_default();
        #[cfg(feature = "rank-faults")]
        let version = super::faults::version(version);
        Started {
            version,
            arguments: arguments().collect(),
        }
    }
}

/// Returns how this rank differs from rank 0, or `None`. Ranks follow rank 0 in any case, but other
/// programs or arguments were not started to do so.
fn differs(link: &Mpi, own: &Started) -> Option<String> {
    let text = serde_json::to_string(own).expect("text");
    let mut words: Vec<u32> = text.bytes().map(u32::from).collect();
    link.broadcast(&mut words);
    let text: Vec<u8> = words.iter().map(|byte| *byte as u8).collect();
    let Ok(first) = serde_json::from_slice::<Started>(&text) else {
        let version = &own.version;
        return Some(format!("version {version}: expected the one of rank 0"));
    };
    let Started { version, arguments } = own;
    if *version != first.version {
        let expected = first.version;
        return Some(format!(
            "version {version}: expected {expected}, as rank 0 has it"
        ));
    }
    let (found, expected) = (arguments.join(" "), first.arguments.join(" "));
    (found != expected)
        .then(|| format!("arguments {found}: expected {expected}, as rank 0 has them"))
}

/// Returns the arguments of this process. Lossy conversion is fine: all options and values searched
/// for are Unicode.
fn arguments() -> impl Iterator<Item = String> {
    let all = std::env::args_os().skip(1);
    all.map(|arg| arg.to_string_lossy().into_owned())
}

/// Returns the maximum time in seconds that a rank may take to answer. All ranks have the same
/// arguments, but only the first one parses them completely.
fn timeout(args: impl Iterator<Item = String>) -> u64 {
    let mut args = args.skip_while(|arg| !arg.starts_with(TIMEOUT));
    let value = args.next().and_then(|arg| {
        let after = arg
            .strip_prefix(TIMEOUT)?
            .strip_prefix('=')
            .map(str::to_owned);
        after.or_else(|| args.next())
    });
    let of_environment = || {
        crate::environment::value_of(&TIMEOUT[2..])?
            .into_string()
            .ok()
    };
    let value = value.or_else(of_environment);
    value.and_then(|n| n.parse().ok()).unwrap_or(super::SECONDS)
}

/// Aborts all ranks; see [`super::after_panic`].
pub(super) fn after_panic() {
    if JOINED.get().is_some() {
        SimpleCommunicator::world().abort(101);
    }
}

/// A rank of MPI, and the time in which others must answer.
#[derive(Clone, Debug)]
struct Mpi {
    ranks: usize,
    rank: usize,
    timeout: Duration,
}

/// A send to a rank or a receive from it that has begun.
struct Begun<'a, 'b, T: ?Sized> {
    rank: usize,
    request: Option<Request<'b, T, &'a LocalScope<'b>>>,
}

impl<T: ?Sized> Begun<'_, '_, T> {
    /// Polls the request; returns whether it is done.
    fn is_done(&mut self) -> bool {
        let Some(request) = self.request.take() else {
            return true;
        };
        match request.test() {
            Ok(_) => true,
            Err(request) => {
                self.request = Some(request);
                false
            }
        }
    }
}

impl Mpi {
    /// Polls until `waits_for` returns no rank; after `limit`, ends all ranks.
    fn wait(&self, limit: Option<Duration>, mut waits_for: impl FnMut() -> Option<usize>) {
        let begin = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if waits_for().is_none() {
                    return;
                }
                spin_loop();
            }
            let waited = begin.elapsed();
            if waited <= SPIN {
                continue;
            }
            let Some(rank) = waits_for() else {
                continue;
            };
            if limit.is_some_and(|limit| waited > limit) {
                self.end(&format!(
                    "rank {rank} of {} has not answered for {} s",
                    self.ranks,
                    self.timeout.as_secs()
                ));
            }
            std::thread::sleep((waited / NAP_PART).min(LONGEST_NAP));
        }
    }

    /// Ends all ranks.
    fn end(&self, why: &str) -> ! {
        terminal::note(&format!("octavo: error: {why}"));
        SimpleCommunicator::world().abort(1)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.ranks).filter(move |rank| *rank != own)
    }
}

/// Converts a rank's number to MPI's type.
fn number(rank: usize) -> i32 {
    rank as i32
}

impl Collective for Mpi {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]) {
        #[cfg(feature = "rank-faults")]
        super::faults::at_gather(self.rank);
        let world = SimpleCommunicator::world();
        let mut parts = Vec::with_capacity(self.ranks);
        let mut rest = all;
        for (rank, len) in lens.iter().enumerate() {
            let (part, behind) = rest.split_at_mut(*len);
            rest = behind;
            match rank == self.rank {
                true => part.copy_from_slice(mine),
                false => parts.push((rank, part)),
            }
        }
        scope(|scope| {
            let parts = parts.into_iter().filter(|(_, part)| !part.is_empty());
            let mut received: Vec<_> = parts
                .map(|(rank, part)| {
                    let process = world.process_at_rank(number(rank));
                    let request = Some(process.immediate_receive_into(scope, part));
                    Begun { rank, request }
                })
                .collect();
            let to = self.others().filter(|_| !mine.is_empty());
            let mut sent: Vec<_> = to
                .map(|rank| {
                    let process = world.process_at_rank(number(rank));
                    let request = Some(process.immediate_send(scope, mine));
                    Begun { rank, request }
                })
                .collect();
            self.wait(Some(self.timeout), || {
                received.retain_mut(|begun| !begun.is_done());
                sent.retain_mut(|begun| !begun.is_done());
                let late = received.first().map(|begun| begun.rank);
                late.or(sent.first().map(|begun| begun.rank))
            });
        });
    }

    fn broadcast(&self, words: &mut Vec<u32>) {
        let world = SimpleCommunicator::world();
        if self.rank > 0 {
            let first = world.process_at_rank(0);
            let mut len = 0;
            self.wait(None, || match first.immediate_probe() {
                Some(status) => {
                    len = status.count(u32::equivalent_datatype());
                    None
                }
                None => Some(0),
            });
            words.clear();
            words.resize(usize::try_from(len).expect("a length"), 0);
            first.receive_into(&mut words[..]);
            return;
        }
        let words = &words[..];
        scope(|scope| {
            let begin = |rank| Begun {
                rank,
                request: Some(
                    world
                        .process_at_rank(number(rank))
                        .immediate_send(scope, words),
                ),
            };
            let mut sent: Vec<_> = self.others().map(begin).collect();
            self.wait(Some(self.timeout), || {
                sent.retain_mut(|begun| !begun.is_done());
                sent.first().map(|begun| begun.rank)
            });
        });
    }

    fn give_up(&self, why: &str) -> ! {
        self.end(&format!("rank {} of {}: {why}", self.rank, self.ranks))
    }
}
