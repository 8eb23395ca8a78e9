//! Files of many architectures, MoE included, equal llama-quantize's byte for byte.

use std::path::{Path, PathBuf};
use std::process::Command;

use gguf_rs_lite::{Gguf, OpenOptions, TensorInfo, TensorType, Writer};
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quantize::{Error, Options, Plan, Target};
use octavo_fixtures::tiny::{File, Val};
use octavo_fixtures::{llama_cpp, shared};

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn options(target: Target) -> Options {
    Options {
        threads: 2,
        allow_requantize: true,
        ..Options::new(target)
    }
}

fn ours(
    model: &Gguf,
    importance: Option<&Path>,
    target: Target,
    out: &Path,
) -> Result<Vec<u8>, Error> {
    let importance = importance.map(Importance::open).transpose()?;
    let plan = Plan::new(model, importance.as_ref(), &options(target))?;
    plan.write(out, &mut |_| {})?;
    Ok(std::fs::read(out).unwrap())
}

fn theirs(
    program: &Path,
    model: &Path,
    importance: Option<&Path>,
    target: Target,
    out: &Path,
) -> Vec<u8> {
    let mut command = Command::new(program);
    if let Some(importance) = importance {
        command.arg("--imatrix").arg(importance);
    }
    let output = command
        .arg("--allow-requantize")
        .args([model, out])
        .args([target.name(), "2"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} {target}: {said}",
        model.display()
    );
    std::fs::read(out).unwrap()
}

/// Writes an importance matrix for every matrix of each layer except those in `without`; the last
/// expert has seen no tokens.
fn importance(model: &Gguf, without: &str, path: &Path) {
    let mut writer = Writer::new();
    writer.set("imatrix.datasets", vec!["text".to_owned()]);
    writer
        .set("imatrix.chunk_count", 3u32)
        .set("imatrix.chunk_size", 512u32);
    let bytes = |x: f32| x.to_le_bytes();
    let is_matrix = |t: &&TensorInfo| {
        t.dims.len() > 1 && t.name.starts_with("blk.") && !t.name.starts_with(without)
    };
    for t in model.tensors().iter().filter(is_matrix) {
        let matrices = t.dims.get(2).copied().unwrap_or(1);
        let n = t.dims[0] * matrices;
        let sums = (0..n).flat_map(|i| bytes(((i * 31) % 97) as f32 * 0.25 + 0.5));
        let seen = |i: u64| i == 0 || i + 1 < matrices;
        let counts = (0..matrices).flat_map(|i| bytes(if seen(i) { 3.0 + i as f32 } else { 0.0 }));
        let (sums, counts): (Vec<u8>, Vec<u8>) = (sums.collect(), counts.collect());
        let mut put = |end: &str, n: u64, data: Vec<u8>| {
            writer.tensor(
                &format!("{}.{end}", t.name),
                &[n, matrices],
                TensorType::F32,
                data,
            );
        };
        put("in_sum2", t.dims[0], sums);
        put("counts", 1, counts);
    }
    writer.write_file(path).unwrap();
}

/// Returns the prefix of the layer that only predicts further tokens (MTP) and sees no text.
fn unseen_layer(model: &Path) -> &'static str {
    match model.ends_with("glm4moe-F32.gguf") {
        true => "blk.2.",
        false => "none",
    }
}

/// Returns all models of the folder that llama-quantize accepts unchanged: one has a Q8_0 table.
fn models(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = entries
        .filter(|path| path.to_string_lossy().ends_with("-F32.gguf"))
        .filter(|path| !path.ends_with("gemma3n-F32.gguf"))
        .collect();
    all.sort();
    all
}

/// Rows of these models are whole blocks of 32 at most, so that K-quants fall back; the wide ones
/// are quantized again.
#[test]
fn files_are_those_of_llama_quantize() {
    use Target::{IQ3_XXS, IQ4_NL, MXFP4_MOE, Q2_K, Q4_0, Q4_K_M, Q6_K, Q8_0};
    let (Some(program), Some(folder)) = (llama_cpp("llama-quantize"), shared("arch/models")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let mut n = 0;
    let mut same = |path: &Path, weights: Option<&Path>, target: Target| {
        let theirs = theirs(&program, path, weights, target, &file("theirs.gguf"));
        let ours = ours(&open(path), weights, target, &file("ours.gguf")).unwrap();
        let weighted = weights.is_some();
        assert!(
            ours == theirs,
            "{} {target}, importance {weighted}",
            path.display()
        );
        n += 1;
    };
    for path in models(&folder) {
        for target in [Q4_K_M, Q6_K, Q8_0, Q4_0, IQ4_NL, MXFP4_MOE] {
            same(&path, None, target);
        }
        let weights = file("imatrix.gguf");
        importance(&open(&path), unseen_layer(&path), &weights);
        for target in [Q4_K_M, Q4_0, IQ4_NL] {
            same(&path, Some(&weights), target);
        }
    }
    for name in [
        "qwen3moe-Q4_K_M",
        "deepseek2-Q4_K_M",
        "phi3-Q4_K_M",
        "mistral3-Q6_K",
    ] {
        let path = folder.join(format!("{name}.gguf"));
        let weights = file("imatrix.gguf");
        importance(&open(&path), "none", &weights);
        for target in [Q4_K_M, Q6_K, Q2_K] {
            same(&path, None, target);
        }
        for target in [Q4_K_M, IQ3_XXS] {
            same(&path, Some(&weights), target);
        }
    }
    println!("{n} files equal");
    assert!(n >= 43 * 9, "{n}");
}

/// Experts become MXFP4, weights shared by all tokens Q8_0; routers and norms are unchanged.
#[test]
fn mixtures_keep_routers_and_give_experts_four_bits() {
    let model = File::mixture().gguf();
    let plan = Plan::new(&model, None, &options(Target::MXFP4_MOE)).unwrap();
    for change in plan.changes() {
        let name = change.tensor.name.as_str();
        let expected = match name {
            _ if name.contains("_exps.") => TensorType::MXFP4,
            _ if name.contains("norm") || name.contains("ffn_gate_inp") => TensorType::F32,
            _ => TensorType::Q8_0,
        };
        assert_eq!(change.to, expected, "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    ours(&model, None, Target::MXFP4_MOE, &out).unwrap();
    let made = open(&out);
    for t in model.tensors().iter().filter(|t| t.name.contains("_exps.")) {
        let quantized = made.tensor(&t.name).unwrap();
        assert_eq!(quantized.dims, t.dims);
        // quantizing each expert alone gives the same blocks
        let (n, row) = (t.n_elements() as usize / 4, t.dims[0] as usize);
        for (expert, blocks) in made.data(quantized).chunks(n / 32 * 17).enumerate() {
            let source = &model.data(t)[expert * n * 4..(expert + 1) * n * 4];
            let floats: Vec<f32> = source
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect();
            let mut alone = Vec::new();
            octavo_quant::quantize(TensorType::MXFP4, &floats, row, None, &mut alone).unwrap();
            assert!(blocks == alone, "{} expert {expert}", t.name);
        }
    }
}

/// A last layer that predicts tokens beyond the next (MTP) sees no text, so no importance matrix
/// covers it; any other layer without entries means another model's matrix.
#[test]
fn importance_may_lack_layers_that_only_predict() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("imatrix.gguf");
    let mut file = File::running("llama");
    importance(&file.gguf(), "blk.1.", &weights);
    let found = Importance::open(&weights).unwrap();
    let check = |model: &Gguf| {
        let plan = Plan::new(model, Some(&found), &options(Target::Q4_0)).unwrap();
        plan.check().map_err(|error| error.to_string())
    };
    let error = check(&file.gguf()).unwrap_err();
    assert!(error.contains("got none for layer 1"), "{error}");
    file.set("nextn_predict_layers", Val::U32(1));
    assert_eq!(check(&file.gguf()), Ok(()));
}

/// ggml counts dimensions up to the last that is not 1, and writes only those.
#[test]
fn ones_at_the_end_of_dimensions_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = File::running("llama");
    file.tensor("blk.0.attn_norm.weight").dims = vec![64, 1, 1];
    let n = file.tensor("output.weight").dims[1];
    file.tensor("output.weight").dims = vec![64, n, 1];
    let model = file.gguf();
    for target in [Target::Q8_0, Target::COPY] {
        let out = dir.path().join(target.name());
        ours(&model, None, target, &out).unwrap();
        let made = open(&out);
        let dims = |name: &str| made.tensor(name).unwrap().dims.clone();
        assert_eq!(dims("blk.0.attn_norm.weight"), [64], "{target}");
        assert_eq!(dims("output.weight"), [64, n], "{target}");
    }
}
