//! Errors of the writer, streaming, and replacement of files.

use crate::raw::open;
use gguf_rs_lite::{
    Error, Gguf, OpenOptions, OwnedArray, OwnedValue, TensorData, TensorType, Value, Writer,
};
use std::io::{self, Write};

fn refused(writer: Writer<'_>) -> String {
    let mut out = Vec::new();
    let text = writer.write_to(&mut out).expect_err("refused").to_string();
    assert!(
        out.is_empty(),
        "nothing is written before the check: {text}"
    );
    text
}

#[test]
fn what_a_file_cannot_have_is_refused_before_anything_is_written() {
    let tensor = |name: &str, dims: &[u64], ty, data: Vec<u8>| {
        let mut w = Writer::new();
        w.tensor(name, dims, ty, data);
        refused(w)
    };
    assert_eq!(
        tensor("t", &[100], TensorType::Q4_K, vec![]),
        "output: tensor \"t\": rows of 100 elements, expected a multiple of Q4_K's block of 256"
    );
    assert_eq!(
        tensor("t", &[1; 5], TensorType::F32, vec![0; 4]),
        "output: tensor \"t\": 5 dimensions, expected at most 4"
    );
    assert_eq!(
        tensor("t", &[2], TensorType::F32, vec![0; 7]),
        "output: tensor \"t\": 7 bytes were written, expected 8"
    );
    assert!(
        tensor("t", &[1 << 40, 1 << 40], TensorType::F32, vec![]).contains("is not representable")
    );
    assert!(
        tensor(&"x".repeat(64), &[1], TensorType::F32, vec![0; 4])
            .contains("64 bytes long, expected at most 63")
    );
    let mut twice = Writer::new();
    twice
        .tensor("t", &[0], TensorType::F32, vec![])
        .tensor("t", &[0], TensorType::F32, vec![]);
    assert_eq!(refused(twice), "output: tensor \"t\" appears twice");
    for (key, want) in [
        ("", "key number 0 is empty"),
        (
            &"k".repeat(65_536),
            "65536 bytes long, expected at most 65535",
        ),
    ] {
        let mut w = Writer::new();
        w.set(key, 1u32);
        assert!(refused(w).contains(want));
    }
    for alignment in [0u32, 3, 1 << 21] {
        let mut w = Writer::new();
        w.alignment(alignment);
        assert!(refused(w).contains("expected a power of two up to 1048576"));
    }
    let mut w = Writer::new();
    w.set("general.alignment", 32i32);
    assert_eq!(
        refused(w),
        "output: key \"general.alignment\": expected u32, got i32"
    );
}

#[test]
fn keys_keep_their_place_when_set_again_and_can_be_removed() {
    let mut w = Writer::new();
    w.set("a", 1u32)
        .set("b", 2u8)
        .set("c", "three")
        .set("a", true)
        .remove("b")
        .remove("none")
        .set("b", 4u64);
    let mut out = Vec::new();
    w.write_to(&mut out).expect("writes");
    let file = open(&out, true).expect("opens");
    let keys: Vec<_> = file.keys().collect();
    assert_eq!(
        keys,
        [
            ("a", Value::Bool(true)),
            ("c", Value::Str(b"three")),
            ("b", Value::U64(4))
        ]
    );
}

#[test]
fn typed_getters_convert_what_fits_and_name_what_does_not() {
    let mut w = Writer::new();
    w.set("u8", 200u8)
        .set("i64", 7i64)
        .set("minus", -1i8)
        .set("big", 1u64 << 32)
        .set("f64", 0.1f64)
        .set("f32", 0.5f32);
    w.set("raw", OwnedValue::Str(b"\xff".to_vec()))
        .set("none", OwnedArray::F32(vec![]))
        .set("list", vec![1i32, -2]);
    let mut out = Vec::new();
    w.write_to(&mut out).expect("writes");
    let file = open(&out, true).expect("opens");
    assert_eq!(file.u32("u8").ok(), Some(Some(200)));
    assert_eq!(file.u32("i64").ok(), Some(Some(7)));
    assert_eq!(file.f32("f64").ok(), Some(Some(0.1f64 as f32)));
    assert_eq!(file.f32("f32").ok(), Some(Some(0.5)));
    assert_eq!(file.f32("absent").ok(), Some(None));
    let list = file.array("list").expect("an array").expect("present");
    assert_eq!(list.i32s().expect("i32").collect::<Vec<_>>(), [1, -2]);
    assert!(list.u32s().is_none() && list.strings().is_none() && list.bools().is_none());
    assert!(
        file.array("none")
            .expect("an array")
            .expect("present")
            .is_empty()
    );
    let text = |e: Error| e.to_string();
    assert_eq!(
        text(file.u32("minus").unwrap_err()),
        "test.gguf: key \"minus\": value -1 does not fit u32"
    );
    assert_eq!(
        text(file.u32("big").unwrap_err()),
        "test.gguf: key \"big\": value 4294967296 does not fit u32"
    );
    assert_eq!(
        text(file.u32("f32").unwrap_err()),
        "test.gguf: key \"f32\": expected an integer, got f32"
    );
    assert_eq!(
        text(file.f32("u8").unwrap_err()),
        "test.gguf: key \"u8\": expected a float, got u8"
    );
    assert_eq!(
        text(file.bool("list").unwrap_err()),
        "test.gguf: key \"list\": expected bool, got an array of i32"
    );
    assert_eq!(
        text(file.str("raw").unwrap_err()),
        "test.gguf: the value of \"raw\" is not UTF-8"
    );
    assert_eq!(
        text(file.array("raw").unwrap_err()),
        "test.gguf: key \"raw\": expected array, got string"
    );
}

#[test]
fn streamed_tensors_are_written_when_their_turn_comes_and_counted() {
    let pieces = |n: usize| {
        TensorData::stream(move |out: &mut dyn Write| {
            (0..n).try_for_each(|i| out.write_all(&[i as u8; 100]))
        })
    };
    let mut w = Writer::new();
    w.tensor("a", &[300], TensorType::I8, pieces(3)).tensor(
        "b",
        &[4],
        TensorType::F32,
        [9u8; 16].as_slice(),
    );
    let mut out = Vec::new();
    let n = w.write_to(&mut out).expect("writes");
    assert_eq!(n, out.len() as u64);
    let file = open(&out, true).expect("opens");
    let a = file.tensor("a").expect("present");
    assert_eq!(
        file.data(a)[..300],
        [[0u8; 100], [1; 100], [2; 100]].concat()
    );
    for (n, got) in [(2, 200), (4, 400)] {
        let mut w = Writer::new();
        w.tensor("a", &[300], TensorType::I8, pieces(n));
        let text = w
            .write_to(io::sink())
            .expect_err("another length")
            .to_string();
        assert_eq!(
            text,
            format!("output: tensor \"a\": {got} bytes were written, expected 300")
        );
    }
    let mut w = Writer::new();
    w.tensor(
        "a",
        &[300],
        TensorType::I8,
        TensorData::stream(|_| Err(io::Error::other("no such layer"))),
    );
    let text = w
        .write_to(io::sink())
        .expect_err("the producer failed")
        .to_string();
    assert_eq!(text, "output: cannot write it: no such layer");
}

#[test]
fn a_failed_write_leaves_the_file_of_before_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let mut w = Writer::new();
    w.set("k", 1u32)
        .tensor("t", &[2], TensorType::F32, vec![1; 8]);
    assert_eq!(
        w.write_file(&path).expect("writes"),
        std::fs::metadata(&path).expect("metadata").len()
    );
    let before = std::fs::read(&path).expect("reads");
    let mut w = Writer::new();
    w.tensor(
        "t",
        &[1 << 20],
        TensorType::I8,
        TensorData::stream(|out| out.write_all(&[0; 1 << 19])),
    );
    let text = w.write_file(&path).expect_err("half a tensor").to_string();
    assert!(
        text.contains("model.gguf: tensor \"t\": 524288 bytes were written, expected 1048576"),
        "{text}"
    );
    assert_eq!(std::fs::read(&path).expect("reads"), before);
    assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 1);
}

#[test]
fn a_file_can_be_rewritten_from_its_own_map() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let mut w = Writer::new();
    w.set("k", 1u32)
        .tensor("t", &[1 << 18], TensorType::I8, vec![7; 1 << 18]);
    w.write_file(&path).expect("writes");
    let file = Gguf::open(&path, &OpenOptions::default()).expect("opens");
    let mut w = Writer::new();
    for (key, value) in file.keys() {
        w.set(key, value);
    }
    w.set("k", 2u32);
    for t in file.tensors() {
        w.tensor(&t.name, &t.dims, t.ty, file.data(t));
    }
    w.write_file(&path).expect("replaces");
    let again = Gguf::open(
        &path,
        &OpenOptions {
            mmap: true,
            strict: true,
        },
    )
    .expect("opens");
    assert_eq!(
        (file.u32("k").ok(), again.u32("k").ok()),
        (Some(Some(1)), Some(Some(2)))
    );
    assert_eq!(again.data(&again.tensors()[0]), [7; 1 << 18]);
}
