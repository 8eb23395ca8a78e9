//! Continuations that are computed together: the logits of each text by itself, to the last bit.

use octavo_engine::backend::Phase;
use octavo_engine::{Choices, Engine, EngineOptions, Error, LogitsFor, ModelSource};
use octavo_fixtures::shared;

/// Returns tokens that differ by seed.
fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| 3 + (i * 7 + seed * 13) % 90)
        .collect()
}

/// Compares all rows with those of sessions of their own.
fn compare(source: &ModelSource, batch: usize, sessions: usize) {
    let options = EngineOptions {
        ctx: Some(128),
        batch: Some(batch),
        sessions,
        threads: Some(2),
        ..EngineOptions::default()
    };
    let engine = Engine::load(source, &options, &mut |_| {}).expect("loads");
    // prefixes that end inside and at the end of a page of 16, and tails that are empty
    let texts: Vec<(Vec<u32>, Vec<Vec<u32>>)> =
        [(1, [0, 1, 5]), (16, [3, 0, 40]), (37, [12, 16, 7])]
            .iter()
            .zip(0..)
            .map(|((prefix, tails), seed)| {
                let tails = tails
                    .iter()
                    .zip(1..)
                    .map(|(n, i)| tokens(*n, seed + i))
                    .collect();
                (tokens(*prefix, seed), tails)
            })
            .collect();
    let tails: Vec<Vec<&[u32]>> = texts
        .iter()
        .map(|(_, tails)| tails.iter().map(Vec::as_slice).collect())
        .collect();
    let choices: Vec<Choices<'_>> = texts
        .iter()
        .zip(&tails)
        .map(|((prefix, _), tails)| Choices { prefix, tails })
        .collect();
    let mut rows = Vec::new();
    engine
        .eval_choices(&choices, &|| false, &mut |some| {
            rows.extend(
                some.into_iter()
                    .map(|row| ((row.text, row.tail, row.token), row.logits.to_vec())),
            );
        })
        .expect("computed");
    let expected = texts
        .iter()
        .map(|(_, tails)| 1 + tails.iter().map(Vec::len).sum::<usize>());
    assert_eq!(rows.len(), expected.sum::<usize>());
    for ((text, tail, token), logits) in rows {
        let (prefix, tails) = &texts[text];
        let whole = match tail {
            Some(tail) => [&prefix[..], &tails[tail][..=token]].concat(),
            None => {
                assert_eq!(token, prefix.len() - 1);
                prefix.clone()
            }
        };
        let mut session = engine.session();
        let alone = session
            .eval(&whole, Phase::Prefill, LogitsFor::Last)
            .expect("computed");
        assert!(
            alone.row(0) == logits,
            "text {text}, {tail:?}, token {token}"
        );
    }
    // nothing is held any more
    let stopped = engine.eval_choices(&choices, &|| true, &mut |_| {});
    assert!(matches!(stopped, Err(Error::Stopped)));
    let mut session = engine.session();
    session
        .eval(&tokens(128, 9), Phase::Prefill, LogitsFor::None)
        .expect("all pages are free");
}

#[test]
fn rows_are_those_of_each_text_by_itself() {
    for (batch, sessions) in [(512, 16), (7, 3), (64, 4)] {
        compare(&ModelSource::Demo, batch, sessions);
    }
}

#[test]
fn rows_are_the_same_with_windows_and_recurrent_layers() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    for name in ["gemma3-F32.gguf", "qwen35-F32.gguf"] {
        compare(&ModelSource::Path(models.join(name)), 16, 8);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let options = EngineOptions {
        ctx: Some(32),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("loads");
    let long = tokens(20, 0);
    let refused = |prefix: &[u32], tail: &[u32]| {
        let one = Choices {
            prefix,
            tails: &[tail],
        };
        engine
            .eval_choices(&[one], &|| false, &mut |_| {})
            .unwrap_err()
    };
    assert!(matches!(
        refused(&long, &long),
        Error::Context {
            have: 20,
            new: 20,
            n_ctx: 32
        }
    ));
    assert!(matches!(
        refused(&long, &[9999]),
        Error::Token { id: 9999, .. }
    ));
}
