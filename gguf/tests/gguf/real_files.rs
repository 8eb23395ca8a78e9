//! Opens the models and vocabularies of the shared data, mapped and read, and checks their
//! contents.

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Value};
use octavo_fixtures::shared_dir;
use std::path::{Path, PathBuf};

fn gguf_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries
        .map(|e| e.expect("a readable folder").path())
        .collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    files
}

#[test]
fn every_shared_file_opens_mapped_and_read_with_equal_content() {
    let Some(shared) = shared_dir() else { return };
    let mut files = gguf_files(&shared.join("models"));
    files.extend(gguf_files(&shared.join("vocabs")));
    assert!(files.len() >= 40, "{} files", files.len());
    for path in files {
        let strict = OpenOptions {
            mmap: true,
            strict: true,
        };
        let mapped = Gguf::open(&path, &strict).unwrap_or_else(|e| panic!("{e}"));
        let read = Gguf::open(
            &path,
            &OpenOptions {
                mmap: false,
                strict: true,
            },
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            mapped.file_bytes(),
            std::fs::metadata(&path).expect("metadata").len()
        );
        assert!(mapped.keys().eq(read.keys()), "{}", path.display());
        assert_eq!(mapped.tensors(), read.tensors());
        for t in mapped.tensors() {
            let before = mapped.data(t).to_vec();
            assert_eq!(
                before.len() as u64,
                t.bytes,
                "{}: {}",
                path.display(),
                t.name
            );
            mapped.release(t);
            mapped.want(t);
            assert!(
                before == mapped.data(t) && before == read.data(t),
                "{}: {}",
                path.display(),
                t.name
            );
            assert_eq!(mapped.tensor(&t.name), Some(t));
        }
        for (key, value) in mapped.keys() {
            assert_eq!(mapped.get(key), Some(value), "{key}");
            if let Value::Array(a) = value {
                assert_eq!(a.iter().count(), a.len());
            }
        }
    }
}

#[test]
fn a_known_model_has_its_known_values() {
    let Some(shared) = shared_dir() else { return };
    let file = Gguf::open(
        &shared.join("models/tiny-qwen3-Q4_K_M.gguf"),
        &OpenOptions::default(),
    )
    .expect("opens");
    assert_eq!(file.version(), 3);
    assert_eq!(file.alignment(), 32);
    assert_eq!(
        file.str("general.architecture").expect("a string"),
        Some("qwen3")
    );
    let width = file
        .u32("qwen3.embedding_length")
        .expect("an integer")
        .expect("present");
    let norm = file.tensor("output_norm.weight").expect("present");
    assert_eq!(norm.ty, TensorType::F32);
    assert_eq!(norm.dims, [u64::from(width)]);
    assert_eq!(file.data(norm).len() as u64, u64::from(width) * 4);
    let tokens = file
        .array("tokenizer.ggml.tokens")
        .expect("an array")
        .expect("present");
    assert_eq!(tokens.strings().expect("strings").len(), tokens.len());
    assert!(tokens.f32s().is_none());
    assert_eq!(file.u32("no.such.key").expect("no error"), None);
    let wrong = file
        .u32("general.architecture")
        .expect_err("a string")
        .to_string();
    assert!(
        wrong.ends_with("key \"general.architecture\": expected an integer, got string"),
        "{wrong}"
    );
}
