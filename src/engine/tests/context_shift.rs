//! Context shift: a text that fills the context goes on as the model would from the tokens that are
//! left, whatever kind of layers it has and whatever runs beside.

use octavo_engine::{
    Batch, BatchOptions, ContextShift, Engine, EngineOptions, Event, FinishReason, Generation,
    GenerationParams, Lookup, ModelSource, Request, Timing,
};
use octavo_fixtures::{shared, workspace_root};

const N_CTX: usize = 48;
/// Several shifts of a context.
const LENGTH: usize = 120;

/// Returns models with attention to all positions, with windows, with recurrent layers, and with
/// latent heads.
fn models() -> Vec<ModelSource> {
    let names = [
        "gemma2-Q8_0",
        "qwen35-Q4_K_M",
        "mamba2-F32",
        "deepseek2-Q4_K_M",
    ];
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let committed = workspace_root().join("reference/models/rnd-llama-Q4_K_M.gguf");
    [ModelSource::Demo, ModelSource::Path(committed)]
        .into_iter()
        .chain(paths.into_iter().flatten().map(ModelSource::Path))
        .collect()
}

fn load(source: &ModelSource, options: EngineOptions) -> Engine {
    Engine::load(source, &options, &mut |_| {}).expect("it loads")
}

fn options() -> EngineOptions {
    EngineOptions {
        ctx: Some(N_CTX),
        threads: Some(2),
        ..EngineOptions::default()
    }
}

fn prompt(engine: &Engine, seed: usize) -> Vec<u32> {
    let n = engine.hparams().n_vocab();
    let token = |i: usize| u32::try_from((i * i * 7919 + 11 * seed + 3) % n).expect("an id");
    (1..15 + seed).map(token).collect()
}

fn params(shift: Option<ContextShift>, max_tokens: usize) -> GenerationParams {
    GenerationParams {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        context_shift: shift,
        lookup: Lookup::Off,
        ..GenerationParams::default()
    }
}

fn generate(engine: &Engine, prompt: &[u32], params: &GenerationParams) -> Generation {
    let generated = engine
        .session()
        .generate(prompt, params, None, &mut |_: &str| {});
    generated.expect("it generates")
}

/// Returns the text by its definition: one that ends where the context does, and then others whose
/// prompts are what is left.
fn by_definition(engine: &Engine, prompt: &[u32], keep: usize) -> Vec<u32> {
    let has_bos = engine.tokenizer().is_special(prompt[0]);
    let (mut left, mut text) = (prompt.to_vec(), Vec::new());
    while text.len() < LENGTH {
        let out = generate(engine, &left, &params(None, LENGTH - text.len()));
        text.extend_from_slice(&out.tokens);
        if out.finish == FinishReason::ContextFull {
            left.extend_from_slice(&out.tokens);
            assert_eq!(left.len(), N_CTX + 1);
            let keep = keep + usize::from(has_bos);
            left.drain(keep..keep + (left.len() - keep) / 2);
        }
    }
    text
}

/// Runs requests together; returns the text of each, with its times and counts.
fn together(
    engine: &Engine,
    requests: &[(Vec<u32>, GenerationParams)],
) -> (Vec<(Vec<u32>, Timing)>, u64) {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let mut texts = vec![(Vec::new(), Timing::default()); requests.len()];
    let mut take = |id: u64, event| match event {
        Event::Finished { text, timing, .. } => texts[id as usize] = (text.tokens, timing),
        Event::Failed(error) => panic!("{id}: {error}"),
        _ => {}
    };
    for (prompt, params) in requests {
        batch.add(Request::new(prompt, params)).expect("room");
        batch.step(&mut take).expect("a step");
    }
    while !batch.is_empty() {
        batch.step(&mut take).expect("a step");
    }
    let totals = batch.snapshot().totals;
    assert_eq!(
        totals.discarded_tokens,
        texts
            .iter()
            .map(|(_, timing)| timing.discarded as u64)
            .sum::<u64>()
    );
    (texts, totals.preemptions)
}

#[test]
fn a_text_goes_on_from_the_tokens_that_are_left() {
    for source in models() {
        let engine = load(&source, options());
        let name = engine.gguf().name().to_owned();
        for keep in [0, 7] {
            let shift = ContextShift {
                keep: Some(keep),
                discard: None,
            };
            let prompt = prompt(&engine, 0);
            let expected = by_definition(&engine, &prompt, keep);
            let out = generate(&engine, &prompt, &params(Some(shift), LENGTH));
            assert_eq!(out.tokens, expected, "{name}, {keep} tokens kept");
            assert_eq!(out.finish, FinishReason::Length);
            let left = prompt.len() + LENGTH - out.timing.discarded;
            assert!(
                left <= N_CTX + 1 && out.timing.discarded > 2 * N_CTX / 3,
                "{name}: {left}"
            );
            assert!(out.timing.recomputed > 0);
            assert_eq!(out.timing.prompt_tokens, prompt.len());
        }
    }
}

#[test]
fn neighbours_pages_and_drafts_change_nothing() {
    for source in models() {
        let shift = ContextShift {
            keep: None,
            discard: Some(11),
        };
        let requests = |lookup: Lookup, engine: &Engine| -> Vec<(Vec<u32>, GenerationParams)> {
            let params = |seed: usize| GenerationParams {
                lookup,
                ..params(Some(shift), LENGTH - 5 * seed)
            };
            (0..4)
                .map(|seed| (prompt(engine, seed), params(seed)))
                .collect()
        };
        let alone = load(&source, options());
        let name = alone.gguf().name().to_owned();
        let expected: Vec<Vec<u32>> = requests(Lookup::Off, &alone)
            .iter()
            .map(|(prompt, params)| generate(&alone, prompt, params).tokens)
            .collect();
        for (lookup, batch, positions) in [
            (Lookup::Off, 512, 4 * N_CTX),
            (Lookup::On, 512, 4 * N_CTX),
            // too few pages: requests are preempted before and after shifts
            (Lookup::Off, 7, 2 * N_CTX),
            (Lookup::On, 512, 2 * N_CTX),
        ] {
            let engine = load(
                &source,
                EngineOptions {
                    sessions: 4,
                    batch: Some(batch),
                    kv_positions: Some(positions),
                    ..options()
                },
            );
            let (texts, preemptions) = together(&engine, &requests(lookup, &engine));
            let texts: Vec<Vec<u32>> = texts.into_iter().map(|(tokens, _)| tokens).collect();
            assert_eq!(
                texts, expected,
                "{name}: {lookup:?}, {batch} at a time, {positions}"
            );
            assert!(
                preemptions > 0 || positions == 4 * N_CTX,
                "{name}: nothing was preempted"
            );
        }
    }
}

#[test]
fn drafts_of_a_model_and_of_an_mtp_layer_change_nothing() {
    let Some(path) = shared("feat/mtp/models/qwen35-mtp-F32.gguf") else {
        return;
    };
    let source = ModelSource::Path(path);
    let options = EngineOptions {
        keep_hidden: true,
        ..options()
    };
    let layer = ModelSource::MtpLayer(Box::new(source.clone()));
    let alone = load(&source, options.clone());
    let prompt = prompt(&alone, 0);
    let params = GenerationParams {
        draft_max: Some(3),
        ..params(Some(ContextShift::default()), LENGTH)
    };
    let expected = generate(&alone, &prompt, &params);
    for draft in [&source, &layer] {
        let engine = load(&source, options.clone());
        let draft = load(draft, options.clone());
        engine.set_draft_model(draft).expect("the same vocabulary");
        let out = generate(&engine, &prompt, &params);
        assert_eq!(out.tokens, expected.tokens);
        assert_eq!(out.timing.discarded, expected.timing.discarded);
        let drafts = out.timing.drafts;
        assert!(drafts.drafted > LENGTH / 2, "{drafts:?}");
    }
}

#[test]
fn the_pages_of_a_session_hold_what_is_left() {
    let engine = load(&ModelSource::Demo, options());
    let mut session = engine.session();
    let prompt = prompt(&engine, 0);
    let params = params(Some(ContextShift::default()), LENGTH);
    let out = session
        .generate(&prompt, &params, None, &mut |_: &str| {})
        .expect("it generates");
    let all = [&prompt[..], &out.tokens].concat();
    let held = session.tokens().to_vec();
    assert!((1..=N_CTX).contains(&held.len()), "{}", held.len());
    // the last token chosen has no keys and values
    assert!(all[..all.len() - 1].ends_with(&held[held.len() / 2..]));
    // another text continues on these pages, and shifts as well
    let again = session
        .generate(&held, &params, None, &mut |_: &str| {})
        .expect("it generates");
    assert_eq!(again.tokens.len(), LENGTH);
    assert!(again.timing.cached >= held.len() - 1 && again.timing.discarded > N_CTX / 3);
}
