//! Texts with images in a batch: the same bits whatever their neighbours are, however prompts are
//! cut, what the prefix cache holds, and who is preempted.

use std::time::Duration;

use octavo_engine::sample::SamplerConfig;
use octavo_engine::{
    Batch, BatchOptions, Delta, EncodedImage, Engine, EngineOptions, Event, GenerationParams,
    ImageHandle, ModelSource, Request, Totals,
};
use octavo_kernels::KvType;

use crate::support::{Family, Golden};
use crate::text::{images, prompt};
use octavo_kernels::Isa;

/// Cases in the order of their requests. Some come twice, so that their pages are cached; between
/// them are a text without images and one that begins with its image.
const CASES: [&str; 6] = ["two", "text", "one", "two", "first", "one"];

fn engine(family: &Family, options: EngineOptions) -> Engine {
    let path = family.text(family.golden("one"));
    let options = EngineOptions {
        threads: Some(2),
        kv_type: KvType::F32.both(),
        ctx: Some(160),
        ..options
    };
    let source = ModelSource::Path(path);
    Engine::load(&source, &options, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn params() -> GenerationParams {
    GenerationParams {
        max_tokens: Some(40),
        ignore_eos: true,
        logprobs: Some(2),
        sampler: SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::default()
        },
        ..GenerationParams::default()
    }
}

/// Returns the request of a case.
fn request(engine: &Engine, golden: &Golden, encoded: &[EncodedImage]) -> Request {
    let (_, ids) = prompt(engine, golden, encoded);
    let register = |image: &EncodedImage| engine.register(image.clone()).expect("made for it");
    let images: Vec<ImageHandle> = encoded.iter().map(register).collect();
    Request {
        images,
        ..Request::new(&ids, &params())
    }
}

/// Runs requests together, each added after as many steps as `apart`; returns what each says, with
/// its log-probabilities, and the totals of the batch.
fn say(engine: &Engine, requests: Vec<Request>, apart: usize) -> (Vec<String>, Totals) {
    let options = BatchOptions {
        // as little as possible of a prompt beside generated tokens
        prefill_budget: Duration::ZERO,
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(engine, options);
    let mut said = vec![Delta::default(); requests.len()];
    let mut note = |id: u64, event: Event| match event {
        Event::Delta { delta, .. } => said[id as usize].append(delta),
        Event::Failed(error) => panic!("{id}: {error}"),
        _ => {}
    };
    for request in requests {
        batch.add(request).expect("there is room");
        for _ in 0..apart {
            batch.step(&mut note).expect("a step");
        }
    }
    while !batch.is_empty() {
        batch.step(&mut note).expect("a step");
    }
    let totals = batch.snapshot().totals;
    let said = said
        .iter()
        .map(|all| format!("{:?} {:?}", all.tokens, all.logprobs));
    (said.collect(), totals)
}

#[test]
fn images_in_a_batch_say_what_they_say_alone() {
    let Some(families) = Family::all() else {
        return;
    };
    let (mut cached, mut preempted) = (0, 0);
    for family in &families {
        // models of other image sizes are not made for such batches
        if CASES
            .iter()
            .any(|case| family.goldens.iter().all(|g| g.name != *case))
        {
            continue;
        }
        let encoded: Vec<Vec<EncodedImage>> = CASES
            .iter()
            .map(|case| images(family, family.golden(case), Isa::best()))
            .collect();
        let requests = |engine: &Engine| -> Vec<Request> {
            let both = CASES.iter().zip(&encoded);
            both.map(|(case, images)| request(engine, family.golden(case), images))
                .collect()
        };
        let alone: Vec<String> = (0..CASES.len())
            .map(|i| {
                let engine = engine(family, EngineOptions::default());
                let request = requests(&engine).swap_remove(i);
                say(&engine, vec![request], 0).0.remove(0)
            })
            .collect();
        for (sessions, batch, kv_positions, apart) in [
            (6, 512, 1024, 1),
            (6, 7, 1024, 3),
            (4, 5, 208, 2),
            (6, 9, 256, 1),
            (2, 16, 512, 0),
        ] {
            let options = EngineOptions {
                sessions,
                batch: Some(batch),
                kv_positions: Some(kv_positions),
                ..EngineOptions::default()
            };
            let engine = engine(family, options);
            let (together, totals) = say(&engine, requests(&engine), apart);
            let what = format!("{}: {sessions} at once, {batch} at a time", family.model);
            for (case, (got, expected)) in CASES.iter().zip(together.iter().zip(&alone)) {
                assert_eq!(got, expected, "{what}: {case}");
            }
            cached += totals.cached_tokens;
            preempted += totals.preemptions;
        }
    }
    assert!(
        cached > 0 && preempted > 0,
        "{cached} cached, {preempted} preempted"
    );
}

/// A model in which images see themselves takes one that is longer than a step of text, and refuses
/// one that is longer than any step.
#[test]
fn long_images_are_computed_whole_or_refused() {
    let Some(family) = Family::named("gemma4-a") else {
        return;
    };
    let golden = family.golden("own-limits");
    let encoded = images(&family, golden, Isa::best());
    let options = EngineOptions {
        batch: Some(8),
        ..EngineOptions::default()
    };
    let engine = engine(&family, options);
    assert!(encoded[0].bidirectional && encoded[0].n_tokens() > engine.batch());
    let (_, totals) = say(&engine, vec![request(&engine, golden, &encoded)], 0);
    assert_eq!(totals.failed, 0);
    let mut long = encoded[0].clone();
    let times = 3000 / long.n_tokens();
    (long.nx, long.ny, long.rows) = (times * long.n_tokens(), 1, long.rows.repeat(times));
    let error = engine
        .register(long.clone())
        .expect_err("too long")
        .to_string();
    assert!(error.contains("attend to each other"), "{error}");
    long.bidirectional = false;
    engine.register(long).expect("one of a causal encoder");
}
