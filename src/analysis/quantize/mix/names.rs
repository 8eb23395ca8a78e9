//! Tensor names: role, layer, and whether the tensor may be quantized.

/// Role of a matrix, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say all
pub enum Role {
    Embedding,
    Output,
    Q,
    K,
    V,
    Qkv,
    KvB,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

impl Role {
    /// Returns the role of the tensor of this name.
    pub fn of(name: &str) -> Role {
        const PARTS: [(&str, Role); 9] = [
            ("attn_qkv.weight", Role::Qkv),
            ("attn_kv_b.weight", Role::KvB),
            ("attn_v.weight", Role::V),
            ("attn_k.weight", Role::K),
            ("attn_q.weight", Role::Q),
            ("attn_output.weight", Role::AttentionOutput),
            ("ffn_up", Role::Up),
            ("ffn_gate", Role::Gate),
            ("ffn_down", Role::Down),
        ];
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ => PARTS
                .iter()
                .find(|(part, _)| name.contains(part))
                .map_or(Role::Other, |(_, role)| *role),
        }
    }

    pub(super) fn is_value(self) -> bool {
        matches!(self, Role::V | Role::Qkv | Role::KvB)
    }
}

/// Substrings of the names of unquantized tensors, in every architecture: norms, routers,
/// convolutions, state-space and RWKV vectors, position tables, parts of vision and audio towers.
const KEPT: [&str; 35] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Full names of unquantized tensors: position and token type embeddings of encoders.
const KEPT_WHOLE: [&str; 2] = ["position_embd.weight", "token_types.weight"];

/// Further substrings of unquantized tensors in `glm5-next`.
const KEPT_GLM5_NEXT: [&str; 14] = [
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Returns whether a tensor is a weight matrix that may be quantized. `dims` are in ggml's order.
pub fn is_quantizable(architecture: &str, name: &str, dims: &[u64]) -> bool {
    let is_matrix = dims.iter().skip(1).any(|&n| n > 1);
    is_matrix
        && name.ends_with("weight")
        && !KEPT.iter().any(|part| name.contains(part))
        && !KEPT_WHOLE.contains(&name)
        && !(architecture == "glm5-next" && KEPT_GLM5_NEXT.iter().any(|part| name.contains(part)))
}

/// Returns the layer number after `blk.`.
pub(in super::super) fn layer_of(name: &str) -> Option<i64> {
    let rest = name.strip_prefix("blk.")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Compares tensors in the order of the file and of the rules: by layer (those without one first),
/// then by name.
pub fn order(a: &str, b: &str) -> std::cmp::Ordering {
    let layer = |name| layer_of(name).unwrap_or(-1);
    layer(a)
        .cmp(&layer(b))
        .then_with(|| a.as_bytes().cmp(b.as_bytes()))
}
