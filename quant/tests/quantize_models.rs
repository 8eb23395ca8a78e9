//! Quantized tensors equal llama-quantize's, byte for byte: every tensor of the shared models whose
//! type can be written is quantized again from the source model.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_quant::{TensorType, can_quantize, dequantize, quantize};
use std::collections::BTreeMap;
use std::path::Path;

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn floats(model: &Gguf, name: &str) -> Option<Vec<f32>> {
    let t = model.tensor(name)?;
    let mut x = vec![0.0; usize::try_from(t.n_elements()).unwrap()];
    dequantize(t.ty, model.data(t), &mut x).unwrap_or_else(|e| panic!("{name}: {e}"));
    Some(x)
}

/// Returns the importance of a tensor's columns: the mean square of its inputs (all of these models
/// are dense: one count).
fn importance(imatrix: &Gguf, name: &str) -> Option<Vec<f32>> {
    let mut sums = floats(imatrix, &format!("{name}.in_sum2"))?;
    let count = floats(imatrix, &format!("{name}.counts"))?[0];
    sums.iter_mut().for_each(|s| *s /= count);
    Some(sums)
}

/// Compares every tensor and counts them by type, with and without importance separately.
fn compare(
    path: &Path,
    source: &Gguf,
    imatrix: &Gguf,
    counts: &mut BTreeMap<(TensorType, bool), usize>,
) {
    let model = open(path);
    let imatrix = model.str("quantize.imatrix.file").unwrap().map(|_| imatrix);
    for t in model.tensors().iter().filter(|t| can_quantize(t.ty)) {
        let x =
            floats(source, &t.name).unwrap_or_else(|| panic!("{} is not in the source", t.name));
        let weights = imatrix.and_then(|m| importance(m, &t.name));
        let mut got = Vec::new();
        quantize(
            t.ty,
            &x,
            usize::try_from(t.dims[0]).unwrap(),
            weights.as_deref(),
            &mut got,
        )
        .unwrap_or_else(|e| panic!("{}: {e}", t.name));
        let want = model.data(t);
        assert_eq!(got.len(), want.len(), "{} {}", model.name(), t.name);
        let differ = got
            .chunks(t.ty.block_bytes())
            .zip(want.chunks(t.ty.block_bytes()))
            .position(|(g, w)| g != w);
        assert_eq!(
            differ,
            None,
            "{} {} {}: the first block that differs",
            model.name(),
            t.name,
            t.ty
        );
        *counts.entry((t.ty, weights.is_some())).or_default() += 1;
    }
}

#[test]
fn models_are_made_again_byte_for_byte() {
    let Some(f16) = octavo_fixtures::shared("models/tiny-qwen3-f16.gguf") else {
        return;
    };
    let folder = f16.parent().unwrap();
    let imatrix = open(&folder.join("tiny-qwen3.imatrix.gguf"));
    let mut counts = BTreeMap::new();
    let mut models: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    models.sort();
    let is_tiny = |p: &Path| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("tiny-qwen3-"))
    };
    let source = open(&f16);
    for path in models.iter().filter(|p| is_tiny(p)) {
        compare(path, &source, &imatrix, &mut counts);
    }
    for (name, from) in [
        ("llama-Q4_K_M", "llama-F32"),
        ("qwen2-Q6_K", "qwen2-F32"),
        ("qwen3-Q8_0", "qwen3-F32"),
    ] {
        let source = open(&folder.join(format!("rnd-{from}.gguf")));
        compare(
            &folder.join(format!("rnd-{name}.gguf")),
            &source,
            &imatrix,
            &mut counts,
        );
    }
    let summary: Vec<_> = counts
        .iter()
        .map(|((t, w), n)| format!("{t}{} {n}", if *w { "+imatrix" } else { "" }))
        .collect();
    println!("tensors equal: {}", summary.join(", "));
    for ty in TensorType::all().filter(|&t| can_quantize(t)) {
        let has = |weighted| counts.contains_key(&(ty, weighted));
        assert!(has(false) || has(true), "no model has a {ty} tensor");
    }
    assert!(
        counts.contains_key(&(TensorType::Q2_K, true)),
        "no tensor was made with an importance matrix"
    );
}

/// Checks Q2_0, which no golden file has. llama-quantize's result follows from the source: the
/// scale is the largest magnitude of the block in f16, and a weight becomes the nearest of -1, 0, 1
/// (times the f32 scale; 2 is never needed).
#[test]
fn q2_0_model_decodes_to_its_rounded_source() {
    let Some(f16) = octavo_fixtures::shared("models/tiny-qwen3-f16.gguf") else {
        return;
    };
    let source = open(&f16);
    let model = open(&f16.with_file_name("tiny-qwen3-Q2_0.gguf"));
    let mut blocks = 0;
    for t in model.tensors().iter().filter(|t| t.ty == TensorType::Q2_0) {
        let (x, y) = (
            floats(&source, &t.name).unwrap(),
            floats(&model, &t.name).unwrap(),
        );
        for (x, y) in x.chunks(64).zip(y.chunks(64)) {
            let d = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            for (x, y) in x.iter().zip(y) {
                let level = if d == 0.0 {
                    0.0
                } else {
                    (x * (1.0 / d)).round()
                };
                assert_eq!(*y, level * half::f16::from_f32(d).to_f32(), "{}", t.name);
            }
            blocks += 1;
        }
    }
    assert!(blocks > 1000, "{blocks}");
}
