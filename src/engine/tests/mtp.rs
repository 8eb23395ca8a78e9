//! MTP layers: their logits and hidden states against stock llama.cpp's, and texts
//! with the drafts that they make.

use std::collections::BTreeMap;

use octavo_engine::backend::{Phase, TapView};
use octavo_engine::sample::SamplerConfig;
use octavo_engine::{
    Batch, BatchOptions, Engine, EngineOptions, Event, GenerationParams, Lookup, ModelSource,
    Request, Totals,
};
use octavo_fixtures::{shared, shared_dir};
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_reference::golden::Mtp;
use octavo_reference::metrics::{nmse, top_k};

/// Error of F32 models against llama.cpp: rounding of both.
const NMSE: f64 = 1e-9;

/// Models with an MTP layer, the file that has the layer, and the folder of their goldens.
const MODELS: [(&str, &str, &str); 5] = [
    ("qwen35-mtp-F32", "qwen35-mtp-F32", "qwen35"),
    ("qwen35-mtp-F32", "mtp-qwen35-F32", "qwen35"),
    ("qwen35moe-mtp-F32", "qwen35moe-mtp-F32", "qwen35moe"),
    ("glm4moe-mtp-F32", "glm4moe-mtp-F32", "glm4moe"),
    ("deepseek2-mtp-F32", "deepseek2-mtp-F32", "deepseek2"),
];

pub(crate) const PROMPTS: [&str; 2] = ["fox", "sum"];

pub(crate) fn source(name: &str) -> Option<ModelSource> {
    shared(&format!("feat/mtp/models/{name}.gguf")).map(ModelSource::Path)
}

fn layer_of(source: &ModelSource) -> ModelSource {
    ModelSource::MtpLayer(Box::new(source.clone()))
}

pub(crate) fn options(isa: Isa) -> EngineOptions {
    EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(2),
        kv_type: KvType::F32.both(),
        keep_hidden: true,
        ..EngineOptions::default()
    }
}

pub(crate) fn load(source: &ModelSource, options: &EngineOptions) -> Engine {
    Engine::load(source, options, &mut |_| {}).expect("it loads")
}

/// Values of a pass by name: those of the final norm, and logits.
type Seen = BTreeMap<String, Vec<f32>>;

fn add(seen: &mut Seen, view: &TapView<'_>) {
    let rows = seen.entry(view.tap.to_string()).or_default();
    rows.extend_from_slice(view.data);
}

fn close(what: &str, got: &[f32], expected: &[f32]) {
    let error = nmse(got, expected).expect("as many values");
    assert!(error < NMSE, "{what}: NMSE {error:.2e}");
}

fn goldens(folder: &str) -> impl Iterator<Item = (&'static str, Mtp)> {
    PROMPTS.into_iter().filter_map(move |prompt| {
        let path = shared(&format!("feat/mtp/goldens/{folder}/{prompt}.safetensors"))?;
        Some((prompt, Mtp::read(&path).expect("a golden")))
    })
}

/// The rows before each token: zeros, then all but the last of these.
fn before(hidden: &[f32], width: usize) -> Vec<f32> {
    let zeros = vec![0.0; width];
    [&zeros, &hidden[..hidden.len() - width]].concat()
}

#[test]
fn layers_predict_as_llama_cpp_does() {
    for (_, file, folder) in MODELS {
        let Some(source) = source(file) else { return };
        for isa in Isa::available() {
            let engine = load(&layer_of(&source), &options(isa));
            for (prompt, golden) in goldens(folder) {
                let what = format!("{file}, {prompt}, {isa}");
                for phase in [Phase::Prefill, Phase::Decode] {
                    check_prompt(&format!("{what}, {phase:?}"), &engine, &golden, phase);
                }
                check_chain(&what, &engine, &golden);
            }
        }
    }
}

/// The layer at every position of a prompt: all at once, or one after the other.
fn check_prompt(what: &str, engine: &Engine, golden: &Mtp, phase: Phase) {
    let each = match phase {
        Phase::Prefill => golden.tokens.len(),
        Phase::Decode => 1,
    };
    let hidden = before(&golden.hidden, golden.width);
    let rows = hidden.chunks(each * golden.width);
    let (mut seen, mut session) = (Seen::new(), engine.session());
    for (ids, rows) in golden.tokens.chunks(each).zip(rows) {
        let mut see = |view: &TapView<'_>| add(&mut seen, view);
        let ended = session.mtp_with_taps(ids, rows, phase, &mut see);
        ended.expect("a step");
    }
    close(what, &seen["result_output"], &golden.logits);
    close(what, &seen["result_norm"], &golden.predicted);
}

/// A chain of draft tokens after the prompt.
fn check_chain(what: &str, engine: &Engine, golden: &Mtp) {
    let mut session = engine.session();
    let hidden = before(&golden.hidden, golden.width);
    let (ids, mut no) = (&golden.tokens, |_: &TapView<'_>| {});
    let ended = session.mtp_with_taps(ids, &hidden, Phase::Prefill, &mut no);
    ended.expect("a step");
    let mut hidden = golden.hidden[golden.hidden.len() - golden.width..].to_vec();
    for (i, expected) in golden.chain_logits.chunks(golden.n_vocab).enumerate() {
        let mut seen = Seen::new();
        let mut see = |view: &TapView<'_>| add(&mut seen, view);
        let id = &golden.chain[i..=i];
        let ended = session.mtp_with_taps(id, &hidden, Phase::Decode, &mut see);
        ended.expect("a step");
        let logits = &seen["result_output"];
        close(&format!("{what}, draft {i}"), logits, expected);
        assert_eq!(top_k(logits, 1), [golden.chain[i + 1]], "{what}, draft {i}");
        hidden = seen.remove("result_norm").expect("rows");
    }
}

#[test]
fn models_keep_their_hidden_states() {
    for (file, _, folder) in MODELS {
        let Some(source) = source(file) else { return };
        for isa in Isa::available() {
            let plain = EngineOptions {
                keep_hidden: false,
                ..options(isa)
            };
            let engines = [load(&source, &options(isa)), load(&source, &plain)];
            for (prompt, golden) in goldens(folder) {
                let [kept, plain] = engines.each_ref().map(|engine| {
                    let mut seen = Seen::new();
                    let mut see = |view: &TapView<'_>| add(&mut seen, view);
                    engine
                        .run_with_taps(&golden.tokens, &mut see)
                        .expect("a step");
                    seen
                });
                let what = format!("{file}, {prompt}, {isa}");
                close(&what, &kept["h_nextn"], &golden.hidden);
                assert!(kept["result_norm"] == plain["result_norm"], "{what}");
                assert!(kept["result_output"] == plain["result_output"], "{what}");
            }
        }
    }
}

/// Texts of a model and what drafts for it, if anything, each request alone or all together.
pub(crate) fn texts(
    source: &ModelSource,
    drafts: Option<&ModelSource>,
    draft_max: Option<usize>,
    places: usize,
    prompts: &[Vec<u32>],
) -> (Vec<Vec<u32>>, Totals) {
    let options = EngineOptions {
        keep_hidden: drafts.is_some(),
        sessions: places,
        ctx: Some(192),
        batch: Some(24),
        ..options(Isa::best())
    };
    let engine = load(source, &options);
    if let Some(drafts) = drafts {
        let drafts = load(drafts, &options);
        engine.set_draft_model(drafts).expect("its own");
    }
    let mut batch = Batch::new(&engine, BatchOptions::default());
    let mut said = BTreeMap::new();
    for (i, prompt) in prompts.iter().enumerate() {
        let params = GenerationParams {
            max_tokens: Some(40),
            ignore_eos: true,
            lookup: Lookup::Off,
            draft_max,
            sampler: SamplerConfig {
                temperature: if i % 3 == 2 { 0.8 } else { 0.0 },
                seed: i as u64,
                ..SamplerConfig::default()
            },
            ..GenerationParams::default()
        };
        let request = Request {
            n: 1 + i % 2,
            ..Request::new(prompt, &params)
        };
        batch.add(request).expect("it fits");
        let waits = if places == 1 { 0 } else { 6 };
        while batch.len() > waits {
            step(&mut batch, &mut said);
        }
    }
    while !batch.is_empty() {
        step(&mut batch, &mut said);
    }
    (said.into_values().collect(), batch.snapshot().totals)
}

fn step(batch: &mut Batch, said: &mut BTreeMap<(u64, usize), Vec<u32>>) {
    let mut sink = |id, event| match event {
        Event::Finished { choice, text, .. } => {
            said.insert((id, choice), text.tokens);
        }
        Event::Failed(error) => panic!("{error}"),
        _ => {}
    };
    batch.step(&mut sink).expect("a step");
}

/// Prompts with common beginnings, longer and shorter than a batch and than what an MTP layer
/// lets wait, greedy and sampled, alone and beside others, from the prefix cache and after it.
#[test]
fn drafts_of_an_mtp_layer_change_nothing() {
    let prompts: Vec<Vec<u32>> = (0..20_u32)
        .map(|i| {
            let n = 3 + 7 * (i % 5) + 60 * (i % 2);
            (0..n).map(|t| 3 + (t * t + 11 * (i / 4)) % 250).collect()
        })
        .collect();
    for (file, layer, _) in MODELS {
        let Some((source, layer)) = source(file).zip(source(layer)) else {
            return;
        };
        let (expected, _) = texts(&source, None, None, 1, &prompts);
        for (places, n) in [(1, Some(3)), (4, Some(1)), (4, Some(8)), (3, None)] {
            let (got, totals) = texts(&source, Some(&layer_of(&layer)), n, places, &prompts);
            assert!(
                got == expected,
                "{file}: {places} places, {n:?} draft tokens"
            );
            let (drafted, accepted) = (totals.draft_tokens, totals.accepted_tokens);
            println!("{file}, {places} places, {n:?}: {accepted} of {drafted} accepted");
            assert!(n.is_none() || 0 < accepted && accepted < drafted, "{file}");
        }
    }
}

/// The requests of a golden, and what llama-server made of them.
#[derive(serde::Deserialize)]
pub(crate) struct Recorded {
    requests: Vec<serde_json::Value>,
    tokens: Vec<Vec<u32>>,
    pub(crate) modes: Vec<Mode>,
}

/// A run with drafts: options, and the counts of each request.
#[derive(serde::Deserialize)]
pub(crate) struct Mode {
    args: Vec<String>,
    drafted: Vec<usize>,
    accepted: Vec<usize>,
}

impl Recorded {
    pub(crate) fn read(folder: &str) -> Recorded {
        let path = shared(&format!("feat/mtp/goldens/{folder}/text.json")).expect("beside it");
        let recorded = std::fs::read(path).expect("it is there");
        serde_json::from_slice(&recorded).expect("its form")
    }

    /// Compares greedy texts of an engine with its draft model, and the counts of drafts.
    pub(crate) fn check(&self, file: &str, engine: &Engine, mode: &Mode) {
        let n: usize = mode
            .args
            .last()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        for (i, request) in self.requests.iter().enumerate() {
            if request["temperature"] != 0 {
                continue;
            }
            let params = GenerationParams {
                max_tokens: Some(self.tokens[i].len()),
                ignore_eos: true,
                lookup: Lookup::Off,
                draft_max: Some(n),
                ..GenerationParams::default()
            };
            let text = request["prompt"].as_str().expect("a text");
            let encoded = engine
                .tokenizer()
                .encode(text.as_bytes(), Default::default());
            let prompt = encoded.expect("a text");
            let mut session = engine.session();
            let out = session.generate(&prompt, &params, None, &mut |_: &str| {});
            let out = out.expect("a text");
            assert_eq!(out.tokens, self.tokens[i], "{file}, {n}: request {i}");
            let drafts = out.timing.drafts;
            let (drafted, accepted) = (mode.drafted[i], mode.accepted[i]);
            println!("{file}, {n}: {drafts:?}, llama.cpp {accepted} of {drafted}");
            assert!(
                drafts.accepted.abs_diff(accepted) <= 2,
                "{file}, {n}: {drafts:?}"
            );
            assert!(
                drafts.drafted.abs_diff(drafted) <= 2 * n,
                "{file}, {n}: {drafts:?}"
            );
        }
    }
}

/// Greedy texts are llama-server's, and about as many of the same number of draft tokens are
/// accepted: another rounding may decide another way between two tokens as likely.
#[test]
fn as_many_drafts_are_accepted_as_in_llama_cpp() {
    for (file, layer, folder) in MODELS {
        let Some((source, layer)) = source(file).zip(source(layer)) else {
            return;
        };
        let recorded = Recorded::read(folder);
        let options = options(Isa::best());
        for mode in &recorded.modes {
            let engine = load(&source, &options);
            let layer = load(&layer_of(&layer), &options);
            engine.set_draft_model(layer).expect("its own layer");
            recorded.check(file, &engine, mode);
        }
    }
}

/// A layer that cannot read a model's hidden states is refused, and so is a file without one.
#[test]
fn unfit_layers_are_refused() {
    let Some(path) = shared_dir() else { return };
    let small = source("qwen35-mtp-F32").expect("in the shared folder");
    let target = load(
        &small,
        &EngineOptions {
            keep_hidden: false,
            ..options(Isa::best())
        },
    );
    let layer = load(&layer_of(&small), &options(Isa::best()));
    let error = target.set_draft_model(layer).expect_err("it keeps nothing");
    let said = "a draft model for hidden states of 32 values, where";
    assert!(error.to_string().contains(said), "{error}");
    let llama = ModelSource::Path(path.join("arch/models/gemma2-Q8_0.gguf"));
    let error = Engine::load(&layer_of(&llama), &options(Isa::best()), &mut |_| {});
    let error = error.map(drop).expect_err("no such layer").to_string();
    assert!(
        error.contains("whose MTP layers are not supported"),
        "{error}"
    );
    let plain = ModelSource::Path(path.join("arch/models/deepseek2-lite-Q8_0.gguf"));
    let error = Engine::load(&layer_of(&plain), &options(Isa::best()), &mut |_| {});
    let error = error.map(drop).expect_err("no such layer").to_string();
    assert!(
        error.contains("a model of deepseek2 without MTP layers"),
        "{error}"
    );
}
