//! Vectors of small embedding models against stock llama.cpp's, on every instruction set; and the
//! same bits whatever else is computed in the batch.
//!
//! As in `architectures.rs`: F32 models are compared with llama.cpp itself, the others with the
//! exact vectors, next to llama.cpp's own error.

use std::path::{Path, PathBuf};

use octavo_engine::{
    Batch, BatchError, BatchOptions, Embed, Engine, EngineOptions, Error, Event, ModelSource,
    Pooling, Request, Task,
};
use octavo_fixtures::{Lacks, shared, shared_dir, skip};
use octavo_kernels::{Isa, IsaChoice, KvType, Pool, SharedPool};
use octavo_reference::golden::Embedded;
use octavo_reference::metrics::nmse;
use octavo_text::tokenizer::EncodeOptions;

use crate::goldens::{designed_for, geometric_mean};
use octavo_engine::backend::{Phase, TapView};

/// The models, and upper bounds of llama.cpp's own error on their F32 files: it takes GELU from a
/// table of halves.
const MODELS: [(&str, f64); 4] = [
    ("bert", 1e-6),
    ("nomic-bert", 1e-9),
    ("gemma-embedding", 1e-6),
    ("qwen3-embedding", 1e-9),
];

/// Other folders of models: the folder, the model, and the bound of an F32 model.
const MORE: [(&str, &str, Option<f64>); 10] = [
    ("arch2/variants", "qwen3-not-causal-F32", Some(1e-9)),
    ("arch2/variants", "bert-t5-tokenizer-F32", Some(3e-6)),
    ("feat/embed", "bge-m3-F32", Some(3e-6)),
    ("feat/embed", "e5-F32", Some(3e-6)),
    ("feat/embed", "e5-Q8_0", None),
    ("feat/embed", "roberta-F32", Some(3e-6)),
    ("feat/embed", "eurobert-F32", Some(1e-10)),
    ("feat/embed", "neo-bert-F32", Some(1e-10)),
    ("feat/embed", "jina-bert-v3-F32", Some(3e-6)),
    ("feat/embed", "modern-bert-F32", Some(3e-6)),
];

/// Returns the goldens in a folder.
fn goldens_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of goldens");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_golden = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "safetensors");
    let goldens: Vec<PathBuf> = paths.filter(is_golden).collect();
    assert!(goldens.len() >= 2, "{}", folder.display());
    goldens
}

pub(crate) fn load(path: &Path, isa: IsaChoice, threads: usize) -> Engine {
    let options = EngineOptions {
        isa,
        kv_type: KvType::F32.both(),
        threads: Some(threads),
        sessions: 4,
        ..EngineOptions::default()
    };
    Engine::load(&ModelSource::Path(path.to_owned()), &options, &mut |_| {})
        .expect("the model loads")
}

/// Returns the vectors of some texts, computed together, not normalized.
pub(crate) fn embed(engine: &Engine, texts: &[&[u32]], pooling: Pooling) -> Vec<Vec<f32>> {
    let mut batch = Batch::new(engine, BatchOptions::default());
    let mut add = |text: &&[u32]| {
        let task = Task::Embedding(Embed {
            pooling,
            normalize: false,
        });
        let request = Request {
            task,
            prompt: text.to_vec(),
            n: 1,
            ..Request::default()
        };
        batch.add(request).expect("a text that fits")
    };
    let ids: Vec<_> = texts.iter().map(&mut add).collect();
    let mut vectors = vec![Vec::new(); texts.len()];
    while !batch.is_empty() {
        let mut see = |id, event| match event {
            Event::Embedded { vector, .. } => {
                let place = ids.iter().position(|own| *own == id);
                vectors[place.expect("one of these")] = vector;
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        };
        batch.step(&mut see).expect("a step");
    }
    vectors
}

/// Returns the failures of one golden; adds our errors as ratios to llama.cpp's. A single vector
/// may by chance be one that llama.cpp's error is small in: `rounding` is allowed in any.
fn check(
    engine: &Engine,
    path: &Path,
    (limit, rounding): (Option<f64>, f64),
    ratios: &mut Vec<f64>,
) -> Vec<String> {
    let golden = Embedded::read(path).expect("a golden");
    let mut faults = Vec::new();
    for (name, pooling, theirs, exact) in [
        ("rows", Pooling::None, &golden.rows, &golden.exact_rows),
        (
            "pooled",
            engine.pooling(),
            &golden.pooled,
            &golden.exact_pooled,
        ),
    ] {
        let ours = embed(engine, &[&golden.tokens], pooling).swap_remove(0);
        let error = |x: &[f32]| nmse(x, exact).expect("same length");
        let (ours, theirs) = (error(&ours), error(theirs));
        if limit.is_none() {
            ratios.push(ours / theirs);
        }
        let limit = limit.unwrap_or(theirs.max(rounding));
        if ours.is_nan() || ours > limit {
            let path = path.display();
            faults.push(format!(
                "{path} {name}: NMSE {ours:.2e}, allowed {limit:.1e}"
            ));
        }
    }
    faults
}

#[test]
fn vectors_are_those_of_llama_cpp() {
    let Some(shared) = shared_dir() else {
        return;
    };
    let mut faults = Vec::new();
    for isa in Isa::ALL {
        if !isa.is_available() {
            skip(Lacks::InstructionSet, isa);
            continue;
        }
        let mut ratios = Vec::new();
        // an error of twice what rounding adds to a product
        let rounding = 4.0 * isa.prompt_rounding().products.powi(2);
        for (model, of_f32) in MODELS {
            for (ty, limit) in [("F32", Some(of_f32)), ("Q8_0", None)] {
                let name = format!("{model}-{ty}");
                let file = shared.join(format!("arch/models/{name}.gguf"));
                let engine = load(&file, IsaChoice::Only(isa), 2);
                for prompt in ["sum", "fox"] {
                    let golden = format!("arch/goldens/{name}/{prompt}.safetensors");
                    let found = check(
                        &engine,
                        &shared.join(golden),
                        (limit, rounding),
                        &mut ratios,
                    );
                    faults.extend(found.into_iter().map(|fault| format!("{isa} {fault}")));
                }
            }
        }
        for (folder, name, limit) in MORE {
            let folder = shared.join(folder);
            let file = folder.join(format!("models/{name}.gguf"));
            let engine = load(&file, IsaChoice::Only(isa), 2);
            for golden in goldens_in(&folder.join("goldens").join(name)) {
                let found = check(&engine, &golden, (limit, rounding), &mut ratios);
                faults.extend(found.into_iter().map(|fault| format!("{isa} {fault}")));
            }
        }
        let mean = geometric_mean(&ratios);
        println!(
            "{isa}: {} vectors; error as a ratio to llama.cpp's: NMSE mean {mean:.4}",
            ratios.len()
        );
        if mean > designed_for(isa, Phase::Prefill) {
            faults.push(format!("{isa}: mean ratio {mean:.3}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Compares token ids with llama.cpp's, including those that the model adds.
#[test]
fn texts_are_cut_as_llama_cpp_cuts_them() {
    let Some(goldens) = shared("arch/goldens") else {
        return;
    };
    let of_arch = MODELS.map(|(model, _)| (goldens.clone(), format!("{model}-F32")));
    let embed = goldens.join("../../feat/embed/goldens");
    let more = ["bge-m3", "e5", "roberta"].map(|model| (embed.clone(), format!("{model}-F32")));
    for (goldens, model) in of_arch.into_iter().chain(more) {
        let folder = goldens.join(&model);
        let file = goldens.join(format!("../models/{model}.gguf"));
        let engine = load(&file, IsaChoice::Auto, 1);
        let summary = std::fs::read(folder.join("summary.json")).expect("a summary");
        let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
        for (prompt, said) in summary.as_object().expect("an object") {
            let golden = Embedded::read(&folder.join(format!("{prompt}.safetensors")));
            let text = said["text"].as_str().expect("a text");
            let options = EncodeOptions {
                add_special: true,
                parse_special: false,
            };
            let ids = engine.tokenizer().encode(text.as_bytes(), options);
            assert_eq!(
                ids.expect("ids"),
                golden.expect("a golden").tokens,
                "{model}"
            );
        }
    }
}

#[test]
fn neighbours_and_threads_change_no_bit() {
    for model in [
        "bert-Q8_0",
        "nomic-bert-Q8_0",
        "gemma-embedding-Q8_0",
        "qwen3-embedding-Q8_0",
    ] {
        let Some(path) = shared(&format!("arch/models/{model}.gguf")) else {
            return;
        };
        let text = |n: u32| (0..n).map(|i| 5 + i * 7 % 200).collect::<Vec<u32>>();
        let texts = [text(1), text(40), text(17), text(33), text(490), text(300)];
        let texts = texts.each_ref().map(|text| &text[..]);
        for isa in Isa::available() {
            let one = load(&path, IsaChoice::Only(isa), 1);
            let three = load(&path, IsaChoice::Only(isa), 3);
            let poolings = Pooling::ALL.into_iter();
            let is_possible =
                |pooling: &Pooling| *pooling != Pooling::Rank || one.classifier().is_some();
            for pooling in poolings.filter(is_possible) {
                let alone = texts.map(|text| embed(&one, &[text], pooling).swap_remove(0));
                let together = embed(&three, &texts, pooling);
                assert!(together == alone, "{model} {isa} {pooling:?}");
            }
        }
    }
}

#[test]
fn what_is_not_read_whole_is_refused_and_so_is_what_needs_logits() {
    let Some(path) = shared("arch/models/bert-F32.gguf") else {
        return;
    };
    let load = |ctx: usize, batch: usize| {
        let options = EngineOptions {
            ctx: Some(ctx),
            batch: Some(batch),
            ..EngineOptions::default()
        };
        Engine::load(&ModelSource::Path(path.clone()), &options, &mut |_| {})
    };
    let error = load(513, 512).map(|_| ()).expect_err("too many positions");
    assert!(error.to_string().contains("the 512 positions"), "{error}");
    let engine = load(512, 16).expect("the model loads");
    let mut batch = Batch::new(&engine, BatchOptions::default());
    let mut add = |n: usize, task: Task| {
        let request = Request {
            task,
            prompt: vec![7; n],
            n: 1,
            ..Request::default()
        };
        batch.add(request)
    };
    let task = Task::Embedding(Embed {
        pooling: Pooling::Mean,
        normalize: true,
    });
    assert!(add(16, task).is_ok());
    let error = add(17, task).expect_err("longer than a step");
    assert!(
        matches!(
            error,
            BatchError::Engine(Error::Whole {
                tokens: 17,
                most: 16,
                ..
            })
        ),
        "{error}"
    );
    let error = add(3, Task::Text).expect_err("no logits");
    assert!(error.to_string().contains("architecture bert"), "{error}");
    let error = engine.session().eval_argmax(&[1, 2], Phase::Prefill);
    assert!(matches!(error, Err(Error::NoLogits { .. })));
}

/// Returns the bits of a text's last rows, as taps of its steps show them.
fn shown(engine: &Engine, text: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    let tap = engine.model().graph.hidden_tap();
    let mut see = |view: &TapView<'_>| {
        if view.tap == tap {
            bits.extend(view.data.iter().map(|x| x.to_bits()));
        }
    };
    engine.run_with_taps(text, &mut see).expect("a step");
    bits
}

/// Steps for vectors end before the logits, and pass nothing to taps on the way.
#[test]
fn vectors_are_the_rows_that_the_model_ends_with() {
    let mut sources = vec![ModelSource::Demo];
    if let Some(shared) = shared_dir() {
        let files = std::fs::read_dir(shared.join("arch/models")).expect("a folder");
        let paths = files.map(|file| file.expect("a file").path());
        let plain = |path: &std::path::PathBuf| path.to_string_lossy().ends_with("-F32.gguf");
        sources.extend(paths.filter(plain).map(ModelSource::Path));
    }
    for source in sources {
        let options = EngineOptions {
            threads: Some(2),
            sessions: 4,
            ..EngineOptions::default()
        };
        let engine = Engine::load(&source, &options, &mut |_| {});
        // vision encoders and drafts are no models by themselves
        let Ok(engine) = engine else { continue };
        if !engine.model().graph.has_logits() || !engine.hparams().is_causal() {
            continue;
        }
        let n_vocab = engine.hparams().n_vocab() as u32;
        let text: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % n_vocab).collect();
        let [all, alone] = [&text[..], &text[..1]].map(|text| {
            let rows = embed(&engine, &[text], Pooling::None).swap_remove(0);
            let bits: Vec<u32> = rows.iter().map(|x| x.to_bits()).collect();
            assert!(bits == shown(&engine, text), "{source:?}");
            rows
        });
        // beside another text, the last row alone
        let last = embed(&engine, &[&text, &text[..1]], Pooling::Last);
        let width = engine.hparams().n_embd();
        assert!(last[0] == all[all.len() - width..], "{source:?}");
        assert!(last[1] == alone, "{source:?}");
    }
}

/// On a busy machine a thread may be off its CPU for long. The others take its work over, which
/// they cannot do in steps that pass values to taps: there they wait and spin.
#[test]
fn threads_go_on_without_a_late_one_in_steps_for_vectors() {
    let pool = SharedPool::from(Pool::unreliable(2, 7, 20).expect("threads"));
    let options = EngineOptions {
        pool: Some(pool.clone()),
        threads: Some(2),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("it loads");
    let text: Vec<u32> = (0..20).collect();
    let expected = embed(&engine, &[&text], Pooling::Mean);
    let before = pool.lock().taken_over();
    // hundreds of times where there are several CPUs
    for _ in 0..200 {
        assert_eq!(embed(&engine, &[&text], Pooling::Mean), expected);
        if pool.lock().taken_over() > before {
            return;
        }
    }
    panic!("no thread ever went on without a missing one");
}
