//! GGUF's names and Hugging Face's, of types that have them in common.

/// LLaMA, and experts as Qwen names them.
pub(super) const LLAMA: &str = "token_embd=model.embed_tokens output_norm=model.norm \
            output=lm_head \
            attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
            attn_v=self_attn.v_proj attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm \
            attn_k_norm=self_attn.k_norm ffn_norm=post_attention_layernorm \
            ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj \
            ffn_gate_inp=mlp.gate ffn_gate_exps=mlp.experts.{}.gate_proj \
            ffn_up_exps=mlp.experts.{}.up_proj ffn_down_exps=mlp.experts.{}.down_proj \
            ffn_gate_inp_shexp=mlp.shared_expert_gate \
            ffn_gate_shexp=mlp.shared_expert.gate_proj ffn_up_shexp=mlp.shared_expert.up_proj \
            ffn_down_shexp=mlp.shared_expert.down_proj";

pub(super) const POST_NORMED: &str = "token_embd=model.embed_tokens output_norm=model.norm \
    output=lm_head \
    attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj \
    attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm attn_k_norm=self_attn.k_norm \
    post_attention_norm=post_attention_layernorm ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj \
    ffn_down=mlp.down_proj post_ffw_norm=post_feedforward_layernorm";

pub(super) const GEMMA: &str = "token_embd=model.embed_tokens output_norm=model.norm \
    attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm \
    attn_k_norm=self_attn.k_norm post_attention_norm=post_attention_layernorm \
    ffn_norm=pre_feedforward_layernorm ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj \
    ffn_down=mlp.down_proj post_ffw_norm=post_feedforward_layernorm";

pub(super) const WRAPPED_GEMMA: &str = "token_embd=language_model.model.embed_tokens \
    output_norm=language_model.model.norm attn_norm=input_layernorm attn_q=self_attn.q_proj \
    attn_k=self_attn.k_proj attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
    attn_q_norm=self_attn.q_norm attn_k_norm=self_attn.k_norm \
    post_attention_norm=post_attention_layernorm ffn_norm=pre_feedforward_layernorm \
    ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj \
    post_ffw_norm=post_feedforward_layernorm";

pub(super) const PHI3: &str = "token_embd=model.embed_tokens output_norm=model.norm output=lm_head \
    attn_norm=input_layernorm attn_qkv=self_attn.qkv_proj attn_output=self_attn.o_proj \
    ffn_norm=post_attention_layernorm ffn_up=mlp.gate_up_proj ffn_down=mlp.down_proj";

pub(super) const MIXTRAL: &str = "token_embd=model.embed_tokens output_norm=model.norm \
    output=lm_head \
    attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.o_proj ffn_norm=post_attention_layernorm \
    ffn_gate_inp=block_sparse_moe.gate ffn_gate_exps=block_sparse_moe.experts.{}.w1 \
    ffn_up_exps=block_sparse_moe.experts.{}.w3 ffn_down_exps=block_sparse_moe.experts.{}.w2";

pub(super) const GPT_OSS: &str = "token_embd=model.embed_tokens output_norm=model.norm \
    output=lm_head \
    attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.o_proj attn_sinks=-self_attn.sinks \
    post_attention_norm=post_attention_layernorm ffn_gate_inp=mlp.router \
    gate_up=-mlp.experts.gate_up_proj ffn_down_exps=-mlp.experts.down_proj";

/// As transformers writes experts since its version 5.
pub(super) const FUSED_QWEN: &str = "token_embd=model.embed_tokens output_norm=model.norm \
                output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                attn_q_norm=self_attn.q_norm attn_k_norm=self_attn.k_norm \
                ffn_norm=post_attention_layernorm ffn_gate_inp=mlp.gate \
                gate_up=-mlp.experts.gate_up_proj ffn_down_exps=-mlp.experts.down_proj";
