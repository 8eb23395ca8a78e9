//! Sampled rows get their largest logits from the device, and draw the tokens that all logits give.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_engine::backend::{Backend, Phase, Step, StepSequence, cuda};
use octavo_engine::sample::{SamplerConfig, Stage};
use octavo_engine::{Engine, EngineOptions, GenerationParams, ModelSource, Observer};
use octavo_kernels::KvType;

use super::engine::Nobody;
use super::watched::Watched;
use super::{device, limits, prepare, small, text};

/// The largest logits, and the logits of some rows, are those of a step that returns all; captured
/// or not.
#[test]
fn candidates_are_the_largest_of_all_logits() {
    for graphs in [false, true] {
        let Some(device) = device() else { return };
        let limits = limits(20, 4, 40);
        let mut cuda = prepare(device, &small("qwen3"), KvType::F16, limits, graphs);
        let tokens = text(20);
        let pages: Vec<[u32; 1]> = (0..4).map(|s| [s]).collect();
        let tables: Vec<[&[u32]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
        for (phase, n) in [(Phase::Prefill, 2), (Phase::Decode, 1), (Phase::Decode, 3)] {
            for at in 0..4 {
                let length = if phase == Phase::Prefill { 5 } else { 1 };
                let one = |s: usize| StepSequence {
                    tokens: &tokens[s + at..s + at + length],
                    start: at,
                    tables: &tables[s],
                    outputs: length - 1..length,
                    ..StepSequence::default()
                };
                let seqs: Vec<StepSequence<'_>> = (0..n).map(one).collect();
                let (seqs, input) = (&seqs[..], &[][..]);
                let step = Step { phase, seqs, input };
                let whole = &[n - 1][..at % 2];
                let got = cuda.candidates(&step, whole).expect("it runs");
                assert_eq!(got.n, cuda.max_candidates(n));
                assert_eq!(got.best, cuda.argmax(&step).expect("it runs"));
                let logits = cuda.step(&step, None).expect("it runs");
                let rows: Vec<&[f32]> = logits.chunks_exact(logits.len() / n).collect();
                let of_whole: Vec<f32> = whole.iter().flat_map(|row| rows[*row]).copied().collect();
                assert!(got.outputs == of_whole, "{phase:?}, {n}, {at}");
                for (row, largest) in rows.iter().zip(got.largest.chunks_exact(got.n)) {
                    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
                    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                    assert_eq!(
                        all[..got.n],
                        *largest,
                        "{phase:?}, {n}, {at}, graphs {graphs}"
                    );
                }
            }
        }
    }
}

/// Loads the built-in model on a device under observation.
fn demo(watched: Watched) -> Engine {
    let options = EngineOptions {
        ctx: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::load_on(&ModelSource::Demo, &options, |gguf, model, limits| {
        let options = cuda::Options {
            kv_type: KvType::F16.both(),
            limits: *limits,
            graphs: true,
            check_pages: true,
            threads: 2,
        };
        let prepared = cuda::Cuda::prepare(watched, gguf, model, &options, &mut |_| {});
        Ok(Box::new(prepared?))
    });
    engine.expect("it loads")
}

fn generated(engine: &Engine, sampler: &SamplerConfig, logprobs: Option<usize>) -> Vec<u32> {
    let prompt = engine.tokenizer().encode(b"12+34=", Default::default());
    let options = GenerationParams {
        max_tokens: Some(12),
        sampler: sampler.clone(),
        logprobs,
        ..GenerationParams::default()
    };
    let mut nobody: Box<dyn Observer> = Box::new(Nobody);
    let mut session = engine.session();
    let prompt = prompt.expect("a text");
    let out = session.generate(&prompt, &options, None, &mut *nobody);
    out.expect("it runs").tokens
}

/// A seed draws the same tokens from candidates as from all logits, which log-probabilities need;
/// launches show which of the two were asked for.
#[test]
fn seeds_draw_the_same_tokens_from_candidates() {
    let Some(device) = device() else { return };
    let found: &'static AtomicUsize = Box::leak(Box::default());
    let mut watched = Watched::new(device);
    watched.all_candidates = Some(found);
    let engine = demo(watched);
    let chat = SamplerConfig {
        temperature: 1.3,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.02,
        ..SamplerConfig::default()
    };
    let warmest_first = SamplerConfig {
        order: vec![Stage::Temperature, Stage::TopK, Stage::TypicalP, Stage::Xtc],
        typical_p: 0.9,
        xtc_probability: 0.5,
        ..chat.clone()
    };
    let banned = SamplerConfig {
        logit_bias: vec![(5, f32::NEG_INFINITY), (17, f32::NEG_INFINITY)],
        ..chat.clone()
    };
    // penalties look at other tokens than the largest, and log-probabilities at all
    let penalised = SamplerConfig {
        repeat_penalty: 1.1,
        ..chat.clone()
    };
    generated(&engine, &penalised, None);
    generated(&engine, &chat, Some(0));
    assert_eq!(found.load(Ordering::Relaxed), 0, "all logits were needed");
    let mut texts = BTreeSet::new();
    for (i, config) in [&chat, &warmest_first, &banned].into_iter().enumerate() {
        for seed in 0..5 {
            let config = SamplerConfig {
                seed,
                ..config.clone()
            };
            let few = generated(&engine, &config, None);
            let all = generated(&engine, &config, Some(0));
            assert_eq!(few, all, "chain {i}, seed {seed}");
            texts.insert(few);
        }
    }
    assert!(
        found.load(Ordering::Relaxed) > 0,
        "no candidates were asked for"
    );
    assert!(texts.len() > 3, "{} texts", texts.len());
}
