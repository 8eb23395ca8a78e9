//! The same with draft tokens, accepted or not.

use std::collections::BTreeMap;
use std::time::Duration;

use octavo_engine::GenerationParams;
use octavo_engine::Lookup;
use octavo_engine::{Batch, BatchOptions, Event, Request, Totals};

use super::*;

/// Returns the texts of every request, in order of the requests and their choices, and the counts.
pub(super) fn together(
    engine: &Engine,
    prompts: &[(usize, Vec<u32>)],
    rounds: usize,
    lookup: Lookup,
) -> (Vec<Vec<u32>>, Totals) {
    let options = BatchOptions {
        prefill_budget: Duration::from_millis(1),
        prefixes: rounds > 1,
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(engine, options);
    let mut said = BTreeMap::new();
    for _ in 0..rounds {
        for &(i, ref prompt) in prompts {
            let options = GenerationParams {
                max_tokens: Some(20 + i),
                ignore_eos: true,
                lookup,
                ..GenerationParams::default()
            };
            let request = Request {
                n: 1 + i % 2,
                ..Request::new(prompt, &options)
            };
            batch.add(request).expect("it fits");
        }
        while !batch.is_empty() {
            let mut sink = |id, event| match event {
                Event::Finished { choice, text, .. } => {
                    said.insert((id, choice), text.tokens);
                }
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            };
            batch.step(&mut sink).expect("a step");
        }
        while batch.has_finished_texts() {
            batch.warm_prefixes().expect("a step");
        }
    }
    (said.into_values().collect(), batch.snapshot().totals)
}

/// Texts that repeat themselves and others, alone and together, with and without room, with draft
/// tokens from lookup and from a draft model that is right now and then: the same model on another
/// cache.
#[test]
fn drafts_change_nothing() {
    let names = [
        "gemma2-Q8_0",
        "gpt-oss-MXFP4_MOE",
        "qwen35-Q4_K_M",
        "falcon-h1-Q4_K_M",
        "mamba2-Q8_0",
        "lfm2moe-Q8_0",
    ];
    let paths = names.map(|name| shared(&format!("arch/models/{name}.gguf")));
    let more = ["plamo2-Q8_0", "rwkv7-Q8_0"];
    let more = more.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let paths = paths.into_iter().chain(more);
    let others = paths.flatten().map(ModelSource::Path);
    let prompts: Vec<(usize, Vec<u32>)> = (0..5)
        .map(|i| {
            let period = 3 + 2 * i as u32;
            (
                i,
                (0..50 + 7 * i as u32)
                    .map(|t| 5 + (t % period) * (t % period))
                    .collect(),
            )
        })
        .collect();
    let (mut drafted, mut accepted, mut preempted) = (0, 0, 0);
    for source in committed_models().into_iter().chain(others) {
        let engine = |sessions, kv_positions, kv_type| {
            let options = EngineOptions {
                sessions,
                kv_positions,
                kv_type: KvType::both(kv_type),
                ctx: Some(128),
                ..options(Isa::best(), 2, 48)
            };
            load(&source, &options)
        };
        let alone = |prompt| {
            let engine = engine(1, None, KvType::F16);
            together(&engine, std::slice::from_ref(prompt), 1, Lookup::Off).0
        };
        let expected: Vec<Vec<u32>> = prompts.iter().flat_map(alone).collect();
        for (sessions, pages, has_draft) in [
            (1, None, false),
            (4, Some(12), false),
            (8, None, false),
            (3, None, true),
        ] {
            let batch = engine(sessions, pages.map(|pages| pages * PAGE), KvType::F16);
            if has_draft {
                let draft = engine(sessions, None, KvType::Bf16);
                batch.set_draft_model(draft).expect("the same vocabulary");
            }
            let (got, totals) = together(&batch, &prompts, 1, Lookup::On);
            assert!(
                got == expected,
                "{source:?}: {sessions} places, {pages:?} pages"
            );
            drafted += totals.draft_tokens;
            accepted += totals.accepted_tokens;
            preempted += totals.preemptions;
        }
    }
    println!("{accepted} of {drafted} draft tokens were accepted, {preempted} preemptions");
    assert!(0 < accepted && accepted < drafted && preempted > 0);
}
