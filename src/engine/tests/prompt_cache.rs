//! The prefix cache on disk: another engine goes on from it with the same bits.

use std::path::Path;

use crate::scripted;
use octavo_engine::{
    Batch, BatchOptions, Engine, EngineOptions, Event, GenerationParams, ModelSource,
    PromptCacheOptions, PromptCacheStats, Request,
};
use octavo_fixtures::shared;
use octavo_kernels::{Isa, IsaChoice, KvType, KvTypes, PAGE_POSITIONS as PAGE};

fn options(dir: Option<&Path>, kv_type: KvTypes) -> EngineOptions {
    EngineOptions {
        ctx: Some(256),
        threads: Some(2),
        batch: Some(48),
        sessions: 3,
        kv_type,
        prompt_cache: dir.map(|dir| PromptCacheOptions {
            dir: dir.to_owned(),
            max_bytes: 1 << 30,
        }),
        ..EngineOptions::default()
    }
}

fn load(source: &ModelSource, options: &EngineOptions) -> Engine {
    Engine::load(source, options, &mut |_| {}).expect("the model loads")
}

/// Returns `n` tokens that depend on the vocabulary and on `seed`.
fn prompt(engine: &Engine, seed: usize, n: usize) -> Vec<u32> {
    let n_vocab = engine.hparams().n_vocab();
    let token = |i: usize| (i * i * 7919 + seed * 104_729 + 11) % n_vocab;
    (0..n).map(|i| token(i) as u32).collect()
}

/// Returns the generated tokens after a prompt, and how many tokens of it were cached.
fn generate(engine: &Engine, prompt: &[u32], salt: Option<&str>) -> (Vec<u32>, usize) {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let params = GenerationParams {
        max_tokens: Some(12),
        ignore_eos: true,
        ..GenerationParams::default()
    };
    let request = Request {
        salt: salt.map(str::to_owned),
        ..Request::new(prompt, &params)
    };
    batch.add(request).expect("there is room");
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while !batch.is_empty() {
        let mut note = |_, event| match event {
            Event::Started { cached: n, .. } => cached = n,
            Event::Finished { text, .. } => tokens = text.tokens,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        };
        batch.step(&mut note).expect("a step");
    }
    (tokens, cached)
}

fn stats(engine: &Engine) -> PromptCacheStats {
    let batch = Batch::new(engine, BatchOptions::default());
    batch.snapshot().disk.expect("a cache on disk")
}

/// Attention alone, sliding windows, sinks and experts, and three kinds of recurrent states; with
/// each type of the cache that a model takes.
#[test]
fn another_engine_goes_on_with_the_same_bits() {
    let names = [
        "gemma2-Q8_0",
        "gemma3-Q4_0",
        "gpt-oss-MXFP4_MOE",
        "qwen35-Q4_K_M",
        "mamba2-Q8_0",
        "lfm2-Q4_0",
        "falcon-h1-Q4_K_M",
        "deepseek2-Q4_K_M",
    ];
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let more = ["jamba-Q8_0", "rwkv7-Q8_0", "glm-dsa-Q8_0"];
    let more = more.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let paths = paths.into_iter().chain(more);
    let others = paths.flatten().map(ModelSource::Path);
    let sources = std::iter::once(ModelSource::Demo).chain(others);
    for (source, kv_type) in sources.flat_map(|source| {
        let types = [KvType::F16, KvType::Q8_0, KvType::Q4_0].map(KvType::both);
        types.map(move |kv_type| (source.clone(), kv_type))
    }) {
        let plain = options(None, kv_type);
        let Ok(without) = Engine::load(&source, &plain, &mut |_| {}) else {
            // its heads are too short for the codes
            assert_ne!(kv_type, KvType::F16.both(), "{source:?}");
            continue;
        };
        let dir = tempfile::tempdir().expect("a folder");
        let with = options(Some(dir.path()), kv_type);
        let long = prompt(&without, 1, 150);
        // the first 6 pages are common
        let mut branch = prompt(&without, 2, 150);
        branch[..6 * PAGE + 3].copy_from_slice(&long[..6 * PAGE + 3]);
        let expected = [&long, &branch].map(|prompt| generate(&without, prompt, None).0);
        let first = load(&source, &with);
        assert_eq!(generate(&first, &long, None), (expected[0].clone(), 0));
        drop(first);
        for turn in 0..2 {
            let next = load(&source, &with);
            let (tokens, cached) = generate(&next, &long, None);
            assert_eq!(tokens, expected[0], "{source:?} {kv_type}");
            assert_eq!(cached, 9 * PAGE, "{source:?} {kv_type}");
            let (tokens, cached) = generate(&next, &branch, None);
            assert_eq!(tokens, expected[1], "{source:?} {kv_type}");
            // once it was computed, all of it is there; before, states of recurrent layers are
            // only at the end of the other text
            let is_recurrent = !next.model().graph.states.is_empty();
            let common = if is_recurrent { 0 } else { 6 };
            assert_eq!(cached, [common, 9][turn] * PAGE, "{source:?} {kv_type}");
            let stats = stats(&next);
            assert!(stats.restored_tokens >= 9 * PAGE as u64, "{stats:?}");
            assert_eq!((stats.damaged_files, stats.failures), (0, 0), "{stats:?}");
        }
    }
}

#[test]
fn other_models_types_instruction_sets_and_salts_share_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let f16 = KvType::F16.both();
    let first = load(&ModelSource::Demo, &options(Some(dir.path()), f16));
    let text = prompt(&first, 1, 100);
    let salted = Some("one");
    assert_eq!(generate(&first, &text, salted).1, 0);
    drop(first);
    let with = |kv_type| options(Some(dir.path()), kv_type);
    let isa = EngineOptions {
        isa: IsaChoice::Only(Isa::Scalar),
        ..with(f16)
    };
    let changed = ModelSource::Changed {
        source: Box::new(ModelSource::Demo),
        keys: vec![(".rope.freq_base".to_owned(), 5e5f32.into())],
    };
    for (source, options) in [
        (ModelSource::Demo, with(KvType::Q8_0.both())),
        (ModelSource::Demo, isa),
        (changed, with(f16)),
    ] {
        let other = load(&source, &options);
        assert_eq!(generate(&other, &text, salted).1, 0, "{options:?}");
    }
    let same = load(&ModelSource::Demo, &with(f16));
    assert_eq!(generate(&same, &text, None).1, 0);
    assert_eq!(generate(&same, &text, Some("two")).1, 0);
    assert_eq!(generate(&same, &text, salted).1, 6 * PAGE);
}

#[test]
fn two_engines_share_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = options(Some(dir.path()), KvType::F16.both());
    let [one, two] = [(); 2].map(|()| load(&ModelSource::Demo, &with));
    for seed in 0..4 {
        let text = prompt(&one, seed, 130);
        let (writes, reads) = if seed % 2 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        let before = stats(writes).saved_pages;
        let expected = generate(writes, &text, None).0;
        let start = std::time::Instant::now();
        while stats(writes).saved_pages == before {
            assert!(start.elapsed().as_secs() < 60, "{:?}", stats(writes));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(generate(reads, &text, None), (expected, 8 * PAGE));
    }
}

#[test]
fn the_folder_stays_within_its_size() {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes = || {
        let files = std::fs::read_dir(dir.path()).expect("a folder");
        let bytes = files.map(|file| file.and_then(|file| file.metadata()).map_or(0, |m| m.len()));
        bytes.sum::<u64>()
    };
    let mut with = options(Some(dir.path()), KvType::F16.both());
    let engine = load(&ModelSource::Demo, &with);
    generate(&engine, &prompt(&engine, 0, 100), None);
    drop(engine);
    let one = bytes();
    with.prompt_cache.as_mut().expect("a cache").max_bytes = 3 * one;
    for seed in 1..7 {
        let engine = load(&ModelSource::Demo, &with);
        generate(&engine, &prompt(&engine, seed, 100), None);
        drop(engine);
        assert!(bytes() <= 3 * one, "{} of {}", bytes(), 3 * one);
    }
    let engine = load(&ModelSource::Demo, &with);
    let cached = [5, 6, 1].map(|seed| generate(&engine, &prompt(&engine, seed, 100), None).1);
    assert_eq!(cached, [6 * PAGE, 6 * PAGE, 0]);
}

/// A file that changes in any of its parts changes no text.
#[test]
fn damaged_files_change_no_text() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = options(Some(dir.path()), KvType::Q8_0.both());
    let engine = load(&ModelSource::Demo, &with);
    let text = prompt(&engine, 1, 100);
    let expected = generate(&engine, &text, None).0;
    drop(engine);
    let files = || std::fs::read_dir(dir.path()).expect("a folder");
    let mut paths = files().map(|file| file.expect("a file").path());
    let file = paths.find(|path| path.extension() == Some("kv".as_ref()));
    let file = file.expect("a file of pages");
    let good = std::fs::read(&file).expect("it is readable");
    // head, digest, tokens, sizes, checksums; first, middle and last page; cut
    let places = [0, 8, 13, 20, 50, 90, 150, 170, 190, 1000];
    let pages = [2, 3, 5, 9].map(|part| good.len() * (part - 1) / part);
    for at in places.into_iter().chain(pages).chain([good.len() - 1]) {
        for is_cut in [false, true] {
            let mut bad = good.clone();
            bad[at] = !bad[at];
            if is_cut {
                bad.truncate(at);
            }
            std::fs::write(&file, bad).expect("it is writable");
            let engine = load(&ModelSource::Demo, &with);
            let (tokens, cached) = generate(&engine, &text, None);
            assert_eq!(tokens, expected, "byte {at}");
            // pages before the damaged one may be read
            assert!(cached < 6 * PAGE, "byte {at}: {cached}");
            drop(engine);
            let engine = load(&ModelSource::Demo, &with);
            assert_eq!(generate(&engine, &text, None), (expected.clone(), 6 * PAGE));
            drop(engine);
            files().for_each(|file| {
                std::fs::remove_file(file.expect("a file").path()).expect("it is removable");
            });
        }
    }
}

#[test]
fn what_is_evicted_from_memory_comes_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut with = options(Some(dir.path()), KvType::F16.both());
    // room for one text and a half
    with.kv_positions = Some(240);
    let engine = load(&ModelSource::Demo, &with);
    let texts = [1, 2, 3].map(|seed| prompt(&engine, seed, 150));
    let expected = [0, 1, 2].map(|i| generate(&engine, &texts[i], None).0);
    let start = std::time::Instant::now();
    while stats(&engine).saved_pages < 27 && start.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for (text, expected) in texts.iter().zip(expected) {
        assert_eq!(generate(&engine, text, None), (expected, 9 * PAGE));
    }
}

#[test]
fn a_device_with_a_memory_of_its_own_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = options(Some(dir.path()), KvType::F16.both());
    let behaviour = scripted::Behaviour::default();
    let loaded = scripted::load(
        &with,
        behaviour,
        |_| Vec::new(),
        &scripted::Calls::default(),
    );
    let error = loaded.err().expect("no page of it can be read");
    let expected = format!(
        "prompt cache {}: expected a model on the CPU in one process, got ",
        dir.path().display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}
