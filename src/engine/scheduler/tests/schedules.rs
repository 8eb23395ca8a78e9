//! Random schedules, the faults that they detect, and a long one.

use super::*;

fn asked() -> impl Strategy<Value = Asked> {
    // long common prefixes, some of them of generated tokens
    let stem = (0..3usize, 0..70usize).prop_map(|(stem, n)| -> Vec<u32> {
        let first = Asked {
            prompt: vec![1; 16 * stem + 1],
            n: 60,
            salt: None,
            wants_all: false,
            beams: 1,
        };
        let all = first.prompt.iter().copied().chain(first.alone());
        all.take(n).collect()
    });
    let rest = prop::collection::vec(0..3u32, 1..20);
    let salt = prop_oneof![3 => Just(None), 1 => Just(Some("a".to_owned()))];
    let wants_all = prop_oneof![5 => Just(false), 1 => Just(true)];
    let beams = prop_oneof![2 => Just(1), 1 => 2..5usize];
    (stem, rest, 1..50usize, salt, wants_all, beams).prop_map(
        |(stem, rest, n, salt, wants_all, beams)| Asked {
            prompt: stem.into_iter().chain(rest).collect(),
            n,
            salt,
            wants_all,
            beams,
        },
    )
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => asked().prop_map(Act::Add),
        1 => (0..16usize).prop_map(Act::Abort),
        1 => (0..16usize).prop_map(Act::Fork),
        12 => Just(Act::Round),
    ];
    prop::collection::vec(act, 1..120)
}

fn settings() -> impl Strategy<Value = Settings> {
    (1..6usize, 8..100usize, any::<bool>()).prop_map(|(sequences, rows, prefixes)| Settings {
        sequences,
        rows,
        most_rows: rows,
        outputs: rows.min(20),
        prefill_budget: Duration::from_millis(5),
        balance: 1000.0,
        prefixes,
        reuse_generated: false,
        whole: false,
    })
}

fn play(pages: u32, settings: Settings, acts: &[Act], fault: Fault) {
    let mut world = World::new(pages, settings, fault);
    for act in acts {
        match act {
            Act::Add(asked) => world.add(asked.clone()),
            Act::Abort(n) => {
                if let Some(id) = world.pick(*n) {
                    world.end(id);
                }
            }
            Act::Fork(n) => {
                if let Some(id) = world.pick(*n) {
                    world.fork(id);
                }
            }
            Act::Round => {
                let is_idle = world.asked.is_empty();
                assert!(world.round() || is_idle, "every round computes something");
            }
        }
        world.check();
    }
    while !world.asked.is_empty() {
        assert!(world.round(), "every round computes something");
    }
    assert_eq!(
        world.kv_cache.counts().used,
        0,
        "all pages are free or kept"
    );
    world.kv_cache.clear();
    assert_eq!(world.kv_cache.counts().free, world.kv_cache.capacity());
    let states = (world.n_states > 0).then_some(world.n_states as usize);
    assert_eq!(world.kv_cache.free_states(), states, "all states are free");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_schedule_says_what_each_request_says_alone(
        pages in 3u32..24,
        settings in settings(),
        acts in acts(),
    ) {
        play(pages, settings, &acts, Fault::None);
    }
}

#[test]
fn faults_are_seen() {
    let settings = Settings {
        sequences: 4,
        rows: 64,
        most_rows: 64,
        outputs: 20,
        prefill_budget: Duration::from_millis(5),
        balance: 1000.0,
        prefixes: true,
        reuse_generated: false,
        whole: false,
    };
    let first = Asked {
        prompt: vec![1; 20],
        n: 60,
        salt: None,
        wants_all: false,
        beams: 1,
    };
    // continues the output of the first one
    let said = first.alone().into_iter().take(50);
    let second = Asked {
        prompt: first.prompt.iter().copied().chain(said).collect(),
        ..first.clone()
    };
    let rounds = |n: usize| vec![Act::Round; n];
    let forks = [
        vec![Act::Add(first.clone()), Act::Round, Act::Fork(0)],
        rounds(20),
    ]
    .concat();
    let again = [
        vec![Act::Add(first.clone())],
        rounds(70),
        vec![Act::Add(second)],
        rounds(3),
    ]
    .concat();
    let beams = [
        vec![Act::Add(Asked {
            beams: 3,
            ..first.clone()
        })],
        rounds(20),
    ]
    .concat();
    let all = [
        (Fault::NoCopies, forks),
        (Fault::NoCopies, beams.clone()),
        (Fault::KeepLosers, beams),
        (Fault::AnyRole, again.clone()),
        (Fault::LateStates, again.clone()),
        (Fault::ShortWindow, again),
    ];
    for (fault, acts) in all {
        play(24, settings.clone(), &acts, Fault::None);
        let play = || play(24, settings.clone(), &acts, fault);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        assert!(caught.is_err(), "{fault:?}");
    }
}

/// 64 requests in decode and some in prefill, on 4,096 pages.
#[test]
fn a_round_of_many_takes_little_time() {
    let settings = Settings {
        sequences: 64,
        rows: 512,
        most_rows: 512,
        outputs: 100,
        prefill_budget: Duration::from_millis(100),
        balance: 1000.0,
        prefixes: true,
        reuse_generated: false,
        whole: false,
    };
    let mut world = World::new(4096, settings, Fault::None);
    for i in 0..80 {
        let prompt = (0..500).map(|p| (p * (i + 1)) % 7).collect();
        world.add(Asked {
            prompt,
            n: 400,
            salt: None,
            wants_all: false,
            beams: 1,
        });
    }
    for _ in 0..200 {
        world.round();
    }
    let (mut total, mut rounds) = (Duration::ZERO, 0u32);
    for _ in 0..50 {
        let start = Instant::now();
        let generated = world.scheduler.decodes(&mut world.kv_cache);
        total += start.elapsed();
        world.compute(Phase::Decode, &generated);
        let start = Instant::now();
        let prompts = world.scheduler.prefills(&mut world.kv_cache);
        total += start.elapsed();
        world.compute(Phase::Prefill, &prompts);
        rounds += 1;
    }
    let each = total / rounds;
    println!("{each:?} a round");
    // the aim is 50 microseconds on an idle machine; this only catches another order of growth
    assert!(each < Duration::from_millis(2), "{each:?} a round");
}

/// Computes a plan in this much time, without contents.
fn take(
    scheduler: &mut Scheduler,
    kv_cache: &mut KvCacheManager,
    (phase, time): (Phase, Duration),
) -> (usize, usize) {
    let plan = match phase {
        Phase::Decode => scheduler.decodes(kv_cache),
        Phase::Prefill => scheduler.prefills(kv_cache),
    };
    let mut at = 0;
    for (sequence, chunk) in scheduler.planned(&plan).into_iter().zip(&plan.chunks) {
        let next = sequence.next_tokens(chunk.n);
        let (cached, kv) = (next.before, next.kv);
        at = cached.len();
        kv.advance(at + chunk.n);
    }
    scheduler.took(kv_cache, phase, &plan, time);
    (at, plan.chunks.iter().map(|chunk| chunk.n).sum())
}

/// Beside a text in decode, on a machine so slow that no chunk of a prompt meets the target.
#[test]
fn pieces_of_prompts_are_short_only_where_attention_makes_their_time() {
    let settings = Settings {
        sequences: 2,
        rows: 512,
        most_rows: 512,
        outputs: 512,
        prefill_budget: Duration::from_millis(100),
        balance: 1000.0,
        prefixes: false,
        reuse_generated: false,
        whole: false,
    };
    let mut kv_cache = KvCacheManager::new(&[None], 1000);
    let mut scheduler = Scheduler::new(settings);
    let slow = (Phase::Prefill, Duration::from_secs(1));
    scheduler.add(Sequence::new(0, vec![1; 8], None, false));
    take(&mut scheduler, &mut kv_cache, slow);
    scheduler.add(Sequence::new(1, vec![1; 9000], None, false));
    let mut pieces = BTreeMap::new();
    loop {
        scheduler.push(0, 1);
        take(
            &mut scheduler,
            &mut kv_cache,
            (Phase::Decode, Duration::from_millis(10)),
        );
        let (at, n) = take(&mut scheduler, &mut kv_cache, slow);
        if at + n == 9000 {
            break;
        }
        pieces.insert(at, n);
    }
    let piece_at = |depth: usize| *pieces.range(depth..).next().expect("read in pieces").1;
    assert_eq!([0, 900, 8000].map(piece_at), [16, 8, 4]);
}
