//! What named values are called: llama.cpp's names for the same tensors.
//!
//! Names repeat in a layer (`Qcur-0` is the product, then the biased product, then the rotated
//! one), so that a value is a name, a layer and a number.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// Token embeddings.
pub const INP_EMBD: &str = "inp_embd";
/// Token embeddings, normed.
pub const INP_NORM: &str = "inp_norm";
/// Token embeddings times a factor, where both have a name.
pub const INP_SCALED: &str = "inp_scaled";
/// What the token's own row gives every layer.
pub const INP_PER_LAYER_SELECTED: &str = "inp_per_layer_selected";
/// What its embedding gives every layer, normed.
pub const PER_LAYER_PROJ: &str = "per_layer_proj";
/// Both together.
pub const INP_PER_LAYER: &str = "inp_per_layer";
/// A layer's input, normed.
pub const ATTN_NORM: &str = "attn_norm";
/// A second norm of the layer's input: attention's, where the first is the feed-forward block's.
pub const ATTN_NORM_2: &str = "attn_norm_2";
/// A layer norm before its bias.
pub const NORM_W: &str = "norm_w";
/// Queries: product, with the bias, rotated.
pub const Q_CUR: &str = "Qcur";
/// Queries, normed per head.
pub const Q_CUR_NORMED: &str = "Qcur_normed";
/// Queries, normed per head after they turned.
pub const Q_CUR_NORM: &str = "Qcur_norm";
/// Queries, scaled by position.
pub const Q_CUR_TEMP: &str = "Qcur_attn_temp_scaled";
/// Queries, rotated, of Gemma 4.
pub const Q_CUR_POS: &str = "Qcur_pos";
/// Keys, as [`Q_CUR`]. The last of them goes into the cache.
pub const K_CUR: &str = "Kcur";
/// Keys, normed per head.
pub const K_CUR_NORMED: &str = "Kcur_normed";
/// Keys, normed per head after they turned.
pub const K_CUR_NORM: &str = "Kcur_norm";
/// Keys, rotated, of Gemma 4.
pub const K_CUR_POS: &str = "Kcur_pos";
/// Values: product, with the bias. The last of them goes into the cache.
pub const V_CUR: &str = "Vcur";
/// Values, normed per head.
pub const V_CUR_NORMED: &str = "Vcur_normed";
/// Attention's mix of values.
pub const KQV_OUT: &str = "kqv_out";
/// Its projection.
pub const ATTN_OUT: &str = "attn_out";
/// The attention's result, normed; or the norm after it, where files call that so.
pub const ATTN_POST_NORM: &str = "attn_post_norm";
/// The same, of GLM.
pub const POST_ATTN_NORM: &str = "post_attn_norm";
/// The layer's input and the attention's result.
pub const FFN_INP: &str = "ffn_inp";
/// The same, of Gemma.
pub const SA_OUT: &str = "sa_out";
/// That, normed.
pub const FFN_NORM: &str = "ffn_norm";
/// The same beside experts.
pub const FFN_NORM_1: &str = "ffn_norm_1";
/// The same for experts beside a block for all tokens.
pub const FFN_NORM_2: &str = "ffn_norm_2";
/// The gate's product.
pub const FFN_GATE: &str = "ffn_gate";
/// With its bias.
pub const FFN_GATE_B: &str = "ffn_gate_b";
/// The product that is gated.
pub const FFN_UP: &str = "ffn_up";
/// With its bias.
pub const FFN_UP_B: &str = "ffn_up_b";
/// Gate and product together.
pub const FFN_SWIGLU: &str = "ffn_swiglu";
/// The same of gpt-oss.
pub const FFN_SWIGLU_OAI: &str = "ffn_swiglu_oai";
/// The same with GELU.
pub const FFN_GEGLU: &str = "ffn_geglu";
/// The product after GELU, without a gate.
pub const FFN_GELU: &str = "ffn_gelu";
/// The squares of the product's values above 0.
pub const FFN_SQR_RELU: &str = "ffn_sqr(relu)";
/// Their projection, where a bias follows.
pub const FFN_DOWN: &str = "ffn_down";
/// The feed-forward block's result.
pub const FFN_OUT: &str = "ffn_out";
/// That, normed. llama.cpp leaves the layer out of this name where it is not Gemma 3's.
pub const FFN_POST_NORM: &str = "ffn_post_norm";
/// The same, of GLM.
pub const POST_MLP_NORM: &str = "post_mlp_norm";
/// The sum of the two, where a layer goes on from there.
pub const PE_IN: &str = "pe_in";
/// What a layer makes of its part of the inputs of all layers.
pub const PER_LAYER_EMBD_OUT: &str = "per_layer_embd_out";
/// A router's scores.
pub const FFN_MOE_LOGITS: &str = "ffn_moe_logits";
/// With their bias.
pub const FFN_MOE_LOGITS_BIASED: &str = "ffn_moe_logits_biased";
/// A weight for every expert.
pub const FFN_MOE_PROBS: &str = "ffn_moe_probs";
/// What experts are chosen by, where that is another number.
pub const FFN_MOE_PROBS_BIASED: &str = "ffn_moe_probs_biased";
/// The chosen experts, best first.
pub const FFN_MOE_TOPK: &str = "ffn_moe_topk";
/// Their weights.
pub const FFN_MOE_WEIGHTS: &str = "ffn_moe_weights";
/// After a softmax over them.
pub const FFN_MOE_WEIGHTS_SOFTMAX: &str = "ffn_moe_weights_softmax";
/// Divided by their sum.
pub const FFN_MOE_WEIGHTS_NORM: &str = "ffn_moe_weights_norm";
/// Times a factor.
pub const FFN_MOE_WEIGHTS_SCALED: &str = "ffn_moe_weights_scaled";
/// The chosen experts' gates.
pub const FFN_MOE_GATE: &str = "ffn_moe_gate";
/// Times the factors beside the matrices.
pub const FFN_MOE_GATE_SCALED: &str = "ffn_moe_gate_scaled";
/// With their biases.
pub const FFN_MOE_GATE_BIASED: &str = "ffn_moe_gate_biased";
/// The chosen experts' gates, each followed by what it gates, of one product.
pub const FFN_MOE_GATE_UP: &str = "ffn_moe_gate_up";
/// Times the factors beside the matrices.
pub const FFN_MOE_GATE_UP_SCALED: &str = "ffn_moe_gate_up_scaled";
/// With their biases.
pub const FFN_MOE_GATE_UP_BIASED: &str = "ffn_moe_gate_up_biased";
/// The products that are gated.
pub const FFN_MOE_UP: &str = "ffn_moe_up";
/// Times the factors beside the matrices.
pub const FFN_MOE_UP_SCALED: &str = "ffn_moe_up_scaled";
/// With their biases.
pub const FFN_MOE_UP_BIASED: &str = "ffn_moe_up_biased";
/// Gates and products together.
pub const FFN_MOE_SWIGLU: &str = "ffn_moe_swiglu";
/// The same with GELU.
pub const FFN_MOE_GEGLU: &str = "ffn_moe_geglu";
/// The same of gpt-oss.
pub const FFN_MOE_SWIGLU_OAI: &str = "ffn_moe_swiglu_oai";
/// What each chosen expert gives.
pub const FFN_MOE_DOWN: &str = "ffn_moe_down";
/// Times the factors beside the matrices.
pub const FFN_MOE_DOWN_SCALED: &str = "ffn_moe_down_scaled";
/// With its bias.
pub const FFN_MOE_DOWN_BIASED: &str = "ffn_moe_down_biased";
/// The weighted sum of these.
pub const FFN_MOE_OUT: &str = "ffn_moe_out";
/// What the block for all tokens gives beside experts, normed.
pub const FFN_MLP: &str = "ffn_mlp";
/// What the experts give beside it, normed.
pub const FFN_MOE: &str = "ffn_moe";
/// Both.
pub const FFN_MOE_COMBINED: &str = "ffn_moe_combined";
/// What the expert gives that sees every token.
pub const FFN_SHEXP: &str = "ffn_shexp";
/// How much of that a token gets, before a sigmoid.
pub const FFN_SHEXP_GATE_INP: &str = "ffn_shexp_gate_inp";
/// After it.
pub const FFN_SHEXP_GATE: &str = "ffn_shexp_gate";
/// What the token gets.
pub const FFN_SHEXP_OUT: &str = "ffn_shexp_out";
/// The same, of Qwen 3.5: scores, sigmoid, and what the token gets.
pub const SHARED_EXPERT_GATE: &str = "shared_expert_gate";
/// See [`SHARED_EXPERT_GATE`].
pub const SHARED_EXPERT_GATE_SIGMOID: &str = "shared_expert_gate_sigmoid";
/// See [`SHARED_EXPERT_GATE`].
pub const FFN_SHEXP_GATED: &str = "ffn_shexp_gated";
/// Token embeddings, of Qwen 3.5.
pub const INPUT_EMBED: &str = "model.input_embed";
/// Token embeddings, of Qwen 3 Next and LFM 2.
pub const EMBED_TOKENS: &str = "model.embed_tokens";
/// Queries and gates of attention, before they are taken apart.
pub const Q_CUR_FULL: &str = "Qcur_full";
/// Attention's mix of values, where a gate follows.
pub const ATTN_PREGATE: &str = "attn_pregate";
/// That gate.
pub const GATE_RESHAPED: &str = "gate_reshaped";
/// Its sigmoid.
pub const GATE_SIGMOID: &str = "gate_sigmoid";
/// What the gate lets pass.
pub const ATTN_GATED: &str = "attn_gated";
/// Attention's projection, of Qwen 3.5.
pub const ATTN_OUTPUT: &str = "attn_output";
/// The layer's input and what attention or a recurrence adds.
pub const ATTN_RESIDUAL: &str = "attn_residual";
/// Queries of latent attention: their narrow row, that normed, and what is made of it.
pub const Q: &str = "q";
/// What does not turn of queries, as it reads the narrow row.
pub const Q_NOPE_ABSORBED: &str = "q_nope_absorbed";
/// What does.
pub const Q_PE: &str = "q_pe";
/// The narrow row and the part of keys that turns.
pub const KV_CMPR_PE: &str = "kv_cmpr_pe";
/// The row, normed.
pub const KV_CMPR: &str = "kv_cmpr";
/// That part of keys, rotated.
pub const K_PE: &str = "k_pe";
/// Keys and values made of the row.
pub const KV: &str = "kv";
/// Those values.
pub const V_CUR_CONT: &str = "Vcur_cont";
/// What heads read, as their values would be.
pub const KQV_MLA: &str = "kqv_mla";
/// A convolution's result.
pub const CONV_OUTPUT_RAW: &str = "conv_output_raw";
/// That, after SiLU.
pub const CONV_OUTPUT_SILU: &str = "conv_output_silu";
/// A delta net's queries, of length 1.
pub const Q_CONV_PREDELTA: &str = "q_conv_predelta";
/// Its keys, likewise.
pub const K_CONV_PREDELTA: &str = "k_conv_predelta";
/// Both rates of a delta net, in one matrix.
pub const MIXED_BA: &str = "linear_attn_mixed_ba";
/// Queries, keys, values and gates of a delta net, in one matrix.
pub const MIXED_QKVZ: &str = "linear_attn_mixed_qkvz";
/// Time steps, before their bias.
pub const A: &str = "a";
/// After a softplus.
pub const A_SOFTPLUS: &str = "a_softplus";
/// The logarithm of what is left of a delta net's state; in Qwen 3 Next also attention's gate.
pub const GATE: &str = "gate";
/// How far a delta net's state is corrected, before a sigmoid.
pub const B: &str = "b";
/// After it.
pub const BETA_SIGMOID: &str = "beta_sigmoid";
/// What gates a delta net's result.
pub const Z: &str = "z";
/// A delta net's result.
pub const LINEAR_ATTN_OUT: &str = "linear_attn_out";
/// What is read from a Mamba's state, and what goes past it.
pub const MAMBA2_Y_ADD_D: &str = "mamba2_y_add_d";
/// A Mamba's result.
pub const MAMBA_OUT: &str = "mamba_out";
/// A Mamba's result beside attention.
pub const SSM_OUT: &str = "ssm_out";
/// Both.
pub const LAYER_OUT: &str = "layer_out";
/// Queries, rotated, of Falcon H1.
pub const Q_CUR_POST_ROPE: &str = "Qcur-post-rope";
/// Keys, rotated, of Falcon H1.
pub const K_CUR_POST_ROPE: &str = "Kcur-post-rope";
/// A layer's input, normed, of LFM 2.
pub const OPERATOR_NORM: &str = "model.layers.{}.operator_norm";
/// Gates and values of a short convolution.
pub const CONV_IN_PROJ: &str = "model.layers.{}.conv.in_proj";
/// Its result.
pub const CONV_CONV: &str = "model.layers.{}.conv.conv";
/// What it adds.
pub const CONV_OUT_PROJ: &str = "model.layers.{}.conv.out_proj";
/// Queries, normed per head, of LFM 2.
pub const Q_LAYERNORM: &str = "model.layers.{}.self_attn.q_layernorm";
/// Keys, normed per head, of LFM 2.
pub const K_LAYERNORM: &str = "model.layers.{}.self_attn.k_layernorm";
/// Attention's projection, of LFM 2.
pub const SELF_ATTN_OUT_PROJ: &str = "model.layers.{}.self_attn.out_proj";
/// The feed-forward block's input, normed, as LFM 2 calls it.
pub const LFM2_FFN_OUT: &str = "model.layers.{}.ffn_out";
/// What a layer hands on.
pub const L_OUT: &str = "l_out";
/// The same with a part of what stands for a cell of a picture.
pub const DEEPSTACK_OUT: &str = "deepstack_out";
/// The final norm.
pub const RESULT_NORM: &str = "result_norm";
/// What a model without logits gives.
pub const RESULT_EMBD: &str = "result_embd";
/// The same after the products that follow.
pub const RESULT_EMBD_POOLED: &str = "result_embd_pooled";
/// The logits.
pub const RESULT_OUTPUT: &str = "result_output";

/// Stands in the place of a name where llama.cpp has none, of values that are products' inputs.
pub const UNNAMED: &str = "(input of a product)";

/// A named value: `Qcur-3`, or `result_norm` without a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap<N = &'static str> {
    /// llama.cpp's name.
    pub name: N,
    /// The layer, for what repeats per layer.
    pub layer: Option<usize>,
    /// How many values of this name and layer come before it in a pass.
    pub nth: usize,
}

/// A value of a program that need not be ours, which may have names that we have not.
pub type OwnedTap = Tap<String>;

impl Tap {
    /// Whether llama.cpp has a name for it too. Inputs of products are shown in any case.
    pub fn is_named(&self) -> bool {
        self.name != UNNAMED
    }

    /// With a name of its own.
    pub fn owned(self) -> OwnedTap {
        Tap {
            name: self.name.to_owned(),
            layer: self.layer,
            nth: self.nth,
        }
    }
}

/// Name and layer.
impl<N: fmt::Display> fmt::Display for Tap<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{}-{layer}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// Numbers values of the same name and layer, as they come.
#[derive(Debug)]
pub struct Numbering<N>(HashMap<(N, Option<usize>), usize>);

impl<N: Clone + Eq + Hash> Numbering<N> {
    /// The next value of that name and layer.
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
