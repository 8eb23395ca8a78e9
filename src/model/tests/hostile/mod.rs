//! Files that are wrong in one way each: a clean one-line error that names the key or tensor, never
//! a panic.

use crate::support::{File, Load, Val};
use gguf_rs_lite::TensorType;
use octavo_model::Model;

/// What is done to a valid file, and what the error must say.
type Row = (&'static str, fn(&mut File), &'static [&'static str]);

fn check(arch: &'static str, rows: &[Row]) {
    for (name, break_it, expected) in rows {
        let mut f = File::new(arch, 2);
        break_it(&mut f);
        let e = f.error();
        for part in *expected {
            assert!(e.contains(part), "{name}: {e:?} does not say {part:?}");
        }
        assert!(
            e.starts_with("mem.gguf: ") && !e.contains('\n'),
            "{name}: {e:?}"
        );
    }
}

#[test]
fn sizes() {
    check(
        "llama",
        &[
            (
                "no layers",
                |f| f.set("block_count", Val::U32(0)),
                &["llama.block_count", "1 to 1024", "got 0"],
            ),
            (
                "too many layers",
                |f| f.set("block_count", Val::U32(1025)),
                &["llama.block_count", "got 1025"],
            ),
            (
                "more layers than tensors",
                |f| f.set("block_count", Val::U32(4)),
                &["llama.block_count", "21 tensors", "got 4"],
            ),
            (
                "one layer too few",
                |f| f.set("block_count", Val::U32(1)),
                &["unexpected tensor blk.1.attn_norm.weight"],
            ),
            (
                "layers as text",
                |f| f.set("block_count", "2"),
                &["llama.block_count", "got \"2\""],
            ),
            (
                "negative layers",
                |f| f.set("block_count", Val::I8(-1)),
                &["llama.block_count", "got -1"],
            ),
            (
                "layers past u64",
                |f| f.set("block_count", Val::U64(u64::MAX)),
                &["llama.block_count", "18446744073709551615"],
            ),
            (
                "no block count",
                |f| f.unset("block_count"),
                &["missing key llama.block_count"],
            ),
            (
                "no heads",
                |f| f.set("attention.head_count", Val::U32(0)),
                &["llama.attention.head_count", "got 0"],
            ),
            (
                "heads missing",
                |f| f.unset("attention.head_count"),
                &["missing key llama.attention.head_count"],
            ),
            (
                "no kv heads",
                |f| f.set("attention.head_count_kv", Val::U32(0)),
                &["llama.attention.head_count_kv", "got 0"],
            ),
            (
                "kv 3 of 4",
                |f| f.set("attention.head_count_kv", Val::U32(3)),
                &["head_count_kv", "divisor", "(4)", "got 3"],
            ),
            (
                "kv 8 of 4",
                |f| f.set("attention.head_count_kv", Val::U32(8)),
                &["head_count_kv", "divisor", "got 8"],
            ),
            (
                "odd head",
                |f| f.set("attention.head_count", Val::U32(64)),
                &["llama.attention.head_count", "got 64"],
            ),
            (
                "heads do not fill",
                |f| f.set("attention.head_count", Val::U32(6)),
                &["head_count", "64", "got 6"],
            ),
            (
                "huge heads",
                |f| f.set("attention.head_count", Val::U32(u32::MAX)),
                &["head_count", "got 4294967295"],
            ),
            (
                "odd key length",
                |f| f.set("attention.key_length", Val::U32(15)),
                &["attention.key_length", "even", "got 15"],
            ),
            (
                "key length 0",
                |f| f.set("attention.key_length", Val::U32(0)),
                &["attention.key_length", "got 0"],
            ),
            (
                "key length 1026",
                |f| f.set("attention.key_length", Val::U32(1026)),
                &["attention.key_length", "got 1026"],
            ),
            (
                "value length differs",
                |f| f.set("attention.value_length", Val::U32(8)),
                &["value_length = 8", "key_length, 16"],
            ),
            (
                "width 0",
                |f| f.set("embedding_length", Val::U32(0)),
                &["llama.embedding_length", "got 0"],
            ),
            (
                "width past the cap",
                |f| f.set("embedding_length", Val::U32(1 << 31)),
                &["embedding_length", "got 2147483648"],
            ),
            (
                "other width",
                |f| f.set("embedding_length", Val::U32(128)),
                &["token_embd.weight", "[128, 7]", "[64, 7]"],
            ),
            (
                "ffn 0",
                |f| f.set("feed_forward_length", Val::U32(0)),
                &["llama.feed_forward_length", "got 0"],
            ),
            (
                "ffn missing",
                |f| f.unset("feed_forward_length"),
                &["missing key llama.feed_forward_length"],
            ),
            (
                "context 0",
                |f| f.set("context_length", Val::U32(0)),
                &["llama.context_length", "got 0"],
            ),
            (
                "context missing",
                |f| f.unset("context_length"),
                &["missing key llama.context_length"],
            ),
            (
                "vocabulary empty",
                |f| f.set("tokenizer.ggml.tokens", Vec::<String>::new()),
                &["tokenizer.ggml.tokens", "got 0"],
            ),
            (
                "tokens as text",
                |f| f.set("tokenizer.ggml.tokens", "x"),
                &["tokenizer.ggml.tokens", "got \"x\""],
            ),
        ],
    );
}

#[test]
fn per_layer_arrays() {
    check(
        "qwen2",
        &[
            (
                "heads differ",
                |f| f.set("attention.head_count", vec![4u32, 2]),
                &["attention.key_length", "unequal heads"],
            ),
            (
                "ffn differs",
                |f| f.set("feed_forward_length", vec![96u32, 64]),
                &["blk.1.ffn_gate.weight", "[64, 64]", "[64, 96]"],
            ),
            (
                "too short",
                |f| f.set("attention.head_count_kv", vec![2u32]),
                &["head_count_kv", "(2)", "array of 1"],
            ),
            (
                "empty",
                |f| f.set("attention.head_count", Vec::<u32>::new()),
                &["head_count", "an array of 0"],
            ),
            (
                "one is 0",
                |f| f.set("attention.head_count", vec![4u32, 0]),
                &["attention.head_count", "got 0"],
            ),
            (
                "floats",
                |f| f.set("feed_forward_length", vec![96f32; 2]),
                &["feed_forward_length", "got 96"],
            ),
        ],
    );
}

#[test]
fn numbers() {
    check(
        "llama",
        &[
            (
                "eps NaN",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(f32::NAN)),
                &["rms_epsilon", "got NaN"],
            ),
            (
                "eps negative",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(-1e-5)),
                &["rms_epsilon", "got -0.00001"],
            ),
            (
                "eps 0",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(0.0)),
                &["rms_epsilon", "got 0"],
            ),
            (
                "eps 1",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::F32(1.0)),
                &["rms_epsilon", "got 1"],
            ),
            (
                "eps below f32",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::F64(1e-60)),
                &["rms_epsilon"],
            ),
            (
                "eps an integer",
                |f| f.set("attention.layer_norm_rms_epsilon", Val::U32(1)),
                &["rms_epsilon", "got 1"],
            ),
            (
                "eps missing",
                |f| f.unset("attention.layer_norm_rms_epsilon"),
                &["missing key", "layer_norm_rms_epsilon"],
            ),
            (
                "base 0",
                |f| f.set("rope.freq_base", Val::F32(0.0)),
                &["llama.rope.freq_base", "got 0"],
            ),
            (
                "base NaN",
                |f| f.set("rope.freq_base", Val::F32(f32::NAN)),
                &["llama.rope.freq_base", "got NaN"],
            ),
            (
                "base inf",
                |f| f.set("rope.freq_base", Val::F32(f32::INFINITY)),
                &["llama.rope.freq_base", "got inf"],
            ),
            (
                "base negative",
                |f| f.set("rope.freq_base", Val::F32(-1.0)),
                &["llama.rope.freq_base", "got -1"],
            ),
            (
                "rope dim 0",
                |f| f.set("rope.dimension_count", Val::U32(0)),
                &["llama.rope.dimension_count", "got 0"],
            ),
            (
                "rope dim past head",
                |f| f.set("rope.dimension_count", Val::U32(18)),
                &["rope.dimension_count", "got 18"],
            ),
            (
                "rope dim partial",
                |f| f.set("rope.dimension_count", Val::U32(8)),
                &["rope.dimension_count", "16", "got 8"],
            ),
            (
                "scaling unknown",
                |f| f.set("rope.scaling.type", "su"),
                &["rope.scaling.type", "yarn", "\"su\""],
            ),
            (
                "longrope",
                |f| f.set("rope.scaling.type", "longrope"),
                &["rope.scaling.type = longrope", "llama"],
            ),
            (
                "scaling a number",
                |f| f.set("rope.scaling.type", Val::U32(2)),
                &["rope.scaling.type", "a string", "got 2"],
            ),
            (
                "yarn without factor",
                |f| f.set("rope.scaling.type", "yarn"),
                &["missing key", "scaling.factor"],
            ),
            (
                "factor 0",
                |f| f.set("rope.scaling.factor", Val::F32(0.0)),
                &["llama.rope.scaling.factor", "got 0"],
            ),
            (
                "factor NaN",
                |f| f.set("rope.scaling.factor", Val::F32(f32::NAN)),
                &["rope.scaling.factor", "got NaN"],
            ),
            (
                "old factor inf",
                |f| f.set("rope.scale_linear", Val::F32(f32::INFINITY)),
                &["rope.scale_linear", "got inf"],
            ),
            (
                "attn factor",
                |f| f.set("rope.scaling.attn_factor", Val::F32(-1.0)),
                &["rope.scaling.attn_factor", "got -1"],
            ),
            (
                "original 0",
                |f| f.set("rope.scaling.original_context_length", Val::U32(0)),
                &["original_context_length", "got 0"],
            ),
            (
                "yarn on base 1",
                |f| {
                    f.set("rope.scaling.type", "yarn");
                    f.set("rope.scaling.factor", Val::F32(2.0));
                    f.set("rope.freq_base", Val::F32(1.0));
                },
                &["llama.rope.freq_base", "above 1", "got 1"],
            ),
        ],
    );
    check(
        "qwen3",
        &[(
            "rope dim odd",
            |f| f.set("rope.dimension_count", Val::U32(7)),
            &["qwen3.rope.dimension_count", "even", "got 7"],
        )],
    );
    check(
        "qwen2",
        &[(
            "heads past width",
            |f| f.set("attention.key_length", Val::U32(32)),
            &["value_length = 16", "key_length, 32"],
        )],
    );
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    check(
        "llama",
        &[
            (
                "experts",
                |f| f.set("expert_count", Val::U32(8)),
                &["llama.expert_count = 8", "not implemented"],
            ),
            (
                "not causal",
                |f| f.set("attention.causal", Val::Bool(false)),
                &["llama.attention.causal = false"],
            ),
            (
                "logit scale",
                |f| f.set("logit_scale", Val::F32(0.5)),
                &["llama.logit_scale = 0.5"],
            ),
            (
                "residual scale",
                |f| f.set("residual_scale", Val::F32(0.22)),
                &["llama.residual_scale = 0.22"],
            ),
            (
                "embedding scale",
                |f| f.set("embedding_scale", Val::F32(12.0)),
                &["llama.embedding_scale = 12"],
            ),
            (
                "attention scale",
                |f| f.set("attention.scale", Val::F32(0.1)),
                &["llama.attention.scale = 0.1"],
            ),
            (
                "clamp",
                |f| f.set("attention.clamp_kqv", Val::F32(8.0)),
                &["llama.attention.clamp_kqv = 8"],
            ),
            (
                "softcap",
                |f| f.set("final_logit_softcapping", Val::F32(30.0)),
                &["final_logit_softcapping = 30"],
            ),
            (
                "log mul",
                |f| f.set("rope.scaling.yarn_log_multiplier", Val::F32(0.1)),
                &["yarn_log_multiplier = 0.1"],
            ),
            (
                "ext factor",
                |f| f.set("rope.scaling.yarn_ext_factor", Val::F32(1.0)),
                &["yarn_ext_factor = 1", "none"],
            ),
            (
                "nextn",
                |f| f.set("nextn_predict_layers", Val::U32(1)),
                &["llama.nextn_predict_layers = 1"],
            ),
            (
                "sections",
                |f| f.set("rope.dimension_sections", vec![8u32, 4, 4, 0]),
                &["rope.dimension_sections"],
            ),
            (
                "activation",
                |f| f.set("hidden_activation", "gelu"),
                &["llama.hidden_activation = gelu", "silu"],
            ),
        ],
    );
}

#[test]
fn architectures() {
    check(
        "llama",
        &[
            (
                "none",
                |f| f.unset("general.architecture"),
                &["missing key general.architecture", "llama, qwen2, qwen3"],
            ),
            (
                "unknown",
                |f| f.set("general.architecture", "gpt5"),
                &["\"gpt5\"", "supported: llama, qwen2, qwen3"],
            ),
            (
                "a number",
                |f| f.set("general.architecture", Val::U32(1)),
                &["general.architecture", "a string", "got 1"],
            ),
            (
                "keys of another",
                |f| f.set("general.architecture", "qwen2"),
                &["missing key qwen2.context_length"],
            ),
        ],
    );
}

#[test]
fn tensors() {
    check(
        "qwen3",
        &[
            (
                "embedding missing",
                |f| f.remove("token_embd.weight"),
                &["missing tensor token_embd.weight", "[64, 7]"],
            ),
            (
                "norm missing",
                |f| f.remove("output_norm.weight"),
                &["missing tensor output_norm.weight", "[64]"],
            ),
            (
                "q norm missing",
                |f| f.remove("blk.1.attn_q_norm.weight"),
                &["missing tensor blk.1.attn_q_norm.weight", "[32]"],
            ),
            (
                "matrix missing",
                |f| f.remove("blk.1.ffn_down.weight"),
                &["missing tensor blk.1.ffn_down.weight", "[96, 64]"],
            ),
            (
                "transposed",
                |f| f.tensor("blk.0.ffn_up.weight").dims = vec![96, 64],
                &[
                    "blk.0.ffn_up.weight",
                    "expected shape [64, 96], got [96, 64]",
                ],
            ),
            (
                "a third dimension",
                |f| f.tensor("blk.0.ffn_up.weight").dims = vec![64, 96, 2],
                &[
                    "blk.0.ffn_up.weight",
                    "expected shape [64, 96], got [64, 96, 2]",
                ],
            ),
            (
                "dimension 0",
                |f| f.tensor("output.weight").dims = vec![64, 0],
                &["output.weight", "expected shape [64, 7], got [64, 0]"],
            ),
            (
                "short norm",
                |f| f.tensor("blk.0.attn_norm.weight").dims = vec![63],
                &["blk.0.attn_norm.weight", "expected shape [64], got [63]"],
            ),
            (
                "norm as Q8_0",
                |f| f.tensor("blk.0.attn_norm.weight").ty = TensorType::Q8_0,
                &["blk.0.attn_norm.weight", "expected type F32, got Q8_0"],
            ),
            (
                "matrix as I32",
                |f| f.tensor("blk.0.attn_q.weight").ty = TensorType::I32,
                &[
                    "blk.0.attn_q.weight",
                    "expected type F32, F16, BF16 or a quantized",
                    "got I32",
                ],
            ),
            (
                "matrix as Q8_1",
                |f| f.tensor("output.weight").ty = TensorType::Q8_1,
                &["output.weight", "got Q8_1"],
            ),
            (
                "NaN in a norm",
                |f| {
                    let mut values = vec![1.0; 64];
                    values[5] = f32::NAN;
                    f.tensor("blk.1.ffn_norm.weight").values = Some(values);
                },
                &["blk.1.ffn_norm.weight", "element 5", "finite", "got NaN"],
            ),
            (
                "extra",
                |f| f.add("blk.0.attn_q.bias2", &[64]),
                &["unexpected tensor blk.0.attn_q.bias2", "qwen3", "26"],
            ),
            (
                "scale",
                |f| f.add("blk.0.ffn_up.scale", &[1]),
                &["unexpected tensor blk.0.ffn_up.scale", "per-tensor scales"],
            ),
            (
                "experts",
                |f| f.add("blk.0.ffn_gate_inp.weight", &[64, 8]),
                &["ffn_gate_inp.weight", "mixtures of experts"],
            ),
            (
                "rope_freqs",
                |f| f.add("rope_freqs.weight", &[16]),
                &["unexpected tensor rope_freqs.weight"],
            ),
        ],
    );
    check(
        "llama",
        &[
            (
                "rope_freqs too long",
                |f| f.add("rope_freqs.weight", &[16]),
                &["rope_freqs.weight", "[8], got [16]"],
            ),
            (
                "rope_freqs 0",
                |f| {
                    f.add("rope_freqs.weight", &[8]);
                    f.tensor("rope_freqs.weight").values =
                        Some(vec![1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
                },
                &["rope_freqs.weight", "element 1", "above 0", "got 0"],
            ),
            (
                "longrope factors",
                |f| f.add("rope_factors_long.weight", &[8]),
                &["rope_factors_long", "longrope"],
            ),
            (
                "q norm",
                |f| f.add("blk.0.attn_q_norm.weight", &[16]),
                &["unexpected tensor blk.0.attn_q_norm.weight"],
            ),
            (
                "both fused and separate",
                |f| f.add("blk.0.attn_qkv.weight", &[64, 128]),
                &["unexpected tensor blk.0.attn_q.weight"],
            ),
            (
                "half the biases beside a fused matrix",
                |f| {
                    ["q", "k", "v"]
                        .iter()
                        .for_each(|n| f.remove(&format!("blk.0.attn_{n}.weight")));
                    f.add("blk.0.attn_qkv.weight", &[64, 128]);
                    f.add("blk.0.attn_k.bias", &[32]);
                },
                &["missing tensor blk.0.attn_q.bias", "[64]"],
            ),
        ],
    );
}

/// Whatever single key or tensor is dropped or bent, loading ends in a result.
#[test]
fn no_single_change_panics() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let good = File::new(arch, 2);
        let values = [
            Val::U32(0),
            Val::U32(1),
            Val::U32(3),
            Val::U32(u32::MAX),
            Val::U64(u64::MAX),
            Val::I32(i32::MIN),
            Val::F32(f32::NAN),
            Val::F32(f32::MIN_POSITIVE),
            Val::F32(f32::MAX),
            Val::F64(f64::MAX),
            Val::Bool(true),
            "".into(),
            "\u{1F600}\n".into(),
            Vec::<u32>::new().into(),
            vec![f32::INFINITY; 2].into(),
            vec![String::new()].into(),
        ];
        for i in 0..good.kv.len() {
            let mut f = good.clone();
            f.kv.remove(i);
            let _ = f.load().map(|m| m.structure());
            for v in &values {
                let mut f = good.clone();
                f.kv[i].1 = v.clone();
                let _ = Model::load(&f.gguf()).map(|m| m.structure());
            }
        }
        for i in 0..good.tensors.len() {
            let mut f = good.clone();
            let dropped = f.tensors.remove(i);
            assert!(
                f.load().is_ok()
                    == (dropped.name == "output.weight" || dropped.name.ends_with(".bias")),
                "{}",
                dropped.name
            );
            for dims in [
                vec![32],
                vec![32, 1, 1, 1],
                vec![0, 5],
                vec![64, 0],
                vec![32, 32],
            ] {
                for ty in [
                    TensorType::F32,
                    TensorType::F16,
                    TensorType::Q8_0,
                    TensorType::I8,
                ] {
                    let mut f = good.clone();
                    f.tensors[i].dims = dims.clone();
                    f.tensors[i].ty = ty;
                    let _ = f.load().map(|m| m.structure());
                }
            }
        }
    }
}
