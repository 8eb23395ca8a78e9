//! The supported architectures: one file each, with its own hyperparameters, weights and layer. To
//! add one, add that file, its `mod` and a line in the list of all.

mod afmoe;
mod apertus;
mod arcee;
mod baichuan;
mod bailingmoe2;
mod bert;
mod bitnet;
mod bloom;
mod chatglm;
mod cohere2;
mod command_r;
mod deepseek;
mod deepseek2;
mod deepseek32;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma4_assistant;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod glm_dsa;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_swa;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod hunyuan_moe;
mod images;
mod internlm2;
mod jamba;
mod jina_bert_v3;
mod kimi_linear;
mod kinds;
mod layers;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod mimo2;
mod minicpm;
mod minimax_m2;
mod mistral3;
mod mistral4;
mod modern_bert;
mod mpt;
mod nemotron;
mod nemotron_h;
mod nemotron_h_moe;
mod neo_bert;
mod nomic_bert;
mod olmo;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod phimoe;
mod plamo2;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
mod rwkv7;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod stablelm;
mod starcoder2;
mod step35;

use std::fmt;

use gguf_rs_lite::{Gguf, Value};

use super::blocks::{Block, Builder, Feature};
use super::graph::{Graph, HiddenRows, Norm};
use super::hparams::{Hparams, Sections};
use super::keys::{Keys, show};
use super::taps;
pub(crate) use images::Images;
pub(crate) use kinds::Classifier;
pub(super) use kinds::{GateTaps, QkNorm, Recurrent};

use super::weights::{Attention, Binder, EmbeddingsAndHead, Ffn, Layer, NormWeights, Weights, blk};
use crate::error::Error;
use layers::{
    NUMBERED_POST_NORMS, POST_NORMS, PostNorms, bare_layer, biased_experts_after_dense,
    biased_layer, dense_layer, expert_layer, experts_after_dense, experts_where_routed,
    pre_norm_layer, pre_norm_layer_with, qk_normed_experts_after_dense, qk_normed_layer,
    with_head_norms, with_output_bias, with_post_norms, with_qk_norms, with_result_gate,
    with_whole_norms,
};
use octavo_kernels::{KeyHeads, Pairing};

/// Every supported architecture. A new one needs its file and a line here.
static ALL: [Arch; 87] = [
    Arch(&afmoe::SPEC),
    Arch(&apertus::SPEC),
    Arch(&arcee::SPEC),
    Arch(&baichuan::SPEC),
    Arch(&bailingmoe2::SPEC),
    Arch(&bert::SPEC),
    Arch(&bitnet::SPEC),
    Arch(&bloom::SPEC),
    Arch(&chatglm::SPEC),
    Arch(&cohere2::SPEC),
    Arch(&command_r::SPEC),
    Arch(&deepseek::SPEC),
    Arch(&deepseek2::SPEC),
    Arch(&deepseek32::SPEC),
    Arch(&dots1::SPEC),
    Arch(&ernie4_5::SPEC),
    Arch(&ernie4_5_moe::SPEC),
    Arch(&eurobert::SPEC),
    Arch(&exaone::SPEC),
    Arch(&exaone4::SPEC),
    Arch(&exaone_moe::SPEC),
    Arch(&falcon::SPEC),
    Arch(&falcon_h1::SPEC),
    Arch(&gemma::SPEC),
    Arch(&gemma2::SPEC),
    Arch(&gemma3::SPEC),
    Arch(&gemma4::SPEC),
    Arch(&gemma4_assistant::SPEC),
    Arch(&gemma_embedding::SPEC),
    Arch(&glm4::SPEC),
    Arch(&glm4moe::SPEC),
    Arch(&glm_dsa::SPEC),
    Arch(&gpt2::SPEC),
    Arch(&gpt_oss::SPEC),
    Arch(&gptneox::SPEC),
    Arch(&granite::SPEC),
    Arch(&granite_swa::SPEC),
    Arch(&granitehybrid::SPEC),
    Arch(&granitemoe::SPEC),
    Arch(&hunyuan_dense::SPEC),
    Arch(&hunyuan_moe::SPEC),
    Arch(&internlm2::SPEC),
    Arch(&jamba::SPEC),
    Arch(&jina_bert_v3::SPEC),
    Arch(&kimi_linear::SPEC),
    Arch(&lfm2::SPEC),
    Arch(&lfm2moe::SPEC),
    Arch(&llama::SPEC),
    Arch(&llama4::SPEC),
    Arch(&mamba::SPEC),
    Arch(&mamba2::SPEC),
    Arch(&mimo2::SPEC),
    Arch(&minicpm::SPEC),
    Arch(&minimax_m2::SPEC),
    Arch(&mistral3::SPEC),
    Arch(&mistral4::SPEC),
    Arch(&modern_bert::SPEC),
    Arch(&mpt::SPEC),
    Arch(&nemotron::SPEC),
    Arch(&nemotron_h::SPEC),
    Arch(&nemotron_h_moe::SPEC),
    Arch(&neo_bert::SPEC),
    Arch(&nomic_bert::SPEC),
    Arch(&olmo::SPEC),
    Arch(&olmo2::SPEC),
    Arch(&olmoe::SPEC),
    Arch(&phi2::SPEC),
    Arch(&phi3::SPEC),
    Arch(&phimoe::SPEC),
    Arch(&plamo2::SPEC),
    Arch(&qwen2::SPEC),
    Arch(&qwen2moe::SPEC),
    Arch(&qwen2vl::SPEC),
    Arch(&qwen3::SPEC),
    Arch(&qwen35::SPEC),
    Arch(&qwen35moe::SPEC),
    Arch(&qwen3moe::SPEC),
    Arch(&qwen3next::SPEC),
    Arch(&qwen3vl::SPEC),
    Arch(&qwen3vlmoe::SPEC),
    Arch(&rwkv7::SPEC),
    Arch(&seed_oss::SPEC),
    Arch(&smallthinker::SPEC),
    Arch(&smollm3::SPEC),
    Arch(&stablelm::SPEC),
    Arch(&starcoder2::SPEC),
    Arch(&step35::SPEC),
];

/// A supported architecture.
#[derive(Clone, Copy)]
pub struct Arch(&'static Spec);

impl PartialEq for Arch {
    fn eq(&self, other: &Arch) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Arch {}

impl fmt::Debug for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An architecture as data, plus functions that read and bind its particular keys and tensors.
/// Decoders start from [`DECODER`].
pub(super) struct Spec {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// Pairs of dimensions that RoPE rotates together.
    pub(super) pairing: Pairing,
    /// Attention has RoPE.
    pub(super) rotates: bool,
    /// The whole head must be rotated.
    pub(super) full_rotary: bool,
    /// M-RoPE sections: the split of RoPE pairs among image axes, for models with images.
    pub(super) sections: Option<Sections>,
    /// How images among a text's tokens are read.
    pub(super) images: Images,
    /// LongRoPE is allowed: one of two lists of angle divisors, chosen by context length.
    pub(super) longrope: bool,
    /// YaRN's ramp is the usual one, whatever the file says.
    pub(super) ignores_yarn_betas: bool,
    /// Heads must fill the embedding width exactly.
    pub(super) heads_fill_width: bool,
    /// Kind of norm.
    pub(super) norm: Norm,
    /// Activation of the feed-forward block's gate or, without a gate, of its product.
    pub(super) feature: Feature,
    /// Arrangement of attention and feed-forward block.
    pub(super) block: Block,
    /// Multi-head latent attention (MLA): all heads read one low-rank row.
    pub(super) latent: bool,
    /// llama.cpp names the parts of its queries and keys.
    pub(super) names_latent: bool,
    /// Kind of recurrent layers, if any.
    pub(super) recurrent: Option<Recurrent>,
    /// A feed-forward block follows attention.
    pub(super) feeds_forward: bool,
    /// The query projection also yields a gate of the result, after each head's query.
    pub(super) gated_attention: bool,
    /// A shared expert's gate and up projections are one tensor.
    pub(super) fused_shared: bool,
    /// Place of the query and key norms, if there are any.
    pub(super) qk_norm: QkNorm,
    /// Tap names of queries and keys after these norms.
    pub(super) qk_normed: [&'static str; 2],
    /// Tap names of the gate of attention's result.
    pub(super) gate: GateTaps,
    /// Tap name of queries scaled by position.
    pub(super) scaled_query: &'static str,
    /// The router reads the layer's input, before any norm.
    pub(super) early_router: bool,
    /// Tap names of the shared expert's gate: scores, sigmoid, gated result.
    pub(super) shared_gate: [&'static str; 3],
    /// Tap name of token embeddings.
    pub(super) embedding: &'static str,
    /// Tap name of attention's output projection, if it has one.
    pub(super) attn_out: Option<&'static str>,
    /// Tap name of the feed-forward block's result.
    pub(super) ffn_out: &'static str,
    /// Tap names of queries and keys after RoPE, if they have any.
    pub(super) rotated: [Option<&'static str>; 2],
    /// Tap name of scaled token embeddings.
    pub(super) scaled_embedding: &'static str,
    /// Causal attention, and the last layer's rows become logits. Otherwise attention is
    /// bidirectional, and the rows are the output (embedding models).
    pub(super) causal: bool,
    /// Kind of a reranker's classifier, if files may have one.
    pub(super) classifier: Option<Classifier>,
    /// Learned position embeddings replace RoPE.
    pub(super) embeds_positions: bool,
    /// Its MTP layers read the trunk's rows after the final norm.
    pub(super) mtp: bool,
    /// Architecture of the models that it drafts tokens for by reading their caches.
    pub(super) assists: Option<&'static str>,
    /// Files may state an expert count of 1, where other dense models state 0.
    pub(super) counts_one_expert: bool,
    /// Keys this architecture reads, among those refused by default.
    pub(super) reads: &'static [&'static str],
    /// Reads these keys and adjusts the hyperparameters.
    pub(super) read_hparams: fn(&mut Keys<'_>, &mut Hparams) -> Result<(), Error>,
    /// Binds the weights outside the layers.
    pub(super) bind_embeddings_and_head: fn(&mut Binder<'_>) -> Result<EmbeddingsAndHead, Error>,
    /// Binds one layer.
    pub(super) layer: fn(&mut Binder<'_>, usize) -> Result<Layer, Error>,
}

/// Most decoders: RMS norms before attention and before a gated feed-forward block, SiLU, and NeoX
/// RoPE (dimension `i` pairs with `i + n_rot / 2`).
const DECODER: Spec = Spec {
    name: "",
    pairing: Pairing::Neox,
    rotates: true,
    full_rotary: false,
    sections: None,
    images: Images::None,
    longrope: false,
    ignores_yarn_betas: false,
    heads_fill_width: false,
    norm: Norm::Rms,
    feature: Feature::Silu,
    block: Block::Sequential {
        residual: Some(taps::FFN_INP),
    },
    latent: false,
    names_latent: true,
    recurrent: None,
    feeds_forward: true,
    gated_attention: false,
    fused_shared: false,
    qk_norm: QkNorm::BeforeRope,
    qk_normed: [taps::Q_CUR_NORMED, taps::K_CUR_NORMED],
    gate: GateTaps {
        before: taps::ATTN_PREGATE,
        gate: taps::GATE_RESHAPED,
        sigmoid: taps::GATE_SIGMOID,
        after: taps::ATTN_GATED,
    },
    scaled_query: taps::Q_CUR_TEMP,
    early_router: false,
    shared_gate: [
        taps::FFN_SHEXP_GATE_INP,
        taps::FFN_SHEXP_GATE,
        taps::FFN_SHEXP_OUT,
    ],
    embedding: taps::INP_EMBD,
    attn_out: Some(taps::ATTN_OUT),
    ffn_out: taps::FFN_OUT,
    rotated: [Some(taps::Q_CUR), Some(taps::K_CUR)],
    scaled_embedding: taps::INP_EMBD,
    causal: true,
    classifier: None,
    embeds_positions: false,
    mtp: false,
    assists: None,
    counts_one_expert: false,
    reads: &[],
    read_hparams: |_, _| Ok(()),
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head(),
    layer: dense_layer,
};

impl Arch {
    /// Returns every supported architecture.
    pub fn all() -> &'static [Arch] {
        &ALL
    }

    pub(super) fn spec(self) -> &'static Spec {
        self.0
    }

    /// Returns the name in `general.architecture`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the architecture that a file names.
    pub fn of_file(gguf: &Gguf) -> Result<Arch, Error> {
        const KEY: &str = "general.architecture";
        let file = || gguf.name().to_owned();
        match gguf.get(KEY) {
            Some(Value::Str(s)) => ALL
                .into_iter()
                .find(|a| a.name().as_bytes() == s)
                .ok_or_else(|| {
                    let got: String = String::from_utf8_lossy(s).chars().take(60).collect();
                    Error::UnknownArchitecture {
                        file: file(),
                        supported: supported_like(&got),
                        got,
                    }
                }),
            Some(v) => Err(Error::BadValue {
                file: file(),
                key: KEY.to_owned(),
                expected: "a string".to_owned(),
                got: show(&v),
            }),
            None => {
                let expected = format!("an architecture: {}", supported_like(""));
                Err(Error::MissingKey {
                    file: file(),
                    key: KEY.to_owned(),
                    expected,
                })
            }
        }
    }
}

/// Names the supported architectures that begin as `name` does, or else well-known ones, and counts
/// the others.
fn supported_like(name: &str) -> String {
    let start: String = name.chars().take(3).collect();
    let is_like = |known: &&str| start.chars().count() == 3 && known.starts_with(&start);
    let mut shown: Vec<&str> = ALL.iter().map(|arch| arch.name()).filter(is_like).collect();
    if shown.is_empty() {
        shown = vec!["llama", "qwen3", "gemma3", "deepseek2"];
    }
    shown.truncate(12);
    format!("{} and {} more", shown.join(", "), ALL.len() - shown.len())
}

/// Builds the forward pass of a bound model; `rows` selects those that the final norm is of.
pub(super) fn build(h: &Hparams, w: &Weights, rows: HiddenRows) -> Graph {
    // an MTP layer drafts on from its outputs
    let rows = match w.mtp.is_some() || w.assistant.is_some() {
        true => HiddenRows::Outputs,
        false => rows,
    };
    let mut b = Builder::new(h, w, rows);
    let mut x = b.embed();
    let mut layers = Vec::with_capacity(h.n_layer());
    for l in 0..h.n_layer() {
        x = b.layer(x, l);
        if l < h.n_deepstack {
            x = b.add_deep(x, l);
        }
        layers.push(x);
    }
    b.head(x, layers)
}
