//! Benchmark of sequences that generate together; the tokens of all of them count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use octavo_engine::GenerationParams;
use octavo_engine::{Batch, BatchOptions, Engine, Event, Request, RequestId};

use super::{Error, Test, prompt_tokens};

/// Runs one repetition; returns its duration, the number of tokens generated meanwhile, and the
/// tokens, sequence after sequence. These are fewer than asked if sequences end early.
///
/// # Errors
/// [`enum@Error`].
pub(super) fn once(engine: &Engine, test: Test) -> Result<(Duration, usize, Vec<u32>), Error> {
    let prompt = test.depth + 1;
    let tokens = prompt_tokens(engine, test.sequences * prompt);
    let options = GenerationParams::default();
    let mut batch = Batch::new(
        engine,
        BatchOptions {
            // prefill at full speed, and every prompt from its beginning
            prefill_budget: Duration::from_secs(3600),
            prefixes: false,
            ..BatchOptions::default()
        },
    );
    let mut chosen = BTreeMap::new();
    for prompt in tokens.chunks_exact(prompt) {
        chosen.insert(batch.add(Request::new(prompt, &options))?, Vec::new());
    }
    // the first token comes from prefill and is not measured
    while chosen.values().any(Vec::is_empty) {
        step(&mut batch, &mut chosen)?;
    }
    let count = |chosen: &BTreeMap<RequestId, Vec<u32>>| chosen.values().map(Vec::len).sum();
    let before: usize = count(&chosen);
    let start = Instant::now();
    for _ in 0..test.n {
        step(&mut batch, &mut chosen)?;
    }
    let time = start.elapsed();
    let n = count(&chosen) - before;
    // early sequences kept generating while the last ones' prompts were prefilled
    let of_each = chosen
        .into_values()
        .flat_map(|tokens| tokens.into_iter().take(test.n));
    Ok((time, n, of_each.collect()))
}

/// Runs a step and records the tokens chosen.
fn step(batch: &mut Batch, chosen: &mut BTreeMap<RequestId, Vec<u32>>) -> Result<(), Error> {
    let mut failed = None;
    batch.step(&mut |id, event| match event {
        Event::Delta { delta, .. } => chosen.entry(id).or_default().extend(delta.tokens),
        Event::Failed(error) => failed = Some(error),
        Event::Started { .. }
        | Event::Read { .. }
        | Event::Prompt(_)
        | Event::Finished { .. }
        | Event::Beams { .. }
        | Event::Embedded { .. } => {}
    })?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
