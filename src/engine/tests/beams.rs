//! Beam search on the built-in model, compared with one written from its definition: it computes
//! every text from the start, alone, and sorts all that could follow.

mod pages;

use octavo_engine::sample::SamplerConfig;
use octavo_engine::{
    Batch, BatchError, BatchOptions, BeamOutput, BeamSearch, Engine, EngineOptions, Event,
    LogitsFor, ModelSource, Request, RequestId, Task,
};
use octavo_engine::{FinishReason, GenerationParams, Text};
use octavo_kernels::Phase;
use octavo_text::tokenizer::EncodeOptions;
use std::collections::BTreeMap;
use std::time::Duration;

fn engine(options: EngineOptions) -> Engine {
    Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("the built-in model")
}

fn usual() -> EngineOptions {
    EngineOptions {
        sessions: 8,
        ctx: Some(96),
        threads: Some(2),
        ..EngineOptions::default()
    }
}

fn ids(engine: &Engine, text: &str) -> Vec<u32> {
    let tokenizer = engine.tokenizer();
    let tokens = tokenizer.encode(text.as_bytes(), EncodeOptions::default());
    tokens.expect("it fits")
}

const PROMPTS: [&str; 3] = [
    "1+1=",
    "What is the capital of France? The capital of France is",
    "The opposite of hot is",
];

fn search(
    prompt: &[u32],
    options: &GenerationParams,
    width: usize,
    length_penalty: f64,
) -> Request {
    Request {
        n: width,
        task: Task::Beams(BeamSearch {
            width,
            length_penalty,
        }),
        ..Request::new(prompt, options)
    }
}

/// Tokens of an unfinished text, and the sum of their log-probabilities.
type Beam = (Vec<u32>, f64);

/// The expected result of a search by definition: tokens, sums and scores.
struct Oracle<'a> {
    engine: &'a Engine,
    prompt: &'a [u32],
    options: &'a GenerationParams,
    width: usize,
    length_penalty: f64,
}

impl Oracle<'_> {
    /// Returns the log-probabilities of all tokens after a text.
    fn logprobs(&self, said: &[u32]) -> Vec<f64> {
        let mut session = self.engine.session();
        let read = session.eval(self.prompt, Phase::Prefill, LogitsFor::Last);
        let mut row = read.expect("it fits").data;
        if !said.is_empty() {
            let said = session.eval(said, Phase::Decode, LogitsFor::Last);
            row = said.expect("it fits").data;
        }
        let mut logits: Vec<f64> = row.iter().map(|&logit| f64::from(logit)).collect();
        for &(id, bias) in &self.options.sampler.logit_bias {
            logits[id as usize] += f64::from(bias);
        }
        let is_early = said.len() < self.options.min_tokens;
        let ends = self.engine.tokenizer().eog_ids().iter();
        let ends = ends.filter(|_| self.options.ignore_eos || is_early);
        let stops = self.options.stop_ids.iter().filter(|_| is_early);
        for &id in ends.chain(stops) {
            logits[id as usize] = f64::NEG_INFINITY;
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        logits.iter().map(|logit| logit - most - sum.ln()).collect()
    }

    /// Returns whether the last of these tokens ends a text.
    fn ends(&self, tokens: &[u32]) -> bool {
        let tokenizer = self.engine.tokenizer();
        let last = tokens.last().expect("a token");
        let text = String::from_utf8_lossy(&tokenizer.decode(tokens, false)).into_owned();
        tokenizer.eog_ids().contains(last)
            || self.options.stop_ids.contains(last)
            || self.options.stop.iter().any(|stop| text.contains(stop))
    }

    fn score(&self, (tokens, sum): &Beam) -> f64 {
        sum / (tokens.len() as f64).powf(self.length_penalty)
    }

    fn find(&self) -> Vec<(Vec<u32>, f64, f64)> {
        let mut live: Vec<Beam> = vec![(Vec::new(), 0.0)];
        let mut found: Vec<Beam> = Vec::new();
        let by_score = |a: &Beam, b: &Beam| self.score(b).total_cmp(&self.score(a));
        for step in 1.. {
            let mut all = Vec::new();
            for (said, sum) in &live {
                for (id, logprob) in (0u32..).zip(self.logprobs(said)) {
                    if logprob > f64::NEG_INFINITY {
                        all.push(([&said[..], &[id]].concat(), sum + logprob));
                    }
                }
            }
            // stable: equal ones stay in the order of their beams and tokens
            all.sort_by(|a, b| b.1.total_cmp(&a.1));
            let best = all.iter().take(self.width);
            found.extend(best.filter(|(tokens, _)| self.ends(tokens)).cloned());
            let others = all.into_iter().filter(|(tokens, _)| !self.ends(tokens));
            live = others.take(self.width).collect();
            if Some(step) == self.options.max_tokens {
                found.append(&mut live);
            }
            found.sort_by(by_score);
            found.truncate(self.width);
            let is_over = |best: &Beam| {
                found.len() == self.width && self.score(best) <= self.score(&found[self.width - 1])
            };
            if live.first().is_none_or(is_over) {
                break;
            }
        }
        let scored = found.into_iter();
        scored
            .map(|beam| {
                let score = self.score(&beam);
                (beam.0, beam.1, score)
            })
            .collect()
    }
}

/// Runs a batch to its end; returns the results of each of its requests.
fn run(batch: &mut Batch) -> BTreeMap<RequestId, (Vec<BeamOutput>, Vec<Text>)> {
    let mut all: BTreeMap<RequestId, (Vec<BeamOutput>, Vec<Text>)> = BTreeMap::new();
    while !batch.is_empty() {
        batch
            .step(&mut |id, event| note(id, event, &mut all))
            .expect("a step");
    }
    all
}

fn note(id: RequestId, event: Event, all: &mut BTreeMap<RequestId, (Vec<BeamOutput>, Vec<Text>)>) {
    let own = all.entry(id).or_default();
    match event {
        Event::Beams { texts, .. } => {
            assert!(own.0.is_empty() && !texts.is_empty(), "told once");
            own.0 = texts;
        }
        Event::Finished { text, .. } => own.1.push(text),
        Event::Failed(error) => panic!("{id}: {error}"),
        _ => {}
    }
}

fn alone(engine: &Engine, request: Request) -> Vec<BeamOutput> {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let id = batch.add(request).expect("there is room");
    run(&mut batch).remove(&id).expect("it ends").0
}

fn at_most(max_tokens: usize) -> GenerationParams {
    GenerationParams {
        max_tokens: Some(max_tokens),
        ..GenerationParams::default()
    }
}

#[test]
fn it_finds_what_its_definition_says() {
    let engine = engine(usual());
    let stops = ids(&engine, "e");
    let biased = SamplerConfig {
        logit_bias: vec![(stops[0], 4.0), (7, f32::NEG_INFINITY)],
        ..SamplerConfig::default()
    };
    let all = [
        at_most(10),
        GenerationParams {
            ignore_eos: true,
            ..at_most(7)
        },
        GenerationParams {
            min_tokens: 3,
            stop_ids: stops,
            ..at_most(8)
        },
        GenerationParams {
            stop: vec!["is".to_owned(), "a".to_owned()],
            sampler: biased,
            ..at_most(8)
        },
    ];
    let mut ended = 0;
    for (text, options) in PROMPTS
        .iter()
        .flat_map(|text| all.iter().map(move |o| (text, o)))
    {
        let prompt = ids(&engine, text);
        for (width, length_penalty) in [(1, 1.0), (2, 1.0), (4, 0.5), (4, -0.5), (3, 2.0)] {
            let oracle = Oracle {
                engine: &engine,
                prompt: &prompt,
                options,
                width,
                length_penalty,
            };
            let expected = oracle.find();
            let found = alone(&engine, search(&prompt, options, width, length_penalty));
            let what = format!("{text:?} {options:?} {width} {length_penalty}");
            let tokens = found.iter().map(|found| &found.text.tokens);
            let expected_tokens = expected.iter().map(|(tokens, ..)| tokens);
            assert!(
                tokens.eq(expected_tokens),
                "{what}: {found:?}, expected {expected:?}"
            );
            for (found, (_, sum, score)) in found.iter().zip(&expected) {
                // sums of at most ten values of a few bits' error each
                assert!((found.logprob - sum).abs() < 1e-10, "{what}");
                assert!((found.score - score).abs() < 1e-9, "{what}");
                ended += usize::from(found.text.finish == FinishReason::Stop);
            }
        }
    }
    assert!(ended > 20, "{ended} texts ended by themselves");
}

#[test]
fn one_beam_is_the_greedy_text() {
    let engine = engine(usual());
    let penalised = SamplerConfig {
        repeat_penalty: 1.5,
        ..SamplerConfig::default()
    };
    for sampler in [SamplerConfig::default(), penalised] {
        for text in PROMPTS {
            let options = GenerationParams {
                sampler: sampler.clone(),
                logprobs: Some(2),
                ..at_most(20)
            };
            let prompt = ids(&engine, text);
            let found = alone(&engine, search(&prompt, &options, 1, 1.0));
            let mut batch = Batch::new(&engine, BatchOptions::default());
            batch
                .add(Request::new(&prompt, &options))
                .expect("there is room");
            let greedy = run(&mut batch).remove(&0).expect("it ends").1;
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].text, greedy[0], "{text}");
        }
    }
}

#[test]
fn the_best_are_told_and_no_more_than_asked_for() {
    let engine = engine(usual());
    let prompt = ids(&engine, PROMPTS[2]);
    let all = alone(&engine, search(&prompt, &at_most(6), 4, 1.0));
    assert_eq!(all.len(), 4);
    assert!(all.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let two = Request {
        n: 2,
        ..search(&prompt, &at_most(6), 4, 1.0)
    };
    assert_eq!(alone(&engine, two), all[..2]);
    // sampling settings have no effect
    let drawn = GenerationParams {
        sampler: SamplerConfig {
            temperature: 1.5,
            seed: 9,
            top_k: 2,
            ..SamplerConfig::default()
        },
        ..at_most(6)
    };
    assert_eq!(alone(&engine, search(&prompt, &drawn, 4, 1.0)), all);
}

#[test]
fn what_cannot_be_is_refused() {
    let engine = engine(usual());
    let mut batch = Batch::new(&engine, BatchOptions::default());
    let mut refused = |width, n, length_penalty| {
        let request = Request {
            n,
            ..search(&[5, 6], &GenerationParams::default(), width, length_penalty)
        };
        batch.add(request).expect_err("it is refused")
    };
    assert!(matches!(
        refused(0, 1, 1.0),
        BatchError::Beams { width: 0, most: 8 }
    ));
    assert!(matches!(
        refused(9, 1, 1.0),
        BatchError::Beams { width: 9, most: 8 }
    ));
    assert!(matches!(
        refused(4, 5, 1.0),
        BatchError::Choices { n: 5, most: 4 }
    ));
    assert!(matches!(
        refused(4, 0, 1.0),
        BatchError::Choices { n: 0, most: 4 }
    ));
    let error = refused(4, 1, f64::NAN).to_string();
    assert_eq!(
        error,
        "length_penalty: expected a number from -10 to 10, got NaN"
    );
}
