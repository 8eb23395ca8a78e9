//! What is refused before it costs time or leaves a file: folders that would not load, matrices of
//! other models.

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
use serde_json::{Value, json};

use super::{bad, folder, good, octavo, stderr, stdout, with_other_tokens};

fn path(p: &Path) -> &str {
    p.to_str().expect("a temporary path is text")
}

/// A folder with its settings and the head of its weights changed.
struct Folder {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    /// The committed model of an architecture, as plain F16.
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
        // frequencies of random models follow from no settings
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
        octavo_engine::hf::write(
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

    /// The list of tensors, changed, before the same data. What is left out of the list leaves a
    /// hole in the data, which safetensors refuse: another name for it does not.
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

    /// Conversion fails with one line that says all of this, and writes nothing.
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
    // without a tensor, with one too many: a layer more or less than the settings say
    let folder = Folder::of(QWEN3);
    folder.settings(|c| c["num_hidden_layers"] = json!(5));
    folder.is_not_converted(&[
        "missing tensor blk.4.",
        "expected shape [",
        "model.layers.4.",
    ]);
    folder.settings(|c| c["num_hidden_layers"] = json!(3));
    folder.is_not_converted(&["unexpected tensor blk.3.", "model.layers.3."]);
    // one that has gone, its bytes now a tensor that nothing asks for
    let folder = Folder::of(QWEN3);
    folder.renamed(
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.9.mlp.up_proj.weight",
    );
    folder.is_not_converted(&[
        "missing tensor blk.1.ffn_up.weight",
        "model.layers.1.mlp.up_proj",
    ]);
    // another shape of as many numbers
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
    // a model that runs would say something else than was trained
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

/// The demo model in F16, with layers and numbers changed.
fn f16(dir: &tempfile::TempDir) -> PathBuf {
    let demo = octavo_fixtures::workspace_root()
        .join("reference")
        .join(QWEN3);
    let path_of = dir.path().join("f16.gguf");
    good(&[
        "quantize",
        path(&demo),
        path(&path_of),
        "F16",
        "--allow-requantize",
    ]);
    path_of
}

/// An importance matrix for rows of these lengths.
fn imatrix(dir: &tempfile::TempDir, name: &str, entries: &[(String, u64)]) -> PathBuf {
    let mut writer = Writer::new();
    writer.set("imatrix.datasets", vec!["text".to_owned()]);
    writer
        .set("imatrix.chunk_count", 3u32)
        .set("imatrix.chunk_size", 512u32);
    for (tensor, n) in entries {
        let sums: Vec<u8> = (0..*n).flat_map(|_| 1f32.to_le_bytes()).collect();
        writer.tensor(&format!("{tensor}.in_sum2"), &[*n], TensorType::F32, sums);
        writer.tensor(
            &format!("{tensor}.counts"),
            &[1],
            TensorType::F32,
            1f32.to_le_bytes().to_vec(),
        );
    }
    let path = dir.path().join(name);
    writer.write_file(&path).expect("written");
    path
}

/// The demo model's matrices, as llama-imatrix names them, in so many layers of this width.
fn entries(layers: usize, width: u64) -> Vec<(String, u64)> {
    let names = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let row = |name: &str| if name == "ffn_down" { 512 } else { width };
    (0..layers)
        .flat_map(|l| names.map(|name| (format!("blk.{l}.{name}.weight"), row(name))))
        .collect()
}

fn text() -> PathBuf {
    octavo_fixtures::committed_goldens().join("formats/text.txt")
}

#[test]
fn a_matrix_of_another_model_is_refused_by_names_and_shapes() {
    let dir = folder();
    let (model, out, text) = (f16(&dir), dir.path().join("out.gguf"), text());
    let own = imatrix(&dir, "own", &entries(4, 256));
    let partial = imatrix(&dir, "partial", &entries(4, 256)[1..]);
    for sound in [&own, &partial] {
        good(&[
            "quantize",
            path(&model),
            path(&out),
            "IQ4_XS",
            "--imatrix",
            path(sound),
            "--force",
        ]);
    }
    std::fs::remove_file(&out).expect("there");
    let more = imatrix(&dir, "more", &entries(6, 256));
    let fewer = imatrix(&dir, "fewer", &entries(3, 256));
    let wider = imatrix(&dir, "wider", &entries(4, 320));
    for (file, says) in [
        (
            &more,
            "more: entry blk.4.attn_k.weight: expected names of tensors of ",
        ),
        (&fewer, "got none for layer 3 (such as blk.3.attn_k.weight)"),
        (
            &wider,
            "wider: entry blk.0.attn_k.weight: expected 256 weights for this model, got 320",
        ),
    ] {
        let quantize = [
            "quantize",
            path(&model),
            path(&out),
            "Q4_0",
            "--imatrix",
            path(file),
        ];
        let dry = [
            "quantize",
            path(&model),
            "Q4_0",
            "--dry-run",
            "--imatrix",
            path(file),
        ];
        let report = [
            "quant-report",
            path(&model),
            "-f",
            path(&text),
            "-c",
            "16",
            "--imatrix",
            path(file),
        ];
        for args in [&quantize[..], &dry, &report] {
            let line = bad(args, 1);
            assert!(
                line.contains(says) && line.contains(path(file)),
                "{args:?}: {line}"
            );
        }
        assert!(!out.exists(), "nothing is written");
    }
}

#[test]
fn a_pattern_that_finds_nothing_is_named() {
    let dir = folder();
    let (model, out) = (f16(&dir), dir.path().join("out.gguf"));
    for pattern in ["ffn_dwon=Q6_K", "attn_norm=Q6_K"] {
        let (name, _) = pattern.split_once('=').expect("two parts");
        for args in [
            &["quantize", path(&model), path(&out), "Q4_K_M"][..],
            &["quantize", path(&model), "Q4_K_M", "--dry-run"],
        ] {
            let line = bad(
                &[
                    args,
                    &["--tensor-type", "ffn_up=Q5_K", "--tensor-type", pattern],
                ]
                .concat(),
                1,
            );
            let says = format!(
                "f16.gguf: {name:?} finds no tensor that can be quantized: expected a part of a \
                 name"
            );
            assert!(line.contains(&says), "{line}");
        }
        assert!(!out.exists(), "nothing is written");
    }
}

#[test]
fn a_report_knows_what_stands_against_it_before_it_scores() {
    let dir = folder();
    let (model, text) = (f16(&dir), text());
    let (m, t) = (path(&model), path(&text));
    // one line, and none that says that scoring began
    let refused = |args: &[&str]| {
        bad(
            &[
                &["quant-report"],
                args,
                &["-f", t, "-c", "16", "--chunks", "2"],
            ]
            .concat(),
            1,
        )
    };
    let line = refused(&[m, "--types", "Q8_0,IQ2_XXS"]);
    assert!(
        line.ends_with(
            "IQ2_XXS: tensor blk.0.attn_k.weight: IQ2_XXS needs an importance matrix (--imatrix)"
        ),
        "{line}"
    );
    let line = refused(&[m, "--types", "Q8_0", "--sensitivity", "IQ2_XXS"]);
    assert!(
        line.contains("--sensitivity: tensor ")
            && line.contains("needs an importance matrix (--imatrix)"),
        "{line}"
    );
    let q8 = dir.path().join("q8.gguf");
    good(&["quantize", m, path(&q8), "Q8_0"]);
    let line = refused(&[path(&q8), "--types", "Q4_0"]);
    assert!(
        line.contains("Q4_0: tensor ")
            && line.contains("is Q8_0 already: quantizing it again needs --allow-requantize"),
        "{line}"
    );
    let line = refused(&[
        path(&q8),
        "--types",
        "Q4_0",
        "--allow-requantize",
        "--sensitivity",
        "Q4_0",
    ]);
    assert!(
        line.contains("q8.gguf: no tensor can be quantized to Q4_0"),
        "{line}"
    );
    let text = good(&[
        "quant-report",
        path(&q8),
        "-f",
        t,
        "-c",
        "16",
        "--chunks",
        "2",
        "--types",
        "Q4_0",
        "--allow-requantize",
    ]);
    assert!(
        text.lines().count() == 3 && text.contains("\nQ4_0 "),
        "{text}"
    );

    let changed = with_other_tokens(&dir, "changed.gguf");
    let line = refused(&[m, "--types", "Q8_0", "--also", path(&changed)]);
    assert!(line.contains("changed.gguf: token 20: expected "), "{line}");
    let line = refused(&[m, "--types", "Q8_0", "--also", "/nonexistent"]);
    assert!(line.contains("/nonexistent"), "{line}");
}

/// A value that Q8_0's scale can hold and Q4_0's cannot.
#[test]
fn a_type_that_fails_does_not_take_the_others_with_it() {
    let dir = folder();
    let f32 = dir.path().join("f32.gguf");
    let demo = octavo_engine::demo_model();
    let demo = Gguf::from_bytes(demo, "demo", &OpenOptions::default()).expect("sound");
    let mut writer = Writer::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    for t in demo.tensors() {
        let mut values = vec![0.0; t.n_elements() as usize];
        octavo_quant::dequantize(t.ty, demo.data(t), &mut values).expect("whole blocks");
        if t.name == "blk.1.ffn_down.weight" {
            values[5] = 1e6;
        }
        writer.tensor(
            &t.name,
            &t.dims,
            TensorType::F32,
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<u8>>(),
        );
    }
    writer.write_file(&f32).expect("written");
    let (text, page) = (text(), dir.path().join("page.html"));
    let args = [
        "quant-report",
        path(&f32),
        "-f",
        path(&text),
        "-c",
        "16",
        "--chunks",
        "2",
        "--types",
        "Q8_0,Q4_0,Q4_1",
    ];
    let output = octavo(&[&args[..], &["--html", path(&page)]].concat())
        .output()
        .expect("it runs");
    let (table, errors) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        table.contains("\nQ8_0 ") && !table.contains("Q4_0"),
        "{table}"
    );
    let failed: Vec<&str> = errors
        .lines()
        .filter(|line| line.starts_with("octavo: error: "))
        .collect();
    assert!(
        failed[0]
            .starts_with("octavo: error: Q4_0: tensor blk.1.ffn_down.weight: Q4_0 cannot hold"),
        "{errors}"
    );
    let page = std::fs::read_to_string(&page).expect("written");
    assert!(
        page.contains("<svg") && page.contains("Q4_0 is missing: tensor blk.1.ffn_down.weight")
    );
    let output = octavo(&[&args[..], &["--json"]].concat())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let object: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(object["types"][0]["name"], "Q8_0", "{object}");
    assert_eq!(object["failed"][0]["name"], "Q4_0", "{object}");
}
