//! Importance matrices are llama-imatrix's: same keys, names and counts, sums as close as its
//! arithmetic allows.

use std::path::Path;
use std::process::Command;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::tiny::File;
use octavo_fixtures::{llama_cpp, shared};
use octavo_lab::imatrix::{Collector, Error, Importance, Options};

fn engine(source: &ModelSource, ctx: usize) -> Engine {
    let options = EngineOptions {
        ctx: Some(ctx),
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(source, &options, &mut |_| {}).unwrap()
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let data = gguf.data(gguf.tensor(name).unwrap_or_else(|| panic!("{name}")));
    data.as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

/// The largest relative difference between two of the same names and shapes.
fn largest_difference(ours: &Gguf, theirs: &Gguf) -> (f64, String) {
    let shape = |g: &Gguf| {
        g.tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dims.clone(), t.ty))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(ours), shape(theirs), "{}", ours.name());
    let mut worst = (0.0, String::new());
    for t in ours.tensors() {
        for (i, (a, b)) in floats(ours, &t.name)
            .iter()
            .zip(floats(theirs, &t.name))
            .enumerate()
        {
            let relative = f64::from((a - b).abs()) / f64::from(b.abs()).max(1e-30);
            if relative > worst.0 {
                worst = (relative, format!("{} [{i}]: {a} and {b}", t.name));
            }
        }
    }
    worst
}

/// Two thousand characters without a newline at the end, which `-f` would drop.
fn prose() -> Vec<u8> {
    let words = [
        "bread", "the", " is", " cut", " into", " thin", " slices", "; ", "ask 7",
    ];
    let mut text = Vec::new();
    for i in 0usize.. {
        text.extend(words[(i * i + i / 7) % words.len()].as_bytes());
        if text.len() >= 2000 {
            break;
        }
    }
    text
}

/// Runs the text through the model in chunks of 64 and writes what is found.
fn collected(model: &Path, text: &[u8], out: &Path) {
    let engine = engine(&ModelSource::Path(model.to_owned()), 64);
    let options = Options {
        chunk: 64,
        max_chunks: Some(8),
        output: true,
    };
    let mut collector = Collector::new(&engine, options).unwrap();
    for chunk in collector.tokens(text).unwrap().chunks(64) {
        collector.add(chunk).unwrap();
    }
    collector.write(out, "text.txt").unwrap();
}

/// Mixtures, and models whose blocks stand beside each other or have fused tensors: the same
/// entries, the same counts for every expert. llama.cpp's GELU rounds to f16 what goes in and what
/// comes out, 2^-11 each, which the squares double.
#[test]
fn matrices_of_many_architectures_are_those_of_llama_imatrix() {
    let (Some(program), Some(models)) = (llama_cpp("llama-imatrix"), shared("arch/models")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("text.txt"), prose()).unwrap();
    let mixtures = [
        "qwen3moe",
        "gpt-oss",
        "glm4moe",
        "qwen2moe",
        "mixtral",
        "ernie4_5-moe",
    ];
    for name in mixtures
        .into_iter()
        .chain(["falcon", "command-r", "phi3", "gemma2"])
    {
        let model = models.join(format!("{name}-F32.gguf"));
        let (mine, reference) = (file("ours.gguf"), file("theirs.gguf"));
        let output = Command::new(&program)
            .current_dir(folder.path())
            .args(["-f", "text.txt", "-c", "64", "--chunks", "8", "-t", "2"])
            .args(["--no-ppl", "--process-output", "-o", "theirs.gguf", "-m"])
            .arg(&model)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        collected(&model, &prose(), &mine);
        let open = |path| Gguf::open(path, &OpenOptions::default()).unwrap();
        let (ours, theirs) = (open(&mine), open(&reference));
        assert!(ours.keys().eq(theirs.keys()), "{name}");
        for t in ours
            .tensors()
            .iter()
            .filter(|t| t.name.ends_with(".counts"))
        {
            assert_eq!(
                floats(&ours, &t.name),
                floats(&theirs, &t.name),
                "{name} {}",
                t.name
            );
        }
        let worst = largest_difference(&ours, &theirs);
        println!(
            "{name}: largest relative difference {:e}: {}",
            worst.0, worst.1
        );
        assert!(
            worst.0 < 4.0 * 2f64.powi(-11),
            "{name} {}: {:e}",
            worst.1,
            worst.0
        );
    }
}

/// Every token goes to two of four experts: counts and squares of all experts together are twice
/// those of the router, which has the same input and sees every token once.
#[test]
fn each_expert_has_sums_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("m.gguf"), folder.path().join("i.gguf"));
    std::fs::write(&model, File::mixture().bytes()).unwrap();
    collected(&model, &prose(), &out);
    let found = Gguf::open(&out, &OpenOptions::default()).unwrap();
    for layer in 0..2 {
        let values = |part: &str| floats(&found, &format!("blk.{layer}.{part}"));
        let router = values("ffn_gate_inp.weight.in_sum2");
        assert_eq!(values("ffn_gate_inp.weight.counts"), [512.0]);
        for part in ["gate", "up", "down"] {
            let counts = values(&format!("ffn_{part}_exps.weight.counts"));
            assert_eq!(counts.len(), 4);
            assert_eq!(counts.iter().sum::<f32>(), 1024.0, "{counts:?}");
            assert!(counts.iter().any(|n| *n != 256.0), "{counts:?}");
        }
        for part in ["gate", "up"] {
            let sums = values(&format!("ffn_{part}_exps.weight.in_sum2"));
            for (column, of_router) in router.iter().enumerate() {
                let all: f32 = sums.iter().skip(column).step_by(router.len()).sum();
                assert!(
                    (all - 2.0 * of_router).abs() < 1e-5 * all,
                    "{part} {column}"
                );
            }
        }
    }
    let down = found.tensor("blk.1.ffn_down_exps.weight.in_sum2").unwrap();
    assert_eq!(down.dims, [96, 4]);
    let importance = Importance::open(&out).unwrap();
    assert_eq!(
        importance
            .weights("blk.1.ffn_down_exps.weight")
            .unwrap()
            .len(),
        4 * 96
    );
}

/// The shared one was made with
/// `llama-imatrix -m tiny-qwen3-f16.gguf -f calibration.txt -c 256 --chunks 20`.
///
/// llama.cpp rounds activations to f16 before it multiplies them with f16 weights, which is 2^-11
/// for each of them; the sums over thousands of squares of values made from those may differ by
/// twice that.
#[test]
fn the_shared_matrix_is_made_again() {
    let (Some(models), Some(text)) = (shared("models"), shared("text")) else {
        return;
    };
    let theirs = Gguf::open(
        &models.join("tiny-qwen3.imatrix.gguf"),
        &OpenOptions::default(),
    )
    .unwrap();
    let engine = engine(&ModelSource::Path(models.join("tiny-qwen3-f16.gguf")), 256);
    let options = Options {
        chunk: 256,
        max_chunks: Some(20),
        output: true,
    };
    let mut collector = Collector::new(&engine, options).unwrap();
    let text = std::fs::read(text.join("calibration.txt")).unwrap();
    for chunk in collector
        .tokens(text.strip_suffix(b"\n").unwrap_or(&text))
        .unwrap()
        .chunks(256)
    {
        collector.add(chunk).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours.gguf");
    collector.write(&path, "calibration.txt").unwrap();
    let ours = Gguf::open(&path, &OpenOptions::default()).unwrap();

    assert!(ours.keys().eq(theirs.keys()));
    let worst = largest_difference(&ours, &theirs);
    println!("largest relative difference {:e}: {}", worst.0, worst.1);
    assert!(worst.0 < 2.0 * 2f64.powi(-11), "{}: {:e}", worst.1, worst.0);
    let importance = Importance::open(&path).unwrap();
    assert_eq!((importance.len(), importance.chunks()), (28, 20));
}

#[test]
fn chunks_add_up_whatever_the_batches() {
    let text: Vec<u8> = (0..4000u32)
        .map(|i| b"the quick brown fox. 0123456789\n"[(i * i % 32) as usize])
        .collect();
    let collect = |batch: usize, from: usize| {
        let options = EngineOptions {
            ctx: Some(64),
            threads: Some(2),
            batch: Some(batch),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).unwrap();
        let mut collector = Collector::new(
            &engine,
            Options {
                chunk: 64,
                max_chunks: Some(3),
                output: false,
            },
        )
        .unwrap();
        let tokens = collector.tokens(&text).unwrap();
        assert_eq!(tokens.len(), 3 * 64);
        // in another order
        tokens
            .chunks(64)
            .cycle()
            .skip(from)
            .take(3)
            .for_each(|chunk| collector.add(chunk).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        collector.write(&path, "text").unwrap();
        Importance::open(&path).unwrap()
    };
    let (a, b) = (collect(512, 0), collect(17, 1));
    assert!(a.len() > 4, "{}", a.len());
    for layer in 0..4 {
        for matrix in ["attn_q", "attn_output", "ffn_up", "ffn_down"] {
            let name = format!("blk.{layer}.{matrix}.weight");
            let (x, y) = (a.weights(&name).unwrap(), b.weights(&name).unwrap());
            assert!(
                x.iter()
                    .zip(y)
                    .all(|(x, y)| (x - y).abs() <= 1e-6 * x.abs()),
                "{name}"
            );
        }
    }
}

#[test]
fn a_text_or_chunk_that_does_not_fit_is_refused() {
    let engine = engine(&ModelSource::Demo, 64);
    let with = |chunk| {
        Collector::new(
            &engine,
            Options {
                chunk,
                ..Options::default()
            },
        )
    };
    for chunk in [0, 1, 65] {
        assert!(
            matches!(with(chunk), Err(Error::Chunk { n_ctx: 64, .. })),
            "{chunk}"
        );
    }
    let error = with(64).unwrap().tokens(b"short").unwrap_err().to_string();
    assert!(
        error.ends_with("expected at least 128 (two chunks of 64)"),
        "{error}"
    );
    let collector = with(64).unwrap();
    assert_eq!((collector.chunks(), collector.matrices()), (0, 0));
    let folder = tempfile::tempdir().unwrap();
    assert!(
        collector
            .write(&folder.path().join("none").join("x.gguf"), "")
            .is_err()
    );
}
