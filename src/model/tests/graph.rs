//! Compares the graphs with lists of llama.cpp's tensor names, as its `llama-eval-callback` printed
//! them, and checks the bindings.

use crate::support::{File, Load};
use octavo_kernels::RowSet;
use octavo_model::graph::GraphError;
use octavo_model::{Model, Op, ValueId};

fn load(f: &File) -> Model {
    f.load().unwrap_or_else(|e| panic!("{e}"))
}

fn taps(m: &Model) -> Vec<String> {
    m.graph.taps().map(|(tap, _)| tap.to_string()).collect()
}

const TAIL: [&str; 11] = [
    "kqv_out-0",
    "attn_out-0",
    "ffn_inp-0",
    "ffn_norm-0",
    "ffn_gate-0",
    "ffn_up-0",
    "ffn_swiglu-0",
    "ffn_out-0",
    "l_out-0",
    "result_norm",
    "result_output",
];

#[test]
fn tap_names_are_those_of_llama_cpp() {
    let head: [(&str, &[&str]); 3] = [
        (
            "llama",
            &[
                "inp_embd",
                "attn_norm-0",
                "Qcur-0",
                "Qcur-0",
                "Vcur-0",
                "Kcur-0",
                "Kcur-0",
            ],
        ),
        (
            "qwen2",
            &[
                "inp_embd",
                "attn_norm-0",
                "Qcur-0",
                "Qcur-0",
                "Qcur-0",
                "Vcur-0",
                "Vcur-0",
                "Kcur-0",
                "Kcur-0",
                "Kcur-0",
            ],
        ),
        (
            "qwen3",
            &[
                "inp_embd",
                "attn_norm-0",
                "Qcur-0",
                "Qcur_normed-0",
                "Qcur-0",
                "Vcur-0",
                "Kcur-0",
                "Kcur_normed-0",
                "Kcur-0",
            ],
        ),
    ];
    for (arch, head) in head {
        let expected: Vec<&str> = head.iter().chain(&TAIL).copied().collect();
        assert_eq!(taps(&load(&File::new(arch, 1))), expected, "{arch}");
    }
}

#[test]
fn layers_follow_each_other_and_rows_are_selected_once() {
    let m = load(&File::new("qwen3", 3));
    let names = taps(&m);
    for l in 0..3 {
        for name in ["attn_norm", "Qcur_normed", "kqv_out", "ffn_inp", "l_out"] {
            assert_eq!(
                names
                    .iter()
                    .filter(|n| **n == format!("{name}-{l}"))
                    .count(),
                1,
                "{name}-{l}"
            );
        }
        assert_eq!(
            names.iter().filter(|n| **n == format!("Kcur-{l}")).count(),
            2
        );
    }
    assert_eq!(
        names
            .iter()
            .position(|n| n == "l_out-1")
            .map(|i| names[i + 1].as_str()),
        Some("attn_norm-2")
    );
    // the last layer's attention covers every token; later ops only the rows with outputs
    let rows = |name: &str| {
        let node = m
            .graph
            .nodes
            .iter()
            .find(|n| n.tap.is_some_and(|t| t.to_string() == name))
            .expect(name);
        m.graph.values[node.out.index()].rows
    };
    for all in ["inp_embd", "l_out-0", "l_out-1", "kqv_out-2", "attn_out-2"] {
        assert_eq!(rows(all), RowSet::All, "{all}");
    }
    for name in [
        "ffn_inp-2",
        "ffn_out-2",
        "l_out-2",
        "result_norm",
        "result_output",
    ] {
        assert_eq!(rows(name), RowSet::Outputs, "{name}");
    }
    assert_eq!(
        m.graph
            .nodes
            .iter()
            .filter(|n| matches!(n.op, Op::SelectRows { .. }))
            .count(),
        2
    );
}

#[test]
fn values_live_until_their_last_reader() {
    let m = load(&File::new("llama", 2));
    let last = m.graph.liveness();
    for (v, &end) in last.iter().enumerate() {
        let v = ValueId(v as u32);
        let readers = m
            .graph
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| n.op.inputs().any(|i| i == v));
        let writer = m
            .graph
            .nodes
            .iter()
            .position(|n| n.out == v)
            .expect("every value is written");
        let expected = readers.map(|(i, _)| i).max().unwrap_or(writer);
        if v == m.graph.hidden || v == m.graph.logits {
            assert_eq!(end, m.graph.nodes.len());
        } else {
            assert_eq!(end, expected, "{v:?}");
        }
    }
    // a residual outlives the norm that reads it first
    let embd = m.graph.nodes[0].out;
    let ffn_inp = m
        .graph
        .nodes
        .iter()
        .position(|n| n.tap.is_some_and(|t| t.to_string() == "ffn_inp-0"));
    assert_eq!(Some(last[embd.index()]), ffn_inp);
}

#[test]
fn validation_finds_each_kind_of_fault() {
    let good = load(&File::new("qwen2", 1));
    let check = |break_it: &dyn Fn(&mut Model)| {
        let mut m = good.clone();
        break_it(&mut m);
        m.graph
            .validate(&m.weights.tensors, &m.ropes, &m.hparams.caches)
    };
    assert_eq!(check(&|_| {}), Ok(()));
    let swapped = check(&|m| m.graph.nodes.swap(1, 2));
    assert!(
        matches!(swapped, Err(GraphError::Undefined { node: 1, .. })),
        "{swapped:?}"
    );
    let twice = check(&|m| m.graph.nodes[2].out = m.graph.nodes[1].out);
    assert!(
        matches!(twice, Err(GraphError::BadOutput { node: 2, .. })),
        "{twice:?}"
    );
    let wide = check(&|m| m.graph.values[0].width += 1);
    assert!(
        matches!(wide, Err(GraphError::Width { node: 0, .. })),
        "{wide:?}"
    );
    let no_weight = check(&|m| m.weights.tensors.matrices.truncate(1));
    assert!(
        matches!(no_weight, Err(GraphError::NoWeight { .. })),
        "{no_weight:?}"
    );
    let no_cache = check(&|m| {
        m.graph
            .nodes
            .retain(|n| !matches!(n.op, Op::KvWrite { .. }))
    });
    assert!(
        matches!(no_cache, Err(GraphError::Cache { layer: 0, .. })),
        "{no_cache:?}"
    );
    let no_logits = check(&|m| {
        m.graph.nodes.pop();
    });
    assert!(
        matches!(no_logits, Err(GraphError::NoResult { .. })),
        "{no_logits:?}"
    );
    let rows = check(&|m| {
        let select = m
            .graph
            .nodes
            .iter()
            .position(|n| matches!(n.op, Op::SelectRows { .. }))
            .expect("selects");
        let Op::SelectRows { x } = m.graph.nodes[select].op else {
            panic!("a selection")
        };
        let add = m
            .graph
            .nodes
            .iter_mut()
            .find(|n| matches!(n.op, Op::Add { .. }))
            .expect("adds");
        let Op::Add { b, .. } = add.op else {
            panic!("an addition")
        };
        add.op = Op::Add { a: x, b };
    });
    assert!(
        matches!(rows, Err(GraphError::RowsDiffer { .. })),
        "{rows:?}"
    );
}

#[test]
fn biases_of_llama_have_llama_cpp_names() {
    let mut f = File::new("llama", 1);
    f.add("blk.0.attn_output.bias", &[64]);
    f.add("blk.0.ffn_gate.bias", &[96]);
    f.add("blk.0.ffn_up.bias", &[96]);
    f.add("blk.0.ffn_down.bias", &[64]);
    let m = load(&f);
    let names = taps(&m);
    let from = names
        .iter()
        .position(|n| n == "kqv_out-0")
        .expect("attention");
    assert_eq!(
        names[from..],
        [
            "kqv_out-0",
            "attn_out-0",
            "ffn_inp-0",
            "ffn_norm-0",
            "ffn_gate-0",
            "ffn_gate_b-0",
            "ffn_up-0",
            "ffn_up_b-0",
            "ffn_swiglu-0",
            "ffn_down-0",
            "ffn_out-0",
            "l_out-0",
            "result_norm",
            "result_output"
        ]
    );
}

#[test]
fn a_missing_output_matrix_is_the_token_embedding() {
    let mut f = File::new("qwen2", 1);
    f.remove("output.weight");
    f.add("output.bias", &[7]);
    let m = load(&f);
    assert!(m.weights.is_tied() && m.structure().tied_output && m.structure().output_bias);
    assert_eq!(taps(&m).last().map(String::as_str), Some("result_output"));
    assert!(!load(&File::new("qwen2", 1)).weights.is_tied());
}

#[test]
fn fused_qkv_is_cut_into_rows() {
    for bias in ["none", "fused", "separate"] {
        let mut f = File::new("llama", 1);
        for name in ["attn_q", "attn_k", "attn_v"] {
            f.remove(&format!("blk.0.{name}.weight"));
        }
        f.add("blk.0.attn_qkv.weight", &[64, 128]);
        match bias {
            "fused" => f.add("blk.0.attn_qkv.bias", &[128]),
            "separate" => {
                for (n, d) in [("q", 64), ("k", 32), ("v", 32)] {
                    f.add(&format!("blk.0.attn_{n}.bias"), &[d]);
                }
            }
            _ => {}
        }
        let gguf = f.gguf();
        let m = Model::load(&gguf).unwrap_or_else(|e| panic!("{e}"));
        let layer = m.weights.layers[0].attention.expect("it attends");
        // the tensor's values are 1, 1.001, ... in order, so a row's first value identifies it
        for (id, first, rows) in [
            (layer.wq, 0u64, 64u64),
            (layer.wk.expect("keys"), 64, 32),
            (layer.wv.expect("values"), 96, 32),
        ] {
            let w = m.weights.matrix(id);
            assert_eq!((w.row_start, w.rows, w.cols), (first, rows, 64));
            let bytes = w.bytes(&gguf);
            assert_eq!(bytes.len(), rows as usize * 64 * 4);
            let value = f32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
            assert_eq!(value, 1.0 + 0.001 * (first * 64) as f32);
            assert!(!w.is_whole(&gguf));
        }
        assert!(m.weights.matrix(layer.wo).is_whole(&gguf));
        let biases =
            [layer.bq, layer.bk, layer.bv].map(|b| b.map(|id| m.weights.vector(id).to_vec()));
        match bias {
            "none" => assert_eq!(biases, [None, None, None]),
            _ => {
                let offset = |n: usize| if bias == "fused" { n } else { 0 };
                for (b, first, n) in [(0, 0, 64), (1, 64, 32), (2, 96, 32)] {
                    let b = biases[b].as_ref().expect("a bias");
                    assert_eq!((b.len(), b[0]), (n, 1.0 + 0.001 * offset(first) as f32));
                }
            }
        }
        let structure = m.structure();
        assert!(structure.fused_qkv);
        assert_eq!(structure.qkv_bias, bias != "none");
    }
}

#[test]
fn structure_says_what_the_model_is() {
    let s = load(&File::new("qwen3", 2)).structure();
    assert_eq!(
        (
            s.architecture,
            s.layers,
            s.gqa_ratio,
            s.qk_norm,
            s.rope_pairing
        ),
        ("qwen3", 2, Some(2), true, "neox")
    );
    assert!(!s.fused_qkv && !s.qkv_bias && !s.rope_freqs && !s.tied_output);
    let per_layer = 64 + 64 * 128 + 2 * 64 * 64 + 128 * 64 + 64 + 3 * 64 * 96 + 2 * 32;
    assert_eq!(s.parameters, 2 * per_layer + 2 * 64 * 7 + 64);
    let s = load(&File::new("llama", 1)).structure();
    assert_eq!((s.rope_pairing, s.qk_norm), ("norm", false));
}
