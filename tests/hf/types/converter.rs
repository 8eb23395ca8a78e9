//! Comparison with llama.cpp's converter, and settings as transformers 5 writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::*;

/// SHA-256 of the tensors that llama.cpp's converter (of the package llama-cpp-python 0.3.36)
/// writes for the folders of the cases with `--outtype f16`, by file and type; made by
/// `tools/converter_goldens.py`. Four cases are left out: experts of Gemma 4, which it keeps in one
/// tensor, and folders of a Granite 4 without Mamba layers, of a reranker and of Nomic's BERT that
/// lack settings it needs. Lines of `tower.TYPE` are of vision encoders; these, and those of the
/// text models beside them, are by the converter of llama.cpp 0.5.0-dev.
const GOLDENS: &str = include_str!("converter.txt");

/// Returns the name of a case in the list.
fn name(case: &Case) -> String {
    let stem = case.file.rsplit('/').next().unwrap_or_default();
    format!("{stem}.{}", case.model_type)
}

/// Prefix of the lines of vision encoders.
const TOWER: &str = "tower.";

/// Hashes names, shapes, types and bytes of all tensors, in order. Decays of recurrent layers are
/// left out: PyTorch's exponential is not always rounded to the nearest float. So is the row that
/// ends lines of images, which this version of the converter does not find in folders.
fn hash(gguf: &Gguf) -> String {
    let mut hash = Sha256::new();
    for t in gguf
        .tensors()
        .iter()
        .filter(|t| !t.name.ends_with(".ssm_a") && t.name != "v.token_embd.img_break")
    {
        let shape: Vec<String> = trimmed(t).iter().map(u64::to_string).collect();
        hash.update(format!("{} {} {}\n", t.name, shape.join("x"), t.ty.name()));
        hash.update(gguf.data(t));
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string grows");
        hex
    })
}

/// Returns the hashes by name, of vision encoders or of text models.
fn goldens(of_towers: bool) -> BTreeMap<&'static str, &'static str> {
    let lines = GOLDENS.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(name, _)| name.starts_with(TOWER) == of_towers)
        .collect()
}

/// Copies a folder's files for llama.cpp's converter, where `OCTAVO_FOLDERS` names a folder.
fn keep(name: &str, folder: &Path) {
    let Some(keep) = std::env::var_os("OCTAVO_FOLDERS") else {
        return;
    };
    let to = PathBuf::from(keep).join(name);
    std::fs::create_dir_all(&to).expect("created");
    for file in std::fs::read_dir(folder).expect("listed") {
        let file = file.expect("a file");
        if file.path().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
        }
    }
}

/// The tensors of every case are those of llama.cpp's converter, byte by byte and in its order.
#[test]
fn tensors_are_those_of_llama_cpps_converter() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let goldens = goldens(false);
    let (mut seen, mut other) = (BTreeSet::new(), Vec::new());
    for case in all() {
        let (name, dir) = (name(case), TempDir::new().expect("a folder"));
        let folder = folder(case, &case.model(&models), &dir);
        keep(&name, &folder);
        let Some(golden) = goldens.get(name.as_str()) else {
            continue;
        };
        let view = hf::open(&folder, &OpenOptions::default()).expect("read");
        let path = dir.path().join("f16.gguf");
        convert(&view, Some(TensorType::F16), &path, 2);
        if hash(&open(&path)) != *golden {
            other.push(name.clone());
        }
        seen.insert(name);
    }
    assert_eq!(other, [""; 0], "other tensors");
    assert_eq!(seen.len(), goldens.len(), "cases in the list");
}

/// The same of every vision encoder.
#[test]
fn towers_are_those_of_llama_cpps_converter() {
    let (Some(mut all), Some(more)) = (towers::folders(), encoders::folders()) else {
        return;
    };
    all.extend(more);
    let goldens = goldens(true);
    let (mut seen, mut other) = (BTreeSet::new(), Vec::new());
    for (model_type, both) in all {
        let name = format!("{TOWER}{model_type}");
        keep(&name, &both.folder);
        let path = both.dir.path().join("f16.gguf");
        convert(&both.open().expect("read"), Some(TensorType::F16), &path, 2);
        if goldens.get(name.as_str()) != Some(&hash(&open(&path)).as_str()) {
            other.push(name.clone());
        }
        seen.insert(name);
    }
    assert_eq!(other, [""; 0], "other tensors");
    assert_eq!(seen.len(), goldens.len(), "vision encoders in the list");
}

/// Returns all keys with their values, and the names of all tensors.
fn contents(folder: &Path) -> (Vec<(String, String)>, Vec<String>) {
    let view = hf::open(folder, &OpenOptions::default()).expect("read");
    let keys = view
        .keys()
        .map(|(key, value)| (key.to_owned(), shown(value)));
    let names = view.tensors().iter().map(|t| t.name.clone());
    (keys.collect(), names.collect())
}

type Change = fn(&mut Value);

/// Types, and the change of their settings to what transformers 5 writes for the same model.
const SETTINGS: &[(&str, Change)] = &[
    ("mamba2", |c| {
        c["time_step_limit"] = json!([0.0, { "__float__": "Infinity" }]);
    }),
    ("granitemoehybrid", |c| {
        for kind in c["layer_types"].as_array_mut().expect("a list") {
            let mamba = *kind == "mamba";
            *kind = json!(if mamba {
                "linear_attention"
            } else {
                "full_attention"
            });
        }
    }),
    ("gemma4", |c| {
        let c = &mut c["text_config"];
        let dim = c["global_head_dim"].take();
        let heads = c["num_global_key_value_heads"].take();
        let types = c["layer_types"].as_array().expect("a list");
        let global = (0..)
            .zip(types)
            .filter(|(_, kind)| *kind == "full_attention");
        let own = json!({ "head_dim": dim, "num_key_value_heads": heads });
        c["per_layer_config"] = global.map(|(l, _)| (format!("{l}"), own.clone())).collect();
    }),
    ("qwen2_moe", |c| {
        c["use_sliding_window"] = json!(false);
        c["sliding_window"] = json!(0);
    }),
    ("qwen3_vl_moe", |c| {
        c["text_config"]["norm_topk_prob"].take();
    }),
    ("modernbert", |c| {
        let base = |theta: Value| json!({ "rope_type": "default", "rope_theta": theta });
        let (full, sliding) = (c["global_rope_theta"].take(), c["local_rope_theta"].take());
        let (full, sliding) = (base(full), base(sliding));
        c["rope_parameters"] = json!({ "full_attention": full, "sliding_attention": sliding });
    }),
    ("nomic_bert", |c| {
        let names = [
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_inner", "intermediate_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_positions", "max_position_embeddings"),
        ];
        let mut own = json!({ "hidden_act": "silu", "rope_parameters": {
            "rope_type": "default", "rope_theta": c["rotary_emb_base"] } });
        for (from, to) in names {
            own[to] = c[from].take();
        }
        let same = [
            "model_type",
            "vocab_size",
            "type_vocab_size",
            "max_trained_positions",
        ];
        for key in same {
            own[key] = c[key].take();
        }
        own["layer_norm_eps"] = c["layer_norm_epsilon"].take();
        *c = own;
    }),
];

#[test]
fn settings_of_transformers_5_mean_the_same() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    for (model_type, change) in SETTINGS {
        let (case, dir) = (case(model_type), TempDir::new().expect("a folder"));
        let folder = folder(case, &case.model(&models), &dir);
        let path = folder.join("config.json");
        let text = std::fs::read(&path).expect("there");
        let mut config: Value = serde_json::from_slice(&text).expect("JSON");
        let before = contents(&folder);
        change(&mut config);
        std::fs::write(&path, config.to_string()).expect("written");
        assert_eq!(contents(&folder), before, "{model_type}");
    }
}

/// Experts' matrices as transformers 5 writes them, with outputs in rows.
#[test]
fn experts_of_either_orientation_are_the_same() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let (case, dir) = (case("qwen3_vl_moe"), TempDir::new().expect("a folder"));
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let open = || hf::open(&folder, &OpenOptions::default()).expect("read");
    let published = hash(&open());
    let mut tensors = inverse::tensors(case, numbers(&model));
    let mut changed = 0;
    for (_, tensor) in tensors
        .iter_mut()
        .filter(|(name, _)| name.contains(".experts."))
    {
        let [experts, rows, cols] = tensor.shape[..] else {
            panic!("matrices of all experts");
        };
        let all = (0..experts * cols * rows).map(|i| {
            let (expert, at) = (i / (rows * cols), i % (rows * cols));
            tensor.values[expert * rows * cols + at % rows * cols + at / rows]
        });
        tensor.values = all.collect();
        tensor.shape = vec![experts, cols, rows];
        changed += 1;
    }
    assert!(changed > 0, "the model has experts");
    save(&tensors, &folder);
    assert_eq!(hash(&open()), published);
}

/// Where two flags disagree about an output matrix, the tensors decide.
#[test]
fn an_output_matrix_counts_unless_both_flags_deny_it() {
    let dir = TempDir::new().expect("a folder");
    let folder = dir.path().join("model");
    let gguf = with_matrices(&open(&models()[1]), &dir, TensorType::F16);
    let has_output = gguf.tensor("output.weight").is_some();
    assert!(has_output, "the model has an output matrix");
    hf::write(&gguf, &folder).expect("written");
    let path = folder.join("config.json");
    let text = std::fs::read(&path).expect("there");
    let config: Value = serde_json::from_slice(&text).expect("JSON");
    for (outer, inner, expected) in [
        (json!(true), json!(true), false),
        (json!(true), json!(false), true),
        (json!(false), json!(true), true),
        (json!(null), json!(true), false),
        (json!(null), json!(false), true),
    ] {
        let mut text = config.clone();
        text["tie_word_embeddings"] = inner.clone();
        let both = json!({ "model_type": config["model_type"],
            "tie_word_embeddings": outer, "text_config": text });
        std::fs::write(&path, both.to_string()).expect("written");
        let view = hf::open(&folder, &OpenOptions::default()).expect("read");
        let found = view.tensor("output.weight").is_some();
        assert_eq!(found, expected, "{outer} and {inner}");
    }
}

/// A post-processor of bytes adds no BOS, whatever the name of the pre-tokenizer implies.
#[test]
fn a_byte_level_post_processor_adds_no_tokens() {
    let dir = TempDir::new().expect("a folder");
    let folder = dir.path().join("model");
    let gguf = with_matrices(&open(&models()[0]), &dir, TensorType::F16);
    hf::write(&gguf, &folder).expect("written");
    let change = |name: &str, key: &str, value: Value| {
        let file = folder.join(name);
        let text = std::fs::read(&file).expect("there");
        let mut json: Value = serde_json::from_slice(&text).expect("JSON");
        json[key] = value;
        std::fs::write(&file, json.to_string()).expect("written");
    };
    change("tokenizer_config.json", "add_bos_token", Value::Null);
    change("tokenizer_config.json", "add_eos_token", Value::Null);
    let bytes = json!({ "type": "ByteLevel", "trim_offsets": false });
    let begins = json!({ "type": "TemplateProcessing", "single": [
        { "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } },
        { "Sequence": { "id": "A", "type_id": 0 } },
    ] });
    let both = json!({ "type": "Sequence", "processors": [bytes, begins] });
    for (processor, expected) in [
        (Value::Null, [None, None]),
        (bytes, [Some(false), Some(false)]),
        (both, [Some(true), Some(false)]),
    ] {
        change("tokenizer.json", "post_processor", processor.clone());
        let view = hf::open(&folder, &OpenOptions::default()).expect("read");
        let flags = ["bos", "eos"].map(|token| {
            let key = format!("tokenizer.ggml.add_{token}_token");
            view.bool(&key).expect("a flag")
        });
        assert_eq!(flags, expected, "{processor}");
    }
}
