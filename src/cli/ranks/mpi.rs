//! Ranks that reach each other by MPI.
//!
//! Every wait is a loop of our own around what MPI has begun, and not a call that blocks: so that a
//! rank that does not answer can be named, and nobody waits for ever. Between steps the others
//! sleep more and more, up to a millisecond, in place of polling a whole core.

use std::hint::spin_loop;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::request::{LocalScope, Request, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Source};
use octavo_engine::backend::ranks::{World, serve};
use octavo_kernels::Collective;

use super::WORLD;
use crate::cli::terminal;

/// What a launcher says of how many it has started: Open MPI's, MPICH's.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// A wait is short, or there is time to sleep: of steps and of parts of rows.
const SPIN: Duration = Duration::from_millis(2);
/// How long nobody looks, at least and at most.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// Its option.
const TIMEOUT: &str = "--rank-timeout";

/// Who this is, once it has joined.
static JOINED: OnceLock<Mpi> = OnceLock::new();

/// As [`super::run`].
pub(super) fn run(program: impl FnOnce() -> ExitCode) -> ExitCode {
    let several = |name| std::env::var(name).is_ok_and(|n| n.parse().is_ok_and(|n: usize| n > 1));
    if !SIZES.into_iter().any(several) {
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
        timeout: Duration::from_secs(timeout(std::env::args())),
    });
    let link: Arc<dyn Collective> = Arc::new(own.clone());
    if own.rank > 0 {
        crate::cli::guard_maps(1);
        serve(&link);
        return ExitCode::SUCCESS;
    }
    let world = WORLD.get_or_init(|| World::new(link));
    let code = program();
    world.stop();
    code
}

/// How long a rank may take to answer, in seconds: all of them were started with the same
/// arguments, which only the first one reads as a whole.
fn timeout(args: impl Iterator<Item = String>) -> u64 {
    let mut args = args.skip_while(|arg| !arg.starts_with(TIMEOUT));
    let value = args.next().and_then(|arg| {
        let after = arg
            .strip_prefix(TIMEOUT)?
            .strip_prefix('=')
            .map(str::to_owned);
        after.or_else(|| args.next())
    });
    value.and_then(|n| n.parse().ok()).unwrap_or(super::SECONDS)
}

/// See [`super::after_panic`].
pub(super) fn after_panic() {
    if JOINED.get().is_some() {
        SimpleCommunicator::world().abort(101);
    }
}

/// A rank as MPI has it.
#[derive(Clone, Debug)]
struct Mpi {
    ranks: usize,
    rank: usize,
    timeout: Duration,
}

/// What has begun to be sent to a rank, or received from it.
struct Begun<'a, 'b, T: ?Sized> {
    rank: usize,
    request: Option<Request<'b, T, &'a LocalScope<'b>>>,
}

impl<T: ?Sized> Begun<'_, '_, T> {
    /// Whether it is done.
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
    /// Looks again and again, until there is nobody to wait for.
    fn wait(&self, limit: Option<Duration>, mut waits_for: impl FnMut() -> Option<usize>) {
        let (begin, mut nap) = (Instant::now(), NAP);
        loop {
            for _ in 0..LOOKS {
                if waits_for().is_none() {
                    return;
                }
                spin_loop();
            }
            let waited = begin.elapsed();
            if let Some(rank) = waits_for().filter(|_| limit.is_some_and(|limit| waited > limit)) {
                self.end(&format!(
                    "rank {rank} of {} has not answered for {} s",
                    self.ranks,
                    self.timeout.as_secs()
                ));
            }
            if waited > SPIN {
                std::thread::sleep(nap);
                nap = (2 * nap).min(LONGEST_NAP);
            }
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

/// As MPI counts ranks.
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
