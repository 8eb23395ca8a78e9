//! Sequences with different adapters in one step: the same tokens and logits as each alone, and
//! nothing cached of one for another.

use octavo_engine::sample::Logprobs;
use octavo_engine::{
    Batch, BatchOptions, Engine, EngineOptions, Event, GenerationParams, Lookup, LoraFile,
    LoraScale, PromptCacheOptions, Request, RequestId,
};
use octavo_kernels::{Isa, PAGE_POSITIONS as PAGE};

use super::{Folder, load, options};

/// Files that fit one model, the last with an invocation.
const FILES: [&str; 4] = [
    "tiny-qwen3-all.gguf",
    "tiny-qwen3-some-F16.gguf",
    "tiny-qwen3-noalpha.gguf",
    "tiny-qwen3-alora.gguf",
];

/// The adapters of each of eight sequences.
const USED: [&[(usize, f32)]; 8] = [
    &[(0, 1.0)],
    &[],
    &[(1, 0.7), (2, 2.0)],
    &[(3, 1.0)],
    &[(0, 0.5)],
    &[(2, 1.0)],
    &[(0, -0.5), (1, 1.0), (2, 0.25), (3, 0.5)],
    &[(1, 1.0)],
];

fn adapted(folder: &Folder, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    adapted_of(folder, "tiny-qwen3-F32.gguf", &FILES, change)
}

fn adapted_of(
    folder: &Folder,
    base: &str,
    files: &[&str],
    change: impl FnOnce(&mut EngineOptions),
) -> Engine {
    let file = |name: &&str| LoraFile {
        path: folder.adapter(name),
        scale: 0.0,
    };
    let files: Vec<LoraFile> = files.iter().map(file).collect();
    let mut options = options(Isa::best(), &files);
    options.ctx = Some(160);
    change(&mut options);
    load(&folder.base(base), &options)
}

/// Returns prompts of different lengths, two of which contain the invocation tokens, for models
/// that have them.
fn prompt(i: usize) -> Vec<u32> {
    prompt_of(i, 1024)
}

fn prompt_of(i: usize, n_vocab: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..18 + 7 * i)
        .map(|t| ((t * t * 31 + i * 17 + 5) % 250) as u32)
        .collect();
    if n_vocab > 316 && [3, 6].contains(&i) {
        tokens[12..14].copy_from_slice(&[292, 316]);
    }
    tokens
}

fn scales(used: &[(usize, f32)]) -> Vec<LoraScale> {
    let scale = |&(id, scale): &(usize, f32)| LoraScale { id, scale };
    let none = LoraScale { id: 0, scale: 0.0 };
    let all = used.iter().map(scale);
    // an empty list would mean the defaults
    if used.is_empty() {
        vec![none]
    } else {
        all.collect()
    }
}

fn request(tokens: &[u32], used: &[(usize, f32)]) -> Request {
    let params = GenerationParams {
        max_tokens: Some(20),
        ignore_eos: true,
        logprobs: Some(3),
        ..GenerationParams::default()
    };
    Request {
        adapters: Some(scales(used)),
        ..Request::new(tokens, &params)
    }
}

/// The tokens of a text with the bits of their log-probabilities, and how many tokens of the
/// prompt were cached.
type Generated = (Vec<u32>, Vec<u64>, usize);

fn run(engine: &Engine, requests: Vec<Request>) -> Vec<Generated> {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let mut all: Vec<Generated> = vec![Generated::default(); requests.len()];
    let ids: Vec<RequestId> = requests
        .into_iter()
        .map(|request| batch.add(request).expect("there is room"))
        .collect();
    while !batch.is_empty() {
        let mut note = |id: RequestId, event| {
            let at = ids.iter().position(|own| *own == id).expect("a request");
            match event {
                Event::Started { cached, .. } => all[at].2 = cached,
                Event::Delta { delta, .. } => {
                    let bits = |of: &Logprobs| of.logprob.to_bits();
                    all[at].1.extend(delta.logprobs.iter().map(bits));
                }
                Event::Finished { text, .. } => all[at].0 = text.tokens,
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        };
        batch.step(&mut note).expect("a step");
    }
    all
}

fn check_neighbours(folder: &Folder, base: &str, files: &[&str], used: &[&[(usize, f32)]]) {
    let one = adapted_of(folder, base, files, |options| options.threads = Some(1));
    let prompt = |i| prompt_of(i, one.hparams().n_vocab());
    let alone: Vec<Generated> = (0..used.len())
        .map(|i| run(&one, vec![request(&prompt(i), used[i])]).remove(0))
        .collect();
    for (i, text) in alone.iter().enumerate() {
        assert!(text.0.len() == 20 && !text.1.is_empty(), "{base} {i}");
        let bare = run(&one, vec![request(&prompt(i), &[])]).remove(0);
        assert_eq!(
            bare.1 == text.1,
            used[i].is_empty(),
            "{base} {i}: an effect"
        );
    }
    for batch in [512, 16, 5] {
        let many = adapted_of(folder, base, files, |options| {
            options.sessions = used.len();
            options.batch = Some(batch);
        });
        let all = (0..used.len()).map(|i| request(&prompt(i), used[i]));
        let together = run(&many, all.collect());
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(alone.0, together.0, "{base} {i}, batch {batch}");
            assert_eq!(alone.1, together.1, "{base} {i}, batch {batch}");
        }
    }
}

#[test]
fn eight_sequences_with_four_adapters_are_as_each_alone() {
    let Some(folder) = Folder::open() else { return };
    check_neighbours(&folder, "tiny-qwen3-F32.gguf", &FILES, &USED);
    check_neighbours(&folder, "tiny-qwen3-Q8_0.gguf", &FILES, &USED);
}

#[test]
fn sequences_with_adapters_of_experts_are_as_each_alone() {
    let Some(folder) = Folder::open() else { return };
    let files = ["qwen3moe-experts.gguf", "qwen3moe-embd-output.gguf"];
    let used: [&[(usize, f32)]; 5] = [
        &[(0, 1.0)],
        &[],
        &[(1, 0.5)],
        &[(0, 0.5), (1, 1.0)],
        &[(0, 0.25)],
    ];
    check_neighbours(&folder, "qwen3moe-F32.gguf", &files, &used);
}

#[test]
fn a_row_without_adapters_has_the_bits_of_an_engine_without_them() {
    let Some(folder) = Folder::open() else { return };
    for base in ["tiny-qwen3-F32.gguf", "tiny-qwen3-Q8_0.gguf"] {
        let bare = adapted_of(&folder, base, &[], |_| {});
        let bare = run(&bare, vec![request(&prompt(1), &[])]).remove(0);
        let many = adapted_of(&folder, base, &FILES, |options| options.sessions = 8);
        let all = (0..8).map(|i| request(&prompt(i), USED[i]));
        let together = run(&many, all.collect());
        assert_eq!(
            (&bare.0, &bare.1),
            (&together[1].0, &together[1].1),
            "{base}"
        );
    }
}

#[test]
fn cached_prompts_are_of_the_same_adapters() {
    let Some(folder) = Folder::open() else { return };
    let engine = adapted(&folder, |options| options.sessions = 4);
    let tokens: Vec<u32> = (0..3 * PAGE + 5).map(|t| (t * 7 % 250) as u32).collect();
    let mut batch_of_all = Vec::new();
    for used in [&USED[0], &USED[4], &USED[2], &USED[1]] {
        batch_of_all.push(request(&tokens, used));
    }
    let first = run(&engine, batch_of_all);
    // one after another in a single batch, so that each could begin with what another has cached
    let again = |order: &[usize]| {
        let mut batch = Batch::new(&engine, BatchOptions::default());
        let mut found = Vec::new();
        for &i in order {
            let used = [USED[0], USED[4], USED[2], USED[1]][i];
            let id = batch.add(request(&tokens, used)).expect("there is room");
            let (mut text, mut cached) = (Vec::new(), 0);
            while !batch.is_empty() {
                let mut note = |_, event| match event {
                    Event::Started { cached: n, .. } => cached = n,
                    Event::Finished { text: done, .. } => text = done.tokens,
                    Event::Failed(error) => panic!("{id}: {error}"),
                    _ => {}
                };
                batch.step(&mut note).expect("a step");
            }
            assert_eq!(text, first[i].0, "{i}");
            found.push(cached);
        }
        found
    };
    assert_eq!(again(&[0, 1, 2, 3, 0, 3, 2, 1])[4..], [3 * PAGE; 4]);
    assert_eq!(first[0].2 + first[1].2 + first[2].2 + first[3].2, 0);
}

#[test]
fn pages_before_an_invocation_are_those_of_the_bare_model() {
    let Some(folder) = Folder::open() else { return };
    let mut tokens: Vec<u32> = (0..5 * PAGE).map(|t| (t * 7 % 250) as u32).collect();
    tokens[3 * PAGE + 2..3 * PAGE + 4].copy_from_slice(&[292, 316]);
    let cached = |one: &[(usize, f32)], other: &[(usize, f32)]| {
        let engine = adapted(&folder, |_| {});
        let mut batch = Batch::new(&engine, BatchOptions::default());
        let mut cached = Vec::new();
        for used in [one, other] {
            batch.add(request(&tokens, used)).expect("there is room");
            while !batch.is_empty() {
                let mut note = |_, event| {
                    if let Event::Started { cached: n, .. } = event {
                        cached.push(n);
                    }
                };
                batch.step(&mut note).expect("a step");
            }
        }
        cached
    };
    assert_eq!(cached(&[], &[(3, 1.0)]), [0, 3 * PAGE]);
    assert_eq!(cached(&[(3, 1.0)], &[]), [0, 3 * PAGE]);
    assert_eq!(cached(&[(3, 1.0)], &[(3, 0.5)]), [0, 3 * PAGE]);
    assert_eq!(cached(&[(3, 1.0)], &[(3, 1.0)]), [0, 5 * PAGE - PAGE]);
}

#[test]
fn prompts_on_disk_are_of_the_same_adapters() {
    let Some(folder) = Folder::open() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let cache = PromptCacheOptions {
        dir: dir.path().to_owned(),
        max_bytes: 1 << 30,
    };
    let engine = || {
        adapted(&folder, |options| {
            options.prompt_cache = Some(cache.clone())
        })
    };
    let tokens: Vec<u32> = (0..4 * PAGE + 3).map(|t| (t * 11 % 250) as u32).collect();
    let ask = |engine: &Engine, used| run(engine, vec![request(&tokens, used)]).remove(0);
    let first = ask(&engine(), USED[0]);
    assert_eq!(first.2, 0);
    assert_eq!(ask(&engine(), USED[4]).2, 0, "of another scale");
    assert_eq!(ask(&engine(), USED[1]).2, 0, "without adapters");
    let again = ask(&engine(), USED[0]);
    assert_eq!(again.2, 4 * PAGE);
    assert_eq!((again.0, again.1), (first.0, first.1));
}

#[test]
fn drafts_change_no_text() {
    let Some(folder) = Folder::open() else { return };
    let engine = adapted(&folder, |_| {});
    for (i, used) in [(0, USED[0]), (3, USED[3]), (6, USED[6])] {
        let mut with = request(&prompt(i), used);
        with.options.lookup = Lookup::On;
        with.options.max_tokens = Some(60);
        let mut without = request(&prompt(i), used);
        without.options.lookup = Lookup::Off;
        without.options.max_tokens = Some(60);
        let [with, without] = [with, without].map(|one| run(&engine, vec![one]).remove(0));
        assert_eq!((&with.0, &with.1), (&without.0, &without.1), "{i}");
    }
}
