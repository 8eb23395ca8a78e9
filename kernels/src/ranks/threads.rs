//! Ranks that are threads of one process: what tests compute with in the place of processes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Collective;

/// One of several ranks in one process.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// Where they meet.
#[derive(Debug)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

/// What they have said.
#[derive(Debug)]
struct State {
    /// What each rank has brought.
    given: Vec<Option<Arc<[u32]>>>,
    /// How many have not yet taken what there is.
    taking: usize,
    /// Who will not come any more, and why.
    gone: Option<String>,
}

impl Threads {
    /// So many ranks.
    pub fn new(ranks: usize) -> Vec<Threads> {
        let meeting = Arc::new(Meeting {
            state: Mutex::new(State {
                given: vec![None; ranks],
                taking: 0,
                gone: None,
            }),
            changed: Condvar::new(),
        });
        let one = |rank| Threads {
            rank,
            meeting: meeting.clone(),
        };
        (0..ranks).map(one).collect()
    }

    /// Brings something, and takes what all have brought.
    ///
    /// # Panics
    /// If a rank is gone.
    fn meet(&self, mine: Arc<[u32]>) -> Vec<Arc<[u32]>> {
        // the last meeting is over when all have taken what there was
        let mut state = self.wait(self.state(), |state| state.taking > 0);
        state.given[self.rank] = Some(mine);
        if state.given.iter().all(Option::is_some) {
            state.taking = state.given.len();
            self.meeting.changed.notify_all();
        }
        let mut state = self.wait(state, |state| state.taking == 0);
        let all: Vec<Arc<[u32]>> = state.given.iter().flatten().cloned().collect();
        state.taking -= 1;
        if state.taking == 0 {
            state.given.fill(None);
            self.meeting.changed.notify_all();
        }
        all
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.meeting.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as that holds.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        mut holds: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        // what all have brought is taken, whoever leaves then
        let waits = |state: &mut State| (state.gone.is_none() || state.taking > 0) && holds(state);
        let state = self.meeting.changed.wait_while(state, waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = state.gone.clone().filter(|_| state.taking == 0) {
            drop(state);
            panic!("{why}");
        }
        state
    }

    fn leave(&self, why: impl FnOnce() -> String) {
        self.state().gone.get_or_insert_with(why);
        self.meeting.changed.notify_all();
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
        self.state().given.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]) {
        assert_eq!(
            mine.len(),
            lens[self.rank],
            "the part of rank {}",
            self.rank
        );
        let mut rest = all;
        let given = self.meet(mine.iter().map(|x| x.to_bits()).collect());
        for (given, len) in given.iter().zip(lens) {
            assert_eq!(given.len(), *len, "a part");
            let (part, behind) = rest.split_at_mut(*len);
            let values = part.iter_mut().zip(given.iter());
            values.for_each(|(to, from)| *to = f32::from_bits(*from));
            rest = behind;
        }
        assert!(rest.is_empty(), "more values than parts");
    }

    fn broadcast(&self, words: &mut Vec<u32>) {
        let mine = match self.rank {
            0 => words.as_slice().into(),
            _ => Arc::default(),
        };
        let given = self.meet(mine);
        given[0].as_ref().clone_into(words);
    }

    fn give_up(&self, why: &str) -> ! {
        let why = format!("rank {} of {}: {why}", self.rank, self.ranks());
        self.leave(|| why.clone());
        panic!("{why}");
    }
}
