//! Settings and names of dense types, for the small files.

use super::names::{GEMMA, PHI3, POST_NORMED, WRAPPED_GEMMA};
use super::*;

/// A file, and the settings and names of a folder of the same model.
pub(super) struct Case {
    /// Name of the file; F32 unless the name has a type.
    pub(super) file: &'static str,
    /// Change that is made to the file first.
    pub(super) made: Option<fn(&Gguf) -> Gguf>,
    pub(super) model_type: &'static str,
    pub(super) config: fn() -> Value,
    /// GGUF's names and Hugging Face's; a dash marks tensors that belong to no module.
    pub(super) names: &'static [&'static str],
    pub(super) layers: &'static str,
    pub(super) head_dim: usize,
    pub(super) turned: bool,
    pub(super) plus_one: bool,
    /// Suffix of the norm that is an exception.
    pub(super) plain_norm: &'static str,
    /// Layer of the file for multi-token prediction.
    pub(super) ahead: Option<usize>,
    /// Gate, up matrix, the tensor of both, and whether their rows alternate.
    pub(super) joined: &'static [(&'static str, &'static str, &'static str, bool)],
    /// Change of the file's tensors to those of a folder, before they are renamed.
    pub(super) change: fn(&mut BTreeMap<String, Tensor>),
    /// Kind of pooling that the folder's modules name.
    pub(super) pooling: &'static str,
    /// Tensors that follow from no setting, because they are random.
    pub(super) dropped: &'static [&'static str],
    /// Tensors that are settings in folders.
    pub(super) settings: &'static [&'static str],
    /// Keys that a folder sets to another value, because it follows from others.
    pub(super) set: &'static [(&'static str, f32)],
    /// Keys that folders do not have: gpt-oss has no width but that of experts.
    pub(super) other_keys: &'static [&'static str],
}

pub(super) const LLAMA: Case = Case {
    file: "",
    made: None,
    model_type: "",
    config: base,
    names: &[names::LLAMA],
    layers: "model.layers.",
    head_dim: 16,
    turned: false,
    plus_one: false,
    plain_norm: "-",
    ahead: None,
    joined: &[],
    change: |_| {},
    pooling: "",
    dropped: &[],
    settings: &[],
    set: &[],
    other_keys: &[],
};

/// Returns the settings that most of the files have.
fn base() -> Value {
    json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
        "tie_word_embeddings": false,
    })
}

pub(super) fn with(more: Value) -> Value {
    let mut all = base();
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

pub(super) const GRANITE: fn() -> Value = || {
    with(
        json!({ "attention_multiplier": 0.15, "embedding_multiplier": 12.0,
        "residual_multiplier": 0.4, "logits_scaling": 3.0 }),
    )
};

impl Case {
    pub(super) fn model(&self, models: &Path) -> Gguf {
        let says_type = ["-Q", "-F16"].iter().any(|ty| self.file.contains(ty));
        let ty = if says_type { "" } else { "-F32" };
        let file = self.file.strip_suffix("-F32").unwrap_or(self.file);
        let model = open(&models.join(format!("{file}{ty}.gguf")));
        match self.made {
            Some(made) => made(&model),
            None => model,
        }
    }

    /// Returns whether transformers adds one to the weights of this tensor.
    pub(super) fn adds_one(&self, name: &str) -> bool {
        self.plus_one && name.ends_with("norm.weight") && !name.ends_with(self.plain_norm)
    }
}

fn gemma3() -> Value {
    json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 7,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24,
        "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 0,
    })
}

pub(super) const CASES: &[Case] = &[
    Case {
        file: "smollm3",
        model_type: "smollm3",
        config: || {
            with(
                json!({ "num_hidden_layers": 5, "rope_theta": 5e6, "tie_word_embeddings": true,
                "no_rope_layers": [1, 1, 1, 0, 1], "no_rope_layer_interval": 4 }),
            )
        },
        turned: true,
        ..LLAMA
    },
    Case {
        file: "granite",
        model_type: "granite",
        config: GRANITE,
        turned: true,
        ..LLAMA
    },
    Case {
        file: "olmo2",
        model_type: "olmo2",
        config: || with(json!({ "rms_norm_eps": 1e-6, "rope_theta": 500000 })),
        names: &[POST_NORMED],
        ..LLAMA
    },
    Case {
        file: "glm4",
        model_type: "glm4",
        config: || with(json!({ "partial_rotary_factor": 0.5, "attention_bias": true })),
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                post_attention_norm=post_self_attn_layernorm ffn_norm=post_attention_layernorm \
                ffn_up=mlp.gate_up_proj ffn_down=mlp.down_proj post_ffw_norm=post_mlp_layernorm",
        ],
        ..LLAMA
    },
    Case {
        file: "phi3",
        model_type: "phi3",
        config: || {
            with(json!({ "max_position_embeddings": 8192,
                "original_max_position_embeddings": 1024, "sliding_window": null,
                "rope_scaling": { "type": "longrope" } }))
        },
        names: &[PHI3],
        settings: &["rope_factors_long.weight", "rope_factors_short.weight"],
        // the root of 1 + ln 8 / ln 1024
        set: &[("phi3.rope.scaling.attn_factor", 1.140_175_5)],
        ..LLAMA
    },
    Case {
        file: "phi4",
        model_type: "phi3",
        config: || with(json!({ "partial_rotary_factor": 0.75, "rope_scaling": null })),
        names: &[PHI3],
        ..LLAMA
    },
    Case {
        file: "gemma",
        model_type: "gemma",
        config: || {
            with(
                json!({ "rms_norm_eps": 1e-6, "head_dim": 16, "hidden_act": "gelu",
                "hidden_activation": null, "tie_word_embeddings": null }),
            )
        },
        plus_one: true,
        ..LLAMA
    },
    Case {
        file: "gemma2",
        model_type: "gemma2",
        config: || {
            with(
                json!({ "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "head_dim": 16,
                "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": null,
                "query_pre_attn_scalar": 16, "sliding_window": 24,
                "attn_logit_softcapping": 2.5, "final_logit_softcapping": 4.0 }),
            )
        },
        names: &[GEMMA],
        plus_one: true,
        ..LLAMA
    },
    Case {
        file: "gemma3",
        model_type: "gemma3_text",
        config: gemma3,
        names: &[GEMMA],
        plus_one: true,
        ..LLAMA
    },
    Case {
        file: "gemma3",
        model_type: "gemma3",
        config: || json!({ "text_config": gemma3(), "vision_config": { "hidden_size": 8 } }),
        names: &[WRAPPED_GEMMA],
        layers: "language_model.model.layers.",
        plus_one: true,
        ..LLAMA
    },
    Case {
        file: "seed_oss",
        model_type: "seed_oss",
        config: || {
            with(
                json!({ "head_dim": 16, "rope_theta": 1e7, "attention_bias": true,
                "attention_out_bias": false, "mlp_bias": false }),
            )
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                post_attention_norm=post_attention_layernorm ffn_gate=mlp.gate_proj \
                ffn_up=mlp.up_proj ffn_down=mlp.down_proj",
        ],
        ..LLAMA
    },
    Case {
        file: "ernie4_5",
        model_type: "ernie4_5",
        config: || {
            with(
                json!({ "head_dim": 16, "rope_theta": 500000, "use_bias": false,
                "tie_word_embeddings": true }),
            )
        },
        ..LLAMA
    },
    Case {
        file: "starcoder2",
        model_type: "starcoder2",
        config: || {
            with(
                json!({ "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh",
                "rope_theta": 100000, "use_bias": true, "tie_word_embeddings": null }),
            )
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm attn_norm=input_layernorm \
                attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj \
                attn_output=self_attn.o_proj ffn_norm=post_attention_layernorm \
                ffn_up=mlp.c_fc ffn_down=mlp.c_proj",
        ],
        ..LLAMA
    },
    Case {
        file: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        config: || {
            with(
                json!({ "head_dim": 16, "rope_theta": 11158840.0, "use_qk_norm": true,
                "tie_word_embeddings": true }),
            )
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm attn_norm=input_layernorm \
                attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj \
                attn_output=self_attn.o_proj attn_q_norm=self_attn.query_layernorm \
                attn_k_norm=self_attn.key_layernorm ffn_norm=post_attention_layernorm \
                ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj",
        ],
        ..LLAMA
    },
    Case {
        file: "nemotron",
        model_type: "nemotron",
        config: || {
            with(json!({ "norm_eps": 1e-5, "hidden_act": "relu2", "partial_rotary_factor": 0.5 }))
        },
        plus_one: true,
        ..LLAMA
    },
    Case {
        file: "falcon",
        model_type: "falcon",
        config: || {
            json!({
                "hidden_size": 64, "ffn_hidden_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": true,
                "layer_norm_epsilon": 1e-5, "alibi": false, "bias": false,
                "max_position_embeddings": 512, "rope_theta": 10000.0,
                "tie_word_embeddings": false,
            })
        },
        names: &[
            "token_embd=transformer.word_embeddings output_norm=transformer.ln_f \
                output=lm_head attn_norm=ln_mlp attn_norm_2=ln_attn \
                attn_qkv=self_attention.query_key_value attn_output=self_attention.dense \
                ffn_up=mlp.dense_h_to_4h ffn_down=mlp.dense_4h_to_h",
        ],
        layers: "transformer.h.",
        ..LLAMA
    },
    Case {
        file: "phi2",
        model_type: "phi",
        config: || {
            with(json!({ "layer_norm_eps": 1e-5, "hidden_act": "gelu_new",
                "num_key_value_heads": null, "partial_rotary_factor": 0.5 }))
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.final_layernorm output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.dense ffn_up=mlp.fc1 \
                ffn_down=mlp.fc2",
        ],
        ..LLAMA
    },
    Case {
        file: "command-r",
        model_type: "cohere",
        config: || {
            with(
                json!({ "layer_norm_eps": 1e-5, "logit_scale": 0.6, "rope_theta": 8e6,
                "max_position_embeddings": 128, "model_max_length": 512,
                "tie_word_embeddings": null }),
            )
        },
        ..LLAMA
    },
    Case {
        file: "cohere2",
        model_type: "cohere2",
        config: || {
            with(
                json!({ "num_hidden_layers": 5, "layer_norm_eps": 1e-5, "logit_scale": 0.75,
                "rope_theta": 50000, "sliding_window": 24, "sliding_window_pattern": 4,
                "rotary_pct": 1.0, "tie_word_embeddings": null }),
            )
        },
        ..LLAMA
    },
    Case {
        file: "exaone4",
        model_type: "exaone4",
        config: || {
            with(
                json!({ "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 64,
                "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 1e6,
                "sliding_window": 24, "sliding_window_pattern": "LLLG",
                "tie_word_embeddings": true }),
            )
        },
        names: &[POST_NORMED],
        dropped: &["rope_freqs.weight"],
        ..LLAMA
    },
    Case {
        file: "minicpm",
        model_type: "minicpm",
        // 1.4 / sqrt(2), and 64 / 16
        config: || with(json!({ "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16 })),
        set: &[
            ("minicpm.embedding_scale", 12.0),
            ("minicpm.residual_scale", 0.989_949_46),
            ("minicpm.logit_scale", 4.0),
        ],
        turned: true,
        ..LLAMA
    },
    Case {
        file: "mistral3",
        model_type: "ministral3",
        config: || {
            with(
                json!({ "head_dim": 16, "rope_theta": null, "rope_parameters": {
                "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
                "original_max_position_embeddings": 16 } }),
            )
        },
        turned: true,
        ..LLAMA
    },
];
