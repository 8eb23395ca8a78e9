//! Faults planted in vision encoders' files: each must change the rows, otherwise agreement with
//! goldens proves nothing.

use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_engine::EngineOptions;
use octavo_fixtures::towers::{PAIRS, Pair};
use octavo_vision::Encoder;

use crate::support::{Family, nmse};

/// Smallest error of a fault, far above the bounds of goldens.
const SHOWS: f64 = 3e-5;

/// Returns the pair's encoder with one tensor's values changed.
fn changed(pair: &Pair, name: &str, change: impl Fn(&mut Vec<f32>)) -> Arc<Gguf> {
    let whole = gguf(pair.tower(TensorType::F32));
    let mut writer = Writer::new();
    for (key, value) in whole.keys() {
        writer.set(key, OwnedValue::from(value));
    }
    for info in whole.tensors() {
        let mut bytes = whole.data(info).to_vec();
        if info.name == name {
            let values = bytes.chunks_exact(4);
            let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
            let mut values = values.map(value).collect();
            change(&mut values);
            bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        }
        writer.tensor(&info.name, &info.dims, info.ty, bytes);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("a sound file");
    Arc::new(gguf(bytes))
}

fn gguf(bytes: Vec<u8>) -> Gguf {
    Gguf::from_bytes(bytes, "tower", &OpenOptions::default()).expect("a sound file")
}

/// Returns how far the rows of the golden's first image, or tile, are from llama.cpp's.
fn error(gguf: &Arc<Gguf>, family: &Family) -> f64 {
    let options = EngineOptions {
        threads: Some(2),
        ..EngineOptions::default()
    };
    let encoder = Encoder::load(gguf, &options, 128, &mut |_| {});
    let mut encoder = encoder.unwrap_or_else(|e| panic!("{e}"));
    let golden = family.golden("two");
    let tile = &golden.tiles(&encoder.tower().hparams)[0];
    let rows = encoder.encode(tile.pixels(), None).expect("it runs").rows;
    nmse(&rows, &golden.floats("image0.embd").expect("recorded"))
}

/// Returns whether a tensor changes nothing: biases of keys add the same to all scores of a query
/// where nothing is rotated, and LLaVA's last block and rows between lines are not used.
fn is_unused(pair: &Pair, name: &str) -> bool {
    let of_llava = name.starts_with("v.blk.2.") || name == "v.image_newline";
    match pair.name {
        "kimivl" => false,
        "lfm2" => name.ends_with("attn_k.bias"),
        _ => name.ends_with("attn_k.bias") || of_llava,
    }
}

#[test]
fn every_tensor_is_used() {
    let mut n = 0;
    for pair in &PAIRS {
        let Some(family) = Family::made(pair) else {
            return;
        };
        for info in gguf(pair.tower(TensorType::F32)).tensors() {
            let reversed = changed(pair, &info.name, |values| values.reverse());
            let off = error(&reversed, &family);
            let what = format!("{} {}: {off:e}", pair.name, info.name);
            match is_unused(pair, &info.name) {
                true => assert!(off <= family.bounds.rows, "{what}"),
                false => assert!(off >= SHOWS, "{what}"),
            }
            n += 1;
        }
    }
    assert_eq!(n, 235, "tensors");
}

/// Rows and columns of a table of positions are not the same.
#[test]
fn positions_have_two_axes() {
    let mut n = 0;
    for pair in PAIRS.iter().filter(|pair| !pair.name.starts_with("llava")) {
        let Some(family) = Family::made(pair) else {
            return;
        };
        let transposed = changed(pair, "v.position_embd.weight", |values| {
            const WIDTH: usize = 48;
            let old = values.clone();
            let side = (old.len() / WIDTH).isqrt();
            for (i, entry) in values.chunks_mut(WIDTH).enumerate() {
                let from = (i % side * side + i / side) * WIDTH;
                entry.copy_from_slice(&old[from..from + WIDTH]);
            }
        });
        let off = error(&transposed, &family);
        assert!(off >= 1e-3, "{}: {off:e}", pair.name);
        n += 1;
    }
    assert_eq!(n, 2, "encoders");
}
