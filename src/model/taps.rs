//! Names of values: llama.cpp's names for the same tensors.
//!
//! Names repeat in a layer (`Qcur-0` is the product, then the biased product, then the rotated
//! one), so a value is identified by name, layer and occurrence.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// Token embeddings.
pub const INP_EMBD: &str = "inp_embd";
/// Token embeddings plus those of positions, in GPT-2.
pub const INPL: &str = "inpL";
/// Token embeddings, normed.
pub const INP_NORM: &str = "inp_norm";
/// Token embeddings times a factor, in AFMoE.
pub const INP_EMBD_SCALED: &str = "inp_embd_scaled";
/// Token embeddings times a factor, where scaled and unscaled ones have separate names.
pub const INP_SCALED: &str = "inp_scaled";
/// Rows of the per-layer token table, scaled.
pub const INP_PER_LAYER_SELECTED: &str = "inp_per_layer_selected";
/// Per-layer projection of the token embedding, normed.
pub const PER_LAYER_PROJ: &str = "per_layer_proj";
/// Per-layer inputs: the sum of both.
pub const INP_PER_LAYER: &str = "inp_per_layer";
/// An MTP layer's token embeddings, normed.
pub const MTP_ENORM: &str = "mtp_enorm";
/// The hidden states that it reads, normed.
pub const MTP_HNORM: &str = "mtp_hnorm";
/// Both side by side.
pub const MTP_CONCAT: &str = "mtp_concat";
/// Their projection, the layer's input.
pub const MTP_EH_PROJ: &str = "mtp_eh_proj";
/// An assistant's input, projected.
pub const PRE_PROJ: &str = "pre_proj";
/// All rows of the final norm, where an MTP layer or an assistant reads them; of an assistant, the
/// rows to draft on from.
pub const H_NEXTN: &str = "h_nextn";
/// A layer's input, normed.
pub const ATTN_NORM: &str = "attn_norm";
/// A second norm of the layer's input: attention's, where the first is the feed-forward block's.
pub const ATTN_NORM_2: &str = "attn_norm_2";
/// A layer norm before its bias.
pub const NORM_W: &str = "norm_w";
/// Queries: product, biased, rotated.
pub const Q_CUR: &str = "Qcur";
/// Queries, normed per head.
pub const Q_CUR_NORMED: &str = "Qcur_normed";
/// Queries, normed per head after RoPE.
pub const Q_CUR_NORM: &str = "Qcur_norm";
/// Queries, scaled by position.
pub const Q_CUR_TEMP: &str = "Qcur_attn_temp_scaled";
/// Queries, rotated, of Gemma 4 and Step 3.5.
pub const Q_CUR_POS: &str = "Qcur_pos";
/// Keys, as [`Q_CUR`]. The last of them goes into the cache.
pub const K_CUR: &str = "Kcur";
/// Keys, normed per head.
pub const K_CUR_NORMED: &str = "Kcur_normed";
/// Keys, normed per head after RoPE.
pub const K_CUR_NORM: &str = "Kcur_norm";
/// Keys, rotated, of Gemma 4 and Step 3.5.
pub const K_CUR_POS: &str = "Kcur_pos";
/// Queries, keys and values within limits.
pub const Q_CUR_CLAMPED: &str = "Qcur_clamped";
/// See [`Q_CUR_CLAMPED`].
pub const K_CUR_CLAMPED: &str = "Kcur_clamped";
/// See [`Q_CUR_CLAMPED`].
pub const V_CUR_CLAMPED: &str = "Vcur_clamped";
/// Values: product, biased. The last of them goes into the cache.
pub const V_CUR: &str = "Vcur";
/// Values, normed per head.
pub const V_CUR_NORMED: &str = "Vcur_normed";
/// Attention's weighted sum of values.
pub const KQV_OUT: &str = "kqv_out";
/// Attention's output projection.
pub const ATTN_OUT: &str = "attn_out";
/// Attention's result, normed; or the norm after it, in files that use this name.
pub const ATTN_POST_NORM: &str = "attn_post_norm";
/// The same in GLM.
pub const POST_ATTN_NORM: &str = "post_attn_norm";
/// The layer's input plus attention's result.
pub const FFN_INP: &str = "ffn_inp";
/// The same in Gemma.
pub const SA_OUT: &str = "sa_out";
/// That sum, normed.
pub const FFN_NORM: &str = "ffn_norm";
/// Norm of the dense block's input, where experts run beside it.
pub const FFN_NORM_1: &str = "ffn_norm_1";
/// Norm of the experts' input, where a dense block runs beside them.
pub const FFN_NORM_2: &str = "ffn_norm_2";
/// Gate projection.
pub const FFN_GATE: &str = "ffn_gate";
/// Gate projection with its bias.
pub const FFN_GATE_B: &str = "ffn_gate_b";
/// Up projection.
pub const FFN_UP: &str = "ffn_up";
/// Up projection with its bias.
pub const FFN_UP_B: &str = "ffn_up_b";
/// Gated product, `silu(gate) * up`.
pub const FFN_SWIGLU: &str = "ffn_swiglu";
/// The same in gpt-oss.
pub const FFN_SWIGLU_OAI: &str = "ffn_swiglu_oai";
/// The same with GELU.
pub const FFN_GEGLU: &str = "ffn_geglu";
/// The same with ReLU.
pub const FFN_REGLU: &str = "ffn_reglu";
/// Gate projection after SiLU, where the product is limited.
pub const FFN_SILU: &str = "ffn_silu";
/// That value, limited.
pub const FFN_SILU_CLAMPED: &str = "ffn_silu_clamped";
/// Up projection, limited.
pub const FFN_UP_CLAMPED: &str = "ffn_up_clamped";
/// Their product.
pub const FFN_SWIGLU_LIMITED: &str = "ffn_swiglu_limited";
/// Up projection after GELU, without a gate.
pub const FFN_GELU: &str = "ffn_gelu";
/// Up projection after squared ReLU, without a gate.
pub const FFN_SQR_RELU: &str = "ffn_sqr(relu)";
/// Down projection, where a bias follows.
pub const FFN_DOWN: &str = "ffn_down";
/// The feed-forward block's result.
pub const FFN_OUT: &str = "ffn_out";
/// That result, normed. llama.cpp leaves the layer out of this name except in Gemma 3.
pub const FFN_POST_NORM: &str = "ffn_post_norm";
/// The same in GLM.
pub const POST_MLP_NORM: &str = "post_mlp_norm";
/// Sum of block result and residual, where per-layer inputs or a scale follow.
pub const PE_IN: &str = "pe_in";
/// The layer's per-layer input, gated, projected and normed.
pub const PER_LAYER_EMBD_OUT: &str = "per_layer_embd_out";
/// Router logits.
pub const FFN_MOE_LOGITS: &str = "ffn_moe_logits";
/// Router logits with their bias.
pub const FFN_MOE_LOGITS_BIASED: &str = "ffn_moe_logits_biased";
/// Router probabilities of all experts.
pub const FFN_MOE_PROBS: &str = "ffn_moe_probs";
/// Probabilities plus the selection bias, by which experts are chosen.
pub const FFN_MOE_PROBS_BIASED: &str = "ffn_moe_probs_biased";
/// Indices of the chosen experts, best first.
pub const FFN_MOE_TOPK: &str = "ffn_moe_topk";
/// Weights of the chosen experts.
pub const FFN_MOE_WEIGHTS: &str = "ffn_moe_weights";
/// Weights after a softmax over the chosen experts.
pub const FFN_MOE_WEIGHTS_SOFTMAX: &str = "ffn_moe_weights_softmax";
/// Weights divided by their sum.
pub const FFN_MOE_WEIGHTS_NORM: &str = "ffn_moe_weights_norm";
/// Weights times a factor.
pub const FFN_MOE_WEIGHTS_SCALED: &str = "ffn_moe_weights_scaled";
/// The chosen experts' gate projections.
pub const FFN_MOE_GATE: &str = "ffn_moe_gate";
/// Gate projections times the NVFP4 factors.
pub const FFN_MOE_GATE_SCALED: &str = "ffn_moe_gate_scaled";
/// Gate projections with their biases.
pub const FFN_MOE_GATE_BIASED: &str = "ffn_moe_gate_biased";
/// The chosen experts' gate and up projections, from one fused tensor.
pub const FFN_MOE_GATE_UP: &str = "ffn_moe_gate_up";
/// Fused projections times the NVFP4 factors.
pub const FFN_MOE_GATE_UP_SCALED: &str = "ffn_moe_gate_up_scaled";
/// Fused projections with their biases.
pub const FFN_MOE_GATE_UP_BIASED: &str = "ffn_moe_gate_up_biased";
/// The chosen experts' up projections.
pub const FFN_MOE_UP: &str = "ffn_moe_up";
/// Up projections times the NVFP4 factors.
pub const FFN_MOE_UP_SCALED: &str = "ffn_moe_up_scaled";
/// Up projections with their biases.
pub const FFN_MOE_UP_BIASED: &str = "ffn_moe_up_biased";
/// Gated products of the chosen experts, with SiLU.
pub const FFN_MOE_SWIGLU: &str = "ffn_moe_swiglu";
/// The same with GELU.
pub const FFN_MOE_GEGLU: &str = "ffn_moe_geglu";
/// The same with ReLU.
pub const FFN_MOE_REGLU: &str = "ffn_moe_reglu";
/// See [`FFN_SILU`].
pub const FFN_MOE_SILU: &str = "ffn_moe_silu";
/// See [`FFN_SILU_CLAMPED`].
pub const FFN_MOE_SILU_CLAMPED: &str = "ffn_moe_silu_clamped";
/// See [`FFN_UP_CLAMPED`].
pub const FFN_MOE_UP_CLAMPED: &str = "ffn_moe_up_clamped";
/// See [`FFN_SWIGLU_LIMITED`].
pub const FFN_MOE_SWIGLU_LIMITED: &str = "ffn_moe_swiglu_limited";
/// The experts' inputs times their weights, in LLaMA 4.
pub const FFN_MOE_WEIGHTED: &str = "ffn_moe_weighted";
/// The same in gpt-oss.
pub const FFN_MOE_SWIGLU_OAI: &str = "ffn_moe_swiglu_oai";
/// Squared ReLU of the chosen experts' up projections.
pub const FFN_MOE_RELU_SQR: &str = "ffn_moe_relu_sqr";
/// The chosen experts' down projections.
pub const FFN_MOE_DOWN: &str = "ffn_moe_down";
/// Down projections times the NVFP4 factors.
pub const FFN_MOE_DOWN_SCALED: &str = "ffn_moe_down_scaled";
/// Down projections with their biases.
pub const FFN_MOE_DOWN_BIASED: &str = "ffn_moe_down_biased";
/// Weighted sum of the experts' results.
pub const FFN_MOE_OUT: &str = "ffn_moe_out";
/// Result of the dense block beside experts, normed.
pub const FFN_MLP: &str = "ffn_mlp";
/// Result of the experts beside a dense block, normed.
pub const FFN_MOE: &str = "ffn_moe";
/// Sum of both.
pub const FFN_MOE_COMBINED: &str = "ffn_moe_combined";
/// Result of the shared expert in LLaMA 4.
pub const FFN_MOE_SHEXP: &str = "ffn_moe_shexp";
/// Sum of the shared expert's and the others' results in LLaMA 4.
pub const FFN_MOE_OUT_MERGED: &str = "ffn_moe_out_merged";
/// Result of the shared expert in Step 3.5.
pub const FFN_SHARED_OUT: &str = "ffn_shared_out";
/// Result of the shared expert.
pub const FFN_SHEXP: &str = "ffn_shexp";
/// Score of the shared expert's gate.
pub const FFN_SHEXP_GATE_INP: &str = "ffn_shexp_gate_inp";
/// Sigmoid of that score.
pub const FFN_SHEXP_GATE: &str = "ffn_shexp_gate";
/// Gated result of the shared expert.
pub const FFN_SHEXP_OUT: &str = "ffn_shexp_out";
/// The same in Qwen 3.5: score, sigmoid and gated result.
pub const SHARED_EXPERT_GATE: &str = "shared_expert_gate";
/// See [`SHARED_EXPERT_GATE`].
pub const SHARED_EXPERT_GATE_SIGMOID: &str = "shared_expert_gate_sigmoid";
/// See [`SHARED_EXPERT_GATE`].
pub const FFN_SHEXP_GATED: &str = "ffn_shexp_gated";
/// Token embeddings in Qwen 3.5.
pub const INPUT_EMBED: &str = "model.input_embed";
/// Token embeddings in Qwen 3 Next and LFM 2.
pub const EMBED_TOKENS: &str = "model.embed_tokens";
/// Queries and gates of attention in one product.
pub const Q_CUR_FULL: &str = "Qcur_full";
/// Attention's weighted sum of values, where a gate follows.
pub const ATTN_PREGATE: &str = "attn_pregate";
/// Gate of attention's result.
pub const GATE_RESHAPED: &str = "gate_reshaped";
/// Sigmoid of that gate.
pub const GATE_SIGMOID: &str = "gate_sigmoid";
/// Attention's result after the gate.
pub const ATTN_GATED: &str = "attn_gated";
/// Gate of attention's result, its sigmoid, and the output projection, in AFMoE.
pub const ATTN_GATE_PROJ: &str = "attn_gate_proj";
/// See [`ATTN_GATE_PROJ`].
pub const ATTN_GATE_SIG: &str = "attn_gate_sig";
/// See [`ATTN_GATE_PROJ`].
pub const ATTN_O_PROJ: &str = "attn_o_proj";
/// Gates of the heads' results, their sigmoids, the gated heads and the output projection, in Step
/// 3.5.
pub const ATTN_GATE: &str = "attn_gate";
/// See [`ATTN_GATE`].
pub const ATTN_GATE_SIGMOID: &str = "attn_gate_sigmoid";
/// See [`ATTN_GATE`].
pub const ATTN_GATED_3D: &str = "attn_gated_3d";
/// See [`ATTN_GATE`].
pub const ATTN_PROJ: &str = "attn_proj";
/// Attention's output projection times a factor.
pub const ATTN_OUT_SCALED: &str = "attn_out_scaled";
/// Attention's output projection in Qwen 3.5; values read from the state in Kimi Linear.
pub const ATTN_OUTPUT: &str = "attn_output";
/// The layer's input plus the result of attention or a recurrence.
pub const ATTN_RESIDUAL: &str = "attn_residual";
/// Queries of latent attention: low-rank row, normed row, and its up projection.
pub const Q: &str = "q";
/// Low-rank row of queries that an indexer reads too, and the normed row.
pub const QR: &str = "qr";
/// An indexer's queries: product, rotated.
pub const INDEXER_Q: &str = "indexer_q";
/// An indexer's keys: product, normed, rotated.
pub const INDEXER_K: &str = "indexer_k";
/// Weights of an indexer's heads: product, scaled.
pub const INDEXER_WEIGHTS: &str = "indexer_weights";
/// Positions that an indexer chooses, in ascending order; llama.cpp's `top_k` has them in another.
pub const SELECTED_KEYS: &str = "selected_keys";
/// Queries without RoPE, after absorption of the key projection.
pub const Q_NOPE_ABSORBED: &str = "q_nope_absorbed";
/// Rotated part of the queries.
pub const Q_PE: &str = "q_pe";
/// Latent row and the keys' part before rotation.
pub const KV_CMPR_PE: &str = "kv_cmpr_pe";
/// Latent row, normed.
pub const KV_CMPR: &str = "kv_cmpr";
/// Rotated part of the keys.
pub const K_PE: &str = "k_pe";
/// Keys and values expanded from the latent row.
pub const KV: &str = "kv";
/// The values among these.
pub const V_CUR_CONT: &str = "Vcur_cont";
/// Weighted sum of latent rows, before the value projection.
pub const KQV_MLA: &str = "kqv_mla";
/// Token embeddings of PLaMo 2.
pub const EMBEDDING_OUTPUT: &str = "embedding_output";
/// Feed-forward block's products times the factor that the file has beside their matrix.
pub const FFN_GATE_S: &str = "ffn_gate_s";
/// See [`FFN_GATE_S`].
pub const FFN_UP_S: &str = "ffn_up_s";
/// xIELU of the up projection.
pub const FFN_XIELU: &str = "ffn_xielu";
/// Gated product of BitNet, and its norm; attention's result, normed.
pub const FFN_SUB_OUT: &str = "ffn_sub_out";
/// See [`FFN_SUB_OUT`].
pub const FFN_SUB_NORM: &str = "ffn_sub_norm";
/// See [`FFN_SUB_OUT`].
pub const ATTN_SUB_NORM: &str = "attn_sub_norm";
/// Queries, keys and values of a fused product, within limits.
pub const WQKV_CLAMPED: &str = "wqkv_clamped";
/// The feed-forward block's input in PLaMo 2.
pub const FFN_PRE_NORM: &str = "ffn_pre_norm";
/// A layer's output in PLaMo 2.
pub const FFN_RESIDUAL: &str = "ffn_residual";
/// PLaMo 2's Mamba: its input projection.
pub const MAMBA_IN_PROJ: &str = "mamba_in_proj";
/// Its values, and the gate of its result.
pub const MAMBA_X_SPLIT: &str = "mamba_x_split";
/// See [`MAMBA_X_SPLIT`].
pub const MAMBA_Z_SPLIT: &str = "mamba_z_split";
/// Its convolution, and SiLU of that.
pub const MAMBA_CONV1D: &str = "mamba_conv1d";
/// See [`MAMBA_CONV1D`].
pub const MAMBA_CONV1D_SILU: &str = "mamba_conv1d_silu";
/// Keys, queries and time steps together, then each normed.
pub const MAMBA_BCDT_PROJ: &str = "mamba_bcdt_proj";
/// See [`MAMBA_BCDT_PROJ`].
pub const MAMBA_DT_NORMED: &str = "mamba_dt_normed";
/// See [`MAMBA_BCDT_PROJ`].
pub const MAMBA_B_NORMED: &str = "mamba_B_normed";
/// See [`MAMBA_BCDT_PROJ`].
pub const MAMBA_C_NORMED: &str = "mamba_C_normed";
/// Its time steps.
pub const MAMBA_DT_PROJ: &str = "mamba_dt_proj";
/// Its result with the skip connection, then gated.
pub const MAMBA_Y_ADD: &str = "mamba_y_add_d";
/// See [`MAMBA_Y_ADD`].
pub const MAMBA_Y_SWIGLU_Z: &str = "mamba_y_swiglu_z";
/// Its output projection.
pub const MAMBA_OUT_PROJ: &str = "mamba_out_proj";
/// Attention's output projection in Kimi Linear.
pub const MLA_OUT: &str = "mla_out";
/// Logarithm of the decay of Kimi Linear's delta net.
pub const KDA_G1: &str = "kda_g1";
/// Values read from its state, normed, and its result.
pub const KDA_NORMED: &str = "kda_normed";
/// See [`KDA_NORMED`].
pub const KDA_OUT: &str = "kda_out";
/// Result of a convolution.
pub const CONV_OUTPUT_RAW: &str = "conv_output_raw";
/// Result of a convolution, after SiLU.
pub const CONV_OUTPUT_SILU: &str = "conv_output_silu";
/// Queries of a delta net, L2-normalized.
pub const Q_CONV_PREDELTA: &str = "q_conv_predelta";
/// Keys of a delta net, L2-normalized.
pub const K_CONV_PREDELTA: &str = "k_conv_predelta";
/// Both rates of a delta net, in one matrix.
pub const MIXED_BA: &str = "linear_attn_mixed_ba";
/// Queries, keys, values and gates of a delta net, in one matrix.
pub const MIXED_QKVZ: &str = "linear_attn_mixed_qkvz";
/// Time steps of a delta net, before their bias.
pub const A: &str = "a";
/// Time steps after softplus.
pub const A_SOFTPLUS: &str = "a_softplus";
/// Logarithm of the decay of a delta net's state; in Qwen 3 Next also attention's gate.
pub const GATE: &str = "gate";
/// Learning rate (beta) of a delta net, before the sigmoid.
pub const B: &str = "b";
/// Learning rate after the sigmoid.
pub const BETA_SIGMOID: &str = "beta_sigmoid";
/// Gate of a delta net's result.
pub const Z: &str = "z";
/// Result of a delta net.
pub const LINEAR_ATTN_OUT: &str = "linear_attn_out";
/// Values read from Mamba 2's state, plus the skip connection.
pub const MAMBA2_Y_ADD_D: &str = "mamba2_y_add_d";
/// Result of Mamba 2.
pub const MAMBA_OUT: &str = "mamba_out";
/// Result of Mamba 2 parallel to attention.
pub const SSM_OUT: &str = "ssm_out";
/// Sum of both.
pub const LAYER_OUT: &str = "layer_out";
/// Queries, rotated, in Falcon H1.
pub const Q_CUR_POST_ROPE: &str = "Qcur-post-rope";
/// Queries, rotated, in AFMoE.
pub const Q_CUR_ROPE: &str = "Qcur_rope";
/// Keys, rotated, in AFMoE.
pub const K_CUR_ROPE: &str = "Kcur_rope";
/// Keys, rotated, in Falcon H1.
pub const K_CUR_POST_ROPE: &str = "Kcur-post-rope";
/// A layer's input, normed, in LFM 2.
pub const OPERATOR_NORM: &str = "model.layers.{}.operator_norm";
/// Gates and values of a short convolution.
pub const CONV_IN_PROJ: &str = "model.layers.{}.conv.in_proj";
/// Result of the short convolution.
pub const CONV_CONV: &str = "model.layers.{}.conv.conv";
/// Output projection of the short convolution.
pub const CONV_OUT_PROJ: &str = "model.layers.{}.conv.out_proj";
/// Queries, normed per head, in LFM 2.
pub const Q_LAYERNORM: &str = "model.layers.{}.self_attn.q_layernorm";
/// Keys, normed per head, in LFM 2.
pub const K_LAYERNORM: &str = "model.layers.{}.self_attn.k_layernorm";
/// Attention's output projection in LFM 2.
pub const SELF_ATTN_OUT_PROJ: &str = "model.layers.{}.self_attn.out_proj";
/// The feed-forward block's input, normed, under LFM 2's name.
pub const LFM2_FFN_OUT: &str = "model.layers.{}.ffn_out";
/// A layer's output.
pub const L_OUT: &str = "l_out";
/// A layer's output, under Nemotron H's name.
pub const NEMOTRON_H_BLOCK_OUT: &str = "nemotron_h_block_out";
/// The layer's output plus deepstack features of images.
pub const DEEPSTACK_OUT: &str = "deepstack_out";
/// Result of the final norm.
pub const RESULT_NORM: &str = "result_norm";
/// Final norm of ModernBERT, whose rows are the output.
pub const FINAL_NORM_OUT: &str = "final_norm_out";
/// Output of a model without logits.
pub const RESULT_EMBD: &str = "result_embd";
/// That output after the products that follow.
pub const RESULT_EMBD_POOLED: &str = "result_embd_pooled";
/// Logits.
pub const RESULT_OUTPUT: &str = "result_output";

/// Placeholder name for inputs of products that llama.cpp does not name.
pub const UNNAMED: &str = "(input of a product)";

/// A named value: `Qcur-3`, or `result_norm` without a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap<N = &'static str> {
    /// llama.cpp's name.
    pub name: N,
    /// The layer, for values that every layer has.
    pub layer: Option<usize>,
    /// Number of earlier values with this name and layer in a pass.
    pub nth: usize,
}

/// A value of any program, which may have names that ours lacks.
pub type OwnedTap = Tap<String>;

impl Tap {
    /// Returns whether llama.cpp has a name for it too. Inputs of products have a tap in any case.
    pub fn is_named(&self) -> bool {
        self.name != UNNAMED
    }

    /// Returns the tap with an owned name.
    pub fn owned(self) -> OwnedTap {
        Tap {
            name: self.name.to_owned(),
            layer: self.layer,
            nth: self.nth,
        }
    }
}

/// Returns a name as reports have it, with its number where the name repeats: `Qcur-0`, and
/// `Qcur-0 #2` for the second value of that name.
pub fn numbered(name: impl fmt::Display, nth: usize) -> String {
    match nth {
        0 => name.to_string(),
        nth => format!("{name} #{}", nth + 1),
    }
}

/// Prints name and layer.
impl<N: fmt::Display> fmt::Display for Tap<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{}-{layer}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// Counts values of the same name and layer, in order.
#[derive(Debug)]
pub struct Numbering<N>(HashMap<(N, Option<usize>), usize>);

impl<N: Clone + Eq + Hash> Numbering<N> {
    /// Returns the tap of the next value with that name and layer.
    pub fn next(&mut self, name: N, layer: Option<usize>) -> Tap<N> {
        let count = self.0.entry((name.clone(), layer)).or_default();
        let nth = *count;
        *count += 1;
        Tap { name, layer, nth }
    }
}

impl<N> Default for Numbering<N> {
    fn default() -> Numbering<N> {
        Numbering(HashMap::new())
    }
}
