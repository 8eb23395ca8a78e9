//! Models that are split into parts and joined again.

use gguf_rs_lite::{Gguf, OpenOptions, PartLimit, SplitPlan, TensorType, Writer, merged};
use std::path::Path;

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).expect("sound")
}

/// Writes a model with tensors of these numbers of floats, each filled with its number.
fn model(folder: &Path, sizes: &[u64], alignment: u32) -> Gguf {
    let path = folder.join("model.gguf");
    let mut writer = Writer::new();
    writer.set("general.name", "m").alignment(alignment);
    for (i, n) in sizes.iter().enumerate() {
        let data = vec![i as u8; *n as usize * 4];
        writer.tensor(&format!("t{i}"), &[*n, 1], TensorType::F32, data);
    }
    writer.write_file(&path).expect("written");
    open(&path)
}

/// Returns the numbers of tensors of the parts.
fn divided(gguf: &Gguf, limit: PartLimit, keys_apart: bool) -> Vec<usize> {
    let plan = SplitPlan::new(gguf, Path::new("p"), limit, keys_apart).expect("a plan");
    plan.parts().iter().map(|part| part.tensors.len()).collect()
}

#[test]
fn parts_are_as_large_as_they_may_be() {
    let folder = tempfile::tempdir().expect("a folder");
    // 32, 64, 320, 32 and 32 bytes with padding
    let gguf = model(folder.path(), &[1, 16, 80, 8, 8], 32);
    assert_eq!(divided(&gguf, PartLimit::Tensors(2), false), [2, 2, 1]);
    assert_eq!(divided(&gguf, PartLimit::Tensors(5), false), [5]);
    assert_eq!(divided(&gguf, PartLimit::Tensors(5), true), [0, 5]);
    assert_eq!(divided(&gguf, PartLimit::Bytes(96), false), [2, 1, 2]);
    assert_eq!(divided(&gguf, PartLimit::Bytes(95), false), [1, 1, 1, 2]);
    assert_eq!(
        divided(&gguf, PartLimit::Bytes(1), true),
        [0, 1, 1, 1, 1, 1]
    );
    let empty = model(folder.path(), &[], 32);
    assert_eq!(divided(&empty, PartLimit::Tensors(2), false), [0]);
    let many = model(folder.path(), &[1; 1025], 32);
    let plan = SplitPlan::new(&many, Path::new("p"), PartLimit::Tensors(1), false);
    let error = plan.err().expect("too many").to_string();
    assert!(
        error.ends_with("claims 1025 parts, expected at most 1024"),
        "{error}"
    );
}

#[test]
fn what_was_split_is_opened_and_joined() {
    let folder = tempfile::tempdir().expect("a folder");
    for alignment in [32, 64] {
        let gguf = model(folder.path(), &[1, 16, 80, 8, 8], alignment);
        for (limit, keys_apart) in [(PartLimit::Tensors(2), false), (PartLimit::Bytes(96), true)] {
            let prefix = folder.path().join("part");
            let plan = SplitPlan::new(&gguf, &prefix, limit, keys_apart).expect("a plan");
            let mut written = Vec::new();
            plan.write(&mut |part| written.push(part.clone()))
                .expect("written");
            assert_eq!(written, plan.parts());
            for part in plan.parts() {
                let size = std::fs::metadata(&part.path).expect("there").len();
                assert_eq!(size, part.bytes, "{part:?}");
            }
            let split = open(&plan.parts()[0].path);
            let path = folder.path().join("joined.gguf");
            merged(&split).write_file(&path).expect("written");
            let joined = open(&path);
            assert_eq!(
                (joined.alignment(), split.part_names().count()),
                (alignment, written.len())
            );
            let keys: Vec<&str> = joined.keys().map(|(key, _)| key).collect();
            let split_keys = ["split.no", "split.tensors.count", "split.count"];
            assert_eq!(keys[..2], ["general.name", "general.alignment"]);
            assert_eq!(keys[2..], split_keys);
            assert_eq!(joined.u32("split.count").expect("a number"), Some(0));
            for other in [&split, &joined] {
                assert_eq!(other.tensors().len(), 5);
                for (a, b) in gguf.tensors().iter().zip(other.tensors()) {
                    assert_eq!((&a.name, a.counted_dims()), (&b.name, b.counted_dims()));
                    assert_eq!(gguf.data(a), other.data(b));
                    assert_eq!(b.dims.len(), 1, "ggml does not count a dimension of 1");
                }
            }
            // a joined file may be split again, and has the same three keys once
            let again = SplitPlan::new(&joined, &prefix, limit, keys_apart).expect("a plan");
            assert_eq!(again.parts(), plan.parts());
        }
    }
}
