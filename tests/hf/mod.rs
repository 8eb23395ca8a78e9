//! Hugging Face folders: the same model as the GGUF file, AWQ's numbers, and broken folders.

mod foreign;
mod hostile;
mod make;
mod minilm;
mod spm;
pub(crate) mod types;

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, TensorInfo, TensorType, Value, View};
use octavo_analysis::quantize::{Plan, Progress};
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::{shared, workspace_root};
use octavo_hf as hf;
use octavo_kernels::{Isa, IsaChoice};
use octavo_reference::golden::Full;
use octavo_reference::metrics::{nmse, top_k};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use tempfile::TempDir;

use crate::logits::{load, logits};

const TEXT: &str =
    "Tell me about a red fox: it's 12345 miles away,\n\n  isn't it? Über façade 你好 🙂 <|im_end|>";

/// Returns the committed models of all three architectures.
fn models() -> Vec<PathBuf> {
    let root = workspace_root().join("reference");
    [
        "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
        "models/rnd-llama-Q4_K_M.gguf",
        "models/rnd-qwen2-Q6_K.gguf",
    ]
    .map(|m| root.join(m))
    .to_vec()
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).expect("a sound file")
}

/// Returns a model's tensors, without random frequencies, which no setting describes.
fn tensors(gguf: &Gguf) -> impl Iterator<Item = &TensorInfo> {
    gguf.tensors()
        .iter()
        .filter(|t| t.name != "rope_freqs.weight")
}

/// Makes the model with all matrices in one type.
fn with_matrices(gguf: &Gguf, dir: &TempDir, ty: TensorType) -> Gguf {
    let path = dir.path().join(format!("{ty}.bin"));
    let mut bytes = Vec::new();
    let mut places = Vec::new();
    for t in tensors(gguf) {
        let mut values = vec![0.0; t.n_elements() as usize];
        octavo_quant::dequantize(t.ty, gguf.data(t), &mut values).expect("whole blocks");
        let fits = t.dims.len() == 2 && t.dims[0] % ty.block_len() as u64 == 0;
        // embeddings are plain in AWQ checkpoints
        let to = match t.name.starts_with("blk.") {
            true if fits => ty,
            false if fits && ty.block_len() == 1 => ty,
            _ if t.dims.len() == 2 => TensorType::F16,
            _ => TensorType::F32,
        };
        let start = bytes.len();
        octavo_quant::quantize(to, &values, t.dims[0] as usize, None, &mut bytes)
            .expect("whole rows");
        places.push((to, start..bytes.len()));
    }
    std::fs::write(&path, bytes).expect("written");
    let file = gguf_rs_lite::SharedFile::open(&path, &OpenOptions::default()).expect("there");
    let mut view = View::new(&path);
    for (key, value) in gguf.keys() {
        view.set(key, value);
    }
    for (t, (to, range)) in tensors(gguf).zip(places) {
        view.tensor(&t.name, &t.dims, to, &file, range)
            .expect("the right size");
    }
    view.open().expect("a sound model")
}

#[test]
fn a_folder_is_the_file_that_it_was_made_of() {
    for model in models() {
        let dir = TempDir::new().expect("a folder");
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16]
            .into_iter()
            .chain(TensorType::AWQ)
        {
            let gguf = with_matrices(&open(&model), &dir, ty);
            let folder = dir.path().join(format!("folder-{ty}"));
            hf::write(&gguf, &folder).expect("written");
            let back = hf::open(&folder, &OpenOptions::default()).expect("read");
            let what = format!("{} as {ty}", model.display());
            same_keys(&gguf, &back, &what);
            assert_eq!(gguf.tensors().len(), back.tensors().len(), "{what}");
            for t in gguf.tensors() {
                let other = back
                    .tensor(&t.name)
                    .unwrap_or_else(|| panic!("{what}: no {}", t.name));
                assert_eq!(
                    (&t.dims, t.ty),
                    (&other.dims, other.ty),
                    "{what}: {}",
                    t.name
                );
                assert!(
                    gguf.data(t) == back.data(other),
                    "{what}: {} differs",
                    t.name
                );
            }
        }
    }
}

/// The tokenizers library, for which tokenizer.json is written, reads the same tokens from it.
#[test]
fn the_tokenizers_library_reads_the_same_tokens() {
    for model in models() {
        let dir = TempDir::new().expect("a folder");
        let folder = dir.path().join("model");
        hf::write(
            &with_matrices(&open(&model), &dir, TensorType::F16),
            &folder,
        )
        .expect("written");
        let theirs = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json"))
            .expect("their library reads it");
        let ours = Tokenizer::from_gguf(&open(&model)).expect("a tokenizer");
        for text in [
            TEXT,
            "",
            " ",
            "a\r\n\tb",
            "<|im_start|>user\n3+4=7<|im_end|>",
            "l'été’s   naïve — ½ ７８９\u{301}",
        ] {
            let ids = ours.encode(
                text.as_bytes(),
                EncodeOptions {
                    add_special: false,
                    parse_special: true,
                },
            );
            let encoding = theirs.encode(text, false).expect("their library encodes");
            assert_eq!(
                ids.expect("tokens"),
                encoding.get_ids(),
                "{}: {text:?}",
                model.display()
            );
        }
    }
}

/// Weights in several files with an index are the same as in one.
#[test]
fn several_files_are_one_model() {
    let dir = TempDir::new().expect("a folder");
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    for folder in [&one, &two] {
        hf::write(
            &with_matrices(&open(&models()[0]), &dir, TensorType::AWQ_G64),
            folder,
        )
        .expect("written");
    }
    let bytes = std::fs::read(two.join("model.safetensors")).expect("there");
    std::fs::remove_file(two.join("model.safetensors")).expect("there");
    let all = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
    let mut map = serde_json::Map::new();
    for part in 0..2 {
        let name = format!("model-{part}.safetensors");
        // every other tensor: the parts of a weight are in different files
        let tensors: Vec<_> = all
            .tensors()
            .into_iter()
            .enumerate()
            .filter(|t| t.0 % 2 == part)
            .map(|t| t.1)
            .collect();
        map.extend(tensors.iter().map(|t| (t.0.clone(), name.clone().into())));
        safetensors::serialize_to_file(tensors, None, &two.join(name)).expect("written");
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(two.join("model.safetensors.index.json"), index).expect("written");
    let [one, two] =
        [&one, &two].map(|folder| hf::open(folder, &OpenOptions::default()).expect("read"));
    assert_eq!(two.part_names().count(), 3, "the folder and two files");
    for t in one.tensors() {
        assert!(
            one.data(t) == two.data(two.tensor(&t.name).expect("there")),
            "{}",
            t.name
        );
    }
}

/// LLaMA 3's frequencies are settings in a folder and a tensor in a file, with the same numbers.
#[test]
fn frequencies_come_back() {
    let dir = TempDir::new().expect("a folder");
    let folder = dir.path().join("model");
    hf::write(
        &with_matrices(&open(&models()[1]), &dir, TensorType::F16),
        &folder,
    )
    .expect("written");
    let path = folder.join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    config["rope_theta"] = 500_000.into();
    config["rope_scaling"] = serde_json::json!({
        "rope_type": "llama3",
        "factor": 32,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    });
    std::fs::write(&path, config.to_string()).expect("written");
    let read = |folder: &Path| {
        let gguf = hf::open(folder, &OpenOptions::default()).expect("read");
        let data = gguf
            .data(gguf.tensor("rope_freqs.weight").expect("divisors"))
            .to_vec();
        (gguf, data)
    };
    let (gguf, first) = read(&folder);
    let again = dir.path().join("again");
    hf::write(&gguf, &again).expect("written");
    assert_eq!(first, read(&again).1);
    assert_eq!(
        f32::from_le_bytes(*first.last_chunk().expect("four bytes")),
        32.0
    );
}

/// Formats a value with its type, and with its elements if it is an array.
fn shown(value: Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("{value:?} {:?}", array.iter().collect::<Vec<_>>()),
        value => format!("{value:?}"),
    }
}

/// Checks that every key that affects results is the same, and so is tokenization.
fn same_keys(gguf: &Gguf, back: &Gguf, what: &str) {
    let arch = gguf
        .str("general.architecture")
        .expect("a string")
        .expect("there")
        .to_owned();
    for (key, value) in gguf.keys().filter(|(key, _)| key.starts_with(&arch)) {
        let other = back.get(key).unwrap_or_else(|| panic!("{what}: no {key}"));
        assert_eq!(shown(value), shown(other), "{what}: {key}");
    }
    let [ours, theirs] = [gguf, back].map(|g| Tokenizer::from_gguf(g).expect("a tokenizer"));
    let options = EncodeOptions::PROMPT;
    assert_eq!(
        ours.encode(TEXT.as_bytes(), options).expect("tokens"),
        theirs.encode(TEXT.as_bytes(), options).expect("tokens"),
        "{what}"
    );
    assert_eq!(
        (ours.bos(), ours.eos(), ours.eog_ids()),
        (theirs.bos(), theirs.eos(), theirs.eog_ids()),
        "{what}"
    );
    assert_eq!(ours.pre_name(), theirs.pre_name(), "{what}");
    assert_eq!(
        gguf.str("tokenizer.chat_template").expect("text"),
        back.str("tokenizer.chat_template").expect("text")
    );
}

/// Returns the NMSE, and the number of positions with another first choice.
fn against(engine: &Engine, golden: &Full, phase: Phase) -> (f64, usize) {
    let ours = logits(engine, &golden.tokens, phase);
    let rows = ours
        .chunks_exact(golden.n_vocab)
        .zip(golden.exact.chunks_exact(golden.n_vocab));
    let other = rows.filter(|(a, b)| top_k(a, 1) != top_k(b, 1)).count();
    (nmse(&ours, &golden.exact).expect("as many logits"), other)
}

/// llama.cpp's logits of the exact dequantization: every instruction set, prefill and decode, and
/// the folder converted to F32.
#[test]
fn awq_is_what_llama_cpp_makes_of_its_exact_numbers() {
    let Some(goldens) = shared("goldens/awq") else {
        return;
    };
    let folder = goldens.join("tiny-qwen3-awq");
    let goldens: Vec<Full> = ["sum", "capital", "story"]
        .map(|name| {
            Full::read(&goldens.join(format!("logits/{name}.safetensors"))).expect("a golden")
        })
        .into();
    for isa in Isa::available() {
        let engine = load(&folder, isa, true);
        for phase in [Phase::Prefill, Phase::Decode] {
            let (mut positions, mut wrong) = (0, 0);
            for golden in &goldens {
                let (error, other) = against(&engine, golden, phase);
                assert!(error <= 1e-4, "{isa}: NMSE {error}");
                positions += golden.tokens.len();
                wrong += other;
            }
            assert!(
                100 * wrong <= positions,
                "{isa}: {wrong} of {positions} first choices differ"
            );
        }
    }
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("f32.gguf");
    let view = hf::open(&folder, &OpenOptions::default()).expect("read");
    convert(&view, Some(TensorType::F32), &path, 2);
    let exact = load(&path, Isa::Scalar, true);
    for golden in &goldens {
        let (error, other) = against(&exact, golden, Phase::Prefill);
        assert!(error <= 1e-9 && other == 0, "F32: NMSE {error}");
    }
}

/// Writes a folder as a file; returns the tensors and their rounding.
fn convert(
    view: &Gguf,
    to: Option<TensorType>,
    path: &Path,
    threads: usize,
) -> Vec<(String, Option<f32>)> {
    let mut rounded = Vec::new();
    let plan = Plan::of_folder(view, to, threads).expect("a plan");
    let written = plan.write(path, &mut |progress| {
        if let Progress::Done { change, rounding } = progress {
            rounded.push((change.tensor.name.clone(), rounding));
        }
    });
    written.expect("converted");
    rounded
}

/// Q4_1 keeps codes and scales and rounds only minima, by the error it reports; F32 is exact; F16
/// rounds.
#[test]
fn conversions_keep_the_numbers() {
    for model in models() {
        let dir = TempDir::new().expect("a folder");
        let folder = dir.path().join("awq");
        hf::write(
            &with_matrices(&open(&model), &dir, TensorType::AWQ_G32),
            &folder,
        )
        .expect("written");
        let view = hf::open(&folder, &OpenOptions::default()).expect("read");
        for to in [None, Some(TensorType::F32), Some(TensorType::F16)] {
            let path = dir.path().join(format!("{to:?}.gguf"));
            let rounding = convert(&view, to, &path, 3);
            let again = dir.path().join("again.gguf");
            convert(&view, to, &again, 1);
            assert!(
                std::fs::read(&path).expect("there") == std::fs::read(&again).expect("there"),
                "threads leave a trace"
            );
            let file = Gguf::open(
                &path,
                &OpenOptions {
                    strict: true,
                    ..OpenOptions::default()
                },
            )
            .expect("sound");
            for (name, rounding) in rounding {
                let (t, from) = (
                    file.tensor(&name).expect("there"),
                    view.tensor(&name).expect("there"),
                );
                let n = t.n_elements() as usize;
                let (mut a, mut b) = (vec![0.0; n], vec![0.0; n]);
                octavo_quant::dequantize(from.ty, view.data(from), &mut a).expect("whole blocks");
                octavo_quant::dequantize(t.ty, file.data(t), &mut b).expect("whole blocks");
                let blocks = view.data(from).chunks_exact(from.ty.block_bytes());
                for ((a, b), block) in a
                    .chunks_exact(from.ty.block_len())
                    .zip(b.chunks_exact(from.ty.block_len()))
                    .zip(blocks)
                {
                    let step = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
                    let allowed = |v: f32| match (rounding, t.ty) {
                        // the product is rounded to f32
                        (Some(r), _) => r * step + v.abs().max(16.0 * step) * f32::EPSILON,
                        (None, TensorType::F16) => v.abs() / 1024.0 + 1e-7,
                        (None, _) => 0.0,
                    };
                    for (a, b) in a.iter().zip(b) {
                        assert!(
                            (a - b).abs() <= allowed(*a),
                            "{name} to {:?}: {a} became {b}, {rounding:?}",
                            t.ty
                        );
                    }
                }
                assert_eq!(
                    rounding.is_some(),
                    from.ty == TensorType::AWQ_G32 && to.is_none(),
                    "{name}"
                );
            }
            let greedy = |path: &Path| {
                logits(
                    &load(path, Isa::Scalar, true),
                    &[3, 1, 4, 1, 5],
                    Phase::Prefill,
                )
            };
            let error = nmse(&greedy(&path), &greedy(&folder)).expect("as many logits");
            assert!(error < 1e-3, "{} to {to:?}: NMSE {error}", model.display());
        }
    }
}
