//! Refusals before work is done or a file is written: folders that would not load, matrices of
//! other models.

mod early;
mod quantizing;

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
use serde_json::{Value, json};

use super::{bad, folder, good, octavo, stderr, stdout, with_other_tokens};

fn path(p: &Path) -> &str {
    p.to_str().expect("a temporary path is text")
}

/// Folder with changed settings and a changed header of its weights.
struct Folder {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    /// Creates a folder with the committed model of an architecture, as plain F16.
    fn of(model: &str) -> Folder {
        let dir = folder();
        let (f16, made) = (dir.path().join("f16.gguf"), dir.path().join("made"));
        let model = octavo_fixtures::workspace_root()
            .join("reference")
            .join(model);
        let model = Gguf::open(&model, &OpenOptions::default()).expect("sound");
        let mut writer = Writer::new();
        for (key, value) in model.keys() {
            writer.set(key, value);
        }
        // the rotary frequencies of random models do not follow from settings
        for t in model
            .tensors()
            .iter()
            .filter(|t| t.name != "rope_freqs.weight")
        {
            let to = if t.dims.len() == 2 {
                TensorType::F16
            } else {
                TensorType::F32
            };
            let mut values = vec![0.0; t.n_elements() as usize];
            octavo_quant::dequantize(t.ty, model.data(t), &mut values).expect("whole blocks");
            let mut bytes = Vec::new();
            octavo_quant::quantize(to, &values, t.dims[0] as usize, None, &mut bytes)
                .expect("whole rows");
            writer.tensor(&t.name, &t.dims, to, bytes);
        }
        writer.write_file(&f16).expect("written");
        octavo_hf::write(
            &Gguf::open(&f16, &OpenOptions::default()).expect("sound"),
            &made,
        )
        .expect("written");
        Folder { dir, path: made }
    }

    fn settings(&self, change: impl FnOnce(&mut Value)) {
        let path = self.path.join("config.json");
        let mut value: Value =
            serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
        change(&mut value);
        std::fs::write(path, value.to_string()).expect("written");
    }

    /// Changes the list of tensors before the same data. Removing a tensor leaves a hole in the
    /// data, which safetensors refuses; renaming one does not.
    fn tensors(&self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let path = self.path.join("model.safetensors");
        let bytes = std::fs::read(&path).expect("there");
        let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + n]).expect("JSON");
        change(header.as_object_mut().expect("a map"));
        let text = header.to_string();
        let new = [
            &(text.len() as u64).to_le_bytes(),
            text.as_bytes(),
            &bytes[8 + n..],
        ]
        .concat();
        std::fs::write(&path, new).expect("written");
    }

    fn renamed(&self, from: &str, to: &str) {
        self.tensors(|list| {
            let tensor = list.remove(from).expect("there");
            list.insert(to.to_owned(), tensor);
        });
    }

    /// Asserts that conversion fails with one line that contains all of these, and writes nothing.
    #[track_caller]
    fn is_not_converted(&self, says: &[&str]) {
        let before = std::fs::read_dir(self.dir.path()).expect("there").count();
        let out = self.dir.path().join("out.gguf");
        for args in [
            &["convert", path(&self.path), path(&out)][..],
            &["quantize", path(&self.path), path(&out), "Q8_0"],
        ] {
            let line = bad(args, 1);
            assert!(
                says.iter().all(|part| line.contains(part)),
                "{args:?}: {line:?} does not say {says:?}"
            );
        }
        assert_eq!(
            std::fs::read_dir(self.dir.path()).expect("there").count(),
            before,
            "nothing is left behind"
        );
    }
}

const QWEN3: &str = "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf";
const LLAMA: &str = "models/rnd-llama-Q4_K_M.gguf";
const QWEN2: &str = "models/rnd-qwen2-Q6_K.gguf";

#[test]
fn a_folder_that_would_not_load_is_not_converted() {
    for model in [QWEN3, LLAMA, QWEN2] {
        let sound = Folder::of(model);
        good(&[
            "convert",
            path(&sound.path),
            path(&sound.dir.path().join("out.gguf")),
        ]);
    }
    // a tensor is missing, or there is one too many: a layer more or less than the settings say
    let folder = Folder::of(QWEN3);
    folder.settings(|c| c["num_hidden_layers"] = json!(5));
    folder.is_not_converted(&[
        "missing tensor blk.4.",
        "expected shape [",
        "model.layers.4.",
    ]);
    folder.settings(|c| c["num_hidden_layers"] = json!(3));
    folder.is_not_converted(&["unexpected tensor blk.3.", "model.layers.3."]);
    // a missing tensor, whose bytes belong to a tensor that no layer uses
    let folder = Folder::of(QWEN3);
    folder.renamed(
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.9.mlp.up_proj.weight",
    );
    folder.is_not_converted(&[
        "missing tensor blk.1.ffn_up.weight",
        "model.layers.1.mlp.up_proj",
    ]);
    // another shape with the same number of elements
    let folder = Folder::of(QWEN3);
    folder.tensors(|list| {
        let shape = list["model.layers.2.mlp.down_proj.weight"]["shape"]
            .as_array_mut()
            .expect("a list");
        shape.reverse();
    });
    folder.is_not_converted(&[
        "tensor blk.2.ffn_down.weight: expected shape [512, 256], got [256, 512]",
        "down_proj",
    ]);
}

#[test]
fn an_output_matrix_is_there_unless_it_is_the_embedding() {
    let folder = Folder::of(QWEN3);
    for untied in [json!(false), Value::Null] {
        folder.settings(|c| c["tie_word_embeddings"] = untied);
        folder.is_not_converted(&[
            "config.json: tensor lm_head.weight: expected a tensor of that name",
            "got none",
        ]);
    }
    // the model would run, but differ from the trained one
    assert!(
        bad(&["run", path(&folder.path), "-p", "x"], 1).contains("tie_word_embeddings is not true")
    );
}

#[test]
fn biases_are_there_if_the_settings_say_so() {
    let llama = Folder::of(LLAMA);
    llama.settings(|c| c["attention_bias"] = json!(true));
    llama.is_not_converted(&[
        "model.layers.0.self_attn.q_proj.bias",
        "as attention_bias says, got none",
    ]);
    llama.settings(|c| {
        c["attention_bias"] = json!(false);
        c["mlp_bias"] = json!(true);
    });
    llama.is_not_converted(&[
        "model.layers.0.mlp.gate_proj.bias",
        "as mlp_bias says, got none",
    ]);
    let qwen2 = Folder::of(QWEN2);
    qwen2.settings(|c| {
        c.as_object_mut().expect("a map").remove("attention_bias");
    });
    good(&["run", path(&qwen2.path), "-p", "x", "-n", "1"]);
    qwen2.settings(|c| c["attention_bias"] = json!(false));
    qwen2.is_not_converted(&[
        "model.layers.0.self_attn.q_proj.bias",
        "as attention_bias is not true, got one",
    ]);
    qwen2.settings(|c| c["attention_bias"] = json!(true));
    qwen2.renamed(
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.1.self_attn.o_proj.bias",
    );
    qwen2.is_not_converted(&[
        "model.layers.1.self_attn.k_proj.bias: expected a tensor of that name",
        "got none",
    ]);
}
