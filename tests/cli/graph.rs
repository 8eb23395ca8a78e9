//! `octavo inspect --graph`: the forward pass as text and as JSON.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::{bad, good, json};

/// Returns what the documentation says that a command prints.
fn documented(command: &str) -> String {
    let page = octavo_fixtures::workspace_root().join("docs/forward-pass.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, rest) = page.split_once(&format!("$ {command}\n")).expect(command);
    let (printed, _) = rest.split_once("```").expect("the end of the block");
    printed.to_owned()
}

fn shared_model(name: &str) -> Option<String> {
    let path: PathBuf = octavo_fixtures::shared(&format!("arch/models/{name}.gguf"))?;
    Some(path.to_str().expect("UTF-8").to_owned())
}

#[test]
fn a_layer_is_printed_operation_by_operation() {
    let printed = good(&["inspect", "--graph", "--layer", "0"]);
    assert_eq!(printed, documented("octavo inspect --graph --layer 0"));
    assert_eq!(printed.lines().count(), 19, "{printed}");
    for line in [
        "  Qcur_normed-0  [4 x 64]  rms_norm(Qcur-0, blk.0.attn_q_norm.weight F32 [64], in groups \
         of 64, eps 1e-6)",
        "  Qcur-0 #2      [4 x 64]  rope(Qcur_normed-0, base 1000000, dims 64, pairing neox)",
        "  kqv_out-0      [4 x 64]  attention(Qcur-0 #2, cache 0, heads 4, kv_heads 2, \
         head_dim 64, scale 1/sqrt(64), causal)",
        "  ffn_swiglu-0   [512]     silu(ffn_gate-0) * ffn_up-0",
    ] {
        assert!(
            printed.lines().any(|printed| printed == line),
            "{line}\n{printed}"
        );
    }
    let last = good(&["inspect", "--graph", "--layer", "3"]);
    assert!(
        last.contains("%2             [256]     select_rows(l_out-2)\n"),
        "{last}"
    );
    assert!(
        last.contains("ffn_inp-3      [256]     %1 + %2\n"),
        "{last}"
    );
}

#[test]
fn equal_layers_are_printed_once_with_what_differs() {
    let text = good(&["inspect", "--graph"]);
    let titles = text
        .lines()
        .filter(|line| !line.starts_with(' ') && !line.is_empty());
    assert_eq!(
        titles.collect::<Vec<_>>(),
        [
            "built-in demo model: qwen3, 4 layers",
            "embeddings",
            "all 4 layers (N is the layer's number, inpL its input)",
            "head",
        ]
    );
    for line in [
        "  inp_embd  [256]  embed(token_embd.weight Q6_K [256 x 1024])",
        "  ffn_inp-N      [256]     attn_out-N + inpL",
        "  ffn_out-N      [256]     matmul(ffn_swiglu-N, blk.N.ffn_down.weight Q4_K or Q6_K \
         [512 -> 256])",
        "  (from here on, layer 3 computes only the rows whose outputs are wanted)",
        "  result_output  [1024]  matmul(result_norm, token_embd.weight Q6_K [256 -> 1024])",
    ] {
        assert!(
            text.lines().any(|printed| printed == line),
            "{line}\n{text}"
        );
    }
}

#[test]
fn layers_with_windows_and_without_are_told_apart() {
    let Some(model) = shared_model("gemma3-F32") else {
        return;
    };
    let text = good(&["inspect", "--graph", &model]);
    let (windows, global) = text.split_once("\nlayer 5\n").expect("a layer of its own");
    let line = |text: &str, op: &str| {
        let line = text.lines().find(|line| line.contains(op)).expect(op);
        line.to_owned()
    };
    assert!(
        windows.contains("\nall layers but every 6th from 5 ("),
        "{text}"
    );
    assert!(
        line(windows, "attention(").ends_with(", window 24, causal, images)"),
        "{text}"
    );
    assert!(line(windows, "rope(").contains("base 10000,"), "{text}");
    assert!(
        line(global, "attention(").ends_with("scale 1/sqrt(16), causal, images)"),
        "{text}"
    );
    assert!(line(global, "rope(").contains("base 1000000,"), "{text}");
}

#[test]
fn parts_of_tensors_and_of_values_are_named() {
    for (model, layer, parts) in [
        (
            "phi3-Q4_K_M",
            "0",
            &[
                "rows 384 to 511 of blk.0.attn_qkv.weight Q4_K [256 -> 128]",
                "rope_factors_long",
            ][..],
        ),
        (
            "gpt-oss-F32",
            "1",
            &[
                "expert_matmul(attn_post_norm-1, ffn_moe_topk-1, blk.1.ffn_up_exps.weight F32 6 x \
                 [64 -> 24])",
                "blk.1.attn_sinks.weight F32 [4], heads 4, kv_heads 2",
                "swiglu_oai(ffn_moe_gate_biased-1, ffn_moe_up_biased-1)",
            ],
        ),
        (
            "gemma4-Q4_0",
            "2",
            &[
                "rope(Qcur_normed-2, rope_freqs.weight F32 [32], base 1000000",
                "pe_in-2 * 0.77",
            ],
        ),
        (
            "qwen35-F32",
            "0",
            &[
                "causal_conv(%1, blk.0.ssm_conv1d.weight F32 [",
                "delta_rule, not decay_by_key, scale 1/sqrt(",
            ],
        ),
    ] {
        let Some(model) = shared_model(model) else {
            return;
        };
        let text = good(&["inspect", "--graph", "--layer", layer, &model]);
        for part in parts {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}

#[test]
fn json_has_the_same_operations_of_every_layer() {
    let all = json(&["inspect", "--graph", "--json"]);
    assert_eq!(all["architecture"], "qwen3");
    assert_eq!(all["groups"], serde_json::json!([[0, 1, 2, 3]]));
    let layers = all["layers"].as_array().expect("layers");
    let operations = |of: &Value| of.as_array().expect("operations").clone();
    let inside = layers
        .iter()
        .flat_map(|layer| operations(&layer["operations"]));
    let every: Vec<Value> = operations(&all["embeddings"])
        .into_iter()
        .chain(inside)
        .chain(operations(&all["head"]))
        .collect();
    // what is read was computed before
    let mut known = BTreeSet::new();
    for op in &every {
        for input in op["inputs"].as_array().expect("inputs") {
            assert!(known.contains(&input.as_u64()), "{op}");
        }
        known.insert(op["value"].as_u64());
    }
    let weights = every.iter().flat_map(|op| operations(&op["weights"]));
    let named: BTreeSet<String> = weights.map(|w| w["name"].to_string()).collect();
    let tensors = json(&["inspect", "--tensors", "--json"]);
    let tensors = operations(&tensors["octavo"]["tensors"]);
    let expected: BTreeSet<String> = tensors.iter().map(|t| t["name"].to_string()).collect();
    assert_eq!(named, expected);

    let one = json(&["inspect", "--graph", "--json", "--layer", "2"]);
    assert_eq!(one["layers"], serde_json::json!([layers[2]]));
    assert_eq!(one.get("head").or(one.get("groups")), None);
    let rope = operations(&one["layers"][0]["operations"])
        .into_iter()
        .find(|op| op["name"] == "Qcur-2 #2")
        .expect("rotated queries");
    assert_eq!(
        rope["parameters"],
        serde_json::json!({"base": 1_000_000.0, "dims": 64, "pairing": "neox"})
    );
    assert_eq!([&rope["width"], &rope["parts"]], [256, 4]);
}

#[test]
fn options_without_effect_and_layers_that_are_not_there_are_refused() {
    for (line, says) in [
        ("--layer 0", "--layer: expected --graph with it"),
        (
            "--graph --layer 4",
            "--layer 4: expected a layer of built-in demo model: 0 to 3",
        ),
        ("--graph --tensors", "--graph"),
        ("--graph --devices", "--graph"),
        ("--graph --isa scalar", "--isa"),
        ("--graph -c 64", "--ctx-size"),
        ("--graph -t 1", "--threads"),
        ("--graph --kv-type f32", "--kv-type"),
        ("--graph --device cpu", "--device"),
    ] {
        let args: Vec<&str> = ["inspect"].into_iter().chain(line.split(' ')).collect();
        let error = bad(&args, 2);
        assert!(error.contains(says), "{line}: {error}");
    }
    let dir = super::folder();
    let vocabulary = super::variant(&dir, "vocabulary.gguf", false, |_| {});
    let error = bad(
        &["inspect", "--graph", vocabulary.to_str().expect("UTF-8")],
        1,
    );
    assert!(
        error.contains("vocabulary.gguf: qwen3.block_count: expected layers with tensors"),
        "{error}"
    );
}
