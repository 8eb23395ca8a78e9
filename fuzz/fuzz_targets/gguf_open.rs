//! Opens any bytes as a GGUF file. A file that opens must be consistent, and survive being written
//! and opened again.
#![no_main]

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, Value, Writer};
use libfuzzer_sys::fuzz_target;

fn open(bytes: &[u8], strict: bool) -> Option<Gguf> {
    match Gguf::from_bytes(bytes.to_vec(), "fuzz", &OpenOptions { mmap: false, strict }) {
        Ok(file) => Some(file),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "a message of several lines");
            None
        }
    }
}

fn look(file: &Gguf) {
    for (key, value) in file.keys() {
        assert!(file.get(key).is_some());
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = (file.u32(key).is_ok(), file.f32(key).is_ok());
        let _ = (file.bool(key).is_ok(), file.str(key).is_ok());
    }
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len() as u64, tensor.bytes);
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        file.release(tensor);
    }
}

/// Returns the file as the writer writes it. Bytes, because a NaN among the values is not equal to
/// itself.
fn rewrite(file: &Gguf) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in file.keys() {
        writer.set(key, OwnedValue::from(value));
    }
    for tensor in file.tensors() {
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty, file.data(tensor));
    }
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("what was read can be written");
    out
}

fuzz_target!(|bytes: &[u8]| {
    let strict = open(bytes, true);
    let Some(file) = open(bytes, false) else {
        assert!(strict.is_none(), "strict accepts what the default refuses");
        return;
    };
    look(&file);
    let written = rewrite(&file);
    let again = open(&written, true).expect("what was written opens");
    assert_eq!(file.tensors().len(), again.tensors().len());
    assert_eq!(file.keys().len(), again.keys().len());
    assert_eq!(rewrite(&again), written, "a second rewrite changes nothing");
});
