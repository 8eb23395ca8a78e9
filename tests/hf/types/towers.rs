//! Vision encoders in folders: made of the small mmproj files by hand, the same as these files, and
//! refused by name.

use super::seeing::CASES;
use super::*;
use crate::cli::{bad, good};
use octavo_vision::Tower;

/// The two vision encoders: their files, and the folder's `model_type`.
const TOWERS: [(&str, &str); 2] = [
    ("vision/vl-a-mmproj-F32.gguf", "qwen3_vl"),
    ("vision/q25/vl-q25-mmproj-F32.gguf", "qwen2_5_vl"),
];

/// Returns the settings of the first one.
pub(super) fn qwen3() -> Value {
    json!({ "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "deepstack_visual_indexes": [1, 2], "num_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh" })
}

/// Returns the settings of the second one.
pub(super) fn qwen25() -> Value {
    json!({ "depth": 3, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_chans": 3,
        "fullatt_block_indexes": [2], "window_size": 112, "hidden_act": "silu" })
}

/// A folder's names of a vision encoder's tensors, of those that map one to one.
const NAMES: &str = "v.patch_embd.bias=patch_embed.proj.bias v.position_embd=pos_embed ln1=norm1 \
    ln2=norm2 attn_qkv=attn.qkv attn_out=attn.proj";
const NAMES_OF_QWEN3: &str = "ffn_up=mlp.linear_fc1 ffn_down=mlp.linear_fc2 v.post_ln=merger.norm \
    mm.0=merger.linear_fc1 mm.2=merger.linear_fc2 fc1=linear_fc1 fc2=linear_fc2 norm=norm";
const NAMES_OF_QWEN25: &str = "ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj \
    v.post_ln=merger.ln_q mm.0=merger.mlp.0 mm.2=merger.mlp.2";

/// Returns the folder's tensors of a vision encoder.
fn tensors(tower: &Gguf, prefix: &str) -> BTreeMap<String, Tensor> {
    let mut file = numbers(tower);
    let mut all = BTreeMap::new();
    // [kernels, colours, frames, height, width] of two frames
    let frames = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
    let frames = frames.map(|name| file.remove(name).expect("kernels"));
    let [kernels, colours, height, width] = frames[0].shape[..] else {
        panic!("four dimensions");
    };
    let size = height * width;
    let images = frames[0]
        .values
        .chunks(size)
        .zip(frames[1].values.chunks(size));
    let both = images.flat_map(|(a, b)| [a, b].concat()).collect();
    all.insert(
        "patch_embed.proj.weight".to_owned(),
        Tensor {
            shape: vec![kernels, colours, 2, height, width],
            values: both,
        },
    );
    fuse_thirds(&mut file);
    let of_qwen3 = file.contains_key("v.position_embd.weight");
    let more = if of_qwen3 {
        NAMES_OF_QWEN3
    } else {
        NAMES_OF_QWEN25
    };
    let pairs = NAMES.split_whitespace().chain(more.split_whitespace());
    let names: BTreeMap<&str, &str> = pairs.filter_map(|pair| pair.split_once('=')).collect();
    // the second block with projected outputs is number 1 of the list
    let listed = |block: usize| block - 1;
    for (name, tensor) in file {
        let (stem, suffix) = name.rsplit_once('.').expect("a suffix");
        let parts: Vec<&str> = stem.split('.').collect();
        let to = match parts[..] {
            _ if names.contains_key(name.as_str()) => names[name.as_str()].to_owned(),
            ["v", "blk", block, part] => format!("blocks.{block}.{}.{suffix}", names[part]),
            ["v", "deepstack", block, part] => {
                let i = listed(block.parse().expect("a number"));
                format!("deepstack_merger_list.{i}.{}.{suffix}", names[part])
            }
            _ => format!("{}.{suffix}", names[stem]),
        };
        all.insert(to, tensor);
    }
    let prefixed = all
        .into_iter()
        .map(|(name, t)| (format!("{prefix}{name}"), t));
    prefixed.collect()
}

/// Joins queries, keys and values of each block.
pub(super) fn fuse_thirds(file: &mut BTreeMap<String, Tensor>) {
    let blocks = file.keys().filter(|name| name.contains("attn_q.")).cloned();
    for q in blocks.collect::<Vec<_>>() {
        let parts = ["attn_q.", "attn_k.", "attn_v."];
        let parts = parts.map(|part| file.remove(&q.replace("attn_q.", part)).expect("all three"));
        let mut shape = parts[0].shape.clone();
        shape[0] *= 3;
        let values = parts.iter().flat_map(|t| t.values.clone()).collect();
        file.insert(q.replace("attn_q.", "attn_qkv."), Tensor { shape, values });
    }
}

/// Returns the mean that is subtracted from channels, and the divisor.
pub(super) fn colours(tower: &Gguf) -> Value {
    let three = |key: &str| -> Vec<f32> {
        let Some(gguf_rs_lite::Value::Array(all)) = tower.get(key) else {
            panic!("no {key}");
        };
        let number = |v| match v {
            gguf_rs_lite::Value::F32(x) => x,
            _ => panic!("{key}: not in F32"),
        };
        all.iter().map(number).collect()
    };
    json!({
        "image_mean": three("clip.vision.image_mean"),
        "image_std": three("clip.vision.image_std"),
    })
}

/// A folder of a text model and a vision encoder.
pub(super) struct Both {
    pub(super) dir: TempDir,
    pub(super) folder: PathBuf,
    pub(super) tower: Gguf,
}

impl Both {
    /// Creates the folder of one of two types; `None` if the shared folder is absent.
    fn new(model_type: &str, dtype: safetensors::Dtype) -> Option<Both> {
        let models = shared("arch/models")?;
        let file = TOWERS.iter().find(|tower| tower.1 == model_type);
        let tower = open(&shared(file.expect("one of two").0)?);
        let dir = TempDir::new().expect("a folder");
        let case = CASES.iter().find(|case| case.model_type == model_type);
        let case = case.expect("a case");
        let text = case.model(&models);
        let folder = folder(case, &text, &dir);
        let prefix = match model_type {
            "qwen3_vl" => "model.visual.",
            _ => "visual.",
        };
        let mut all = inverse::tensors(case, numbers(&text));
        all.extend(tensors(&tower, prefix));
        save_as(dtype, &all, &folder);
        let path = folder.join("preprocessor_config.json");
        std::fs::write(path, colours(&tower).to_string()).expect("written");
        Some(Both { dir, folder, tower })
    }

    pub(super) fn open(&self) -> Result<Gguf, hf::Error> {
        hf::open_tower(&self.folder, &OpenOptions::default())
    }

    /// Changes a settings file.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let path = self.folder.join(name);
        let text = std::fs::read(&path).expect("there");
        let mut settings = serde_json::from_slice(&text).expect("JSON");
        change(&mut settings);
        std::fs::write(path, settings.to_string()).expect("written");
    }
}

/// Creates the folders of both encoders, with their names.
pub(super) fn folders() -> Option<Vec<(&'static str, Both)>> {
    let of = |model_type| Some((model_type, Both::new(model_type, safetensors::Dtype::F32)?));
    TOWERS
        .into_iter()
        .map(|(_, model_type)| of(model_type))
        .collect()
}

/// Makes a folder of a text model and a vision encoder, which lives as long as the temporary
/// folder; `None` if the shared folder is absent.
pub(crate) fn seeing_folder() -> Option<(TempDir, PathBuf)> {
    let both = Both::new("qwen3_vl", safetensors::Dtype::F32)?;
    Some((both.dir, both.folder))
}

#[test]
fn towers_of_folders_are_their_files() {
    for (_, model_type) in TOWERS {
        let Some(both) = Both::new(model_type, safetensors::Dtype::F32) else {
            return;
        };
        let view = both.open().expect("read");
        same_tensors(&view, &both.tower, model_type);
        for (key, value) in both.tower.keys() {
            let ours = view.get(key);
            // the converter derives it from all tensors, and a folder has another name
            if !["general.file_type", "general.name"].contains(&key) {
                assert_eq!(ours.map(shown), Some(shown(value)), "{model_type}: {key}");
            }
        }
        Tower::load(&view).expect("a tower");
        // the folder's text model has nothing of the vision encoder
        hf::check(&hf::open(&both.folder, &OpenOptions::default()).expect("read")).expect("text");
    }
}

/// Qwen 3.5 has Qwen 3 VL's vision encoder, which projects the results of no other blocks.
#[test]
fn qwen_3_5_has_a_tower_without_deepstack() {
    let Some(path) = shared("vision2/qwen35/qwen35-a-mmproj-F32.gguf") else {
        return;
    };
    let tower = open(&path);
    let count = |key: &str| {
        let n = tower.u32(&format!("clip.vision.{key}"));
        n.expect("a number").expect("a key")
    };
    let positions = tower
        .tensor("v.position_embd.weight")
        .expect("a table")
        .dims[1];
    let vision = json!({ "depth": count("block_count"), "hidden_size": count("embedding_length"),
        "intermediate_size": count("feed_forward_length"),
        "num_heads": count("attention.head_count"), "patch_size": count("patch_size"),
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "deepstack_visual_indexes": [], "num_position_embeddings": positions,
        "hidden_act": "gelu_pytorch_tanh" });
    let eps = tower.f32("clip.vision.attention.layer_norm_epsilon");
    let text = json!({ "hidden_size": count("projection_dim"),
        "rms_norm_eps": eps.expect("a number").expect("a key") });
    let dir = TempDir::new().expect("a folder");
    let write = |name: &str, value: &Value| {
        std::fs::write(dir.path().join(name), value.to_string()).expect("written");
    };
    write("preprocessor_config.json", &colours(&tower));
    let all = tensors(&tower, "model.visual.");
    save_as(safetensors::Dtype::F32, &all, dir.path());
    for model_type in ["qwen3_5", "qwen3_5_moe"] {
        let config = json!({ "model_type": model_type, "text_config": text,
            "vision_config": vision });
        write("config.json", &config);
        let view = hf::open_tower(dir.path(), &OpenOptions::default()).expect("read");
        same_tensors(&view, &tower, model_type);
        assert_eq!(Tower::load(&view).expect("a tower").width(), 32);
    }
}

/// Types are chosen as by llama.cpp's converter: vectors and position embeddings are F32, patch
/// kernels F16 or F32.
#[test]
fn towers_have_the_converters_types() {
    use safetensors::Dtype;
    let (f32, f16, bf16) = (TensorType::F32, TensorType::F16, TensorType::BF16);
    for (dtype, to, matrices, kernels) in [
        (Dtype::F32, None, f32, f32),
        (Dtype::F32, Some(f16), f16, f16),
        (Dtype::F32, Some(bf16), bf16, f32),
        (Dtype::F16, None, f16, f16),
        (Dtype::F16, Some(f32), f32, f32),
        (Dtype::F16, Some(bf16), bf16, f32),
        (Dtype::BF16, None, bf16, f32),
        (Dtype::BF16, Some(f16), f16, f16),
    ] {
        let Some(both) = Both::new("qwen3_vl", dtype) else {
            return;
        };
        let path = both.dir.path().join("mmproj.gguf");
        convert(&both.open().expect("read"), to, &path, 2);
        let written = open(&path);
        for t in written.tensors() {
            let expected = match t.name.as_str() {
                name if name.starts_with("v.patch_embd.weight") => kernels,
                "v.position_embd.weight" => f32,
                _ if t.dims.len() == 1 => f32,
                _ => matrices,
            };
            assert_eq!(t.ty, expected, "{dtype:?} as {to:?}: {}", t.name);
        }
        let ftype = [(f32, 0), (f16, 1), (bf16, 32)];
        let ftype = ftype.iter().find(|ty| ty.0 == matrices).map(|ty| ty.1);
        assert_eq!(written.u32("general.file_type").expect("a number"), ftype);
        Tower::load(&written).expect("a tower");
    }
}

#[test]
fn a_folder_becomes_a_pair_of_files() {
    let Some(both) = Both::new("qwen3_vl", safetensors::Dtype::F32) else {
        return;
    };
    let at = |name: &str| both.dir.path().join(name).display().to_string();
    let folder = both.folder.display().to_string();
    let (model, tower) = (at("model.gguf"), at("mmproj.gguf"));
    let error = bad(&["convert", &folder, &model, "--mmproj", &model], 2);
    assert!(
        error.contains("expected another file than the model's"),
        "{error}"
    );
    // however the path is written
    let other = at("model/../model.gguf");
    let error = bad(
        &["convert", &folder, &model, "--mmproj", &other, "--force"],
        2,
    );
    assert!(
        error.contains("expected another file than the model's"),
        "{error}"
    );
    good(&["convert", &folder, &model, "--mmproj", &tower]);
    same_tensors(&open(Path::new(&tower)), &both.tower, "converted");
    let error = bad(
        &["convert", &folder, &at("other.gguf"), "--mmproj", &tower],
        1,
    );
    assert!(error.contains("--force replaces it"), "{error}");
    assert!(!Path::new(&at("other.gguf")).exists(), "nothing is begun");
    let image = shared("vision/images/wide.png").expect("it is there");
    let image = image.display().to_string();
    let logits = |model: &str, tower: &str, out: &str| {
        let out = at(out);
        let prompt = ["-p", "What is in <__media__>?", "--dump", &out];
        let see = ["logits", model, "--mmproj", tower, "--image", &image];
        good(&[&see[..], &prompt[..]].concat());
        let dumped = open(Path::new(&out));
        let logits = dumped.tensor("logits").expect("dumped");
        dumped.data(logits).to_vec()
    };
    // a folder is its own vision encoder
    let of_folder = logits(&folder, &folder, "a.gguf");
    assert!(
        of_folder == logits(&model, &tower, "b.gguf"),
        "other logits"
    );
}

type Change = fn(&mut Value);

/// Types, the named key or tensor, the expectation, and the change that causes the error.
const SETTINGS: &[(&str, &str, &str, Change)] = &[
    ("qwen3_vl", "model_type", "one of qwen2_5_vl", |c| {
        c["model_type"] = json!("qwen2_vl");
    }),
    ("qwen3_vl", "vision_config", "nothing", |c| {
        c["vision_config"] = Value::Null;
    }),
    ("qwen3_vl", "vision_config.depth", "at most 69", |c| {
        c["vision_config"]["depth"] = json!(4_000_000_000_u32);
    }),
    ("qwen3_vl", "vision_config.num_heads", "nothing", |c| {
        c["vision_config"]["num_heads"] = Value::Null;
    }),
    ("qwen3_vl", "vision_config.in_channels", "3", |c| {
        c["vision_config"]["in_channels"] = json!(1);
    }),
    ("qwen3_vl", "temporal_patch_size", "2", |c| {
        c["vision_config"]["temporal_patch_size"] = json!(1);
    }),
    ("qwen3_vl", "vision_config.hidden_act", "quick_gelu", |c| {
        c["vision_config"]["hidden_act"] = json!("quick_gelu");
    }),
    ("qwen3_vl", "deepstack_visual_indexes", "below 4", |c| {
        c["vision_config"]["deepstack_visual_indexes"] = json!([1, 4]);
    }),
    ("qwen3_vl", "deepstack_visual_indexes", "each larger", |c| {
        c["vision_config"]["deepstack_visual_indexes"] = json!([2, 1]);
    }),
    // no setting says where the second list of tensors belongs
    (
        "qwen3_vl",
        "deepstack_merger_list.1",
        "a name that is none's",
        |c| {
            c["vision_config"]["deepstack_visual_indexes"] = json!([1]);
        },
    ),
    ("qwen2_5_vl", "fullatt_block_indexes", "nothing", |c| {
        c["vision_config"]["fullatt_block_indexes"] = Value::Null;
    }),
    ("qwen2_5_vl", "fullatt_block_indexes", "[1, 2]", |c| {
        c["vision_config"]["fullatt_block_indexes"] = json!([1, 2]);
    }),
    ("qwen2_5_vl", "vision_config.window_size", "112", |c| {
        c["vision_config"]["window_size"] = json!(56);
    }),
    ("qwen2_5_vl", "spatial_merge_size", "2", |c| {
        c["vision_config"]["spatial_merge_size"] = json!(4);
    }),
];

#[test]
fn towers_that_cannot_be_read_are_refused_by_name() {
    for (model_type, named, expected, change) in SETTINGS {
        let Some(both) = Both::new(model_type, safetensors::Dtype::F32) else {
            return;
        };
        both.change("config.json", change);
        let error = both.open().map(drop).expect_err(named).to_string();
        assert!(
            error.contains(named) && error.contains(expected),
            "{named}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    let Some(both) = Both::new("qwen3_vl", safetensors::Dtype::F32) else {
        return;
    };
    both.change("preprocessor_config.json", |c| {
        c["image_std"] = json!([0.5, 0.5])
    });
    let error = both.open().map(drop).expect_err("two").to_string();
    assert!(
        error.contains("image_std") && error.contains("three colours"),
        "{error}"
    );
    // the other file counts, whatever the first one has
    let other = json!({ "image_processor": { "image_std": [1.0, 2.0, 4.0] } });
    let path = both.folder.join("processor_config.json");
    std::fs::write(&path, other.to_string()).expect("written");
    let tower = Tower::load(&both.open().expect("read")).expect("a tower");
    assert_eq!(tower.hparams.std, [1.0, 2.0, 4.0]);
    assert_eq!(tower.hparams.mean, [0.5, 0.5, 0.5]);
    for name in ["processor_config.json", "preprocessor_config.json"] {
        std::fs::remove_file(both.folder.join(name)).expect("there");
    }
    let error = both.open().map(drop).expect_err("none").to_string();
    assert!(error.contains("preprocessor_config.json"), "{error}");
}
