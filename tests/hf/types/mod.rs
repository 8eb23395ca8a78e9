//! Folders of every type that can be opened, made of small GGUF files by hand: the same tensors,
//! keys and logits as the file, bit for bit.
//!
//! Names and orders are written down a second time here, from what transformers does with its
//! weights, and not taken from the table that is tested.

mod cases;
mod converter;
mod delta;
mod embedders;
mod encoders;
mod gemma4;
mod hybrids;
mod inverse;
mod mixtures;
mod names;
mod refused;
mod second_wave;
mod seeing;
pub(crate) mod towers;
mod uses;

use std::collections::BTreeMap;

use super::spm::model_around;
use super::*;
use gguf_rs_lite::Writer;
use octavo_model::Arch;
use serde_json::{Value, json};

use cases::{CASES, Case};

/// Returns all cases.
fn all() -> impl Iterator<Item = &'static Case> {
    let all = [
        CASES,
        mixtures::CASES,
        second_wave::CASES,
        gemma4::CASES,
        delta::CASES,
        seeing::CASES,
        hybrids::CASES,
        embedders::CASES,
        encoders::CASES,
    ];
    all.into_iter().flatten()
}

/// Returns the first case of a `model_type`.
fn case(model_type: &str) -> &'static Case {
    let found = all().find(|case| case.model_type == model_type);
    found.unwrap_or_else(|| panic!("no case of {model_type}"))
}

/// Returns the first case of a file.
fn case_of(file: &str) -> &'static Case {
    let found = all().find(|case| case.file == file);
    found.unwrap_or_else(|| panic!("no case of {file}"))
}

/// Values of a tensor, and its shape in Hugging Face's order.
#[derive(Clone)]
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Returns a file's tensors as numbers.
fn numbers(gguf: &Gguf) -> BTreeMap<String, Tensor> {
    let read = |t: &TensorInfo| {
        let mut values = vec![0.0; t.n_elements() as usize];
        octavo_quant::dequantize(t.ty, gguf.data(t), &mut values).expect("whole blocks");
        let shape = t.dims.iter().rev().map(|d| *d as usize).collect();
        (t.name.clone(), Tensor { shape, values })
    };
    gguf.tensors().iter().map(read).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Returns the file with numbers that folders can have: norms less one and more one are rounded,
/// and some keys follow from others.
fn expected(case: &Case, model: &Gguf, path: &Path) -> Gguf {
    let mut writer = Writer::new();
    for (key, value) in model.keys() {
        writer.set(key, value);
    }
    for (key, value) in case.set {
        writer.set(key, *value);
    }
    for (name, tensor) in numbers(model) {
        if case.dropped.contains(&name.as_str()) {
            continue;
        }
        let rounded = |v: &f32| match name.ends_with(".ssm_a") {
            true => delta::rounded_decay(*v),
            false if case.adds_one(&name) => (v - 1.0) + 1.0,
            false => *v,
        };
        let values: Vec<f32> = tensor.values.iter().map(rounded).collect();
        let dims: Vec<u64> = tensor.shape.iter().rev().map(|d| *d as u64).collect();
        writer.tensor(&name, &dims, TensorType::F32, bytes(&values));
    }
    writer.write_file(path).expect("written");
    open(path)
}

/// Makes the folder of a case: the vocabulary of the file, written as for other folders, and
/// settings and tensors by hand.
fn folder(case: &Case, model: &Gguf, dir: &TempDir) -> PathBuf {
    let path = dir.path().join("model");
    let written = vocabulary(model, &path);
    let mut config = (case.config)();
    for key in ["bos_token_id", "eos_token_id"] {
        config[key] = written[key].clone();
    }
    if !case.pooling.is_empty() {
        embedders::with_pooling(case.pooling, &path);
    }
    config["model_type"] = json!(case.model_type);
    for name in case.settings.iter().filter(|name| name.contains("factors")) {
        let of_file = numbers(model).remove(*name).expect("there").values;
        let setting = if name.contains("long") {
            "long_factor"
        } else {
            "short_factor"
        };
        config["rope_scaling"][setting] = json!(of_file);
    }
    let mut sections = ["text_config", "llm_config"].into_iter();
    let section = sections.find(|section| !config[*section].is_null());
    let name = |key: &str| match section {
        Some(section) => format!("{section}/{key}"),
        None => key.to_owned(),
    };
    let size = format!("/{}", name("vocab_size"));
    if let Some(size) = config.pointer_mut(&size) {
        *size = written["vocab_size"].clone();
    } else {
        config["vocab_size"] = written["vocab_size"].clone();
    }
    std::fs::write(path.join("config.json"), config.to_string()).expect("written");
    save(&inverse::tensors(case, numbers(model)), &path);
    path
}

/// Writes the files of the vocabulary; returns the settings that belong to it.
fn vocabulary(model: &Gguf, path: &Path) -> Value {
    match model.str("tokenizer.ggml.model").expect("a string") {
        Some("bert") => return json!({ "vocab_size": embedders::wordpiece(model, path) }),
        Some("t5") => return json!({ "vocab_size": embedders::unigram(model, path) }),
        _ => {}
    }
    hf::write(&model_around(model, |_| {}), path).expect("a tokenizer");
    let written = std::fs::read(path.join("config.json")).expect("there");
    serde_json::from_slice(&written).expect("JSON")
}

fn save(tensors: &BTreeMap<String, Tensor>, folder: &Path) {
    save_as(safetensors::Dtype::F32, tensors, folder);
}

/// Writes the numbers as F32, F16 or BF16.
fn save_as(dtype: safetensors::Dtype, tensors: &BTreeMap<String, Tensor>, folder: &Path) {
    let ty = match dtype {
        safetensors::Dtype::F16 => TensorType::F16,
        safetensors::Dtype::BF16 => TensorType::BF16,
        _ => TensorType::F32,
    };
    let bytes = |t: &Tensor| {
        let mut out = Vec::new();
        octavo_quant::quantize(ty, &t.values, t.values.len(), None, &mut out).expect("numbers");
        out
    };
    let data: Vec<(&String, &Tensor, Vec<u8>)> = tensors
        .iter()
        .map(|(name, t)| (name, t, bytes(t)))
        .collect();
    let views = data.iter().map(|(name, t, bytes)| {
        let view = safetensors::tensor::TensorView::new(dtype, t.shape.clone(), bytes);
        (name.as_str(), view.expect("as many bytes"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors"))
        .expect("written");
}

/// Returns a shape without ones at its end, which mean nothing.
fn trimmed(t: &TensorInfo) -> &[u64] {
    let ones = t.dims.iter().rev().take_while(|d| **d == 1).count();
    &t.dims[..t.dims.len() - ones]
}

fn same_tensors(ours: &Gguf, theirs: &Gguf, what: &str) {
    let names = |g: &Gguf| -> Vec<String> {
        let mut names: Vec<_> = g.tensors().iter().map(|t| t.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(ours), names(theirs), "{what}");
    for t in ours.tensors() {
        let other = theirs.tensor(&t.name).expect("the same names");
        let (a, b) = ((trimmed(t), t.ty), (trimmed(other), other.ty));
        assert_eq!(a, b, "{what}: {}", t.name);
        assert!(ours.data(t) == theirs.data(other), "{what}: {}", t.name);
    }
}

fn same_settings(case: &Case, ours: &Gguf, theirs: &Gguf, what: &str) {
    let arch = theirs.str("general.architecture").expect("a string");
    let arch = arch.expect("there");
    for (key, value) in theirs.keys().filter(|(key, _)| key.starts_with(arch)) {
        if case.other_keys.contains(&key) {
            continue;
        }
        let other = ours.get(key).unwrap_or_else(|| panic!("{what}: no {key}"));
        assert_eq!(shown(value), shown(other), "{what}: {key}");
    }
    let [a, b] = [ours, theirs].map(|g| Tokenizer::from_gguf(g).expect("a tokenizer"));
    let encode = |t: &Tokenizer| {
        // llama.cpp begins Gemma 4's texts with BOS, whatever a file says
        let options = match arch {
            "gemma4" => EncodeOptions::PIECE,
            _ => EncodeOptions::PROMPT,
        };
        t.encode(TEXT.as_bytes(), options).expect("tokens")
    };
    assert_eq!(encode(&a), encode(&b), "{what}");
    // these files have another name for the patterns of Phi 2 and SmolVLM than a folder gets, and
    // those of Gemma 4 have another kind of tokenizer
    if case.file != "phi2" && !case.file.contains("idefics3") && arch != "gemma4" {
        assert_eq!(a.pre_name(), b.pre_name(), "{what}");
    }
}

#[test]
fn folders_of_every_type_are_their_files() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    for case in all() {
        let dir = TempDir::new().expect("a folder");
        let what = format!("{} as {}", case.file, case.model_type);
        let model = case.model(&models);
        let file = dir.path().join("expected.gguf");
        let expected = expected(case, &model, &file);
        let folder = folder(case, &model, &dir);
        let view = hf::open(&folder, &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        same_tensors(&view, &expected, &what);
        same_settings(case, &view, &expected, &what);
        // other types can be opened although no architecture here runs them
        let arch = expected.str("general.architecture").expect("a string");
        if !Arch::all().iter().any(|known| Some(known.name()) == arch) {
            let error = hf::check(&view)
                .expect_err("an unknown architecture")
                .to_string();
            assert!(error.contains("general.architecture"), "{error}");
            continue;
        }
        let converted = dir.path().join("converted.gguf");
        convert(&view, Some(TensorType::F32), &converted, 1);
        same_tensors(&open(&converted), &expected, &what);
        if !case.pooling.is_empty() || expected.tensor("cls.output.weight").is_some() {
            let [a, b] = [&folder, &file].map(|path| embedders::embedding(path));
            assert!(a == b, "{what}: another vector");
            continue;
        }
        let isa = Isa::available().into_iter().last().expect("one");
        let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 250).collect();
        let [a, b] = [&folder, &file].map(|path| {
            let engine = load(path, isa, true);
            [Phase::Prefill, Phase::Decode].map(|phase| logits(&engine, &tokens, phase))
        });
        let bits = |all: [Vec<f32>; 2]| all.map(|l| l.iter().map(|x| x.to_bits()).collect());
        let (a, b): ([Vec<u32>; 2], [Vec<u32>; 2]) = (bits(a), bits(b));
        assert!(a == b, "{what}: other logits");
    }
}

/// MXFP4 blocks are the file's, although their codes are in another order in the folder.
#[test]
fn blocks_of_gpt_oss_are_the_files() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let model = open(&models.join("gpt-oss-MXFP4_MOE.gguf"));
    let dir = TempDir::new().expect("a folder");
    let case = Case {
        config: mixtures::gpt_oss_blocks,
        ..*case("gpt_oss")
    };
    let folder = folder(&case, &model, &dir);
    inverse::with_blocks(&model, &folder);
    let view = hf::open(&folder, &OpenOptions::default()).expect("read");
    let mut blocks = 0;
    for t in model.tensors().iter().filter(|t| t.ty == TensorType::MXFP4) {
        let other = view.tensor(&t.name).expect("there");
        assert_eq!((&t.dims, t.ty), (&other.dims, other.ty), "{}", t.name);
        assert!(model.data(t) == view.data(other), "{}", t.name);
        blocks += 1;
    }
    assert_eq!(blocks, 6, "three in each layer");
    let path = dir.path().join("converted.gguf");
    convert(&view, Some(TensorType::F16), &path, 1);
    let converted = open(&path);
    let ty = |name: &str| converted.tensor(name).expect("there").ty;
    assert_eq!(ty("blk.0.ffn_up_exps.weight"), TensorType::MXFP4);
    assert_eq!(ty("blk.0.attn_q.weight"), TensorType::F16);
    for kept in ["ffn_gate_inp.weight", "ffn_up_exps.bias"] {
        assert_eq!(ty(&format!("blk.0.{kept}")), TensorType::F32, "{kept}");
    }
    hf::check(&converted).expect("a model");
}
