//! Folders with one thing wrong: the error is one line that says where.

use super::*;
use serde_json::{Value, json};

pub(super) struct Folder {
    _dir: TempDir,
    pub(super) path: PathBuf,
}

impl Folder {
    /// Makes a valid AWQ folder.
    pub(super) fn new() -> Folder {
        let dir = TempDir::new().expect("a folder");
        Folder::of(&with_matrices(
            &open(&models()[0]),
            &dir,
            TensorType::AWQ_G128,
        ))
    }

    pub(super) fn of(model: &Gguf) -> Folder {
        let dir = TempDir::new().expect("a folder");
        let path = dir.path().join("model");
        hf::write(model, &path).expect("written");
        Folder { _dir: dir, path }
    }

    pub(super) fn open(&self) -> Result<Engine, String> {
        let options = EngineOptions {
            isa: IsaChoice::Only(Isa::Scalar),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let source = ModelSource::Path(self.path.clone());
        Engine::load(&source, &options, &mut |_| {}).map_err(|error| error.to_string())
    }

    pub(super) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path.join(name)).expect("there")).expect("JSON")
    }

    /// Opens the folder with a file changed, and restores it.
    pub(super) fn with(
        &self,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Engine, String> {
        let before = std::fs::read(self.path.join(name)).expect("there");
        let mut value = self.json(name);
        change(&mut value);
        std::fs::write(self.path.join(name), value.to_string()).expect("written");
        let result = self.open();
        std::fs::write(self.path.join(name), before).expect("written");
        result
    }

    #[track_caller]
    pub(super) fn refuses(&self, name: &str, says: &[&str], change: impl FnOnce(&mut Value)) {
        let error = self.with(name, change).map(drop).expect_err("wrong");
        let about = says.first().map_or("", |_| name);
        for part in says.iter().chain(&[about]) {
            assert!(error.contains(part), "{error:?} does not say {part:?}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let folder = Folder::new();
    folder.open().expect("sound");
    let config =
        |says: &[&str], change: &dyn Fn(&mut Value)| folder.refuses("config.json", says, change);
    // gemv packing has words in other places
    folder.refuses("config.json", &[], |c| {
        c["quantization_config"]["version"] = json!("gemv")
    });
    config(&["version", "gemm or gemv", "gemv_fast"], &|c| {
        c["quantization_config"]["version"] = json!("gemv_fast")
    });
    config(&["quant_method", "awq"], &|c| {
        c["quantization_config"] = json!({ "bits": 4, "group_size": 128 })
    });
    config(&["quantization_config.w_bit", "4", "got 3"], &|c| {
        c["quantization_config"] = json!({ "w_bit": 3, "q_group_size": 128 })
    });
    config(&["version", "marlin"], &|c| {
        c["quantization_config"]["version"] = json!("marlin")
    });
    config(&["quant_method", "gptq"], &|c| {
        c["quantization_config"]["quant_method"] = json!("gptq")
    });
    config(&["bits", "8"], &|c| {
        c["quantization_config"]["bits"] = json!(8)
    });
    config(&["group_size", "0"], &|c| {
        c["quantization_config"]["group_size"] = json!(0)
    });
    config(
        &[
            "model_type",
            "lfm2, lfm2_moe, llama, llava, mamba2",
            "rwkv7",
        ],
        &|c| c["model_type"] = json!("rwkv7"),
    );
    config(&["model_type: expected a string, got 3"], &|c| {
        c["model_type"] = json!(3)
    });
    config(&["model_type", "bert, cohere", "got nothing"], &|c| {
        c["model_type"] = Value::Null
    });
    config(&["rope_scaling", "null", "got [1]"], &|c| {
        c["rope_scaling"] = json!([1])
    });
    config(&["eos_token_id", "below 1024", "got 99999"], &|c| {
        c["eos_token_id"] = json!(99999)
    });
    config(&["hidden_act", "gelu"], &|c| {
        c["hidden_act"] = json!("gelu")
    });
    config(&["rope_type", "longrope"], &|c| {
        c["rope_scaling"] = json!({ "rope_type": "longrope" })
    });
    config(&["num_attention_heads", "positive"], &|c| {
        c["num_attention_heads"] = json!(-1)
    });
    config(&["rms_norm_eps", "nothing"], &|c| {
        c["rms_norm_eps"] = Value::Null
    });
    config(&["vocab_size"], &|c| {
        c["vocab_size"] = json!(4_000_000_000_u32)
    });
}

#[test]
fn tokenizers_that_are_not_supported_are_refused_by_name() {
    let folder = Folder::new();
    let tokenizer =
        |says: &[&str], change: &dyn Fn(&mut Value)| folder.refuses("tokenizer.json", says, change);
    tokenizer(&["model.type", "BPE", "WordLevel"], &|t| {
        t["model"]["type"] = json!("WordLevel")
    });
    for (merges, got) in [(Value::Null, "got nothing"), (json!("a b"), "\"a b\"")] {
        tokenizer(&["model.merges", "pairs", got], &|t| {
            t["model"]["merges"] = merges.clone()
        });
    }
    let says = ["eos_token_id", "below 1024", "got 99999"];
    folder.refuses("generation_config.json", &says, |g| {
        g["eos_token_id"] = json!([1, 99999])
    });
    tokenizer(&["pre_tokenizer"], &|t| {
        t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("a|b")
    });
    tokenizer(&["pre_tokenizer", "Metaspace"], &|t| {
        t["pre_tokenizer"] = json!({ "type": "Metaspace" })
    });
    tokenizer(&["model.merges"], &|t| {
        t["model"]["merges"][3] = json!("abc")
    });
    tokenizer(&["vocabulary", "below"], &|t| {
        t["model"]["vocab"]["zzz"] = json!(1_000_000)
    });
    tokenizer(&["one token for an id"], &|t| {
        t["model"]["vocab"]["zzz"] = json!(5)
    });
    tokenizer(&["normalizer", "NFKC"], &|t| {
        t["normalizer"] = json!({ "type": "NFKC" })
    });
}

/// Any number of tokens ends a generation, although GGUF has keys for three.
#[test]
fn any_number_of_tokens_ends_a_generation() {
    let folder = Folder::new();
    let ends = [3, 7, 5, 9, 4];
    let path = folder.path.join("generation_config.json");
    std::fs::write(&path, json!({ "eos_token_id": ends }).to_string()).expect("written");
    let gguf = hf::open(&folder.path, &OpenOptions::default()).expect("sound");
    let again = Folder::of(&gguf);
    for folder in [&folder, &again] {
        let engine = folder.open().expect("sound");
        for id in ends {
            assert!(engine.tokenizer().is_eog(id), "{id}");
        }
    }
}

/// Modules that are to stay plain but are quantized, and the reverse.
#[test]
fn modules_are_what_the_settings_say() {
    let folder = Folder::new();
    let list = |names: Value| {
        folder
            .with("config.json", |c| {
                c["quantization_config"]["modules_to_not_convert"] = names
            })
            .map(drop)
    };
    list(json!(["lm_head"])).expect("there is none");
    let error = list(json!(["layers.1.mlp"])).expect_err("it is quantized");
    assert!(
        error.contains("model.layers.1.mlp.") && error.contains("plain weight"),
        "{error}"
    );
    folder.refuses("config.json", &["modules_to_not_convert", "list"], |c| {
        c["quantization_config"]["modules_to_not_convert"] = json!("lm_head");
    });
    let plain = Folder {
        _dir: TempDir::new().expect("a folder"),
        path: folder.path.with_file_name("plain"),
    };
    let dir = TempDir::new().expect("a folder");
    hf::write(
        &with_matrices(&open(&models()[0]), &dir, TensorType::F16),
        &plain.path,
    )
    .expect("written");
    plain.open().expect("sound");
    let quantization = folder.json("config.json")["quantization_config"].clone();
    let error = plain
        .with("config.json", |c| c["quantization_config"] = quantization)
        .map(drop)
        .expect_err("it is plain");
    assert!(
        error.contains("qweight") && error.contains("_proj.weight"),
        "{error}"
    );
}

#[test]
fn files_that_are_missing_or_elsewhere_are_named() {
    for (name, says) in [
        ("config.json", "or give a GGUF file"),
        ("tokenizer.json", "the vocabulary"),
        ("model.safetensors", "model.safetensors.index.json"),
    ] {
        let folder = Folder::new();
        std::fs::remove_file(folder.path.join(name)).expect("there");
        let error = folder.open().map(drop).expect_err("missing");
        assert!(error.contains(name) && error.contains(says), "{error}");
    }
    let folder = Folder::new();
    let index = "model.safetensors.index.json";
    let write =
        |value: Value| std::fs::write(folder.path.join(index), value.to_string()).expect("written");
    for outside in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "C:\\x.safetensors",
        ".safetensors",
    ] {
        write(json!({ "weight_map": { "lm_head.weight": outside } }));
        let error = folder.open().map(drop).expect_err("outside");
        assert!(
            error.contains(index) && error.contains("same folder"),
            "{outside}: {error}"
        );
    }
    for (value, says) in [
        (json!({}), "weight_map"),
        (
            json!({ "weight_map": { "x": "other.safetensors" } }),
            "other.safetensors",
        ),
        (
            json!({ "weight_map": { "x": "model.safetensors" } }),
            "does not put there",
        ),
    ] {
        write(value);
        let error = folder.open().map(drop).expect_err("wrong");
        assert!(error.contains(says), "{error}");
    }
}

/// Changes the header of the safetensors file, and keeps the data after it.
fn with_header(folder: &Folder, change: impl FnOnce(&mut Value)) {
    let path = folder.path.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("there");
    let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + n]).expect("JSON");
    change(&mut header);
    let text = header.to_string();
    let new = [
        &(text.len() as u64).to_le_bytes(),
        text.as_bytes(),
        &bytes[8 + n..],
    ]
    .concat();
    std::fs::write(&path, new).expect("written");
}

/// A change to a header, and parts of the error.
type Case<'a> = (&'a dyn Fn(&mut Value), &'a [&'a str]);

#[test]
fn tensors_of_other_shapes_types_or_places_are_refused() {
    const Q: &str = "model.layers.1.mlp.up_proj.qweight";
    let cases: [Case<'_>; 7] = [
        (&|h| h[Q]["shape"] = json!([512, 32]), &[]),
        (
            &|h| h[Q]["dtype"] = json!("F32"),
            &["up_proj.qweight", "I32", "F32"],
        ),
        (
            &|h| h[Q]["data_offsets"] = json!([0, 65536]),
            &["safetensors"],
        ),
        (
            &|h| h[Q]["data_offsets"] = json!([u64::MAX - 7, u64::MAX]),
            &["safetensors"],
        ),
        (
            &|h| h["model.layers.1.mlp.down_proj.scales"]["dtype"] = json!("BF16"),
            &["down_proj.scales", "F16", "BF16"],
        ),
        (
            &|h| {
                let tensor = h.as_object_mut().expect("a map").remove(Q).expect("there");
                h["model.layers.1.mlp.other.qweight"] = tensor;
            },
            &["mlp.other.qweight", "a tensor of qwen3"],
        ),
        (
            &|h| {
                let tensor = h
                    .as_object_mut()
                    .expect("a map")
                    .remove("model.norm.weight")
                    .expect("there");
                h["model.other.weight"] = tensor;
            },
            &["model.other.weight", "a tensor of qwen3"],
        ),
    ];
    for (change, says) in cases {
        let folder = Folder::new();
        with_header(&folder, change);
        let error = folder.open().map(drop).expect_err("wrong");
        assert!(
            says.iter().all(|part| error.contains(part)),
            "{error:?} does not say {says:?}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}

/// Damage at seeded places of every file gives an error of one line, or a model that runs.
#[test]
fn damage_ends_well() {
    let names = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ];
    damage(&Folder::new(), &names, 60);
    damage(
        &Folder::of(&super::spm::small()),
        &["tokenizer.json", "tokenizer_config.json"],
        60,
    );
    let folder = Folder::of(&super::spm::small());
    damage(&folder, &["tokenizer.model"], 300);
    std::fs::remove_file(folder.path.join("tokenizer.json")).expect("there");
    damage(&folder, &["tokenizer.model"], 600);
}

fn damage(folder: &Folder, names: &[&str], turns: usize) {
    let mut state = 7u64;
    let mut below = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for name in names {
        let path = folder.path.join(name);
        let sound = std::fs::read(&path).expect("there");
        for turn in 0..turns {
            let mut bytes = sound.clone();
            // the beginning of the weights file: the rest is numbers
            let reach = bytes.len().min(9000);
            match turn % 3 {
                0 => bytes.truncate(below(bytes.len())),
                1 => bytes[below(reach)] ^= 1 << below(8),
                _ => {
                    let at = below(reach);
                    bytes[at] = b"0123456789-{}[]\",.:ef"[below(21)];
                }
            }
            std::fs::write(&path, &bytes).expect("written");
            if let Err(error) = folder.open() {
                assert!(
                    !error.contains('\n') && error.len() < 600,
                    "{name}: {error}"
                );
            }
        }
        std::fs::write(&path, sound).expect("written");
    }
    folder.open().expect("sound again");
}

/// Lengths beyond the file, numbers of too many bytes, nested groups, and a file of nothing but
/// tokens.
#[test]
fn models_of_tokens_that_lie_about_lengths_are_refused() {
    let folder = Folder::of(&super::spm::small());
    std::fs::remove_file(folder.path.join("tokenizer.json")).expect("there");
    let cases: [(&str, Vec<u8>); 7] = [
        ("a long list", vec![0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]),
        ("a longer one", [&[0x0A][..], &[0xFF; 9], &[1]].concat()),
        (
            "a text of 4 GB",
            vec![0x0A, 8, 0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0, 0],
        ),
        (
            "eleven bytes of a number",
            [&[0x0A][..], &[0xFF; 11]].concat(),
        ),
        ("groups in groups", vec![0x0B; 100_000]),
        ("no UTF-8", vec![0x0A, 4, 0x0A, 2, 0xC3, 0x28]),
        ("tokens without a text", [0x0A, 0].repeat(4_000_000)),
    ];
    for (what, bytes) in cases {
        std::fs::write(folder.path.join("tokenizer.model"), bytes).expect("written");
        let error = folder.open().map(drop).expect_err(what);
        assert!(
            error.contains("tokenizer.model: ") && !error.contains('\n') && error.len() < 600,
            "{what}: {error}"
        );
    }
    let file = std::fs::File::create(folder.path.join("tokenizer.model")).expect("created");
    file.set_len(1 << 40).expect("a file with a hole");
    let error = folder.open().map(drop).expect_err("too large");
    assert!(error.contains("expected at most"), "{error}");
}
