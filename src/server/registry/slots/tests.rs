//! Random orders of events: the limits hold, no request waits forever, and no model is unloaded
//! while it is used.

use super::*;

/// Bytes of each model.
const BYTES: [u64; 4] = [40, 50, 60, 30];

fn limits(memory: u64, models: usize) -> ModelLimits {
    ModelLimits {
        memory: Some(memory),
        models: Some(models),
        ..ModelLimits::default()
    }
}

/// State of four models, none of them loaded.
fn unloaded() -> State<usize> {
    State::new(BYTES.iter().map(|_| (None, false)))
}

/// A sequence of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

/// Runs requests in a random order of events; returns the state at the end.
fn run(seed: u64, limits: &ModelLimits, requests: usize) -> State<usize> {
    let mut random = Random(seed);
    let mut state = unloaded();
    let (mut jobs, mut waiting, mut using) = (Vec::new(), Vec::new(), Vec::new());
    let (mut asked, mut answered) = (0, 0);
    for turn in 0.. {
        assert!(
            turn < 200 * requests,
            "seed {seed}: {answered} of {requests}"
        );
        match random.below(4) {
            0 if asked < requests => {
                let i = random.below(BYTES.len());
                state.slots[i].waiting += 1;
                waiting.push(i);
                asked += 1;
            }
            1 if !using.is_empty() => {
                let i: usize = using.swap_remove(random.below(using.len()));
                state.slots[i].users -= 1;
                answered += 1;
            }
            2 if !jobs.is_empty() => match jobs.swap_remove(random.below(jobs.len())) {
                Job::Load(i) => {
                    let loaded = (i, BYTES[i]);
                    let taken = state.loaded(i, loaded, limits, Duration::ZERO);
                    assert_eq!(taken, Ok(()));
                }
                Job::Unload(i, _) => {
                    assert_eq!(state.slots[i].users, 0, "seed {seed}");
                    state.unloaded(i);
                }
                Job::End(_) => panic!("nothing has a time limit"),
            },
            _ => {}
        }
        waiting.retain(|&i| {
            let slot = &mut state.slots[i];
            match slot.phase {
                Phase::Loaded(_) => {
                    (slot.waiting, slot.users) = (slot.waiting - 1, slot.users + 1);
                    using.push(i);
                }
                Phase::Unloaded => state.planned(i, BYTES[i]),
                _ => {}
            }
            !matches!(state.slots[i].phase, Phase::Loaded(_))
        });
        jobs.extend(state.advance(limits, Instant::now()));
        assert!(limits.hold(state.used(), state.count()), "seed {seed}");
        if answered == requests && jobs.is_empty() {
            return state;
        }
    }
    unreachable!("it returns or panics")
}

#[test]
fn every_request_is_answered_within_the_limits() {
    for seed in 0..300 {
        // room for two or three of them, or two at most
        for limits in [
            limits(110, 4),
            limits(150, 4),
            limits(1000, 2),
            limits(60, 1),
        ] {
            let state = run(seed, &limits, 200);
            assert!(state.peak <= limits.memory.unwrap_or(0));
            assert!(state.slots.iter().all(|slot| slot.loads > 0));
        }
    }
}

/// Loads a model at once, for which there is room.
fn load(state: &mut State<usize>, i: usize, limits: &ModelLimits) {
    state.slots[i].waiting = 1;
    state.planned(i, BYTES[i]);
    assert_eq!(state.advance(limits, Instant::now()), [Job::Load(i)]);
    let loaded = (i, BYTES[i]);
    assert_eq!(state.loaded(i, loaded, limits, Duration::ZERO), Ok(()));
    state.slots[i].waiting = 0;
}

#[test]
fn the_least_recently_used_without_requests_goes_first() {
    let limits = limits(150, 4);
    let mut state = unloaded();
    for i in [0, 1, 2] {
        load(&mut state, i, &limits);
        state.slots[i].last_used = Instant::now();
    }
    // the oldest is in use, so the next one goes
    state.slots[0].users = 1;
    state.slots[3].waiting = 1;
    state.planned(3, BYTES[3]);
    let jobs = state.advance(&limits, Instant::now());
    assert_eq!(jobs, [Job::Unload(1, 1)]);
    assert_eq!(state.advance(&limits, Instant::now()), []);
    assert!(matches!(state.slots[0].phase, Phase::Loaded(_)));
}

#[test]
fn a_model_that_never_fits_fails_and_one_that_nobody_wants_is_forgotten() {
    let limits = limits(50, 4);
    let mut state = unloaded();
    state.slots[2].waiting = 1;
    state.planned(2, BYTES[2]);
    assert_eq!(state.advance(&limits, Instant::now()), []);
    assert_eq!((state.slots[2].attempts, state.used()), (1, 0));
    let error = state.slots[2].error.as_deref().unwrap_or_default();
    assert!(error.starts_with("it takes 1 MiB"), "{error}");
    load(&mut state, 0, &limits);
    state.slots[0].users = 1;
    state.slots[1].waiting = 1;
    state.planned(1, BYTES[1]);
    assert_eq!(state.advance(&limits, Instant::now()), []);
    // the client has gone
    state.slots[1].waiting = 0;
    assert_eq!(state.advance(&limits, Instant::now()), []);
    assert_eq!(state.slots[1].phase, Phase::Unloaded);
}

#[test]
fn a_model_that_takes_more_than_was_planned_makes_room_or_fails() {
    let limits = limits(100, 4);
    let mut state = unloaded();
    load(&mut state, 0, &limits);
    state.slots[1].waiting = 1;
    state.planned(1, BYTES[1]);
    assert_eq!(state.advance(&limits, Instant::now()), [Job::Load(1)]);
    assert_eq!(state.loaded(1, (1, 80), &limits, Duration::ZERO), Err(1));
    state.requeue(1);
    let jobs = state.advance(&limits, Instant::now());
    assert_eq!(jobs, [Job::Unload(0, 0)]);
    state.unloaded(0);
    assert_eq!(state.advance(&limits, Instant::now()), [Job::Load(1)]);
    assert_eq!(state.loaded(1, (1, 80), &limits, Duration::ZERO), Ok(()));
}

#[test]
fn idle_models_and_those_whose_time_is_over_are_due() {
    let limits = ModelLimits {
        idle: Some(Duration::from_secs(5)),
        ..limits(1000, 4)
    };
    let mut state = unloaded();
    load(&mut state, 0, &limits);
    let used = state.slots[0].last_used;
    assert_eq!(state.due(&limits), Some(used + Duration::from_secs(5)));
    assert_eq!(state.advance(&limits, used + Duration::from_secs(4)), []);
    state.slots[0].users = 1;
    assert_eq!(state.due(&limits), None);
    assert_eq!(state.advance(&limits, used + Duration::from_secs(9)), []);
    state.drain(0, Some(used + Duration::from_secs(20)));
    assert_eq!(state.due(&limits), Some(used + Duration::from_secs(20)));
    let late = used + Duration::from_secs(20);
    assert_eq!(state.advance(&limits, late), [Job::End(0)]);
    assert_eq!(state.advance(&limits, late), []);
    state.slots[0].users = 0;
    assert_eq!(state.advance(&limits, late), [Job::Unload(0, 0)]);
}
