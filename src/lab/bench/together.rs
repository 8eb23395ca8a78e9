//! Sequences that generate together: all tokens of all of them count.

use std::time::{Duration, Instant};

use octavo_engine::sequence::Options;
use octavo_engine::{Batch, Engine, Error as EngineError, Event};

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
    let mut batch = Batch::new(engine);
    let mut ids = Vec::new();
    for prompt in tokens.chunks_exact(prompt) {
        ids.push(batch.add(prompt, &options)?);
    }
    let mut chosen = vec![Vec::new(); ids.len()];
    let mut tick = |batch: &mut Batch| -> Result<(), EngineError> {
        batch.tick(&mut |id, event| {
            if let Event::Finished(text) = event {
                chosen[id] = text.tokens;
            }
        })
    };
    for _ in 0..test.prompt_ticks(engine.batch()) {
        tick(&mut batch)?;
    }
    let mut n = 0;
    let start = Instant::now();
    for _ in 0..test.n {
        n += batch.len();
        tick(&mut batch)?;
    }
    let time = start.elapsed();
    for id in ids {
        if let Some(text) = batch.cancel(id) {
            chosen[id] = text.tokens;
        }
    }
    Ok((time, n, chosen.concat()))
}
