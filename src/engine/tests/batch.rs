//! A batch on the built-in model: a text is the same whatever its neighbours.

use octavo_engine::sample::{Constraint, ConstraintError, SamplerConfig, TokenSet};
use octavo_engine::{
    Batch, BatchError, BatchOptions, BeamSearch, Engine, EngineOptions, Event, GenerationParams,
    ModelSource, Request, RequestId, Task,
};
use octavo_kernels::Phase;
use octavo_text::tokenizer::EncodeOptions;

fn engine(sessions: usize, batch: usize) -> Engine {
    let options = EngineOptions {
        sessions,
        batch: Some(batch),
        ctx: Some(96),
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("the built-in model")
}

const PROMPTS: [&str; 4] = [
    "1+1=",
    "What is the capital of France? The capital of France is",
    "The opposite of hot is",
    "2+",
];

fn options(seed: u64) -> GenerationParams {
    let sampler = if seed.is_multiple_of(2) {
        SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::default()
        }
    } else {
        SamplerConfig {
            temperature: 0.9,
            seed,
            ..SamplerConfig::default()
        }
    };
    GenerationParams {
        max_tokens: Some(12 + seed as usize),
        sampler,
        ..GenerationParams::default()
    }
}

fn ids(engine: &Engine, text: &str) -> Vec<u32> {
    let options = EncodeOptions::default();
    engine
        .tokenizer()
        .encode(text.as_bytes(), options)
        .expect("it fits")
}

/// Returns the text of each prompt alone.
fn alone() -> Vec<Vec<u32>> {
    let engine = engine(1, 512);
    (0..)
        .zip(PROMPTS)
        .map(|(seed, text)| {
            let prompt = ids(&engine, text);
            let mut session = engine.session();
            session
                .generate(&prompt, &options(seed), None, &mut |_: &str| {})
                .expect("it generates")
                .tokens
        })
        .collect()
}

#[test]
fn a_batch_says_what_each_says_alone() {
    let expected = alone();
    // prompts in one step, and a few tokens at a time beside requests that generate already
    for batch in [512, 3] {
        let engine = engine(PROMPTS.len(), batch);
        let mut together = Batch::new(&engine, BatchOptions::default());
        let mut tokens = vec![Vec::new(); PROMPTS.len()];
        let mut shown = vec![String::new(); PROMPTS.len()];
        for (seed, text) in (0..).zip(PROMPTS) {
            together
                .add(Request::new(&ids(&engine, text), &options(seed)))
                .expect("there is room");
            // the next request comes when the others are running
            together
                .step(&mut |id, event| note(id, event, &mut tokens, &mut shown))
                .expect("a step");
        }
        while !together.is_empty() {
            together
                .step(&mut |id, event| note(id, event, &mut tokens, &mut shown))
                .expect("a step");
        }
        assert_eq!(tokens, expected, "{batch} prompt tokens at a time");
    }
}

fn note(id: RequestId, event: Event, tokens: &mut [Vec<u32>], shown: &mut [String]) {
    let at = usize::try_from(id).expect("a few requests");
    match event {
        Event::Delta { delta, .. } => shown[at].push_str(&delta.text),
        Event::Finished { text, .. } => {
            assert_eq!(shown[at], text.text, "what was handed out, joined");
            tokens[at] = text.tokens;
        }
        Event::Failed(error) => panic!("{id}: {error}"),
        _ => {}
    }
}

#[test]
fn who_leaves_gives_its_pages_back() {
    let engine = engine(1, 512);
    for _ in 0..3 {
        let mut batch = Batch::new(&engine, BatchOptions::default());
        let id = batch
            .add(Request::new(&[5; 90], &options(0)))
            .expect("there is room");
        batch.step(&mut |_, _| {}).expect("a step");
        assert!(batch.abort(id));
        assert!(!batch.abort(id) && batch.is_empty());
        // all pages of the only session are needed again
        batch
            .add(Request::new(&[6; 90], &options(0)))
            .expect("there is room");
        let mut failed = false;
        batch
            .step(&mut |_, event| failed |= matches!(event, Event::Failed(_)))
            .expect("a step");
        assert!(!failed);
    }
}

#[test]
fn who_finds_no_pages_waits_for_them() {
    // two sequences, and pages for both; a session of the same engine takes the pages of one
    let engine = engine(2, 512);
    let mut session = engine.session();
    session
        .eval(&[5; 96], Phase::Prefill, octavo_engine::LogitsFor::None)
        .expect("there is room");
    let mut batch = Batch::new(&engine, BatchOptions::default());
    for first in [5, 6] {
        let prompt = [vec![first], vec![7; 69]].concat();
        let request = Request::new(&prompt, &options(0));
        batch.add(request).expect("it may wait");
    }
    let mut states = || {
        batch.step(&mut |_, _| {}).expect("a step");
        let requests = batch.snapshot().requests;
        let states = requests.iter().map(|request| request.state);
        states.collect::<Vec<_>>()
    };
    assert_eq!(states(), ["running", "waiting"]);
    drop(session);
    assert_eq!(states(), ["running", "running"]);
}

#[test]
fn who_finds_no_place_waits_and_no_more_wait_than_may() {
    let engine = engine(1, 512);
    let options_of_batch = BatchOptions {
        queue: 2,
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(&engine, options_of_batch);
    for _ in 0..2 {
        batch
            .add(Request::new(&[5, 6], &options(0)))
            .expect("it may wait");
    }
    assert!(matches!(
        batch.add(Request::new(&[5, 6], &options(0))),
        Err(BatchError::QueueFull { waiting: 2 })
    ));
    let mut ended = Vec::new();
    while !batch.is_empty() {
        let look = &mut |id, event| {
            if let Event::Finished { text, .. } = event {
                ended.push((id, text.tokens));
            }
        };
        batch.step(look).expect("a step");
    }
    assert_eq!(ended.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(ended[0].1, ended[1].1, "the same request says the same");
}

#[test]
fn who_is_told_of_an_event_may_use_the_engine() {
    let engine = engine(2, 512);
    let mut batch = Batch::new(&engine, BatchOptions::default());
    batch
        .add(Request::new(&[5, 6], &options(0)))
        .expect("there is room");
    let mut reported = 0;
    while !batch.is_empty() {
        let look = &mut |_, _| {
            reported += 1;
            let mut session = engine.session();
            session
                .eval(&[5], Phase::Prefill, octavo_engine::LogitsFor::Last)
                .expect("the device is free");
        };
        batch.step(look).expect("a step");
    }
    assert!(reported > 0);
}

/// Allows everything for this many tokens, and fails then.
#[derive(Debug)]
struct GivesUp(usize);

impl Constraint for GivesUp {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        match self.0 {
            0 => Err(ConstraintError("it gives up".to_owned())),
            _ => Ok(None),
        }
    }

    fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
        self.0 -= 1;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(GivesUp(self.0))
    }
}

#[test]
fn a_request_whose_texts_all_fail_in_one_step_fails_once() {
    let engine = engine(4, 512);
    let beams = Task::Beams(BeamSearch {
        width: 3,
        length_penalty: 1.0,
    });
    for task in [Task::Text, beams] {
        let mut batch = Batch::new(&engine, BatchOptions::default());
        let request = Request {
            n: 3,
            task,
            constraint: Some(Box::new(GivesUp(2))),
            ..Request::new(&[5, 6], &options(0))
        };
        let id = batch.add(request).expect("there is room");
        let mut failed = Vec::new();
        while !batch.is_empty() {
            let look = &mut |id, event| {
                if let Event::Failed(error) = event {
                    failed.push((id, error.to_string()));
                }
            };
            batch.step(look).expect("a step");
        }
        assert_eq!(failed, [(id, "constraint: it gives up".to_owned())]);
        assert_eq!(batch.snapshot().pages.used, 0);
    }
}
