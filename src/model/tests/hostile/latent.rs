//! Multi-head latent attention: its widths, its tensors.

use super::{Row, broken};
use crate::support::{File, Load, Val};

/// Returns a file with heads of 24, values of 16 and a latent row of 32, absorbed, with experts
/// after the first layer.
fn absorbed() -> File {
    absorbed_of("deepseek2")
}

fn absorbed_of(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    for (key, n) in [
        ("attention.head_count_kv", 1),
        ("attention.key_length", 40),
        ("attention.value_length", 32),
        ("attention.key_length_mla", 24),
        ("attention.value_length_mla", 16),
        ("attention.kv_lora_rank", 32),
        ("attention.q_lora_rank", 40),
        ("rope.dimension_count", 8),
        ("leading_dense_block_count", 1),
        ("expert_count", 6),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 24),
    ] {
        f.set(key, Val::U32(n));
    }
    for l in 0..2 {
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
        let tensors: [(&str, &[u32]); 8] = [
            ("attn_q_a", &[64, 40]),
            ("attn_q_a_norm", &[40]),
            ("attn_q_b", &[40, 96]),
            ("attn_kv_a_mqa", &[64, 40]),
            ("attn_kv_a_norm", &[32]),
            ("attn_k_b", &[16, 32, 4]),
            ("attn_v_b", &[32, 16, 4]),
            ("attn_output", &[64, 64]),
        ];
        for (name, dims) in tensors {
            f.add(&format!("blk.{l}.{name}.weight"), dims);
        }
    }
    for name in ["ffn_gate", "ffn_up", "ffn_down"] {
        f.remove(&format!("blk.1.{name}.weight"));
    }
    let experts: [(&str, &[u32]); 4] = [
        ("ffn_gate_inp", &[64, 6]),
        ("ffn_gate_exps", &[64, 24, 6]),
        ("ffn_up_exps", &[64, 24, 6]),
        ("ffn_down_exps", &[24, 64, 6]),
    ];
    for (name, dims) in experts {
        f.add(&format!("blk.1.{name}.weight"), dims);
    }
    f
}

/// Returns the same with keys and values expanded for each head, as in old files, and queries
/// without a low-rank row.
fn materialised() -> File {
    let mut f = absorbed();
    for key in ["attention.key_length_mla", "attention.value_length_mla"] {
        f.unset(key);
    }
    f.set("attention.head_count_kv", Val::U32(4));
    f.set("attention.key_length", Val::U32(24));
    f.set("attention.value_length", Val::U32(16));
    for l in 0..2 {
        for name in [
            "attn_q_a",
            "attn_q_a_norm",
            "attn_q_b",
            "attn_k_b",
            "attn_v_b",
        ] {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
        f.add(&format!("blk.{l}.attn_q.weight"), &[64, 96]);
        f.add(&format!("blk.{l}.attn_kv_b.weight"), &[32, 128]);
    }
    f
}

fn check(valid: fn() -> File, rows: &[Row]) {
    valid().load().unwrap_or_else(|e| panic!("{e}"));
    for row in rows {
        broken(valid(), row);
    }
}

#[test]
fn widths() {
    check(
        absorbed,
        &[
            (
                "no row",
                |f| f.unset("attention.kv_lora_rank"),
                &["missing key deepseek2.attention.kv_lora_rank"],
            ),
            (
                "a row wider than heads can be",
                |f| f.set("attention.kv_lora_rank", Val::U32(2048)),
                &[
                    "deepseek2.attention.kv_lora_rank",
                    "at most 1024",
                    "got 2048",
                ],
            ),
            (
                "nothing that does not turn",
                |f| f.set("rope.dimension_count", Val::U32(24)),
                &["deepseek2.rope.dimension_count", "got 24"],
            ),
            (
                "half a pair",
                |f| f.set("rope.dimension_count", Val::U32(7)),
                &["deepseek2.rope.dimension_count", "even", "got 7"],
            ),
            (
                "a gate that is unknown",
                |f| f.set("expert_gating_func", Val::U32(4)),
                &["deepseek2.expert_gating_func = 4"],
            ),
            (
                "no length for what grows",
                |f| f.set("attention.temperature_scale", Val::F32(0.1)),
                &["missing key deepseek2.attention.temperature_length"],
            ),
            (
                "a multiplier that is no number",
                |f| f.set("rope.scaling.yarn_log_multiplier", Val::F32(f32::NAN)),
                &["deepseek2.rope.scaling.yarn_log_multiplier", "from 0 on"],
            ),
        ],
    );
    check(
        materialised,
        &[
            (
                "values longer than keys",
                |f| f.set("attention.value_length", Val::U32(32)),
                &["deepseek2.attention.value_length", "8 to 24", "32"],
            ),
            (
                "values shorter than what turns",
                |f| f.set("attention.value_length", Val::U32(4)),
                &["deepseek2.attention.value_length", "8 to 24", "4"],
            ),
        ],
    );
}

#[test]
fn tensors() {
    check(
        absorbed,
        &[
            (
                "a head too few",
                |f| f.tensor("blk.0.attn_k_b.weight").dims = vec![16, 32, 3],
                &["blk.0.attn_k_b.weight", "[16, 32, 4]", "[16, 32, 3]"],
            ),
            (
                "keys the other way round",
                |f| f.tensor("blk.1.attn_k_b.weight").dims = vec![32, 16, 4],
                &["blk.1.attn_k_b.weight", "[16, 32, 4]", "[32, 16, 4]"],
            ),
            (
                "no values",
                |f| f.remove("blk.1.attn_v_b.weight"),
                &["missing tensor blk.1.attn_v_b.weight", "[32, 16, 4]"],
            ),
            (
                "both forms",
                |f| f.add("blk.0.attn_kv_b.weight", &[32, 128]),
                &["blk.0.attn_kv_b.weight", "no such tensor"],
            ),
        ],
    );
    check(
        materialised,
        &[(
            "rows of other heads",
            |f| f.tensor("blk.0.attn_kv_b.weight").dims = vec![32, 96],
            &["blk.0.attn_kv_b.weight", "[32, 128]", "[32, 96]"],
        )],
    );
}

/// Loading returns a result, never a panic, whichever single key or tensor is dropped or altered.
#[test]
fn no_single_change_panics() {
    for file in [absorbed(), materialised(), deepseek32(), glm_dsa()] {
        super::bend_everything(&file);
    }
}

/// Returns a file of an architecture with an indexer in each layer, or in the first one only.
fn indexed(arch: &'static str, own: u32) -> File {
    let mut f = absorbed_of(arch);
    for (key, n) in [
        ("expert_gating_func", 2),
        ("attention.indexer.head_count", 2),
        ("attention.indexer.key_length", 12),
        ("attention.indexer.top_k", 3),
    ] {
        f.set(key, Val::U32(n));
    }
    for l in 0..own {
        let tensors: [(&str, &[u32]); 5] = [
            ("attn_k.weight", &[64, 12]),
            ("k_norm.weight", &[12]),
            ("k_norm.bias", &[12]),
            ("attn_q_b.weight", &[40, 24]),
            ("proj.weight", &[64, 2]),
        ];
        for (name, dims) in tensors {
            f.add(&format!("blk.{l}.indexer.{name}"), dims);
        }
    }
    f
}

fn deepseek32() -> File {
    indexed("deepseek32", 2)
}

/// Returns a file whose second layer uses the first one's choice.
fn glm_dsa() -> File {
    let mut f = indexed("glm-dsa", 1);
    f.set("attention.indexer.types", vec![1u32, 0]);
    f
}

#[test]
fn indexers() {
    let rows: &[Row] = &[
        (
            "no heads",
            |f| f.unset("attention.indexer.head_count"),
            &["missing key", ".attention.indexer.head_count"],
        ),
        (
            "keys shorter than what turns",
            |f| f.set("attention.indexer.key_length", Val::U32(6)),
            &[".attention.indexer.key_length", "8 to 1024", "6"],
        ),
        (
            "keys of an odd width",
            |f| f.set("attention.indexer.key_length", Val::U32(13)),
            &[".attention.indexer.key_length", "even", "13"],
        ),
        (
            "no keys to see",
            |f| f.set("attention.indexer.top_k", Val::U32(0)),
            &[".attention.indexer.top_k", "from 1 to", "0"],
        ),
        (
            "weights that are not absorbed",
            |f| f.unset("attention.key_length_mla"),
            &["missing key", ".attention.key_length_mla"],
        ),
        (
            "queries without a low-rank row",
            |f| f.remove("blk.0.attn_q_a.weight"),
            &["missing tensor blk.0.attn_q_a.weight", "[64, 40]"],
        ),
        (
            "no rank of queries",
            |f| f.unset("attention.q_lora_rank"),
            &["missing key", ".attention.q_lora_rank"],
        ),
        (
            "no bias of the norm of keys",
            |f| f.remove("blk.0.indexer.k_norm.bias"),
            &["missing tensor blk.0.indexer.k_norm.bias", "[12]"],
        ),
        (
            "a weight for a head too many",
            |f| f.tensor("blk.0.indexer.proj.weight").dims = vec![64, 3],
            &["blk.0.indexer.proj.weight", "[64, 2]", "[64, 3]"],
        ),
    ];
    check(deepseek32, rows);
    check(glm_dsa, rows);
}

#[test]
fn indexers_of_either_architecture() {
    check(
        deepseek32,
        &[
            (
                "no function of the router",
                |f| f.unset("expert_gating_func"),
                &["missing key deepseek32.expert_gating_func"],
            ),
            (
                "a layer without an indexer",
                |f| f.remove("blk.1.indexer.attn_k.weight"),
                &["missing tensor blk.1.indexer.attn_k.weight", "[64, 12]"],
            ),
        ],
    );
    check(
        glm_dsa,
        &[
            (
                "no choice to use",
                |f| f.set("attention.indexer.types", vec![0u32, 1]),
                &["glm-dsa.attention.indexer.types", "in the first layer"],
            ),
            (
                "a flag too few",
                |f| f.set("attention.indexer.types", vec![1u32]),
                &["glm-dsa.attention.indexer.types", "each of 2 layers"],
            ),
            (
                "an indexer that is not there",
                |f| f.set("attention.indexer.types", vec![1u32, 1]),
                &["missing tensor blk.1.indexer.", "["],
            ),
            (
                "an indexer of a layer that uses another",
                |f| f.add("blk.1.indexer.attn_k.weight", &[64, 12]),
                &["blk.1.indexer.attn_k.weight", "no such tensor"],
            ),
        ],
    );
}

/// GLM 5.2's files lack the key: the first two layers and then every fourth have indexers.
#[test]
fn long_contexts_share_choices() {
    let mut f = glm_dsa();
    f.unset("attention.indexer.types");
    assert!(f.error().contains("missing tensor blk.1.indexer."));
    let mut all = indexed("glm-dsa", 2);
    assert!(all.load().is_ok());
    all.set("context_length", Val::U32(1 << 20));
    let model = all.load().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(model.hparams.caches.len(), 2);
    assert_eq!(model.hparams.caches[1].n_layer, 2);
    // a layer that uses an earlier one's choice does not run elsewhere
    let glm = glm_dsa().load().unwrap_or_else(|e| panic!("{e}"));
    assert!(model.is_divisible() && !glm.is_divisible());
}
