//! The scheduler and the prefix tree on random schedules, with a device that only stores values:
//! each position holds a number that depends on every token before it, on their phases and on the
//! salt, as real keys and values do.

mod schedules;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use super::{RequestId, Scheduler, Sequence, Settings, StepPlan};
use crate::kv::{CHECKPOINTS, KvCacheManager, PAGE, PageId, SequenceKv, WRITES};
use octavo_kernels::Phase;
use proptest::prelude::*;

/// Returns the value of a position, given the value of the one before it.
fn mix(before: u64, token: u32, phase: Phase) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, token, phase == Phase::Decode).hash(&mut hasher);
    hasher.finish()
}

fn root(salt: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    hasher.finish()
}

/// Returns the model's next token. There are few tokens, so that texts coincide often.
fn next(value: u64) -> u32 {
    (value % 3) as u32
}

/// Returns the parent beam, by index, and the token of each new beam: at most `width` of all
/// possible ones, depending on their values.
fn followers(values: &[u64], width: usize) -> Vec<(usize, u32)> {
    let token = |parent: usize| (0..3u32).map(move |token| (parent, token));
    let mut all: Vec<(usize, u32)> = (0..values.len()).flat_map(token).collect();
    all.sort_by_key(|&(parent, token)| mix(values[parent], token, Phase::Prefill));
    let n = 1 + values.iter().fold(0, |sum, value| sum ^ value) as usize % width;
    all.truncate(n);
    all
}

#[derive(Clone, Debug)]
struct Asked {
    prompt: Vec<u32>,
    n: usize,
    salt: Option<String>,
    wants_all: bool,
    /// Maximum number of beams; their tokens are not handed out.
    beams: usize,
}

impl Asked {
    /// Returns the number of pages that it may need at once.
    fn pages(&self) -> usize {
        let common = match self.beams {
            1 => 0,
            _ => self.prompt.len() / PAGE,
        };
        common + self.beams * ((self.prompt.len() + self.n).div_ceil(PAGE) - common)
    }

    /// Returns the tokens of its beams after each step if it runs alone.
    fn beams_alone(&self) -> Vec<Vec<Vec<u32>>> {
        let read = |value, token: &u32| mix(value, *token, Phase::Prefill);
        let value = self.prompt.iter().fold(root(self.salt.as_deref()), read);
        let mut beams = vec![(value, Vec::new())];
        let mut steps = Vec::new();
        while steps.len() < self.n {
            let values: Vec<u64> = beams.iter().map(|(value, _)| *value).collect();
            let follow = |(parent, token): (usize, u32)| {
                let (value, said): &(u64, Vec<u32>) = &beams[parent];
                let said = [&said[..], &[token]].concat();
                (mix(*value, token, Phase::Decode), said)
            };
            beams = followers(&values, self.beams)
                .into_iter()
                .map(follow)
                .collect();
            steps.push(beams.iter().map(|(_, said)| said.clone()).collect());
        }
        steps
    }

    /// Returns its tokens if it runs alone.
    fn alone(&self) -> Vec<u32> {
        let read = |value, token: &u32| mix(value, *token, Phase::Prefill);
        let mut value = self.prompt.iter().fold(root(self.salt.as_deref()), read);
        let mut said = vec![next(value)];
        while said.len() < self.n {
            value = mix(
                value,
                *said.last().expect("it says something"),
                Phase::Decode,
            );
            said.push(next(value));
        }
        said
    }
}

#[derive(Clone, Debug)]
enum Act {
    Add(Asked),
    Abort(usize),
    Fork(usize),
    Round,
}

/// A fault introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Pages are not copied before one of two owners writes.
    NoCopies,
    /// Beams without a follower are not freed.
    KeepLosers,
    /// Pages of generated tokens are reused for a prompt.
    AnyRole,
    /// The state after a full page is that at the end of the step.
    LateStates,
    /// Pages are freed that a token still attends to.
    ShortWindow,
}

/// Tokens of a beam, and the value of its last position, once it is known.
type Beam = (Vec<u32>, Option<u64>);

struct World {
    kv_cache: KvCacheManager,
    scheduler: Scheduler,
    /// By group and page.
    store: HashMap<(usize, PageId), [u64; PAGE]>,
    /// Recurrent states: the value of the last position.
    states: HashMap<PageId, u64>,
    n_states: u32,
    /// Sliding window of each group, in positions.
    windows: [usize; GROUPS],
    asked: BTreeMap<RequestId, Asked>,
    said: BTreeMap<RequestId, Vec<u32>>,
    /// Beams of each group.
    beams: BTreeMap<RequestId, Vec<Beam>>,
    sequences: usize,
    next_id: RequestId,
    fault: Fault,
}

const GROUPS: usize = 2;

/// Recurrent states of a sequence, as in an engine: the current one, those that a step writes, and
/// checkpoints.
const STATES: u32 = (1 + WRITES + CHECKPOINTS) as u32;

impl World {
    fn new(pages: u32, settings: Settings, fault: Fault) -> World {
        // every second world has recurrent layers
        let n_states = match pages % 2 {
            0 => STATES * settings.sequences as u32,
            _ => 0,
        };
        // in two of three the second group has a window, which ends inside a page or at its end
        let window = match pages % 3 {
            0 => 100,
            1 => 2 * PAGE,
            _ => usize::MAX,
        };
        let told = match fault {
            Fault::ShortWindow => window / 5,
            _ => window,
        };
        let told = (told < usize::MAX).then_some(told);
        World {
            kv_cache: KvCacheManager::new(&[None, told], pages).with_states(n_states),
            windows: [usize::MAX, window],
            states: HashMap::new(),
            n_states,
            sequences: settings.sequences,
            beams: BTreeMap::new(),
            scheduler: Scheduler::new(Settings {
                reuse_generated: fault == Fault::AnyRole,
                ..settings
            }),
            store: HashMap::new(),
            asked: BTreeMap::new(),
            said: BTreeMap::new(),
            next_id: 0,
            fault,
        }
    }

    fn add(&mut self, asked: Asked) {
        if asked.pages() > self.kv_cache.capacity() || asked.beams > self.sequences {
            return;
        }
        let id = self.next_id;
        self.next_id += asked.beams as u64;
        let salt = asked.salt.clone();
        let sequence = Sequence::new(id, asked.prompt.clone(), salt, asked.wants_all);
        self.scheduler.add(sequence.with_beams(asked.beams));
        if asked.beams > 1 {
            self.beams.insert(id, vec![(Vec::new(), None)]);
        }
        self.said.insert(id, Vec::new());
        self.asked.insert(id, asked);
    }

    /// Returns the n-th of the requests that are there.
    fn pick(&self, n: usize) -> Option<RequestId> {
        let all: Vec<_> = self.asked.keys().copied().collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn end(&mut self, id: RequestId) {
        let before = self.kv_cache.available();
        let sequence = self
            .scheduler
            .remove(&mut self.kv_cache, id)
            .expect("it is there");
        assert_eq!(
            sequence.kv().n_pages(),
            0,
            "its pages are given back at once"
        );
        assert!(self.kv_cache.available() >= before);
        assert!(
            self.scheduler.remove(&mut self.kv_cache, id).is_none(),
            "only once"
        );
        self.asked.remove(&id);
        self.said.remove(&id);
        self.beams.remove(&id);
        let is_own = |sequence: &Sequence| sequence.group() == id;
        assert!(
            !self.scheduler.sequences().iter().any(is_own),
            "with all beams"
        );
    }

    fn fork(&mut self, of: RequestId) {
        let said = self.said[&of].clone();
        // tokens of beams are not handed out
        if said.is_empty() {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.scheduler.fork(&mut self.kv_cache, of, id);
        self.asked.insert(id, self.asked[&of].clone());
        self.said.insert(id, said);
    }

    /// Takes a step of each phase; returns whether anything was computed, or a request began whose
    /// whole prompt was cached.
    fn round(&mut self) -> bool {
        let before = self.running();
        let oldest = before.first().copied();
        let preemptions = self.scheduler.preemptions();
        let mut computed = 0;
        let plan = self.scheduler.decodes(&mut self.kv_cache);
        computed += self.compute(Phase::Decode, &plan);
        let has_preempted = self.scheduler.preemptions() > preemptions;
        let running = self.running();
        let plan = self.scheduler.prefills(&mut self.kv_cache);
        for chunk in plan.chunks.iter().filter(|_| has_preempted) {
            assert!(
                running.contains(&chunk.id),
                "nobody begins after a preemption"
            );
        }
        computed += self.compute(Phase::Prefill, &plan);
        if let Some(oldest) = oldest.filter(|id| self.asked.contains_key(id)) {
            assert!(
                self.running().contains(&oldest),
                "the oldest is never preempted"
            );
        }
        self.check();
        computed > 0 || self.running().len() > before.len()
    }

    fn in_state(&self, state: &str) -> Vec<RequestId> {
        let sequences = self.scheduler.sequences().iter();
        sequences
            .filter(|sequence| sequence.state_name() == state)
            .map(Sequence::id)
            .collect()
    }

    fn running(&self) -> Vec<RequestId> {
        self.in_state("running")
    }

    fn compute(&mut self, phase: Phase, plan: &StepPlan) -> usize {
        assert!(
            plan.failed.is_empty(),
            "whoever was let in can end alone: {:?}",
            plan.failed
        );
        for copy in plan.copies.iter().filter(|_| self.fault != Fault::NoCopies) {
            let page = self.store.get(&(copy.group, copy.copy.from)).copied();
            self.store
                .insert((copy.group, copy.copy.to), page.unwrap_or_default());
        }
        let mut outputs = Vec::new();
        let planned = self.scheduler.planned(plan);
        assert_eq!(
            planned.len(),
            plan.chunks.len(),
            "each request once, in order"
        );
        for (sequence, chunk) in planned.into_iter().zip(&plan.chunks) {
            let next = sequence.next_tokens(chunk.n);
            let (tokens, kv) = (next.tokens, next.kv);
            let salt = self.asked[&chunk.group].salt.as_deref();
            let mut value = last_value(&self.store, kv, self.windows, salt);
            let (from, to) = kv.states();
            if self.n_states > 0 {
                let state = from.map_or_else(|| root(salt), |slot| self.states[&slot]);
                assert_eq!(state, value, "the state of another text");
                let last = to.last().map(|state| state.len);
                assert_eq!(last, Some(kv.len() + tokens.len()));
            }
            for (i, &token) in tokens.iter().enumerate() {
                value = mix(value, token, phase);
                let is_late = self.fault == Fault::LateStates;
                let is_after = |len: usize| is_late || len == kv.len() + i + 1;
                for state in to.iter().filter(|state| is_after(state.len)) {
                    assert_ne!(Some(state.slot), from, "a state is never changed");
                    self.states.insert(state.slot, value);
                }
                write(&mut self.store, &self.kv_cache, kv, kv.len() + i, value);
            }
            kv.advance(kv.len() + tokens.len());
            if chunk.outputs > 0 {
                outputs.push((*chunk, value, kv.len()));
            }
        }
        let time = Duration::from_millis(10);
        self.scheduler.took(&mut self.kv_cache, phase, plan, time);
        for &(chunk, value, len) in &outputs {
            if let Some(beams) = self.beams.get_mut(&chunk.group) {
                let (said, last) = &mut beams[(chunk.id - chunk.group) as usize];
                let is_last = len == self.asked[&chunk.group].prompt.len() + said.len();
                *last = if is_last { Some(value) } else { *last };
            }
        }
        for (chunk, value, len) in outputs {
            match self.beams.contains_key(&chunk.group) {
                true => self.follow(chunk.group),
                false if self.asked.contains_key(&chunk.id) => self.say(chunk.id, next(value), len),
                false => {}
            }
        }
        plan.chunks.iter().map(|chunk| chunk.n).sum()
    }

    /// Advances the beams of a group by a token, if all are computed.
    fn follow(&mut self, group: RequestId) {
        if !self.scheduler.is_level(group) {
            return;
        }
        let (asked, beams) = (&self.asked[&group], &self.beams[&group]);
        let last = beams.iter().map(|(_, last)| last.expect("its output came"));
        let next = followers(&last.collect::<Vec<u64>>(), asked.beams);
        let follow =
            |&(parent, token): &(usize, u32)| ([&beams[parent].0[..], &[token]].concat(), None);
        let after: Vec<Beam> = next.iter().map(follow).collect();
        let step = after[0].0.len();
        let said: Vec<Vec<u32>> = after.iter().map(|(said, _)| said.clone()).collect();
        assert_eq!(said, asked.beams_alone()[step - 1], "as if alone");
        if step == asked.n {
            return self.end(group);
        }
        self.beams.insert(group, after);
        if self.fault == Fault::KeepLosers {
            let sequence = self.scheduler.sequence(group).expect("it is there");
            std::mem::forget(self.kv_cache.fork(sequence.kv()));
        }
        self.scheduler.regroup(&mut self.kv_cache, group, &next);
    }

    /// Takes a request's next token; ends the request when it has all tokens it asked for.
    fn say(&mut self, id: RequestId, token: u32, len: usize) {
        let (asked, said) = (
            &self.asked[&id],
            self.said.get_mut(&id).expect("it is there"),
        );
        if len < asked.prompt.len() + said.len() {
            // a prompt that needs all outputs, computed for the second time
            return;
        }
        said.push(token);
        let alone = asked.alone();
        assert_eq!(said[..], alone[..said.len()], "as if alone");
        if said.len() == asked.n {
            self.end(id);
        } else {
            self.scheduler.push(id, token);
        }
    }

    /// Checks the invariants between any two steps.
    fn check(&self) {
        let mut owners = vec![HashMap::<PageId, u32>::new(); GROUPS];
        for sequence in self.scheduler.sequences() {
            for (group, table) in sequence.kv().tables().iter().enumerate() {
                for &page in table.pages() {
                    *owners[group].entry(page).or_default() += 1;
                }
            }
        }
        for (group, (pool, owners)) in self.kv_cache.pools().iter().zip(owners).enumerate() {
            let mut kept = 0;
            for page in (0..pool.capacity() as u32).map(PageId) {
                let own = owners.get(&page).copied().unwrap_or(0);
                let of_tree = pool.ref_count(page) - own;
                assert!(of_tree <= 1, "a page has its tables and the tree as owners");
                kept += of_tree as usize;
            }
            assert_eq!(kept, self.kv_cache.n_cached_pages(group));
        }
        let counts = self.kv_cache.counts();
        let all = counts.free + counts.cached + counts.used;
        assert_eq!(all, self.kv_cache.capacity());
    }
}

/// Returns the value of a sequence's last position. All that the next token attends to is there.
fn last_value(
    store: &HashMap<(usize, PageId), [u64; PAGE]>,
    kv: &SequenceKv,
    windows: [usize; GROUPS],
    salt: Option<&str>,
) -> u64 {
    let value = |group: usize, position: usize| {
        let located = kv.tables()[group].locate(position);
        let (page, i) = located.expect("it is written, and was not given back");
        store[&(group, page)][i]
    };
    for (group, window) in windows.into_iter().enumerate() {
        let first = (kv.len() + 1).saturating_sub(window);
        for position in first..kv.len() {
            assert_eq!(value(group, position), value(0, position), "groups agree");
        }
    }
    let last = kv.len().checked_sub(1);
    last.map_or_else(|| root(salt), |last| value(0, last))
}

fn write(
    store: &mut HashMap<(usize, PageId), [u64; PAGE]>,
    kv_cache: &KvCacheManager,
    kv: &SequenceKv,
    position: usize,
    value: u64,
) {
    for (group, table) in kv.tables().iter().enumerate() {
        let (page, i) = table.locate(position).expect("reserved before the step");
        let owners = kv_cache.pools()[group].ref_count(page);
        assert_eq!(owners, 1, "nobody else sees a page that is written");
        store.entry((group, page)).or_default()[i] = value;
    }
}
