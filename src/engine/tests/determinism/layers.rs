//! The same where recurrent states are kept, windows pass, and layers differ.

use octavo_engine::Lookup;
use octavo_fixtures::tiny::File;

use super::drafts::together;
use super::*;

/// A session goes back to a checkpoint of its state, and continues the same from there, also if the
/// tokens before it were computed in other steps.
#[test]
fn going_back_changes_nothing_where_states_are_kept() {
    let names = [
        "qwen35-Q4_K_M",
        "mamba2-F32",
        "lfm2-Q4_0",
        "granitehybrid-F32",
    ];
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let more = ["mamba-F32", "rwkv7-F32"];
    let more = more.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let paths = paths.into_iter().chain(more);
    for source in paths.flatten().map(ModelSource::Path) {
        let options = EngineOptions {
            ctx: Some(128),
            ..options(Isa::best(), 2, 40)
        };
        let engine = load(&source, &options);
        let all: Vec<u32> = (0..90).map(|i| (i * i + 3 * i + 7) % 200).collect();
        let expected = kv(&mut engine.session(), &all, GENERATED);
        let mut session = engine.session();
        kv(&mut session, &all[..61], GENERATED);
        for asked in [70, 61, 50, 17, 3] {
            let left = session.truncate(asked);
            assert!(
                left <= asked && left.is_multiple_of(PAGE),
                "{left} of {asked}"
            );
            assert!(
                asked - left < 40 + PAGE,
                "{left} of {asked}: it goes back too far"
            );
            let tokens = session.tokens().len();
            assert_eq!(tokens, left);
            if left > 61 {
                continue;
            }
            let rows = session
                .eval(&all[left..], Phase::Prefill, LogitsFor::All)
                .expect("logits");
            let bits: Vec<u32> = rows.data.iter().map(|x| x.to_bits()).collect();
            assert!(
                expected.1[left * rows.n_vocab..][..bits.len()] == bits,
                "from {left}"
            );
        }
    }
}

/// Layers with a window hold no more of a long text than the window and the distance that a session
/// can go back, and the text is the same whatever batches it is cut into.
#[test]
fn windows_give_pages_back_and_change_nothing() {
    /// Window of all models here, in positions.
    const WINDOW: usize = 24;
    /// Positions that a session can always go back, with windows or without.
    const BACK: usize = 64;
    for name in [
        "gemma3-F32",
        "gemma2-Q8_0",
        "gpt-oss-MXFP4_MOE",
        "gemma4-F32",
    ] {
        let Some(path) = shared(&format!("arch/models/{name}.gguf")) else {
            continue;
        };
        let source = ModelSource::Path(path);
        let run = |batch| {
            let options = EngineOptions {
                ctx: Some(512),
                ..options(Isa::best(), 2, batch)
            };
            let engine = load(&source, &options);
            let all: Vec<u32> = (0..300).map(|i| (i * i + 3 * i + 7) % 200).collect();
            let mut session = engine.session();
            let expected = kv(&mut session, &all, 100);
            let pages = session.pages();
            let passing = engine.hparams().caches.iter().map(|c| c.window.is_some());
            for (pages, passes) in pages.into_iter().zip(passing) {
                let most = if passes {
                    WINDOW + BACK + 2 * PAGE
                } else {
                    400
                };
                assert!(pages <= most.div_ceil(PAGE), "{name}: {pages} pages");
            }
            // a little way back it continues from there, and from far away it starts over
            for (asked, left) in [(340, 340), (100, 0)] {
                assert_eq!(session.truncate(asked), left, "{name}");
                let again = expected.0.iter().skip(left.saturating_sub(300));
                let first = again.clone().next().expect("a token");
                let rest = if left == 0 {
                    kv(&mut session, &all, 100).0
                } else {
                    let rest = 100 - (left - 300);
                    let mut said = vec![*first];
                    while said.len() < rest {
                        let last = &said[said.len() - 1..];
                        let next = session
                            .eval(last, Phase::Decode, LogitsFor::Last)
                            .expect("logits");
                        said.push(most_likely(&next.data));
                    }
                    said
                };
                assert!(again.eq(&rest), "{name}: from {left}");
            }
            expected
        };
        let expected = run(512);
        for batch in [1, 7, 40] {
            assert!(run(batch) == expected, "{name}: batch {batch}");
        }
    }
}

/// States are shared along with the pages of common prefixes, forked with the texts of one prompt,
/// and recomputed after a preemption. Pages behind windows are freed, and are needed again by texts
/// that continue from an earlier position.
#[test]
fn neighbours_and_few_pages_change_nothing_where_states_are_kept_or_windows_pass() {
    let names = [
        "qwen35-Q4_K_M",
        "falcon-h1-Q4_K_M",
        "lfm2moe-Q8_0",
        "mamba2-Q8_0",
        "gemma2-Q8_0",
        "gemma4-Q4_0",
        "gpt-oss-MXFP4_MOE",
    ];
    let common: Vec<u32> = (0..50).map(|i| (i * i + 3 * i + 7) % 200).collect();
    let tail = |i: u32| (0..5 + 9 * i).map(move |t| (t * (i + 2) + i) % 200);
    let prompts: Vec<(usize, Vec<u32>)> = (0..6)
        .map(|i| (i as usize, common.iter().copied().chain(tail(i)).collect()))
        .collect();
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let more = ["jamba-Q8_0", "mpt-F32", "rwkv7-Q8_0"];
    let more = more.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let paths = paths.into_iter().chain(more);
    for source in paths.flatten().map(ModelSource::Path) {
        let engine = |sessions, kv_positions| {
            let options = EngineOptions {
                sessions,
                kv_positions,
                ctx: Some(192),
                ..options(Isa::best(), 2, 48)
            };
            load(&source, &options)
        };
        let alone = |prompt| {
            together(
                &engine(1, None),
                std::slice::from_ref(prompt),
                1,
                Lookup::Off,
            )
            .0
        };
        let expected: Vec<Vec<u32>> = prompts.iter().flat_map(alone).collect();
        for (sessions, pages, lookup) in [
            (1, None, Lookup::Auto),
            (4, None, Lookup::Auto),
            // draft tokens end some texts in fewer steps, which can leave enough pages for the
            // others
            (4, Some(11), Lookup::Off),
            (4, Some(11), Lookup::Auto),
            (8, Some(26), Lookup::Auto),
        ] {
            let engine = engine(sessions, pages.map(|pages| pages * PAGE));
            let (got, totals) = together(&engine, &prompts, 2, lookup);
            let twice = [&expected[..], &expected[..]].concat();
            assert!(
                got == twice,
                "{source:?}: {sessions} places, {pages:?} pages"
            );
            assert!(totals.cached_tokens > 0, "{totals:?}");
            assert!(
                lookup != Lookup::Off || totals.preemptions > 0,
                "{totals:?}"
            );
        }
    }
}

#[test]
fn layers_with_other_key_heads_say_the_same() {
    let folder = tempfile::TempDir::new().expect("a folder");
    for arch in ["llama", "qwen2", "qwen3"] {
        let one = File::running(arch);
        let mut two = one.clone();
        two.repeat_key_heads(1, 2);
        let sources = [("one", one), ("two", two)].map(|(name, file)| {
            let path = folder.path().join(format!("{arch}-{name}.gguf"));
            std::fs::write(&path, file.bytes()).expect("written");
            ModelSource::Path(path)
        });
        for isa in Isa::available() {
            for (kv_type, batch) in [(KvType::F16.both(), 512), (KvType::F32.both(), 7)] {
                let [expected, got] = [0, 1].map(|i| {
                    let options = EngineOptions {
                        kv_type,
                        ctx: Some(96),
                        sessions: 2,
                        ..options(isa, 2, batch)
                    };
                    let engine = load(&sources[i], &options);
                    assert_eq!(engine.hparams().caches.len(), i + 1);
                    let prompt: Vec<u32> = (0..40).map(|i| (i * i + 3 * i + 7) % 200).collect();
                    let other: Vec<u32> = prompt.iter().map(|id| id + 1).collect();
                    let mut beside = engine.session();
                    kv(&mut beside, &other, 3);
                    kv(&mut engine.session(), &prompt, GENERATED)
                });
                assert!(expected == got, "{arch}, {isa}, {kv_type}, batch {batch}");
            }
        }
    }
}
