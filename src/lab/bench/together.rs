//! Sequences that generate together: all tokens of all of them count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use octavo_engine::sequence::Options;
use octavo_engine::{Batch, BatchOptions, Engine, Event, Request, RequestId};

use super::{Error, Test, prompt_tokens};

/// One repetition: how long it took, how many tokens were generated meanwhile, and which, one
/// sequence after the other. Fewer than all, where sequences end by themselves.
///
/// # Errors
/// [`enum@Error`].
pub(super) fn once(engine: &Engine, test: Test) -> Result<(Duration, usize, Vec<u32>), Error> {
    let prompt = test.depth + 1;
    let tokens = prompt_tokens(engine, test.sequences * prompt);
    let options = Options {
        chunk: engine.batch(),
        ..Options::default()
    };
    let mut batch = Batch::new(
        engine,
        BatchOptions {
            // prompts are read as fast as can be, and each of them from its beginning
            stall: Duration::from_secs(3600),
            prefixes: false,
            ..BatchOptions::default()
        },
    );
    let mut chosen = BTreeMap::new();
    for prompt in tokens.chunks_exact(prompt) {
        chosen.insert(batch.add(Request::new(prompt, &options))?, Vec::new());
    }
    // the prompt gives a first token, which is not measured
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
    // the first ones have gone on while the last ones' prompts were read
    let of_each = chosen
        .into_values()
        .flat_map(|tokens| tokens.into_iter().take(test.n));
    Ok((time, n, of_each.collect()))
}

/// Takes a step and notes the tokens that were chosen.
fn step(batch: &mut Batch, chosen: &mut BTreeMap<RequestId, Vec<u32>>) -> Result<(), Error> {
    let mut failed = None;
    batch.step(&mut |id, event| match event {
        Event::Delta { delta, .. } => chosen.entry(id).or_default().extend(delta.tokens),
        Event::Failed(error) => failed = Some(error),
        Event::Started { .. }
        | Event::Read { .. }
        | Event::Prompt(_)
        | Event::Finished { .. }
        | Event::Found { .. }
        | Event::Embedded { .. } => {}
    })?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
