//! Assistants: what they read of their targets, and files that are wrong or for other targets.

use gguf_rs_lite::{Gguf, OwnedValue};
use octavo_model::{Error, Hparams, Model, Op, is_assistant};

use crate::mtp::open;

fn with(file: &Gguf, without: &str, keys: &[(&str, OwnedValue)]) -> Gguf {
    let named = |name: &str| (name != without).then(|| name.to_owned());
    let keys = keys.iter();
    let keys = keys.map(|(key, value)| ((*key).to_owned(), value.clone()));
    let file = file.clone().with_names(named).expect("fewer tensors");
    file.with_keys(keys).expect("other keys")
}

fn load(file: &Gguf, target: &Gguf) -> Result<Model, Error> {
    Model::load_assistant(file, &Hparams::from_gguf(target)?)
}

/// Checks that a pair is refused in one line.
fn refused(file: &Gguf, target: &Gguf, expected: &str) {
    let error = load(file, target).map(drop).expect_err("it loads");
    let error = error.to_string();
    let is_line = !error.contains('\n');
    assert!(is_line && error.contains(expected), "{expected}: {error}");
}

fn pair() -> Option<[Gguf; 2]> {
    Some([open("gemma4-assistant-F32")?, open("gemma4-target-F32")?])
}

/// The windowed layer reads the target's last layer but one, the other its last, and none writes.
#[test]
fn assistants_read_their_targets_caches() {
    let Some([file, target]) = pair() else { return };
    assert!(is_assistant(&file) && !is_assistant(&target));
    let model = load(&file, &target).unwrap_or_else(|e| panic!("{e}"));
    let target = Hparams::from_gguf(&target).unwrap_or_else(|e| panic!("{e}"));
    assert!(model.is_assistant() && !model.is_mtp() && !model.is_divisible());
    assert_eq!(model.graph.input, 2 * target.n_embd());
    assert_eq!(model.hparams.caches, target.caches);
    assert_eq!(model.hparams.kv_elements_per_position(), 0);
    let nodes = || model.graph.nodes.iter();
    assert!(!nodes().any(|node| matches!(node.op, Op::KvWrite { .. })));
    let read: Vec<_> = nodes()
        .filter_map(|node| match node.op {
            Op::Attention { cache, scores, .. } => Some((cache, scores.window)),
            _ => None,
        })
        .collect();
    let cache = |layer: usize| target.layers[layer].cache;
    assert_eq!(read, [(cache(2), Some(23)), (cache(3), None)]);
    let kept = model.graph.kept.expect("rows to draft on from");
    assert_eq!(model.graph.values[kept.index()].width, target.n_embd());
}

/// A target whose last layers share the caches of earlier ones.
#[test]
fn shared_caches_are_read_where_they_are() {
    let Some([file, target]) = pair() else { return };
    let shares = with(
        &target,
        "",
        &[("gemma4.attention.shared_kv_layers", 2_u32.into())],
    );
    let model = load(&file, &shares).unwrap_or_else(|e| panic!("{e}"));
    let target = Hparams::from_gguf(&shares).unwrap_or_else(|e| panic!("{e}"));
    let read = model.hparams.layers.iter().map(|layer| layer.cache);
    let owners = [0, 1].map(|layer: usize| target.layers[layer].cache);
    assert_eq!(read.collect::<Vec<_>>(), owners);
}

#[test]
fn assistants_alone_are_refused() {
    let Some([file, target]) = pair() else { return };
    let error = Model::load(&file).map(drop).expect_err("it loads");
    let said = "an assistant, which drafts tokens: expected the model that it belongs to";
    assert!(error.to_string().contains(said), "{error}");
    refused(
        &target,
        &target,
        "a model of gemma4: expected an assistant for gemma4",
    );
    let Some(other) = open("qwen35-mtp-F32") else {
        return;
    };
    refused(
        &file,
        &other,
        "a model of gemma4-assistant: expected an assistant for qwen35",
    );
}

#[test]
fn missing_tensors_are_named() {
    let Some([file, target]) = pair() else { return };
    for tensor in file.tensors() {
        let name = &tensor.name;
        let less = with(&file, name, &[]);
        match &name[..] {
            // layers without it are not scaled, and angles not divided
            "rope_freqs.weight" | "blk.0.layer_output_scale.weight" => {
                load(&less, &target).unwrap_or_else(|e| panic!("{e}"));
            }
            "blk.1.layer_output_scale.weight" => {}
            name => refused(&less, &target, &format!("tensor {name}")),
        }
    }
}

#[test]
fn odd_keys_are_errors() {
    let Some([file, target]) = pair() else { return };
    const KEY: &str = "gemma4-assistant";
    let heads = |kv: [i32; 2]| OwnedValue::from(kv.to_vec());
    let rows: [(&str, OwnedValue, &str); 12] = [
        (
            "embedding_length_out",
            64_u32.into(),
            "embedding_length_out 64: expected 32",
        ),
        ("embedding_length_out", 0_u32.into(), "embedding_length_out"),
        (
            "embedding_length",
            48_u32.into(),
            "tensor token_embd.weight",
        ),
        ("nextn_predict_layers", 1_u32.into(), "nextn_predict_layers"),
        ("block_count", 3_u32.into(), "one value per layer (3)"),
        (
            "attention.sliding_window",
            16_u32.into(),
            "layer 0, a window of 16: expected 24",
        ),
        (
            "attention.sliding_window",
            0_u32.into(),
            "attention.sliding_window",
        ),
        (
            "attention.head_count_kv",
            heads([1, 1]),
            "layer 0, key heads: 1: expected 2",
        ),
        (
            "attention.head_count_kv",
            heads([2, 4]),
            "layer 1, key heads: 4: expected 1",
        ),
        (
            "attention.key_length_swa",
            32_u32.into(),
            "attention.key_length_swa",
        ),
        (
            "attention.key_length",
            16_u32.into(),
            "attention.key_length",
        ),
        ("vocab_size", 7_u32.into(), ""),
    ];
    for (key, value, expected) in rows {
        let key = format!("{KEY}.{key}");
        let odd = with(&file, "", &[(&key, value)]);
        if expected.is_empty() {
            // the token list decides
            load(&odd, &target).unwrap_or_else(|e| panic!("{e}"));
            continue;
        }
        refused(&odd, &target, expected);
    }
    // a target whose last layer but one has no window
    let flags = OwnedValue::from(vec![true, true, false, true]);
    let other = with(
        &target,
        "",
        &[("gemma4.attention.sliding_window_pattern", flags)],
    );
    refused(&file, &other, "layer 0, a window of 24: expected 0");
    let small = |file: &Gguf, arch: &str| {
        let key = format!("{arch}.attention.sliding_window");
        with(file, "", &[(&key, 1_u32.into())])
    };
    let small = [small(&file, KEY), small(&target, "gemma4")];
    refused(&small[0], &small[1], "layer 0, a window of 1: expected 2");
}
