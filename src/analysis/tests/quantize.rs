//! Quantized files equal llama-quantize's: every shared model that llama-quantize made is
//! reproduced, tensors and keys.

mod importance;

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Value, Writer};
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quantize::{Error, Options, Plan, Progress, Target};
use octavo_fixtures::shared;
use proptest::prelude::*;

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn options(target: Target) -> Options {
    Options {
        threads: 2,
        ..Options::new(target)
    }
}

/// Quantizes to a new file in a new folder.
fn quantize(
    source: &Gguf,
    importance: Option<&Importance>,
    options: &Options,
) -> Result<(tempfile::TempDir, Gguf), Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let plan = Plan::new(source, importance, options)?;
    let (mut tensors, mut bytes) = (0, 0);
    let written = plan.write(&path, &mut |progress| match progress {
        Progress::Tensor { index, .. } => {
            assert_eq!(index, tensors);
            tensors += 1;
        }
        Progress::Bytes(n) => bytes += n,
        Progress::Done { rounding, .. } => assert_eq!(rounding, None, "no groups"),
    })?;
    assert_eq!(
        (tensors, bytes),
        (plan.changes().len(), plan.totals().before)
    );
    let gguf = Gguf::open(
        &path,
        &OpenOptions {
            strict: true,
            ..OpenOptions::default()
        },
    )?;
    assert_eq!(written, gguf.file_bytes());
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "only the file itself is left"
    );
    Ok((folder, gguf))
}

/// Returns the first difference between two models, ignoring the path of the importance matrix.
fn difference(ours: &Gguf, theirs: &Gguf) -> Option<String> {
    let path = ["quantize.imatrix.file", "quantize.imatrix.dataset"];
    let keys = |g: &Gguf| -> Vec<(String, OwnedValue)> {
        let keys = g.keys().filter(|(key, _)| !path.contains(key));
        keys.map(|(key, value)| (key.to_owned(), value.into()))
            .collect()
    };
    if let Some((a, b)) = keys(ours).iter().zip(&keys(theirs)).find(|(a, b)| a != b) {
        return Some(format!("keys {a:?} and {b:?}"));
    }
    if ours.keys().len() != theirs.keys().len() || ours.tensors().len() != theirs.tensors().len() {
        return Some("numbers of keys or tensors".to_owned());
    }
    for (a, b) in ours.tensors().iter().zip(theirs.tensors()) {
        if (&a.name, &a.dims, a.ty) != (&b.name, &b.dims, b.ty) {
            return Some(format!(
                "tensors {} {} and {} {}",
                a.name, a.ty, b.name, b.ty
            ));
        }
        let (x, y) = (ours.data(a), theirs.data(b));
        let block = x
            .chunks(a.ty.block_bytes())
            .zip(y.chunks(a.ty.block_bytes()))
            .position(|(x, y)| x != y);
        if let Some(block) = block {
            return Some(format!("tensor {} {}: block {block}", a.name, a.ty));
        }
    }
    None
}

/// Returns the options a shared model was made with: from its own keys, and `--tensor-type` for the
/// layers if its name is not a target's.
fn options_of(path: &Path, model: &Gguf) -> Option<Options> {
    let name = path.file_stem()?.to_str()?.rsplit_once('-')?.1;
    let number = model.u32("general.file_type").ok()??;
    let target = Target::all().find(|t| t.file_type() == number && *t != Target::COPY)?;
    let mut options = options(target);
    if let (true, Some(ty)) = (name.parse() != Ok(target), TensorType::from_name(name)) {
        options
            .choices
            .overrides
            .push((regex::Regex::new("blk").unwrap(), ty));
    }
    Some(options)
}

fn made_again(path: &Path, source: &Path, imatrix: &Path) -> usize {
    let model = open(path);
    let options = options_of(path, &model)
        .unwrap_or_else(|| panic!("{}: an unknown file type", path.display()));
    let importance = model
        .get("quantize.imatrix.file")
        .map(|_| Importance::open(imatrix).unwrap());
    let (_folder, ours) = quantize(&open(source), importance.as_ref(), &options).unwrap();
    assert_eq!(difference(&ours, &model), None, "{}", path.display());
    model.tensors().len()
}

#[test]
fn shared_models_are_made_again() {
    let Some(folder) = shared("models") else {
        return;
    };
    let file = |name: &str| folder.join(name);
    let mut models: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    models.sort();
    let is_tiny = |p: &Path| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("tiny-qwen3-"))
    };
    let (mut n_models, mut n_tensors) = (0, 0);
    for path in models
        .iter()
        .filter(|p| is_tiny(p) && !p.ends_with("tiny-qwen3-f16.gguf"))
    {
        n_tensors += made_again(
            path,
            &file("tiny-qwen3-f16.gguf"),
            &file("tiny-qwen3.imatrix.gguf"),
        );
        n_models += 1;
    }
    for (name, from) in [
        ("llama-Q4_K_M", "llama-F32"),
        ("qwen2-Q6_K", "qwen2-F32"),
        ("qwen3-Q8_0", "qwen3-F32"),
    ] {
        let from = file(&format!("rnd-{from}.gguf"));
        n_tensors += made_again(
            &file(&format!("rnd-{name}.gguf")),
            &from,
            &file("tiny-qwen3.imatrix.gguf"),
        );
        n_models += 1;
    }
    println!("{n_models} models, {n_tensors} tensors equal");
    assert!(n_models >= 30, "{n_models}");
}

/// Builds a small model with one layer of matrices; rows of 64 x 4.
fn source(fill: impl Fn(usize) -> f32, name: &str) -> Gguf {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "llama")
        .set("llama.block_count", 1u32);
    for tensor in [
        "blk.0.ffn_up.weight",
        "blk.0.attn_v.weight",
        "output_norm.weight",
    ] {
        let value = |i| {
            if tensor.starts_with("blk") {
                fill(i)
            } else {
                1.0
            }
        };
        let data: Vec<u8> = (0..1024).flat_map(|i| value(i).to_le_bytes()).collect();
        writer.tensor(tensor, &[256, 4], TensorType::F32, data);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes, name, &OpenOptions::default()).unwrap()
}

#[test]
fn the_comparison_sees_one_bit() {
    let model = source(|i| i as f32, "a");
    let other = source(
        |i| {
            if i == 700 {
                700.0f32.next_up()
            } else {
                i as f32
            }
        },
        "b",
    );
    assert_eq!(difference(&model, &model), None);
    assert_eq!(
        difference(&model, &other).unwrap(),
        "tensor blk.0.ffn_up.weight F32: block 700"
    );
    let (_a, a) = quantize(&model, None, &options(Target::Q8_0)).unwrap();
    let (_b, b) = quantize(&model, None, &options(Target::Q6_K)).unwrap();
    assert!(difference(&a, &b).unwrap().starts_with("keys "));
    let coarse = source(|i| if i == 700 { 800.0 } else { i as f32 }, "c");
    let (_c, c) = quantize(&coarse, None, &options(Target::Q8_0)).unwrap();
    assert_eq!(
        difference(&a, &c).unwrap(),
        "tensor blk.0.attn_v.weight Q8_0: block 21"
    );
}

/// The parts of a split model become one file without the keys of the split.
#[test]
fn split_models_become_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let whole = source(|i| (i % 100) as f32, "whole");
    let part = |n: u16| folder.path().join(format!("m-0000{}-of-00002.gguf", n + 1));
    for n in [0u16, 1] {
        let mut writer = Writer::new();
        if n == 0 {
            whole.keys().for_each(|(key, value)| {
                writer.set(key, value);
            });
        }
        writer
            .set("split.no", n)
            .set("split.count", 2u16)
            .set("split.tensors.count", 3i32);
        for t in whole.tensors().iter().skip(usize::from(n) * 2).take(2) {
            writer.tensor(&t.name, &t.dims, t.ty, whole.data(t));
        }
        writer.write_file(&part(n)).unwrap();
    }
    let (_a, from_parts) = quantize(&open(&part(0)), None, &options(Target::Q4_K_M)).unwrap();
    let (_b, from_whole) = quantize(&whole, None, &options(Target::Q4_K_M)).unwrap();
    assert_eq!(difference(&from_parts, &from_whole), None);
}

#[test]
fn thread_counts_leave_no_trace() {
    let Some(folder) = shared("models") else {
        return;
    };
    let model = open(&folder.join("tiny-qwen3-f16.gguf"));
    let (_a, one) = quantize(
        &model,
        None,
        &Options {
            threads: 1,
            ..options(Target::Q4_K_M)
        },
    )
    .unwrap();
    for threads in [2, 3, 16] {
        let (_b, many) = quantize(
            &model,
            None,
            &Options {
                threads,
                ..options(Target::Q4_K_M)
            },
        )
        .unwrap();
        assert_eq!(difference(&one, &many), None, "{threads}");
    }
}

#[test]
fn values_that_are_not_finite_are_named_and_nothing_is_left() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let model = source(|i| if i == 515 { bad } else { 1.0 }, "bad");
        for target in [Target::Q4_0, Target::F16, Target::F32, Target::COPY] {
            let folder = tempfile::tempdir().unwrap();
            let plan = Plan::new(&model, None, &options(target)).unwrap();
            let error = plan
                .write(&folder.path().join("out.gguf"), &mut |_| {})
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("expected finite F32 values, block 515 has NaN or infinity"),
                "{error}"
            );
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
    let model = source(|i| if i == 515 { 1e12 } else { 1.0 }, "large");
    for (target, block) in [(Target::Q4_0, 16), (Target::Q6_K, 2), (Target::F16, 515)] {
        let error = quantize(&model, None, &options(target))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with(&format!("the scale of block {block} is NaN or infinite")),
            "{error}"
        );
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let model = source(|i| i as f32, "a");
    let refused = |model: &Gguf, options: &Options, importance: Option<&Importance>| {
        quantize(model, importance, options)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let (_folder, q8) = quantize(&model, None, &options(Target::Q8_0)).unwrap();
    let error = refused(&q8, &options(Target::Q4_0), None);
    assert_eq!(
        error,
        "tensor blk.0.attn_v.weight is Q8_0 already: expected F32, F16 or BF16, unless it may be \
         quantized again"
    );
    let again = Options {
        allow_requantize: true,
        ..options(Target::Q4_0)
    };
    assert!(quantize(&q8, None, &again).is_ok());
    let error = refused(&model, &options(Target::IQ2_XXS), None);
    assert_eq!(
        error,
        "tensor blk.0.ffn_up.weight: IQ2_XXS needs an importance matrix"
    );
    let mut integers = options(Target::Q4_0);
    integers
        .choices
        .overrides
        .push((regex::Regex::new("ffn_up").unwrap(), TensorType::I32));
    let error = refused(&model, &integers, None);
    assert!(
        error.starts_with(
            "tensor blk.0.ffn_up.weight: writing I32 is not supported (written are F32 F16 "
        ),
        "{error}"
    );
    let mut bytes = Vec::new();
    Writer::new().write_to(&mut bytes).unwrap();
    let empty = Gguf::from_bytes(bytes, "empty.gguf", &OpenOptions::default()).unwrap();
    assert_eq!(
        refused(&empty, &options(Target::F16), None),
        "empty.gguf: key general.architecture: expected it to be there"
    );
    assert!(quantize(&empty, None, &options(Target::COPY)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..Default::default()
    })]

    /// For any values and shapes, the plan's sizes are the file's, and no tensor is lost.
    #[test]
    fn plans_are_kept(rows in 1u64..5, blocks in 1u64..40, odd in 0u64..3, target in 0usize..36) {
        let target = Target::all().nth(target).unwrap();
        let width = 32 * blocks + 16 * odd;
        let mut writer = Writer::new();
        writer.set("general.architecture", "qwen2").set("qwen2.block_count", 2u32);
        let value = |i: u64| ((i % 77) as f32 - 30.0).to_le_bytes();
        for name in [
            "token_embd.weight",
            "blk.0.attn_v.weight",
            "blk.1.ffn_down.weight",
            "blk.1.attn_norm.weight",
        ] {
            let data: Vec<u8> = (0..rows * width).flat_map(value).collect();
            writer.tensor(name, &[width, rows], TensorType::F32, data);
        }
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        let model = Gguf::from_bytes(file, "m", &OpenOptions::default()).unwrap();
        let plan = Plan::new(&model, None, &options(target));
        let made = plan.and_then(|plan| {
            quantize(&model, None, &options(target)).map(|out| (plan.totals(), out))
        });
        match made {
            Ok((totals, (_folder, out))) => {
                prop_assert_eq!(out.tensors().len(), 4);
                prop_assert_eq!(out.tensors().iter().map(|t| t.bytes).sum::<u64>(), totals.after);
            }
            Err(Error::NeedsImportance { .. }) => {
                prop_assert!(target.name().starts_with("IQ") || target == Target::Q2_K_S);
            }
            Err(Error::Row { ty, .. }) => prop_assert_eq!(ty, TensorType::Q1_0),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
