//! Importance matrices are llama-imatrix's: same keys, names and counts, sums as close as its
//! arithmetic allows.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::shared;
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
    let shape = |g: &Gguf| {
        g.tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dims.clone(), t.ty))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(&ours), shape(&theirs));
    let mut worst = (0.0, String::new());
    for t in ours.tensors() {
        for (i, (a, b)) in floats(&ours, &t.name)
            .iter()
            .zip(floats(&theirs, &t.name))
            .enumerate()
        {
            let relative = f64::from((a - b).abs()) / f64::from(b.abs()).max(1e-30);
            if relative > worst.0 {
                worst = (relative, format!("{} [{i}]: {a} and {b}", t.name));
            }
        }
    }
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
            batch,
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
