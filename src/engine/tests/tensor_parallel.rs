//! Models on several ranks, which are threads of one process, and comparisons of their results.

use std::sync::Arc;
use std::thread;

use octavo_engine::backend::ranks::{Open, TensorParallelGroup, serve_on};
use octavo_engine::backend::{Phase, TapView};
use octavo_engine::sample::top_logits;
use octavo_engine::{Engine, EngineOptions, Error, LogitsFor, ModelSource};
use octavo_kernels::{Collective, Threads};

/// Returns the result of `run` on an engine of this many ranks; `open` is for ranks with GPUs.
pub(crate) fn on_ranks<T>(
    ranks: usize,
    source: &ModelSource,
    options: &EngineOptions,
    open: Open,
    run: impl FnOnce(Result<Engine, Error>) -> T,
) -> T {
    on_links(Threads::new(ranks), source, options, open, run)
}

/// As [`on_ranks`], for ranks that communicate over these links.
pub(crate) fn on_links<T>(
    links: Vec<impl Collective + 'static>,
    source: &ModelSource,
    options: &EngineOptions,
    open: Open,
    run: impl FnOnce(Result<Engine, Error>) -> T,
) -> T {
    let mut links = links.into_iter();
    let first = links.next().expect("rank 0");
    thread::scope(|scope| {
        for link in links {
            let link: Arc<dyn Collective> = Arc::new(link);
            scope.spawn(move || serve_on(&link, open));
        }
        let tp_group = TensorParallelGroup::on(Arc::new(first), open);
        let options = EngineOptions {
            tp_group: Some(tp_group.clone()),
            ..options.clone()
        };
        let result = run(Engine::load(source, &options, &mut |_| {}));
        tp_group.stop();
        result
    })
}

/// Compares one rank with several; returns which of these numbers of ranks work.
pub(crate) fn compare(
    (source, options, open): (&ModelSource, &EngineOptions, Open),
    ranks: impl IntoIterator<Item = usize>,
    expected: &[u32],
    bits: impl Fn(&Engine) -> Vec<u32>,
) -> Vec<usize> {
    let mut possible = Vec::new();
    for ranks in ranks {
        on_ranks(ranks, source, options, open, |engine| match engine {
            Ok(engine) => {
                let what = format!("{source:?} on {ranks} ranks, {}", options.isa);
                assert!(bits(&engine) == expected, "{what}: other bits");
                possible.push(ranks);
            }
            Err(Error::Ranks { .. }) => {}
            Err(error) => panic!("{source:?}: {error}"),
        });
    }
    possible
}

/// Returns all logits of a prompt of this many tokens and of `steps` steps, counting the prompt's,
/// each of whose tokens is the argmax of the step before; as bits.
pub(crate) fn bits(engine: &Engine, prompt: usize, steps: usize) -> Vec<u32> {
    let n = engine.hparams().n_vocab();
    let prompt = (0..prompt).map(|i| u32::try_from((i * i * 7919 + 11) % n).expect("an id"));
    let prompt: Vec<u32> = prompt.collect();
    let mut session = engine.session();
    let mut bits = Vec::new();
    let (mut tokens, mut phase, mut logits_for) = (prompt, Phase::Prefill, LogitsFor::All);
    for _ in 0..steps {
        let logits = session.eval(&tokens, phase, logits_for).expect("logits");
        bits.extend(logits.data.iter().map(|x| x.to_bits()));
        let last = logits.last().expect("a row");
        tokens = vec![top_logits(last, 1)[0].0];
        (phase, logits_for) = (Phase::Decode, LogitsFor::Last);
    }
    bits
}

/// A value that a step passed to a tap.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    tap: String,
    rows: usize,
    width: usize,
    bits: Vec<u32>,
}

/// Returns all values that a step of five tokens passes to a tap.
pub(crate) fn shown(engine: &Engine) -> Vec<Shown> {
    let mut all = Vec::new();
    let mut tap = |view: &TapView<'_>| {
        all.push(Shown {
            tap: view.tap.to_string(),
            rows: view.rows,
            width: view.width,
            bits: view.data.iter().map(|x| x.to_bits()).collect(),
        });
    };
    engine
        .run_with_taps(&[1, 2, 3, 4, 5], &mut tap)
        .expect("a step");
    all
}

/// Checks that two engines pass the same values to taps.
///
/// # Panics
/// If they do not, with the name of the first value that differs.
pub(crate) fn assert_same_shown(got: &[Shown], expected: &[Shown]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!(got == expected, "{} against {}", got.tap, expected.tap);
    }
}
