//! Every shared model loads, and the report shows the values in use and their sources.

use crate::support::{File, Load, Val, open_shared, shared};
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_kernels::ValueShape;
use octavo_model::{Hparams, Model, Source};

#[test]
fn shared_models_load() {
    let Some(folder) = shared("models") else {
        return;
    };
    let mut n = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .and_then(|s| s.to_str())
            .unwrap_or_default()
            .to_owned();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a shared model");
        if name.ends_with(".imatrix") {
            let e = Model::load(&gguf)
                .expect_err("an importance matrix is not a model")
                .to_string();
            assert!(e.contains("general.architecture"), "{e}");
            continue;
        }
        let m = Model::load(&gguf).unwrap_or_else(|e| panic!("{e}"));
        n += 1;
        assert!(m.warnings().is_empty(), "{:?}", m.warnings());
        let h = &m.hparams;
        assert_eq!(
            (h.n_embd(), h.n_vocab(), h.layers[0].n_ff),
            (256, 1024, 512),
            "{name}"
        );
        let ValueShape { width, .. } = m.graph.values[m.graph.logits.index()];
        assert_eq!(width, 1024);
        for w in &m.weights.tensors.matrices {
            assert_eq!(
                w.bytes(&gguf).len() as u64,
                w.rows * w.ty.row_bytes(w.cols).expect("whole blocks"),
                "{}",
                w.name
            );
        }
        let layer = h.layers[0];
        let sizes = (h.n_layer(), layer.n_head, layer.n_head_kv, layer.head_dim);
        let trained = name.starts_with("tiny");
        let expected = match h.arch.name() {
            "qwen3" if trained => (4, 4, 2, 64),
            "qwen3" => (3, 8, 2, 128),
            "qwen2" => (3, 4, 1, 64),
            "llama" => (3, 4, 2, 64),
            other => panic!("{name}: {other}"),
        };
        assert_eq!(sizes, expected, "{name}");
        assert!(!trained || m.weights.is_tied(), "{name}");
        assert_eq!(
            h.kv_elements_per_position(),
            2 * h.n_layer() * h.layers[0].n_head_kv * h.layers[0].head_dim
        );
    }
    assert!(n >= 30, "only {n} models");
}

#[test]
fn the_report_lists_every_value_with_its_source() {
    let Some(gguf) = open_shared("rnd-qwen3-F32") else {
        return;
    };
    let h = Hparams::from_gguf(&gguf).unwrap_or_else(|e| panic!("{e}"));
    let got: Vec<String> = h
        .report()
        .iter()
        .map(|e| {
            format!(
                "{} {} {}",
                e.key,
                e.value,
                if e.source == Source::File {
                    "file"
                } else {
                    "default"
                }
            )
        })
        .collect();
    let expected = [
        "general.architecture \"qwen3\" file",
        "general.alignment 32 default",
        "qwen3.context_length 2048 file",
        "qwen3.embedding_length 256 file",
        "qwen3.block_count 3 file",
        "qwen3.feed_forward_length 512 file",
        "qwen3.attention.head_count 8 file",
        "qwen3.attention.head_count_kv 2 file",
        "qwen3.attention.key_length 128 file",
        "qwen3.attention.value_length 128 file",
        "qwen3.attention.layer_norm_rms_epsilon 1e-6 file",
        "qwen3.rope.dimension_count 128 default",
        "qwen3.rope.freq_base 1000000.0 file",
        "qwen3.rope.scaling.type \"yarn\" file",
        "qwen3.rope.scaling.factor 4.0 file",
        "qwen3.rope.scaling.original_context_length 512 file",
        "qwen3.rope.scaling.attn_factor 1.0 default",
        "qwen3.rope.scaling.yarn_beta_fast 32.0 default",
        "qwen3.rope.scaling.yarn_beta_slow 1.0 default",
        "qwen3.vocab_size 1024 default",
    ];
    assert_eq!(got, expected);
}

#[test]
fn defaults() {
    let mut f = File::new("llama", 1);
    for key in ["attention.head_count_kv", "rope.freq_base"] {
        f.unset(key);
    }
    for name in ["attn_k", "attn_v"] {
        f.tensor(&format!("blk.0.{name}.weight")).dims = vec![64, 64];
    }
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    let h = &m.hparams;
    assert_eq!(
        (
            h.layers[0].n_head_kv,
            h.layers[0].head_dim,
            h.ropes[0].n_rot.value,
            h.n_vocab()
        ),
        (4, 16, 16, 7)
    );
    let kv = |e: &&octavo_model::Entry| e.key == "llama.attention.head_count_kv";
    let report = h.report();
    let entry = report.iter().find(kv).expect("it is reported");
    assert_eq!(entry.source, Source::Default);
    assert_eq!(
        (h.ropes[0].freq_base.value, h.ropes[0].freq_base.source),
        (10000.0, Source::Default)
    );
    assert_eq!(h.ropes[0].original_context.value, 512);
    assert_eq!(
        m.warnings(),
        ["mem.gguf: no llama.rope.freq_base: 10000 is assumed"]
    );
}

#[test]
fn vocabulary_size_comes_from_the_list_then_the_key_then_the_embedding() {
    let mut f = File::new("llama", 1);
    f.set("vocab_size", Val::U32(9));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(m.hparams.n_vocab(), 7);
    assert_eq!(
        m.warnings(),
        ["mem.gguf: llama.vocab_size is 9 but the token list has 7: the list decides"]
    );
    let last = m.hparams.report().pop().expect("entries");
    assert_eq!(
        (last.key.as_str(), last.value, last.source),
        ("llama.vocab_size", 7.into(), Source::Default)
    );
    f.unset("tokenizer.ggml.tokens");
    assert!(
        f.error()
            .contains("token_embd.weight: expected shape [64, 9], got [64, 7]"),
        "{}",
        f.error()
    );
    f.unset("vocab_size");
    assert_eq!(
        f.load().unwrap_or_else(|e| panic!("{e}")).hparams.n_vocab(),
        7
    );
}

#[test]
fn other_number_types_and_equal_arrays_are_read() {
    let mut f = File::new("qwen2", 2);
    f.set("attention.head_count", vec![4u32, 4]);
    f.set("attention.head_count_kv", vec![2u32, 2]);
    f.set("feed_forward_length", vec![96u32, 96]);
    f.set("block_count", Val::U64(2));
    f.set("context_length", Val::I32(512));
    f.set("attention.layer_norm_rms_epsilon", Val::F64(1e-6));
    let h = f.load().unwrap_or_else(|e| panic!("{e}")).hparams;
    assert_eq!(
        (
            h.layers[0].n_head,
            h.layers[0].n_head_kv,
            h.layers[0].n_ff,
            h.n_layer(),
            h.norm_eps()
        ),
        (4, 2, 96, 2, 1e-6)
    );
}

#[test]
fn keys_that_ask_for_nothing_are_accepted() {
    let mut f = File::new("llama", 1);
    f.set("expert_count", Val::U32(0));
    f.set("expert_used_count", Val::U32(0));
    f.set("attention.causal", Val::Bool(true));
    f.set("logit_scale", Val::F32(1.0));
    f.set("rope.scaling.yarn_log_multiplier", Val::F32(0.0));
    f.set("hidden_activation", "silu");
    f.set("attention.sliding_window", Val::U32(0));
    f.set("pooling_type", Val::U32(3));
    f.set("rope.scaling.finetuned", Val::Bool(true));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.warnings().is_empty());
    f.set("attention.sliding_window", Val::U32(128));
    let warnings = f
        .load()
        .unwrap_or_else(|e| panic!("{e}"))
        .warnings()
        .to_vec();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("llama.attention.sliding_window = 128 is not applied"),
        "{}",
        warnings[0]
    );
}

#[test]
fn a_rerankers_head_is_not_in_the_way() {
    let mut f = File::new("qwen3", 1);
    f.add("cls.output.weight", &[64, 2]);
    assert!(f.load().is_ok());
    let mut f = File::new("qwen2", 1);
    f.add("cls.output.weight", &[64, 2]);
    assert!(
        f.error().contains("unexpected tensor cls.output.weight"),
        "{}",
        f.error()
    );
}

#[test]
fn layers_may_have_other_heads_and_widths() {
    let mut f = File::new("qwen3", 2);
    f.set("attention.head_count", vec![4u32, 2]);
    f.set("feed_forward_length", vec![96u32, 32]);
    f.tensor("blk.1.attn_q.weight").dims = vec![64, 64];
    f.tensor("blk.1.attn_output.weight").dims = vec![64, 64];
    for (name, dims) in [("gate", [64, 32]), ("up", [64, 32]), ("down", [32, 64])] {
        f.tensor(&format!("blk.1.ffn_{name}.weight")).dims = dims.to_vec();
    }
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    let sizes: Vec<_> = m
        .hparams
        .layers
        .iter()
        .map(|l| (l.n_head, l.n_ff))
        .collect();
    assert_eq!(sizes, [(4, 96), (2, 32)]);
    assert_eq!(m.structure().gqa_ratio, None);
    let heads = |e: &&octavo_model::Entry| e.key == "qwen3.attention.head_count";
    let report = m.hparams.report();
    let entry = report.iter().find(heads).expect("it is reported");
    assert_eq!(entry.value, serde_json::json!([4, 2]));
}
