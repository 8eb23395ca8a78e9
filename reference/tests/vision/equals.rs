//! Text models with M-RoPE sections give the same results on text as those without.

use crate::model::Model;
use octavo_fixtures as fixtures;
use octavo_reference::{ImageRows, Oracle, Piece};

use super::faults::written;

const TOKENS: &[u32] = &[5, 17, 200, 3, 3, 90, 41, 7];

/// Changes a model's architecture name.
fn rename(model: &mut Model, from: &str, to: &str) {
    model.set("general.architecture", to);
    for (key, _) in &mut model.keys {
        if let Some(rest) = key.strip_prefix(&format!("{from}.")) {
            *key = format!("{to}.{rest}");
        }
    }
}

/// Returns sections in which every pair has an axis, also with interleaved axes.
fn sections(n_pairs: i32) -> Vec<i32> {
    vec![(n_pairs + 2) / 3, (n_pairs + 1) / 3, n_pairs / 3, 0]
}

/// Converts tokens to images of one row: the token's embedding, and zeros for deepstack.
fn as_images(model: &Model, parts: usize) -> Vec<ImageRows> {
    let (dims, values) = &model.tensors["token_embd.weight"];
    let width = dims[0] as usize;
    let row = |&id: &u32| {
        let embedding = &values[id as usize * width..][..width];
        let mut row: Vec<f64> = embedding.iter().map(|&x| f64::from(x)).collect();
        row.resize(parts * width, 0.0);
        ImageRows::new(1, 1, row).unwrap()
    };
    TOKENS.iter().map(row).collect()
}

#[test]
fn a_text_is_the_same_with_sections_and_as_rows_of_images() {
    let Some(arch) = fixtures::shared("arch/models/qwen3moe-F32.gguf") else {
        return;
    };
    for (path, from, to, n_deepstack) in [
        ("models/rnd-qwen2-Q6_K.gguf", "qwen2", "qwen2vl", 0),
        (
            "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
            "qwen3",
            "qwen3vl",
            2,
        ),
        (arch.to_str().unwrap(), "qwen3moe", "qwen3vlmoe", 1),
    ] {
        let plain = written(Model::read(path), |gguf| {
            Oracle::open(gguf).unwrap().forward(TOKENS).unwrap()
        });
        let mut model = Model::read(path);
        let head_dim = model.tensors["blk.0.attn_q.weight"].0[1] as i32 / n_head(&model, from);
        rename(&mut model, from, to);
        let key = format!("{to}.rope.dimension_sections");
        model.set(&key, sections(head_dim / 2));
        model.set(&format!("{to}.n_deepstack_layers"), n_deepstack);
        let rows = as_images(&model, 1 + n_deepstack as usize);
        written(model, |gguf| {
            let oracle = Oracle::open(gguf).unwrap();
            assert!(oracle.forward(TOKENS).unwrap() == plain, "{to}");
            let pieces: Vec<Piece<'_>> = rows.iter().map(Piece::Image).collect();
            let logits = oracle.forward_pieces(&pieces, &mut |_, _, _, _| {});
            assert!(logits.unwrap() == plain, "{to} of images");
        });
    }
}

fn n_head(model: &Model, architecture: &str) -> i32 {
    let key = format!("{architecture}.attention.head_count");
    let found = model.keys.iter().find(|(name, _)| *name == key);
    match found {
        Some((_, gguf_rs_lite::OwnedValue::U32(n))) => *n as i32,
        other => panic!("{key}: {other:?}"),
    }
}
