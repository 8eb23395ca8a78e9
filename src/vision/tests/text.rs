//! Compares text models with image input with llama.cpp's goldens.

use octavo_engine::backend::Phase;
use octavo_engine::backend::TapView;
use octavo_engine::{
    EncodedImage, Engine, EngineOptions, ImageHandle, LogitsFor, ModelSource, Session,
};
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_vision::{Encoder, prompt};

use crate::support::{Family, Golden, nmse};

fn engine(family: &Family, golden: &Golden, isa: Isa, threads: usize, batch: usize) -> Engine {
    let path = family.text(golden);
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(threads),
        kv_type: KvType::F32.both(),
        ctx: Some(512),
        batch: Some(batch),
        ..EngineOptions::default()
    };
    Engine::load(&ModelSource::Path(path), &options, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Encodes the images of a case with its vision encoder.
pub(crate) fn images(family: &Family, golden: &Golden, isa: Isa) -> Vec<EncodedImage> {
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(2),
        ..EngineOptions::default()
    };
    let gguf = family.tower(golden);
    let encoder = Encoder::load(&gguf, &options, 128, &mut |_| {});
    let mut encoder = encoder.unwrap_or_else(|e| panic!("{e}"));
    let prepared = golden.images(&encoder.tower().hparams);
    let mut digest = 0;
    let mut image = |prepared: &octavo_vision::pixels::Prepared| {
        digest += 1;
        encoder.image(prepared, [digest; 32]).expect("it runs")
    };
    prepared.iter().map(&mut image).collect()
}

/// Returns a session that holds the images, and the golden's prompt with their image tokens.
pub(crate) fn prompt(
    engine: &Engine,
    golden: &Golden,
    images: &[EncodedImage],
) -> (Session, Vec<u32>) {
    let mut session = engine.session();
    let register = |p: &EncodedImage| engine.register(p.clone()).expect("it is for this model");
    let shown: Vec<ImageHandle> = images.iter().map(register).collect();
    shown.iter().for_each(|shown| session.hold(shown));
    let mut cells = shown.iter().flat_map(ImageHandle::tokens);
    let ids = golden.integers("tokens").into_iter();
    let id = |id: i32| u32::try_from(id).unwrap_or_else(|_| cells.next().expect("as many cells"));
    let ids: Vec<u32> = ids.map(id).collect();
    assert_eq!(cells.next(), None, "cells left");
    (session, ids)
}

#[test]
fn logits_and_greedy_tokens_are_llama_cpps() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut generated = 0;
    for family in &families {
        for golden in &family.goldens {
            let Some(theirs) = golden.floats("logits") else {
                continue;
            };
            for isa in Isa::available() {
                let what = format!("{} {}, {isa}", family.model, golden.name);
                let engine = engine(family, golden, isa, 2, 512);
                let images = images(family, golden, isa);
                let (mut session, ids) = prompt(&engine, golden, &images);
                let logits = session.eval(&ids, Phase::Prefill, LogitsFor::All);
                let logits = logits.unwrap_or_else(|e| panic!("{what}: {e}"));
                // some goldens have the last rows alone
                let last = &logits.data[logits.data.len() - theirs.len()..];
                let own = nmse(last, &theirs);
                let bound = match (&*golden.name, golden.facts["text"].as_str()) {
                    ("text", _) => family.bounds.text,
                    (_, Some("Q4_K_M")) => {
                        // against the exact model, our error must be at most a fifth of llama.cpp's
                        let exact = golden.floats("exact").expect("quantized");
                        let ours = nmse(&logits.data, &exact);
                        let theirs = nmse(&theirs, &exact);
                        println!("{what}: {ours:e} from exact, llama.cpp {theirs:e}");
                        assert!(ours <= theirs / 5.0, "{what}: {ours:e}, theirs {theirs:e}");
                        f64::INFINITY
                    }
                    _ => family.bounds.logits,
                };
                println!("{what}: {own:e}");
                assert!(own <= bound, "{what}: {own:e}");
                generated += greedy(&mut session, golden, &logits.data, &what);
            }
        }
    }
    assert_eq!(generated, 324 * Isa::available().len(), "generated tokens");
}

/// Continues greedily as the golden did; returns its number of tokens.
fn greedy(session: &mut Session, golden: &Golden, logits: &[f32], what: &str) -> usize {
    let n_vocab = session.engine().hparams().n_vocab();
    let largest = |row: &[f32]| {
        let at = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        at.expect("a vocabulary") as i32
    };
    let mut next = largest(&logits[logits.len() - n_vocab..]);
    let generated = golden.integers("generated");
    for (i, expected) in generated.iter().copied().enumerate() {
        assert_eq!(next, expected, "{what}: generated token {i}");
        let row = session.eval(&[next as u32], Phase::Decode, LogitsFor::Last);
        next = largest(&row.expect("there is room").data);
    }
    generated.len()
}

/// The tokens of a prompt: its text, and what the vision encoder puts around and between rows.
#[test]
fn prompts_are_llama_cpps() {
    let Some(families) = Family::all() else {
        return;
    };
    for family in &families {
        for golden in &family.goldens {
            let what = format!("{} {}", family.model, golden.name);
            let engine = engine(family, golden, Isa::best(), 1, 64);
            let register = |image| engine.register(image).expect("it is for this model");
            let shown = images(family, golden, Isa::best())
                .into_iter()
                .map(register);
            let shown: Vec<ImageHandle> = shown.collect();
            let text = golden.facts["prompt"].as_str().expect("a text").as_bytes();
            let ids = prompt::tokens(engine.tokenizer(), text, prompt::MARKER, &shown);
            let id = |id: u32| i32::try_from(id).unwrap_or(-1);
            let ids: Vec<i32> = ids.expect("as many markers").into_iter().map(id).collect();
            assert_eq!(ids, golden.integers("tokens"), "{what}");
        }
    }
}

#[test]
fn cuts_batches_and_threads_change_no_bit() {
    let Some(families) = Family::all() else {
        return;
    };
    for family in &families {
        let golden = family.golden("two");
        let images = images(family, golden, Isa::best());
        for isa in Isa::available() {
            let mut expected: Option<Vec<f32>> = None;
            for (threads, batch) in [(1, 512), (2, 5), (3, 17), (2, 1)] {
                let engine = engine(family, golden, isa, threads, batch);
                let (mut session, ids) = prompt(&engine, golden, &images);
                let got = session.eval(&ids, Phase::Prefill, LogitsFor::All);
                let got = got.expect("it runs").data;
                let expected = expected.get_or_insert_with(|| got.clone());
                assert!(
                    got == *expected,
                    "{isa}: {threads} threads, {batch} at a time"
                );
            }
        }
    }
}

#[test]
fn images_go_whole_and_come_back() {
    let Some(family) = Family::named("vl-a") else {
        return;
    };
    let golden = family.golden("two");
    let images = images(&family, golden, Isa::best());
    let engine = engine(&family, golden, Isa::best(), 2, 16);
    let (mut session, ids) = prompt(&engine, golden, &images);
    let expected = session
        .eval(&ids, Phase::Prefill, LogitsFor::Last)
        .expect("it runs");
    // 11 text tokens, 24 image tokens, 6 text, 8 image, 21 text
    for (to, left) in [
        (60, 60),
        (49, 49),
        (48, 41),
        (42, 41),
        (41, 41),
        (35, 35),
        (20, 11),
        (11, 11),
    ] {
        assert_eq!(session.truncate(to), left, "to {to}");
        let got = session.eval(&ids[left..], Phase::Prefill, LogitsFor::Last);
        assert_eq!(got.expect("it runs"), expected, "from {left} on");
    }
    // a session that does not hold an image cannot use its tokens
    let mut other = engine.session();
    let error = other
        .eval(&ids, Phase::Prefill, LogitsFor::Last)
        .expect_err("not its image");
    assert!(
        error.to_string().contains("expected a token of an image"),
        "{error}"
    );
}

#[test]
fn rows_that_layers_gain_are_llama_cpps() {
    let Some(families) = Family::all() else {
        return;
    };
    let mut compared = 0;
    for family in &families {
        // Qwen 2.5 VL adds nothing to layers, and has no such golden
        let Some(golden) = family.goldens.iter().find(|g| g.has("text.")) else {
            continue;
        };
        let images = images(family, golden, Isa::best());
        let engine = engine(family, golden, Isa::best(), 2, 512);
        let (mut session, ids) = prompt(&engine, golden, &images);
        let mut look = |view: &TapView<'_>| {
            if let Some(expected) = golden.floats(&format!("text.{}", view.tap)) {
                let off = nmse(view.data, &expected);
                let what = format!("{} {}", family.model, view.tap);
                assert!(off <= family.bounds.logits, "{what}: {off:e}");
                compared += 1;
            }
        };
        let (phase, logits_for) = (Phase::Prefill, LogitsFor::All);
        session
            .eval_with(&ids, phase, logits_for, Some(&mut look), &mut |_, _| {})
            .expect("it runs");
    }
    assert_eq!(compared, 27, "named values of the goldens");
}

#[test]
fn images_for_other_models_are_refused() {
    let (Some(family), Some(other)) = (Family::named("vl-a"), Family::named("vl-q25")) else {
        return;
    };
    let golden = family.golden("one");
    let engine = engine(&other, &other.goldens[0], Isa::best(), 1, 64);
    let image = images(&family, golden, Isa::best()).remove(0);
    let error = engine
        .register(image)
        .expect_err("rows are wider")
        .to_string();
    assert!(error.contains("expected 256 for each token"), "{error}");
}
