//! Several tensor parallel ranks, here threads of one process, compute the same bits as one:
//! nothing is summed across them.

use std::path::PathBuf;

use octavo_engine::backend::ranks::{Open, open_gpu};
use octavo_engine::{DeviceChoice, Engine, EngineOptions, Error, ModelSource};
use octavo_fixtures::{is_full, shared, workspace_root};
use octavo_kernels::{Collective, Isa, IsaChoice, Pool, Threads};

use crate::tensor_parallel::{self, assert_same_shown, shown};

/// More than two pages, and no multiple of a kernel's tile.
const PROMPT: usize = 37;

/// Returns the number of tokens to generate, several pages more: a bit that differs is cached, and
/// read for all that follows.
fn generated() -> usize {
    if is_full() { 200 } else { 60 }
}

fn options(isa: Isa, ctx: usize) -> EngineOptions {
    EngineOptions {
        isa: IsaChoice::Only(isa),
        threads: Some(1),
        // the prompt takes several steps
        batch: Some(17),
        ctx: Some(ctx),
        ..EngineOptions::default()
    }
}

/// Returns the result of `run` on an engine of this many ranks on CPUs.
fn on_ranks<T>(
    ranks: usize,
    source: &ModelSource,
    options: &EngineOptions,
    run: impl FnOnce(Result<Engine, Error>) -> T,
) -> T {
    tensor_parallel::on_ranks(ranks, source, options, open_gpu, run)
}

/// Returns all logits of a prompt and of a generation after it, as bits.
fn bits(engine: &Engine, generated: usize) -> Vec<u32> {
    tensor_parallel::bits(engine, PROMPT, 1 + generated)
}

/// Compares one rank with several, for all instruction sets; returns the numbers of ranks that
/// work.
fn compare(source: &ModelSource, generated: usize) -> Vec<usize> {
    let mut possible = Vec::new();
    // how work is divided is the same on all instruction sets: the small model shows that
    let isas = match source {
        ModelSource::Path(_) if !is_full() => vec![Isa::best()],
        _ => Isa::available(),
    };
    for isa in isas {
        let options = options(isa, PROMPT + generated);
        let alone = Engine::load(source, &options, &mut |_| {}).expect("the model loads");
        let expected = bits(&alone, generated);
        let what = (source, &options, open_gpu as Open);
        possible =
            tensor_parallel::compare(what, 1..=4, &expected, |engine| bits(engine, generated));
    }
    possible
}

/// Returns all model files of a folder.
fn models(folder: PathBuf) -> Vec<ModelSource> {
    let files = std::fs::read_dir(folder).expect("a folder of models");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    let is_model = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.ends_with(".gguf") && !name.contains("imatrix")
    };
    files.retain(is_model);
    files.sort();
    files.into_iter().map(ModelSource::Path).collect()
}

#[test]
fn ranks_change_no_bit_of_recorded_models() {
    let mut all = vec![ModelSource::Demo];
    all.extend(models(workspace_root().join("reference/models")));
    all.extend(shared("models").into_iter().flat_map(models));
    let on_two = |source: &&ModelSource| compare(source, generated()).contains(&2);
    let several = all.iter().filter(on_two).count();
    // some have one KV head, and so one rank
    let expected = if all.len() > 3 { 30 } else { 2 };
    assert!(several >= expected, "{several} of {} on 2 ranks", all.len());
}

#[test]
fn ranks_change_no_bit_of_other_architectures() {
    let Some(folder) = shared("arch/models") else {
        return;
    };
    let (mut on, mut without_attention) = ([0; 5], 0);
    let second = ["bloom-F32", "jamba-Q8_0", "mpt-F32", "rwkv7-Q8_0"];
    let second = second.map(|name| shared(&format!("arch2/models/{name}.gguf")));
    let second = second.into_iter().flatten().map(ModelSource::Path);
    for source in models(folder).into_iter().chain(second) {
        let engine = Engine::load(&source, &options(Isa::available()[0], PROMPT), &mut |_| {});
        // models that are not causal have no logits
        let Some(engine) = engine.ok().filter(|engine| engine.check_logits().is_ok()) else {
            continue;
        };
        let possible = compare(&source, generated());
        if !engine.hparams().layers.iter().any(|layer| layer.attends()) {
            without_attention += 1;
            assert_eq!(possible, [1, 2, 3, 4], "{source:?} has no heads to divide");
        }
        possible.iter().for_each(|ranks| on[*ranks] += 1);
    }
    assert!(without_attention > 0, "mamba2 is not there");
    assert!(
        on[2] >= 40 && on[3] > 0 && on[4] > 0,
        "models by ranks: {on:?}"
    );
}

#[test]
fn refusals_say_what_would_work() {
    let isa = Isa::available()[0];
    let error = |ranks, options: &EngineOptions| {
        on_ranks(ranks, &ModelSource::Demo, options, |engine| {
            let error = engine.err().map(|error| error.to_string());
            error.expect("an error")
        })
    };
    let line = error(3, &options(isa, 64));
    assert!(
        line.ends_with("3 ranks: expected 1 or 2, which divide its key heads"),
        "{line}"
    );
    // a part of the layers, or the automatic choice
    for (device, gpu_layers) in [
        (DeviceChoice::Cuda(0), Some(1)),
        (
            DeviceChoice::Auto {
                gpu: 0,
                asked: true,
            },
            None,
        ),
    ] {
        let on_gpu = EngineOptions {
            device,
            gpu_layers,
            ..options(isa, 64)
        };
        assert_eq!(
            error(2, &on_gpu),
            "2 ranks: expected all layers on CPUs, or all on GPUs that were asked for"
        );
    }
}

/// Each gather is done once, whichever thread of a rank is late.
#[test]
fn late_threads_of_a_rank_change_nothing() {
    let isa = Isa::available()[0];
    let one = options(isa, PROMPT + 100);
    let alone = Engine::load(&ModelSource::Demo, &one, &mut |_| {}).expect("the model loads");
    let expected = bits(&alone, 100);
    let pool = Pool::unreliable(3, 7, 20).expect("threads");
    let several = EngineOptions {
        threads: Some(2),
        pool: Some(pool.into()),
        ..one
    };
    on_ranks(2, &ModelSource::Demo, &several, |engine| {
        let engine = engine.expect("the model loads");
        assert!(bits(&engine, 100) == expected, "other bits");
        let pool = engine.pool().expect("a CPU");
        assert!(pool.lock().taken_over() > 0, "nobody was late");
    });
}

/// Ranks that cannot read each other's memory, like those of several processes.
#[derive(Debug)]
struct Apart(Threads);

impl Collective for Apart {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn all_gather(&self, mine: &[f32], lens: &[usize], all: &mut [f32]) {
        self.0.all_gather(mine, lens, all);
    }

    fn broadcast(&self, words: &mut Vec<u32>) {
        self.0.broadcast(words);
    }

    fn give_up(&self, why: &str) -> ! {
        self.0.give_up(why)
    }
}

#[test]
fn ranks_that_are_apart_change_no_bit() {
    for isa in Isa::available() {
        let one = options(isa, PROMPT + generated());
        let alone = Engine::load(&ModelSource::Demo, &one, &mut |_| {}).expect("the model loads");
        let expected = bits(&alone, generated());
        for threads in [1, 2] {
            let links = Threads::new(2).into_iter().map(Apart).collect();
            let several = EngineOptions {
                threads: Some(threads),
                ..one.clone()
            };
            let other = |engine: Result<Engine, Error>| {
                bits(&engine.expect("the model loads"), generated()) != expected
            };
            let other =
                tensor_parallel::on_links(links, &ModelSource::Demo, &several, open_gpu, other);
            assert!(!other, "{isa}, {threads} threads: other bits");
        }
    }
}

/// Taps of a step on several ranks get whole rows, the same as on one rank.
#[test]
fn taps_show_whole_rows() {
    let options = options(Isa::available()[0], 64);
    let alone = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("the model loads");
    let expected = shown(&alone);
    on_ranks(2, &ModelSource::Demo, &options, |engine| {
        assert_same_shown(&shown(&engine.expect("the model loads")), &expected);
    });
}

/// Each rank has its part of the weights, and not more.
#[test]
fn ranks_divide_the_weights() {
    let options = options(Isa::available()[0], 64);
    let whole = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("the model loads");
    let whole = whole.memory();
    on_ranks(2, &ModelSource::Demo, &options, |engine| {
        let part = engine.expect("the model loads").memory();
        let most = whole.packed / 2 + whole.packed / 20;
        assert!(
            part.packed <= most,
            "{} of {} bytes",
            part.packed,
            whole.packed
        );
        assert_eq!(part.kv, whole.kv / 2);
    });
}
