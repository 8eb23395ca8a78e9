//! Ranks that are threads of one process: one for each NUMA node, or in tests in place of
//! processes.
//!
//! Each rank has a place of its own, which no other rank writes. It puts a message there,
//! increments a counter, and reads the places of the others when their counters have reached the
//! same value. A place holds two messages, so that no rank has to wait until all have read one: a
//! rank that writes its third knows that all have read the first, since they have written their
//! second.
//!
//! Large data is not copied but shown: the others read it in place, and its owner waits until all
//! have.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::Collective;
use crate::pool::Bell;

/// Iterations of a spinning loop between two looks at the time.
const TURNS: usize = 32;
/// Time to spin before sleeping. Ranks with their own CPUs are a little apart at most, and waking a
/// thread takes several tens of microseconds. Where ranks share CPUs, a waiting rank gives its own
/// up at once.
const SPIN: Duration = Duration::from_micros(200);

/// One of several ranks in one process.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// State shared by all ranks.
struct Meeting {
    places: Vec<RankMessages>,
    /// Time to spin before sleeping.
    spin: Duration,
    /// Message of the first rank that left.
    gone: OnceLock<String>,
    /// Rings when a rank has written a message, or has left.
    bell: Bell,
}

/// Messages of one rank. On cache lines of its own: others poll it while they wait.
#[derive(Default)]
#[repr(align(128))]
struct RankMessages {
    /// Number of its messages so far.
    times: AtomicU64,
    /// Its last message, and the one before.
    brought: [RwLock<Vec<u32>>; 2],
    /// Values it shows; `None` outside [`Threads::show`].
    shown: RwLock<Option<Shown>>,
    /// Value of `times` after it last read all shown values.
    taken: AtomicU64,
}

/// Values of a rank.
struct Shown {
    at: *const f32,
    len: usize,
}

// SAFETY: readers of the values hold the lock that they are shown under, and the owner has borrowed
// them until it has had that lock to itself.
unsafe impl Send for Shown {}
// SAFETY: as above; they are only read.
unsafe impl Sync for Shown {}

/// Hides the shown values when dropped, which waits for ranks that are reading.
struct Hides<'a>(&'a RankMessages);

impl Drop for Hides<'_> {
    fn drop(&mut self) {
        let shown = self.0.shown.write();
        *shown.unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Threads {
    /// Makes `ranks` connected ranks.
    pub fn new(ranks: usize) -> Vec<Threads> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let meeting = Arc::new(Meeting {
            spin: if ranks > cpus { Duration::ZERO } else { SPIN },
            places: (0..ranks).map(|_| RankMessages::default()).collect(),
            gone: OnceLock::new(),
            bell: Bell::new(),
        });
        let one = |rank| Threads {
            rank,
            meeting: meeting.clone(),
        };
        (0..ranks).map(one).collect()
    }

    /// Writes a message, and reads those of all ranks, in order.
    ///
    /// # Panics
    /// If a rank leaves before it has written its message.
    fn meet(&self, bring: impl FnOnce(&mut Vec<u32>), mut take: impl FnMut(usize, &[u32])) {
        let Meeting { places, bell, .. } = &*self.meeting;
        let own = &places[self.rank];
        let before = own.times.load(Ordering::Relaxed);
        let slot = usize::from(before % 2 == 1);
        let mut mine = own.brought[slot]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        mine.clear();
        bring(&mut mine);
        drop(mine);
        own.times.store(before + 1, Ordering::Release);
        bell.ring();
        for (rank, place) in places.iter().enumerate() {
            self.meeting
                .wait(|| place.times.load(Ordering::Acquire) > before);
            let brought = place.brought[slot].read();
            take(rank, &brought.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Passes the shown values of each rank to `take`, in order; `mine` are those of this one.
    /// Nothing is copied, but all ranks synchronize twice, which pays for large data only.
    ///
    /// # Panics
    /// If a rank leaves before all have read all shown values.
    pub(crate) fn show(&self, mine: &[f32], mut take: impl FnMut(usize, &[f32])) {
        let Meeting { places, bell, .. } = &*self.meeting;
        let own = &places[self.rank];
        let before = own.times.load(Ordering::Relaxed);
        *own.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(Shown {
            at: mine.as_ptr(),
            len: mine.len(),
        });
        // also where this panics: the values are the caller's again afterwards
        let _hides = Hides(own);
        own.times.store(before + 1, Ordering::Release);
        bell.ring();
        for (rank, place) in places.iter().enumerate() {
            self.meeting
                .wait(|| place.times.load(Ordering::Acquire) > before);
            let shown = place.shown.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(Shown { at, len }) = *shown {
                // SAFETY: they are borrowed by their owner, which cannot have ended its `show`
                // while this lock is held.
                take(rank, unsafe { std::slice::from_raw_parts(at, len) });
            } else {
                // its owner did not wait for this rank, and is about to leave
                drop(shown);
                self.meeting.wait(|| false);
            }
        }
        own.taken.store(before + 1, Ordering::Release);
        bell.ring();
        for place in places {
            self.meeting
                .wait(|| place.taken.load(Ordering::Acquire) > before);
        }
    }

    fn leave(&self, why: impl FnOnce() -> String) {
        self.meeting.gone.get_or_init(why);
        self.meeting.bell.ring();
    }
}

impl Meeting {
    /// Waits until a message has come.
    fn wait(&self, has_come: impl Fn() -> bool) {
        let mut start = None;
        loop {
            for _ in 0..TURNS {
                if has_come() {
                    return;
                }
                std::hint::spin_loop();
            }
            let gone = self.gone.get();
            // the rank that left may have sent its message before
            if let Some(why) = gone.filter(|_| !has_come()) {
                panic!("{why}");
            }
            if start.get_or_insert_with(Instant::now).elapsed() > self.spin {
                let is_over = || has_come() || self.gone.get().is_some();
                self.bell.sleep_until(is_over);
            }
        }
    }
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Meeting");
        shown.field("ranks", &self.places.len());
        shown.field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let (rank, ranks) = (self.rank, self.ranks());
        self.leave(|| format!("rank {rank} of {ranks} is gone"));
    }
}

impl Collective for Threads {
    fn ranks(&self) -> usize {
        self.meeting.places.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]) {
        let own = self.rank;
        assert_eq!(mine.len(), lens[own], "the part of rank {own}");
        assert_eq!(all.len(), lens.iter().sum::<usize>(), "all parts");
        let mut rest = all;
        self.meet(
            |place| place.extend(mine.iter().map(|x| x.to_bits())),
            |rank, brought| {
                let part = rest.split_off_mut(..lens[rank]).expect("room for it");
                assert_eq!(brought.len(), part.len(), "the part of rank {rank}");
                let values = part.iter_mut().zip(brought);
                values.for_each(|(to, from)| *to = f32::from_bits(*from));
            },
        );
    }

    fn in_process(&self) -> Option<&Threads> {
        Some(self)
    }

    fn broadcast(&self, words: &mut Vec<u32>) {
        if self.rank == 0 {
            self.meet(|place| place.extend_from_slice(words), |_, _| {});
            return;
        }
        let mut take = |rank: usize, brought: &[u32]| {
            if rank == 0 {
                brought.clone_into(words);
            }
        };
        self.meet(|_| {}, &mut take);
    }

    fn give_up(&self, why: &str) -> ! {
        let why = format!("rank {} of {}: {why}", self.rank, self.ranks());
        self.leave(|| why.clone());
        panic!("{why}");
    }
}

#[cfg(test)]
mod tests;
