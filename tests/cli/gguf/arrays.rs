//! Tensors taken out of a file as arrays, and put back.

use std::fs;
use std::path::Path;

use gguf_rs_lite::TensorType;
use octavo_quant::dequantize;
use safetensors::{Dtype, SafeTensors};

use super::{bad, demo, finds, folder, good, json, open, text, works};

/// Returns the values of a tensor of a file.
fn values(path: &Path, name: &str) -> Vec<f32> {
    let gguf = open(path);
    let tensor = gguf.tensor(name).expect("there");
    let mut values = vec![0.0; tensor.n_elements() as usize];
    dequantize(tensor.ty, gguf.data(tensor), &mut values).expect("values");
    values
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

#[test]
fn tensors_become_safetensors() {
    let dir = folder();
    let model = demo(dir.path());
    let at = |name: &str| dir.path().join(name);
    let all = at("all.safetensors");
    good(&["gguf", "extract", text(&model), text(&all)]);
    let bytes = fs::read(&all).expect("read");
    let arrays = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let gguf = open(&model);
    assert_eq!(arrays.len(), gguf.tensors().len());
    for t in gguf.tensors() {
        let array = arrays.tensor(&t.name).expect("there");
        let shape: Vec<usize> = t.dims.iter().rev().map(|&n| n as usize).collect();
        assert_eq!(
            (array.dtype(), array.shape()),
            (Dtype::F32, &shape[..]),
            "{}",
            t.name
        );
        assert_eq!(floats(array.data()), values(&model, &t.name), "{}", t.name);
    }
}

#[test]
fn tensors_come_back() {
    let dir = folder();
    let (dir, model) = (dir.path(), demo(dir.path()));
    let out = dir.join("out.gguf");
    // blocks as they were
    works(dir, "extract @model.gguf @raw.safetensors --raw ffn|norm");
    works(dir, "insert @model.gguf @raw.safetensors -o @out.gguf");
    works(dir, "diff @model.gguf @out.gguf");
    // values in the same types
    works(dir, "extract @model.gguf @all.safetensors");
    works(
        dir,
        "insert @model.gguf @all.safetensors -o @out.gguf --force",
    );
    let report = finds(&["gguf", "diff", text(&model), text(&out)]);
    assert!(
        report.contains("tensors: ") && !report.contains(" -> "),
        "{report}"
    );
    let types = |path: &Path| {
        let gguf = open(path);
        gguf.tensors().iter().map(|t| t.ty).collect::<Vec<_>>()
    };
    assert_eq!(types(&model), types(&out));
    // in another type
    let v = "blk.0.attn_v.weight";
    works(
        dir,
        "extract @model.gguf @one.safetensors --type bf16 blk.0.attn_v",
    );
    works(
        dir,
        "insert @model.gguf @one.safetensors -o @out.gguf --type q8_0 --force",
    );
    assert_eq!(open(&out).tensor(v).expect("there").ty, TensorType::Q8_0);
    let object = finds(&["gguf", "diff", text(&model), text(&out), "--json"]);
    let object: serde_json::Value = serde_json::from_str(&object).expect("JSON");
    let tensors = object["tensors"].as_array().expect("a list");
    assert_eq!((tensors.len(), tensors[0]["name"].as_str()), (1, Some(v)));
    let nmse = tensors[0]["error"]["nmse"].as_f64().expect("a number");
    // of Q8_0's steps of 1/127 of a block's maximum, and of BF16's 8 bits
    assert!((1e-7..1e-4).contains(&nmse), "{nmse}");
}

#[test]
fn one_tensor_becomes_a_numpy_file_and_comes_back() {
    let dir = folder();
    let model = demo(dir.path());
    let at = |name: &str| dir.path().join(name);
    let (npy, out) = (at("v.npy"), at("out.gguf"));
    let name = "blk.1.attn_norm.weight";
    good(&["gguf", "extract", text(&model), text(&npy), name]);
    let mut bytes = fs::read(&npy).expect("read");
    assert_eq!(bytes[..6], *b"\x93NUMPY");
    let n = open(&model).tensor(name).expect("there").n_elements() as usize;
    let start = bytes.len() - 4 * n;
    assert_eq!(floats(&bytes[start..]), values(&model, name));
    bytes[start..][..4].copy_from_slice(&7f32.to_le_bytes());
    fs::write(&npy, &bytes).expect("written");
    let named = format!("{name}={}", text(&npy));
    good(&["gguf", "insert", text(&model), &named, "-o", text(&out)]);
    let mut expected = values(&model, name);
    expected[0] = 7.0;
    assert_eq!(values(&out, name), expected);
    let report = finds(&["gguf", "diff", text(&model), text(&out)]);
    assert!(report.contains("tensors: 45 equal, 1 differ"), "{report}");
    assert!(
        report.contains(&format!("1 of {n} values differ")),
        "{report}"
    );
    // a new tensor is the last
    let named = format!("extra={}", text(&npy));
    good(&[
        "gguf",
        "insert",
        text(&model),
        &named,
        "-o",
        text(&out),
        "--force",
    ]);
    let gguf = open(&out);
    let last = gguf.tensors().last().expect("one at least");
    assert_eq!(
        (last.name.as_str(), last.ty, last.n_elements()),
        ("extra", TensorType::F32, n as u64)
    );
    let object = json(&["gguf", "show", text(&out), "^extra$", "--json"]);
    assert_eq!(object["tensors"][0]["shape"][0], n);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let dir = folder();
    let model = demo(dir.path());
    let at = |name: &str| dir.path().join(name);
    let (npy, out) = (at("v.npy"), at("out.gguf"));
    let norm = "blk.1.attn_norm.weight";
    good(&["gguf", "extract", text(&model), text(&npy), norm]);
    let insert = |array: &str, more: &[&str]| {
        let args = ["gguf", "insert", text(&model), array, "-o", text(&out)];
        bad(
            &[&args[..], more].concat(),
            if array.contains('=') { 1 } else { 2 },
        )
    };
    let as_name = |name: &str| format!("{name}={}", text(&npy));
    let line = insert(&as_name("blk.1.attn_v.weight"), &[]);
    assert!(
        line.contains("tensor blk.1.attn_v.weight: expected the shape of "),
        "{line}"
    );
    let line = insert(&as_name("new"), &["--type", "iq2_xxs"]);
    assert!(
        line.contains("tensor new: IQ2_XXS needs an importance matrix"),
        "{line}"
    );
    let line = insert(text(&npy), &[]);
    assert!(
        line.contains("expected FILE.safetensors or NAME=FILE.npy"),
        "{line}"
    );
    let mut bytes = fs::read(&npy).expect("read");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&npy, &bytes).expect("written");
    let line = insert(&as_name(norm), &[]);
    assert!(
        line.contains(&format!("tensor {norm}")) && line.contains("has NaN or infinity"),
        "{line}"
    );
    fs::write(&npy, &bytes[..end - 4]).expect("written");
    let line = insert(&as_name(norm), &[]);
    assert!(line.contains("v.npy") && line.contains(norm), "{line}");
    fs::write(&npy, &bytes[..40]).expect("written");
    let line = insert(&as_name(norm), &[]);
    assert!(
        line.contains("expected a whole header, got the end of the file"),
        "{line}"
    );
    assert!(!out.exists());
    let line = bad(
        &[
            "gguf",
            "extract",
            text(&model),
            text(&npy),
            "attn_v",
            "--force",
        ],
        1,
    );
    assert!(
        line.contains("expected one tensor for a NumPy file, got "),
        "{line}"
    );
    let line = bad(&["gguf", "extract", text(&model), text(&out), "nothing"], 1);
    assert!(
        line.contains("expected one tensor at least, got 0"),
        "{line}"
    );
}
