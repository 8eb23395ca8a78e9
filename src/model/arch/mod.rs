//! The supported architectures: one file each, with its own hyperparameters, weights and layer. To
//! add one, add that file, its `mod` and a line in the list of all.

mod bert;
mod cohere2;
mod command_r;
mod deepseek2;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone4;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod images;
mod jina_bert_v3;
mod kinds;
mod lfm2;
mod lfm2moe;
mod llama;
mod mamba2;
mod minicpm;
mod mistral3;
mod modern_bert;
mod nemotron;
mod neo_bert;
mod nomic_bert;
mod olmo2;
mod phi2;
mod phi3;
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
mod seed_oss;
mod smollm3;
mod starcoder2;

use std::fmt;

use gguf_rs_lite::{Gguf, Value};

use super::blocks::{Block, Builder, Feature};
use super::graph::{Graph, HiddenRows, Norm};
use super::hparams::{Hparams, Sections};
use super::keys::{Keys, show};
use super::taps;
pub(crate) use images::Images;
pub(crate) use kinds::Classifier;
pub(super) use kinds::{QkNorm, Recurrent};

use super::weights::{
    Attention, Binder, EmbeddingsAndHead, Ffn, Layer, NormWeights, Recurrence, Weights, blk,
};
use crate::error::Error;
use octavo_kernels::{KeyHeads, Pairing};

/// Every supported architecture. A new one needs its file and a line here.
static ALL: [Arch; 49] = [
    Arch(&bert::SPEC),
    Arch(&cohere2::SPEC),
    Arch(&command_r::SPEC),
    Arch(&deepseek2::SPEC),
    Arch(&ernie4_5::SPEC),
    Arch(&ernie4_5_moe::SPEC),
    Arch(&eurobert::SPEC),
    Arch(&exaone4::SPEC),
    Arch(&falcon::SPEC),
    Arch(&falcon_h1::SPEC),
    Arch(&gemma::SPEC),
    Arch(&gemma2::SPEC),
    Arch(&gemma3::SPEC),
    Arch(&gemma4::SPEC),
    Arch(&gemma_embedding::SPEC),
    Arch(&glm4::SPEC),
    Arch(&glm4moe::SPEC),
    Arch(&gpt_oss::SPEC),
    Arch(&granite::SPEC),
    Arch(&granitehybrid::SPEC),
    Arch(&granitemoe::SPEC),
    Arch(&hunyuan_dense::SPEC),
    Arch(&jina_bert_v3::SPEC),
    Arch(&lfm2::SPEC),
    Arch(&lfm2moe::SPEC),
    Arch(&llama::SPEC),
    Arch(&mamba2::SPEC),
    Arch(&minicpm::SPEC),
    Arch(&mistral3::SPEC),
    Arch(&modern_bert::SPEC),
    Arch(&nemotron::SPEC),
    Arch(&neo_bert::SPEC),
    Arch(&nomic_bert::SPEC),
    Arch(&olmo2::SPEC),
    Arch(&phi2::SPEC),
    Arch(&phi3::SPEC),
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
    Arch(&seed_oss::SPEC),
    Arch(&smollm3::SPEC),
    Arch(&starcoder2::SPEC),
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
    /// The whole head must be rotated.
    pub(super) full_rotary: bool,
    /// M-RoPE sections: the split of RoPE pairs among image axes, for models with images.
    pub(super) sections: Option<Sections>,
    /// How images among a text's tokens are read.
    pub(super) images: Images,
    /// LongRoPE is allowed: one of two lists of angle divisors, chosen by context length.
    pub(super) longrope: bool,
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
    /// Kind of recurrent layers, if any.
    pub(super) recurrent: Option<Recurrent>,
    /// A feed-forward block follows attention.
    pub(super) feeds_forward: bool,
    /// The query projection also yields a gate of the result, after each head's query.
    pub(super) gated_attention: bool,
    /// Place of the query and key norms, if there are any.
    pub(super) qk_norm: QkNorm,
    /// Tap names of queries and keys after these norms.
    pub(super) qk_normed: [&'static str; 2],
    /// Tap name of the gate of attention's result.
    pub(super) query_gate: &'static str,
    /// Tap names of the shared expert's gate: scores, sigmoid, gated result.
    pub(super) shared_gate: [&'static str; 3],
    /// Tap name of token embeddings.
    pub(super) embedding: &'static str,
    /// Tap name of attention's output projection, if it has one.
    pub(super) attn_out: Option<&'static str>,
    /// Tap names of queries and keys after RoPE.
    pub(super) rotated: [&'static str; 2],
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
    full_rotary: false,
    sections: None,
    images: Images::None,
    longrope: false,
    heads_fill_width: false,
    norm: Norm::Rms,
    feature: Feature::Silu,
    block: Block::Sequential {
        residual: Some(taps::FFN_INP),
    },
    latent: false,
    recurrent: None,
    feeds_forward: true,
    gated_attention: false,
    qk_norm: QkNorm::BeforeRope,
    qk_normed: [taps::Q_CUR_NORMED, taps::K_CUR_NORMED],
    query_gate: taps::GATE_RESHAPED,
    shared_gate: [
        taps::FFN_SHEXP_GATE_INP,
        taps::FFN_SHEXP_GATE,
        taps::FFN_SHEXP_OUT,
    ],
    embedding: taps::INP_EMBD,
    attn_out: Some(taps::ATTN_OUT),
    rotated: [taps::Q_CUR, taps::K_CUR],
    scaled_embedding: taps::INP_EMBD,
    causal: true,
    classifier: None,
    embeds_positions: false,
    mtp: false,
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
        let supported = || ALL.map(Arch::name).join(", ");
        match gguf.get(KEY) {
            Some(Value::Str(s)) => ALL
                .into_iter()
                .find(|a| a.name().as_bytes() == s)
                .ok_or_else(|| {
                    let got = String::from_utf8_lossy(s).chars().take(60).collect();
                    Error::UnknownArchitecture {
                        file: file(),
                        got,
                        supported: supported(),
                    }
                }),
            Some(v) => Err(Error::BadValue {
                file: file(),
                key: KEY.to_owned(),
                expected: "a string".to_owned(),
                got: show(&v),
            }),
            None => {
                let expected = format!("one of {}", supported());
                Err(Error::MissingKey {
                    file: file(),
                    key: KEY.to_owned(),
                    expected,
                })
            }
        }
    }
}

/// Builds the forward pass of a bound model; `rows` selects those that the final norm is of.
pub(super) fn build(h: &Hparams, w: &Weights, rows: HiddenRows) -> Graph {
    // an MTP layer drafts on from its outputs
    let rows = match w.mtp {
        Some(_) => HiddenRows::Outputs,
        None => rows,
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

/// Binds a pre-norm layer with a gated feed-forward block, without optional weights.
fn dense_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))
}

/// Binds a pre-norm layer with experts, or a dense one where the model has none.
fn expert_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    match b.h.experts {
        Some(_) => pre_norm_layer(b, l, |b| Ok(Ffn::Experts(b.experts(l)?))),
        None => dense_layer(b, l),
    }
}

/// Binds a pre-norm layer with the feed-forward block that `ffn` binds.
fn pre_norm_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    pre_norm_layer_with(b, l, ["ffn_norm", taps::FFN_NORM], ffn)
}

/// Does the same with another tensor and tap name for the norm before the feed-forward block.
fn pre_norm_layer_with<'b>(
    b: &mut Binder<'b>,
    l: usize,
    [ffn_norm, tap]: [&'static str; 2],
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let attn_norm = b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?;
    let bare = bare_layer(b, l, ffn)?;
    Ok(Layer {
        attn_norm: Some(attn_norm),
        ffn_norm: Some(b.layer_norm(l, ffn_norm, tap)?),
        ..bare
    })
}

/// Binds such a layer with the biases that the file has, on attention's output and in the dense
/// feed-forward block.
fn biased_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    let layer = with_output_bias(b, l, layer)?;
    Ok(Layer {
        ffn: match layer.ffn {
            Ffn::Dense(ffn) => Ffn::Dense(b.ffn_biases(l, ffn)?),
            others => others,
        },
        ..layer
    })
}

/// Adds the bias of attention's output projection, where the file has one.
fn with_output_bias(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    layer.attending(|attention| {
        let bo = b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?;
        Ok(Attention { bo, ..attention })
    })
}

/// Binds such a layer with a norm of each query and key head.
fn qk_normed_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    with_head_norms(b, l, layer)
}

/// Adds a norm of each query and key head.
fn with_head_norms(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    let widths = [b.h.layers[l].head_dim; 2];
    with_qk_norms(b, l, layer, widths)
}

/// Adds norms of queries and keys over groups of `widths` values.
fn with_qk_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    widths: [usize; 2],
) -> Result<Layer, Error> {
    let names = b.h.arch.spec().qk_normed;
    layer.attending(|attention| {
        Ok(Attention {
            q_norm: Some(b.norm(&blk(l, "attn_q_norm"), widths[0], names[0])?),
            k_norm: Some(b.norm(&blk(l, "attn_k_norm"), widths[1], names[1])?),
            ..attention
        })
    })
}

/// Tap names of the norms after attention and after the feed-forward block.
struct PostNorms {
    attn: &'static str,
    ffn: &'static str,
    /// Whether the second name carries the layer's number.
    ffn_is_numbered: bool,
}

/// The usual names.
const POST_NORMS: PostNorms = PostNorms {
    attn: taps::ATTN_POST_NORM,
    ffn: taps::FFN_POST_NORM,
    ffn_is_numbered: false,
};

/// The usual names, both with the layer's number.
const NUMBERED_POST_NORMS: PostNorms = PostNorms {
    ffn_is_numbered: true,
    ..POST_NORMS
};

/// Adds norms of the results of attention and the feed-forward block.
fn with_post_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    names: &PostNorms,
) -> Result<Layer, Error> {
    Ok(Layer {
        attn_post_norm: Some(b.layer_norm(l, "post_attention_norm", names.attn)?),
        ffn_post_norm: Some(NormWeights {
            numbered: names.ffn_is_numbered,
            ..b.layer_norm(l, "post_ffw_norm", names.ffn)?
        }),
        ..layer
    })
}

/// Binds a layer without norms.
fn bare_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let sizes = &b.h.layers[l];
    let (attends, recurs) = (sizes.attends(), sizes.recurs());
    let latent = b.h.arch.spec().latent;
    Ok(Layer {
        latent: latent.then(|| b.latent_attention(l)).transpose()?,
        attention: (attends && !latent).then(|| attention(b, l)).transpose()?,
        recurrence: recurs.then(|| recurrence(b, l)).transpose()?,
        ..Layer::new(ffn(b)?)
    })
}

fn attention(b: &mut Binder<'_>, l: usize) -> Result<Attention, Error> {
    let (n_embd, q_width) = (b.h.n_embd(), b.h.layers[l].q_width());
    let qkv = b.qkv(l)?;
    let wo = b.matrix(&blk(l, "attn_output.weight"), n_embd, q_width)?;
    Ok(Attention {
        gated: b.h.arch.spec().gated_attention,
        wk: Some(qkv.w[1]),
        wv: Some(qkv.w[2]),
        bq: qkv.b[0],
        bk: qkv.b[1],
        bv: qkv.b[2],
        ..Attention::new(qkv.w[0], wo)
    })
}

fn recurrence(b: &mut Binder<'_>, l: usize) -> Result<Recurrence, Error> {
    let recurrent = b.h.arch.spec().recurrent;
    Ok(match recurrent.expect("it has recurrent layers") {
        Recurrent::DeltaNet(_) => Recurrence::DeltaNet(b.delta_net(l)?),
        Recurrent::ShortConv => Recurrence::ShortConv(b.short_conv(l)?),
        Recurrent::Mamba2 => Recurrence::Mamba2(b.mamba2(l, taps::MAMBA_OUT, false)?),
        Recurrent::Mamba2Beside => Recurrence::Mamba2(b.mamba2(l, taps::SSM_OUT, true)?),
    })
}
