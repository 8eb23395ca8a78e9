//! Gemma 4's assistant: logits and hidden states against stock llama.cpp's and the oracle's, texts
//! with its drafts, and models that it does not fit.

use std::collections::BTreeMap;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::{Phase, TapView};
use octavo_engine::{Engine, EngineOptions, GenerationParams, LogitsFor, Lookup, ModelSource};
use octavo_fixtures::shared;
use octavo_kernels::{Isa, KvType};
use octavo_reference::golden::Mtp;
use octavo_reference::metrics::{nmse, top_k};
use octavo_reference::{AssistantOracle, CachedRows, Oracle, Predicted};

use crate::mtp::{PROMPTS, Recorded, load, options, source, texts};

/// Error against the oracle, in F32: rounding, and GELU's polynomial.
const NMSE: f64 = 1e-9;
/// Error against llama.cpp, which rounds GELU's argument and value to 16 bits.
const NMSE_LLAMA_CPP: f64 = 1e-5;

fn model() -> Option<ModelSource> {
    source("gemma4-target-F32")
}

fn assistant() -> ModelSource {
    let target = model().expect("beside the assistant");
    ModelSource::Assistant {
        assistant: Box::new(source("gemma4-assistant-F32").expect("in the shared folder")),
        target: Box::new(target),
    }
}

fn golden(prompt: &str) -> Mtp {
    let path = shared(&format!("feat/mtp/goldens/gemma4/{prompt}.safetensors"));
    Mtp::read(&path.expect("in the shared folder")).expect("a golden")
}

fn open(name: &str) -> Gguf {
    let path = shared(&format!("feat/mtp/models/{name}.gguf")).expect("in the shared folder");
    Gguf::open(&path, &OpenOptions::default()).expect("a shared model")
}

/// Values of a pass of the oracle by name and layer.
type Seen = BTreeMap<(String, Option<usize>), Vec<f64>>;

fn pass(oracle: &Oracle<'_>, tokens: &[u32]) -> Seen {
    let mut seen = Seen::new();
    let mut see = |name: &str, layer: Option<usize>, _: usize, rows: &mut [f64]| {
        seen.insert((name.to_owned(), layer), rows.to_vec());
    };
    oracle.forward_tapped(tokens, &mut see).expect("a pass");
    seen
}

/// The oracle's results for all tokens of a prompt but the first, and for its drafts.
fn expected(golden: &Mtp) -> Vec<Predicted> {
    let (target, assistant) = (open("gemma4-target-F32"), open("gemma4-assistant-F32"));
    let target = Oracle::open(&target).expect("a model");
    let assistant = AssistantOracle::open(&assistant).expect("an assistant");
    let (n, width) = (golden.tokens.len(), golden.width);
    let embeddings =
        |tokens: &[u32]| pass(&target, tokens)[&("inp_scaled".to_owned(), None)].clone();
    let all = [&golden.tokens[..], &golden.chain].concat();
    let (seen, embeddings) = (pass(&target, &golden.tokens), embeddings(&all));
    let rows = |name: &str, layer: Option<usize>| &seen[&(name.to_owned(), layer)][..];
    let cached = [2, 3].map(|layer| CachedRows {
        keys: rows("Kcur_pos", Some(layer)),
        values: rows("Vcur_normed", Some(layer)),
    });
    // the engine is given these too: the model's own are nearer to the exact ones
    let hidden: Vec<f64> = golden.hidden.iter().map(|x| f64::from(*x)).collect();
    let row = |rows: &[f64], i: usize| rows[i * width..(i + 1) * width].to_vec();
    let predict = |i: usize, hidden: &[f64], position: usize| {
        let embedding = row(&embeddings, i);
        let predicted = assistant.predict((&embedding, hidden), position, cached);
        predicted.expect("a prediction")
    };
    let mut all: Vec<Predicted> = (1..n)
        .map(|i| predict(i, &row(&hidden, i - 1), i))
        .collect();
    let mut last = row(&hidden, n - 1);
    for i in 0..golden.chain.len() - 1 {
        all.push(predict(n + i, &last, n));
        last = all[all.len() - 1].hidden.clone();
    }
    all
}

fn close(what: &str, got: &[f32], expected: &[f64]) {
    let expected: Vec<f32> = expected.iter().map(|x| *x as f32).collect();
    let error = nmse(got, &expected).expect("as many values");
    assert!(error < NMSE, "{what}: NMSE {error:.2e}");
}

fn near(what: &str, got: &[f32], expected: &[f32]) {
    let error = nmse(got, expected).expect("as many values");
    assert!(
        error < NMSE_LLAMA_CPP,
        "{what}: NMSE against llama.cpp {error:.2e}"
    );
}

#[test]
fn assistants_predict_as_llama_cpp_does() {
    let Some(target) = model() else { return };
    let goldens = PROMPTS.map(|prompt| (prompt, golden(prompt)));
    let expected = goldens.each_ref().map(|(_, golden)| expected(golden));
    for isa in Isa::available() {
        let target = load(&target, &options(isa));
        let assistant = load(&assistant(), &options(isa));
        target
            .set_draft_model(assistant)
            .expect("its own assistant");
        for ((prompt, golden), expected) in goldens.iter().zip(&expected) {
            check(&format!("{prompt}, {isa}"), &target, golden, expected);
        }
    }
}

/// The assistant at every position of a prompt, and a chain of draft tokens after it.
fn check(what: &str, target: &Engine, golden: &Mtp, expected: &[Predicted]) {
    let assistant = target.draft_model().expect("it was set");
    let (n, width) = (golden.tokens.len(), golden.width);
    let mut session = target.session();
    let eval = |session: &mut octavo_engine::Session, i: usize| {
        let token = &golden.tokens[i..=i];
        let ended = session.eval(token, Phase::Prefill, LogitsFor::None);
        ended.expect("a step");
    };
    let (mut logits, mut hidden) = (Vec::new(), Vec::new());
    let mut predict = |session: &mut octavo_engine::Session, token: u32, before: &[f32]| {
        let mut seen = Vec::new();
        let mut see = |view: &TapView<'_>| {
            if view.tap.to_string() == "result_output" {
                seen.extend_from_slice(view.data);
            }
        };
        let next = session.assistant_with_taps(assistant, (token, before), &mut see);
        let next = next.expect("a step");
        logits.extend_from_slice(&seen);
        hidden.extend_from_slice(&next);
        (seen, next)
    };
    for i in 1..n {
        eval(&mut session, i - 1);
        let before = &golden.hidden[(i - 1) * width..i * width];
        predict(&mut session, golden.tokens[i], before);
    }
    eval(&mut session, n - 1);
    let mut before = golden.hidden[(n - 1) * width..].to_vec();
    for (i, pair) in golden.chain.windows(2).enumerate() {
        let seen;
        (seen, before) = predict(&mut session, pair[0], &before);
        assert_eq!(top_k(&seen, 1), [pair[1]], "{what}, draft {i}");
    }
    let all = |of: fn(&Predicted) -> &[f64]| -> Vec<f64> {
        expected
            .iter()
            .flat_map(|e| of(e).iter().copied())
            .collect()
    };
    close(what, &logits, &all(|e| &e.logits));
    close(what, &hidden, &all(|e| &e.hidden));
    let prompt = golden.logits.len();
    near(what, &logits[..prompt], &golden.logits);
    near(what, &logits[prompt..], &golden.chain_logits);
    near(what, &hidden[..golden.predicted.len()], &golden.predicted);
}

/// Prompts with common beginnings, longer and shorter than a batch and than a window, greedy and
/// sampled, alone and beside others, from the prefix cache and after it.
#[test]
fn drafts_of_an_assistant_change_nothing() {
    let Some(target) = model() else { return };
    let prompts: Vec<Vec<u32>> = (0..20_u32)
        .map(|i| {
            let n = 3 + 7 * (i % 5) + 60 * (i % 2);
            (0..n).map(|t| 3 + (t * t + 11 * (i / 4)) % 250).collect()
        })
        .collect();
    let (expected, _) = texts(&target, None, None, 1, &prompts);
    for (places, n) in [(1, Some(3)), (4, Some(1)), (4, Some(8)), (3, None)] {
        let (got, totals) = texts(&target, Some(&assistant()), n, places, &prompts);
        assert!(got == expected, "{places} places, {n:?} draft tokens");
        let (drafted, accepted) = (totals.draft_tokens, totals.accepted_tokens);
        println!("{places} places, {n:?}: {accepted} of {drafted} accepted");
        assert!(n.is_none() || 0 < accepted && accepted < drafted, "{n:?}");
    }
}

/// Greedy texts are llama-server's, and about as many of the same number of draft tokens are
/// accepted.
#[test]
fn as_many_drafts_of_an_assistant_are_accepted_as_in_llama_cpp() {
    let Some(target) = model() else { return };
    let recorded = Recorded::read("gemma4");
    for mode in &recorded.modes {
        let engine = load(&target, &options(Isa::best()));
        let drafts = load(&assistant(), &options(Isa::best()));
        engine.set_draft_model(drafts).expect("its own assistant");
        recorded.check("gemma4", &engine, mode);
    }
}

/// An assistant beside another model than its target, or one with another cache, is refused.
#[test]
fn unfit_targets_are_refused() {
    let Some(target) = model() else { return };
    let refused = |engine: &Engine, options: &EngineOptions| {
        let drafts = load(&assistant(), options);
        let refused = engine.set_draft_model(drafts).expect_err("it does not fit");
        refused.to_string()
    };
    let usual = options(Isa::best());
    let plain = EngineOptions {
        keep_hidden: false,
        ..usual.clone()
    };
    let line = refused(&load(&target, &plain), &usual);
    assert!(
        line.contains("for hidden states of 32 values, where"),
        "{line}"
    );
    let other = EngineOptions {
        kv_type: KvType::F16.both(),
        ..usual.clone()
    };
    let line = refused(&load(&target, &usual), &other);
    assert!(line.contains("caches of the same types"), "{line}");
    let alone = source("gemma4-assistant-F32").expect("in the shared folder");
    let line = Engine::load(&alone, &usual, &mut |_| {}).map(drop);
    let line = line.expect_err("it is of no use alone").to_string();
    assert!(
        line.contains("expected the model that it belongs to"),
        "{line}"
    );
    let params = GenerationParams {
        max_tokens: Some(4),
        lookup: Lookup::Off,
        draft_max: Some(2),
        ..GenerationParams::default()
    };
    // one token leaves nothing for a window of keys before it to hide
    let engine = load(&target, &usual);
    let drafts = load(&assistant(), &usual);
    engine.set_draft_model(drafts).expect("its own assistant");
    let out = engine
        .session()
        .generate(&[5], &params, None, &mut |_: &str| {});
    assert_eq!(out.expect("a text").tokens.len(), 4);
}
